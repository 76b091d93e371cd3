// SPDX-License-Identifier: Apache-2.0
// Runs a thread of the server: waits for its sockets, the queue of exchanges with new output, and time limits.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/base/address.h"
#include "lib/base/clock.h"
#include "lib/base/invariant.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/thread.h"
#include "lib/http/internal.h"

enum { EVENTS = 256, ACCEPTS_PER_TURN = 32, LISTEN_PAUSE_US = 100000, REFUSED_LOG_US = 10000000 };

static _Thread_local struct http_loop *own_loop; // the loop that runs in this thread, or NULL

// --- the queue

void http_loop_wake(struct http_loop *loop)
{
    uint64_t one = 1;
    // The write fails only if the counter is full, and then the loop is about to wake.
    ssize_t written = write(loop->event_fd, &one, sizeof one);
    (void)written;
}

void http_loop_queue(struct http_loop *loop, struct http_exchange *x)
{
    http_ref(x);
    x->next_queued = NULL;
    pthread_mutex_lock(&loop->lock);
    bool was_empty = !loop->queue;
    *loop->queue_end = x;
    loop->queue_end = &x->next_queued;
    pthread_mutex_unlock(&loop->lock);
    // The loop looks at its queue before it sleeps, so its own thread need not wake it.
    if (was_empty && own_loop != loop) http_loop_wake(loop);
}

static struct http_exchange *take_queue(struct http_loop *loop)
{
    pthread_mutex_lock(&loop->lock);
    struct http_exchange *first = loop->queue;
    loop->queue = NULL;
    loop->queue_end = &loop->queue;
    pthread_mutex_unlock(&loop->lock);
    return first;
}

static void run_queue(struct http_loop *loop)
{
    struct http_exchange *next;
    for (struct http_exchange *x = take_queue(loop); x; x = next) {
        next = x->next_queued;
        pthread_mutex_lock(&x->lock);
        x->queued = false; // other threads may queue the exchange again from here on
        pthread_mutex_unlock(&x->lock);
        if (x->connection) connection_turn(x->connection);
        http_unref(x);
    }
}

// --- ready and dead connections

void http_loop_ready(struct http_loop *loop, struct connection *c)
{
    if (c->is_ready) return;
    c->is_ready = true;
    c->next_ready = loop->ready;
    loop->ready = c;
}

// Frees the connection later: events of this batch and the list of ready connections may still point to it.
void http_loop_bury(struct http_loop *loop, struct connection *c)
{
    if (c->is_ready) return; // run_ready() buries it
    c->next_ready = loop->dead;
    loop->dead = c;
}

static void run_ready(struct http_loop *loop)
{
    struct connection *c = loop->ready, *next;
    loop->ready = NULL;
    for (; c; c = next) {
        next = c->next_ready;
        c->is_ready = false;
        if (c->state == HTTP_CLOSED)
            http_loop_bury(loop, c);
        else
            connection_turn(c);
    }
}

// Takes the connections whose handshakes have ended.
static void take_shaken(struct http_loop *loop)
{
    for (struct handshake *x; loop->handshakes && (x = handshakes_take(loop->handshakes));)
        connection_shaken((struct connection *)((char *)x - offsetof(struct connection, handshake)));
}

static void free_dead(struct http_loop *loop)
{
    struct connection *c = loop->dead, *next;
    loop->dead = NULL;
    for (; c; c = next) {
        next = c->next_ready;
        free(c);
    }
}

// --- accepting

static void unwatch_listener(struct http_loop *loop)
{
    if (!loop->listening) return;
    for (int i = 0; i < loop->server->n_listeners; i++)
        epoll_ctl(loop->epoll_fd, EPOLL_CTL_DEL, loop->server->listeners[i], NULL);
    loop->listening = false;
}

static void pause_listening(struct http_loop *loop)
{
    unwatch_listener(loop);
    loop->listen_again_us = loop->now_us + LISTEN_PAUSE_US;
}

// Watches all listeners. After an error it watches none until the next attempt, and returns false.
static bool watch_listener(struct http_loop *loop)
{
    // EXCLUSIVE keeps a new connection from waking every loop.
    struct epoll_event event = {.events = EPOLLIN | EPOLLEXCLUSIVE};
    struct http_server *server = loop->server;
    loop->listen_again_us = INT64_MAX;
    loop->listening = true;
    for (int i = 0; i < server->n_listeners; i++) {
        event.data.ptr = &server->listeners[i];
        if (epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, server->listeners[i], &event) == 0) continue;
        pause_listening(loop);
        return false;
    }
    return true;
}

void http_loop_count_refused(struct http_loop *loop, const char *reason)
{
    struct http_server *server = loop->server;
    static atomic_llong logged_us;
    atomic_fetch_add(&server->refused, 1);
    long long now_us = clock_now_us(), before_us = atomic_load(&logged_us);
    if (before_us && now_us - before_us < REFUSED_LOG_US) return;
    if (!atomic_compare_exchange_strong(&logged_us, &before_us, now_us)) return;
    log_event(LOG_WARN, "http_connections_refused", LOG_FIELD("reason", reason),
              LOG_FIELD("connections", atomic_load(&server->connections)),
              LOG_FIELD("refused", (uint64_t)atomic_load(&server->refused)));
}

// Accepts a connection with the spare descriptor and closes it, because the process has no other descriptor left.
// Otherwise the listener would stay readable and keep the loop busy.
static void refuse_without_descriptor(struct http_loop *loop, int listener)
{
    if (loop->spare_fd >= 0) {
        close(loop->spare_fd);
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0) {
            http_loop_count_refused(loop, "no file descriptor is left");
            close(fd);
        }
    }
    loop->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (loop->spare_fd >= 0) return;
    pause_listening(loop);
}

// Closes an idle connection to make room: its client can connect again, and a client that only opens connections must
// not keep other clients out.
static bool close_idle(struct http_loop *loop)
{
    if (!loop->idle) return false;
    connection_close(loop->idle);
    return true;
}

static const char *admit(struct http_loop *loop, const struct in6_addr *address, bool proxied)
{
    struct http_server *server = loop->server;
    if (!proxied && address_counts_is_barred(server->addresses, address, loop->now_us))
        return "connections of the client's address broke limits again and again";
    if (!proxied && !address_counts_add(server->addresses, address))
        return "the client's address has its maximum of connections";
    if (atomic_fetch_add(&server->connections, 1) < server->o.max_connections || close_idle(loop)) return NULL;
    atomic_fetch_sub(&server->connections, 1);
    if (!proxied) address_counts_remove(server->addresses, address);
    return "the server has its maximum of connections";
}

static void accept_one(struct http_loop *loop, int fd, const struct sockaddr_storage *from)
{
    struct http_server *server = loop->server;
    struct sockaddr_in6 address = address_to_ipv6(from);
    bool proxied = networks_have(&server->proxies, &address.sin6_addr);
    const char *refusal = admit(loop, &address.sin6_addr, proxied);
    if (refusal) {
        http_loop_count_refused(loop, refusal); // before the client can see the refusal
        close(fd);
        return;
    }
    atomic_fetch_add(&server->accepted, 1);
    connection_open(loop, fd, &address, proxied);
}

static void accept_some(struct http_loop *loop, int listener)
{
    for (int i = 0; i < ACCEPTS_PER_TURN && loop->listening; i++) {
        struct sockaddr_storage from;
        socklen_t size = sizeof from;
        int fd = accept4(listener, (struct sockaddr *)&from, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0)
            accept_one(loop, fd, &from);
        else if (errno == EAGAIN || atomic_load(&loop->server->stopping))
            return;
        else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            refuse_without_descriptor(loop, listener);
        else // the supervisor restarts the program
            INVARIANT(!address_listener_is_dead(errno), "port %d no longer listens: %s", loop->server->port,
                      strerror(errno));
    }
}

// --- the thread

static int wait_ms(struct http_loop *loop)
{
    pthread_mutex_lock(&loop->lock);
    bool queued = loop->queue != NULL;
    pthread_mutex_unlock(&loop->lock);
    if (queued || loop->ready) return 0;
    int64_t until_us = http_timers_next_us(&loop->timers);
    if (loop->listen_again_us < until_us) until_us = loop->listen_again_us;
    if (until_us == INT64_MAX) return -1;
    int64_t us = until_us - clock_now_us();
    return us <= 0 ? 0 : us > 1000000 ? 1000 : (int)((us + 999) / 1000);
}

static void stop_listening(struct http_loop *loop)
{
    unwatch_listener(loop);
    loop->listen_again_us = INT64_MAX;
    struct connection *next;
    for (struct connection *c = loop->connections; c; c = next) {
        next = c->next;
        if (c->state == HTTP_HEAD && !c->head_started) connection_close(c);
    }
}

static void run_once(struct http_loop *loop, struct epoll_event events[EVENTS])
{
    struct http_server *server = loop->server;
    int n = epoll_wait(loop->epoll_fd, events, EVENTS, wait_ms(loop));
    INVARIANT(n >= 0 || errno == EINTR, "epoll_wait: %s", strerror(errno));
    loop->now_us = clock_now_us();
    for (int i = 0; i < n; i++) {
        const int *listener = events[i].data.ptr;
        if (listener >= server->listeners && listener < server->listeners + server->n_listeners)
            accept_some(loop, *listener);
        else if (events[i].data.ptr != loop)
            connection_event(events[i].data.ptr, events[i].events);
    }
    run_ready(loop);
    run_queue(loop);
    take_shaken(loop);
    for (struct http_timer *t; (t = http_timers_expire(&loop->timers, loop->now_us));)
        connection_expire((struct connection *)((char *)t - offsetof(struct connection, timer)));
    if (atomic_load(&server->stopping)) {
        if (loop->listening || loop->listen_again_us != INT64_MAX) stop_listening(loop);
    } else if (loop->listen_again_us <= loop->now_us) {
        watch_listener(loop);
    }
    free_dead(loop);
}

static void disconnect_all(struct http_loop *loop)
{
    while (loop->connections)
        connection_close(loop->connections);
    run_ready(loop);
    run_queue(loop);
    free_dead(loop);
}

static void *loop_main(void *argument)
{
    struct http_loop *loop = argument;
    struct epoll_event *events = mem_alloc_array(EVENTS, sizeof *events);
    own_loop = loop;
    while (!atomic_load(&loop->server->closing))
        run_once(loop, events);
    disconnect_all(loop);
    free(events);
    return NULL;
}

static void wake(void *loop)
{
    http_loop_wake(loop);
}

static enum status start_threads(struct http_loop *loop)
{
    const struct http_server *server = loop->server;
    const struct handshakes_options o = {server->tls, server->o.max_connections_per_address != 0, wake, loop};
    if (server->tls) TRY(handshakes_open(&o, &loop->handshakes));
    // thread_create() blocks SIGPIPE, too, which OpenSSL's write(2) can raise.
    int error = thread_create(&loop->thread, loop_main, loop);
    if (error) return status_fail(STATUS_INTERNAL, "cannot start a thread: %s", strerror(error));
    pthread_setname_np(loop->thread, "http");
    return STATUS_OK;
}

static void free_loop(struct http_loop *loop)
{
    handshakes_close(loop->handshakes);
    if (loop->epoll_fd >= 0) close(loop->epoll_fd);
    if (loop->event_fd >= 0) close(loop->event_fd);
    if (loop->spare_fd >= 0) close(loop->spare_fd);
    pthread_mutex_destroy(&loop->lock);
    free(loop->in);
    free(loop->texts);
    free(loop->tls_in);
}

enum status http_loop_open(struct http_loop *loop, struct http_server *server)
{
    *loop = (struct http_loop){.server = server, .now_us = clock_now_us()};
    loop->queue_end = &loop->queue;
    loop->idle_end = &loop->idle;
    pthread_mutex_init(&loop->lock, NULL);
    http_timers_init(&loop->timers, loop->now_us);
    loop->in = mem_alloc(HTTP_IN_BYTES);
    loop->texts = mem_alloc(HTTP_TEXT_ROOM(server->o.max_head_bytes));
    if (server->tls) loop->tls_in = mem_alloc(HTTP_IN_BYTES);
    loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    loop->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    loop->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    // Edge-triggered, so the counter is never read.
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.ptr = loop};
    enum status status;
    if (loop->epoll_fd < 0 || loop->event_fd < 0 ||
        epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, loop->event_fd, &event) != 0 || !watch_listener(loop))
        status = status_fail(STATUS_INTERNAL, "cannot watch the HTTP port: %s", strerror(errno));
    else
        status = start_threads(loop);
    if (status != STATUS_OK) free_loop(loop);
    return status;
}

void http_loop_close(struct http_loop *loop)
{
    http_loop_wake(loop);
    pthread_join(loop->thread, NULL);
    free_loop(loop);
}
