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
#include <time.h>
#include <unistd.h>

#include "lib/base/address.h"
#include "lib/base/address_counts.h"
#include "lib/base/clock.h"
#include "lib/base/handshakes.h"
#include "lib/base/invariant.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/thread.h"
#include "lib/net/socket.h"

enum {
    EVENTS = 256,
    ACCEPTS_PER_TURN = 64,
    WAIT_US = 10000000,  // limit for a connection's handshake, preface and SETTINGS
    READ_BYTES = 16384,  // bytes of one read from a connection that C-core does not have yet: a record of TLS
    TURN_BYTES = 65536,  // limit of what is read from such a connection in a turn of the loop
    EXPIRE_US = 1000000, // interval between checks for unfinished frames and handshakes
    PAUSE_US = 10000,    // pause of accepting while no descriptor is free
    REFUSED_LOG_US = 10000000,
};

// A connection that C-core does not have yet: it has sent nothing, its TLS handshake is in progress, or its first
// frames are not complete.
struct waiting {
    struct waiting *older, *newer;
    int fd;
    struct sockaddr_in6 address;
    int64_t until_us;
    struct handshake handshake; // on a port with TLS
    struct net_socket *socket;  // checks the first frames; NULL: none has come
    uint8_t *early;             // what has been received of them
    size_t early_bytes;
    bool is_held; // its calls wait for their turn
};

struct net_listener {
    int sockets[ADDRESS_SOCKETS_MAX], n_sockets, port;
    int epoll_fd, wake_fd;
    int spare_fd; // freed to accept and close a connection when the process has no descriptor left; -1: none
    int max;      // largest number of connections
    struct handshakes *handshakes;   // NULL: plain text
    struct net_sockets *connections; // connections that C-core has, or whose first frames are being read
    net_take_fn *take;
    void *owner;
    pthread_t thread;
    bool started;
    atomic_bool closing;

    // the members below are used only by the thread
    int64_t now_us, expire_due_us, log_due_us;
    uint64_t refused;
    struct waiting *oldest, *newest;
    int n_waiting; // number of waiting connections that are not in `connections`
    uint8_t *room; // [READ_BYTES]
    bool was_busy; // connections existed at the last check: their memory may be returned to the system
};

static void refused_log(struct net_listener *l, const char *reason)
{
    l->refused++;
    if (l->now_us < l->log_due_us) return;
    l->log_due_us = l->now_us + REFUSED_LOG_US;
    log_event(LOG_WARN, "grpc_connections_refused", LOG_FIELD("port", l->port), LOG_FIELD("reason", reason),
              LOG_FIELD("max_connections", l->max), LOG_FIELD("refused", l->refused));
}

// --- waiting connections

static void waiting_watch(struct net_listener *l, struct waiting *w)
{
    epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, w->fd, &(struct epoll_event){.events = EPOLLIN, .data.ptr = w});
}

// Adds the connection to the list as the newest. It has WAIT_US from now.
static void list_add(struct net_listener *l, struct waiting *w)
{
    w->until_us = l->now_us + WAIT_US;
    w->older = l->newest;
    w->newer = NULL;
    *(w->older ? &w->older->newer : &l->oldest) = w;
    l->newest = w;
}

static void list_remove(struct net_listener *l, struct waiting *w)
{
    *(w->older ? &w->older->newer : &l->oldest) = w->newer;
    *(w->newer ? &w->newer->older : &l->newest) = w->older;
}

static void waiting_add(struct net_listener *l, int fd, const struct sockaddr_in6 *address)
{
    struct waiting *w = mem_alloc(sizeof *w);
    *w = (struct waiting){.fd = fd, .address = *address};
    list_add(l, w);
    l->n_waiting++;
    bool proxied = net_sockets_trust(l->connections, &w->address.sin6_addr);
    if (l->handshakes)
        handshake_start(l->handshakes, &w->handshake, fd, proxied ? NULL : &w->address.sin6_addr);
    else
        waiting_watch(l, w);
}

// Removes the connection from the waiting list, ends its handshake and stops watching its descriptor.
static void waiting_unlink(struct net_listener *l, struct waiting *w)
{
    list_remove(l, w);
    l->n_waiting -= !w->socket;
    if (l->handshakes) handshake_cancel(l->handshakes, &w->handshake);
    epoll_ctl(l->epoll_fd, EPOLL_CTL_DEL, w->fd, NULL);
}

static void connection_close(struct net_listener *l, int fd, const struct in6_addr *address)
{
    close(fd);
    net_sockets_drop_connection(l->connections, address);
}

// Frees a connection that has been unlinked, with its descriptor.
static void waiting_free(struct net_listener *l, struct waiting *w)
{
    if (w->socket)
        close(w->fd); // ends the socket and its counts
    else
        connection_close(l, w->fd, &w->address.sin6_addr);
    free(w->early);
    free(w);
}

static void waiting_close(struct net_listener *l, struct waiting *w)
{
    waiting_unlink(l, w);
    waiting_free(l, w);
}

// Gives the connection its whole time again.
static void waiting_renew(struct net_listener *l, struct waiting *w)
{
    list_remove(l, w);
    list_add(l, w);
}

// Closes the connections that have exceeded a time limit. The limit does not run while a connection waits for its turn.
static void waiting_expire(struct net_listener *l)
{
    for (struct waiting *w; (w = l->oldest) && w->until_us <= l->now_us;) {
        if (w->is_held)
            waiting_renew(l, w);
        else
            waiting_close(l, w);
    }
}

// Reads and drops the input. Closing a socket with unread bytes resets it, and the client would lose the last bytes
// that it was sent: a TLS alert or GOAWAY.
static void input_drop(int fd)
{
    char bytes[4096];
    shutdown(fd, SHUT_WR);
    for (int i = 0; i < 16 && recv(fd, bytes, sizeof bytes, 0) > 0; i++)
        continue;
}

// --- the first frames

// Passes the connection to C-core. The last read emptied the socket or OpenSSL's buffer, so further bytes raise an
// event.
static void hand_over(struct net_listener *l, struct waiting *w)
{
    waiting_unlink(l, w);
    net_socket_pass(w->socket);
    l->take(l->owner, w->fd, w->early, w->early_bytes);
    free(w->early);
    free(w);
}

static void watch_set(struct net_listener *l, struct waiting *w, uint32_t events)
{
    epoll_ctl(l->epoll_fd, EPOLL_CTL_MOD, w->fd, &(struct epoll_event){.events = events, .data.ptr = w});
}

// Stops reading until the connection's turn. Only the connection's end is still reported.
static void hold(struct net_listener *l, struct waiting *w)
{
    w->is_held = true;
    watch_set(l, w, 0);
}

// Reads what the client has sent, about TURN_BYTES at most. Holds the connection at calls that have to wait. Returns
// false if the connection has ended.
static bool early_read(struct net_listener *l, struct waiting *w)
{
    for (size_t n_read = 0; n_read < TURN_BYTES && !w->is_held;) {
        struct iovec part = {l->room, READ_BYTES};
        ssize_t n = net_socket_receive(w->socket, &(struct msghdr){.msg_iov = &part, .msg_iovlen = 1}, 0);
        if (n < 0) return errno == EAGAIN || errno == EINTR;
        if (n == 0) return net_socket_may_pass(w->socket); // C-core answers what came before the end
        w->early = mem_resize(w->early, w->early_bytes + (size_t)n, 1);
        memcpy(w->early + w->early_bytes, l->room, (size_t)n);
        w->early_bytes += (size_t)n;
        n_read += (size_t)n;
        net_socket_keep(w->socket, w->early_bytes);
        if (!net_socket_pay(w->socket, w)) hold(l, w);
    }
    return true;
}

static void frames_continue(struct net_listener *l, struct waiting *w)
{
    if (!early_read(l, w)) {
        input_drop(w->fd);
        waiting_close(l, w);
    } else if (!w->is_held && net_socket_may_pass(w->socket)) {
        hand_over(l, w);
    }
}

static void turns_continue(struct net_listener *l)
{
    for (struct waiting *w; (w = net_sockets_next_turn(l->connections, l->now_us));) {
        w->is_held = false;
        waiting_renew(l, w);
        watch_set(l, w, EPOLLIN);
        frames_continue(l, w);
    }
}

// Begins to check the bytes of a connection. `ssl` NULL: plain text.
static void frames_begin(struct net_listener *l, struct waiting *w, SSL *ssl)
{
    w->socket = net_socket_open(l->connections, w->fd, ssl, &w->address);
    if (!w->socket) {
        SSL_free(ssl);
        waiting_close(l, w);
        return;
    }
    l->n_waiting--;
    if (ssl) waiting_watch(l, w);
    frames_continue(l, w);
}

// Handles an event of a waiting connection: its first bytes, more of its frames, or its end.
static void waiting_event(struct net_listener *l, struct waiting *w)
{
    char first;
    if (w->socket && !w->is_held)
        frames_continue(l, w);
    else if (w->is_held || recv(w->fd, &first, 1, MSG_PEEK) != 1)
        waiting_close(l, w);
    else
        frames_begin(l, w, NULL);
}

// --- handshakes

static void handshake_fail(struct net_listener *l, struct waiting *w)
{
    if (w->handshake.result == HANDSHAKE_CROWDED_OUT)
        refused_log(l, "the port has its maximum of TLS handshakes");
    else
        log_event(LOG_DEBUG, "grpc_handshake_failed", LOG_FIELD("reason", handshake_reason(&w->handshake)));
    input_drop(w->fd);
    waiting_close(l, w);
}

static void handshakes_finish(struct net_listener *l)
{
    for (struct handshake *x; l->handshakes && (x = handshakes_take(l->handshakes));) {
        struct waiting *w = (struct waiting *)((char *)x - offsetof(struct waiting, handshake));
        if (x->result == HANDSHAKE_DONE)
            frames_begin(l, w, x->ssl);
        else
            handshake_fail(l, w);
    }
}

// --- accepting

// Makes room for one more connection. Returns false if that is impossible.
static bool place_make(struct net_listener *l)
{
    if (l->n_waiting + net_sockets_count(l->connections) < l->max) return true;
    refused_log(l, "the port has its maximum of connections");
    if (!l->oldest) return false;
    waiting_close(l, l->oldest);
    return true;
}

// Returns true if the address may have one more connection.
static bool address_admit(struct net_listener *l, const struct in6_addr *address)
{
    if (net_sockets_bar(l->connections, address, l->now_us))
        refused_log(l, "connections of the client's address broke limits again and again");
    else if (net_sockets_count_connection(l->connections, address))
        return true;
    else
        refused_log(l, "the client's address has its maximum of connections");
    return false;
}

static void accept_one(struct net_listener *l, int fd, const struct sockaddr_storage *from)
{
    struct sockaddr_in6 address = address_to_ipv6(from);
    if (!address_admit(l, &address.sin6_addr))
        close(fd);
    else if (place_make(l))
        waiting_add(l, fd, &address);
    else
        connection_close(l, fd, &address.sin6_addr);
}

// Accepts a connection with the spare descriptor and closes it. Otherwise, with no descriptor free, the listening
// socket would stay readable and keep the thread busy.
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
        else // the supervisor restarts the program

            INVARIANT(!address_listener_is_dead(errno), "port %d no longer listens: %s", l->port, strerror(errno));
    }
}

// --- the thread

static int wait_ms(const struct net_listener *l)
{
    int64_t until_us = l->oldest ? l->oldest->until_us : INT64_MAX;
    bool busy = l->was_busy || net_sockets_count(l->connections) > 0;
    if (busy && l->expire_due_us < until_us) until_us = l->expire_due_us;
    int64_t turn_us = net_sockets_turn_due_us(l->connections);
    if (turn_us < until_us) until_us = turn_us;
    if (until_us == INT64_MAX) return -1;
    int64_t us = until_us - clock_now_us();
    return us <= 0 ? 0 : (int)(us / 1000 + 1);
}

static void run_once(struct net_listener *l)
{
    struct epoll_event events[EVENTS];
    int n = epoll_wait(l->epoll_fd, events, EVENTS, wait_ms(l));
    INVARIANT(n >= 0 || errno == EINTR, "epoll_wait: %s", strerror(errno));
    l->now_us = clock_now_us();
    for (int i = 0; i < n; i++) { // handle waiting connections first, because accepting may close one
        void *at = events[i].data.ptr;
        if (at != l && !((int *)at >= l->sockets && (int *)at < l->sockets + l->n_sockets)) waiting_event(l, at);
    }
    for (int i = 0; i < n; i++) {
        int *at = events[i].data.ptr;
        if (at >= l->sockets && at < l->sockets + l->n_sockets) accept_some(l, *at);
    }
    handshakes_finish(l);
    turns_continue(l);
    waiting_expire(l);
    if (l->now_us >= l->expire_due_us) {
        l->expire_due_us = l->now_us + EXPIRE_US;
        l->was_busy = net_sockets_count(l->connections) > 0;
        net_sockets_expire(l->connections, l->now_us);
        peer_budgets_trim();
    }
}

static void *listener_run(void *argument)
{
    struct net_listener *l = argument;
    l->room = mem_alloc(READ_BYTES);
    while (!atomic_load(&l->closing))
        run_once(l);
    while (l->oldest)
        waiting_close(l, l->oldest);
    free(l->room);
    return NULL;
}

// --- public

static void listener_wake(void *listener)
{
    (void)!write(((const struct net_listener *)listener)->wake_fd, &(uint64_t){1}, sizeof(uint64_t));
}

static bool watch(struct net_listener *l)
{
    bool watching = l->epoll_fd >= 0 && l->wake_fd >= 0;
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.ptr = l}; // its counter is never read
    watching = watching && epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, l->wake_fd, &event) == 0;
    event.events = EPOLLIN;
    for (int i = 0; i < l->n_sockets && watching; i++) {
        event.data.ptr = &l->sockets[i];
        watching = epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, l->sockets[i], &event) == 0;
    }
    return watching;
}

static enum status listener_prepare(struct net_listener *l, const struct net_listener_options *options)
{
    l->max = options->max_connections;
    l->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    l->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    l->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (!watch(l)) return status_fail(STATUS_INTERNAL, "cannot watch %s: %s", options->address, strerror(errno));
    const struct handshakes_options handshakes = {options->tls, options->max_per_address != 0, listener_wake, l};
    return options->tls ? handshakes_open(&handshakes, &l->handshakes) : STATUS_OK;
}

enum status net_listener_open(const struct net_listener_options *options, struct net_listener **listener_p)
{
    struct net_listener *l = mem_alloc(sizeof *l);
    enum status status = address_listen(options->address, l->sockets, &l->n_sockets, &l->port);
    if (status != STATUS_OK) {
        free(l);
        return status;
    }
    status = listener_prepare(l, options);
    if (status == STATUS_OK)
        *listener_p = l;
    else
        net_listener_close(l);
    return status;
}

int net_listener_port(const struct net_listener *listener)
{
    return listener->port;
}

void net_listener_start(struct net_listener *l, struct net_sockets *sockets, net_take_fn *take, void *owner)
{
    l->connections = sockets;
    l->take = take;
    l->owner = owner;
    net_sockets_start_turns(sockets, listener_wake, l);
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
        listener_wake(l);
        pthread_join(l->thread, NULL);
        net_sockets_stop_turns(l->connections);
    }
    handshakes_close(l->handshakes);
    for (int i = 0; i < l->n_sockets; i++)
        close(l->sockets[i]);
    close_open(l->epoll_fd);
    close_open(l->wake_fd);
    close_open(l->spare_fd);
    free(l);
}
