// SPDX-License-Identifier: Apache-2.0
// The server under test: routes that answer immediately, later from the test's thread, or as a stream.
#pragma once

#include <stdatomic.h>

#include "lib/http/http.h"
#include "tests/http_client.h"

static atomic_int n_heads, n_requests, n_closed, n_disconnected;
static _Atomic(struct http_exchange *) held; // the last request to /hold, referenced
static struct http_server *server;

static void note_close(struct http_exchange *x, bool disconnected)
{
    atomic_fetch_add(disconnected ? &n_disconnected : &n_closed, 1);
}

static void say_hello(struct http_exchange *x)
{
    atomic_fetch_add(&n_requests, 1);
    http_respond(x, 200, "text/plain", "hello", 5);
}

static void echo(struct http_exchange *x)
{
    size_t size;
    const char *body = http_body(x, &size);
    atomic_fetch_add(&n_requests, 1);
    http_respond(x, 200, "application/octet-stream", body, size);
}

static void hold(struct http_exchange *x)
{
    atomic_fetch_add(&n_requests, 1);
    http_ref(x);
    atomic_store(&held, x);
}

static void begin_stream(struct http_exchange *x)
{
    http_stream_begin(x, 200, "text/event-stream");
    hold(x);
}

static void require_key(struct http_exchange *x)
{
    atomic_fetch_add(&n_heads, 1);
    const char *key = http_header(x, "authorization");
    if (key && strcmp(key, "Bearer good") == 0) return;
    http_add_header(x, "WWW-Authenticate", "Bearer");
    http_respond(x, 401, "text/plain", "no", 2);
}

static void describe(struct http_exchange *x)
{
    char text[1024];
    int n = snprintf(text, sizeof text, "%s %s", http_method(x), http_path(x));
    http_add_header(x, "X-Path", http_path(x));
    http_respond(x, 200, "text/plain", text, (size_t)n);
}

static const struct http_route routes[] = {
    {.method = "GET", .path = "/hello", .on_request = say_hello, .on_close = note_close},
    {.method = "POST", .path = "/echo", .on_request = echo, .on_close = note_close},
    {.method = "POST", .path = "/small", .on_request = echo, .on_close = note_close, .max_body_bytes = 16},
    {.method = "POST", .path = "/guarded", .on_head = require_key, .on_request = echo, .on_close = note_close},
    {.method = "GET", .path = "/hold", .on_request = hold, .on_close = note_close},
    {.method = "GET", .path = "/stream", .on_request = begin_stream, .on_close = note_close},
    {.method = "GET", .path = "/things/*", .on_request = describe, .on_close = note_close},
    {.method = "DELETE", .path = "/things/*", .on_request = describe, .on_close = note_close},
    {0},
};

static inline void open_server(struct http_server_options o)
{
    o.routes = routes;
    ck_assert_msg(http_server_open(&o, &server) == STATUS_OK, "%s", status_message());
}

static inline int port(void)
{
    return http_server_port(server);
}

static inline struct http_server_status server_status(void)
{
    struct http_server_status status;
    http_server_get_status(server, &status);
    return status;
}

// Waits for a request to /hold or /stream and returns it. The caller unrefs it.
static inline struct http_exchange *await_held(void)
{
    struct http_exchange *x;
    AWAIT((x = atomic_exchange(&held, NULL)));
    return x;
}
