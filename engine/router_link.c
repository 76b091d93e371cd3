// SPDX-License-Identifier: Apache-2.0
// The reader thread of a link attaches to the router, reads its messages and attaches again.
//
//     checking --> connecting --Hello--> greeting --Welcome--> attached --stream ends--> backing off --> checking
//                                           |                      \--stream ends while draining or stopping--> over
//                                           \--Refused--> backing off
#include "engine/router_link.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/link_messages.h"
#include "engine/node_channel.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/thread.h"
#include "lib/messages/unpack.h"

typedef Forepack__Cluster__V1__NodeMessage node_message;
typedef Forepack__Cluster__V1__RouterMessage router_message;

#define LOG_ROUTER(link) LOG_FIELD("router", (const char *)(link)->at.address)

enum {
    BACKOFF_MIN_MS = 200,
    BACKOFF_MAX_MS = 5000,
    REFUSED_BACKOFF_MAX_MS = 30000,
    STABLE_MS = 10000,           // a stream that has lasted this long resets the backoff
    HEARTBEAT_DEFAULT_MS = 1000, // used if the router asks for 0 or for more than HEARTBEAT_MAX_MS
    HEARTBEAT_MAX_MS = 60000,
};

// --- messages

static bool link_is_leaving(struct router_link *link)
{
    struct node *node = link->node;
    pthread_mutex_lock(&node->mutex);
    bool leaving = node->draining || node->stopping || link->retired;
    pthread_mutex_unlock(&node->mutex);
    return leaving;
}

// Logs every refused attempt, because an operator must remove the cause, or another process with this id must end.
static void refused_log(struct router_link *link, const char *reason)
{
    link->refused = true;
    log_event(LOG_WARN, "router_refused", LOG_ROUTER(link), LOG_FIELD("reason", reason),
              LOG_FIELD("effect", "the node tries again"));
}

// Logs an attempt to attach that failed without an answer of the router. Each reason is a warning only once.
static void unreachable_log(struct router_link *link, const char *reason)
{
    bool known = link->trouble && strcmp(link->trouble, reason) == 0;
    log_event(known ? LOG_DEBUG : LOG_WARN, "router_unreachable", LOG_ROUTER(link), LOG_FIELD("reason", reason));
    free(link->trouble);
    link->trouble = mem_string(reason);
}

// Logs the end of a stream. STATUS_OK means that the router ended the stream without an error.
static void log_stream_end(struct router_link *link, enum status status)
{
    const char *reason = status == STATUS_OK ? "ended by the router" : status_message();
    bool leaving = link_is_leaving(link);
    if (status == STATUS_OK || leaving)
        log_event(LOG_INFO, "router_detached", LOG_ROUTER(link), LOG_FIELD("reason", reason));
    else if (status == STATUS_UNAUTHENTICATED || status == STATUS_DENIED)
        refused_log(link, reason);
    else if (!link->welcomed)
        unreachable_log(link, reason);
    else
        log_event(LOG_WARN, "router_lost", LOG_ROUTER(link), LOG_FIELD("reason", reason));
}

static void welcome_handle(struct router_link *link, const Forepack__Cluster__V1__Welcome *welcome)
{
    struct node *node = link->node;
    uint32_t asked = welcome->heartbeat_ms;
    link->welcomed_us = clock_now_us();
    pthread_mutex_lock(&node->mutex);
    link->welcomed = true;
    link->is_duplicate = false;
    link->instance = welcome->instance;
    link->reported_bin = 0; // stays 0 until the working thread has dropped the work of earlier streams
    link->heartbeat_ms = asked >= 1 && asked <= HEARTBEAT_MAX_MS ? (int)asked : HEARTBEAT_DEFAULT_MS;
    link->heartbeat_due_us = clock_now_us(); // send it immediately: it tells the router the number of free KV blocks
    node_mail_post(link, (struct node_event){.kind = NODE_ATTACHED});
    if (node->draining) node_send_draining(link);
    node_count_routers(node);
    pthread_mutex_unlock(&node->mutex);
    node_heartbeat_wake(node);
    free(link->trouble);
    link->trouble = NULL;
    log_event(LOG_INFO, "router_attached", LOG_ROUTER(link), LOG_FIELD("heartbeat_ms", link->heartbeat_ms));
}

// Logs once that another link is attached to this router.
static void duplicate_log(struct router_link *link)
{
    struct node *node = link->node;
    log_event(link->is_duplicate ? LOG_DEBUG : LOG_INFO, "router_duplicate", LOG_ROUTER(link),
              LOG_FIELD("reason", "the address leads to a router to which the node is attached already"));
    link->refused = true;
    pthread_mutex_lock(&node->mutex);
    link->is_duplicate = true;
    node_count_routers(node);
    pthread_mutex_unlock(&node->mutex);
}

// Passes work of the router to the working thread. Returns false, and leaves the message, if it is not allowed now.
static bool work_handle(struct router_link *link, router_message *message)
{
    if (!link->welcomed || !link_message_receive(link->index, message)) return false;
    pthread_mutex_lock(&link->node->mutex);
    node_mail_post(link, (struct node_event){.kind = NODE_MESSAGE, .message = message});
    pthread_mutex_unlock(&link->node->mutex);
    return true;
}

// Handles a message and takes ownership of it. Returns false if the stream must end.
static bool message_handle(struct router_link *link, router_message *message)
{
    struct node *node = link->node;
    bool expected = false;
    switch (message->kind_case) {
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_WELCOME:
        if (link->welcomed) break; // only this thread writes it
        welcome_handle(link, message->welcome);
        expected = true;
        break;
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_REFUSED:
        if (message->refused->duplicate)
            duplicate_log(link);
        else
            refused_log(link, *message->refused->reason ? message->refused->reason : "no reason given");
        forepack__cluster__v1__router_message__free_unpacked(message, NULL);
        return false;
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_SCORE_BIN:
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_PREFILL_BIN:
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_ADVANCES:
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_DRAFTS:
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_CANCEL:
        if (work_handle(link, message)) return true;
        break;
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_DRAIN:
        pthread_mutex_lock(&node->mutex);
        node_drain_start(node, "router", NULL);
        pthread_mutex_unlock(&node->mutex);
        expected = true;
        break;
    default: // ignores messages of newer routers, which must not rely on them
        expected = true;
        break;
    }
    if (!expected)
        log_event(LOG_ERROR, "message_unexpected", LOG_ROUTER(link), LOG_FIELD("kind", (int)message->kind_case));
    forepack__cluster__v1__router_message__free_unpacked(message, NULL);
    return expected;
}

static void stream_read(struct router_link *link, struct rpc_stream *stream)
{
    for (bool reading = true; reading;) {
        struct rpc_bytes bytes = {0};
        enum status status = rpc_stream_read(stream, &bytes);
        if (status != STATUS_OK || !bytes.data) {
            log_stream_end(link, status);
            break;
        }
        router_message *message = proto_unpack(&forepack__cluster__v1__router_message__descriptor, bytes.data,
                                               bytes.size, NODE_MESSAGE_MEMORY_MAX, NULL);
        rpc_bytes_free(&bytes);
        if (message) {
            reading = message_handle(link, message);
        } else {
            log_event(LOG_ERROR, "message_malformed", LOG_ROUTER(link), LOG_REASON);
            reading = false;
        }
    }
}

// Opens a channel for one attempt to attach, with the current contents of the files.
static enum status channel_open(const struct router_link *link, struct rpc_channel **channel_p)
{
    const struct node *node = link->node;
    const struct node_router router = {.address = link->at.address,
                                       .tls = {node->tls_cert, node->tls_key, node->tls_ca},
                                       .server_name = link->at.server_name,
                                       .token_file = node->token_file};
    return node_channel_open(&router, channel_p);
}

// --- streams

// Sends Hello on a new stream, with the routers to which other links are attached. Called with the mutex held.
static void hello_send(struct router_link *link)
{
    const struct node *node = link->node;
    uint64_t attached[NODE_LINKS_MAX];
    Forepack__Cluster__V1__Hello *hello = proto_unpack(&forepack__cluster__v1__hello__descriptor, node->hello,
                                                       node->hello_size, NODE_MESSAGE_MEMORY_MAX, NULL);
    for (int i = 0; i < NODE_LINKS_MAX; i++) {
        const struct router_link *other = &node->links[i];
        if (other->welcomed && other->instance) attached[hello->n_attached++] = other->instance;
    }
    hello->attached = attached;
    node_message message = FOREPACK__CLUSTER__V1__NODE_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_HELLO;
    message.hello = hello;
    node_link_send(link, &message);
    hello->attached = NULL; // is not owned
    hello->n_attached = 0;
    forepack__cluster__v1__hello__free_unpacked(hello, NULL);
}

// Runs one stream from its beginning to its end.
static void stream_run(struct router_link *link, struct rpc_channel *channel)
{
    struct node *node = link->node;
    struct rpc_stream *stream;
    if (rpc_stream_open(channel, NODE_ATTACH_PATH, 0, false, &stream) != STATUS_OK) return;
    pthread_mutex_lock(&node->mutex);
    bool stopping = node->stopping;
    if (!stopping) {
        link->stream = stream;
        link->stream_number = ++node->n_streams;
        hello_send(link);
    }
    pthread_mutex_unlock(&node->mutex);
    if (!stopping) stream_read(link, stream);
    pthread_mutex_lock(&node->mutex);
    if (link->welcomed) node_mail_post(link, (struct node_event){.kind = NODE_DETACHED});
    link->stream = NULL;
    link->welcomed = false;
    link->instance = 0;
    node_count_routers(node);
    mailbox_drop_messages(&node->mails, link->stream_number);
    pthread_mutex_unlock(&node->mutex);
    rpc_stream_close(stream);
}

static void attach_run(struct router_link *link)
{
    struct rpc_channel *channel;
    link->welcomed_us = 0;
    link->refused = false;
    if (channel_open(link, &channel) != STATUS_OK) {
        unreachable_log(link, status_message());
        return;
    }
    stream_run(link, channel);
    rpc_channel_close(channel);
}

// Returns a random time between half of `backoff_ms` and `backoff_ms`, so that nodes that lost the same router do not
// all attach again at the same moment.
static int64_t backoff_us(int backoff_ms, unsigned *seed)
{
    return (int64_t)backoff_ms * (500 + rand_r(seed) % 501);
}

// Waits until `until_us`, or until *pending is false. Returns false if the link must not attach again.
static bool reader_wait(struct router_link *link, const bool *pending, int64_t until_us)
{
    const struct node *node = link->node;
    while (*pending && !node->draining && !node->stopping && !link->retired && node_wait_until(link->node, until_us))
        continue;
    return !node->draining && !node->stopping && !link->retired;
}

// Waits for the check. A node that is attached to another router needs none, because it computes passes. Returns false
// if the link must not attach.
static bool await_check(struct router_link *link)
{
    struct node *node = link->node;
    pthread_mutex_lock(&node->mutex);
    link->check_due = node->callbacks.check && !node_is_attached(node, link);
    pthread_cond_broadcast(&node->changed);
    bool stays = reader_wait(link, &link->check_due, INT64_MAX);
    link->check_due = false;
    pthread_mutex_unlock(&node->mutex);
    return stays;
}

// Waits for the time of the backoff. Returns false if the link must not attach again.
static bool back_off(struct router_link *link, int backoff_ms, unsigned *seed)
{
    static const bool always = true;
    int64_t until_us = clock_now_us() + backoff_us(backoff_ms, seed);
    pthread_mutex_lock(&link->node->mutex);
    bool stays = reader_wait(link, &always, until_us);
    pthread_mutex_unlock(&link->node->mutex);
    return stays;
}

static void *reader_thread(void *argument)
{
    struct router_link *link = argument;
    struct node *node = link->node;
    unsigned seed = (unsigned)clock_now_us() ^ (unsigned)getpid() ^ (unsigned)link->index << 16;
    int backoff_ms = BACKOFF_MIN_MS;
    while (await_check(link)) {
        attach_run(link);
        int64_t stable_us = link->welcomed_us + (int64_t)STABLE_MS * 1000;
        if (link->welcomed_us && clock_now_us() >= stable_us) backoff_ms = BACKOFF_MIN_MS;
        if (!back_off(link, backoff_ms, &seed)) break;
        int max_ms = link->refused ? REFUSED_BACKOFF_MAX_MS : BACKOFF_MAX_MS;
        backoff_ms = backoff_ms < max_ms / 2 ? 2 * backoff_ms : max_ms;
    }
    pthread_mutex_lock(&node->mutex);
    link->over = true;
    pthread_cond_broadcast(&node->changed);
    pthread_mutex_unlock(&node->mutex);
    return NULL;
}

void router_link_start(struct router_link *link, const struct router_address *at)
{
    link->at = *at;
    link->used = true;
    link->over = link->retired = link->is_duplicate = link->refused = false;
    thread_start(&link->reader, "router_link", reader_thread, link);
}

void router_link_join(struct router_link *link)
{
    pthread_join(link->reader, NULL);
    free(link->trouble);
    link->trouble = NULL;
    link->used = false;
}
