// SPDX-License-Identifier: Apache-2.0
// Runs a connection's life, in its loop's thread:
//
//   HANDSHAKE -> HEAD -> BODY -> HANDLING -> FLUSHING -> HEAD ...
//                  \-------\--------\-----------\-> LINGER -> CLOSED
//
// After its last response a connection lingers: it closes its sending side and discards further bytes of the client.
// Closing a socket with unread bytes would reset it, and the client would lose the response.
//
// Events are edge-triggered and armed once: a turn reads and writes until the socket would block or the connection has
// used up its share of the turn.
#include <arpa/inet.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/http/internal.h"
#include "lib/http/route.h"

enum {
    BODY_FIRST_BYTES = 4096,
    DECODED_BYTES = 16 << 10, // decoded at a time
    BODY_PROGRESS_BYTES = 1024,
    RESPONSE_PROGRESS_BYTES = 16 << 10,
    ERROR_BODY_BYTES = 1024,
    OWN_HEADERS_BYTES = 512,
    TARGET_BYTES = 128
};

// --- state

static void set_state(struct connection *c, enum connection_state state)
{
    c->state = state;
}

static void set_deadline(struct connection *c, int64_t due_us)
{
    http_timer_set(&c->loop->timers, &c->timer, due_us);
}

static void set_deadline_in(struct connection *c, int64_t ms)
{
    set_deadline(c, c->loop->now_us + 1000 * ms);
}

static void await_progress(struct connection *c)
{
    c->progress = 0;
    set_deadline_in(c, c->loop->server->o.stall_ms);
}

static void unlink_connection(struct connection *c)
{
    *c->link = c->next;
    if (c->next) c->next->link = c->link;
}

static void set_idle(struct connection *c)
{
    c->less_idle = NULL;
    c->idle_link = c->loop->idle_end;
    *c->idle_link = c;
    c->loop->idle_end = &c->less_idle;
}

static void set_busy(struct connection *c)
{
    if (!c->idle_link) return;
    *c->idle_link = c->less_idle;
    *(c->less_idle ? &c->less_idle->idle_link : &c->loop->idle_end) = c->idle_link;
    c->idle_link = NULL;
}

// Reports the memory that the connection holds to the budgets.
static void hold(struct connection *c)
{
    size_t bytes = HTTP_CONNECTION_BYTES + c->in_charge + (c->loop->handshakes ? HTTP_TLS_BYTES : 0);
    if (c->exchange) bytes += c->exchange->body_size + atomic_load(&c->exchange->untaken);
    if (c->gunzip) bytes += HTTP_GUNZIP_BYTES + http_buffer_size(&c->coded);
    if (bytes != c->peer.held_bytes) peer_hold(&c->peer, bytes);
}

// Records that the connection broke a limit. A trusted proxy is not blamed for its clients.
static void blame(const struct connection *c)
{
    if (!c->proxied) address_counts_offend(c->loop->server->addresses, &c->address, clock_now_us());
}

// Shuts down the socket of a peer that is over budget. The connection's loop then finds the end of input and closes it.
static void end_for_budget(struct peer *peer)
{
    struct connection *c = (struct connection *)((char *)peer - offsetof(struct connection, peer));
    blame(c);
    log_event_limited(LOG_WARN, "http_connection_ended", LOG_FIELD("port", c->loop->server->port),
                      LOG_FIELD("reason", "it holds the most memory of all connections"));
    shutdown(c->fd, SHUT_RDWR);
}

void connection_prove(struct connection *c)
{
    if (c->peer.class == PEER_UNPROVEN) peer_prove(&c->peer);
}

static void end_decoding(struct connection *c)
{
    http_gunzip_free(c->gunzip);
    c->gunzip = NULL;
    http_buffer_free(&c->coded);
}

static void finish_exchange(struct connection *c, bool disconnected)
{
    struct http_exchange *x = c->exchange;
    c->exchange = NULL;
    end_decoding(c);
    if (!x) return;
    exchange_close(x, disconnected);
    if (c->state != HTTP_CLOSED) hold(c);
}

static void drop_input(struct connection *c)
{
    http_buffer_free(&c->in);
    http_buffer_free(&c->tls_in);
    atomic_fetch_sub(&c->loop->server->body_bytes, c->in_charge);
    c->in_charge = 0;
}

// --- closing

static void close_with(struct connection *c, bool reset)
{
    if (c->state == HTTP_CLOSED) return;
    if (c->loop->handshakes) handshake_cancel(c->loop->handshakes, &c->handshake);
    struct http_server *server = c->loop->server;
    set_state(c, HTTP_CLOSED);
    http_timer_remove(&c->timer);
    unlink_connection(c);
    set_busy(c);
    finish_exchange(c, true);
    // Closing is not enough while a forked process still has the descriptor: its events would point to freed memory.
    epoll_ctl(c->loop->epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
    peer_leave(&c->peer);
    socket_close(c, reset);
    drop_input(c);
    http_buffer_free(&c->out);
    if (!c->proxied) address_counts_remove(server->addresses, &c->address);
    atomic_fetch_sub(&server->connections, 1);
    http_loop_bury(c->loop, c);
}

// Closes the connection. Resets it if a response is incomplete: otherwise the client could take a response without a
// length for complete.
void connection_close(struct connection *c)
{
    close_with(c, c->exchange != NULL);
}

static void linger(struct connection *c)
{
    set_state(c, HTTP_LINGER);
    drop_input(c);
    socket_shutdown(c);
    if (c->peer_closed)
        connection_close(c);
    else
        set_deadline_in(c, HTTP_LINGER_MS);
}

static void await_request(struct connection *c)
{
    set_state(c, HTTP_HEAD);
    c->scan = (struct http_scan){0};
    c->head_started = false;
    c->answered = false;
    c->is_head = false;
    c->unfed = http_buffer_size(&c->in) > 0;
    if (!c->unfed) set_idle(c);
    if (atomic_load(&c->loop->server->stopping) && !c->unfed)
        connection_close(c);
    else
        set_deadline_in(c, c->loop->server->o.idle_ms);
}

// --- responses by the server itself

// Copies the start of the target to `target` [TARGET_BYTES], from a head that is incomplete or cannot be parsed.
static void read_target(const struct connection *c, char *target)
{
    const char *bytes = c->head ? c->head : http_buffer_start(&c->in);
    size_t size = c->head ? c->head_size : http_buffer_size(&c->in), from = 0, n = 0;
    while (from < size && (bytes[from] == '\r' || bytes[from] == '\n')) // the parser ignores an empty line
        from++;
    while (from < size && bytes[from] > ' ')
        from++;
    if (from < size && bytes[from] == ' ')
        for (from++; from + n < size && n < TARGET_BYTES - 1 && bytes[from + n] > ' ' && bytes[from + n] != '?'; n++)
            target[n] = bytes[from + n];
    target[n] = '\0';
}

static size_t write_error_body(const struct connection *c, int status, const char *sentence, char *body)
{
    const struct http_server *server = c->loop->server;
    char target[TARGET_BYTES];
    if (!c->exchange) read_target(c, target);
    const char *path = c->exchange ? http_path(c->exchange) : target;
    if (server->o.error_body) return server->o.error_body(path, status, sentence, body, ERROR_BODY_BYTES);
    return (size_t)snprintf(body, ERROR_BODY_BYTES, "%s\n", sentence);
}

static bool may_keep_alive(struct connection *c)
{
    return c->exchange && c->exchange->complete && c->exchange->head.keep_alive &&
           !atomic_load(&c->loop->server->stopping);
}

static void add_own_headers(struct connection *c, struct http_buffer *extra)
{
    struct http_server *server = c->loop->server;
    char lines[OWN_HEADERS_BYTES];
    if (c->exchange) exchange_take_headers(c->exchange, extra);
    if (c->exchange && c->exchange->notify) return; // on_head has added them
    if (server->o.own_headers)
        http_buffer_append(extra, lines, server->o.own_headers(c->exchange, lines, sizeof lines));
}

// Writes a response. Fills in the head's `extra`, `close` and `http_1_0`. Frees `extra`.
static void answer(struct connection *c, const struct response_head *head, const char *body, struct http_buffer *extra)
{
    struct response_head whole = *head;
    add_own_headers(c, extra);
    whole.extra = extra;
    whole.close = !may_keep_alive(c);
    if (c->exchange) whole.http_1_0 = c->exchange->head.http_1_0;
    response_head_write(&c->out, &whole);
    http_buffer_free(extra);
    if (!c->is_head && response_has_body(head->status)) http_buffer_append(&c->out, body, (size_t)head->length);
    response_count(c->loop->server, head->status);
    c->close_after = whole.close;
    c->answered = true;
    finish_exchange(c, false);
    set_state(c, HTTP_FLUSHING);
    await_progress(c);
}

// Writes the client's address and returns it.
static const char *write_client(const struct connection *c, char text[INET6_ADDRSTRLEN])
{
    const struct in6_addr *client = c->exchange ? &c->exchange->client : &c->address;
    bool v4 = IN6_IS_ADDR_V4MAPPED(client);
    return inet_ntop(v4 ? AF_INET : AF_INET6, client->s6_addr + (v4 ? 12 : 0), text, INET6_ADDRSTRLEN);
}

static void refuse_with(struct connection *c, int status, const char *sentence, struct http_buffer *extra)
{
    struct http_server *server = c->loop->server;
    char client[INET6_ADDRSTRLEN];
    log_event(LOG_DEBUG, "http_request_refused", LOG_FIELD("status", status), LOG_FIELD("reason", sentence),
              LOG_FIELD("client", write_client(c, client)));
    if (status == 400 || status == 408 || status == 431) blame(c);
    char body[ERROR_BODY_BYTES];
    size_t size = write_error_body(c, status, sentence, body);
    struct response_head head = {.status = status,
                                 .content_type = server->o.error_body ? server->o.error_type : "text/plain",
                                 .length = (int64_t)size};
    answer(c, &head, body, extra);
}

static void refuse(struct connection *c, int status, const char *sentence)
{
    struct http_buffer extra = {0};
    if (c->exchange && exchange_is_started(c->exchange)) { // a second response would mix with the handler's response
        connection_close(c);
        return;
    }
    if (status == 503) http_buffer_text(&extra, "Retry-After: 1\r\n");
    refuse_with(c, status, sentence, &extra);
}

static void answer_methods(struct connection *c, const char *methods, bool found)
{
    struct http_buffer allow = {0};
    http_buffer_text(&allow, "Allow: ");
    http_buffer_text(&allow, methods);
    http_buffer_text(&allow, "\r\n");
    if (!found) {
        refuse_with(c, 405, "the path does not have this method: the header Allow lists its methods", &allow);
        return;
    }
    answer(c, &(struct response_head){.status = 204}, "", &allow);
}

// --- the request

static void complete_request(struct connection *c)
{
    struct http_exchange *x = c->exchange;
    bool started;
    end_decoding(c);
    exchange_set_complete(x, &started);
    set_state(c, HTTP_HANDLING);
    set_deadline(c, INT64_MAX);
    if (started || !x->route->on_request) return;
    x->notify = true;
    x->route->on_request(x);
}

static size_t max_body_bytes(const struct http_exchange *x, const struct http_server *server)
{
    return x->route->max_body_bytes ? x->route->max_body_bytes : server->o.max_body_bytes;
}

static const char too_large[] = "the body is larger than the limit of this path";

static void write_continue(struct connection *c)
{
    static const char line[] = "HTTP/1.1 100 Continue\r\n\r\n";
    http_buffer_append(&c->out, line, sizeof line - 1);
    exchange_count_unread(c->exchange, sizeof line - 1);
}

static void await_body(struct connection *c)
{
    struct http_exchange *x = c->exchange;
    set_state(c, HTTP_BODY);
    await_progress(c);
    c->coded_size = 0;
    c->body_received = false;
    c->chunks = (struct http_chunks){0};
    c->body_left = x->head.content_length;
    bool begun = c->head_size > c->scan.at; // the client has not waited
    if (x->head.expect_continue && !x->head.http_1_0 && !begun) write_continue(c);
}

// Prepares to decode the body. Returns false if the request was refused.
static bool begin_decoding(struct connection *c)
{
    const char *coding = http_header(c->exchange, "content-encoding");
    bool twice = coding && http_header_after(c->exchange, "content-encoding", coding);
    if (!coding || (!twice && strcasecmp(coding, "identity") == 0)) return true;
    if (!twice && (strcasecmp(coding, "gzip") == 0 || strcasecmp(coding, "x-gzip") == 0)) {
        c->gunzip = http_gunzip_open();
        hold(c);
        return true;
    }
    struct http_buffer accepted = {0};
    http_buffer_text(&accepted, "Accept-Encoding: gzip, identity\r\n");
    refuse_with(c, 415, "the Content-Encoding of the body is not gzip: send the body as gzip or without an encoding",
                &accepted);
    return false;
}

static void start_handling(struct connection *c)
{
    struct http_exchange *x = c->exchange;
    if (x->route->on_head) {
        x->notify = true;
        x->route->on_head(x);
    }
    if (exchange_is_started(x)) {
        set_state(c, HTTP_HANDLING);
        set_deadline(c, INT64_MAX);
    } else if (x->head.content_length > max_body_bytes(x, c->loop->server)) {
        refuse(c, 413, too_large);
    } else if (x->complete) {
        complete_request(c);
    } else if (begin_decoding(c)) {
        await_body(c);
    }
}

static bool is_too_old(const struct connection *c)
{
    int64_t age_ms = c->loop->server->o.max_connection_age_ms;
    return age_ms && c->loop->now_us - c->opened_us > 1000 * age_ms;
}

static struct in6_addr client_address(const struct connection *c)
{
    struct forwarded forwarded = forwarded_begin(&c->loop->server->proxies);
    const char *name = c->exchange->texts + c->exchange->head.fields;
    for (const char *value; *name; name = value + strlen(value) + 1) {
        value = name + strlen(name) + 1;
        forwarded_take(&forwarded, name, value);
    }
    return forwarded_client(&forwarded, &c->address);
}

// Counts the request for the address that a trusted proxy forwarded. Returns false if the request was refused.
static bool count_client(struct connection *c)
{
    struct http_exchange *x = c->exchange;
    struct http_server *server = c->loop->server;
    if (!c->proxied) return true;
    x->client = client_address(c);
    x->client_counted = address_counts_add(server->addresses, &x->client);
    if (x->client_counted) return true;
    struct http_buffer retry = {0};
    http_buffer_text(&retry, "Retry-After: 1\r\n");
    refuse_with(c, 429, "the client's address has its maximum of requests at one time", &retry);
    return false;
}

// Returns false if the request was refused, or was a web page's question whether it may send a request.
static bool admit_page(struct connection *c)
{
    struct http_exchange *x = c->exchange;
    const struct http_site *site = &c->loop->server->o.site;
    const char *sentence;
    http_site_add_headers(site, &x->head, x->texts, &x->extra);
    int status = http_site_check(site, &x->head, x->texts, &sentence);
    struct http_buffer lines = {0};
    if (status)
        refuse(c, status, sentence);
    else if (http_site_preflight(site, &x->head, x->texts, &lines))
        answer(c, &(struct response_head){.status = 204}, "", &lines);
    else
        return true;
    return false;
}

static void start_request(struct connection *c, const struct http_head *head)
{
    struct http_server *server = c->loop->server;
    atomic_fetch_add(&server->requests, 1);
    struct http_exchange *x = exchange_create(c, head, c->loop->texts);
    c->exchange = x;
    if (is_too_old(c)) x->head.keep_alive = false;
    if (!count_client(c) || !admit_page(c)) return;
    char methods[HTTP_METHODS_BYTES];
    enum route_result result = route_find(server->o.routes, http_method(x), http_path(x), &x->route, methods);
    if (result == ROUTE_FOUND)
        start_handling(c);
    else if (result == ROUTE_NO_PATH)
        refuse(c, 404, "the path does not exist");
    else
        answer_methods(c, methods, result == ROUTE_OPTIONS);
}

// Returns true for a HEAD request, even if its head cannot be parsed. The response to HEAD must have no body, because
// the client would read the body as the next response.
static bool is_head_request(const char *bytes, size_t size)
{
    static const char method[] = {'H', 'E', 'A', 'D', ' '};
    size_t line = size >= 2 && bytes[0] == '\r' && bytes[1] == '\n' ? 2 : 0; // the parser ignores an empty line
    return size - line >= sizeof method && memcmp(bytes + line, method, sizeof method) == 0;
}

// Parses the head of a request once it is complete. Returns the number of bytes used: the size of the head, or 0.
static size_t parse_head(struct connection *c, const char *bytes, size_t size)
{
    struct http_server *server = c->loop->server;
    if (!c->head_started) {
        c->head_started = true;
        set_busy(c);
        // The limit of a new connection counts from accepting and includes its TLS handshake.
        if (c->served) set_deadline_in(c, server->o.head_ms);
    }
    c->is_head = is_head_request(bytes, size);
    enum http_parse found = http_scan_head(&c->scan, bytes, size);
    if (found == HTTP_PARSE_BAD) {
        refuse(c, 400, "the request is not HTTP: a line does not end in CRLF, or it does not start with a method");
    } else if (c->scan.at > server->o.max_head_bytes) {
        refuse(c, 431, "the request's head is larger than the limit");
    } else if (found == HTTP_PARSE_DONE) {
        struct http_head head;
        const char *sentence;
        size_t used = c->scan.at;
        int status = http_parse_head(bytes, used, c->loop->texts, &head, &sentence);
        c->served = true;
        if (status)
            refuse(c, status, sentence);
        else
            start_request(c, &head);
        return used;
    }
    return 0;
}

static size_t feed_head(struct connection *c, const char *bytes, size_t size)
{
    c->head = bytes;
    c->head_size = size;
    size_t used = parse_head(c, bytes, size);
    c->head = NULL;
    return used;
}

static const char too_many_requests[] = "the server is receiving too many requests; try again later";

// Returns the bytes, counted in max_bodies_bytes, that ending the connection's requests would free.
static size_t received_bytes(const struct connection *c)
{
    if (c->state != HTTP_BODY) return c->in_charge;
    return c->in_charge + c->exchange->body_size + atomic_load(&c->exchange->untaken);
}

// Frees the connection's bytes immediately by refusing its request. If the request is already being handled or
// answered, the bytes are pipelined requests, and the connection is closed.
static void give_way(struct connection *c)
{
    if (c->state != HTTP_HEAD && c->state != HTTP_BODY) {
        connection_close(c);
        return;
    }
    refuse(c, 503, too_many_requests);
    if (c->state == HTTP_CLOSED) return;
    drop_input(c);
    http_loop_ready(c->loop, c);
}

// Ends the request of the loop's connection with the most bytes, if it has more than `bytes`. Returns false if no
// connection has more. Each scan of all connections ends a request: the largest one, or the request that caused the
// scan. So no client causes many scans with few bytes.
static bool end_largest(struct http_loop *loop, size_t bytes)
{
    struct connection *largest = NULL;
    for (struct connection *c = loop->connections; c; c = c->next) {
        if (received_bytes(c) <= bytes) continue;
        largest = c;
        bytes = received_bytes(c);
    }
    if (!largest) return false;
    give_way(largest);
    return true;
}

// Ends requests of the connections with the most bytes until all bodies are within their limit. A few clients that
// never finish large bodies or heads must not keep out small requests. Returns false if no connection of the loop has
// more than `bytes`.
static bool make_room(struct http_loop *loop, size_t bytes)
{
    while (atomic_load(&loop->server->body_bytes) > loop->server->o.max_bodies_bytes)
        if (!end_largest(loop, bytes)) return false;
    return true;
}

// Appends bytes to the body that is collected.
static void collect_body(struct connection *c, const char *bytes, size_t size)
{
    struct http_exchange *x = c->exchange;
    if (x->body_size + size + 1 > x->body_capacity) {
        size_t capacity = x->body_capacity ? 2 * x->body_capacity : BODY_FIRST_BYTES;
        if (x->head.has_length && !c->gunzip && capacity > x->head.content_length + 1)
            capacity = x->head.content_length + 1;
        if (capacity < x->body_size + size + 1) capacity = x->body_size + size + 1;
        x->body = mem_resize(x->body, capacity, 1);
        x->body_capacity = capacity;
    }
    memcpy(x->body + x->body_size, bytes, size);
    x->body_size += size;
    x->body[x->body_size] = '\0';
}

// Adds bytes to the body: collects them or passes them to the handler. Returns false if the request was refused.
static bool add_body(struct connection *c, const char *bytes, size_t size)
{
    struct http_exchange *x = c->exchange;
    struct http_server *server = c->loop->server;
    if (x->received + size > max_body_bytes(x, server)) {
        refuse(c, 413, too_large);
        return false;
    }
    atomic_fetch_add(&server->body_bytes, size);
    if (!make_room(c->loop, received_bytes(c) + size)) {
        atomic_fetch_sub(&server->body_bytes, size);
        refuse(c, 503, too_many_requests);
        return false;
    }
    x->received += size;
    exchange_charge_body(x, size);
    if (!x->route->on_body) {
        collect_body(c, bytes, size);
    } else if (size) {
        x->notify = true;
        x->route->on_body(x, bytes, size);
    }
    hold(c);
    return true;
}

// Returns true if no more of the body may be read until the handler has taken bytes.
static bool body_is_full(const struct connection *c)
{
    return c->state == HTTP_BODY && atomic_load(&c->exchange->untaken) > HTTP_WINDOW_BYTES;
}

// Extends the time limit of a body or response whenever `enough` bytes have passed. A few bytes at a time therefore
// cannot hold a connection and its memory for ever.
static void note_progress(struct connection *c, size_t size, uint32_t enough)
{
    c->progress += (uint32_t)size;
    if (c->progress >= enough) await_progress(c);
}

// Takes bytes of the body as they were sent. Returns false if the request was refused.
static bool take_body(struct connection *c, const char *bytes, size_t size)
{
    if (!c->gunzip) return add_body(c, bytes, size);
    if (size > max_body_bytes(c->exchange, c->loop->server) - c->coded_size) {
        refuse(c, 413, too_large);
        return false;
    }
    c->coded_size += size;
    http_buffer_append(&c->coded, bytes, size);
    return true;
}

static void end_body(struct connection *c)
{
    c->body_received = true;
    if (!c->gunzip) complete_request(c);
}

static bool has_coded(const struct connection *c)
{
    return c->gunzip && http_buffer_size(&c->coded);
}

// Decodes what has arrived of the body, up to the connection's share of the turn.
static void decode_body(struct connection *c, int64_t *share)
{
    char decoded[DECODED_BYTES];
    while (has_coded(c) && !body_is_full(c) && *share > 0) {
        size_t used, n;
        bool sound = http_gunzip_run(c->gunzip, http_buffer_start(&c->coded), http_buffer_size(&c->coded), &used,
                                     decoded, sizeof decoded, &n);
        http_buffer_consume(&c->coded, used);
        *share -= (int64_t)(n + used);
        if (!sound) refuse(c, 400, "the body is not gzip, as its Content-Encoding says");
        if (!sound || !add_body(c, decoded, n)) return;
    }
    if (!c->gunzip || !c->body_received || has_coded(c)) return;
    if (http_gunzip_is_whole(c->gunzip))
        complete_request(c);
    else
        refuse(c, 400, "the gzip body ends too early");
}

static size_t feed_length_body(struct connection *c, const char *bytes, size_t size)
{
    size_t n = size < c->body_left ? size : (size_t)c->body_left;
    if (!take_body(c, bytes, n)) return 0;
    c->body_left -= n;
    note_progress(c, n, BODY_PROGRESS_BYTES);
    if (c->body_left == 0) end_body(c);
    return n;
}

static size_t feed_chunked_body(struct connection *c, const char *bytes, size_t size)
{
    size_t used = 0;
    while (used < size) {
        const char *data;
        size_t n;
        enum http_parse result = http_read_chunks(&c->chunks, bytes, size, &used, &data, &n);
        if (result == HTTP_PARSE_BAD) {
            refuse(c, 400, "the chunked body is malformed");
            break;
        }
        if (n && !take_body(c, data, n)) break;
        uint64_t received = c->gunzip ? c->coded_size : c->exchange->received;
        if (c->chunks.left > max_body_bytes(c->exchange, c->loop->server) - received) {
            refuse(c, 413, too_large); // known once a chunk states its size
            break;
        }
        if (result == HTTP_PARSE_DONE) {
            end_body(c);
            return used;
        }
    }
    if (c->state == HTTP_BODY) note_progress(c, used, BODY_PROGRESS_BYTES);
    return used;
}

// Parses bytes of one request. Returns the number of bytes used.
static size_t feed_once(struct connection *c, const char *bytes, size_t size)
{
    if (c->state == HTTP_HEAD) return feed_head(c, bytes, size);
    if (c->state == HTTP_BODY && !c->body_received)
        return c->exchange->head.chunked ? feed_chunked_body(c, bytes, size) : feed_length_body(c, bytes, size);
    return 0;
}

static size_t feed_all(struct connection *c, const char *bytes, size_t size)
{
    size_t used = 0;
    while (used < size && (c->state == HTTP_HEAD || c->state == HTTP_BODY)) {
        size_t n = feed_once(c, bytes + used, size - used);
        if (n == 0) break;
        used += n;
    }
    return used;
}

static void feed_kept(struct connection *c)
{
    c->unfed = false;
    size_t used = feed_all(c, http_buffer_start(&c->in), http_buffer_size(&c->in));
    if (c->state != HTTP_CLOSED && used) http_buffer_consume(&c->in, used);
}

static void feed(struct connection *c, const char *bytes, size_t size)
{
    if (http_buffer_size(&c->in)) {
        http_buffer_append(&c->in, bytes, size);
        feed_kept(c);
        return;
    }
    size_t used = feed_all(c, bytes, size);
    if (c->state != HTTP_CLOSED) http_buffer_append(&c->in, bytes + used, size - used);
}

// --- turns

// Returns how many bytes to read next. Returns 0 while enough pipelined requests are buffered. Also returns 0 if no
// further request will be served: input may have been dropped, and TLS cannot continue after a gap.
static size_t wanted_bytes(const struct connection *c)
{
    if (has_coded(c) || body_is_full(c)) return 0;
    if (c->state == HTTP_HEAD || c->state == HTTP_BODY || c->state == HTTP_LINGER) return HTTP_IN_BYTES;
    if (c->state != HTTP_HANDLING && c->state != HTTP_FLUSHING) return 0;
    if (c->state == HTTP_FLUSHING && c->close_after) return 0;
    size_t kept = http_buffer_size(&c->in);
    return kept < HTTP_AHEAD_BYTES ? HTTP_AHEAD_BYTES - kept : 0;
}

// Stops the time limit of a body while the server itself does not read it.
static void note_body_waits(struct connection *c)
{
    bool waits = body_is_full(c);
    if (waits == c->body_waits) return;
    c->body_waits = waits;
    if (c->state != HTTP_BODY) return;
    if (waits)
        set_deadline(c, INT64_MAX);
    else
        await_progress(c);
}

static void read_input(struct connection *c, int64_t *share)
{
    note_body_waits(c);
    if (c->unfed && c->state == HTTP_HEAD) feed_kept(c);
    decode_body(c, share);
    size_t wanted;
    int without_data = 0; // TLS records without data, such as new keys: they cost more than their bytes
    while (c->readable && *share > 0 && (wanted = wanted_bytes(c)) > 0) {
        ssize_t n = socket_read(c, c->loop->in, wanted);
        if (n == HTTP_AGAIN && (!c->readable || c->read_awaits_room)) break;
        if (n == HTTP_AGAIN && ++without_data <= HTTP_TURN_EMPTY_RECORDS) continue;
        if (n <= 0) {
            c->readable = false;
            c->peer_closed = true;
            c->broken |= n != 0;
            break;
        }
        *share -= n > HTTP_READ_MIN_COST ? n : HTTP_READ_MIN_COST;
        atomic_fetch_add(&c->loop->server->received_bytes, (size_t)n);
        if (c->state != HTTP_LINGER) feed(c, c->loop->in, (size_t)n);
        decode_body(c, share);
    }
    note_body_waits(c);
}

static void count_written(struct connection *c, size_t n)
{
    http_buffer_consume(&c->out, n);
    atomic_fetch_add(&c->loop->server->sent_bytes, n);
    if (c->exchange) exchange_count_unread(c->exchange, 0 - n);
}

static void tell_drained(struct http_exchange *x)
{
    if (x->notify && x->route->on_drain && atomic_load(&x->unread) < HTTP_WINDOW_BYTES) x->route->on_drain(x);
}

// Writes the response's bytes to the socket. Returns false if the connection is closed.
static bool write_output(struct connection *c, int64_t *share)
{
    bool was_empty = c->timer.due_us == INT64_MAX;
    size_t written = 0;
    while (http_buffer_size(&c->out) && c->writable && *share > 0) {
        ssize_t n = socket_write(c, http_buffer_start(&c->out), http_buffer_size(&c->out));
        if (n == HTTP_AGAIN) break;
        if (n < 0) {
            connection_close(c);
            return false;
        }
        count_written(c, (size_t)n);
        *share -= n;
        written += (size_t)n;
    }
    if (written && c->exchange) tell_drained(c->exchange);
    if (c->state != HTTP_HANDLING && c->state != HTTP_FLUSHING) return true;
    if (http_buffer_size(&c->out) == 0)
        set_deadline(c, INT64_MAX);
    else if (was_empty)
        await_progress(c);
    else
        note_progress(c, written, RESPONSE_PROGRESS_BYTES);
    return true;
}

// Moves the handler's bytes to the socket. Returns true if the response has ended and the connection awaits a request.
static bool flush(struct connection *c, int64_t *share)
{
    if (c->state == HTTP_CLOSED || c->state == HTTP_LINGER) return false;
    if (c->exchange && !exchange_take_output(c->exchange, c)) {
        close_with(c, true);
        return false;
    }
    if (c->answered && c->exchange) set_state(c, HTTP_FLUSHING);
    if (!write_output(c, share)) return false;
    if (!c->answered || http_buffer_size(&c->out)) return false;
    finish_exchange(c, false);
    if (c->close_after)
        linger(c);
    else
        await_request(c);
    return c->state == HTTP_HEAD;
}

// Counts unparsed input bytes in body_bytes, like the bytes of bodies. So the limit also holds for many clients that
// send heads slowly or pipeline requests.
static void charge_input(struct connection *c)
{
    size_t kept = http_buffer_size(&c->in) + http_buffer_size(&c->tls_in), before = c->in_charge;
    if (kept == before) return;
    c->in_charge = kept;
    atomic_fetch_add(&c->loop->server->body_bytes, kept - before);
    hold(c);
    if (kept > before && !make_room(c->loop, received_bytes(c))) give_way(c);
}

static void check_peer(struct connection *c)
{
    if (c->state == HTTP_CLOSED) return;
    // A client that has sent its FIN may still read a whole response, and its last bytes may be a whole request.
    bool gone = c->peer_closed && c->state != HTTP_FLUSHING && (c->state == HTTP_HANDLING || !c->readable);
    if (c->unfed && c->state == HTTP_HEAD) gone = false; // the next turn parses the pipelined requests
    if (gone || c->broken) connection_close(c);
}

static void note_ready(struct connection *c)
{
    if (c->state == HTTP_CLOSED) return;
    bool may_read = c->readable && !c->read_awaits_room, may_write = c->writable && !c->write_awaits_bytes;
    bool more = (may_read && wanted_bytes(c)) || (may_write && http_buffer_size(&c->out)) ||
                (c->unfed && c->state == HTTP_HEAD) || (has_coded(c) && !body_is_full(c));
    if (more) http_loop_ready(c->loop, c);
}

static void exchange_bytes(struct connection *c)
{
    int64_t share = HTTP_TURN_BYTES;
    int requests = HTTP_TURN_REQUESTS;
    do {
        read_input(c, &share);
    } while (flush(c, &share) && share > 0 && --requests > 0);
}

void connection_turn(struct connection *c)
{
    bool tls = c->ssl != NULL;
    exchange_bytes(c);
    if (tls) tls_bio_end_turn(c);
    if (c->state != HTTP_CLOSED) charge_input(c);
    check_peer(c);
    note_ready(c);
}

void connection_event(struct connection *c, uint32_t events)
{
    if (c->state == HTTP_CLOSED) return;
    if (events & EPOLLOUT) {
        c->writable = true;
        c->read_awaits_room = false;
    }
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) {
        c->readable = true;
        c->write_awaits_bytes = false;
        c->drained = false;
    }
    if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) c->peer_closed = true;
    if (events & (EPOLLHUP | EPOLLERR)) c->broken = true;
    connection_turn(c);
}

static void fail_handshake(struct connection *c)
{
    atomic_fetch_add(&c->loop->server->handshakes_failed, 1);
    connection_close(c);
}

// Handles a connection whose time limit has passed.
void connection_expire(struct connection *c)
{
    if (c->state == HTTP_HEAD && c->head_started)
        refuse(c, 408, "the request's head did not arrive in time");
    else if (c->state == HTTP_BODY)
        refuse(c, 408, "the request's body did not arrive in time");
    else if (c->state == HTTP_HANDSHAKE)
        fail_handshake(c);
    else
        connection_close(c);
    if (c->state != HTTP_CLOSED) connection_turn(c);
}

// Begins to read requests.
static void watch(struct connection *c)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = c};
    set_state(c, HTTP_HEAD);
    if (epoll_ctl(c->loop->epoll_fd, EPOLL_CTL_ADD, c->fd, &event) != 0) connection_close(c);
}

void connection_shaken(struct connection *c)
{
    c->ssl = c->handshake.ssl;
    if (c->ssl && tls_bio_attach(c)) {
        watch(c);
        return;
    }
    if (c->handshake.result == HANDSHAKE_CROWDED_OUT)
        http_loop_count_refused(c->loop, "the port has its maximum of TLS handshakes");
    else
        socket_refuse_handshake(c);
    fail_handshake(c);
}

void connection_open(struct http_loop *loop, int fd, const struct sockaddr_in6 *address, bool proxied)
{
    struct http_server *server = loop->server;
    struct connection *c = mem_alloc(sizeof *c);
    *c = (struct connection){.loop = loop, .fd = fd, .address = address->sin6_addr, .proxied = proxied};
    c->timer.due_us = INT64_MAX;
    c->opened_us = loop->now_us;
    c->writable = true;
    c->link = &loop->connections;
    c->next = loop->connections;
    if (c->next) c->next->link = &c->next;
    loop->connections = c;
    c->peer.end = end_for_budget;
    peer_join(&c->peer, server->o.proof ? PEER_UNPROVEN : PEER_PROVEN);
    hold(c);
    set_idle(c);
    set_deadline_in(c, server->o.head_ms);
    set_state(c, HTTP_HANDSHAKE);
    if (loop->handshakes)
        handshake_start(loop->handshakes, &c->handshake, fd, proxied ? NULL : &c->address);
    else
        watch(c);
}
