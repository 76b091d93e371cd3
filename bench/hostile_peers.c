// SPDX-License-Identifier: Apache-2.0
#include "bench/hostile_peers.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "bench/client_link.h"
#include "bench/hostile_kinds.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/thread.h"

enum { KINDS_MAX = 32, EVENTS = 256, TICK_MS = 1, HOST = 2 };

struct script {
    const struct hostile_kind *kind;
    struct h2_bytes first, more;
};

struct peer_client {
    struct client_link link;
    const struct script *script;
    size_t sent;    // bytes sent of `script->first`
    int64_t due_us; // when the client connects again, or sends more
};

struct hostile_peers {
    struct hostile_options o;
    struct script scripts[KINDS_MAX];
    int n_scripts;
    struct peer_client *clients; // [o.connections]
    SSL_CTX *tls;
    int epoll_fd;
    pthread_t thread;
    atomic_bool stopping;
    atomic_llong opened, closed;
    atomic_int open;
    double cpu_s; // written by the thread at its end
};

// --- a client

static void client_close(struct hostile_peers *p, struct peer_client *c, int64_t now_us)
{
    client_link_close(&c->link);
    atomic_fetch_sub(&p->open, 1);
    c->due_us = now_us + (int64_t)p->o.reconnect_ms * 1000;
}

static void client_open(struct hostile_peers *p, struct peer_client *c)
{
    atomic_fetch_add(&p->opened, 1);
    atomic_fetch_add(&p->open, 1);
    c->sent = 0;
    c->due_us = INT64_MAX;
    SSL_CTX *tls = c->script->kind->raw ? NULL : p->tls;
    if (client_link_open(&c->link, HOST, p->o.port, tls, NULL, p->epoll_fd, c) == STATUS_OK) return;
    atomic_fetch_add(&p->closed, 1);
    client_close(p, c, clock_now_us());
}

// Sends the rest of the first bytes. Returns false if the connection has ended.
static bool first_send(struct peer_client *c, int64_t now_us)
{
    const struct h2_bytes *first = &c->script->first;
    while (c->sent < first->size) {
        int n = client_link_write(&c->link, first->data + c->sent, (int)(first->size - c->sent));
        if (n <= 0) return n == 0;
        c->sent += (size_t)n;
    }
    if (c->script->more.size && c->due_us == INT64_MAX) c->due_us = now_us + c->script->kind->more_ms * 1000;
    return true;
}

static void client_event(struct hostile_peers *p, struct peer_client *c, uint32_t events)
{
    int64_t now_us = clock_now_us();
    bool ended = (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
    if (!ended && !c->link.up) ended = client_link_rise(&c->link, events) != STATUS_OK;
    if (!ended && c->link.up) ended = !first_send(c, now_us);
    if (!ended) return;
    atomic_fetch_add(&p->closed, 1);
    client_close(p, c, now_us);
}

static void client_tick(struct hostile_peers *p, struct peer_client *c, int64_t now_us)
{
    if (c->due_us > now_us) return;
    if (c->link.fd < 0) {
        client_open(p, c);
        return;
    }
    client_link_write(&c->link, c->script->more.data, (int)c->script->more.size); // an end raises an event
    c->due_us = now_us + c->script->kind->more_ms * 1000;
}

// --- the thread

static void clients_run(struct hostile_peers *p)
{
    struct epoll_event events[EVENTS];
    int64_t tick_us = 0;
    while (!atomic_load(&p->stopping)) {
        int n = epoll_wait(p->epoll_fd, events, EVENTS, TICK_MS);
        for (int i = 0; i < n; i++)
            client_event(p, events[i].data.ptr, events[i].events);
        int64_t now_us = clock_now_us();
        if (now_us < tick_us) continue;
        tick_us = now_us + TICK_MS * 1000;
        for (int i = 0; i < p->o.connections; i++)
            client_tick(p, &p->clients[i], now_us);
    }
}

static void *peers_thread(void *argument)
{
    struct hostile_peers *p = argument;
    struct timespec cpu;
    // Hostile clients have machines of their own. Here they take the CPU time that nobody else wants.
    sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){0}); // Linux applies it to this thread alone
    clients_run(p);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
    p->cpu_s = (double)cpu.tv_sec + (double)cpu.tv_nsec / 1e9;
    return NULL;
}

// --- public

static void scripts_make(struct hostile_peers *p)
{
    for (const struct hostile_kind *kind = hostile_kinds(p->o.grpc); kind->name; kind++) {
        if (p->o.kind && strcmp(kind->name, p->o.kind) != 0) continue;
        struct script *script = &p->scripts[p->n_scripts++];
        script->kind = kind;
        kind->first(&script->first);
        if (kind->more) kind->more(&script->more);
    }
}

static void peers_free(struct hostile_peers *p)
{
    for (int i = 0; i < p->n_scripts; i++) {
        free(p->scripts[i].first.data);
        free(p->scripts[i].more.data);
    }
    SSL_CTX_free(p->tls);
    free(p->clients);
    free(p);
}

enum status hostile_peers_start(const struct hostile_options *options, struct hostile_peers **peers_p)
{
    struct hostile_peers *p = mem_alloc(sizeof *p);
    p->o = *options;
    scripts_make(p);
    if (!p->n_scripts) {
        peers_free(p);
        return status_fail(STATUS_INVALID, "there is no kind of hostile client named '%s'", options->kind);
    }
    p->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (options->tls) {
        p->tls = SSL_CTX_new(TLS_client_method());
        SSL_CTX_set_mode(p->tls, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    }
    p->clients = mem_alloc_array((size_t)options->connections, sizeof *p->clients);
    int64_t now_us = clock_now_us();
    for (int i = 0; i < options->connections; i++)
        p->clients[i] =
            (struct peer_client){.link.fd = -1,
                                 .script = &p->scripts[i % p->n_scripts],
                                 .due_us = now_us + (int64_t)i * options->reconnect_ms * 1000 / options->connections};
    thread_start(&p->thread, "hostile", peers_thread, p);
    *peers_p = p;
    return STATUS_OK;
}

struct hostile_counts hostile_peers_count(const struct hostile_peers *p)
{
    return (struct hostile_counts){atomic_load(&p->opened), atomic_load(&p->closed), atomic_load(&p->open)};
}

double hostile_peers_stop(struct hostile_peers *p)
{
    atomic_store(&p->stopping, true);
    pthread_join(p->thread, NULL);
    for (int i = 0; i < p->o.connections; i++)
        client_link_close(&p->clients[i].link);
    close(p->epoll_fd);
    double cpu_s = p->cpu_s;
    peers_free(p);
    return cpu_s;
}
