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

// Converts a status to the gRPC status code (0..16), and a code to a status.
int rpc_code(enum status status);
enum status rpc_status(int code);

void rpc_init(void); // call it before any other function here; each call needs one rpc_shutdown()
void rpc_shutdown(void);

// Files for TLS in PEM format. A server reads them again when they change.
struct rpc_tls {
    const char *cert, *key; // certificate, followed by its issuers, and private key; a client may have neither
    const char *ca; // authorities that sign the peers' certificates; NULL at a server: clients need no certificate
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
// rpc_call_finish() only on_close is called. A handler that already runs on another thread still completes.
struct rpc_method {
    const char *path;                       // "/forepack.v1.Inference/Generate"; NULL ends the table
    void (*on_open)(struct rpc_call *call); // called when the call is accepted, before reading; may be NULL
    // Handles one message of the client. `bytes` is valid until it returns. The next message is read afterwards.
    void (*on_message)(struct rpc_call *call, const uint8_t *bytes, size_t size);
    // Handles the end of the client's messages. NULL: a call must have exactly one message, or it is refused.
    void (*on_half_close)(struct rpc_call *call);
    // Handles the last event of every call: the client is gone or its deadline has passed (`cancelled`), or the server
    // has finished the call. May be NULL.
    void (*on_close)(struct rpc_call *call, bool cancelled);
    bool open;                // open to every caller: the server's `authorise` is not called
    size_t max_message_bytes; // a larger message is not copied; 0: limit of the server
    // Handles a message above the limit, with its size and its first bytes. NULL: the call ends with EXHAUSTED.
    void (*on_oversized)(struct rpc_call *call, size_t size, const uint8_t *head, size_t head_size);
};

struct rpc_server_options {
    const char *address;              // "0.0.0.0:50051", "[::]:0", ...
    const struct rpc_method *methods; // borrowed until the server is closed
    void *context;                    // rpc_call_context() of every call
    // Called at the start of every call of `methods`, before a message is received, on the call's thread. It must not
    // block. A failure ends the call with its status and error message: no message is read and no handler runs. Health
    // and reflection are open to everyone. NULL: every caller is allowed.
    enum status (*authorise)(struct rpc_call *call);
    // `authorise` requires a key or token. Clients that have not shown one yet share a small memory budget
    // (lib/base/peer_budget.h).
    bool proof;
    const struct rpc_tls *tls; // copied; NULL: plain text
    // Older connections accept no new calls, so that clients show their certificates again.
    int64_t max_connection_age_ms;
    size_t max_message_bytes; // larger messages are refused with RESOURCE_EXHAUSTED; 0: 64 MiB
    int max_connections;      // 0: a quarter of the limit of descriptors, at most 20,000
    // 0: no bound. Connections of trusted proxies do not count. Each of their calls counts as a connection of the
    // address that it was forwarded for.
    int max_connections_per_address;
    const char *trusted_proxies; // networks of proxies, in the form of lib/base/forwarded.h; NULL: none
    int max_calls;               // open calls per connection; further calls wait at the client; 0: 16,384
    int max_shared_calls;        // calls that connections without answers may open in 2 s, together; 0: 4,096
    int idle_ms;                 // a connection without calls is closed after this time; 0: 2 minutes
    // A finished call that its client does not read is ended after this time (or up to twice this time), but only while
    // the server holds too much unread data. 0: 30 s.
    int unread_ms;
    int threads; // completion-queue threads; 0: 2
};

// Serves `methods`, health and reflection. Every service is NOT_SERVING until rpc_server_set_serving(). Returns
// UNAVAILABLE if the port is in use, and INVALID or NOT_FOUND, naming the file, if a TLS file cannot be used. With TLS,
// changed files are used for new connections. Changed files that cannot be used are logged, and the last certificate
// stays in use.
enum status rpc_server_open(const struct rpc_server_options *options, struct rpc_server **server_p);
// Reads changed TLS files now and logs the changes, instead of at the next new connection. Returns the failure if files
// cannot be used. Any thread may call.
enum status rpc_server_reload(struct rpc_server *server);
int rpc_server_port(const struct rpc_server *server); // the actual port, also with port 0
// Returns the number of times that a connection had to wait before it could open more calls. Counts for this process.
uint64_t rpc_connections_delayed(void);
// grpc.health.v1: sets the state of one service ("": of the server) and notifies its watchers.
void rpc_server_set_serving(struct rpc_server *server, const char *service, bool serving);
// Stops accepting calls, waits up to grace_ms for running calls (health watchers end immediately), then cancels the
// remaining calls. When it returns every on_close has run and no handler runs. Must not be called from a handler.
// Afterwards functions do nothing on calls that are still referenced. NULL is allowed.
void rpc_server_close(struct rpc_server *server, int grace_ms);

void *rpc_call_context(const struct rpc_call *call);
void rpc_call_set_user(struct rpc_call *call, void *user);
void *rpc_call_user(const struct rpc_call *call);
void rpc_call_ref(struct rpc_call *call);
void rpc_call_unref(struct rpc_call *call);
const char *rpc_call_path(const struct rpc_call *call);
const char *rpc_call_peer(const struct rpc_call *call);      // address, for logs
const char *rpc_call_peer_name(const struct rpc_call *call); // name in the client's verified certificate, or NULL
int64_t rpc_call_deadline_us(const struct rpc_call *call);   // on clock_now_us(); INT64_MAX: none
// Stores the identity that the server's `authorise` found, for the handlers. `release` frees it with the call; may be
// NULL.
void rpc_call_set_identity(struct rpc_call *call, void *identity, void (*release)(void *identity));
void *rpc_call_identity(const struct rpc_call *call); // NULL: not set
// Returns the value of a request metadata key (lower case), valid as long as the call. NULL: not sent.
const char *rpc_call_metadata(const struct rpc_call *call, const char *key);

// Takes ownership of the message within on_message. The message stays valid until the caller frees it.
struct rpc_bytes rpc_call_take_message(struct rpc_call *call);

// Queues a message to the client (copied). Returns the memory of all queued messages that the transport has not
// accepted yet, so that the caller can bound it. Messages after rpc_call_finish() are dropped.
size_t rpc_call_send(struct rpc_call *call, const uint8_t *bytes, size_t size);
void rpc_call_add_trailer(struct rpc_call *call, const char *key, const char *value); // before finish
// Returns this call's equal share of `all_bytes` (lib/base/equal_share.h) if all calls of the server together have more
// than `all_bytes` queued. Otherwise, and for a call that has ended, returns SIZE_MAX. Other calls with few queued
// bytes (about the cost of an open call in C-core) get no share. Once the total is exceeded, a finished call that its
// client does not read ends after the server's `unread_ms`.
size_t rpc_call_share(struct rpc_call *call, size_t all_bytes);
// Ends the call once all queued messages are sent. Only the first finish of a call has an effect.
void rpc_call_finish(struct rpc_call *call, enum status status, const char *message);
// Ends the call with a failure immediately, even if the client does not read. Drops queued messages that the transport
// has not accepted, and possibly trailers. Also ends a finished call that still has queued messages.
void rpc_call_abandon(struct rpc_call *call, enum status status, const char *message);

// --- client

struct rpc_channel; // connections to one target, shared by its calls
struct rpc_stream;  // one call, of any kind

enum status rpc_channel_open(const char *target, struct rpc_channel **channel_p); // plain text
// Opens a channel with TLS; `tls` NULL: plain text. Reads the files now. The server's certificate must name the host of
// `target`.
enum status rpc_channel_open_tls(const char *target, const struct rpc_tls *tls, struct rpc_channel **channel_p);
// Same, but the certificate must have the name `server_name`; NULL or "": the host of `target`.
enum status rpc_channel_open_named(const char *target, const struct rpc_tls *tls, const char *server_name,
                                   struct rpc_channel **channel_p);
// Sends "authorization: Bearer TOKEN" (copied) with later calls; NULL: none. Returns INVALID unless the token is
// printable ASCII without spaces. Any thread may call.
enum status rpc_channel_set_token(struct rpc_channel *channel, const char *token);
// Sends this header (copied) with all calls. Must be called before the first stream is opened. Returns INVALID unless
// `name` is lower case, not reserved by gRPC and not binary ("-bin"), and `value` is printable ASCII.
enum status rpc_channel_add_header(struct rpc_channel *channel, const char *name, const char *value);
void rpc_channel_close(struct rpc_channel *channel); // after its streams are closed; NULL is allowed

// Starts a call. timeout_ms 0: no timeout. With `wait_for_ready`, the call waits for a server that is down, until the
// timeout.
enum status rpc_stream_open(struct rpc_channel *channel, const char *method, int64_t timeout_ms, bool wait_for_ready,
                            struct rpc_stream **stream_p);
void rpc_stream_send(struct rpc_stream *stream, const uint8_t *bytes, size_t size); // queued, copied
void rpc_stream_give(struct rpc_stream *stream,
                     struct rpc_bytes *bytes);         // queued without a copy; leaves `bytes` empty
void rpc_stream_half_close(struct rpc_stream *stream); // ends this side's messages after the queued messages
// Blocks for the next message. STATUS_OK with data NULL: the stream ended with OK. Any other status comes from the
// server or the transport, with its error message in status_message().
enum status rpc_stream_read(struct rpc_stream *stream, struct rpc_bytes *bytes_p);
void rpc_stream_cancel(struct rpc_stream *stream); // a blocked read returns
void rpc_stream_close(struct rpc_stream *stream);  // cancels if still running; frees; does not block; NULL is allowed

// Sends one request and waits for one answer.
enum status rpc_unary(struct rpc_channel *channel, const char *method, const uint8_t *bytes, size_t size,
                      int64_t timeout_ms, struct rpc_bytes *answer_p);
