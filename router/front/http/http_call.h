// SPDX-License-Identifier: Apache-2.0
// Serves every endpoint of the HTTP API: ids of an exchange, API keys, answers in JSON, and errors in the form of
// OpenAI or Anthropic. Any thread, under the rules of lib/http/http.h.
#pragma once

#include "lib/http/http.h"
#include "router/front/http/json_writer.h"
#include "router/front/request/answer.h"

enum { HTTP_ID_ROOM = 129 };

// Headers of answers that web pages of other origins may read.
extern const char http_exposed_headers[];

// The user data of an exchange, from its head to its close.
struct http_call {
    uint64_t number;               // random; the ids of the answer contain it
    char request_id[HTTP_ID_ROOM]; // value of the header x-request-id, sent by the client or made from `number`
    struct principal *principal;   // the caller; NULL: no API keys are used
    struct client *client;         // owns the requests of the exchange; NULL: it has no requests
    bool background;               // a request of a batch
    void *transfer;                // an upload or download; NULL: none
    struct intake_owner waiting;   // only if `client` is NULL: the job of the body while it waits in the intake pool
};

// on_head and on_close of the routes. A route with its own on_head calls http_call_open() there, which returns false if
// it has refused the caller. A route with its own on_close calls http_call_on_close() there.
void http_call_on_head(struct http_exchange *x);
bool http_call_open(struct http_exchange *x);
void http_call_on_close(struct http_exchange *x, bool disconnected);
// Returns the user data of a request of the process itself (struct http_local). Takes ownership of `principal`.
struct http_call *http_call_create_local(struct principal *principal);

// The caller's tenant; "" without API keys.
const char *http_call_tenant(const struct http_exchange *x);

// Return true if the limits of the caller's key allow a request (identity_admit()), or a call that needs no model. If
// they return false, the exchange has been answered with the refusal.
bool http_admit(struct http_exchange *x);
bool http_admit_call(struct http_exchange *x);

// Begins the trace of the exchange, to which all its requests belong (request_trace.h).
void http_trace_open(struct http_exchange *x, struct client *client);

// Answer with a JSON body, or with a body of type `content_type`. If clients leave too many bytes unread, UNAVAILABLE
// is sent instead.
void http_answer(struct http_exchange *x, const struct bytes *json);
void http_answer_as(struct http_exchange *x, const char *content_type, const void *bytes, size_t size);

// Answers with the error object of a status, in the form of the API that the path belongs to. EXHAUSTED, KEY_LIMIT and
// UNAVAILABLE get the headers Retry-After and retry-after-ms with one second. INTERNAL and DEADLINE get x-should-retry:
// false.
void http_fail(struct http_exchange *x, enum status status, const char *message);
// Answers as http_fail() does, with status_message().
void http_refuse(struct http_exchange *x, enum status status);
// Answers with the error object for an HTTP status that no `enum status` has. 507 gets x-should-retry: false.
void http_fail_as(struct http_exchange *x, int http_status, const char *message);
// Calls http_refuse() with the time after which a retry may succeed. 0 means unknown, and one second is sent.
void http_refuse_until(struct http_exchange *x, enum status status, int64_t retry_us);

// Appends OpenAI's error object: {"error":{"message","type","param","code"}}. `param` is the field name at the start of
// `message`, or null.
void http_error_add(struct bytes *out, enum status status, const char *message);

// The functions error_body and own_headers of struct http_server_options. They return the number of bytes written, or 0
// if `room` is too small.
size_t http_error_body(const char *path, int http_status, const char *sentence, char *body, size_t room);
size_t http_own_headers(const struct http_exchange *x, char *lines, size_t room);
