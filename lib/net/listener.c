// SPDX-License-Identifier: Apache-2.0
#include "lib/net/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "lib/base/address.h"
#include "lib/base/address_counts.h"
#include "lib/base/clock.h"
#include "lib/base/invariant.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/thread.h"
#include "lib/net/server.h"

enum {
    EVENTS = 256,
    ACCEPTS_PER_TURN = 64,
    SILENT_US = 10000000, // for the first bytes of a connection
    COUNT_US = 100000,    // between two counts of open connections at the bound
    PAUSE_US = 10000,     // while no descriptor is free
    REFUSED_LOG_US = 10000000,
};

// A connection that has sent nothing yet.
struct silent {
    struct silent *older, *newer;
    int fd;
    struct in6_addr address;
    int64_t until_us;
};

// A connection that C-core owns. C-core does not report when it closes a connection; the descriptor is then invalid or
// refers to another file.
struct handed {
    int fd;
    ino_t inode;
    struct in6_addr address;
};

struct net_listener {
    int sockets[ADDRESS_SOCKETS_MAX], n_sockets, port;
    int epoll_fd, wake_fd;
    int spare_fd; // closed to take and close a connection when the process has no descriptor left; -1: none
    int max;      // connections
    struct address_counts *addresses; // NULL: no bound
    void (*take)(void *owner, int fd);
    void *owner;
    pthread_t thread;
    bool started;
    atomic_bool closing;

    // of the thread
    int64_t now_us, count_due_us, log_due_us;
    uint64_t refused;
    struct silent *oldest, *newest;
    int n_silent, n_handed;
    struct handed *handed; // [max]
};

static void refused_log(struct net_listener *l, const char *reason)
{
    l->refused++;
    if (l->now_us < l->log_due_us) return;
    l->log_due_us = l->now_us + REFUSED_LOG_US;
    log_event(LOG_WARN, "grpc_connections_refused", LOG_FIELD("port", l->port), LOG_FIELD("reason", reason),
              LOG_FIELD("max_connections", l->max), LOG_FIELD("refused", l->refused));
}

// --- silent connections

static void silent_add(struct net_listener *l, int fd, const struct in6_addr *address)
{
    struct silent *s = mem_alloc(sizeof *s);
    *s = (struct silent){.older = l->newest, .fd = fd, .address = *address, .until_us = l->now_us + SILENT_US};
    if (s->older)
        s->older->newer = s;
    else
        l->oldest = s;
    l->newest = s;
    l->n_silent++;
    epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = EPOLLIN, .data.ptr = s});
}

// Returns its descriptor, no longer watched.
static int silent_remove(struct net_listener *l, struct silent *s)
{
    int fd = s->fd;
    *(s->older ? &s->older->newer : &l->oldest) = s->newer;
    *(s->newer ? &s->newer->older : &l->newest) = s->older;
    l->n_silent--;
    epoll_ctl(l->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    free(s);
    return fd;
}

static void connection_close(struct net_listener *l, int fd, const struct in6_addr *address)
{
    close(fd);
    address_counts_remove(l->addresses, address);
}

static void oldest_close(struct net_listener *l)
{
    struct in6_addr address = l->oldest->address;
    connection_close(l, silent_remove(l, l->oldest), &address);
}

static void silent_expire(struct net_listener *l)
{
    while (l->oldest && l->oldest->until_us <= l->now_us)
        oldest_close(l);
}

// --- connections of C-core

static ino_t inode_of(int fd)
{
    struct stat file;
    return fstat(fd, &file) == 0 ? file.st_ino : 0;
}

// Counts at most every COUNT_US, because it needs a system call for each connection.
static void handed_count(struct net_listener *l)
{
    int open = 0;
    if (l->now_us < l->count_due_us) return;
    l->count_due_us = l->now_us + COUNT_US;
    for (int i = 0; i < l->n_handed; i++) {
        const struct handed *h = &l->handed[i];
        if (inode_of(h->fd) == h->inode)
            l->handed[open++] = *h;
        else
            address_counts_remove(l->addresses, &h->address);
    }
    l->n_handed = open;
}

static void hand_over(struct net_listener *l, struct silent *s)
{
    struct in6_addr address = s->address;
    int fd = silent_remove(l, s);
    char first;
    if (recv(fd, &first, 1, MSG_PEEK) != 1) {
        connection_close(l, fd, &address);
        return;
    }
    l->handed[l->n_handed++] = (struct handed){fd, inode_of(fd), address};
    l->take(l->owner, fd);
}

// --- accepting

// Whether there is room for one more connection.
static bool place_make(struct net_listener *l)
{
    if (l->n_silent + l->n_handed < l->max) return true;
    handed_count(l);
    if (l->n_silent + l->n_handed < l->max) return true;
    refused_log(l, "the port has its maximum of connections");
    if (!l->oldest) return false;
    oldest_close(l);
    return true;
}

// Whether the address may have one more connection.
static bool address_admit(struct net_listener *l, const struct in6_addr *address)
{
    if (address_counts_add(l->addresses, address)) return true;
    handed_count(l);
    if (address_counts_add(l->addresses, address)) return true;
    refused_log(l, "the client's address has its maximum of connections");
    return false;
}

static void accept_one(struct net_listener *l, int fd, const struct sockaddr_storage *from)
{
    struct in6_addr address = address_to_ipv6(from).sin6_addr;
    if (!address_admit(l, &address))
        close(fd);
    else if (place_make(l))
        silent_add(l, fd, &address);
    else
        connection_close(l, fd, &address);
}

// Without a free descriptor the socket would stay readable and keep the thread busy: the spare descriptor is used to
// accept the connection and close it.
static void refuse_without_descriptor(struct net_listener *l, int socket)
{
    refused_log(l, "no file descriptor is left");
    if (l->spare_fd >= 0) close(l->spare_fd);
    int fd = accept4(socket, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0) close(fd);
    l->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    const struct timespec pause = {.tv_nsec = PAUSE_US * 1000};
    if (l->spare_fd < 0) nanosleep(&pause, NULL);
}

static void accept_some(struct net_listener *l, int socket)
{
    for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
        struct sockaddr_storage from;
        socklen_t size = sizeof from;
        int fd = accept4(socket, (struct sockaddr *)&from, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0)
            accept_one(l, fd, &from);
        else if (errno == EAGAIN)
            return;
        else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            refuse_without_descriptor(l, socket);
        else // the program's supervisor starts it again
            INVARIANT(!address_listener_is_dead(errno), "port %d no longer listens: %s", l->port, strerror(errno));
    }
}

// --- the thread

static int wait_ms(const struct net_listener *l)
{
    if (!l->oldest) return -1;
    int64_t us = l->oldest->until_us - clock_now_us();
    return us <= 0 ? 0 : (int)(us / 1000 + 1);
}

static void run_once(struct net_listener *l)
{
    struct epoll_event events[EVENTS];
    int n = epoll_wait(l->epoll_fd, events, EVENTS, wait_ms(l));
    INVARIANT(n >= 0 || errno == EINTR, "epoll_wait: %s", strerror(errno));
    l->now_us = clock_now_us();
    for (int i = 0; i < n; i++) { // silent connections first: accepting may close one of them
        void *at = events[i].data.ptr;
        if (at != l && !((int *)at >= l->sockets && (int *)at < l->sockets + l->n_sockets)) hand_over(l, at);
    }
    for (int i = 0; i < n; i++) {
        int *at = events[i].data.ptr;
        if (at >= l->sockets && at < l->sockets + l->n_sockets) accept_some(l, *at);
    }
    silent_expire(l);
}

static void *listener_run(void *argument)
{
    struct net_listener *l = argument;
    while (!atomic_load(&l->closing))
        run_once(l);
    while (l->oldest)
        oldest_close(l);
    return NULL;
}

// --- public

static bool watch(struct net_listener *l)
{
    bool watching = l->epoll_fd >= 0 && l->wake_fd >= 0;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = l};
    watching = watching && epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, l->wake_fd, &event) == 0;
    for (int i = 0; i < l->n_sockets && watching; i++) {
        event.data.ptr = &l->sockets[i];
        watching = epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, l->sockets[i], &event) == 0;
    }
    return watching;
}

enum status net_listener_open(const char *address, int max_connections, int max_per_address,
                              struct net_listener **listener_p)
{
    struct net_listener *l = mem_alloc(sizeof *l);
    enum status status = address_listen(address, l->sockets, &l->n_sockets, &l->port);
    if (status != STATUS_OK) {
        free(l);
        return status;
    }
    l->max = max_connections;
    l->addresses = address_counts_open(max_per_address);
    l->handed = mem_alloc_array((size_t)l->max, sizeof *l->handed);
    l->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    l->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    l->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (!watch(l)) {
        status = status_fail(STATUS_INTERNAL, "cannot watch %s: %s", address, strerror(errno));
        net_listener_close(l);
        return status;
    }
    *listener_p = l;
    return STATUS_OK;
}

int net_listener_port(const struct net_listener *listener)
{
    return listener->port;
}

void net_listener_start(struct net_listener *l, void (*take)(void *owner, int fd), void *owner)
{
    l->take = take;
    l->owner = owner;
    thread_start(&l->thread, "accept", listener_run, l);
    l->started = true;
}

static void close_open(int fd)
{
    if (fd >= 0) close(fd);
}

void net_listener_close(struct net_listener *l)
{
    if (!l) return;
    atomic_store(&l->closing, true);
    if (l->started) {
        (void)!write(l->wake_fd, &(uint64_t){1}, sizeof(uint64_t));
        pthread_join(l->thread, NULL);
    }
    for (int i = 0; i < l->n_sockets; i++)
        close(l->sockets[i]);
    close_open(l->epoll_fd);
    close_open(l->wake_fd);
    close_open(l->spare_fd);
    address_counts_close(l->addresses);
    free(l->handed);
    free(l);
}
