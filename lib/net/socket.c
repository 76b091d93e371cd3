// SPDX-License-Identifier: Apache-2.0
#include "lib/net/socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/address_counts.h"
#include "lib/base/clock.h"
#include "lib/base/descriptors.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/net/tls.h"
#include "lib/net/tls_stream.h"
#include "lib/net/turns.h"

enum {
    TLS_BYTES = 32 << 10,  // memory of a TLS connection, in addition to FRAMES_CONNECTION_BYTES
    TURN_BYTES_MAX = 4096, // limit of a read without credit, so that a turn opens few calls; with TLS, some records
};

struct net_sockets {
    atomic_int refs;
    struct net_sockets_options options; // the limits are borrowed by every socket
    struct address_counts *addresses;   // NULL: no bound
    struct turns turns;
    pthread_mutex_t mutex; // guards what follows
    struct net_socket *first;
    int n;
};

struct net_socket {
    atomic_int refs;
    struct net_sockets *sockets;        // owned reference
    struct net_socket *previous, *next; // under the mutex of `sockets`
    int fd;
    uint64_t number; // unique among the sockets of this process
    struct in6_addr address;
    char peer[INET6_ADDRSTRLEN + 20];
    char *name; // name in the client's certificate, or NULL
    struct peer budget;
    atomic_bool proven;
    atomic_bool ended; // C-core gets no more bytes
    struct turn turn;
    void *holder;               // of a socket that waits for a turn and is not passed yet
    atomic_bool passed;         // C-core receives
    atomic_bool spent;          // the client has no credit: it opens calls when it is its turn
    atomic_llong unfinished_us; // start of the oldest unfinished frame or header block; INT64_MAX: none
    pthread_mutex_t io;         // held while bytes are sent, and with TLS while they are received
    struct net_tls_stream tls;

    pthread_mutex_t mutex; // guards what follows; locked after `io`
    struct frames frames;
    size_t early_bytes; // received bytes that the listener keeps
    size_t held_bytes;  // memory last reported to the budget
    bool closed;        // the socket has been closed
};

// Sockets by descriptor. C-core's own calls need no lock, because C-core does not close a descriptor during a call on
// it. Other code looks sockets up under the lock.
static _Atomic(struct net_socket *) table[DESCRIPTORS_MAX];
static pthread_mutex_t table_mutex = PTHREAD_MUTEX_INITIALIZER;
static uint64_t last_generation; // guarded by table_mutex

struct net_socket *net_socket_of(int fd)
{
    if (fd < 0 || fd >= DESCRIPTORS_MAX) return NULL;
    return atomic_load_explicit(&table[fd], memory_order_acquire);
}

// --- C-core's names of peers: IPv6 addresses that contain the socket's number

enum { PREFIX_BYTES = 8 };
static const uint8_t prefix[PREFIX_BYTES] = {0xfd, 'f', 'o', 'r', 'e', 'p', 'a', 'c'};

void net_socket_address(const struct net_socket *s, struct sockaddr *address, socklen_t *size)
{
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(1)};
    memcpy(six.sin6_addr.s6_addr, prefix, PREFIX_BYTES);
    memcpy(six.sin6_addr.s6_addr + PREFIX_BYTES, &s->number, sizeof s->number);
    memcpy(address, &six, *size < sizeof six ? *size : sizeof six);
    *size = sizeof six;
}

// Parses the number in a name such as "ipv6:%5Bfd66:...%5D:1". Returns false for any other name.
static bool number_parse(const char *core_peer, uint64_t *number_p)
{
    struct in6_addr address;
    char text[INET6_ADDRSTRLEN];
    const char *start = strstr(core_peer, "%5B"), *end = start ? strstr(start, "%5D") : NULL;
    if (!end || (size_t)(end - start - 3) >= sizeof text) return false;
    memcpy(text, start + 3, (size_t)(end - start - 3));
    text[end - start - 3] = 0;
    if (inet_pton(AF_INET6, text, &address) != 1 || memcmp(address.s6_addr, prefix, PREFIX_BYTES) != 0) return false;
    memcpy(number_p, address.s6_addr + PREFIX_BYTES, sizeof *number_p);
    return true;
}

struct net_socket *net_socket_find(const char *core_peer)
{
    uint64_t number;
    if (!number_parse(core_peer, &number)) return NULL;
    pthread_mutex_lock(&table_mutex);
    struct net_socket *s = net_socket_of((int)(number % DESCRIPTORS_MAX));
    if (s && s->number == number)
        atomic_fetch_add(&s->refs, 1);
    else
        s = NULL;
    pthread_mutex_unlock(&table_mutex);
    return s;
}

static void peer_format(struct net_socket *s, const struct sockaddr_in6 *address)
{
    char text[INET6_ADDRSTRLEN];
    int port = ntohs(address->sin6_port);
    bool four = IN6_IS_ADDR_V4MAPPED(&address->sin6_addr);
    inet_ntop(four ? AF_INET : AF_INET6, address->sin6_addr.s6_addr + (four ? 12 : 0), text, sizeof text);
    snprintf(s->peer, sizeof s->peer, four ? "ipv4:%s:%d" : "ipv6:[%s]:%d", text, port);
}

const char *net_socket_peer(const struct net_socket *socket)
{
    return socket->peer;
}

const char *net_socket_name(const struct net_socket *socket)
{
    return socket->name;
}

const struct in6_addr *net_socket_proxy(const struct net_socket *s)
{
    return networks_have(&s->sockets->options.proxies, &s->address) ? &s->address : NULL;
}

void net_socket_prove(struct net_socket *s)
{
    if (!atomic_exchange(&s->proven, true) && s->sockets->options.proof) peer_prove(&s->budget);
}

static struct net_socket *socket_of_turn(struct turn *turn)
{
    return (struct net_socket *)((char *)turn - offsetof(struct net_socket, turn));
}

// The time that the client had to wait does not count as time in which it left a frame unfinished.
static void unfinished_restart(struct net_socket *s)
{
    pthread_mutex_lock(&s->mutex);
    s->frames.since_us = clock_now_us();
    atomic_store(&s->unfinished_us, frames_unfinished_since_us(&s->frames));
    pthread_mutex_unlock(&s->mutex);
}

// Raises an event if the socket has bytes: Linux signals them again when the limit for events is set. Called under the
// lock of the turns.
static void turn_resume(struct turn *turn)
{
    struct net_socket *s = socket_of_turn(turn);
    unfinished_restart(s);
    setsockopt(s->fd, SOL_SOCKET, SO_RCVLOWAT, &(int){1}, sizeof(int));
}

// --- ending

// Ends the connection. C-core notices immediately: its next call fails, and the shutdown wakes it.
static void socket_end(struct net_socket *s)
{
    pthread_mutex_lock(&s->mutex);
    atomic_store(&s->ended, true);
    if (!s->closed) shutdown(s->fd, SHUT_RDWR);
    pthread_mutex_unlock(&s->mutex);
}

// Records that the connection ends because it broke a limit.
static void socket_blame(struct net_socket *s, const char *reason)
{
    if (!net_sockets_trust(s->sockets, &s->address))
        address_counts_offend(s->sockets->addresses, &s->address, clock_now_us());
    log_event_limited(LOG_WARN, "grpc_connection_ended", LOG_FIELD("peer", (const char *)s->peer),
                      LOG_FIELD("port", s->sockets->options.port), LOG_FIELD("reason", reason));
}

static void socket_refuse(struct net_socket *s, const char *reason)
{
    if (atomic_load(&s->ended)) return;
    socket_blame(s, reason);
    socket_end(s);
}

// Sends the client the reason if the socket accepts it without waiting.
static void goodbye_send(struct net_socket *s, enum frames_found found)
{
    uint8_t bytes[FRAMES_GOODBYE_BYTES];
    pthread_mutex_lock(&s->io);
    pthread_mutex_lock(&s->mutex);
    size_t size = frames_goodbye(&s->frames, found, bytes);
    pthread_mutex_unlock(&s->mutex);
    if (s->tls.ssl)
        net_tls_stream_write_last(&s->tls, bytes, size);
    else
        send(s->fd, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    atomic_store(&s->ended, true); // C-core's next send fails, so that nothing follows the reason
    pthread_mutex_unlock(&s->io);
}

static void budget_end(struct peer *peer)
{
    struct net_socket *s = (struct net_socket *)((char *)peer - offsetof(struct net_socket, budget));
    socket_refuse(s, "it holds the most memory of all connections");
}

static void calls_pay(struct net_socket *s)
{
    pthread_mutex_lock(&s->mutex);
    int64_t unpaid = frames_take_unpaid(&s->frames);
    pthread_mutex_unlock(&s->mutex);
    turn_pay(&s->sockets->turns, &s->turn, unpaid, clock_now_us());
}

// Reports the memory held to the budget and pays for opened calls, after each change of `frames`. A connection that has
// credit again waits no longer. Until C-core has the connection, its calls take no memory, and net_socket_pay() pays.
// The caller holds no lock.
static void accounts_update(struct net_socket *s)
{
    pthread_mutex_lock(&s->mutex);
    bool passed = atomic_load(&s->passed), owes = passed && s->frames.unpaid;
    size_t calls = passed ? 0 : (size_t)s->frames.n_calls * FRAMES_CALL_BYTES;
    size_t held = frames_held_bytes(&s->frames) - calls + (s->tls.ssl ? TLS_BYTES : 0) + s->early_bytes;
    size_t before = s->held_bytes;
    s->held_bytes = held;
    atomic_store(&s->unfinished_us, frames_unfinished_since_us(&s->frames));
    bool spent = s->frames.credit == 0, was_spent = atomic_exchange(&s->spent, spent);
    pthread_mutex_unlock(&s->mutex);
    if (held != before) peer_hold(&s->budget, held);
    if (passed && was_spent && !spent) turn_excuse(&s->sockets->turns, &s->turn);
    if (owes) calls_pay(s);
}

// --- receiving

static ssize_t fail_with(int error)
{
    errno = error;
    return -1;
}

static enum frames_found frames_of_message(struct net_socket *s, const struct msghdr *m, size_t size)
{
    enum frames_found found = FRAMES_OK;
    int64_t now_us = clock_now_us();
    pthread_mutex_lock(&s->mutex);
    for (size_t i = 0; size && found == FRAMES_OK; i++) {
        size_t n = m->msg_iov[i].iov_len < size ? m->msg_iov[i].iov_len : size;
        found = frames_receive(&s->frames, m->msg_iov[i].iov_base, n, now_us);
        size -= n;
    }
    pthread_mutex_unlock(&s->mutex);
    return found;
}

// Waits for the sending thread if the client is near its limit of calls. A client may open a call as soon as it has
// received the end of another call, and the sending thread may not have counted that end yet.
static void await_sender(struct net_socket *s, size_t size)
{
    enum { CALL_BYTES_MIN = 9 };
    pthread_mutex_lock(&s->mutex);
    bool near = (size_t)s->frames.n_calls + size / CALL_BYTES_MIN >= (size_t)s->sockets->options.limits.max_calls;
    pthread_mutex_unlock(&s->mutex);
    if (!near || s->tls.ssl) return;
    pthread_mutex_lock(&s->io);
    pthread_mutex_unlock(&s->io);
}

// Tells C-core, as the kernel does with TCP_INQ, if it should read again immediately.
static void report_queue(struct msghdr *m, bool empty)
{
    if (m->msg_controllen < CMSG_SPACE(sizeof(int))) {
        m->msg_controllen = 0;
        return;
    }
    m->msg_controllen = CMSG_SPACE(sizeof(int));
    struct cmsghdr *report = CMSG_FIRSTHDR(m);
    *report = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_TCP, .cmsg_type = TCP_CM_INQ};
    memcpy(CMSG_DATA(report), &(int){!empty}, sizeof(int));
}

// Receives few bytes into the first part. C-core asks without parts when it has filled those that it offered.
static ssize_t receive_few(struct net_socket *s, struct msghdr *m, int flags)
{
    if (m->msg_iovlen == 0) return net_libc_recvmsg(s->fd, m, flags);
    struct iovec part = m->msg_iov[0];
    struct msghdr few = *m;
    if (part.iov_len > TURN_BYTES_MAX) part.iov_len = TURN_BYTES_MAX;
    few.msg_iov = &part;
    few.msg_iovlen = 1;
    ssize_t n = net_libc_recvmsg(s->fd, &few, flags);
    m->msg_controllen = few.msg_controllen;
    m->msg_flags = few.msg_flags;
    return n;
}

static bool has_ended(int fd)
{
    struct pollfd end = {.fd = fd}; // POLLERR and POLLHUP
    return poll(&end, 1, 0) == 1;
}

// A client without credit is read when it is its turn. Until then the socket looks empty to C-core, and turn_resume()
// raises an event for the bytes in it. Records that OpenSSL has read already are received at once, because no event
// comes for them.
static ssize_t receive_bytes(struct net_socket *s, struct msghdr *m, int flags)
{
    bool spent = atomic_load(&s->passed) && atomic_load(&s->spent);
    bool may_read = !spent || turn_take(&s->sockets->turns, &s->turn, 0, clock_now_us()) || has_ended(s->fd);
    if (!may_read && !atomic_load(&s->spent)) turn_excuse(&s->sockets->turns, &s->turn); // it just got credit
    if (!s->tls.ssl && !may_read) return fail_with(EAGAIN);
    if (!s->tls.ssl) return spent ? receive_few(s, m, flags) : net_libc_recvmsg(s->fd, m, flags);
    m->msg_flags = 0;
    pthread_mutex_lock(&s->io);
    s->tls.paused = !may_read;
    ssize_t n = net_tls_stream_read(&s->tls, m->msg_iov, m->msg_iovlen);
    report_queue(m, n > 0 && net_tls_stream_is_drained(&s->tls));
    pthread_mutex_unlock(&s->io);
    return n;
}

ssize_t net_socket_receive(struct net_socket *s, struct msghdr *m, int flags)
{
    if (flags & MSG_ERRQUEUE) return net_libc_recvmsg(s->fd, m, flags); // reports of the system, no bytes of the client
    if (flags & MSG_PEEK) return fail_with(EINVAL);                     // the same bytes would be checked twice
    if (atomic_load(&s->ended)) return fail_with(ECONNRESET);
    ssize_t n = receive_bytes(s, m, flags);
    if (n <= 0) return n;
    await_sender(s, (size_t)n);
    enum frames_found found = frames_of_message(s, m, (size_t)n);
    if (found != FRAMES_OK) {
        socket_blame(s, frames_found_name(found));
        goodbye_send(s, found);
        socket_end(s);
        return fail_with(ECONNRESET);
    }
    accounts_update(s);
    return atomic_load(&s->ended) ? fail_with(ECONNRESET) : n;
}

// --- sending

static void frames_sent(struct net_socket *s, const struct msghdr *m, size_t size)
{
    pthread_mutex_lock(&s->mutex);
    for (size_t i = 0; size; i++) {
        size_t n = m->msg_iov[i].iov_len < size ? m->msg_iov[i].iov_len : size;
        frames_send(&s->frames, m->msg_iov[i].iov_base, n);
        size -= n;
    }
    pthread_mutex_unlock(&s->mutex);
}

ssize_t net_socket_send(struct net_socket *s, const struct msghdr *m, int flags)
{
    pthread_mutex_lock(&s->io);
    if (atomic_load(&s->ended)) {
        pthread_mutex_unlock(&s->io);
        return fail_with(EPIPE);
    }
    ssize_t n =
        s->tls.ssl ? net_tls_stream_write(&s->tls, m->msg_iov, m->msg_iovlen) : net_libc_sendmsg(s->fd, m, flags);
    int error = errno;
    if (n > 0) frames_sent(s, m, (size_t)n);
    pthread_mutex_unlock(&s->io);
    if (n > 0) accounts_update(s);
    errno = error;
    return n;
}

// --- opening and closing

struct net_socket *net_socket_open(struct net_sockets *sockets, int fd, SSL *ssl, const struct sockaddr_in6 *address)
{
    if (fd >= DESCRIPTORS_MAX) return NULL;
    struct net_socket *s = mem_alloc(sizeof *s);
    if (!net_tls_stream_init(&s->tls, ssl, fd)) {
        free(s);
        return NULL;
    }
    atomic_init(&s->refs, 1);
    atomic_fetch_add(&sockets->refs, 1);
    s->sockets = sockets;
    s->fd = fd;
    s->address = address->sin6_addr;
    peer_format(s, address);
    s->name = ssl ? net_tls_peer_name(ssl) : NULL;
    pthread_mutex_init(&s->io, NULL);
    pthread_mutex_init(&s->mutex, NULL);
    frames_init(&s->frames, &sockets->options.limits, clock_now_us());
    atomic_init(&s->unfinished_us, INT64_MAX);
    s->budget.end = budget_end;

    pthread_mutex_lock(&sockets->mutex);
    s->next = sockets->first;
    if (s->next) s->next->previous = s;
    sockets->first = s;
    sockets->n++;
    pthread_mutex_unlock(&sockets->mutex);

    peer_join(&s->budget, sockets->options.proof ? PEER_UNPROVEN : PEER_PROVEN);
    pthread_mutex_lock(&table_mutex);
    s->number = ++last_generation * DESCRIPTORS_MAX + (uint64_t)fd;
    atomic_store_explicit(&table[fd], s, memory_order_release);
    pthread_mutex_unlock(&table_mutex);
    accounts_update(s);
    return s;
}

void net_socket_keep(struct net_socket *s, size_t early_bytes)
{
    pthread_mutex_lock(&s->mutex);
    s->early_bytes = early_bytes;
    pthread_mutex_unlock(&s->mutex);
    accounts_update(s);
}

bool net_socket_may_pass(struct net_socket *s)
{
    pthread_mutex_lock(&s->mutex);
    bool may_pass = frames_may_pass(&s->frames);
    pthread_mutex_unlock(&s->mutex);
    return may_pass;
}

bool net_socket_pay(struct net_socket *s, void *holder)
{
    pthread_mutex_lock(&s->mutex);
    int64_t unpaid = s->frames.unpaid;
    pthread_mutex_unlock(&s->mutex);
    s->holder = holder;
    if (unpaid && !turn_take(&s->sockets->turns, &s->turn, unpaid, clock_now_us())) return false;
    if (unpaid) calls_pay(s);
    return true;
}

void net_socket_pass(struct net_socket *s)
{
    net_tls_stream_read_ahead(&s->tls);
    s->turn.resume = turn_resume;
    atomic_store(&s->passed, true);
    net_socket_keep(s, 0);
}

static void socket_unlink(struct net_socket *s)
{
    struct net_sockets *sockets = s->sockets;
    pthread_mutex_lock(&sockets->mutex);
    *(s->previous ? &s->previous->next : &sockets->first) = s->next;
    if (s->next) s->next->previous = s->previous;
    sockets->n--;
    pthread_mutex_unlock(&sockets->mutex);
    net_sockets_drop_connection(sockets, &s->address);
}

void net_socket_closing(struct net_socket *s)
{
    pthread_mutex_lock(&table_mutex);
    atomic_store_explicit(&table[s->fd], NULL, memory_order_release);
    pthread_mutex_unlock(&table_mutex);
    pthread_mutex_lock(&s->mutex);
    s->closed = true;
    pthread_mutex_unlock(&s->mutex);
    turn_leave(&s->sockets->turns, &s->turn);
    peer_leave(&s->budget);
    socket_unlink(s);
    net_socket_unref(s);
}

void net_socket_unref(struct net_socket *s)
{
    if (!s || atomic_fetch_sub(&s->refs, 1) != 1) return;
    net_tls_stream_fini(&s->tls);
    frames_fini(&s->frames);
    pthread_mutex_destroy(&s->mutex);
    pthread_mutex_destroy(&s->io);
    free(s->name);
    net_sockets_unref(s->sockets);
    free(s);
}

// --- all sockets of a server

struct net_sockets *net_sockets_create(const struct net_sockets_options *options)
{
    struct net_sockets *sockets = mem_alloc(sizeof *sockets);
    atomic_init(&sockets->refs, 1);
    sockets->options = *options;
    sockets->addresses = address_counts_open(options->max_per_address);
    pthread_mutex_init(&sockets->mutex, NULL);
    turns_init(&sockets->turns, options->shared_calls, clock_now_us());
    return sockets;
}

void net_sockets_unref(struct net_sockets *sockets)
{
    if (!sockets || atomic_fetch_sub(&sockets->refs, 1) != 1) return;
    address_counts_close(sockets->addresses);
    turns_fini(&sockets->turns);
    pthread_mutex_destroy(&sockets->mutex);
    free(sockets);
}

int net_sockets_count(struct net_sockets *sockets)
{
    pthread_mutex_lock(&sockets->mutex);
    int n = sockets->n;
    pthread_mutex_unlock(&sockets->mutex);
    return n;
}

bool net_sockets_trust(const struct net_sockets *sockets, const struct in6_addr *address)
{
    return networks_have(&sockets->options.proxies, address);
}

bool net_sockets_bar(struct net_sockets *sockets, const struct in6_addr *address, int64_t now_us)
{
    return address_counts_is_barred(sockets->addresses, address, now_us);
}

bool net_sockets_count_connection(struct net_sockets *sockets, const struct in6_addr *address)
{
    return net_sockets_trust(sockets, address) || address_counts_add(sockets->addresses, address);
}

void net_sockets_drop_connection(struct net_sockets *sockets, const struct in6_addr *address)
{
    if (!net_sockets_trust(sockets, address)) address_counts_remove(sockets->addresses, address);
}

bool net_sockets_count_call(struct net_sockets *sockets, const struct in6_addr *client)
{
    return address_counts_add(sockets->addresses, client);
}

void net_sockets_drop_call(struct net_sockets *sockets, const struct in6_addr *client)
{
    address_counts_remove(sockets->addresses, client);
}

void net_sockets_start_turns(struct net_sockets *sockets, void (*wake)(void *owner), void *owner)
{
    turns_start(&sockets->turns, wake, owner);
}

void net_sockets_stop_turns(struct net_sockets *sockets)
{
    turns_stop(&sockets->turns);
}

int64_t net_sockets_turn_due_us(struct net_sockets *sockets)
{
    return turns_due_us(&sockets->turns);
}

void *net_sockets_next_turn(struct net_sockets *sockets, int64_t now_us)
{
    struct turn *turn = turns_next(&sockets->turns, now_us);
    if (!turn) return NULL;
    struct net_socket *s = socket_of_turn(turn);
    unfinished_restart(s);
    calls_pay(s);
    return s->holder;
}

void net_sockets_expire(struct net_sockets *sockets, int64_t now_us)
{
    pthread_mutex_lock(&sockets->mutex);
    for (struct net_socket *s = sockets->first; s; s = s->next) {
        if (atomic_load(&s->unfinished_us) < now_us - NET_UNFINISHED_US && !turn_waits(&sockets->turns, &s->turn))
            socket_refuse(s, "headers or a frame stay unfinished");
    }
    pthread_mutex_unlock(&sockets->mutex);
}
