// SPDX-License-Identifier: Apache-2.0
// A thin layer over gRPC C-core: servers with a table of methods, clients with blocking calls and streams. No other
// folder uses gRPC. Messages are bytes here; the callers pack and unpack them with protobuf-c.
//
// Threads: a server has its own completion-queue threads and calls the handlers on them, one at a time for each call.
// Every rpc_call_* and rpc_stream_* function may be called from any thread.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/status.h"

// --- both sides

// The gRPC status code (0..16) of a status, and the status of a code.
int rpc_code(enum status status);
enum status rpc_status(int code);

void rpc_init(void); // before any other function here; counted, each call needs one rpc_shutdown()
void rpc_shutdown(void);

// Files of TLS, in PEM; a server reads them again when they change.
struct rpc_tls {
    const char *cert, *key; // certificates, the own one first, and its private key; a client may have neither
    const char *ca;         // authorities that sign the peers' certificates; NULL, server: clients need no certificate
};

struct rpc_bytes {
    uint8_t *data; // owned by the receiver of the struct
    size_t size;
};
void rpc_bytes_free(struct rpc_bytes *bytes);

// --- server

struct rpc_server;
struct rpc_call; // one call of a client; reference-counted

// The handlers of a method. They run on the threads that read the sockets: a handler that blocks for seconds makes
// keepalive close connections. A handler may pass the call to another thread (rpc_call_ref) that answers later. After
// rpc_call_finish() only on_close follows, apart from an event that already runs on another thread.
struct rpc_method {
    const char *path;                       // "/forepack.v1.Inference/Generate"; NULL ends the table
    void (*on_open)(struct rpc_call *call); // accepted, nothing read yet; may be NULL
    // One message of the client; `bytes` are valid until it returns. The next message is read afterwards.
    void (*on_message)(struct rpc_call *call, const uint8_t *bytes, size_t size);
    // The client sends no more messages. NULL: a call has exactly one message, and any other call is refused.
    void (*on_half_close)(struct rpc_call *call);
    // The last event of every call: the client is gone or its deadline has passed (`cancelled`), or the server has
    // finished the call. May be NULL.
    void (*on_close)(struct rpc_call *call, bool cancelled);
    bool open;                // to every caller: `authorise` of the server is not asked
    size_t max_message_bytes; // a larger message is not copied; 0: as the server
    // Such a message of `size` bytes, with its first bytes. NULL: the call ends with EXHAUSTED.
    void (*on_oversized)(struct rpc_call *call, size_t size, const uint8_t *head, size_t head_size);
};

struct rpc_server_options {
    const char *address;              // "0.0.0.0:50051", "[::]:0", ...
    const struct rpc_method *methods; // borrowed until the server is closed
    void *context;                    // rpc_call_context() of every call
    // Asked at the start of every call of `methods`, before a message is received, on the call's thread; must not
    // block. A failure, with its sentence, ends the call: its message is not read and none of its handlers runs. Health
    // and reflection are open to everyone. NULL: every caller is allowed.
    enum status (*authorise)(struct rpc_call *call);
    // `authorise` requires a key or token. Clients that have not shown theirs share a small budget of memory
    // (lib/base/peer_budget.h).
    bool proof;
    const struct rpc_tls *tls;     // copied; NULL: plain text
    int64_t max_connection_age_ms; // older connections take no new calls, so that a client shows its certificate again
    size_t max_message_bytes;      // larger messages are refused with RESOURCE_EXHAUSTED; 0: 64 MiB
    int max_connections;           // 0: a quarter of the limit of descriptors, at most 20,000
    int max_connections_per_address; // 0: no bound
    int max_calls;                   // at once on a connection, further ones wait at the client; 0: 16,384
    int idle_ms;                     // without calls a connection is closed after this time; 0: 2 minutes
    int unread_ms; // once too much is unread, a finished call has one to two times as long to be read; 0: 30 s
    int threads;   // completion-queue threads; 0: 2
};

// Serves `methods`, health and reflection. Every service is NOT_SERVING until rpc_server_set_serving(). UNAVAILABLE
// when the port is in use; INVALID or NOT_FOUND when a file of TLS cannot be used; the sentence names it. With TLS,
// files that change are used for new connections; those that cannot be used are logged, and the last certificate stays.
enum status rpc_server_open(const struct rpc_server_options *options, struct rpc_server **server_p);
// Looks at the files of TLS now and logs what has changed, which happens at each new connection otherwise. Any thread.
void rpc_server_reload(struct rpc_server *server);
int rpc_server_port(const struct rpc_server *server); // the actual port, also with port 0
// grpc.health.v1: sets the state of one service ("": of the server) and notifies its watchers.
void rpc_server_set_serving(struct rpc_server *server, const char *service, bool serving);
// Stops accepting, waits up to grace_ms for running calls (health watchers end at once), then cancels the remaining
// ones. When it returns every on_close has run and no handler runs. Not to be called from a handler. Calls that are
// still referenced ignore every function. NULL is allowed.
void rpc_server_close(struct rpc_server *server, int grace_ms);

void *rpc_call_context(const struct rpc_call *call);
void rpc_call_set_user(struct rpc_call *call, void *user);
void *rpc_call_user(const struct rpc_call *call);
void rpc_call_ref(struct rpc_call *call);
void rpc_call_unref(struct rpc_call *call);
const char *rpc_call_path(const struct rpc_call *call);
const char *rpc_call_peer(const struct rpc_call *call);      // address, for logs
const char *rpc_call_peer_name(const struct rpc_call *call); // name in its verified certificate; NULL: it has none
int64_t rpc_call_deadline_us(const struct rpc_call *call);   // on clock_now_us(); INT64_MAX: none
// The caller as the server's `authorise` identified it, for the handlers. `release` frees it with the call; may be
// NULL.
void rpc_call_set_identity(struct rpc_call *call, void *identity, void (*release)(void *identity));
void *rpc_call_identity(const struct rpc_call *call); // NULL: not set
// Value of a request metadata key (lower case), valid as long as the call; NULL: not sent.
const char *rpc_call_metadata(const struct rpc_call *call, const char *key);

// Within on_message: the message itself. It stays valid until the caller frees it.
struct rpc_bytes rpc_call_take_message(struct rpc_call *call);

// Queues a message to the client (copied). Returns the memory of all queued messages that the transport has not
// accepted yet, so that the caller can bound it. Messages after rpc_call_finish() are dropped.
size_t rpc_call_send(struct rpc_call *call, const uint8_t *bytes, size_t size);
void rpc_call_add_trailer(struct rpc_call *call, const char *key, const char *value); // before finish
// An equal share of `all_bytes` (lib/base/equal_share.h) for this call and each other one whose queued bytes are not
// small, once all calls of the server together have more queued; SIZE_MAX until then, and for a call that has ended.
// Small is about as much as C-core takes for an open call. From then on, a finished call that its client does not read
// is ended after `unread_ms` of the server.
size_t rpc_call_share(struct rpc_call *call, size_t all_bytes);
// Ends the call once all queued messages are sent. Only the first finish of a call has an effect.
void rpc_call_finish(struct rpc_call *call, enum status status, const char *message);
// Ends the call with a failure at once, also when the client does not read: queued messages that the transport has not
// accepted are dropped, and trailers may be. A finished call with such messages ends so, too.
void rpc_call_abandon(struct rpc_call *call, enum status status, const char *message);

// --- client

struct rpc_channel; // connections to one target, shared by its calls
struct rpc_stream;  // one call, of any kind

enum status rpc_channel_open(const char *target, struct rpc_channel **channel_p); // plain text
// `tls` NULL: plain text. The files are read here; the server's certificate must name the host of `target`.
enum status rpc_channel_open_tls(const char *target, const struct rpc_tls *tls, struct rpc_channel **channel_p);
// Later calls carry "authorization: Bearer TOKEN" (copied); NULL: none. INVALID unless the token is printable ASCII
// without spaces. Any thread.
enum status rpc_channel_set_token(struct rpc_channel *channel, const char *token);
// Later calls carry this header, too (copied). Before the first stream is opened. INVALID unless `name` is lower case,
// not one of gRPC's own and not binary ("-bin"), and `value` printable ASCII.
enum status rpc_channel_add_header(struct rpc_channel *channel, const char *name, const char *value);
void rpc_channel_close(struct rpc_channel *channel); // after its streams are closed; NULL is allowed

// timeout_ms 0: no timeout. `wait_for_ready`: while the server is down, connecting is retried until the timeout.
enum status rpc_stream_open(struct rpc_channel *channel, const char *method, int64_t timeout_ms, bool wait_for_ready,
                            struct rpc_stream **stream_p);
void rpc_stream_send(struct rpc_stream *stream, const uint8_t *bytes, size_t size); // queued, copied
void rpc_stream_give(struct rpc_stream *stream,
                     struct rpc_bytes *bytes);         // queued without a copy; `bytes` is empty then
size_t rpc_stream_queued(struct rpc_stream *stream);   // bytes that the transport has not accepted yet
void rpc_stream_half_close(struct rpc_stream *stream); // once all queued messages are sent
// Blocks for the next message. STATUS_OK with data NULL: the stream ended with OK. Any other status is that of the
// server or of the transport, with its sentence in status_message().
enum status rpc_stream_read(struct rpc_stream *stream, struct rpc_bytes *bytes_p);
// A trailer of the ended stream, valid until the stream is closed; NULL: not sent.
const char *rpc_stream_trailer(struct rpc_stream *stream, const char *key);
void rpc_stream_cancel(struct rpc_stream *stream); // a blocked read returns
void rpc_stream_close(struct rpc_stream *stream);  // cancels if still running; frees; does not block; NULL is allowed

// One request, one answer.
enum status rpc_unary(struct rpc_channel *channel, const char *method, const uint8_t *bytes, size_t size,
                      int64_t timeout_ms, struct rpc_bytes *answer_p);
