// SPDX-License-Identifier: Apache-2.0
// A thin layer over gRPC C-core that the rest of Forepack sees instead of it: servers with a table of methods, clients
// with blocking calls and streams. Messages are bytes here; protobuf-c packs and unpacks them at the callers.
//
// Threads: a server runs its own completion-queue threads and calls the handlers from them, never two at a time for
// one call. Every rpc_call_* and rpc_stream_* function may be called from any thread.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

// --- both sides

// gRPC status code (0..16) of a status and the other way round.
int rpc_code(enum status status);
enum status rpc_status(int code);

void rpc_init(void); // once per process before anything else here; counts, pairs with rpc_shutdown
void rpc_shutdown(void);

struct rpc_bytes {
    uint8_t *data; // owned by whoever was handed the struct
    size_t size;
};
void rpc_bytes_free(struct rpc_bytes *bytes);

// --- server

struct rpc_server;
struct rpc_call; // one call of a client; reference-counted

// How a method is served. Handlers run on the threads that also read the sockets: one that blocks for seconds costs
// connections (keepalive). They may hand the call to another thread (rpc_call_ref) and answer later. After
// rpc_call_finish() only on_close follows, save for an event that is under way in another thread.
struct rpc_method {
    const char *path;                       // "/forepack.v1.Inference/Generate"; NULL ends the table
    void (*on_open)(struct rpc_call *call); // call accepted, nothing read yet; may be NULL
    // One message of the client (`bytes` borrowed for the call). The next is read after this returns.
    void (*on_message)(struct rpc_call *call, const uint8_t *bytes, size_t size);
    // The client sends no more. NULL: a call is exactly one message, and one with none or several is refused for it.
    void (*on_half_close)(struct rpc_call *call);
    // The client is gone, its deadline passed, or the call was finished by us: the last event of every call.
    // `cancelled` tells the first two from the third. May be NULL.
    void (*on_close)(struct rpc_call *call, bool cancelled);
};

struct rpc_server_options {
    const char *address;              // "0.0.0.0:50051", "[::]:0", ...
    const struct rpc_method *methods; // borrowed until the server is closed
    void *context;                    // rpc_call_context() of every call
    size_t max_message_bytes;         // larger ones are refused with RESOURCE_EXHAUSTED; 0: 64 MiB
    int threads;                      // completion-queue threads; 0: 2
};

// Health and reflection are always served beside `methods`; services are NOT_SERVING until told otherwise. A port that
// is taken is STATUS_INVALID, saying which.
enum status rpc_server_open(const struct rpc_server_options *options, struct rpc_server **server_p);
// Whether HOST:PORT can be listened on, by trying it; INVALID with the reason. Needs no rpc_init().
enum status rpc_address_check(const char *address);
int rpc_server_port(const struct rpc_server *server); // what port 0 became
// grpc.health.v1: state of one service ("" is the server as a whole); wakes the watchers.
void rpc_server_set_serving(struct rpc_server *server, const char *service, bool serving);
// Stops accepting, lets running calls end for up to grace_ms (health watchers are ended at once), then cancels the
// rest. Every on_close has run when it returns, and no handler runs any more; never call it from one. Calls that others
// still hold references to are inert. NULL is fine.
void rpc_server_close(struct rpc_server *server, int grace_ms);

void *rpc_call_context(const struct rpc_call *call);
void rpc_call_set_user(struct rpc_call *call, void *user);
void *rpc_call_user(const struct rpc_call *call);
void rpc_call_ref(struct rpc_call *call);
void rpc_call_unref(struct rpc_call *call);
const char *rpc_call_path(const struct rpc_call *call);
const char *rpc_call_peer(const struct rpc_call *call);
int64_t rpc_call_deadline_us(const struct rpc_call *call); // on clock_now_us(); INT64_MAX: none
// Value of a request metadata key (lower case), or NULL; lives as long as the call.
const char *rpc_call_metadata(const struct rpc_call *call, const char *key);

// Queues a message to the client (bytes are copied). Returns the bytes that take up what is queued and not yet taken by
// the transport, so that a producer can hold back; messages after finish are dropped.
size_t rpc_call_send(struct rpc_call *call, const uint8_t *bytes, size_t size);
void rpc_call_add_trailer(struct rpc_call *call, const char *key, const char *value); // before finish
// What all calls of its server have queued together; 0 for a call that is over.
size_t rpc_call_server_queued(struct rpc_call *call);
// Ends the call after everything queued was sent. Only the first end counts.
void rpc_call_finish(struct rpc_call *call, enum status status, const char *message);
// Ends it now: what the transport has not taken yet is dropped.
void rpc_call_abandon(struct rpc_call *call, enum status status, const char *message);

// --- client

struct rpc_channel; // connections to one target, shared by its calls
struct rpc_stream;  // one call, of any kind

enum status rpc_channel_open(const char *target, struct rpc_channel **channel_p);
void rpc_channel_close(struct rpc_channel *channel); // streams must be closed before; NULL is fine

// timeout_ms 0: none. `wait_for_ready`: keep trying while the server is down (until the timeout).
enum status rpc_stream_open(struct rpc_channel *channel, const char *method, int64_t timeout_ms, bool wait_for_ready,
                            struct rpc_stream **stream_p);
void rpc_stream_send(struct rpc_stream *stream, const uint8_t *bytes, size_t size); // queued, copied
size_t rpc_stream_queued(struct rpc_stream *stream);   // bytes not yet taken by the transport
void rpc_stream_half_close(struct rpc_stream *stream); // after what is queued
// Blocks for the next message. STATUS_OK with data NULL is the good end of the stream; any other status is the
// server's (or the transport's), its sentence in status_message(). `retry_after_ms` trailers: rpc_stream_trailer.
enum status rpc_stream_read(struct rpc_stream *stream, struct rpc_bytes *bytes_p);
// After the end; NULL when absent, else good until the stream is closed.
const char *rpc_stream_trailer(struct rpc_stream *stream, const char *key);
void rpc_stream_cancel(struct rpc_stream *stream); // wakes a blocked read
void rpc_stream_close(struct rpc_stream *stream);  // cancels if still running; frees; does not block; NULL is fine

// One request, one answer.
enum status rpc_unary(struct rpc_channel *channel, const char *method, const uint8_t *bytes, size_t size,
                      int64_t timeout_ms, struct rpc_bytes *answer_p);
