// SPDX-License-Identifier: Apache-2.0
// A server on lib/http with the endpoints that Http11Probe asks for: / greets and repeats a body, /echo repeats the
// header fields, /cookie lists cookies. Prints its port, and serves until its standard input ends.
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lib/http/internal.h"

static void greet(struct http_exchange *x)
{
    http_respond(x, 200, "text/plain", "OK", 2);
}

static void repeat_body(struct http_exchange *x)
{
    size_t size;
    const char *body = http_body(x, &size);
    http_respond(x, 200, "text/plain", body, size);
}

static void repeat_fields(struct http_exchange *x)
{
    struct http_buffer text = {0};
    for (const char *name = x->texts + x->head.fields; *name;) {
        const char *value = name + strlen(name) + 1;
        http_buffer_text(&text, name);
        http_buffer_text(&text, ": ");
        http_buffer_text(&text, value);
        http_buffer_text(&text, "\n");
        name = value + strlen(value) + 1;
    }
    http_respond(x, 200, "text/plain", http_buffer_start(&text), http_buffer_size(&text));
    http_buffer_free(&text);
}

static void list_cookies(struct http_exchange *x)
{
    struct http_buffer text = {0};
    const char *at = http_header(x, "cookie");
    while (at && *at) {
        size_t n = strcspn(at, ";");
        http_buffer_append(&text, at, n);
        http_buffer_text(&text, "\n");
        at += n;
        at += strspn(at, "; ");
    }
    http_respond(x, 200, "text/plain", http_buffer_start(&text), http_buffer_size(&text));
    http_buffer_free(&text);
}

static const struct http_route routes[] = {
    {.method = "GET", .path = "/", .on_request = greet},
    {.method = "POST", .path = "/", .on_request = repeat_body},
    {.method = "GET", .path = "/echo", .on_request = repeat_fields},
    {.method = "POST", .path = "/echo", .on_request = repeat_fields},
    {.method = "GET", .path = "/cookie", .on_request = list_cookies},
    {0},
};

int main(void)
{
    struct http_server *server;
    const struct http_server_options options = {.routes = routes, .site = {.check_host = true}};
    if (http_server_open(&options, &server) != STATUS_OK) return 1;
    printf("%d\n", http_server_port(server));
    fflush(stdout);
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0)
        ;
    http_server_close(server, 0);
    return 0;
}
