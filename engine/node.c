// SPDX-License-Identifier: Apache-2.0
// Owns the stream to the router and the mailbox of the working thread. The reader thread attaches, reads and attaches
// again; the heartbeat thread sends heartbeats and receives signals.
//
//     checking --> connecting --Hello--> greeting --Welcome--> attached --stream ends--> backing off --> checking
//                                           |                      \--stream ends while draining or stopping--> over
//                                           \--Refused--> backing off
#include "engine/node.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "engine/mailbox.h"
#include "engine/node_channel.h"
#include "engine/start_signals.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/log_writer.h"
#include "lib/base/mem.h"
#include "lib/base/monotonic_cond.h"
#include "lib/base/secret_file.h"
#include "lib/base/version.h"
#include "lib/messages/unpack.h"

typedef Forepack__Cluster__V1__NodeMessage node_message;
typedef Forepack__Cluster__V1__RouterMessage router_message;

enum {
    BACKOFF_MIN_MS = 200,
    BACKOFF_MAX_MS = 5000,
    REFUSED_BACKOFF_MAX_MS = 30000,
    STABLE_MS = 10000,           // a stream that has lasted this long resets the backoff
    HEARTBEAT_DEFAULT_MS = 1000, // used if the router asks for 0 or for more than HEARTBEAT_MAX_MS
    HEARTBEAT_MAX_MS = 60000,
    STOP_TIMEOUT_MS = 10000, // time for the router to end the stream
};

struct node {
    char *router, *tls_cert, *tls_key, *tls_ca, *token_file; // see struct node_router
    uint8_t *hello;                                          // packed NodeMessage, [hello_size]
    size_t hello_size;
    struct node_callbacks callbacks;
    pthread_t reader, heartbeat;
    int64_t welcomed_us; // reader only: time of this stream's Welcome; 0: none yet
    bool refused;        // reader only: the router refused the last attempt to attach
    char *trouble; // reader only: last logged reason why the router is unreachable; NULL: none logged since Welcome
    struct file_stamp stamps[4]; // heartbeat thread only: stamps of the node's files, see files_look()
    int signals, wake;           // signals: a signalfd; wake: an eventfd that wakes the heartbeat thread

    pthread_mutex_t mutex; // guards the members below
    pthread_cond_t changed;
    struct rpc_stream *stream; // the stream to the router, or NULL. Only the reader closes it
    uint64_t stream_number;    // number of the current stream
    uint64_t working_number;   // stream whose NODE_ATTACHED the working thread received last
    bool welcomed;             // Welcome has arrived on `stream`
    int heartbeat_ms;
    int64_t heartbeat_due_us;
    Forepack__Cluster__V1__Heartbeat load;
    uint64_t last_bin; // last bin of stream `working_number` that the working thread has received
    bool draining, stopping, reader_over;
    int64_t signalled_us; // time of the signal that requested the drain; 0: none has come
    char *drain_reason;   // reason why the node drains by itself; NULL: the node was told to drain
    bool woken;           // set by node_wake()
    bool check_due;       // the reader waits until the working thread has run the check
    struct mailbox mails; // events for the working thread
};

// --- events; the mailbox is used with the mutex held

static void mail_post(struct node *node, struct node_event event)
{
    mailbox_post(&node->mails, &event, node->stream_number);
    node_vitals_set_idle(node->callbacks.vitals, false);
    pthread_cond_broadcast(&node->changed);
}

// Waits for a change, at most until `until_us` of clock_now_us() (INT64_MAX: no limit). Returns false if that time has
// passed.
static bool wait_until(struct node *node, int64_t until_us)
{
    return monotonic_cond_wait(&node->changed, &node->mutex, until_us);
}

// Waits for an event of the working thread, see wait_until().
static bool wait_idle(struct node *node, int64_t until_us)
{
    node_vitals_set_idle(node->callbacks.vitals, true);
    bool in_time = wait_until(node, until_us);
    node_vitals_set_idle(node->callbacks.vitals, false);
    return in_time;
}

// Runs the check. The caller holds the mutex, which is released during the check.
static void run_check(struct node *node)
{
    pthread_mutex_unlock(&node->mutex);
    node->callbacks.check(node->callbacks.arg);
    pthread_mutex_lock(&node->mutex);
    node->check_due = false;
    pthread_cond_broadcast(&node->changed);
}

// Returns the number of the bin, or 0 if the message is not a bin.
static uint64_t bin_of(const router_message *message)
{
    switch (message->kind_case) {
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_SCORE_BIN: return message->score_bin->bin_id;
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_PREFILL_BIN: return message->prefill_bin->bin_id;
    default: return 0;
    }
}

static void mail_note(struct node *node, const struct mail *mail)
{
    if (mail->event.kind == NODE_ATTACHED) {
        node->working_number = mail->stream;
        node->last_bin = 0;
    } else if (mail->event.kind == NODE_MESSAGE && bin_of(mail->event.message)) {
        node->last_bin = bin_of(mail->event.message);
    }
}

void node_next(struct node *node, int timeout_ms, struct node_event *event)
{
    int64_t until_us = timeout_ms < 0 ? INT64_MAX : clock_now_us() + (int64_t)timeout_ms * 1000;
    *event = (struct node_event){.kind = NODE_NOTHING};
    node_vitals_turn(node->callbacks.vitals);
    pthread_mutex_lock(&node->mutex);
    do {
        if (node->check_due) run_check(node);
    } while (!node->mails.n && !node->woken && timeout_ms && wait_idle(node, until_us));
    if (node->mails.n) {
        const struct mail mail = mailbox_take(&node->mails);
        *event = mail.event;
        mail_note(node, &mail);
    } else {
        node->woken = false;
    }
    pthread_mutex_unlock(&node->mutex);
}

void node_wake(struct node *node)
{
    pthread_mutex_lock(&node->mutex);
    node->woken = true;
    pthread_cond_broadcast(&node->changed);
    pthread_mutex_unlock(&node->mutex);
}

// --- sending

static uint8_t *message_pack(const node_message *message, size_t *size_p)
{
    *size_p = forepack__cluster__v1__node_message__get_packed_size(message);
    uint8_t *bytes = mem_alloc(*size_p);
    forepack__cluster__v1__node_message__pack(message, bytes);
    return bytes;
}

// Called with the mutex held and a stream open.
static void stream_send(struct node *node, const node_message *message)
{
    size_t size;
    uint8_t *bytes = message_pack(message, &size);
    rpc_stream_send(node->stream, bytes, size);
    free(bytes);
}

static void send_draining(struct node *node)
{
    Forepack__Cluster__V1__Draining draining = FOREPACK__CLUSTER__V1__DRAINING__INIT;
    if (node->drain_reason) draining.reason = node->drain_reason;
    node_message message = FOREPACK__CLUSTER__V1__NODE_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_DRAINING;
    message.draining = &draining;
    stream_send(node, &message);
}

void node_send(struct node *node, const node_message *message)
{
    size_t size;
    uint8_t *bytes = message_pack(message, &size);
    pthread_mutex_lock(&node->mutex);
    // Send results only on the stream from which the work came. The working thread may still do work of an earlier
    // stream, while NODE_DETACHED and the next NODE_ATTACHED wait in the mailbox.
    if (node->welcomed && node->working_number == node->stream_number) rpc_stream_send(node->stream, bytes, size);
    pthread_mutex_unlock(&node->mutex);
    free(bytes);
}

void node_set_load(struct node *node, const struct node_load *load)
{
    pthread_mutex_lock(&node->mutex);
    node->load.kv_blocks_free = load->kv_blocks_free;
    node->load.running = load->running;
    node->load.waiting = load->waiting;
    node->load.preemptions = load->preemptions;
    node->load.held_prompts = load->held_prompts;
    node->load.held_kv_blocks = load->held_kv_blocks;
    node->load.last_bin = node->working_number == node->stream_number ? node->last_bin : 0;
    pthread_mutex_unlock(&node->mutex);
    node_vitals_set_load(node->callbacks.vitals, load->running, load->waiting, load->kv_blocks_free, load->preemptions);
}

// Starts a drain, with the mutex held. A second request changes nothing. `reason` is NULL if the node was told to
// drain.
static void drain_start(struct node *node, const char *source, const char *reason)
{
    if (node->draining) return;
    if (reason)
        log_event(LOG_ERROR, "drain_started", LOG_FIELD("by", source), LOG_FIELD("reason", reason));
    else
        log_event(LOG_INFO, "drain_started", LOG_FIELD("by", source));
    node->drain_reason = reason ? mem_string(reason) : NULL;
    node->draining = true;
    node_vitals_set_draining(node->callbacks.vitals);
    if (node->welcomed) send_draining(node);
    mail_post(node, (struct node_event){.kind = NODE_DRAIN});
}

// Called with the mutex held.
static void send_heartbeat(struct node *node)
{
    node_message message = FOREPACK__CLUSTER__V1__NODE_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_HEARTBEAT;
    struct gpu_list gpus = {0};
    if (node->callbacks.progress) node->load.progress = node->callbacks.progress(node->callbacks.arg);
    if (node->callbacks.gpus) gpus = node->callbacks.gpus(node->callbacks.arg);
    node->load.gpus = gpus.gpus;
    node->load.n_gpus = gpus.n;
    message.heartbeat = &node->load;
    stream_send(node, &message);
    if (gpus.trouble) drain_start(node, "gpu", gpus.trouble);
}

static void heartbeat_wake(struct node *node)
{
    uint64_t one = 1;
    while (write(node->wake, &one, sizeof one) < 0 && errno == EINTR)
        continue;
}

// --- the reader

static bool node_is_leaving(struct node *node)
{
    pthread_mutex_lock(&node->mutex);
    bool leaving = node->draining || node->stopping;
    pthread_mutex_unlock(&node->mutex);
    return leaving;
}

// Logs every refused attempt, because an operator must remove the cause, or another process with this id must end.
static void refused_log(struct node *node, const char *reason)
{
    node->refused = true;
    log_event(LOG_WARN, "router_refused", LOG_FIELD("router", node->router), LOG_FIELD("reason", reason),
              LOG_FIELD("effect", "the node tries again"));
}

// Logs an attempt to attach that failed without an answer of the router. Each reason is a warning only once.
static void unreachable_log(struct node *node, const char *reason)
{
    bool known = node->trouble && strcmp(node->trouble, reason) == 0;
    log_event(known ? LOG_DEBUG : LOG_WARN, "router_unreachable", LOG_FIELD("router", node->router),
              LOG_FIELD("reason", reason));
    free(node->trouble);
    node->trouble = mem_string(reason);
}

// Logs the end of a stream. STATUS_OK means that the router ended the stream without an error.
static void log_stream_end(struct node *node, enum status status)
{
    const char *reason = status == STATUS_OK ? "ended by the router" : status_message();
    bool leaving = node_is_leaving(node);
    if (status == STATUS_OK || leaving)
        log_event(LOG_INFO, "router_detached", LOG_FIELD("router", node->router), LOG_FIELD("reason", reason));
    else if (status == STATUS_UNAUTHENTICATED || status == STATUS_DENIED)
        refused_log(node, reason);
    else if (!node->welcomed)
        unreachable_log(node, reason);
    else
        log_event(LOG_WARN, "router_lost", LOG_FIELD("router", node->router), LOG_FIELD("reason", reason));
}

static void welcome_handle(struct node *node, const Forepack__Cluster__V1__Welcome *welcome)
{
    uint32_t asked = welcome->heartbeat_ms;
    node->welcomed_us = clock_now_us();
    pthread_mutex_lock(&node->mutex);
    node->welcomed = true;
    node->load.last_bin = 0; // stays 0 until the working thread has dropped the work of earlier streams
    node->heartbeat_ms = asked >= 1 && asked <= HEARTBEAT_MAX_MS ? (int)asked : HEARTBEAT_DEFAULT_MS;
    node->heartbeat_due_us = clock_now_us(); // send it immediately: it tells the router the number of free KV blocks
    mail_post(node, (struct node_event){.kind = NODE_ATTACHED});
    if (node->draining) send_draining(node);
    pthread_mutex_unlock(&node->mutex);
    heartbeat_wake(node);
    free(node->trouble);
    node->trouble = NULL;
    node_vitals_set_attached(node->callbacks.vitals, true);
    log_event(LOG_INFO, "router_attached", LOG_FIELD("router", node->router),
              LOG_FIELD("heartbeat_ms", node->heartbeat_ms));
}

// Handles a message and takes ownership of it. Returns false if the stream must end.
static bool message_handle(struct node *node, router_message *message)
{
    bool welcomed = node->welcomed; // only this thread writes it
    bool expected = false;
    switch (message->kind_case) {
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_WELCOME:
        if (welcomed) break;
        welcome_handle(node, message->welcome);
        expected = true;
        break;
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_REFUSED:
        refused_log(node, *message->refused->reason ? message->refused->reason : "no reason given");
        forepack__cluster__v1__router_message__free_unpacked(message, NULL);
        return false;
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_SCORE_BIN:
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_PREFILL_BIN:
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_ADVANCES:
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_DRAFTS:
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_CANCEL:
        if (!welcomed) break;
        pthread_mutex_lock(&node->mutex);
        mail_post(node, (struct node_event){.kind = NODE_MESSAGE, .message = message});
        pthread_mutex_unlock(&node->mutex);
        return true;
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_DRAIN:
        pthread_mutex_lock(&node->mutex);
        drain_start(node, "router", NULL);
        pthread_mutex_unlock(&node->mutex);
        expected = true;
        break;
    default: // ignores messages of newer routers, which must not rely on them
        expected = true;
        break;
    }
    if (!expected)
        log_event(LOG_ERROR, "message_unexpected", LOG_FIELD("router", node->router),
                  LOG_FIELD("kind", (int)message->kind_case));
    forepack__cluster__v1__router_message__free_unpacked(message, NULL);
    return expected;
}

static void stream_read(struct node *node, struct rpc_stream *stream)
{
    for (bool reading = true; reading;) {
        struct rpc_bytes bytes = {0};
        enum status status = rpc_stream_read(stream, &bytes);
        if (status != STATUS_OK || !bytes.data) {
            log_stream_end(node, status);
            break;
        }
        router_message *message = proto_unpack(&forepack__cluster__v1__router_message__descriptor, bytes.data,
                                               bytes.size, NODE_MESSAGE_MEMORY_MAX, NULL);
        rpc_bytes_free(&bytes);
        if (message) {
            reading = message_handle(node, message);
        } else {
            log_event(LOG_ERROR, "message_malformed", LOG_FIELD("router", node->router), LOG_REASON);
            reading = false;
        }
    }
}

// Opens a channel for one attempt to attach, with the current contents of the files.
static enum status channel_open(const struct node *node, struct rpc_channel **channel_p)
{
    const struct node_router router = {node->router, {node->tls_cert, node->tls_key, node->tls_ca}, node->token_file};
    return node_channel_open(&router, channel_p);
}

// Runs one stream from its beginning to its end.
static void stream_run(struct node *node, struct rpc_channel *channel)
{
    struct rpc_stream *stream;
    if (rpc_stream_open(channel, NODE_ATTACH_PATH, 0, false, &stream) != STATUS_OK) return;
    pthread_mutex_lock(&node->mutex);
    bool stopping = node->stopping;
    if (!stopping) {
        node->stream = stream;
        node->stream_number++;
        rpc_stream_send(stream, node->hello, node->hello_size);
    }
    pthread_mutex_unlock(&node->mutex);
    if (!stopping) stream_read(node, stream);
    pthread_mutex_lock(&node->mutex);
    if (node->welcomed) mail_post(node, (struct node_event){.kind = NODE_DETACHED});
    node->stream = NULL;
    node->welcomed = false;
    node_vitals_set_attached(node->callbacks.vitals, false);
    mailbox_drop_messages(&node->mails);
    pthread_mutex_unlock(&node->mutex);
    rpc_stream_close(stream);
}

static void attach_run(struct node *node)
{
    struct rpc_channel *channel;
    node->welcomed_us = 0;
    node->refused = false;
    if (channel_open(node, &channel) != STATUS_OK) {
        unreachable_log(node, status_message());
        return;
    }
    stream_run(node, channel);
    rpc_channel_close(channel);
}

// Returns a random time between half of `backoff_ms` and `backoff_ms`, so that nodes that lost the same router do not
// all attach again at the same moment.
static int64_t backoff_us(int backoff_ms, unsigned *seed)
{
    return (int64_t)backoff_ms * (500 + rand_r(seed) % 501);
}

// Waits until `until_us`, or until *pending is false. Returns false if the node leaves.
static bool reader_wait(struct node *node, const bool *pending, int64_t until_us)
{
    while (*pending && !node->draining && !node->stopping && wait_until(node, until_us))
        continue;
    return !node->draining && !node->stopping;
}

// Waits for the check. Returns false if the node leaves first.
static bool await_check(struct node *node)
{
    pthread_mutex_lock(&node->mutex);
    node->check_due = node->callbacks.check != NULL;
    pthread_cond_broadcast(&node->changed);
    bool stays = reader_wait(node, &node->check_due, INT64_MAX);
    pthread_mutex_unlock(&node->mutex);
    return stays;
}

// Waits for the time of the backoff. Returns false if the node leaves meanwhile.
static bool back_off(struct node *node, int backoff_ms, unsigned *seed)
{
    static const bool always = true;
    int64_t until_us = clock_now_us() + backoff_us(backoff_ms, seed);
    pthread_mutex_lock(&node->mutex);
    bool stays = reader_wait(node, &always, until_us);
    pthread_mutex_unlock(&node->mutex);
    return stays;
}

static void *reader_thread(void *argument)
{
    struct node *node = argument;
    unsigned seed = (unsigned)clock_now_us() ^ (unsigned)getpid();
    int backoff_ms = BACKOFF_MIN_MS;
    while (await_check(node)) {
        attach_run(node);
        int64_t stable_us = node->welcomed_us + (int64_t)STABLE_MS * 1000;
        if (node->welcomed_us && clock_now_us() >= stable_us) backoff_ms = BACKOFF_MIN_MS;
        if (!back_off(node, backoff_ms, &seed)) break;
        int max_ms = node->refused ? REFUSED_BACKOFF_MAX_MS : BACKOFF_MAX_MS;
        backoff_ms = backoff_ms < max_ms / 2 ? 2 * backoff_ms : max_ms;
    }
    pthread_mutex_lock(&node->mutex);
    node->reader_over = true;
    pthread_cond_broadcast(&node->changed);
    pthread_mutex_unlock(&node->mutex);
    return NULL;
}

// --- heartbeats and signals

// Checks that the next attempt to attach can use the node's files.
static enum status files_check(const struct node *node)
{
    struct rpc_channel *channel;
    TRY(channel_open(node, &channel));
    rpc_channel_close(channel);
    return STATUS_OK;
}

// Records the stamps of the link's files. If `changed` is true, logs the files whose stamps have changed.
static void files_look(struct node *node, bool changed)
{
    const char *const files[] = {node->token_file, node->tls_cert, node->tls_key, node->tls_ca};
    for (int i = 0; i < 4; i++) {
        if (files[i] && file_stamp_update(&node->stamps[i], files[i]) && changed)
            log_event(LOG_INFO, "file_changed", LOG_FIELD("file", files[i]),
                      LOG_FIELD("effect", "it is used when the node attaches again"));
    }
}

static void reload(struct node *node)
{
    log_event(LOG_INFO, "reload_started", LOG_FIELD("signal", "SIGHUP"));
    node_vitals_reload_begin(node->callbacks.vitals);
    enum status config = node->callbacks.reload ? node->callbacks.reload(node->callbacks.arg) : STATUS_OK;
    files_look(node, true);
    enum status files = files_check(node);
    if (files != STATUS_OK)
        log_event(LOG_ERROR, "file_refused", LOG_REASON,
                  LOG_FIELD("effect", "the node stays attached, but could not attach again"));
    const bool refused = status_either(config, files) != STATUS_OK;
    node_vitals_reload_end(node->callbacks.vitals, refused ? status_message() : NULL);
    log_event(LOG_INFO, "reload_done", LOG_FIELD("signal", "SIGHUP"));
}

static void signal_handle(struct node *node)
{
    struct signalfd_siginfo info;
    if (read(node->signals, &info, sizeof info) != sizeof info) return;
    if (info.ssi_signo == SIGHUP) {
        reload(node);
        return;
    }
    char signal_name[16];
    snprintf(signal_name, sizeof signal_name, "SIG%s", sigabbrev_np((int)info.ssi_signo));
    pthread_mutex_lock(&node->mutex);
    if (node->signalled_us && drain_signal_repeats(node->signalled_us)) {
        pthread_mutex_unlock(&node->mutex);
        return;
    }
    if (node->signalled_us) {
        log_event(LOG_WARN, "drain_aborted", LOG_FIELD("signal", signal_name),
                  LOG_FIELD("reason", "second signal, running work is lost"));
        log_flush();
        _exit(1);
    }
    node->signalled_us = clock_now_us();
    drain_start(node, signal_name, NULL);
    pthread_mutex_unlock(&node->mutex);
}

static void *heartbeat_thread(void *argument)
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
        if (polled[0].revents) signal_handle(node);
    }
}

// --- start and stop

static void signals_set(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGUSR1);
    sigaddset(set, SIGHUP);
}

void node_block_signals(void)
{
    sigset_t set;
    signals_set(&set);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

static uint8_t *hello_pack(const Forepack__Cluster__V1__Hello *hello, size_t *size_p)
{
    Forepack__Cluster__V1__Hello own = *hello;
    struct node_identity identity;
    own.protocol = CLUSTER_PROTOCOL_VERSION;
    if (!own.instance) {
        node_identity_draw(own.role, own.node_id, &identity);
        own.instance = identity.instance;
        own.node_id = identity.node_id;
    }
    node_message message = FOREPACK__CLUSTER__V1__NODE_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_HELLO;
    message.hello = &own;
    return message_pack(&message, size_p);
}

// Frees a node whose threads have ended.
static void node_free(struct node *node)
{
    mailbox_fini(&node->mails);
    if (node->wake >= 0) close(node->wake);
    if (node->signals >= 0) close(node->signals);
    pthread_cond_destroy(&node->changed);
    pthread_mutex_destroy(&node->mutex);
    free(node->hello);
    free(node->router);
    free(node->tls_cert);
    free(node->tls_key);
    free(node->tls_ca);
    free(node->token_file);
    free(node->trouble);
    free(node->drain_reason);
    free(node);
    rpc_shutdown();
}

static void heartbeat_join(struct node *node)
{
    pthread_mutex_lock(&node->mutex);
    node->stopping = true;
    pthread_cond_broadcast(&node->changed);
    pthread_mutex_unlock(&node->mutex);
    heartbeat_wake(node);
    pthread_join(node->heartbeat, NULL);
}

static char *text_copy(const char *text)
{
    return text ? mem_string(text) : NULL;
}

enum status node_start(const struct node_router *router, const Forepack__Cluster__V1__Hello *hello,
                       const struct node_callbacks *callbacks, struct node **node_p)
{
    rpc_init();
    struct node *node = mem_alloc(sizeof *node);
    node->callbacks = *callbacks;
    node->router = mem_string(router->address);
    node->tls_cert = text_copy(router->tls.cert);
    node->tls_key = text_copy(router->tls.key);
    node->tls_ca = text_copy(router->tls.ca);
    node->token_file = text_copy(router->token_file);
    node->hello = hello_pack(hello, &node->hello_size);
    forepack__cluster__v1__heartbeat__init(&node->load);
    node->load.kv_blocks_free = hello->kv_blocks;
    pthread_mutex_init(&node->mutex, NULL);
    monotonic_cond_init(&node->changed);
    start_signals_release();
    sigset_t set;
    signals_set(&set);
    node->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    node->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    enum status status = STATUS_OK;
    if (node->signals < 0 || node->wake < 0) {
        status = status_fail(STATUS_INTERNAL, "signalfd, eventfd: %s", strerror(errno));
        goto free_node;
    }
    files_look(node, false);
    status = files_check(node);
    if (status != STATUS_OK) goto free_node;
    int error = pthread_create(&node->heartbeat, NULL, heartbeat_thread, node);
    if (error) {
        status = status_fail(STATUS_INTERNAL, "pthread_create: %s", strerror(error));
        goto free_node;
    }
    error = pthread_create(&node->reader, NULL, reader_thread, node);
    if (error) {
        status = status_fail(STATUS_INTERNAL, "pthread_create: %s", strerror(error));
        goto join_heartbeat;
    }
    *node_p = node;
    return STATUS_OK;

join_heartbeat:
    heartbeat_join(node);
free_node:
    node_free(node);
    return status;
}

const char *node_trouble(struct node *node)
{
    pthread_mutex_lock(&node->mutex);
    const char *reason = node->drain_reason; // does not change once set
    pthread_mutex_unlock(&node->mutex);
    return reason;
}

void node_stop(struct node *node)
{
    heartbeat_join(node); // also sets `stopping`
    int64_t until_us = clock_now_us() + STOP_TIMEOUT_MS * 1000;
    pthread_mutex_lock(&node->mutex);
    // Queued messages are sent first, then the router should end the stream. If it does not in time, the stream is
    // cancelled.
    if (node->stream) rpc_stream_half_close(node->stream);
    while (!node->reader_over && wait_until(node, until_us))
        continue;
    if (node->stream) rpc_stream_cancel(node->stream);
    pthread_mutex_unlock(&node->mutex);
    pthread_join(node->reader, NULL);
    node_free(node);
}
