// SPDX-License-Identifier: Apache-2.0
// The leader listens only while the group opens.
#include "engine/wakeup.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/wakeup_reception.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"

enum {
    SPIN_US = 1000,            // time for which a follower polls before it sleeps
    CONNECT_TIMEOUT_MS = 2000, // per address
    ANSWER_TIMEOUT_MS = 2000,  // time limit for the leader to send the second half of the secret
};

struct wakeup {
    int rank, size;
    int *fds; // [size] leader: one per follower, fds[0] is -1. Follower: only fds[0], connected to the leader
    struct process_name *names; // [size] names of the ranks in `fds`; on the leader names[0] is its own
};

// Message that the leader broadcasts, in native byte order, which is the same on all ranks of a group.
struct invitation {
    bool listening; // false: the leader failed to listen, and all ranks give up
    struct process_name leader;
    uint8_t secret[16];               // a follower sends the first half, the leader answers with the second
    char socket_name[48];             // name of the UNIX socket in the abstract namespace, which leaves no file
    struct group_addresses addresses; // addresses of the leader, with ports
};

static struct process_name own_name(void)
{
    struct process_name name = {.pid = (int32_t)getpid()};
    gethostname(name.host, sizeof name.host - 1);
    return name;
}

static enum status wakeup_fail(const char *what)
{
    return status_fail(STATUS_INTERNAL, "wake-up sockets: %s: %s", what, strerror(errno));
}

static bool socket_send(int fd, const void *bytes, size_t size)
{
    const char *at = bytes;
    while (size) {
        ssize_t n = send(fd, at, size, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += n;
        size -= (size_t)n;
    }
    return true;
}

static bool socket_receive(int fd, void *bytes, size_t size)
{
    char *at = bytes;
    while (size) {
        ssize_t n = recv(fd, at, size, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = ECONNRESET;
        if (n <= 0) return false;
        at += n;
        size -= (size_t)n;
    }
    return true;
}

static void set_receive_timeout(int fd, int ms)
{
    struct timeval timeout = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
}

// Enables keepalive probes, because a host that vanishes sends no end of file. The probes detect its loss within about
// ten seconds. No effect on UNIX sockets.
static void socket_set_keepalive(int fd)
{
    int on = 1, idle_s = 4, interval_s = 2, probes = 3;
    unsigned timeout_ms = 10000;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof timeout_ms);
}

static socklen_t unix_address(const char *name, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX}; // sun_path[0] == 0: the abstract namespace
    size_t length = strlen(name);
    memcpy(address->sun_path + 1, name, length);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

// ---- leader ----

static int listen_unix(const char *name)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_un address;
    socklen_t length = unix_address(name, &address);
    if (fd >= 0 && (bind(fd, (struct sockaddr *)&address, length) != 0 || listen(fd, 64) != 0)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

// Listens on a free port of the address and writes the port into it. Returns -1 if that fails.
static int listen_tcp(struct sockaddr_storage *address)
{
    socklen_t size = group_address_size(address);
    int fd = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    if (bind(fd, (struct sockaddr *)address, size) == 0 && listen(fd, 64) == 0 &&
        getsockname(fd, (struct sockaddr *)address, &size) == 0)
        return fd;
    close(fd);
    return -1;
}

// State of the leader while its followers connect.
struct leader {
    struct wakeup *wakeup;
    struct invitation *invitation;
    int listeners[RECEPTION_LISTENERS_MAX], n_listeners;
};

// Listens on a UNIX socket and on the `addresses`. Leaves out addresses on which the host cannot listen.
static enum status leader_listen(struct leader *l, const struct group_addresses *addresses)
{
    struct invitation *invitation = l->invitation;
    if (getrandom(invitation->secret, sizeof invitation->secret, 0) != sizeof invitation->secret)
        return wakeup_fail("getrandom");
    // The name is unique, but not secret: every process of the host can list these names.
    snprintf(invitation->socket_name, sizeof invitation->socket_name, "forepack-%d-%llx", getpid(),
             (long long)clock_now_us());
    int fd = listen_unix(invitation->socket_name);
    if (fd < 0) return wakeup_fail("listen on a UNIX socket");
    l->listeners[l->n_listeners++] = fd;
    for (int i = 0; i < addresses->n; i++) {
        struct sockaddr_storage address = addresses->address[i];
        if ((fd = listen_tcp(&address)) < 0) continue;
        l->listeners[l->n_listeners++] = fd;
        invitation->addresses.address[invitation->addresses.n++] = address;
    }
    return STATUS_OK;
}

// Accepts a connection whose greeting has the secret and the number of a rank that has not connected yet.
static bool follower_take(void *user, int fd, const struct greeting *greeting)
{
    const struct leader *l = user;
    struct wakeup *wakeup = l->wakeup;
    const uint8_t *secret = l->invitation->secret;
    bool known = memcmp(greeting->secret, secret, sizeof greeting->secret) == 0 && greeting->rank > 0 &&
                 greeting->rank < wakeup->size && wakeup->fds[greeting->rank] < 0;
    if (!known || !socket_send(fd, secret + 8, 8)) return false;
    socket_set_keepalive(fd);
    struct process_name *name = &wakeup->names[greeting->rank];
    wakeup->fds[greeting->rank] = fd;
    *name = greeting->name;
    name->host[sizeof name->host - 1] = 0;
    return true;
}

static enum status open_leader(struct wakeup *wakeup, struct comm *comm, const struct group_addresses *addresses)
{
    struct invitation *invitation = mem_alloc(sizeof *invitation);
    struct leader leader = {.wakeup = wakeup, .invitation = invitation};
    invitation->leader = wakeup->names[0] = own_name();
    enum status status = leader_listen(&leader, addresses);
    invitation->listening = status == STATUS_OK;
    enum status sent = comm->ops->broadcast(comm, invitation, sizeof *invitation);
    if (status == STATUS_OK) status = sent;
    if (status == STATUS_OK)
        status = reception_run(leader.listeners, leader.n_listeners, wakeup->size - 1, follower_take, &leader);
    for (int i = 0; i < leader.n_listeners; i++)
        close(leader.listeners[i]);
    free(invitation);
    return status;
}

// ---- follower ----

// Connects to one address and exchanges the secret. Returns -1 if no program or another program listens there.
static int leader_connect(const struct invitation *invitation, const struct sockaddr *address, socklen_t length,
                          int rank)
{
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    // connect(2) uses the send timeout.
    struct timeval timeout = {.tv_sec = CONNECT_TIMEOUT_MS / 1000, .tv_usec = CONNECT_TIMEOUT_MS % 1000 * 1000};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
    set_receive_timeout(fd, ANSWER_TIMEOUT_MS);
    struct greeting greeting = {.rank = rank, .name = own_name()};
    memcpy(greeting.secret, invitation->secret, sizeof greeting.secret);
    uint8_t answer[8];
    if (connect(fd, address, length) != 0 || !socket_send(fd, &greeting, sizeof greeting) ||
        !socket_receive(fd, answer, sizeof answer) || memcmp(answer, invitation->secret + 8, sizeof answer) != 0) {
        close(fd);
        return -1;
    }
    set_receive_timeout(fd, 0);
    socket_set_keepalive(fd);
    return fd;
}

static enum status open_follower(struct wakeup *wakeup, struct comm *comm)
{
    struct invitation *invitation = mem_alloc(sizeof *invitation);
    enum status status = comm->ops->broadcast(comm, invitation, sizeof *invitation);
    if (status == STATUS_OK && !invitation->listening) {
        status = status_fail(STATUS_UNAVAILABLE, "wake-up sockets: the leader could not listen");
    }
    if (status == STATUS_OK) {
        const struct process_name name = own_name();
        // Try the UNIX socket first, without comparing host names: containers on one host have different names. On
        // another host, no program listens on this name.
        struct sockaddr_un local;
        socklen_t length = unix_address(invitation->socket_name, &local);
        int fd = leader_connect(invitation, (struct sockaddr *)&local, length, wakeup->rank);
        for (int i = 0; i < invitation->addresses.n && fd < 0; i++) {
            const struct sockaddr_storage *address = &invitation->addresses.address[i];
            fd =
                leader_connect(invitation, (const struct sockaddr *)address, group_address_size(address), wakeup->rank);
        }
        wakeup->fds[0] = fd;
        wakeup->names[0] = invitation->leader;
        if (fd < 0) {
            status = status_fail(STATUS_UNAVAILABLE,
                                 "wake-up sockets: rank %d on %s cannot connect to the leader on %s: neither its UNIX "
                                 "socket nor any of its %d network addresses answers",
                                 wakeup->rank, name.host, invitation->leader.host, invitation->addresses.n);
        }
    }
    free(invitation);
    return status;
}

// ---- public ----

enum status wakeup_open(struct comm *comm, struct wakeup **wakeup_p)
{
    struct wakeup *wakeup = mem_alloc(sizeof *wakeup);
    wakeup->rank = comm->rank;
    wakeup->size = comm->size;
    wakeup->fds = mem_alloc_array((size_t)comm->size, sizeof *wakeup->fds);
    wakeup->names = mem_alloc_array((size_t)comm->size, sizeof *wakeup->names);
    for (int r = 0; r < comm->size; r++)
        wakeup->fds[r] = -1;
    struct group_addresses addresses;
    enum status status = group_network_choose(comm, &addresses);
    if (status == STATUS_OK)
        status = comm->rank == 0 ? open_leader(wakeup, comm, &addresses) : open_follower(wakeup, comm);
    if (status != STATUS_OK) {
        wakeup_close(wakeup);
        return status;
    }
    *wakeup_p = wakeup;
    return STATUS_OK;
}

void wakeup_close(struct wakeup *wakeup)
{
    for (int r = 0; r < wakeup->size; r++)
        if (wakeup->fds[r] >= 0) close(wakeup->fds[r]);
    free(wakeup->fds);
    free(wakeup->names);
    free(wakeup);
}

int wakeup_socket(const struct wakeup *wakeup, int rank)
{
    return wakeup->fds[rank];
}

const char *wakeup_name(const struct wakeup *wakeup, int rank, char name[WAKEUP_NAME_MAX])
{
    const struct process_name *process = &wakeup->names[rank];
    snprintf(name, WAKEUP_NAME_MAX, "rank %d (host %.64s, pid %d)", rank, process->host, (int)process->pid);
    return name;
}

enum status wakeup_send(struct wakeup *wakeup, struct wakeup_message message)
{
    for (int r = 1; r < wakeup->size; r++) {
        if (!socket_send(wakeup->fds[r], &message, sizeof message)) {
            char name[WAKEUP_NAME_MAX];
            const char *why = strerror(errno);
            return status_fail(STATUS_UNAVAILABLE, "%s is gone: %s", wakeup_name(wakeup, r, name), why);
        }
    }
    return STATUS_OK;
}

enum status wakeup_wait(struct wakeup *wakeup, struct wakeup_message *message_p)
{
    struct wakeup_message message;
    int64_t until_us = clock_now_us() + SPIN_US;
    char first;
    while (recv(wakeup->fds[0], &first, 1, MSG_DONTWAIT | MSG_PEEK) < 0 && clock_now_us() < until_us)
        sched_yield(); // the leader may need this core to proceed
    if (!socket_receive(wakeup->fds[0], &message, sizeof message)) {
        return status_fail(STATUS_UNAVAILABLE, "the leader is gone: %s", strerror(errno));
    }
    *message_p = message;
    return STATUS_OK;
}

// The status of the lowest rank that failed.
struct verdict {
    int32_t status, rank;
};

// Returns the lowest rank that is gone, or 0.
static int verdict_collect(struct wakeup *wakeup, struct verdict *verdict)
{
    int gone = 0;
    for (int r = 1; r < wakeup->size; r++) {
        int32_t theirs = STATUS_UNAVAILABLE;
        if (!socket_receive(wakeup->fds[r], &theirs, sizeof theirs) && !gone) gone = r;
        if (verdict->status == STATUS_OK && theirs != STATUS_OK) *verdict = (struct verdict){theirs, r};
    }
    for (int r = 1; r < wakeup->size; r++)
        // a failure is ignored: if a rank is gone, the job ends anyway
        socket_send(wakeup->fds[r], verdict, sizeof *verdict);
    return gone;
}

enum status wakeup_agree(struct wakeup *wakeup, enum status mine)
{
    struct verdict verdict = {mine, wakeup->rank};
    if (wakeup->rank == 0) {
        int gone = verdict_collect(wakeup, &verdict);
        if (gone && verdict.rank == gone) { // no rank has said why
            char name[WAKEUP_NAME_MAX];
            return status_fail(STATUS_UNAVAILABLE, "%s ended while the group opened", wakeup_name(wakeup, gone, name));
        }
    } else {
        int32_t word = mine;
        if (!socket_send(wakeup->fds[0], &word, sizeof word) ||
            !socket_receive(wakeup->fds[0], &verdict, sizeof verdict)) {
            return status_fail(STATUS_UNAVAILABLE, "the leader ended while the group opened");
        }
    }
    if (verdict.status == STATUS_OK || verdict.rank == wakeup->rank) return (enum status)verdict.status;
    return status_fail((enum status)verdict.status, "%s", "");
}
