// SPDX-License-Identifier: Apache-2.0
// Defines the objects that implement http.h, for the files of this folder.
//
// A loop is a thread with its epoll. It owns its connections, and no other thread touches them. An exchange is shared
// between the loop and the threads that answer. These threads append the response to exchange->out under its lock and
// put the exchange into the loop's queue. Locks are taken in the order exchange, loop.
#pragma once

#include <netinet/in.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdatomic.h>

#include "lib/base/address.h"
#include "lib/base/address_counts.h"
#include "lib/base/forwarded.h"
#include "lib/base/handshakes.h"
#include "lib/base/peer_budget.h"
#include "lib/base/tls_server.h"
#include "lib/http/buffer.h"
#include "lib/http/gunzip.h"
#include "lib/http/http.h"
#include "lib/http/parse.h"
#include "lib/http/timers.h"

enum {
    HTTP_IN_BYTES = 65536,       // bytes of one read
    HTTP_AHEAD_BYTES = 4096,     // bytes of pipelined requests that are read while a request waits for its response
    HTTP_TURN_BYTES = 256 << 10, // bytes read or written for one connection before the next connection's turn
    HTTP_TURN_REQUESTS = 16,
    HTTP_READ_MIN_COST = 256,     // a read counts as at least these bytes: a TLS record may carry a single byte
    HTTP_TURN_EMPTY_RECORDS = 32, // limit of TLS records without data in one turn; above it the connection is closed
    HTTP_LINGER_MS = 2000,
    HTTP_CONNECTION_BYTES = 4 << 10, // memory of an idle connection
    HTTP_TLS_BYTES = 32 << 10,       // additional memory of a TLS connection
};

// A connection's state names what it waits for: the end of the TLS handshake, of a head or of a body; the handler's
// response (HANDLING); the client, which must read the response (FLUSHING); or the client's FIN (LINGER).
enum connection_state { HTTP_HANDSHAKE, HTTP_HEAD, HTTP_BODY, HTTP_HANDLING, HTTP_FLUSHING, HTTP_LINGER, HTTP_CLOSED };

struct connection {
    struct http_loop *loop;
    struct connection *next, **link; // in the loop's list of connections
    struct connection *next_ready;   // links the loop's list of ready connections, later its list of dead connections
    struct connection *less_idle, **idle_link; // list of idle connections; idle_link NULL: not in the list
    struct http_timer timer;
    int64_t opened_us;
    struct handshake handshake; // with TLS, in the state HTTP_HANDSHAKE
    SSL *ssl;                   // NULL: plain, or in the handshake
    struct http_exchange *exchange;
    struct http_buffer in;     // bytes of the next request, not yet parsed
    struct http_buffer tls_in; // bytes read from the socket that OpenSSL has not asked for
    size_t in_charge;          // bytes of `in` and `tls_in` that are counted in server->body_bytes
    struct http_buffer out;    // bytes of the response that go to the socket next
    struct http_scan scan;
    const char *head; // bytes of the request so far, while it is parsed; otherwise NULL, and `in` has the bytes
    size_t head_size;
    struct http_chunks chunks;
    uint64_t body_left;         // bytes still to come of a body with a length
    struct http_gunzip *gunzip; // decodes the body; NULL: the body is not encoded
    struct http_buffer coded;   // bytes of the body that are not decoded yet
    size_t coded_size;          // bytes of the encoded body so far
    uint32_t progress;          // bytes of the body or the response since the time limit was last extended
    int fd;
    struct peer peer; // accounts the memory that the connection holds
    struct in6_addr address;
    uint8_t state;           // enum connection_state
    bool readable, writable; // the socket may have bytes to read; may have room to write
    // TLS may have to write before it can read, and to read before it can write. So a read waits until the socket has
    // room, or a write waits until it has bytes. An incomplete handshake message, such as a new key, blocks both
    // directions.
    bool read_awaits_room, write_awaits_bytes;
    bool drained;       // TLS: the socket has no bytes until the next event
    bool peer_closed;   // the client has closed its sending side
    bool broken;        // the socket has failed
    bool body_waits;    // the body is not read, because the handler has not taken enough bytes
    bool is_ready;      // in the list of ready connections
    bool head_started;  // bytes of the head have arrived
    bool served;        // the current request is not the first
    bool answered;      // the whole response is in `out`
    bool close_after;   // the connection closes after the response
    bool unfed;         // `in` has not been parsed since the last response
    bool is_head;       // the request's method is HEAD
    bool body_received; // the whole encoded body has arrived
    bool proxied;       // the client is a trusted proxy
};

struct http_exchange {
    atomic_int references;
    pthread_mutex_t lock;     // guards the members down to next_queued
    struct http_buffer out;   // response bytes that the loop has not taken yet
    struct http_buffer extra; // header lines of http_add_header
    bool started, ended;      // the response has started, has ended
    bool chunked;             // the response is chunked
    bool no_body;             // the response has no body (HEAD, 204)
    bool closed;              // on_close has run or is about to run; loop and server may be gone
    bool abandoned;
    bool queued;
    bool complete;                     // the whole request was received, so the connection can serve another one
    bool close;                        // the response tells the client that the connection closes
    size_t body_charge;                // bytes counted in server->body_bytes
    atomic_size_t untaken;             // bytes given to on_body that the handler has not taken
    struct http_exchange *next_queued; // guarded by the loop's lock
    atomic_size_t unread;              // bytes in `out` here and in the connection
    char *body;                        // [body_size + 1] owned; written by the loop until on_request
    size_t body_size, body_capacity;
    uint64_t received;             // bytes of the body so far, after decoding; used only by the loop
    struct http_loop *loop;        // valid until closed
    struct connection *connection; // used only by the loop; NULL once closed
    const struct http_route *route;
    struct in6_addr client; // address of the client, which may be one that a trusted proxy forwarded
    bool client_counted;    // the client's address counts this request as a connection
    bool notify;            // a handler was called, so on_close must be called
    void *context, *user;
    void (*respond)(void *arg, int status, const char *body,
                    size_t size); // see struct http_local; NULL: a connection's
    void *respond_arg;
    struct http_head head;
    char texts[]; // of the head
};

struct http_loop {
    struct http_server *server;
    pthread_t thread;
    int epoll_fd, event_fd;
    int spare_fd; // freed to accept and refuse a connection when the process has no descriptor left; -1: none
    bool listening;
    int64_t now_us, listen_again_us; // listen_again_us: end of a pause in listening; INT64_MAX: no pause
    struct handshakes *handshakes;   // NULL: no TLS
    struct http_timers timers;
    struct connection *connections, *ready, *dead;
    struct connection *idle, **idle_end; // connections that await the first byte of a request, longest idle first
    char *in;                            // [HTTP_IN_BYTES]
    char *texts;                         // [HTTP_TEXT_ROOM(max_head_bytes)]
    char *tls_in; // [HTTP_IN_BYTES] TLS bytes of the connection that the loop handles; NULL: no TLS
    size_t tls_from, tls_to;
    pthread_mutex_t lock; // guards the queue
    struct http_exchange *queue, **queue_end;
};

struct http_server {
    struct http_server_options o;
    int listeners[ADDRESS_SOCKETS_MAX], n_listeners, port;
    struct tls_server *tls;           // NULL: plain
    struct address_counts *addresses; // NULL: no bound
    struct networks proxies;          // trusted ones
    atomic_bool stopping, closing;
    atomic_int connections, exchanges;
    atomic_int sharing; // exchanges whose unread bytes are not small (lib/base/equal_share.h)
    atomic_size_t unread_bytes, body_bytes;
    atomic_ullong accepted, refused, requests, responses[HTTP_STATUS_CLASSES];
    atomic_ullong received_bytes, sent_bytes, handshakes_failed;
    struct http_loop *loops; // [o.threads]
    int n_loops;
    pthread_mutex_t lock;
    pthread_cond_t idle; // with `lock`: signalled when `exchanges` becomes 0 while stopping
};

// --- loop.c
enum status http_loop_open(struct http_loop *loop, struct http_server *server);
void http_loop_wake(struct http_loop *loop);
void http_loop_close(struct http_loop *loop);                             // call it when server->closing is set
void http_loop_queue(struct http_loop *loop, struct http_exchange *x);    // takes a reference
void http_loop_ready(struct http_loop *loop, struct connection *c);       // c has another turn soon
void http_loop_count_refused(struct http_loop *loop, const char *reason); // counts and logs a refused connection
void http_loop_bury(struct http_loop *loop, struct connection *c);        // c is freed after this batch of events

// --- connection.c
void connection_open(struct http_loop *loop, int fd, const struct sockaddr_in6 *address, bool proxied);
void connection_shaken(struct connection *c); // its handshake has ended
void connection_event(struct connection *c, uint32_t events);
void connection_turn(struct connection *c);
void connection_expire(struct connection *c);
void connection_close(struct connection *c);
void connection_prove(struct connection *c); // the client has shown a key

// --- socket.c: the functions return a number of bytes, or one of
enum { HTTP_AGAIN = -1, HTTP_BROKEN = -2 };
ssize_t socket_read(struct connection *c, char *bytes, size_t size); // 0: the client has closed its sending side
ssize_t socket_write(struct connection *c, const char *bytes, size_t size);
void socket_refuse_handshake(struct connection *c); // logs a failed handshake, and tells a client without TLS
void socket_shutdown(struct connection *c);         // shuts the sending side
void socket_close(struct connection *c, bool reset);

// --- tls_bio.c
bool tls_bio_attach(struct connection *c);      // to c->ssl; false: no memory
bool tls_bio_empty(const struct connection *c); // true if no bytes come until the socket's next event
void tls_bio_end_turn(struct connection *c);    // call it before another connection has its turn

// --- exchange.c, for the loop
struct http_exchange *exchange_create(struct connection *c, const struct http_head *head, const char *texts);
void exchange_set_complete(struct http_exchange *x, bool *started_p);
bool exchange_is_started(struct http_exchange *x);
// Counts bytes of the body that the handler gets next.
void exchange_charge_body(struct http_exchange *x, size_t size);
// Moves the header lines that on_head added to `extra`.
void exchange_take_headers(struct http_exchange *x, struct http_buffer *extra);
// Moves the response bytes so far to the connection. Returns false if the exchange was abandoned.
bool exchange_take_output(struct http_exchange *x, struct connection *c);
// Adds `more` to the counts of unread bytes. A negative number, cast to size_t, subtracts.
void exchange_count_unread(struct http_exchange *x, size_t more);
// Ends the exchange: functions of http.h have no effect afterwards. Calls on_close and releases the loop's reference.
void exchange_close(struct http_exchange *x, bool disconnected);

// --- response.c
// A response's head. length -1: the body is chunked or extends to the end of the connection.
struct response_head {
    int status;
    const char *content_type; // NULL: none
    int64_t length;
    bool chunked, close, http_1_0;
    const struct http_buffer *extra; // NULL: none
};
void response_head_write(struct http_buffer *out, const struct response_head *head);
bool response_has_body(int status);
void response_count(struct http_server *server, int status);
