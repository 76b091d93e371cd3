// SPDX-License-Identifier: Apache-2.0
// Opens and closes a server: its options, its listening sockets and its threads.
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/monotonic_cond.h"
#include "lib/http/internal.h"

enum { KEEPALIVE_S = 30, NOTSENT_BYTES = 16384 };
enum { BODY_BYTES = 64 << 20, BODIES = 4 }; // defaults: max_body_bytes, and max_bodies_bytes in units of it

static size_t all_bodies(size_t max_body_bytes)
{
    return BODIES * (max_body_bytes > BODY_BYTES ? max_body_bytes : BODY_BYTES);
}

static void set_defaults(struct http_server_options *o)
{
    if (!o->host) o->host = "127.0.0.1";
    if (!o->threads) o->threads = 1;
    if (!o->max_connections) o->max_connections = 20000;
    if (!o->max_head_bytes) o->max_head_bytes = 32 << 10;
    if (!o->max_body_bytes) o->max_body_bytes = BODY_BYTES;
    if (!o->max_bodies_bytes) o->max_bodies_bytes = all_bodies(o->max_body_bytes);
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

// Sets options that accepted sockets inherit.
static void set_socket_options(int fd, int64_t stall_ms)
{
    // A response that the client does not read waits in our queue, whose size is known, instead of the kernel's queue.
    set_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, NOTSENT_BYTES);
    // A host that vanished sends no FIN: bytes without acknowledgement and silent connections have a time limit.
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)stall_ms);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_S);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_S / 3);
}

static enum status open_listeners(struct http_server *s)
{
    char *address = mem_format("%s:%d", s->o.host, s->o.port);
    enum status status = address_listen(address, s->listeners, &s->n_listeners, &s->port);
    free(address);
    for (int i = 0; i < s->n_listeners; i++)
        set_socket_options(s->listeners[i], s->o.stall_ms);
    return status == STATUS_OK ? status : status_context(status, "HTTP");
}

static void free_server(struct http_server *s)
{
    for (int i = 0; i < s->n_listeners; i++)
        close(s->listeners[i]);
    tls_server_free(s->tls);
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

static enum status open_tls(struct http_server *s)
{
    const struct http_tls_files *files = s->o.tls;
    const struct tls_server_options tls = {files->cert, files->key, files->client_ca, "\x08http/1.1",
                                           1000 * (int64_t)s->o.tls_check_ms};
    return tls_server_open(&tls, &s->tls);
}

static enum status start(struct http_server *s)
{
    TRY(networks_parse(s->o.trusted_proxies, &s->proxies));
    TRY(http_hosts_check(s->o.site.hosts));
    TRY(http_origins_check(s->o.site.origins));
    if (s->o.tls) TRY(open_tls(s));
    TRY(open_listeners(s));
    while (s->n_loops < s->o.threads) {
        TRY(http_loop_open(&s->loops[s->n_loops], s));
        s->n_loops++;
    }
    return STATUS_OK;
}

enum status http_server_reload(struct http_server *server)
{
    return server->tls ? tls_server_reload(server->tls) : STATUS_OK;
}

enum status http_server_open(const struct http_server_options *options, struct http_server **server_p)
{
    struct http_server *s = mem_alloc(sizeof *s);
    s->o = *options;
    set_defaults(&s->o);
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
    // The loops may be using the descriptors: they stay open, but the port is released now.
    for (int i = 0; i < s->n_listeners; i++)
        shutdown(s->listeners[i], SHUT_RDWR);
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
