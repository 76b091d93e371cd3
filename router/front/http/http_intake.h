// SPDX-License-Identifier: Apache-2.0
// Passes bodies of HTTP requests to the functions that parse and tokenise them. Short bodies are read on the HTTP
// server's thread. Longer bodies, and bodies whose grammar must be compiled, are read on the intake pool, as in
// grpc_intake.h.
#pragma once

#include <jansson.h>

#include "lib/http/http.h"
#include "router/front/front.h"
#include "router/front/request/intake_pool.h"

struct http_message {
    struct http_exchange *x;
    void *user;
    int64_t arrived_us;
    bool at_once; // `read` runs on the server's thread: it should postpone a message that takes long
    bool dropped; // the pool dropped the waiting body: do not parse it
    // For http_message_postpone():
    const struct front *front;
    struct intake_owner *owner;
    void (*read)(const struct http_message *message);
    size_t size;
    json_t *body; // body that was parsed before the message was postponed; NULL: not parsed yet
};
typedef void http_read_fn(const struct http_message *message);

// Calls `read` for the body: before it returns if the body is short, otherwise on a thread of the intake pool. If the
// pool drops the message, `read` is called with `dropped` set. The exchange stays referenced until then. Call it within
// on_request. On UNAVAILABLE or EXHAUSTED, `read` is not called.
enum status http_message_read(const struct front *front, struct http_exchange *x, struct intake_owner *owner,
                              http_read_fn *read, void *user);

// Postpones a message that is being read on the server's thread: `read` is called again on the intake pool. `body` is
// the parsed body, which the postponed message owns. On EXHAUSTED, `read` will not be called again, and the body has
// been freed.
enum status http_message_postpone(const struct http_message *message, json_t *body);

// Parses the body as a JSON object (json_body.h) and frees its bytes, also on failure. A postponed message that was
// parsed returns a new reference to that object. Images in its conversation are replaced if the front has a text for
// them. Call it before another thread may use the exchange.
enum status http_message_parse(const struct http_message *message, json_t **body_p);
// Does the same for a message that is never postponed, and leaves images as they are.
enum status http_message_parse_as_sent(const struct http_message *message, json_t **body_p);
