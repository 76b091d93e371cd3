// SPDX-License-Identifier: Apache-2.0
// Implements exchanges: a request and its response. The functions of http.h append to the response and queue the
// exchange. The loop then moves the bytes to the connection. A thread that sends a token to many streams wakes the loop
// once.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/equal_share.h"
#include "lib/base/mem.h"
#include "lib/http/internal.h"

// --- life

struct http_exchange *exchange_create(struct connection *c, const struct http_head *head, const char *texts)
{
    struct http_exchange *x = mem_alloc(sizeof *x + head->text_size);
    memcpy(x->texts, texts, head->text_size);
    x->head = *head;
    x->loop = c->loop;
    x->connection = c;
    x->client = c->address;
    x->context = c->loop->server->o.context;
    x->complete = !head->chunked && head->content_length == 0;
    atomic_init(&x->references, 1);
    atomic_init(&x->unread, 0);
    pthread_mutex_init(&x->lock, NULL);
    atomic_fetch_add(&c->loop->server->exchanges, 1);
    return x;
}

void http_ref(struct http_exchange *x)
{
    atomic_fetch_add_explicit(&x->references, 1, memory_order_relaxed); // the caller has a reference
}

void http_prove(struct http_exchange *x)
{
    connection_prove(x->connection);
}

void http_unref(struct http_exchange *x)
{
    if (atomic_fetch_sub(&x->references, 1) != 1) return;
    pthread_mutex_destroy(&x->lock);
    http_buffer_free(&x->out);
    http_buffer_free(&x->extra);
    free(x->body);
    free(x);
}

static void release_body_charge(struct http_exchange *x)
{
    if (x->body_charge) atomic_fetch_sub(&x->loop->server->body_bytes, x->body_charge);
    x->body_charge = 0;
}

void exchange_charge_body(struct http_exchange *x, size_t size)
{
    pthread_mutex_lock(&x->lock);
    x->body_charge += size;
    if (x->route->on_body) atomic_fetch_add(&x->untaken, size);
    pthread_mutex_unlock(&x->lock);
}

static void count_exchange_closed(struct http_server *server)
{
    if (atomic_fetch_sub(&server->exchanges, 1) != 1 || !atomic_load(&server->stopping)) return;
    pthread_mutex_lock(&server->lock);
    pthread_cond_broadcast(&server->idle);
    pthread_mutex_unlock(&server->lock);
}

void exchange_count_unread(struct http_exchange *x, size_t more)
{
    struct http_server *server = x->loop->server;
    size_t before = atomic_fetch_add(&x->unread, more);
    bool counted = !equal_share_is_small(before), counts = !equal_share_is_small(before + more);
    atomic_fetch_add(&server->unread_bytes, more);
    if (counts != counted) atomic_fetch_add(&server->sharing, counts ? 1 : -1);
}

void exchange_close(struct http_exchange *x, bool disconnected)
{
    struct http_server *server = x->loop->server;
    pthread_mutex_lock(&x->lock);
    x->closed = true;
    http_buffer_free(&x->out);
    release_body_charge(x);
    exchange_count_unread(x, 0 - atomic_load(&x->unread));
    pthread_mutex_unlock(&x->lock);
    x->connection = NULL;
    if (x->client_counted) address_counts_remove(server->addresses, &x->client);
    if (x->notify && x->route->on_close) x->route->on_close(x, disconnected);
    count_exchange_closed(server);
    http_unref(x);
}

// --- functions for the loop

bool exchange_is_started(struct http_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    bool started = x->started || x->abandoned;
    pthread_mutex_unlock(&x->lock);
    return started;
}

void exchange_set_complete(struct http_exchange *x, bool *started_p)
{
    pthread_mutex_lock(&x->lock);
    x->complete = true;
    *started_p = x->started || x->abandoned;
    pthread_mutex_unlock(&x->lock);
}

void exchange_take_headers(struct http_exchange *x, struct http_buffer *extra)
{
    pthread_mutex_lock(&x->lock);
    if (http_buffer_size(&x->extra)) http_buffer_move(extra, &x->extra);
    pthread_mutex_unlock(&x->lock);
}

bool exchange_take_output(struct http_exchange *x, struct connection *c)
{
    pthread_mutex_lock(&x->lock);
    if (http_buffer_size(&x->out)) http_buffer_move(&c->out, &x->out);
    c->answered = x->ended;
    c->close_after = x->close;
    bool going_on = !x->abandoned;
    pthread_mutex_unlock(&x->lock);
    return going_on;
}

// --- the request

static const char *text_at(const struct http_exchange *x, size_t at)
{
    return x->texts + at;
}

struct http_server *http_server_of(const struct http_exchange *x)
{
    return x->loop->server;
}

void *http_context(const struct http_exchange *x)
{
    return x->context;
}

void http_set_user(struct http_exchange *x, void *user)
{
    x->user = user;
}

void *http_user(const struct http_exchange *x)
{
    return x->user;
}

const char *http_method(const struct http_exchange *x)
{
    return text_at(x, x->head.method);
}

const char *http_path(const struct http_exchange *x)
{
    return text_at(x, x->head.path);
}

const char *http_header(const struct http_exchange *x, const char *name)
{
    return http_pair(text_at(x, x->head.fields), name);
}

const char *http_header_after(const struct http_exchange *x, const char *name, const char *value)
{
    return http_pair(value + strlen(value) + 1, name);
}

const char *http_body(const struct http_exchange *x, size_t *size_p)
{
    if (size_p) *size_p = x->body_size;
    return x->body ? x->body : "";
}

const char *http_query(const struct http_exchange *x)
{
    return text_at(x, x->head.query);
}

void http_body_free(struct http_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    if (!x->closed) release_body_charge(x);
    pthread_mutex_unlock(&x->lock);
    free(x->body);
    x->body = NULL;
    x->body_size = x->body_capacity = 0;
}

// Gives the connection a turn. The caller holds the lock.
static void queue_turn(struct http_exchange *x)
{
    if (x->queued) return;
    x->queued = true;
    http_loop_queue(x->loop, x);
}

void http_body_taken(struct http_exchange *x, size_t size)
{
    pthread_mutex_lock(&x->lock);
    bool was_full = atomic_fetch_sub(&x->untaken, size) > HTTP_WINDOW_BYTES;
    if (!x->closed) {
        atomic_fetch_sub(&x->loop->server->body_bytes, size);
        x->body_charge -= size;
        if (was_full && atomic_load(&x->untaken) <= HTTP_WINDOW_BYTES) queue_turn(x);
    }
    pthread_mutex_unlock(&x->lock);
}

// --- the response

static bool is_head_request(const struct http_exchange *x)
{
    return strcmp(http_method(x), "HEAD") == 0;
}

// Counts `size` new bytes of the response and queues the exchange. The caller holds the lock.
static void response_grown(struct http_exchange *x, size_t size)
{
    exchange_count_unread(x, size);
    queue_turn(x);
}

// Appends a field's text with control characters replaced: text from a request must not end a header line.
static void append_field_text(struct http_buffer *out, const char *text)
{
    for (; *text; text++) {
        char c = *text;
        if (((unsigned char)c < ' ' && c != '\t') || c == 127) c = ' ';
        http_buffer_append(out, &c, 1);
    }
}

void http_add_header(struct http_exchange *x, const char *name, const char *value)
{
    pthread_mutex_lock(&x->lock);
    if (!x->closed && !x->started) {
        append_field_text(&x->extra, name);
        http_buffer_text(&x->extra, ": ");
        append_field_text(&x->extra, value);
        http_buffer_text(&x->extra, "\r\n");
    }
    pthread_mutex_unlock(&x->lock);
}

// Starts the response. length -1: a stream. The caller holds the lock.
static void write_head(struct http_exchange *x, int status, const char *content_type, int64_t length)
{
    x->started = true;
    x->chunked = length < 0 && !x->head.http_1_0;
    x->close =
        !x->head.keep_alive || !x->complete || (length < 0 && !x->chunked) || atomic_load(&x->loop->server->stopping);
    response_head_write(&x->out, &(struct response_head){.status = status,
                                                         .content_type = content_type,
                                                         .length = length,
                                                         .chunked = x->chunked,
                                                         .close = x->close,
                                                         .http_1_0 = x->head.http_1_0,
                                                         .extra = &x->extra});
    http_buffer_free(&x->extra);
    response_count(x->loop->server, status);
    if (is_head_request(x) || !response_has_body(status)) x->no_body = true;
}

// Returns true if this response may have `size` more unread bytes. The caller holds the lock.
static bool unread_fits(const struct http_exchange *x, size_t size)
{
    const struct http_server *server = x->loop->server;
    size_t unread = atomic_load(&x->unread);
    int others = atomic_load(&server->sharing) - !equal_share_is_small(unread);
    return equal_share_allows(server->o.max_all_unread_bytes, atomic_load(&server->unread_bytes), unread, size, others);
}

bool http_response_fits(struct http_exchange *x, size_t size)
{
    pthread_mutex_lock(&x->lock);
    bool fits = x->closed || x->respond || unread_fits(x, size);
    pthread_mutex_unlock(&x->lock);
    return fits;
}

// Passes the whole response to the process itself. The caller holds the lock.
static void respond_locally(struct http_exchange *x, int status, const void *body, size_t size)
{
    x->started = x->ended = true;
    x->respond(x->respond_arg, status, body, size);
}

void http_respond(struct http_exchange *x, int status, const char *content_type, const void *body, size_t size)
{
    pthread_mutex_lock(&x->lock);
    if (!x->closed && !x->started && x->respond) {
        respond_locally(x, status, body, size);
    } else if (!x->closed && !x->started) {
        size_t before = http_buffer_size(&x->out);
        write_head(x, status, content_type, (int64_t)size);
        if (!x->no_body) http_buffer_append(&x->out, body, size);
        x->ended = true;
        response_grown(x, http_buffer_size(&x->out) - before);
    }
    pthread_mutex_unlock(&x->lock);
}

void http_stream_begin(struct http_exchange *x, int status, const char *content_type)
{
    pthread_mutex_lock(&x->lock);
    if (!x->closed && !x->started && x->respond) {
        respond_locally(x, 500, "", 0);
    } else if (!x->closed && !x->started) {
        size_t before = http_buffer_size(&x->out);
        write_head(x, status, content_type, -1);
        response_grown(x, http_buffer_size(&x->out) - before);
    }
    pthread_mutex_unlock(&x->lock);
}

// Appends a chunk of the response. The caller holds the lock.
static void append_chunk(struct http_exchange *x, const void *bytes, size_t size)
{
    size_t before = http_buffer_size(&x->out);
    char line[24];
    http_buffer_reserve(&x->out, size + sizeof line);
    if (x->chunked) http_buffer_append(&x->out, line, (size_t)snprintf(line, sizeof line, "%zx\r\n", size));
    http_buffer_append(&x->out, bytes, size);
    if (x->chunked) http_buffer_append(&x->out, "\r\n", 2);
    response_grown(x, http_buffer_size(&x->out) - before);
}

// Disconnects immediately, so that the client cannot take a broken response for a complete one. The caller holds the
// lock.
static void abandon(struct http_exchange *x)
{
    x->abandoned = true;
    http_buffer_free(&x->out);
    response_grown(x, 0);
}

size_t http_stream_send(struct http_exchange *x, const void *bytes, size_t size)
{
    pthread_mutex_lock(&x->lock);
    // A chunk of no bytes would end the stream.
    if (!x->closed && x->started && !x->ended && !x->no_body && !x->abandoned && size) {
        if (atomic_load(&x->unread) + size > x->loop->server->o.max_unread_bytes || !unread_fits(x, size))
            abandon(x);
        else
            append_chunk(x, bytes, size);
    }
    size_t unread = x->closed ? 0 : atomic_load(&x->unread);
    pthread_mutex_unlock(&x->lock);
    return unread;
}

void http_stream_abort(struct http_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    if (!x->closed && !x->ended) abandon(x);
    pthread_mutex_unlock(&x->lock);
}

void http_stream_end(struct http_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    if (!x->closed && x->started && !x->ended && !x->abandoned) {
        static const char last[] = "0\r\n\r\n";
        bool needed = x->chunked && !x->no_body;
        if (needed) http_buffer_append(&x->out, last, sizeof last - 1);
        x->ended = true;
        response_grown(x, needed ? sizeof last - 1 : 0);
    }
    pthread_mutex_unlock(&x->lock);
}
