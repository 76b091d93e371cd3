// SPDX-License-Identifier: Apache-2.0
// One call on the server. Three kinds of batch, each at most once in flight: receive (a message or the half-close),
// send (initial metadata, a message, the status: whatever is due), and close, which C-core answers last.
//
// The library holds one reference until the call is closed and no batch is left; then C-core's object is released, so
// that references kept by others never hold up the end of a server.
#include <grpc/slice.h>
#include <grpc/support/alloc.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "net/server.h"

// A status goes out as a header, percent-encoded; clients take 8 KiB of headers.
#define MESSAGE_BYTES 1024

// --- batches; the start functions are called with the call's mutex held

static void batch_start(struct rpc_call *call, const grpc_op *ops, size_t n_ops, struct net_tag *tag)
{
    if (net_batch_start(call->core, ops, n_ops, tag))
        call->batches++;
    else
        grpc_call_cancel(call->core, NULL);
}

// An event was handled. The last one after the close gives C-core's call back.
static void batch_end(struct rpc_call *call)
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
    net_server_drop_call(call->server, call);
    rpc_call_unref(call);
}

static void send_due(struct rpc_call *call)
{
    if (!call->core || call->closed || call->sending || call->status_sent) return;
    grpc_op ops[3];
    size_t n = 0;
    bool message = call->outbox.first != NULL;
    bool status = call->finished && (!message || call->outbox.first == call->outbox.last);
    if (!message && !status) return;
    if (!call->greeted) ops[n++] = (grpc_op){.op = GRPC_OP_SEND_INITIAL_METADATA};
    if (message) net_outbox_take(&call->outbox, &ops[n++]);
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
    batch_start(call, ops, n, &call->on_sent);
}

static void receive(struct rpc_call *call)
{
    pthread_mutex_lock(&call->mutex);
    if (call->core && !call->closed && !call->finished) {
        grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
        op.data.recv_message.recv_message = &call->received;
        batch_start(call, &op, 1, &call->on_received);
    }
    pthread_mutex_unlock(&call->mutex);
}

// --- events, all from the queue's thread

static void take_half_close(struct rpc_call *call)
{
    if (call->method->on_half_close) {
        call->method->on_half_close(call);
    } else if (!call->asked) {
        rpc_call_finish(call, STATUS_INVALID, "the call ended without a request message");
    }
}

static void take_message(struct rpc_call *call, const struct rpc_bytes *bytes)
{
    bool again = call->asked;
    call->asked = true;
    if (!bytes->data) {
        rpc_call_finish(call, STATUS_INVALID, "the message cannot be decompressed");
    } else if (again && !call->method->on_half_close) {
        rpc_call_finish(call, STATUS_INVALID, "a second request message came: this method takes one a call");
    } else if (call->method->on_message) {
        call->method->on_message(call, bytes->data, bytes->size);
    }
}

static void handle_received(void *owner, bool ok)
{
    struct rpc_call *call = owner;
    grpc_byte_buffer *buffer = call->received;
    call->received = NULL;
    pthread_mutex_lock(&call->mutex);
    bool wanted = !call->closed && !call->finished;
    // No message means the half-close, unless reading failed (too large, the client is gone): then the close follows.
    bool failed = !ok || grpc_call_failed_before_recv_message(call->core);
    pthread_mutex_unlock(&call->mutex);
    if (!buffer) {
        if (wanted && !failed) take_half_close(call);
        batch_end(call);
        return;
    }
    struct rpc_bytes bytes = net_message_take(buffer);
    if (wanted) take_message(call, &bytes);
    rpc_bytes_free(&bytes);
    receive(call);
    batch_end(call);
}

// The outbox held that many bytes before something was done to it. With the mutex held, while the server is there.
static void count_queued(struct rpc_call *call, size_t before)
{
    atomic_fetch_add(&call->server->queued, call->outbox.bytes - before); // unsigned: also the way down
}

static void clear_outbox(struct rpc_call *call)
{
    size_t before = call->outbox.bytes;
    net_outbox_clear(&call->outbox);
    count_queued(call, before);
}

static void handle_sent(void *owner, bool ok)
{
    struct rpc_call *call = owner;
    pthread_mutex_lock(&call->mutex);
    call->sending = false;
    size_t before = call->outbox.bytes;
    net_outbox_sent(&call->outbox);
    count_queued(call, before);
    if (ok) {
        send_due(call);
    } else {
        // What cannot be sent is a broken call; cancelling one that is over already does nothing.
        clear_outbox(call);
        grpc_call_cancel(call->core, NULL);
    }
    pthread_mutex_unlock(&call->mutex);
    batch_end(call);
}

static void handle_closed(void *owner, bool ok)
{
    struct rpc_call *call = owner;
    pthread_mutex_lock(&call->mutex);
    call->closed = true;
    clear_outbox(call);
    pthread_mutex_unlock(&call->mutex);
    if (call->method->on_close) call->method->on_close(call, call->cancelled != 0);
    batch_end(call);
}

// --- begin and end

static int64_t deadline_us(gpr_timespec deadline)
{
    if (gpr_time_cmp(deadline, gpr_inf_future(deadline.clock_type)) == 0) return INT64_MAX;
    gpr_timespec left = gpr_time_sub(deadline, gpr_now(deadline.clock_type));
    return clock_now_us() + left.tv_sec * 1000000 + left.tv_nsec / 1000;
}

void net_call_begin(struct rpc_server *server, struct net_queue *queue, grpc_call *core,
                    const grpc_call_details *details, const grpc_metadata_array *metadata)
{
    struct rpc_call *call = mem_alloc(sizeof *call);
    net_object_born();
    call->server = server;
    call->core = core;
    atomic_init(&call->refs, 1);
    call->context = server->context;
    call->path = grpc_slice_to_c_string(details->method);
    call->method = net_server_method(server, call->path, &call->builtin);
    call->deadline_us = deadline_us(details->deadline);
    call->peer = grpc_call_get_peer(core);
    call->n_metadata = 2 * (int)metadata->count;
    call->metadata = net_metadata_texts(metadata);
    pthread_mutex_init(&call->mutex, NULL);
    call->on_received = (struct net_tag){handle_received, call};
    call->on_sent = (struct net_tag){handle_sent, call};
    call->on_closed = (struct net_tag){handle_closed, call};
    net_server_add_call(server, call);

    pthread_mutex_lock(&call->mutex);
    grpc_op op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER};
    op.data.recv_close_on_server.cancelled = &call->cancelled;
    batch_start(call, &op, 1, &call->on_closed);
    pthread_mutex_unlock(&call->mutex);
    if (call->method->on_open) call->method->on_open(call);
    receive(call);
}

void rpc_call_ref(struct rpc_call *call)
{
    atomic_fetch_add_explicit(&call->refs, 1, memory_order_relaxed); // whoever refs has a reference already
}

void rpc_call_unref(struct rpc_call *call)
{
    if (atomic_fetch_sub_explicit(&call->refs, 1, memory_order_acq_rel) != 1) return;
    for (int i = 0; i < call->n_metadata; i++)
        gpr_free(call->metadata[i]);
    free(call->metadata);
    for (size_t i = 0; i < call->n_trailers; i++) {
        grpc_slice_unref(call->trailers[i].key);
        grpc_slice_unref(call->trailers[i].value);
    }
    free(call->trailers);
    free(call->message);
    gpr_free(call->path);
    gpr_free(call->peer);
    pthread_mutex_destroy(&call->mutex);
    free(call);
    net_object_gone();
}

// --- what handlers ask

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

const char *rpc_call_path(const struct rpc_call *call)
{
    return call->path;
}

const char *rpc_call_peer(const struct rpc_call *call)
{
    return call->peer;
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

// --- what handlers answer

size_t rpc_call_send(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    pthread_mutex_lock(&call->mutex);
    if (call->core && !call->closed && !call->finished) {
        size_t before = call->outbox.bytes;
        net_outbox_add(&call->outbox, bytes, size);
        count_queued(call, before);
        send_due(call);
    }
    size_t queued = call->outbox.bytes;
    pthread_mutex_unlock(&call->mutex);
    return queued;
}

void rpc_call_add_trailer(struct rpc_call *call, const char *key, const char *value)
{
    grpc_metadata trailer = {.key = grpc_slice_from_copied_string(key), .value = grpc_slice_from_copied_string(value)};
    if (!grpc_header_key_is_legal(trailer.key) || !grpc_header_nonbin_value_is_legal(trailer.value)) {
        log_warn("trailer %s is no legal header and is left out", key);
        grpc_slice_unref(trailer.key);
        grpc_slice_unref(trailer.value);
        return;
    }
    pthread_mutex_lock(&call->mutex);
    MEM_GROW(call->trailers, call->n_trailers, call->trailers_capacity);
    call->trailers[call->n_trailers++] = trailer; // after the end it is merely freed with the call
    pthread_mutex_unlock(&call->mutex);
}

// Cut to what a header holds, and made UTF-8 that clients accept.
static char *status_text(const char *message)
{
    size_t size = strnlen(message, MESSAGE_BYTES), bad;
    char *text = mem_alloc(size + 1);
    memcpy(text, message, size);
    if (message[size]) text[size - utf8_incomplete_tail(text, size)] = 0;
    while (!utf8_valid(text, strlen(text), &bad))
        text[bad] = '?';
    return text;
}

size_t rpc_call_server_queued(struct rpc_call *call)
{
    pthread_mutex_lock(&call->mutex);
    size_t queued = call->core ? atomic_load(&call->server->queued) : 0; // without it the server may be gone
    pthread_mutex_unlock(&call->mutex);
    return queued;
}

static void end_call(struct rpc_call *call, enum status status, const char *message, bool now)
{
    pthread_mutex_lock(&call->mutex);
    if (!call->finished) {
        call->finished = true;
        if (now && call->core) clear_outbox(call);
        call->status = (grpc_status_code)rpc_code(status);
        call->message = message && *message ? status_text(message) : NULL;
        send_due(call);
    }
    pthread_mutex_unlock(&call->mutex);
}

void rpc_call_finish(struct rpc_call *call, enum status status, const char *message)
{
    end_call(call, status, message, false);
}

void rpc_call_abandon(struct rpc_call *call, enum status status, const char *message)
{
    end_call(call, status, message, true);
}
