// SPDX-License-Identifier: Apache-2.0
// Cluster.Attach: carries the messages of a node link over gRPC, and reports readiness to the health service.
//
// Threads: I/O threads unpack messages and post them; the rest runs on the core's thread.
#include <stdlib.h>

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/messages/unpack.h"
#include "router/front/front.h"
#include "router/front/nodes/message_window.h"
#include "router/front/nodes/node_link.h"
#include "router/front/request/reply.h"

typedef Forepack__Cluster__V1__NodeMessage node_message;

// Limits of the messages of one node. The first message must be Hello or Loading.
enum {
    HELLO_BYTES_MAX = 64 << 10,
    HELLO_MEMORY_MAX = 1 << 20, // memory of all unpacked messages up to Hello that the core has not handled yet
    MEMORY_MAX = 40 << 20,      // memory of all further ones
    EVENT_BYTES = 512,          // memory of the event that posts a message
};

// Limit of the bytes that a node has not read: two messages of the largest size.
enum { UNREAD_MAX_MB = 128 };

struct attachment {
    struct node_link link; // first member: a pointer to the link is cast to the attachment; core's thread
    struct rpc_call *call; // holds a reference
    const struct front *front;
    bool greeted;                 // a message other than Loading, which should be Hello, was received; I/O threads
    struct message_window window; // I/O threads
    atomic_size_t memory;         // memory of the posted messages that the core has not handled yet
};

struct node_event {
    struct attachment *attachment;
    node_message *message;
    size_t memory;
};

// --- the transport of a link

static void attachment_send(struct node_link *link, const Forepack__Cluster__V1__RouterMessage *message)
{
    struct rpc_call *call = ((struct attachment *)link)->call;
    if (reply_send(call, &message->base) <= (size_t)UNREAD_MAX_MB << 20) return;
    status_fail(STATUS_EXHAUSTED, "the node reads too slowly: over %d MiB are unread", UNREAD_MAX_MB);
    log_event(LOG_WARN, "node_unread", LOG_FIELD("peer", rpc_call_peer(call)), LOG_REASON);
    rpc_call_abandon(call, STATUS_EXHAUSTED, status_message());
}

// Ends the stream. After an error, queued messages are dropped, because a node that failed may not read them.
static void attachment_finish(struct node_link *link, enum status status, const char *reason)
{
    struct rpc_call *call = ((struct attachment *)link)->call;
    if (status == STATUS_OK)
        rpc_call_finish(call, status, reason);
    else
        rpc_call_abandon(call, status, reason);
}

static const char *attachment_peer(const struct node_link *link)
{
    return rpc_call_peer(((const struct attachment *)link)->call);
}

static const struct node_link_ops attachment_ops = {attachment_send, attachment_finish, attachment_peer};

// --- events posted to the core's thread

static void event_node_message(struct core *c, void *arg, int64_t now_us)
{
    struct node_event *event = arg;
    node_link_handle(&event->attachment->link, c, event->message, now_us);
    atomic_fetch_sub(&event->attachment->memory, event->memory);
    forepack__cluster__v1__node_message__free_unpacked(event->message, NULL);
    free(event);
}

static void event_close(struct core *c, void *arg, int64_t now_us)
{
    struct attachment *a = arg;
    node_link_closed(&a->link, c, now_us);
    rpc_call_unref(a->call);
    free(a);
}

// --- I/O threads

static void attach_on_open(struct rpc_call *call)
{
    struct attachment *a = mem_alloc(sizeof *a);
    rpc_call_ref(call);
    a->call = call;
    a->front = rpc_call_context(call);
    a->link.ops = &attachment_ops;
    a->link.heartbeat_ms = a->front->heartbeat_ms;
    a->link.instance = a->front->instance;
    a->link.tail_tokens = a->front->tail_tokens;
    rpc_call_set_user(call, a);
}

static enum status unpack_within(const uint8_t *bytes, size_t size, size_t memory_max, node_message **m_p,
                                 size_t *memory_p)
{
    *m_p = proto_unpack(&forepack__cluster__v1__node_message__descriptor, bytes, size, memory_max, memory_p);
    return *m_p ? STATUS_OK : STATUS_INVALID;
}

// Unpacks a message into the part of the limit that waiting messages leave. Returns UNAVAILABLE if the message does
// not fit now, and INVALID if it would never fit.
static enum status attach_unpack(const struct attachment *a, const uint8_t *bytes, size_t size, node_message **m_p,
                                 size_t *memory_p)
{
    if (!a->greeted && size > HELLO_BYTES_MAX)
        return status_fail(STATUS_INVALID, "the first message has %zu bytes: must be a Hello of at most %d bytes", size,
                           HELLO_BYTES_MAX);
    const size_t max = a->greeted ? MEMORY_MAX : HELLO_MEMORY_MAX;
    size_t posted = atomic_load(&a->memory), left = posted < max ? max - posted : 0;
    if (unpack_within(bytes, size, left, m_p, memory_p) == STATUS_OK) return STATUS_OK;
    TRY(unpack_within(bytes, size, max, m_p, memory_p));
    forepack__cluster__v1__node_message__free_unpacked(*m_p, NULL);
    return status_fail(STATUS_UNAVAILABLE, "the router has not handled %zu MiB of the node's earlier messages yet",
                       posted >> 20);
}

static void attach_on_message(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    struct attachment *a = rpc_call_user(call);
    size_t memory = 0;
    node_message *m = NULL;
    enum status status = message_window_add(&a->window, clock_now_us());
    if (status == STATUS_OK) status = attach_unpack(a, bytes, size, &m, &memory);
    if (status != STATUS_OK) {
        rpc_call_abandon(call, status, status_message());
        return;
    }
    a->greeted |= m->kind_case != FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_LOADING;
    memory += EVENT_BYTES;
    atomic_fetch_add(&a->memory, memory);
    struct node_event *event = mem_alloc(sizeof *event);
    *event = (struct node_event){a, m, memory};
    loop_post(a->front->loop, event_node_message, event);
}

static void attach_on_half_close(struct rpc_call *call)
{
    rpc_call_finish(call, STATUS_OK, "");
}

static void attach_on_close(struct rpc_call *call, bool cancelled)
{
    struct attachment *a = rpc_call_user(call);
    loop_post(a->front->loop, event_close, a);
}

const struct rpc_method front_attach = {.path = "/forepack.cluster.v1.Cluster/Attach",
                                        .on_open = attach_on_open,
                                        .on_message = attach_on_message,
                                        .on_half_close = attach_on_half_close,
                                        .on_close = attach_on_close};

enum status front_authorise_node(struct rpc_call *call)
{
    const struct front *front = rpc_call_context(call);
    if (!front->cluster_token) return STATUS_OK;
    enum status status = cluster_token_check(front->cluster_token, rpc_call_metadata(call, "authorization"));
    if (status != STATUS_OK)
        log_event_limited(LOG_WARN, "node_refused", LOG_FIELD("peer", rpc_call_peer(call)),
                          LOG_FIELD("certificate", rpc_call_peer_name(call)), LOG_REASON);
    return status;
}

// --- readiness

void front_publish_ready(struct front *front)
{
    struct rpc_server *server = __atomic_load_n(&front->server, __ATOMIC_ACQUIRE);
    bool serving = front->ready && !atomic_load(&front->leaving) && !atomic_load(&front->draining);
    atomic_store(&front->serving, serving);
    if (!server) return; // main() calls this function again once the server is open
    rpc_server_set_serving(server, "", serving);
    rpc_server_set_serving(server, "forepack.v1.Inference", serving);
    rpc_server_set_serving(server, "inference.GRPCInferenceService", serving);
}

static void ready_changed(void *user, bool ready)
{
    struct front *front = user;
    front->ready = ready;
    front_publish_ready(front);
    log_event(LOG_INFO, "readiness_changed", LOG_FIELD("ready", ready));
}

void front_core_ops_init(struct front *front, struct core_ops *ops)
{
    *ops = (struct core_ops){.ready_changed = ready_changed, .user = front};
    node_link_core_ops(ops);
}
