// SPDX-License-Identifier: Apache-2.0
// See node.h. This file owns the stream to the router and the mailbox. Two threads of its own: the reader dials, reads
// and redials; the pulse sends heartbeats and takes signals.
//
//     dialling --Hello--> greeting --Welcome--> attached --stream ends--> backing off --> dialling
//                             \--Refused--> over                     \--while draining or stopping--> over
#include "engine/node.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "net/rpc.h"

typedef Forepack__Cluster__V1__NodeMessage node_message;
typedef Forepack__Cluster__V1__RouterMessage router_message;

enum {
    BACKOFF_FIRST_MS = 200,
    BACKOFF_LAST_MS = 5000,
    HEARTBEAT_DEFAULT_MS = 1000, // for a router that asks for nothing sensible
    HEARTBEAT_LAST_MS = 60000,
    FAREWELL_MS = 10000, // how long node_stop waits for the router to end the stream
};

struct mail {
    struct node_event event;
    uint64_t stream; // of which it speaks
};

struct node {
    char *router;
    uint8_t *hello; // packed NodeMessage, [hello_size]
    size_t hello_size;
    struct rpc_channel *channel;
    pthread_t reader, pulse;
    bool told;         // the reader's own: that the router cannot be reached is logged once, not every five seconds
    int signals, wake; // descriptors: the blocked signals; an eventfd that ends the pulse's sleep

    pthread_mutex_t mutex; // guards what follows
    pthread_cond_t changed;
    struct rpc_stream *stream; // NULL when there is none; closed by the reader alone
    uint64_t stream_number;    // counts streams
    uint64_t taken_number;     // of the stream whose NODE_ATTACHED the working thread has taken
    bool welcomed;             // the router has said Welcome on `stream`
    int heartbeat_ms;
    int64_t heartbeat_due_us;
    Forepack__Cluster__V1__Heartbeat load;
    bool draining, stopping, reader_over;
    struct mail *mails; // [first_mail, first_mail + n_mails) of capacity, the oldest first
    int first_mail, n_mails, capacity;
};

// --- the mailbox; called with the mutex held

static void mail_post(struct node *node, struct node_event event)
{
    if (node->first_mail && node->first_mail + node->n_mails == node->capacity) {
        memmove(node->mails, node->mails + node->first_mail, (size_t)node->n_mails * sizeof *node->mails);
        node->first_mail = 0;
    }
    int at = node->first_mail + node->n_mails;
    MEM_GROW(node->mails, at, node->capacity);
    node->mails[at] = (struct mail){event, node->stream_number};
    node->n_mails++;
    pthread_cond_broadcast(&node->changed);
}

// Work of a stream that ended is nobody's: the router has given it to others.
static void mail_drop_messages(struct node *node)
{
    int kept = 0;
    for (int i = 0; i < node->n_mails; i++) {
        struct mail *mail = &node->mails[node->first_mail + i];
        if (mail->event.kind == NODE_MESSAGE) {
            node_event_free(&mail->event);
        } else {
            node->mails[node->first_mail + kept++] = *mail;
        }
    }
    node->n_mails = kept;
}

// Waits on `changed` until the moment on clock_now_us() (INT64_MAX: no limit). False when it has passed.
static bool wait_until(struct node *node, int64_t until_us)
{
    if (until_us == INT64_MAX) {
        pthread_cond_wait(&node->changed, &node->mutex);
        return true;
    }
    struct timespec until = {until_us / 1000000, until_us % 1000000 * 1000};
    return pthread_cond_timedwait(&node->changed, &node->mutex, &until) == 0;
}

void node_next(struct node *node, int timeout_ms, struct node_event *event)
{
    int64_t until_us = timeout_ms < 0 ? INT64_MAX : clock_now_us() + (int64_t)timeout_ms * 1000;
    *event = (struct node_event){.kind = NODE_NOTHING};
    pthread_mutex_lock(&node->mutex);
    while (!node->n_mails && timeout_ms && wait_until(node, until_us))
        continue;
    if (node->n_mails) {
        struct mail *mail = &node->mails[node->first_mail];
        *event = mail->event;
        if (event->kind == NODE_ATTACHED) node->taken_number = mail->stream;
        node->first_mail = --node->n_mails ? node->first_mail + 1 : 0;
    }
    pthread_mutex_unlock(&node->mutex);
}

void node_event_free(struct node_event *event)
{
    if (event->message) forepack__cluster__v1__router_message__free_unpacked(event->message, NULL);
    free(event->reason);
    *event = (struct node_event){.kind = NODE_NOTHING};
}

// --- sending

static uint8_t *pack(const node_message *message, size_t *size_p)
{
    *size_p = forepack__cluster__v1__node_message__get_packed_size(message);
    uint8_t *bytes = mem_alloc(*size_p);
    forepack__cluster__v1__node_message__pack(message, bytes);
    return bytes;
}

static void send_now(struct node *node, const node_message *message) // with the mutex held, a stream there
{
    size_t size;
    uint8_t *bytes = pack(message, &size);
    rpc_stream_send(node->stream, bytes, size);
    free(bytes);
}

static void send_draining(struct node *node)
{
    Forepack__Cluster__V1__Draining draining = FOREPACK__CLUSTER__V1__DRAINING__INIT;
    node_message message = FOREPACK__CLUSTER__V1__NODE_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_DRAINING;
    message.draining = &draining;
    send_now(node, &message);
}

static void send_heartbeat(struct node *node)
{
    node_message message = FOREPACK__CLUSTER__V1__NODE_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_HEARTBEAT;
    message.heartbeat = &node->load;
    send_now(node, &message);
}

void node_send(struct node *node, const node_message *message)
{
    size_t size;
    uint8_t *bytes = pack(message, &size);
    pthread_mutex_lock(&node->mutex);
    // Results belong to the stream their work came from. The working thread may still be at work of an earlier one:
    // its NODE_DETACHED and the next NODE_ATTACHED are then waiting in the mailbox.
    if (node->welcomed && node->taken_number == node->stream_number) rpc_stream_send(node->stream, bytes, size);
    pthread_mutex_unlock(&node->mutex);
    free(bytes);
}

void node_set_load(struct node *node, uint32_t kv_blocks_free, uint32_t running, uint32_t waiting)
{
    pthread_mutex_lock(&node->mutex);
    node->load.kv_blocks_free = kv_blocks_free;
    node->load.running = running;
    node->load.waiting = waiting;
    pthread_mutex_unlock(&node->mutex);
}

static void wake_pulse(struct node *node)
{
    uint64_t one = 1;
    while (write(node->wake, &one, sizeof one) < 0 && errno == EINTR)
        continue;
}

// --- the reader

enum stream_end { STREAM_LOST, STREAM_OVER }; // dial again, or not

static void log_lost(struct node *node, const char *reason)
{
    if (node->welcomed) {
        log_warn("router_lost router=%s reason=%s", node->router, reason);
    } else {
        log_line(node->told ? LOG_DEBUG : LOG_WARN, "router_unreachable router=%s reason=%s", node->router, reason);
        node->told = true;
    }
}

static void take_welcome(struct node *node, const Forepack__Cluster__V1__Welcome *welcome)
{
    uint32_t asked = welcome->heartbeat_ms;
    pthread_mutex_lock(&node->mutex);
    node->welcomed = true;
    node->heartbeat_ms = asked >= 1 && asked <= HEARTBEAT_LAST_MS ? (int)asked : HEARTBEAT_DEFAULT_MS;
    node->heartbeat_due_us = clock_now_us(); // the first at once: the router learns what is free
    mail_post(node, (struct node_event){.kind = NODE_ATTACHED});
    if (node->draining) send_draining(node);
    pthread_mutex_unlock(&node->mutex);
    wake_pulse(node);
    node->told = false;
    log_info("router_attached router=%s heartbeat_ms=%d", node->router, node->heartbeat_ms);
}

// Takes over the message. False when the stream must end.
static bool take_message(struct node *node, router_message *message, enum stream_end *end_p)
{
    bool welcomed = node->welcomed; // written by this thread alone
    bool go_on = false;
    switch (message->kind_case) {
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_WELCOME:
        if (welcomed) break;
        take_welcome(node, message->welcome);
        go_on = true;
        break;
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_REFUSED: {
        const char *reason = *message->refused->reason ? message->refused->reason : "no reason given";
        log_error("router_refused router=%s reason=%s", node->router, reason);
        pthread_mutex_lock(&node->mutex);
        mail_post(node, (struct node_event){.kind = NODE_REFUSED, .reason = mem_string(reason)});
        pthread_mutex_unlock(&node->mutex);
        forepack__cluster__v1__router_message__free_unpacked(message, NULL);
        *end_p = STREAM_OVER;
        return false;
    }
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_SCORE_BIN:
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_PREFILL_BIN:
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_CANCEL:
        if (!welcomed) break;
        pthread_mutex_lock(&node->mutex);
        mail_post(node, (struct node_event){.kind = NODE_MESSAGE, .message = message});
        pthread_mutex_unlock(&node->mutex);
        return true;
    default: // of a newer router: nothing it may rely on
        go_on = true;
        break;
    }
    if (!go_on) log_error("router_confused router=%s: message %d out of turn", node->router, (int)message->kind_case);
    forepack__cluster__v1__router_message__free_unpacked(message, NULL);
    return go_on;
}

static enum stream_end read_stream(struct node *node, struct rpc_stream *stream)
{
    enum stream_end end = STREAM_LOST;
    for (bool go_on = true; go_on;) {
        struct rpc_bytes bytes = {0};
        enum status status = rpc_stream_read(stream, &bytes);
        if (status != STATUS_OK || !bytes.data) {
            log_lost(node, status == STATUS_OK ? "ended by the router" : status_message());
            break;
        }
        router_message *message = forepack__cluster__v1__router_message__unpack(NULL, bytes.size, bytes.data);
        rpc_bytes_free(&bytes);
        if (message) {
            go_on = take_message(node, message, &end);
        } else {
            log_error("router_confused router=%s: broken message", node->router);
            go_on = false;
        }
    }
    return end;
}

// One stream from dialling to its end.
static enum stream_end attach(struct node *node, bool *welcomed_p)
{
    struct rpc_stream *stream;
    *welcomed_p = false;
    if (rpc_stream_open(node->channel, "/forepack.cluster.v1.Cluster/Attach", 0, false, &stream) != STATUS_OK) {
        log_lost(node, status_message());
        return STREAM_LOST;
    }
    pthread_mutex_lock(&node->mutex);
    bool stopping = node->stopping;
    if (!stopping) {
        node->stream = stream;
        node->stream_number++;
        rpc_stream_send(stream, node->hello, node->hello_size);
    }
    pthread_mutex_unlock(&node->mutex);
    enum stream_end end = stopping ? STREAM_OVER : read_stream(node, stream);
    pthread_mutex_lock(&node->mutex);
    *welcomed_p = node->welcomed;
    node->stream = NULL;
    node->welcomed = false;
    mail_drop_messages(node);
    if (*welcomed_p) mail_post(node, (struct node_event){.kind = NODE_DETACHED});
    pthread_mutex_unlock(&node->mutex);
    rpc_stream_close(stream);
    return end;
}

// Half to all of `backoff_ms`: nodes that lost the same router do not come back in step.
static int64_t jittered_us(int backoff_ms, unsigned *seed)
{
    return (int64_t)backoff_ms * (500 + rand_r(seed) % 501);
}

static void *read_loop(void *argument)
{
    struct node *node = argument;
    unsigned seed = (unsigned)clock_now_us() ^ (unsigned)getpid();
    int backoff_ms = BACKOFF_FIRST_MS;
    for (;;) {
        bool welcomed;
        enum stream_end end = attach(node, &welcomed);
        if (welcomed) backoff_ms = BACKOFF_FIRST_MS;
        pthread_mutex_lock(&node->mutex);
        bool over = end == STREAM_OVER || node->draining || node->stopping;
        int64_t until_us = clock_now_us() + jittered_us(backoff_ms, &seed);
        while (!over && !node->draining && !node->stopping && wait_until(node, until_us))
            continue;
        over = over || node->draining || node->stopping;
        if (over) {
            node->reader_over = true;
            pthread_cond_broadcast(&node->changed);
        }
        pthread_mutex_unlock(&node->mutex);
        if (over) return NULL;
        if (!welcomed) backoff_ms = backoff_ms < BACKOFF_LAST_MS / 2 ? 2 * backoff_ms : BACKOFF_LAST_MS;
    }
}

// --- the pulse

static void take_signal(struct node *node)
{
    struct signalfd_siginfo info;
    if (read(node->signals, &info, sizeof info) != sizeof info) return;
    const char *name = sigabbrev_np((int)info.ssi_signo);
    pthread_mutex_lock(&node->mutex);
    if (node->draining) {
        log_warn("quit signal=SIG%s: the second one, running work is lost", name);
        _exit(1);
    }
    log_info("drain signal=SIG%s", name);
    node->draining = true;
    if (node->welcomed) send_draining(node);
    mail_post(node, (struct node_event){.kind = NODE_DRAIN});
    pthread_mutex_unlock(&node->mutex);
}

static void *pulse_loop(void *argument)
{
    struct node *node = argument;
    struct pollfd polled[2] = {{.fd = node->signals, .events = POLLIN}, {.fd = node->wake, .events = POLLIN}};
    for (;;) {
        int timeout_ms = -1;
        pthread_mutex_lock(&node->mutex);
        if (node->stopping) {
            pthread_mutex_unlock(&node->mutex);
            return NULL;
        }
        if (node->welcomed) {
            int64_t now_us = clock_now_us();
            if (now_us >= node->heartbeat_due_us) {
                send_heartbeat(node);
                node->heartbeat_due_us = now_us + (int64_t)node->heartbeat_ms * 1000;
            }
            timeout_ms = (int)((node->heartbeat_due_us - now_us) / 1000) + 1;
        }
        pthread_mutex_unlock(&node->mutex);
        if (poll(polled, 2, timeout_ms) <= 0) continue;
        uint64_t count;
        if (polled[1].revents && read(node->wake, &count, sizeof count) < 0) continue;
        if (polled[0].revents) take_signal(node);
    }
}

// --- start and stop

static void drain_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGUSR1);
}

void node_block_signals(void)
{
    sigset_t set;
    drain_signals(&set);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

static uint8_t *pack_hello(const Forepack__Cluster__V1__Hello *hello, size_t *size_p)
{
    Forepack__Cluster__V1__Hello own = *hello;
    char *id = NULL, host[HOST_NAME_MAX + 1] = "localhost";
    if (!*own.node_id) {
        gethostname(host, sizeof host - 1);
        const char *role = own.role == FOREPACK__CLUSTER__V1__ROLE__ROLE_SPECULATOR ? "speculator" : "worker";
        own.node_id = id = mem_format("%s-%s-%d", role, host, (int)getpid());
    }
    node_message message = FOREPACK__CLUSTER__V1__NODE_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_HELLO;
    message.hello = &own;
    uint8_t *bytes = pack(&message, size_p);
    free(id);
    return bytes;
}

// Frees what has no thread any more.
static void node_free(struct node *node)
{
    while (node->n_mails)
        node_event_free(&node->mails[node->first_mail + --node->n_mails].event);
    free(node->mails);
    if (node->wake >= 0) close(node->wake);
    if (node->signals >= 0) close(node->signals);
    pthread_cond_destroy(&node->changed);
    pthread_mutex_destroy(&node->mutex);
    free(node->hello);
    free(node->router);
    free(node);
    rpc_shutdown();
}

static void join_pulse(struct node *node)
{
    pthread_mutex_lock(&node->mutex);
    node->stopping = true;
    pthread_cond_broadcast(&node->changed);
    pthread_mutex_unlock(&node->mutex);
    wake_pulse(node);
    pthread_join(node->pulse, NULL);
}

enum status node_start(const char *router, const Forepack__Cluster__V1__Hello *hello, struct node **node_p)
{
    rpc_init();
    struct node *node = mem_alloc(sizeof *node);
    node->router = mem_string(router);
    node->hello = pack_hello(hello, &node->hello_size);
    forepack__cluster__v1__heartbeat__init(&node->load);
    node->load.kv_blocks_free = hello->kv_blocks;
    pthread_mutex_init(&node->mutex, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&node->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    sigset_t set;
    drain_signals(&set);
    node->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    node->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    enum status status = STATUS_OK;
    if (node->signals < 0 || node->wake < 0) {
        status = status_fail(STATUS_INTERNAL, "signalfd, eventfd: %s", strerror(errno));
        goto free_node;
    }
    status = rpc_channel_open(router, &node->channel);
    if (status != STATUS_OK) goto free_node;
    int error = pthread_create(&node->pulse, NULL, pulse_loop, node);
    if (error) {
        status = status_fail(STATUS_INTERNAL, "pthread_create: %s", strerror(error));
        goto close_channel;
    }
    error = pthread_create(&node->reader, NULL, read_loop, node);
    if (error) {
        status = status_fail(STATUS_INTERNAL, "pthread_create: %s", strerror(error));
        goto join_pulse;
    }
    *node_p = node;
    return STATUS_OK;

join_pulse:
    join_pulse(node);
close_channel:
    rpc_channel_close(node->channel);
free_node:
    node_free(node);
    return status;
}

void node_stop(struct node *node)
{
    join_pulse(node); // and sets `stopping`
    int64_t until_us = clock_now_us() + FAREWELL_MS * 1000;
    pthread_mutex_lock(&node->mutex);
    // What is queued goes out first, then the router ends the stream; one that does not is left.
    if (node->stream) rpc_stream_half_close(node->stream);
    while (!node->reader_over && wait_until(node, until_us))
        continue;
    if (node->stream) rpc_stream_cancel(node->stream);
    pthread_mutex_unlock(&node->mutex);
    pthread_join(node->reader, NULL);
    rpc_channel_close(node->channel);
    node_free(node);
}
