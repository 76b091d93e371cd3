// SPDX-License-Identifier: Apache-2.0
// Implements completion queues, messages, status codes, start and end of C-core, and its log.
#include "lib/net/core.h"

#include <grpc/byte_buffer_reader.h>
#include <grpc/slice.h>
#include <grpc/support/log.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/thread.h"

static atomic_int live_objects;

int rpc_live_objects(void)
{
    return atomic_load(&live_objects);
}

void net_object_opened(void)
{
    atomic_fetch_add(&live_objects, 1);
}

void net_object_closed(void)
{
    atomic_fetch_sub(&live_objects, 1);
}

// --- status codes

static const int codes[STATUS_COUNT] = {
    [STATUS_OK] = GRPC_STATUS_OK,
    [STATUS_INVALID] = GRPC_STATUS_INVALID_ARGUMENT,
    [STATUS_NOT_FOUND] = GRPC_STATUS_NOT_FOUND,
    [STATUS_EXISTS] = GRPC_STATUS_ALREADY_EXISTS,
    [STATUS_MISMATCH] = GRPC_STATUS_FAILED_PRECONDITION,
    [STATUS_OUT_OF_RANGE] = GRPC_STATUS_OUT_OF_RANGE,
    [STATUS_EXHAUSTED] = GRPC_STATUS_RESOURCE_EXHAUSTED,
    [STATUS_KEY_LIMIT] = GRPC_STATUS_RESOURCE_EXHAUSTED,
    [STATUS_UNAVAILABLE] = GRPC_STATUS_UNAVAILABLE,
    [STATUS_DEADLINE] = GRPC_STATUS_DEADLINE_EXCEEDED,
    [STATUS_CANCELLED] = GRPC_STATUS_CANCELLED,
    [STATUS_UNAUTHENTICATED] = GRPC_STATUS_UNAUTHENTICATED,
    [STATUS_DENIED] = GRPC_STATUS_PERMISSION_DENIED,
    [STATUS_UNSUPPORTED] = GRPC_STATUS_UNIMPLEMENTED,
    [STATUS_DATA] = GRPC_STATUS_DATA_LOSS,
    [STATUS_INTERNAL] = GRPC_STATUS_INTERNAL,
};

int rpc_code(enum status status)
{
    return (unsigned)status < STATUS_COUNT ? codes[status] : GRPC_STATUS_INTERNAL;
}

enum status rpc_status(int code)
{
    for (int i = 0; i < STATUS_COUNT; i++) {
        if (codes[i] == code) return (enum status)i;
    }
    switch (code) { // codes that our servers never send
    case GRPC_STATUS_ABORTED: return STATUS_UNAVAILABLE;
    default: return STATUS_INTERNAL;
    }
}

// --- start, end, log

// Logs C-core's lines as debug output, because callers already report these errors (a lost peer, a port in use). The
// line with which C-core ends the process stays an error.
static void net_log_grpc(gpr_log_func_args *args)
{
    bool fatal = strncmp(args->message, "assertion failed", strlen("assertion failed")) == 0;
    log_event(fatal ? LOG_ERROR : LOG_DEBUG, "grpc_logged", LOG_FIELD("file", args->file),
              LOG_FIELD("line", args->line), LOG_FIELD("message", args->message));
}

void rpc_init(void)
{
    gpr_set_log_function(net_log_grpc);
    grpc_init();
}

void rpc_shutdown(void)
{
    grpc_shutdown();
}

// --- completion queues

static void *net_queue_run(void *core)
{
    for (;;) {
        grpc_event event = grpc_completion_queue_next(core, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
        if (event.type == GRPC_QUEUE_SHUTDOWN) return NULL;
        struct net_tag *tag = event.tag;
        net_tag_acquire(tag);
        tag->fn(tag->owner, event.success != 0);
    }
}

void net_queue_open(struct net_queue *queue)
{
    queue->core = grpc_completion_queue_create_for_next(NULL);
    thread_start(&queue->thread, "grpc", net_queue_run, queue->core);
}

void net_queue_close(struct net_queue *queue)
{
    grpc_completion_queue_shutdown(queue->core);
    pthread_join(queue->thread, NULL);
    grpc_completion_queue_destroy(queue->core);
}

bool net_batch_start(grpc_call *call, const grpc_op *ops, size_t n_ops, struct net_tag *tag)
{
    net_tag_release(tag);
    grpc_call_error error = grpc_call_start_batch(call, ops, n_ops, tag, NULL);
    if (error == GRPC_CALL_OK) return true;
    log_event(LOG_ERROR, "grpc_batch_refused", LOG_FIELD("reason", grpc_call_error_to_string(error)));
    return false;
}

// --- messages

size_t net_message_size(grpc_byte_buffer *buffer)
{
    return grpc_byte_buffer_length(buffer);
}

size_t net_message_head(grpc_byte_buffer *buffer, uint8_t *head, size_t room)
{
    grpc_byte_buffer_reader reader;
    if (buffer->data.raw.compression != GRPC_COMPRESS_NONE || !grpc_byte_buffer_reader_init(&reader, buffer)) return 0;
    size_t n = 0;
    for (grpc_slice *slice; n < room && grpc_byte_buffer_reader_peek(&reader, &slice);) {
        size_t part = GRPC_SLICE_LENGTH(*slice) < room - n ? GRPC_SLICE_LENGTH(*slice) : room - n;
        memcpy(head + n, GRPC_SLICE_START_PTR(*slice), part);
        n += part;
    }
    grpc_byte_buffer_reader_destroy(&reader);
    return n;
}

struct rpc_bytes net_message_read(grpc_byte_buffer *buffer)
{
    struct rpc_bytes bytes = {0};
    grpc_byte_buffer_reader reader;
    bool compressed = buffer->data.raw.compression != GRPC_COMPRESS_NONE; // see NET_NO_COMPRESSION_ARGS
    if (!compressed && grpc_byte_buffer_reader_init(&reader, buffer)) {
        bytes.data = mem_resize(NULL, grpc_byte_buffer_length(buffer) + 1, 1);
        for (grpc_slice *slice; grpc_byte_buffer_reader_peek(&reader, &slice); bytes.size += GRPC_SLICE_LENGTH(*slice))
            memcpy(bytes.data + bytes.size, GRPC_SLICE_START_PTR(*slice), GRPC_SLICE_LENGTH(*slice));
        bytes.data[bytes.size] = 0;
        grpc_byte_buffer_reader_destroy(&reader);
    }
    grpc_byte_buffer_destroy(buffer);
    return bytes;
}

void rpc_bytes_free(struct rpc_bytes *bytes)
{
    free(bytes->data);
    *bytes = (struct rpc_bytes){0};
}

char **net_metadata_texts(const grpc_metadata_array *metadata)
{
    char **texts = mem_alloc_array(2 * metadata->count + 1, sizeof *texts);
    for (size_t i = 0; i < metadata->count; i++) {
        texts[2 * i] = grpc_slice_to_c_string(metadata->metadata[i].key);
        texts[2 * i + 1] = grpc_slice_to_c_string(metadata->metadata[i].value);
    }
    return texts;
}

void net_metadata_free(grpc_metadata_array *metadata)
{
#ifdef __SANITIZE_THREAD__ // C-core's thread allocated it, under locks that ThreadSanitizer does not see
    __tsan_ignore_thread_begin();
#endif
    grpc_metadata_array_destroy(metadata);
#ifdef __SANITIZE_THREAD__
    __tsan_ignore_thread_end();
#endif
}

struct net_outgoing {
    struct net_outgoing *next;
    grpc_byte_buffer *buffer;
    size_t size;
};

// Overhead of a queued message in addition to its bytes, including C-core's. It counts because most messages are small.
enum { MESSAGE_OVERHEAD_BYTES = 320 };

static void outbox_append(struct net_outbox *outbox, grpc_slice slice)
{
    struct net_outgoing *message = mem_alloc(sizeof *message);
    message->buffer = grpc_raw_byte_buffer_create(&slice, 1);
    message->size = GRPC_SLICE_LENGTH(slice) + MESSAGE_OVERHEAD_BYTES;
    grpc_slice_unref(slice);
    if (outbox->first)
        outbox->last->next = message;
    else
        outbox->first = message;
    outbox->last = message;
    outbox->bytes += message->size;
}

void net_outbox_add(struct net_outbox *outbox, const uint8_t *bytes, size_t size)
{
    outbox_append(outbox, grpc_slice_from_copied_buffer(size ? (const char *)bytes : "", size));
}

void net_outbox_give(struct net_outbox *outbox, struct rpc_bytes *bytes)
{
    outbox_append(outbox, grpc_slice_new(bytes->data, bytes->size, free));
    *bytes = (struct rpc_bytes){0};
}

void net_outbox_start_send(struct net_outbox *outbox, grpc_op *op)
{
    struct net_outgoing *message = outbox->first;
    outbox->first = message->next;
    outbox->sending = message->buffer;
    outbox->sending_bytes = message->size;
    free(message);
    *op = (grpc_op){.op = GRPC_OP_SEND_MESSAGE, .flags = outbox->first ? GRPC_WRITE_BUFFER_HINT : 0};
    op->data.send_message.send_message = outbox->sending;
}

void net_outbox_end_send(struct net_outbox *outbox)
{
    if (!outbox->sending) return;
    grpc_byte_buffer_destroy(outbox->sending);
    outbox->sending = NULL;
    outbox->bytes -= outbox->sending_bytes;
}

void net_outbox_clear(struct net_outbox *outbox)
{
    while (outbox->first) {
        struct net_outgoing *message = outbox->first;
        outbox->first = message->next;
        outbox->bytes -= message->size;
        grpc_byte_buffer_destroy(message->buffer);
        free(message);
    }
}

grpc_arg net_arg(const char *key, int value)
{
    return (grpc_arg){.type = GRPC_ARG_INTEGER, .key = (char *)key, .value.integer = value};
}
