// SPDX-License-Identifier: Apache-2.0
// Channels and their calls. A channel has one queue; its thread moves a stream's messages along, and whoever called
// rpc_stream_read() sleeps on the stream until there is something to take.
//
// A stream runs three kinds of batch, each at most once in flight: receive (the server's initial metadata, messages),
// send (initial metadata, messages, the half-close: whatever is due) and end, the status. It lives until its user has
// closed it and C-core is done with it, whichever comes last.
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "net/core.h"

// Received messages wait for their reader up to here, then the server is left to wait.
#define INBOX_BYTES ((size_t)256 << 10)

struct rpc_channel {
    char *target;
    grpc_channel *core;
    struct net_queue queue;
};

struct received {
    struct received *next;
    struct rpc_bytes bytes;
};

struct rpc_stream {
    struct rpc_channel *channel; // borrowed
    int64_t timeout_ms;
    uint32_t metadata_flags;
    struct net_tag on_received, on_sent, on_ended;
    grpc_byte_buffer *received; // these are written by C-core, read by the queue's thread
    grpc_metadata_array initial, trailing;
    grpc_status_code code;
    grpc_slice details;

    pthread_mutex_t mutex; // guards what follows
    pthread_cond_t changed;
    grpc_call *core;   // NULL once it has ended, everything was read and no batch is left
    int batches;       // with C-core now
    bool closed;       // rpc_stream_close() was called
    bool cancelled;    // by us: no batch is started any more
    bool greeted;      // initial metadata went out
    bool sending;      // on_sent is outstanding
    bool half_closing; // rpc_stream_half_close() was called
    bool half_closed;  // and was handed on
    bool answered;     // the server's initial metadata came
    bool receiving;    // on_received is outstanding
    bool read_all;     // no message will follow
    bool ended;        // the status is here
    struct net_outbox outbox;
    struct received *first, *last;
    size_t inbox_bytes;
    int n_trailers;
    char **trailers; // keys and values by turns, set before `ended`
    char *message;   // the server's sentence, likewise
};

// --- the end

static void free_inbox(struct rpc_stream *stream)
{
    while (stream->first) {
        struct received *message = stream->first;
        stream->first = message->next;
        rpc_bytes_free(&message->bytes);
        free(message);
    }
    stream->inbox_bytes = 0;
}

static void free_stream(struct rpc_stream *stream)
{
    free_inbox(stream);
    for (int i = 0; i < stream->n_trailers; i++)
        gpr_free(stream->trailers[i]);
    free(stream->trailers);
    gpr_free(stream->message);
    pthread_cond_destroy(&stream->changed);
    pthread_mutex_destroy(&stream->mutex);
    free(stream);
    net_object_gone();
}

// Releases the mutex, and before it C-core's call if that is over, and after it the stream if that was the last of it.
static void settle_and_unlock(struct rpc_stream *stream)
{
    if (stream->core && stream->ended && !stream->batches && (stream->read_all || stream->cancelled)) {
        grpc_call_unref(stream->core);
        stream->core = NULL;
        net_metadata_free(&stream->initial);
        net_metadata_free(&stream->trailing);
        grpc_slice_unref(stream->details);
        net_outbox_clear(&stream->outbox);
    }
    bool gone = stream->closed && !stream->core;
    pthread_mutex_unlock(&stream->mutex);
    if (gone) free_stream(stream);
}

// --- batches; called with the mutex held

static void batch_start(struct rpc_stream *stream, const grpc_op *ops, size_t n_ops, struct net_tag *tag)
{
    if (net_batch_start(stream->core, ops, n_ops, tag))
        stream->batches++;
    else
        grpc_call_cancel(stream->core, NULL);
}

// An event was handled (mutex held, and released here).
static void batch_end_and_unlock(struct rpc_stream *stream)
{
    stream->batches--;
    pthread_cond_broadcast(&stream->changed);
    settle_and_unlock(stream);
}

static void send_due(struct rpc_stream *stream)
{
    if (!stream->core || stream->ended || stream->cancelled || stream->sending) return;
    grpc_op ops[3];
    size_t n = 0;
    bool message = stream->outbox.first != NULL;
    bool half_close =
        stream->half_closing && !stream->half_closed && (!message || stream->outbox.first == stream->outbox.last);
    if (stream->greeted && !message && !half_close) return;
    if (!stream->greeted) ops[n++] = (grpc_op){.op = GRPC_OP_SEND_INITIAL_METADATA, .flags = stream->metadata_flags};
    if (message) net_outbox_take(&stream->outbox, &ops[n++]);
    if (half_close) ops[n++] = (grpc_op){.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT};
    stream->greeted = true;
    stream->half_closed |= half_close;
    stream->sending = true;
    batch_start(stream, ops, n, &stream->on_sent);
}

static void receive(struct rpc_stream *stream)
{
    if (!stream->core || stream->cancelled || stream->receiving || stream->read_all ||
        stream->inbox_bytes >= INBOX_BYTES)
        return;
    grpc_op ops[2];
    size_t n = 0;
    if (!stream->answered) {
        ops[n] = (grpc_op){.op = GRPC_OP_RECV_INITIAL_METADATA};
        ops[n++].data.recv_initial_metadata.recv_initial_metadata = &stream->initial;
    }
    ops[n] = (grpc_op){.op = GRPC_OP_RECV_MESSAGE};
    ops[n++].data.recv_message.recv_message = &stream->received;
    stream->receiving = true;
    batch_start(stream, ops, n, &stream->on_received);
}

// --- events, from the channel's thread

static void handle_received(void *owner, bool ok)
{
    struct rpc_stream *stream = owner;
    grpc_byte_buffer *buffer = stream->received;
    stream->received = NULL;
    struct received *message = NULL;
    if (buffer) {
        message = mem_alloc(sizeof *message);
        message->bytes = net_message_take(buffer);
    }
    pthread_mutex_lock(&stream->mutex);
    stream->receiving = false;
    stream->answered = true;
    if (message && message->bytes.data && !stream->cancelled) {
        if (stream->first)
            stream->last->next = message;
        else
            stream->first = message;
        stream->last = message;
        stream->inbox_bytes += message->bytes.size;
        receive(stream);
    } else {
        stream->read_all = true;
        if (message) {
            grpc_call_cancel(stream->core, NULL); // it cannot be decompressed, or nobody wants it any more
            rpc_bytes_free(&message->bytes);
            free(message);
        }
    }
    batch_end_and_unlock(stream);
}

static void handle_sent(void *owner, bool ok)
{
    struct rpc_stream *stream = owner;
    pthread_mutex_lock(&stream->mutex);
    stream->sending = false;
    net_outbox_sent(&stream->outbox);
    // What cannot be sent any more is a call that ends: the status is on its way.
    if (ok)
        send_due(stream);
    else
        net_outbox_clear(&stream->outbox);
    batch_end_and_unlock(stream);
}

static void handle_ended(void *owner, bool ok)
{
    struct rpc_stream *stream = owner;
    pthread_mutex_lock(&stream->mutex);
    stream->n_trailers = 2 * (int)stream->trailing.count;
    stream->trailers = net_metadata_texts(&stream->trailing);
    stream->message = grpc_slice_to_c_string(stream->details);
    stream->ended = true;
    batch_end_and_unlock(stream);
}

// --- channels

// What a name without a scheme ("unix:", "dns:///") must look like.
static enum status check_target(const char *target)
{
    const char *colon = strrchr(target, ':');
    char *end = NULL;
    long port = colon ? strtol(colon + 1, &end, 10) : 0;
    if (strncmp(target, "unix:", 5) == 0 || strstr(target, "://")) return STATUS_OK;
    if (!colon || colon == target || end == colon + 1 || *end || port < 1 || port > 65535)
        return status_fail(STATUS_INVALID, "server address '%s': must be HOST:PORT", target);
    return STATUS_OK;
}

enum status rpc_channel_open(const char *target, struct rpc_channel **channel_p)
{
    enum status status = check_target(target ? target : "");
    if (status) return status;
    grpc_arg args[] = {
        net_arg("grpc.enable_http_proxy", 0), // http_proxy in the environment would capture even loopback
        net_arg("grpc.max_receive_message_length", (int)NET_MESSAGE_BYTES),
        net_arg("grpc.per_message_compression", 0),
        net_arg("grpc.initial_reconnect_backoff_ms", 200),
        net_arg("grpc.min_reconnect_backoff_ms", 10000), // the time one attempt to connect may take
        net_arg("grpc.max_reconnect_backoff_ms", 1000),
        NET_KEEPALIVE_ARGS,
    };
    struct rpc_channel *channel = mem_alloc(sizeof *channel);
    net_object_born();
    channel->target = mem_string(target);
    grpc_channel_credentials *plain = grpc_insecure_credentials_create();
    channel->core = grpc_channel_create(target, plain, &(grpc_channel_args){sizeof args / sizeof args[0], args});
    grpc_channel_credentials_release(plain);
    net_queue_open(&channel->queue);
    *channel_p = channel;
    return STATUS_OK;
}

void rpc_channel_close(struct rpc_channel *channel)
{
    if (!channel) return;
    // Streams were closed, so none starts a batch; those still ending are seen to their end here.
    net_queue_close(&channel->queue);
    grpc_channel_destroy(channel->core);
    free(channel->target);
    free(channel);
    net_object_gone();
}

// --- streams

// Opens a call; with `bytes`, its one message goes out together with the rest.
static struct rpc_stream *stream_start(struct rpc_channel *channel, const char *method, int64_t timeout_ms,
                                       bool wait_for_ready, const uint8_t *bytes, size_t size, bool unary)
{
    struct rpc_stream *stream = mem_alloc(sizeof *stream);
    net_object_born();
    stream->channel = channel;
    stream->timeout_ms = timeout_ms;
    if (wait_for_ready)
        stream->metadata_flags =
            GRPC_INITIAL_METADATA_WAIT_FOR_READY | GRPC_INITIAL_METADATA_WAIT_FOR_READY_EXPLICITLY_SET;
    stream->on_received = (struct net_tag){handle_received, stream};
    stream->on_sent = (struct net_tag){handle_sent, stream};
    stream->on_ended = (struct net_tag){handle_ended, stream};
    grpc_metadata_array_init(&stream->initial);
    grpc_metadata_array_init(&stream->trailing);
    stream->details = grpc_empty_slice();
    pthread_mutex_init(&stream->mutex, NULL);
    pthread_cond_init(&stream->changed, NULL);
    gpr_timespec deadline = gpr_inf_future(GPR_CLOCK_MONOTONIC);
    if (timeout_ms > 0)
        deadline = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(timeout_ms, GPR_TIMESPAN));
    grpc_slice path = grpc_slice_from_copied_string(method);
    stream->core = grpc_channel_create_call(channel->core, NULL, GRPC_PROPAGATE_DEFAULTS, channel->queue.core, path,
                                            NULL, deadline, NULL);
    grpc_slice_unref(path);

    pthread_mutex_lock(&stream->mutex);
    grpc_op op = {.op = GRPC_OP_RECV_STATUS_ON_CLIENT};
    op.data.recv_status_on_client.trailing_metadata = &stream->trailing;
    op.data.recv_status_on_client.status = &stream->code;
    op.data.recv_status_on_client.status_details = &stream->details;
    batch_start(stream, &op, 1, &stream->on_ended);
    if (unary) net_outbox_add(&stream->outbox, bytes, size);
    stream->half_closing = unary;
    send_due(stream);
    receive(stream);
    pthread_mutex_unlock(&stream->mutex);
    return stream;
}

enum status rpc_stream_open(struct rpc_channel *channel, const char *method, int64_t timeout_ms, bool wait_for_ready,
                            struct rpc_stream **stream_p)
{
    *stream_p = stream_start(channel, method, timeout_ms, wait_for_ready, NULL, 0, false);
    return STATUS_OK;
}

void rpc_stream_send(struct rpc_stream *stream, const uint8_t *bytes, size_t size)
{
    pthread_mutex_lock(&stream->mutex);
    if (stream->core && !stream->ended && !stream->cancelled && !stream->half_closing) {
        net_outbox_add(&stream->outbox, bytes, size);
        send_due(stream);
    }
    pthread_mutex_unlock(&stream->mutex);
}

size_t rpc_stream_queued(struct rpc_stream *stream)
{
    pthread_mutex_lock(&stream->mutex);
    size_t queued = stream->outbox.bytes;
    pthread_mutex_unlock(&stream->mutex);
    return queued;
}

void rpc_stream_half_close(struct rpc_stream *stream)
{
    pthread_mutex_lock(&stream->mutex);
    stream->half_closing = true;
    send_due(stream);
    pthread_mutex_unlock(&stream->mutex);
}

static bool starts_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

// How the call ended, in this thread's status_message(). C-core's own texts are put into words a user can act on.
static enum status end_status(const struct rpc_stream *stream)
{
    const char *target = stream->channel->target, *text = stream->message;
    if (stream->code == GRPC_STATUS_OK) return STATUS_OK;
    if (stream->code == GRPC_STATUS_UNAVAILABLE &&
        (starts_with(text, "failed to connect") || starts_with(text, "DNS resolution failed") ||
         starts_with(text, "empty address list")))
        return status_fail(STATUS_UNAVAILABLE, "cannot reach %s: is the server running there? (%s)", target, text);
    if (stream->code == GRPC_STATUS_DEADLINE_EXCEEDED && stream->timeout_ms > 0 &&
        strcmp(text, "Deadline Exceeded") == 0)
        return status_fail(STATUS_DEADLINE, "%s did not answer within %lld ms", target, (long long)stream->timeout_ms);
    enum status status = rpc_status((int)stream->code);
    return status_fail(status, "%s", *text ? text : status_name(status));
}

enum status rpc_stream_read(struct rpc_stream *stream, struct rpc_bytes *bytes_p)
{
    pthread_mutex_lock(&stream->mutex);
    for (;;) {
        struct received *message = stream->first;
        if (message) {
            stream->first = message->next;
            stream->inbox_bytes -= message->bytes.size;
            receive(stream);
            pthread_mutex_unlock(&stream->mutex);
            *bytes_p = message->bytes;
            free(message);
            return STATUS_OK;
        }
        if (stream->ended && (stream->read_all || stream->cancelled)) break;
        pthread_cond_wait(&stream->changed, &stream->mutex);
    }
    enum status status = end_status(stream);
    pthread_mutex_unlock(&stream->mutex);
    if (status == STATUS_OK) *bytes_p = (struct rpc_bytes){0};
    return status;
}

const char *rpc_stream_trailer(struct rpc_stream *stream, const char *key)
{
    const char *value = NULL;
    pthread_mutex_lock(&stream->mutex);
    for (int i = 0; i < stream->n_trailers && !value; i += 2) {
        if (strcmp(stream->trailers[i], key) == 0) value = stream->trailers[i + 1];
    }
    pthread_mutex_unlock(&stream->mutex);
    return value;
}

static void cancel(struct rpc_stream *stream)
{
    if (stream->core && !stream->ended) {
        stream->cancelled = true;
        grpc_call_cancel(stream->core, NULL);
        free_inbox(stream);
        net_outbox_clear(&stream->outbox);
    }
}

void rpc_stream_cancel(struct rpc_stream *stream)
{
    pthread_mutex_lock(&stream->mutex);
    cancel(stream);
    pthread_mutex_unlock(&stream->mutex);
}

void rpc_stream_close(struct rpc_stream *stream)
{
    if (!stream) return;
    pthread_mutex_lock(&stream->mutex);
    cancel(stream);
    stream->cancelled = true; // no more batches, even where the status is here already
    stream->closed = true;
    settle_and_unlock(stream);
}

enum status rpc_unary(struct rpc_channel *channel, const char *method, const uint8_t *bytes, size_t size,
                      int64_t timeout_ms, struct rpc_bytes *answer_p)
{
    struct rpc_stream *stream = stream_start(channel, method, timeout_ms, false, bytes, size, true);
    struct rpc_bytes answer, rest = {0};
    enum status status = rpc_stream_read(stream, &answer);
    if (status == STATUS_OK && !answer.data)
        status = status_fail(STATUS_INTERNAL, "%s answered %s with nothing", channel->target, method);
    else if (status == STATUS_OK) {
        status = rpc_stream_read(stream, &rest);
        if (status == STATUS_OK && rest.data)
            status = status_fail(STATUS_INTERNAL, "%s answered %s more than once", channel->target, method);
        rpc_bytes_free(&rest);
        if (status == STATUS_OK)
            *answer_p = answer;
        else
            rpc_bytes_free(&answer);
    }
    rpc_stream_close(stream);
    return status;
}
