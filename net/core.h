// SPDX-License-Identifier: Apache-2.0
// What client and server share over gRPC C-core, private to net/ and its tests: completion queues with their thread,
// tags, the queue of outgoing messages, channel arguments.
//
// Every batch carries a tag that lies inside the call it belongs to; the queue's thread runs the tag's function with
// the outcome. A call is bound to one queue and a queue has one thread, so a call's events never overlap.
#pragma once

#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "net/rpc.h"

#define NET_MESSAGE_BYTES ((size_t)64 << 20) // largest message where nobody says otherwise

// Calls, streams, servers and channels that exist now: tests hold it against zero.
int rpc_live_objects(void);
void net_object_born(void);
void net_object_gone(void);

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
// Runs what is outstanding, then ends the thread. No batch may be started on the queue any more.
void net_queue_close(struct net_queue *queue);

// C-core's own locks are invisible to ThreadSanitizer: what was written before a batch is seen by whoever handles it.
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

// Starts a batch; C-core wants the starts on one call to be one after another (the callers' lock). False is a bug of
// ours or a broken call; it is logged, and no event will come.
bool net_batch_start(grpc_call *call, const grpc_op *ops, size_t n_ops, struct net_tag *tag);

// --- messages

// Bytes of a received message, which is destroyed. There is a zero byte after them.
struct rpc_bytes net_message_take(grpc_byte_buffer *buffer);

// Metadata that C-core received, as keys and values by turns; gpr_free() the texts, free() the array of them.
char **net_metadata_texts(const grpc_metadata_array *metadata);
void net_metadata_free(grpc_metadata_array *metadata);

// Messages waiting to be sent: C-core takes one at a time.
struct net_outbox {
    struct net_outgoing *first, *last;
    grpc_byte_buffer *sending; // with C-core now
    size_t sending_bytes;
    size_t bytes; // that all of them take, with the one being sent
};

void net_outbox_add(struct net_outbox *outbox, const uint8_t *bytes, size_t size);
// Fills `op` with the first message; the last one of the queue is written out at once, the others may wait for it.
void net_outbox_take(struct net_outbox *outbox, grpc_op *op);
void net_outbox_sent(struct net_outbox *outbox);  // the one taken is done with
void net_outbox_clear(struct net_outbox *outbox); // all that were not taken

// --- arguments

// Both sides ping a silent connection and give it up; a server must allow what our clients do, or it throws them out.
// The answer may take long: a peer that is starved or paused for seconds is not gone, one whose machine went is.
#define NET_KEEPALIVE_ARGS                                                                                             \
    net_arg("grpc.keepalive_time_ms", 2000), net_arg("grpc.keepalive_timeout_ms", 20000),                              \
        net_arg("grpc.keepalive_permit_without_calls", 1), net_arg("grpc.http2.max_pings_without_data", 0)

grpc_arg net_arg(const char *key, int value);
