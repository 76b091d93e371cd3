// SPDX-License-Identifier: Apache-2.0
// Code shared by client and server on top of gRPC C-core: completion queues with their threads, tags, queues of
// outgoing messages, channel arguments. Private to net/ and its tests.
//
// Every batch has a tag, a member of the call that starts the batch. The thread of the completion queue calls the tag's
// function with the outcome. A call belongs to one queue and a queue has one thread, so the events of a call never
// overlap.
#pragma once

#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "lib/net/rpc.h"

#define NET_MESSAGE_BYTES ((size_t)64 << 20) // default of the largest message

// Returns the number of calls, streams, servers and channels that exist. Tests compare it with zero.
int rpc_live_objects(void);
void net_object_opened(void);
void net_object_closed(void);

// --- completion queues

struct net_tag {
    void (*fn)(void *owner, bool ok);
    void *owner;
};

struct net_queue {
    grpc_completion_queue *core;
    pthread_t thread;
};

void net_queue_open(struct net_queue *queue);
// Handles outstanding events, then ends the thread. The caller must start no further batch on the queue.
void net_queue_close(struct net_queue *queue);

// ThreadSanitizer does not see C-core's locks. net_tag_release() and net_tag_acquire() tell it that writes before the
// start of a batch happen before the handling of its event.
#ifdef __SANITIZE_THREAD__
void __tsan_acquire(void *address);
void __tsan_release(void *address);
void __tsan_ignore_thread_begin(void);
void __tsan_ignore_thread_end(void);
#define net_tag_acquire(tag) __tsan_acquire(tag)
#define net_tag_release(tag) __tsan_release(tag)
#else
#define net_tag_acquire(tag) ((void)(tag))
#define net_tag_release(tag) ((void)(tag))
#endif

// Starts a batch. The caller holds the call's lock, because C-core forbids concurrent starts on one call. Returns false
// if C-core was misused or the call is broken. Then the error is logged and no event follows.
bool net_batch_start(grpc_call *call, const grpc_op *ops, size_t n_ops, struct net_tag *tag);

// --- messages

size_t net_message_size(grpc_byte_buffer *buffer);
// Copies the first bytes of a message to `head` [room]. Returns their number, 0 for a compressed message.
size_t net_message_head(grpc_byte_buffer *buffer, uint8_t *head, size_t room);
// Copies a received message, followed by a zero byte, and destroys the buffer. `data` is NULL for a compressed message.
struct rpc_bytes net_message_read(grpc_byte_buffer *buffer);

// Returns received metadata as an array of key, value, key, value... The caller gpr_free()s the texts and free()s the
// array.
char **net_metadata_texts(const grpc_metadata_array *metadata);
void net_metadata_free(grpc_metadata_array *metadata);

// Messages that wait to be sent: C-core accepts one at a time.
struct net_outbox {
    struct net_outgoing *first, *last;
    grpc_byte_buffer *sending; // the message that C-core is sending
    size_t sending_bytes;
    size_t bytes; // total of all messages, including the message being sent
};

void net_outbox_add(struct net_outbox *outbox, const uint8_t *bytes, size_t size); // copied
void net_outbox_give(struct net_outbox *outbox, struct rpc_bytes *bytes); // takes ownership; leaves `bytes` empty
// Fills `op` with the first message. The last message is flushed to the socket, earlier ones may be buffered.
void net_outbox_start_send(struct net_outbox *outbox, grpc_op *op);
void net_outbox_end_send(struct net_outbox *outbox); // call it once the message was sent or has failed
void net_outbox_clear(struct net_outbox *outbox);    // drops the messages that are not being sent

// --- arguments

// Neither side compresses, decompresses or accepts compressed messages: C-core decompresses before any limit applies,
// so half a megabyte could become half a gigabyte. Bit 0 of the set stands for "identity".
#define NET_NO_COMPRESSION_ARGS                                                                                        \
    net_arg("grpc.per_message_compression", 0), net_arg("grpc.per_message_decompression", 0),                          \
        net_arg("grpc.compression_enabled_algorithms_bitset", 1)

// Both sides ping a silent connection and close it when no answer comes. Both sides also permit frequent pings, because
// C-core by default closes a connection with too many pings. The timeout is long because a starved or paused process
// answers late. Only a lost machine never answers.
#define NET_KEEPALIVE_ARGS                                                                                             \
    net_arg("grpc.keepalive_time_ms", 2000), net_arg("grpc.keepalive_timeout_ms", 20000),                              \
        net_arg("grpc.keepalive_permit_without_calls", 1), net_arg("grpc.http2.max_pings_without_data", 0)

grpc_arg net_arg(const char *key, int value);
