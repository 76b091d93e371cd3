// SPDX-License-Identifier: Apache-2.0
// An HTTP/1.1 server (RFC 9112) on epoll, with TLS 1.2 and 1.3 by OpenSSL 3. It serves a table of routes. A request
// goes to the handler of its route when its body is complete. The handler answers immediately or later, with a whole
// response or with a stream (chunked; server-sent events).
//
// Options limit the connections in total and per address, the bytes and time of a request's head, body and unread
// response, and the bytes of all bodies together. A request that breaks the protocol is answered with 400 and its
// connection is closed. Requests with contradictory or repeated lengths never reach a handler. A body with
// Content-Encoding: gzip is decoded, within the limit of bodies; other encodings are refused with 415.
//
// A client that closes its connection, or only its sending side, ends its requests: on_close is called immediately,
// even while nothing is being sent.
//
// A route with on_body gets its body in pieces as they arrive, and a route with on_drain sends a long response in
// pieces. So a body or response of any size needs bounded memory.
//
// Threads: the server has its own threads, each with an epoll. A connection belongs to one of them. Handlers run on
// that thread and must not block. Every http_exchange function may be called from any thread. Two threads must not call
// functions of one exchange at the same time. on_close may run at the same time as these functions, and after on_close
// they do nothing. Sending needs no system call per stream: a thread that sends to many streams wakes the server's
// thread once.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/status.h"
#include "lib/http/site.h"

struct http_server;
struct http_exchange; // a request and its response; reference-counted

struct http_route {
    const char *method; // "GET", "POST"; NULL ends the table. GET serves HEAD too, and OPTIONS is answered
    const char *path;   // "/v1/models"; "/v1/models/*": everything below. The first matching row is used
    // Called when the head is complete and the body is not read yet, so that it can refuse a caller early. It may send
    // the response. May be NULL.
    void (*on_head)(struct http_exchange *x);
    // Called with the next piece of the body, which is never empty; http_body() then stays empty. The handler reports
    // with http_body_taken() that it no longer needs a piece's bytes. While more than HTTP_WINDOW_BYTES are not taken,
    // the server reads no more of the body. Pieces may come after the response has started. NULL: the body is
    // collected.
    void (*on_body)(struct http_exchange *x, const char *bytes, size_t size);
    // Called when head and body are complete, unless the response has already started.
    void (*on_request)(struct http_exchange *x);
    // Called after the socket has accepted bytes of an unfinished stream and fewer than HTTP_WINDOW_BYTES are unread.
    // May be NULL.
    void (*on_drain)(struct http_exchange *x);
    // Called once after on_head, on_body or on_request: when the socket has accepted the whole response, or when the
    // client is disconnected. The response may also be the server's own (408, 413). May be NULL.
    void (*on_close)(struct http_exchange *x, bool disconnected);
    size_t max_body_bytes; // a larger body is refused with 413 before it is read; 0: limit of the server
};

enum { HTTP_WINDOW_BYTES = 256 << 10 };

struct http_tls_files {
    const char *cert, *key, *client_ca; // PEM; client_ca NULL: clients need no certificate
};

// A member that is 0 has the default in brackets.
struct http_server_options {
    const char *host;                // "127.0.0.1", "[::1]", a name: see lib/base/address.h
    int port;                        // 0: a free port
    const struct http_route *routes; // borrowed until the server is closed
    void *context;                   // http_context() of every exchange
    // NULL: plain text. Changed files are read again. Files that cannot be used are logged, and the last files stay in
    // use.
    const struct http_tls_files *tls;
    int threads;         // [1]
    int max_connections; // [20000] at this number a new connection replaces the longest-idle connection,
                         // or is closed if none is idle; raises the limit of descriptors to this number
    // [0: no bound] A connection of a trusted proxy is not counted. Each of its requests counts, while it lasts, as a
    // connection of the client's address that the proxy names.
    int max_connections_per_address;
    const char *trusted_proxies; // [none] networks of proxies, in the form of lib/base/forwarded.h
    struct http_site site;       // web pages that may use the server
    // Clients must show a key (http_prove()). Until then they share a small memory budget (lib/base/peer_budget.h).
    bool proof;
    size_t max_head_bytes; // [32 KiB]
    size_t max_body_bytes; // [64 MiB]
    // [four times max_body_bytes, at least 256 MiB] bytes of all bodies, unfinished heads and pipelined requests. Above
    // this limit, the head or body of the connection with the most bytes is refused with 503. If the connection's
    // request is already being handled or answered, its bytes are pipelined requests, and it is closed.
    size_t max_bodies_bytes;
    size_t max_unread_bytes; // [16 MiB] unread bytes of one stream; a client that leaves more unread is disconnected
    // [256 MiB] unread bytes of all responses together. Above this limit, a stream with more than an equal share
    // (lib/base/equal_share.h) is disconnected.
    size_t max_all_unread_bytes;
    int64_t head_ms; // [10000] time from accepting, or from a request's first byte, until the head is complete
    // [30000] time limit for each KiB of a body, and for each 16 KiB (or the last bytes) of an unread response
    int64_t stall_ms;
    int64_t idle_ms;      // [120000] time between two requests
    int64_t tls_check_ms; // [1000] shortest time between two checks of the TLS files
    // [0: no bound] A connection older than this closes after its next response, so that clients show their
    // certificates again.
    int64_t max_connection_age_ms;
    // Writes the body of the server's own error responses (400, 403, 404, 405, 408, 413, 415, 417, 421, 429, 431, 501,
    // 503, 505), JSON or text, to `body` [room] and returns its size, at most `room`. `path` is the path of the
    // request, or the start of its target if the head could not be parsed, or "" if neither is known. error_body NULL:
    // the server sends a line of text.
    size_t (*error_body)(const char *path, int status, const char *sentence, char *body, size_t room);
    const char *error_type; // content type of these bodies
    // Writes further headers of the responses that the server sends without calling on_head, such as 400 and 413: lines
    // like "x-request-id: 1\r\n" to `lines` [room]. Returns the size of the lines. `x` is NULL if the head of the
    // request could not be parsed. own_headers NULL: no such headers.
    size_t (*own_headers)(const struct http_exchange *x, char *lines, size_t room);
};

// Opens a server. Returns UNAVAILABLE if the address is in use, INVALID if a TLS file is unusable, and NOT_FOUND if it
// is absent. The error message names the address or file.
enum status http_server_open(const struct http_server_options *options, struct http_server **server_p);
int http_server_port(const struct http_server *server);
// Releases the port and closes idle connections. Every response that starts later closes its connection.
void http_server_stop_accepting(struct http_server *server);
// Waits up to grace_ms for open exchanges, then disconnects their clients. When it returns every on_close has run.
// Exchanges that are still referenced stay valid. Must not be called from a handler. NULL is allowed.
void http_server_close(struct http_server *server, int grace_ms);
// Reads changed TLS files now and logs the changes, instead of at the next new connection. Returns the failure if files
// cannot be used. Any thread may call.
enum status http_server_reload(struct http_server *server);
enum { HTTP_STATUS_CLASSES = 6 };
struct http_server_status {
    int64_t connections, exchanges;          // open at present
    size_t unread_bytes, body_bytes;         // response bytes that sockets have not accepted; bytes of bodies and heads
    uint64_t accepted, refused;              // connections so far
    uint64_t requests;                       // requests so far whose head was complete
    uint64_t responses[HTTP_STATUS_CLASSES]; // by the first digit of the status
    uint64_t received_bytes, sent_bytes;     // of heads and bodies, without TLS
    uint64_t handshakes_failed;              // TLS handshakes
};
void http_server_get_status(struct http_server *server, struct http_server_status *status);

// --- the request. Texts are valid while the exchange is referenced.
void *http_context(const struct http_exchange *x);
struct http_server *http_server_of(const struct http_exchange *x); // may be called in a handler
void http_set_user(struct http_exchange *x, void *user);
void *http_user(const struct http_exchange *x);
const char *http_method(const struct http_exchange *x);
const char *http_path(const struct http_exchange *x);                     // see struct http_head
const char *http_query(const struct http_exchange *x);                    // as it was sent, without '?'; "": none
const char *http_header(const struct http_exchange *x, const char *name); // the first, in any letter case; NULL: none
void http_prove(struct http_exchange *x); // call it in on_head: the client has shown a key
// Returns the next header of this name. `value` is the result of http_header() or of the previous call. NULL: no
// further header.
const char *http_header_after(const struct http_exchange *x, const char *name, const char *value);
const char *http_body(const struct http_exchange *x, size_t *size_p); // NUL-terminated; valid from on_request on
void http_body_free(struct http_exchange *x); // call it after parsing: until then the body counts in max_bodies_bytes
void http_body_taken(struct http_exchange *x, size_t size); // only for routes with on_body
void http_ref(struct http_exchange *x);
void http_unref(struct http_exchange *x);

// --- the response. After the exchange has closed, these functions do nothing. Starting a response twice, or sending
// after its end, has no effect either. HEAD is answered like GET; the server leaves the body out.

// Adds a header. Must be called before the response starts. Replaces control characters by blanks.
void http_add_header(struct http_exchange *x, const char *name, const char *value);
void http_respond(struct http_exchange *x, int status, const char *content_type, const void *body, size_t size);
// Returns true if a whole response of `size` bytes stays within max_all_unread_bytes, or within an equal share of it. A
// handler refuses the request otherwise.
bool http_response_fits(struct http_exchange *x, size_t size);
void http_stream_begin(struct http_exchange *x, int status, const char *content_type);
// Sends one chunk; `size` 0 sends none. Returns the bytes of this response that the socket has not taken yet.
size_t http_stream_send(struct http_exchange *x, const void *bytes, size_t size);
void http_stream_end(struct http_exchange *x);
void http_stream_abort(struct http_exchange *x); // disconnects, so that the client sees that the stream is incomplete

// --- requests of the process itself, which come from no connection. Their handlers answer them like other requests.
struct http_local {
    const char *method, *path;
    char *body; // [size + 1] NUL-terminated; the exchange takes ownership
    size_t size;
    // Called once, on any thread, with the whole response, which is valid during the call. Must not block, and must
    // not call functions of the exchange. A stream is answered with status 500 and no body.
    void (*respond)(void *arg, int status, const char *body, size_t size);
    void *arg;
};
// Returns a request that a route of the server will handle. on_head is not called. `user` is http_user(). Returns NULL
// if no route has the method and path; the body is freed.
struct http_exchange *http_local_open(struct http_server *server, const struct http_local *request, void *user);
void http_local_start(struct http_exchange *x); // calls on_request
// Ends the request: calls on_close, and frees the exchange once nothing else references it. `respond` is not called
// afterwards. An unanswered request counts as disconnected.
void http_local_close(struct http_exchange *x);
