// SPDX-License-Identifier: Apache-2.0
// Opening and closing of a server: its options, its listening socket and its threads.
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/monotonic_cond.h"
#include "http/internal.h"

enum { BACKLOG = 4096, KEEPALIVE_S = 30, NOTSENT_BYTES = 16384, OTHER_DESCRIPTORS = 256 };

static void set_defaults(struct http_server_options *o)
{
    if (!o->host) o->host = "127.0.0.1";
    if (!o->threads) o->threads = 1;
    if (!o->max_connections) o->max_connections = 20000;
    if (!o->max_head_bytes) o->max_head_bytes = 32 << 10;
    if (!o->max_body_bytes) o->max_body_bytes = 64 << 20;
    if (!o->max_bodies_bytes) o->max_bodies_bytes = 256 << 20;
    if (!o->max_unread_bytes) o->max_unread_bytes = 16 << 20;
    if (!o->max_all_unread_bytes) o->max_all_unread_bytes = 256 << 20;
    if (!o->head_ms) o->head_ms = 10000;
    if (!o->stall_ms) o->stall_ms = 30000;
    if (!o->idle_ms) o->idle_ms = 120000;
    if (!o->tls_check_ms) o->tls_check_ms = 1000;
}

static void set_option(int fd, int level, int name, int value)
{
    setsockopt(fd, level, name, &value, sizeof value);
}

// Accepted sockets inherit all of these.
static void set_socket_options(int fd, int64_t stall_ms)
{
    set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1); // connections of a former process may still be in TIME_WAIT
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    // A response that the client does not read waits in our queue, whose size is known, instead of the kernel's.
    set_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, NOTSENT_BYTES);
    // A host that vanished sends no FIN: bytes without acknowledgement and silent connections have a time limit.
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)stall_ms);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_S);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_S / 3);
}

static int port_of(int fd)
{
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    getsockname(fd, (struct sockaddr *)&address, &size);
    return ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                               : ((struct sockaddr_in *)&address)->sin_port);
}

static enum status fail_to_listen(const struct http_server_options *o, const char *reason)
{
    return status_fail(STATUS_INVALID, "cannot listen for HTTP on %s port %d: %s", o->host, o->port, reason);
}

static enum status open_listener(const struct http_server_options *o, int *fd_p)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *address;
    char port[16];
    snprintf(port, sizeof port, "%d", o->port);
    int error = getaddrinfo(o->host, port, &hints, &address);
    if (error) return fail_to_listen(o, gai_strerror(error));
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0) set_socket_options(fd, o->stall_ms);
    bool listening = fd >= 0 && bind(fd, address->ai_addr, address->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0;
    enum status status = listening ? STATUS_OK : fail_to_listen(o, strerror(errno));
    freeaddrinfo(address);
    if (listening)
        *fd_p = fd;
    else if (fd >= 0)
        close(fd);
    return status;
}

// Raises the soft limit of descriptors towards what max_connections needs.
static void raise_descriptors(int max_connections)
{
    struct rlimit limit;
    rlim_t needed = (rlim_t)max_connections + OTHER_DESCRIPTORS;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
    limit.rlim_cur = limit.rlim_max < needed ? limit.rlim_max : needed;
    setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < (rlim_t)max_connections)
        log_event(LOG_WARN, "http_descriptors_few", LOG_FIELD("descriptors", (uint64_t)limit.rlim_cur),
                  LOG_FIELD("max_connections", max_connections));
}

static void free_server(struct http_server *s)
{
    if (s->listen_fd >= 0) close(s->listen_fd);
    http_tls_close(s->tls);
    address_counts_close(s->addresses);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->idle);
    free(s->loops);
    free(s);
}

static void close_loops(struct http_server *s)
{
    atomic_store(&s->closing, true);
    for (int i = 0; i < s->n_loops; i++)
        http_loop_close(&s->loops[i]);
}

static enum status start(struct http_server *s)
{
    if (s->o.tls) TRY(http_tls_open(s->o.tls, s->o.tls_check_ms, &s->tls));
    TRY(open_listener(&s->o, &s->listen_fd));
    s->port = port_of(s->listen_fd);
    raise_descriptors(s->o.max_connections);
    while (s->n_loops < s->o.threads) {
        TRY(http_loop_open(&s->loops[s->n_loops], s));
        s->n_loops++;
    }
    return STATUS_OK;
}

enum status http_server_open(const struct http_server_options *options, struct http_server **server_p)
{
    struct http_server *s = mem_alloc(sizeof *s);
    s->o = *options;
    set_defaults(&s->o);
    s->listen_fd = -1;
    s->addresses = address_counts_open(s->o.max_connections_per_address);
    s->loops = mem_alloc_array((size_t)s->o.threads, sizeof *s->loops);
    pthread_mutex_init(&s->lock, NULL);
    monotonic_cond_init(&s->idle);
    enum status status = start(s);
    if (status == STATUS_OK) {
        *server_p = s;
        return STATUS_OK;
    }
    close_loops(s);
    free_server(s);
    return status;
}

int http_server_port(const struct http_server *s)
{
    return s->port;
}

void http_server_stop_accepting(struct http_server *s)
{
    if (atomic_exchange(&s->stopping, true)) return;
    // The loops may be using the descriptor: it stays open, but the port is released now.
    shutdown(s->listen_fd, SHUT_RDWR);
    for (int i = 0; i < s->n_loops; i++)
        http_loop_wake(&s->loops[i]);
}

static void await_exchanges(struct http_server *s, int grace_ms)
{
    int64_t until_us = clock_now_us() + 1000 * (int64_t)grace_ms;
    pthread_mutex_lock(&s->lock);
    while (atomic_load(&s->exchanges) > 0 && monotonic_cond_wait(&s->idle, &s->lock, until_us))
        ;
    pthread_mutex_unlock(&s->lock);
}

void http_server_close(struct http_server *s, int grace_ms)
{
    if (!s) return;
    http_server_stop_accepting(s);
    await_exchanges(s, grace_ms);
    close_loops(s);
    free_server(s);
}

void http_server_get_status(struct http_server *s, struct http_server_status *status)
{
    *status = (struct http_server_status){.connections = atomic_load(&s->connections),
                                          .exchanges = atomic_load(&s->exchanges),
                                          .unread_bytes = atomic_load(&s->unread_bytes),
                                          .body_bytes = atomic_load(&s->body_bytes),
                                          .accepted = atomic_load(&s->accepted),
                                          .refused = atomic_load(&s->refused),
                                          .requests = atomic_load(&s->requests),
                                          .received_bytes = atomic_load(&s->received_bytes),
                                          .sent_bytes = atomic_load(&s->sent_bytes),
                                          .handshakes_failed = atomic_load(&s->handshakes_failed)};
    for (int i = 0; i < HTTP_STATUS_CLASSES; i++)
        status->responses[i] = atomic_load(&s->responses[i]);
}
