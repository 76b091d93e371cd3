// SPDX-License-Identifier: Apache-2.0
// Requests of the process itself (http.h): exchanges without a connection.
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/http/internal.h"
#include "lib/http/route.h"

// Appends a text with its NUL. Returns its offset.
static size_t add_text(struct http_exchange *x, const char *text)
{
    size_t at = x->head.text_size, size = strlen(text) + 1;
    memcpy(x->texts + at, text, size);
    x->head.text_size += size;
    return at;
}

static struct http_exchange *local_create(struct http_server *server, const struct http_local *request)
{
    enum { EMPTY_TEXTS = 4 }; // the query, and the pair that ends the fields
    struct http_exchange *x = mem_alloc(sizeof *x + strlen(request->method) + strlen(request->path) + 2 + EMPTY_TEXTS);
    x->head.method = add_text(x, request->method);
    x->head.path = add_text(x, request->path);
    x->head.query = add_text(x, "");
    x->head.fields = add_text(x, "");
    add_text(x, "");
    x->loop = &server->loops[0];
    x->context = server->o.context;
    x->complete = true;
    x->body = request->body;
    x->body_size = request->size;
    x->respond = request->respond;
    x->respond_arg = request->arg;
    atomic_init(&x->references, 1);
    atomic_init(&x->unread, 0);
    pthread_mutex_init(&x->lock, NULL);
    return x;
}

struct http_exchange *http_local_open(struct http_server *server, const struct http_local *request, void *user)
{
    char methods[HTTP_METHODS_BYTES];
    const struct http_route *route;
    if (route_find(server->o.routes, request->method, request->path, &route, methods) != ROUTE_FOUND) {
        free(request->body);
        return NULL;
    }
    struct http_exchange *x = local_create(server, request);
    x->route = route;
    x->user = user;
    x->notify = true;
    atomic_fetch_add(&server->exchanges, 1);
    return x;
}

void http_local_start(struct http_exchange *x)
{
    x->route->on_request(x);
}

void http_local_close(struct http_exchange *x)
{
    exchange_close(x, !exchange_is_started(x));
}
