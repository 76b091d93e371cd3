// SPDX-License-Identifier: Apache-2.0
// Bodies of HTTP requests on their way to the functions that parse and tokenise them: short ones are read on the HTTP
// server's thread, all others, and those whose grammar must be compiled, on the intake pool, as in grpc_intake.h.
#pragma once

#include <jansson.h>

#include "lib/http/http.h"
#include "router/front/front.h"
#include "router/front/request/intake_pool.h"

struct http_message {
    struct http_exchange *x;
    void *user;
    int64_t arrived_us;
    bool at_once; // on the server's thread: what takes long is postponed
    bool dropped; // while the body waited: do not read it
    // For http_message_postpone():
    const struct front *front;
    struct intake_owner *owner;
    void (*read)(const struct http_message *message);
    size_t size;
    json_t *body; // parsed before it was postponed; NULL: it was not
};
typedef void http_read_fn(const struct http_message *message);

// Within on_request: calls `read` for the body, now or later, exactly once, on any thread; the exchange stays
// referenced. UNAVAILABLE or EXHAUSTED: it will not be read.
enum status http_message_read(const struct front *front, struct http_exchange *x, struct intake_owner *owner,
                              http_read_fn *read, void *user);

// To be called by the reader of a message that is read at once, with the body that it has parsed: the reader is called
// for it again, on the intake pool. Takes over the body. EXHAUSTED: it will not be read.
enum status http_message_postpone(const struct http_message *message, json_t *body);

// The body as a JSON object (json_body.h); the exchange's bytes are freed. To be called before the exchange may be
// answered by another thread.
enum status http_message_parse(const struct http_message *message, json_t **body_p);
