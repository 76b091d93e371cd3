// SPDX-License-Identifier: Apache-2.0
// Runs one call on the server. A call has three kinds of batch, of which each is in flight at most once: receive (a
// message or the half-close), send (initial metadata, message and status, as far as they are ready), and close, the
// last to complete.
//
// The library holds one reference until the call is closed and no batch is in flight. Then the library releases
// C-core's call. References held elsewhere therefore never delay the end of a server.
#include <grpc/slice.h>
#include <grpc/support/alloc.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/clock.h"
#include "lib/base/equal_share.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/utf8.h"
#include "lib/net/server.h"
#include "lib/net/socket.h"

// Limit of a status message, which is sent as a percent-encoded header: clients accept 8 KiB of headers.
#define MESSAGE_BYTES 1024

// A handler gets this many first bytes of an oversized message: enough for the first fields.
#define HEAD_BYTES 4096

// --- batches; callers of the static functions that start a batch hold the call's mutex

static void call_start_batch(struct rpc_call *call, const grpc_op *ops, size_t n_ops, struct net_tag *tag)
{
    if (net_batch_start(call->core, ops, n_ops, tag))
        call->batches++;
    else
        grpc_call_cancel(call->core, NULL);
}

// Counts a batch as complete, after its event was handled. The last event of a closed call releases C-core's call.
static void call_end_batch(struct rpc_call *call)
{
    grpc_call *core = NULL;
    pthread_mutex_lock(&call->mutex);
    if (--call->batches == 0 && call->closed) {
        core = call->core;
        call->core = NULL;
    }
    pthread_mutex_unlock(&call->mutex);
    if (!core) return;
    grpc_call_unref(core);
    if (call->client_counted) net_sockets_drop_call(call->server->sockets, &call->client);
    net_server_drop_call(call->server, call);
    rpc_call_unref(call);
}

static void call_send_next(struct rpc_call *call)
{
    if (!call->core || call->closed || call->sending || call->status_sent) return;
    grpc_op ops[3];
    size_t n = 0;
    bool message = call->outbox.first != NULL;
    bool status = call->finished && (!message || call->outbox.first == call->outbox.last);
    if (!message && !status) return;
    if (!call->greeted) ops[n++] = (grpc_op){.op = GRPC_OP_SEND_INITIAL_METADATA};
    if (message) net_outbox_start_send(&call->outbox, &ops[n++]);
    grpc_slice details = grpc_slice_from_static_string(call->message ? call->message : "");
    if (status) {
        grpc_op *op = &ops[n++];
        *op = (grpc_op){.op = GRPC_OP_SEND_STATUS_FROM_SERVER};
        op->data.send_status_from_server.trailing_metadata_count = call->n_trailers;
        op->data.send_status_from_server.trailing_metadata = call->trailers;
        op->data.send_status_from_server.status = call->status;
        op->data.send_status_from_server.status_details = call->message ? &details : NULL;
    }
    call->greeted = true;
    call->sending = true;
    call->status_sent = status;
    call_start_batch(call, ops, n, &call->on_sent);
}

static void call_receive_next(struct rpc_call *call)
{
    pthread_mutex_lock(&call->mutex);
    if (call->core && !call->closed && !call->finished) {
        grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
        op.data.recv_message.recv_message = &call->received;
        call_start_batch(call, &op, 1, &call->on_received);
    }
    pthread_mutex_unlock(&call->mutex);
}

// --- events, all from the queue's thread

static void call_handle_half_close(struct rpc_call *call)
{
    if (call->method->on_half_close) {
        call->method->on_half_close(call);
    } else if (!call->asked) {
        rpc_call_finish(call, STATUS_INVALID, "the call ended without a request message");
    }
}

static bool call_is_oversized(const struct rpc_call *call, grpc_byte_buffer *buffer)
{
    const struct rpc_method *method = call->method;
    return method->max_message_bytes && net_message_size(buffer) > method->max_message_bytes;
}

static void call_handle_oversized(struct rpc_call *call, grpc_byte_buffer *buffer)
{
    uint8_t head[HEAD_BYTES];
    size_t size = net_message_size(buffer);
    call->asked = true;
    if (call->method->on_oversized) {
        call->method->on_oversized(call, size, head, net_message_head(buffer, head, sizeof head));
    } else {
        char *message = mem_format("the message has %zu bytes: %s takes at most %zu", size, call->path,
                                   call->method->max_message_bytes);
        rpc_call_finish(call, STATUS_EXHAUSTED, message);
        free(message);
    }
}

static void call_handle_message(struct rpc_call *call, struct rpc_bytes *bytes)
{
    bool again = call->asked;
    call->asked = true;
    if (!bytes->data) {
        rpc_call_finish(call, STATUS_INVALID, "the message is compressed: must be sent without compression");
    } else if (again && !call->method->on_half_close) {
        rpc_call_finish(call, STATUS_INVALID, "a second request message came: this method takes one per call");
    } else if (call->method->on_message) {
        call->message_bytes = bytes;
        call->method->on_message(call, bytes->data, bytes->size);
        call->message_bytes = NULL;
    }
}

static void call_on_received(void *owner, bool ok)
{
    struct rpc_call *call = owner;
    grpc_byte_buffer *buffer = call->received;
    call->received = NULL;
    pthread_mutex_lock(&call->mutex);
    bool wanted = !call->closed && !call->finished;
    // An event with no message means half-close, or failure (message too large, client gone). After a failure the close
    // event follows.
    bool failed = !ok || grpc_call_failed_before_recv_message(call->core);
    pthread_mutex_unlock(&call->mutex);
    if (!buffer) {
        if (wanted && !failed) call_handle_half_close(call);
        call_end_batch(call);
        return;
    }
    if (call_is_oversized(call, buffer)) {
        if (wanted) call_handle_oversized(call, buffer);
        grpc_byte_buffer_destroy(buffer);
    } else {
        struct rpc_bytes bytes = net_message_read(buffer);
        if (wanted) call_handle_message(call, &bytes);
        rpc_bytes_free(&bytes);
    }
    call_receive_next(call);
    call_end_batch(call);
}

// Updates the server's count after a change of the outbox, which held `before` bytes. The caller holds the mutex, and
// the server is open.
static void call_count_queued(struct rpc_call *call, size_t before)
{
    if (call->builtin) return;
    size_t now = call->outbox.bytes;
    bool counted = !equal_share_is_small(before), counts = !equal_share_is_small(now);
    atomic_fetch_add(&call->server->queued, now - before); // unsigned arithmetic also subtracts
    if (counts != counted) atomic_fetch_add(&call->server->n_sharing, counts ? 1 : -1);
}

static void call_clear_outbox(struct rpc_call *call)
{
    size_t before = call->outbox.bytes;
    net_outbox_clear(&call->outbox);
    call_count_queued(call, before);
}

static void call_on_sent(void *owner, bool ok)
{
    struct rpc_call *call = owner;
    pthread_mutex_lock(&call->mutex);
    call->sending = false;
    size_t before = call->outbox.bytes;
    net_outbox_end_send(&call->outbox);
    call_count_queued(call, before);
    if (ok) {
        call_send_next(call);
    } else {
        // The call is broken. Cancelling has no effect on a call that has already ended.
        call_clear_outbox(call);
        grpc_call_cancel(call->core, NULL);
    }
    pthread_mutex_unlock(&call->mutex);
    call_end_batch(call);
}

static void call_on_closed(void *owner, bool ok)
{
    struct rpc_call *call = owner;
    pthread_mutex_lock(&call->mutex);
    call->closed = true;
    call_clear_outbox(call);
    pthread_mutex_unlock(&call->mutex);
    if (call->method->on_close) call->method->on_close(call, call->cancelled != 0);
    call_end_batch(call);
}

// --- begin and end

static int64_t deadline_us(gpr_timespec deadline)
{
    if (gpr_time_cmp(deadline, gpr_inf_future(deadline.clock_type)) == 0) return INT64_MAX;
    gpr_timespec left = gpr_time_sub(deadline, gpr_now(deadline.clock_type));
    return clock_now_us() + left.tv_sec * 1000000 + left.tv_nsec / 1000;
}

// Returns the size of the client's metadata as HTTP/2 counts it.
static size_t metadata_bytes(const grpc_metadata_array *metadata)
{
    size_t bytes = 0;
    for (size_t i = 0; i < metadata->count; i++)
        bytes += GRPC_SLICE_LENGTH(metadata->metadata[i].key) + GRPC_SLICE_LENGTH(metadata->metadata[i].value) +
                 HEADER_OVERHEAD_BYTES;
    return bytes;
}

// Refuses the call. It gets an empty method, so no handler runs. call_receive_next() does nothing on a finished call.
static void call_refuse(struct rpc_call *call, enum status status, const char *message)
{
    static const struct rpc_method none = {0};
    call->method = &none;
    rpc_call_finish(call, status, message);
}

static void call_authorise(struct rpc_call *call, struct net_socket *socket)
{
    if (call->builtin || call->method->open || !call->server->authorise) return;
    enum status status = call->server->authorise(call);
    if (status == STATUS_OK)
        net_socket_prove(socket);
    else
        call_refuse(call, status, status_message());
}

// Counts the call for the client that a trusted proxy forwarded. Returns false if the client has its maximum.
static bool call_count_client(struct rpc_call *call, const struct net_socket *socket)
{
    const struct in6_addr *proxy = net_socket_proxy(socket);
    if (!proxy) return true;
    struct forwarded forwarded = forwarded_begin(&call->server->proxies);
    for (int i = 0; i < call->n_metadata; i += 2)
        forwarded_take(&forwarded, call->metadata[i], call->metadata[i + 1]);
    call->client = forwarded_client(&forwarded, proxy);
    call->client_counted = net_sockets_count_call(call->server->sockets, &call->client);
    return call->client_counted;
}

// Admits or refuses the call. A call without a socket is refused: its connection is already closed.
static void call_admit(struct rpc_call *call, struct net_socket *socket, size_t n_metadata_bytes)
{
    if (!socket) {
        call_refuse(call, STATUS_UNAVAILABLE, "the connection is closed");
    } else if (n_metadata_bytes > NET_METADATA_BYTES) {
        call_refuse(call, STATUS_EXHAUSTED, "the metadata of a call has at most 8 KiB");
    } else if (!call_count_client(call, socket)) {
        call_refuse(call, STATUS_EXHAUSTED, "the client's address has its maximum of calls at one time");
    } else {
        call_authorise(call, socket);
    }
}

static void call_name_peer(struct rpc_call *call, const struct net_socket *socket)
{
    call->peer = mem_string(socket ? net_socket_peer(socket) : "closed");
    call->peer_name = mem_string(socket ? net_socket_name(socket) : NULL);
}

void net_call_begin(struct rpc_server *server, grpc_call *core, char *path, gpr_timespec deadline,
                    const grpc_metadata_array *metadata)
{
    struct rpc_call *call = mem_alloc(sizeof *call);
    net_object_opened();
    call->server = server;
    call->core = core;
    atomic_init(&call->refs, 1);
    call->context = server->context;
    call->path = path;
    call->method = net_server_method(server, call->path, &call->builtin);
    call->deadline_us = deadline_us(deadline);
    char *core_peer = grpc_call_get_peer(core);
    struct net_socket *socket = net_socket_find(core_peer);
    gpr_free(core_peer);
    call_name_peer(call, socket);
    call->n_metadata = 2 * (int)metadata->count;
    call->metadata = net_metadata_texts(metadata);
    pthread_mutex_init(&call->mutex, NULL);
    call->on_received = (struct net_tag){call_on_received, call};
    call->on_sent = (struct net_tag){call_on_sent, call};
    call->on_closed = (struct net_tag){call_on_closed, call};
    net_server_add_call(server, call);

    pthread_mutex_lock(&call->mutex);
    grpc_op op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER};
    op.data.recv_close_on_server.cancelled = &call->cancelled;
    call_start_batch(call, &op, 1, &call->on_closed);
    pthread_mutex_unlock(&call->mutex);
    call_admit(call, socket, metadata_bytes(metadata));
    net_socket_unref(socket);
    if (call->method->on_open) call->method->on_open(call);
    call_receive_next(call);
}

void rpc_call_ref(struct rpc_call *call)
{
    atomic_fetch_add_explicit(&call->refs, 1, memory_order_relaxed); // the caller already has a reference
}

void rpc_call_unref(struct rpc_call *call)
{
    if (atomic_fetch_sub_explicit(&call->refs, 1, memory_order_acq_rel) != 1) return;
    for (int i = 0; i < call->n_metadata; i++)
        gpr_free(call->metadata[i]);
    free(call->metadata);
    if (call->release_identity) call->release_identity(call->identity);
    for (size_t i = 0; i < call->n_trailers; i++) {
        grpc_slice_unref(call->trailers[i].key);
        grpc_slice_unref(call->trailers[i].value);
    }
    free(call->trailers);
    free(call->message);
    gpr_free(call->path);
    free(call->peer);
    free(call->peer_name);
    pthread_mutex_destroy(&call->mutex);
    free(call);
    net_object_closed();
}

// --- read by handlers

void *rpc_call_context(const struct rpc_call *call)
{
    return call->context;
}

void rpc_call_set_user(struct rpc_call *call, void *user)
{
    call->user = user;
}

void *rpc_call_user(const struct rpc_call *call)
{
    return call->user;
}

void rpc_call_set_identity(struct rpc_call *call, void *identity, void (*release)(void *identity))
{
    call->identity = identity;
    call->release_identity = release;
}

void *rpc_call_identity(const struct rpc_call *call)
{
    return call->identity;
}

const char *rpc_call_path(const struct rpc_call *call)
{
    return call->path;
}

const char *rpc_call_peer(const struct rpc_call *call)
{
    return call->peer;
}

const char *rpc_call_peer_name(const struct rpc_call *call)
{
    return call->peer_name;
}

int64_t rpc_call_deadline_us(const struct rpc_call *call)
{
    return call->deadline_us;
}

const char *rpc_call_metadata(const struct rpc_call *call, const char *key)
{
    for (int i = 0; i < call->n_metadata; i += 2) {
        if (strcmp(call->metadata[i], key) == 0) return call->metadata[i + 1];
    }
    return NULL;
}

struct rpc_bytes rpc_call_take_message(struct rpc_call *call)
{
    struct rpc_bytes bytes = *call->message_bytes;
    *call->message_bytes = (struct rpc_bytes){0};
    return bytes;
}

// --- answers of handlers

size_t rpc_call_send(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    pthread_mutex_lock(&call->mutex);
    if (call->core && !call->closed && !call->finished) {
        size_t before = call->outbox.bytes;
        net_outbox_add(&call->outbox, bytes, size);
        call_count_queued(call, before);
        call_send_next(call);
    }
    size_t queued = call->outbox.bytes;
    pthread_mutex_unlock(&call->mutex);
    return queued;
}

void rpc_call_add_trailer(struct rpc_call *call, const char *key, const char *value)
{
    grpc_metadata trailer = {.key = grpc_slice_from_copied_string(key), .value = grpc_slice_from_copied_string(value)};
    if (!grpc_header_key_is_legal(trailer.key) || !grpc_header_nonbin_value_is_legal(trailer.value)) {
        log_event(LOG_WARN, "trailer_dropped", LOG_FIELD("key", key), LOG_FIELD("reason", "not a valid header"));
        grpc_slice_unref(trailer.key);
        grpc_slice_unref(trailer.value);
        return;
    }
    pthread_mutex_lock(&call->mutex);
    MEM_GROW(call->trailers, call->n_trailers, call->trailers_capacity);
    call->trailers[call->n_trailers++] = trailer; // a late trailer is not sent, only freed with the call
    pthread_mutex_unlock(&call->mutex);
}

// Returns the status message, cut to fit a header and with invalid UTF-8 replaced. The caller frees it.
static char *status_details(const char *message)
{
    size_t size = strnlen(message, MESSAGE_BYTES);
    char *text = mem_alloc(size + 1);
    memcpy(text, message, size);
    if (message[size]) text[size - utf8_incomplete_tail(text, size)] = 0;
    utf8_mend(text);
    return text;
}

size_t rpc_call_share(struct rpc_call *call, size_t all_bytes)
{
    size_t share = SIZE_MAX;
    pthread_mutex_lock(&call->mutex);
    size_t own = call->outbox.bytes, all = call->closed ? 0 : atomic_load(&call->server->queued);
    if (all > all_bytes) { // a closed call may outlive the server
        int n = atomic_load(&call->server->n_sharing) + equal_share_is_small(own);
        share = equal_share_bytes(all_bytes, all - own, n);
        atomic_store(&call->server->exceeded, true);
    }
    pthread_mutex_unlock(&call->mutex);
    return share;
}

// Drops the queued messages. C-core keeps the message being sent until the client reads, and a client may never read.
// Cancelling drops that message, too, and sends the status.
static void call_drop_unsent(struct rpc_call *call, enum status status, const char *message)
{
    call_clear_outbox(call);
    if (!call->sending) return;
    char *details = status_details(message ? message : "");
    grpc_call_cancel_with_status(call->core, (grpc_status_code)rpc_code(status), details, NULL);
    free(details);
}

static void call_end(struct rpc_call *call, enum status status, const char *message, bool now)
{
    pthread_mutex_lock(&call->mutex);
    bool first = !call->finished;
    call->finished = true;
    if (now && call->core && (first || call->outbox.bytes)) call_drop_unsent(call, status, message);
    if (first) {
        call->status = (grpc_status_code)rpc_code(status);
        call->message = message && *message ? status_details(message) : NULL;
        call_send_next(call);
    }
    pthread_mutex_unlock(&call->mutex);
}

void rpc_call_finish(struct rpc_call *call, enum status status, const char *message)
{
    call_end(call, status, message, false);
}

void rpc_call_abandon(struct rpc_call *call, enum status status, const char *message)
{
    call_end(call, status, message, true);
}

bool net_call_overdue(struct rpc_call *call)
{
    pthread_mutex_lock(&call->mutex);
    bool unread = call->finished && call->outbox.bytes;
    bool overdue = unread && call->overdue;
    call->overdue = unread;
    pthread_mutex_unlock(&call->mutex);
    return overdue;
}
