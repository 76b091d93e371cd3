// SPDX-License-Identifier: Apache-2.0
// Implements channels and their calls. A channel has one completion queue. Its thread sends and receives the messages
// of the channel's streams. rpc_stream_read() waits on the stream's condition variable.
//
// A stream runs three kinds of batch, each at most once in flight: receive (the server's initial metadata, messages),
// send (initial metadata, message and half-close, as far as they are ready) and end (the status). A stream is freed
// once it is closed and C-core has completed its batches.
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/net/core.h"
#include "lib/net/tls.h"

// Limit of received messages that are not read yet. Above the limit, flow control makes the server wait.
#define INBOX_BYTES ((size_t)256 << 10)

struct rpc_channel {
    char *target;
    grpc_channel *core;
    struct net_queue queue;
    struct header *headers; // constant once a stream was opened
    int n_headers;
    pthread_mutex_t mutex; // guards what follows
    char *authorization;   // "Bearer TOKEN"; NULL: none
};

struct header {
    char *name, *value;
};

struct received {
    struct received *next;
    struct rpc_bytes bytes;
};

struct rpc_stream {
    struct rpc_channel *channel; // borrowed
    int64_t timeout_ms;
    uint32_t metadata_flags;
    grpc_metadata *metadata; // [n_metadata] to the server; owned
    size_t n_metadata;
    struct net_tag on_received, on_sent, on_ended;
    grpc_byte_buffer *received; // this member and the next three are written by C-core and read by the queue's thread
    grpc_metadata_array initial, trailing;
    grpc_status_code code;
    grpc_slice details;

    pthread_mutex_t mutex; // guards what follows
    pthread_cond_t changed;
    grpc_call *core;   // NULL once the call has ended, everything was read and no batch is in flight
    int batches;       // number of batches in flight
    bool closed;       // rpc_stream_close() was called
    bool cancelled;    // this side has cancelled the call: no further batch is started
    bool greeted;      // initial metadata was sent
    bool sending;      // on_sent is outstanding
    bool half_closing; // rpc_stream_half_close() was called
    bool half_closed;  // the half-close was sent
    bool answered;     // the server's initial metadata was received
    bool receiving;    // on_received is outstanding
    bool read_all;     // no message will follow
    bool ended;        // the status was received
    struct net_outbox outbox;
    struct received *first, *last;
    size_t inbox_bytes;
    char *message; // the server's status message; set before `ended`
};

// --- the end

static void stream_clear_inbox(struct rpc_stream *stream)
{
    while (stream->first) {
        struct received *message = stream->first;
        stream->first = message->next;
        rpc_bytes_free(&message->bytes);
        free(message);
    }
    stream->inbox_bytes = 0;
}

static void stream_clear_metadata(struct rpc_stream *stream)
{
    for (size_t i = 0; i < stream->n_metadata; i++) {
        grpc_slice_unref(stream->metadata[i].key);
        grpc_slice_unref(stream->metadata[i].value);
    }
    free(stream->metadata);
    stream->metadata = NULL;
    stream->n_metadata = 0;
}

static void stream_free(struct rpc_stream *stream)
{
    stream_clear_inbox(stream);
    gpr_free(stream->message);
    pthread_cond_destroy(&stream->changed);
    pthread_mutex_destroy(&stream->mutex);
    free(stream);
    net_object_closed();
}

// Releases C-core's call if it has ended, unlocks the mutex, and frees the stream if it is closed, too.
static void stream_release_and_unlock(struct rpc_stream *stream)
{
    if (stream->core && stream->ended && !stream->batches && (stream->read_all || stream->cancelled)) {
        grpc_call_unref(stream->core);
        stream->core = NULL;
        net_metadata_free(&stream->initial);
        net_metadata_free(&stream->trailing);
        grpc_slice_unref(stream->details);
        stream_clear_metadata(stream);
        net_outbox_clear(&stream->outbox);
    }
    bool gone = stream->closed && !stream->core;
    pthread_mutex_unlock(&stream->mutex);
    if (gone) stream_free(stream);
}

// --- batches; the caller holds the mutex

static void stream_start_batch(struct rpc_stream *stream, const grpc_op *ops, size_t n_ops, struct net_tag *tag)
{
    if (net_batch_start(stream->core, ops, n_ops, tag))
        stream->batches++;
    else
        grpc_call_cancel(stream->core, NULL);
}

// Counts a batch as complete, after its event was handled. The caller holds the mutex.
static void stream_end_batch_and_unlock(struct rpc_stream *stream)
{
    stream->batches--;
    pthread_cond_broadcast(&stream->changed);
    stream_release_and_unlock(stream);
}

static void stream_send_next(struct rpc_stream *stream)
{
    if (!stream->core || stream->ended || stream->cancelled || stream->sending) return;
    grpc_op ops[3];
    size_t n = 0;
    bool message = stream->outbox.first != NULL;
    bool half_close =
        stream->half_closing && !stream->half_closed && (!message || stream->outbox.first == stream->outbox.last);
    if (stream->greeted && !message && !half_close) return;
    if (!stream->greeted) {
        ops[n] = (grpc_op){.op = GRPC_OP_SEND_INITIAL_METADATA, .flags = stream->metadata_flags};
        ops[n].data.send_initial_metadata.count = stream->n_metadata;
        ops[n++].data.send_initial_metadata.metadata = stream->metadata;
    }
    if (message) net_outbox_start_send(&stream->outbox, &ops[n++]);
    if (half_close) ops[n++] = (grpc_op){.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT};
    stream->greeted = true;
    stream->half_closed |= half_close;
    stream->sending = true;
    stream_start_batch(stream, ops, n, &stream->on_sent);
}

static void stream_receive_next(struct rpc_stream *stream)
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
    stream_start_batch(stream, ops, n, &stream->on_received);
}

// --- events, on the channel's thread

static void stream_on_received(void *owner, bool ok)
{
    struct rpc_stream *stream = owner;
    grpc_byte_buffer *buffer = stream->received;
    stream->received = NULL;
    struct received *message = NULL;
    if (buffer) {
        message = mem_alloc(sizeof *message);
        message->bytes = net_message_read(buffer);
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
        stream_receive_next(stream);
    } else {
        stream->read_all = true;
        if (message) {
            grpc_call_cancel(stream->core, NULL); // the message cannot be decompressed, or the stream is cancelled
            rpc_bytes_free(&message->bytes);
            free(message);
        }
    }
    stream_end_batch_and_unlock(stream);
}

static void stream_on_sent(void *owner, bool ok)
{
    struct rpc_stream *stream = owner;
    pthread_mutex_lock(&stream->mutex);
    stream->sending = false;
    net_outbox_end_send(&stream->outbox);
    // When sending fails the call has ended, and its status event follows.
    if (ok)
        stream_send_next(stream);
    else
        net_outbox_clear(&stream->outbox);
    stream_end_batch_and_unlock(stream);
}

static void stream_on_ended(void *owner, bool ok)
{
    struct rpc_stream *stream = owner;
    pthread_mutex_lock(&stream->mutex);
    stream->message = grpc_slice_to_c_string(stream->details);
    stream->ended = true;
    stream_end_batch_and_unlock(stream);
}

// --- channels

// Returns INVALID unless the target is HOST:PORT or has a scheme ("unix:", "dns:///").
static enum status target_check(const char *target)
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
    return rpc_channel_open_tls(target, NULL, channel_p);
}

enum status rpc_channel_open_tls(const char *target, const struct rpc_tls *tls, struct rpc_channel **channel_p)
{
    return rpc_channel_open_named(target, tls, NULL, channel_p);
}

enum status rpc_channel_open_named(const char *target, const struct rpc_tls *tls, const char *server_name,
                                   struct rpc_channel **channel_p)
{
    grpc_channel_credentials *credentials = NULL;
    TRY(target_check(target ? target : ""));
    if (tls)
        TRY(net_tls_client_credentials(tls, &credentials));
    else
        credentials = grpc_insecure_credentials_create();
    const bool named = tls && server_name && *server_name;
    grpc_arg args[] = {
        net_arg("grpc.enable_http_proxy", 0), // http_proxy in the environment would capture even loopback
        net_arg("grpc.max_receive_message_length", (int)NET_MESSAGE_BYTES),
        NET_NO_COMPRESSION_ARGS,
        net_arg("grpc.initial_reconnect_backoff_ms", 200),
        net_arg("grpc.min_reconnect_backoff_ms", 10000), // the time one attempt to connect may take
        net_arg("grpc.max_reconnect_backoff_ms", 1000),
        NET_KEEPALIVE_ARGS,
        {.type = GRPC_ARG_STRING,
         .key = (char *)GRPC_SSL_TARGET_NAME_OVERRIDE_ARG,
         .value.string = (char *)(named ? server_name : "")},
    };
    const size_t n_args = sizeof args / sizeof args[0] - !named; // the last one is the name
    struct rpc_channel *channel = mem_alloc(sizeof *channel);
    net_object_opened();
    channel->target = mem_string(target);
    channel->core = grpc_channel_create(target, credentials, &(grpc_channel_args){n_args, args});
    grpc_channel_credentials_release(credentials);
    net_queue_open(&channel->queue);
    pthread_mutex_init(&channel->mutex, NULL);
    *channel_p = channel;
    return STATUS_OK;
}

enum status rpc_channel_set_token(struct rpc_channel *channel, const char *token)
{
    for (const char *at = token; at && *at; at++) {
        if (*at <= ' ' || *at > '~')
            return status_fail(STATUS_INVALID, "the token has a character that is not printable ASCII");
    }
    pthread_mutex_lock(&channel->mutex);
    free(channel->authorization);
    channel->authorization = token ? mem_format("Bearer %s", token) : NULL;
    pthread_mutex_unlock(&channel->mutex);
    return STATUS_OK;
}

// Returns true if C-core can send the header as text. A name reserved by gRPC ("grpc-...", "te") would break the call.
static bool header_valid(const char *name, const char *value)
{
    grpc_slice key = grpc_slice_from_static_string(name), text = grpc_slice_from_static_string(value);
    return *name && *name != ':' && strncmp(name, "grpc-", 5) != 0 && grpc_header_key_is_legal(key) &&
           !grpc_is_binary_header(key) && grpc_header_nonbin_value_is_legal(text);
}

enum status rpc_channel_add_header(struct rpc_channel *channel, const char *name, const char *value)
{
    if (!header_valid(name, value))
        return status_fail(STATUS_INVALID, "header '%s': must be a name in lower case and a value in printable ASCII",
                           name);
    channel->headers = mem_resize(channel->headers, (size_t)channel->n_headers + 1, sizeof *channel->headers);
    channel->headers[channel->n_headers++] = (struct header){mem_string(name), mem_string(value)};
    return STATUS_OK;
}

void rpc_channel_close(struct rpc_channel *channel)
{
    if (!channel) return;
    // Closed streams start no batch; their outstanding events are handled here.
    net_queue_close(&channel->queue);
    grpc_channel_destroy(channel->core);
    pthread_mutex_destroy(&channel->mutex);
    for (int i = 0; i < channel->n_headers; i++) {
        free(channel->headers[i].name);
        free(channel->headers[i].value);
    }
    free(channel->headers);
    free(channel->authorization);
    free(channel->target);
    free(channel);
    net_object_closed();
}

// --- streams

static void stream_add_metadata(struct rpc_stream *stream, const char *name, const char *value)
{
    grpc_metadata *m = &stream->metadata[stream->n_metadata++];
    m->key = grpc_slice_from_copied_string(name);
    m->value = grpc_slice_from_copied_string(value);
}

static void stream_set_metadata(struct rpc_stream *stream, struct rpc_channel *channel)
{
    stream->metadata = mem_alloc_array((size_t)channel->n_headers + 1, sizeof *stream->metadata);
    for (int i = 0; i < channel->n_headers; i++)
        stream_add_metadata(stream, channel->headers[i].name, channel->headers[i].value);
    pthread_mutex_lock(&channel->mutex);
    if (channel->authorization) stream_add_metadata(stream, "authorization", channel->authorization);
    pthread_mutex_unlock(&channel->mutex);
}

// Opens a call. A unary call sends its message, `bytes`, in the first batch.
static struct rpc_stream *stream_start(struct rpc_channel *channel, const char *method, int64_t timeout_ms,
                                       bool wait_for_ready, const uint8_t *bytes, size_t size, bool unary)
{
    struct rpc_stream *stream = mem_alloc(sizeof *stream);
    net_object_opened();
    stream->channel = channel;
    stream->timeout_ms = timeout_ms;
    if (wait_for_ready)
        stream->metadata_flags =
            GRPC_INITIAL_METADATA_WAIT_FOR_READY | GRPC_INITIAL_METADATA_WAIT_FOR_READY_EXPLICITLY_SET;
    stream->on_received = (struct net_tag){stream_on_received, stream};
    stream->on_sent = (struct net_tag){stream_on_sent, stream};
    stream->on_ended = (struct net_tag){stream_on_ended, stream};
    grpc_metadata_array_init(&stream->initial);
    grpc_metadata_array_init(&stream->trailing);
    stream->details = grpc_empty_slice();
    stream_set_metadata(stream, channel);
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
    stream_start_batch(stream, &op, 1, &stream->on_ended);
    if (unary) net_outbox_add(&stream->outbox, bytes, size);
    stream->half_closing = unary;
    stream_send_next(stream);
    stream_receive_next(stream);
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
        stream_send_next(stream);
    }
    pthread_mutex_unlock(&stream->mutex);
}

void rpc_stream_give(struct rpc_stream *stream, struct rpc_bytes *bytes)
{
    pthread_mutex_lock(&stream->mutex);
    if (stream->core && !stream->ended && !stream->cancelled && !stream->half_closing) {
        net_outbox_give(&stream->outbox, bytes);
        stream_send_next(stream);
    }
    pthread_mutex_unlock(&stream->mutex);
    rpc_bytes_free(bytes);
}

void rpc_stream_half_close(struct rpc_stream *stream)
{
    pthread_mutex_lock(&stream->mutex);
    stream->half_closing = true;
    stream_send_next(stream);
    pthread_mutex_unlock(&stream->mutex);
}

static bool text_starts_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

// Returns a remedy for C-core's text on a failed connection.
static const char *connect_advice(const char *text)
{
    static const struct {
        const char *part, *advice;
    } known[] = {
        {"certificate verify failed", "its certificate has expired or is of an authority that is not trusted here"},
        {"is not in peer certificate", "its certificate is for other hosts"},
        {"wrong version number", "it does not use TLS, this client does"},
        {"Socket closed", "it ended the connection at the start; does it want TLS or another client certificate?"},
        {"Endpoint read failed", "it ended the connection at the start; does it want another client certificate?"},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strstr(text, known[i].part)) return known[i].advice;
    }
    return "is the server running there?";
}

// Returns the status of the ended call. It replaces the most frequent texts of C-core by sentences with a remedy.
static enum status stream_status(const struct rpc_stream *stream)
{
    const char *target = stream->channel->target, *text = stream->message;
    if (stream->code == GRPC_STATUS_OK) return STATUS_OK;
    if (stream->code == GRPC_STATUS_UNAVAILABLE &&
        (text_starts_with(text, "failed to connect") || text_starts_with(text, "DNS resolution failed") ||
         text_starts_with(text, "empty address list")))
        return status_fail(STATUS_UNAVAILABLE, "cannot reach %s: %s (%s)", target, connect_advice(text), text);
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
            stream_receive_next(stream);
            pthread_mutex_unlock(&stream->mutex);
            *bytes_p = message->bytes;
            free(message);
            return STATUS_OK;
        }
        if (stream->ended && (stream->read_all || stream->cancelled)) break;
        pthread_cond_wait(&stream->changed, &stream->mutex);
    }
    enum status status = stream_status(stream);
    pthread_mutex_unlock(&stream->mutex);
    if (status == STATUS_OK) *bytes_p = (struct rpc_bytes){0};
    return status;
}

static void stream_cancel_locked(struct rpc_stream *stream)
{
    if (stream->core && !stream->ended) {
        stream->cancelled = true;
        grpc_call_cancel(stream->core, NULL);
        stream_clear_inbox(stream);
        net_outbox_clear(&stream->outbox);
    }
}

void rpc_stream_cancel(struct rpc_stream *stream)
{
    pthread_mutex_lock(&stream->mutex);
    stream_cancel_locked(stream);
    pthread_mutex_unlock(&stream->mutex);
}

void rpc_stream_close(struct rpc_stream *stream)
{
    if (!stream) return;
    pthread_mutex_lock(&stream->mutex);
    stream_cancel_locked(stream);
    stream->cancelled = true; // no further batch, even if the status was already received
    stream->closed = true;
    stream_release_and_unlock(stream);
}

enum status rpc_unary(struct rpc_channel *channel, const char *method, const uint8_t *bytes, size_t size,
                      int64_t timeout_ms, struct rpc_bytes *answer_p)
{
    struct rpc_stream *stream = stream_start(channel, method, timeout_ms, false, bytes, size, true);
    struct rpc_bytes answer, rest = {0};
    enum status status = rpc_stream_read(stream, &answer);
    if (status == STATUS_OK && !answer.data)
        status = status_fail(STATUS_INTERNAL, "%s sent no answer to %s", channel->target, method);
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
