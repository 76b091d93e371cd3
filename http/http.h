// SPDX-License-Identifier: Apache-2.0
// An HTTP/1.1 server (RFC 9112) on epoll, with TLS 1.2 and 1.3 by OpenSSL 3. It serves a table of routes: requests
// whose body is complete go to a handler, which answers at once or later, whole or as a stream (chunked; server-sent
// events).
//
// Bounds, all of them options: connections, of all and of one address; bytes and time of a request's head, body and
// unread response; bytes of all bodies together. A request that breaks the protocol is answered with 400 and closes
// its connection; requests in which lengths contradict each other or are given twice are never forwarded.
//
// Threads: the server has its own threads, each with an epoll; a connection belongs to one of them. Handlers run there
// and must not block. Every http_exchange function may be called from any thread. The functions of one exchange must
// not be called at the same time by two threads.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct http_server;
struct http_exchange; // a request and its response; reference-counted

struct http_route {
    const char *method; // "GET", "POST"; NULL ends the table. GET serves HEAD too, and OPTIONS is answered
    const char *path;   // "/v1/models"; "/v1/models/*": everything below
    // The head is there, the body not: the place to refuse a caller before the body is read. May answer. NULL: none.
    void (*on_head)(struct http_exchange *x);
    void (*on_request)(struct http_exchange *x); // head and body are complete
    // The last event of every exchange with on_head or on_request: it was answered, or the client is gone
    // (`disconnected`; a client that closes only its sending side counts as gone). May be NULL.
    void (*on_close)(struct http_exchange *x, bool disconnected);
    size_t max_body_bytes; // a larger body is refused with 413 before it is read; 0: as the server
};

struct http_tls_files {
    const char *cert, *key, *client_ca; // PEM; client_ca NULL: clients need no certificate
};

// Zeros take the default in brackets.
struct http_server_options {
    const char *host;                 // "127.0.0.1", "0.0.0.0", "::"
    int port;                         // 0: a free port
    const struct http_route *routes;  // borrowed until the server is closed
    void *context;                    // http_context() of every exchange
    const struct http_tls_files *tls; // NULL: plain. Files that change are read again; broken ones are logged, not used
    int threads;                      // [1]
    int max_connections;              // [20000] further ones are closed at once
    int max_connections_per_address;  // [0: no bound]
    size_t max_head_bytes;            // [32 KiB]
    size_t max_body_bytes;            // [64 MiB]
    size_t max_bodies_bytes;          // [256 MiB] of all bodies being received; further requests are answered with 503
    size_t max_unread_bytes;          // [16 MiB] of one response; a client that leaves more unread is disconnected
    int64_t head_ms;                  // [10000] from accepting, or from a request's first byte, until its head is there
    int64_t stall_ms;                 // [30000] without progress of a body or of an unread response
    int64_t idle_ms;                  // [120000] between two requests
    // The body of error responses that the server makes itself (400, 404, 405, 408, 413, 431, 503): writes JSON or text
    // to `body` [room] and returns its size. NULL: a line of text.
    size_t (*error_body)(int status, const char *sentence, char *body, size_t room);
    const char *error_type; // its content type
};

// INVALID: the address is in use or a TLS file is unusable; the sentence names it.
enum status http_server_open(const struct http_server_options *options, struct http_server **server_p);
int http_server_port(const struct http_server *server);
void http_server_stop_accepting(struct http_server *server); // answers from now on close their connections
// Waits up to grace_ms for open exchanges, then disconnects. When it returns every on_close has run. NULL is allowed.
void http_server_close(struct http_server *server, int grace_ms);
// Clears the operator's questions: how many connections, exchanges, bytes unread.
struct http_server_status {
    int connections, exchanges;
    size_t unread_bytes, body_bytes;
    uint64_t accepted, refused, requests;
};
void http_server_get_status(struct http_server *server, struct http_server_status *status);

// --- the request. Texts are valid while the exchange is referenced.
void *http_context(const struct http_exchange *x);
void http_set_user(struct http_exchange *x, void *user);
void *http_user(const struct http_exchange *x);
const char *http_method(const struct http_exchange *x);
const char *http_path(const struct http_exchange *x);                     // decoded, without the query
const char *http_query(const struct http_exchange *x, const char *name);  // a decoded query parameter; NULL: not given
const char *http_header(const struct http_exchange *x, const char *name); // any case; NULL: not sent
const char *http_peer(const struct http_exchange *x);                     // "127.0.0.1:4711"
const char *http_body(const struct http_exchange *x, size_t *size_p);     // NUL-terminated; valid from on_request on
void http_body_free(struct http_exchange *x); // once it is parsed; a stream may live for long
void http_ref(struct http_exchange *x);
void http_unref(struct http_exchange *x);

// --- the response. After the exchange has closed these functions do nothing.
void http_add_header(struct http_exchange *x, const char *name, const char *value); // before the response starts
void http_respond(struct http_exchange *x, int status, const char *content_type, const void *body, size_t size);
void http_stream_begin(struct http_exchange *x, int status, const char *content_type);
// Returns the bytes of this response that are not yet accepted by the socket.
size_t http_stream_send(struct http_exchange *x, const void *bytes, size_t size);
void http_stream_end(struct http_exchange *x);
// Disconnects at once, so that the client cannot take a broken response for a whole one.
void http_abandon(struct http_exchange *x);
