// SPDX-License-Identifier: Apache-2.0
// What every endpoint of the HTTP API needs of an exchange: its ids, answers in JSON, errors in OpenAI's error object.
// Any thread, under the rules of lib/http/http.h.
#pragma once

#include "lib/http/http.h"
#include "router/front/http/json_writer.h"
#include "router/front/request/answer.h"

enum { HTTP_ID_ROOM = 129 };

// The user data of an exchange, from its head to its close.
struct http_call {
    uint64_t number;               // random; ids are made of it
    char request_id[HTTP_ID_ROOM]; // of the header x-request-id: the client's, or made here
    struct principal *principal;   // the caller; NULL: no API keys are used
    struct client *client;         // running requests; NULL: none
    struct intake_owner waiting;   // the body of an exchange without requests, while it waits in the intake pool
};

// Of every route: on_head and on_close.
void http_call_on_head(struct http_exchange *x);
void http_call_on_close(struct http_exchange *x, bool disconnected);

// Whether the limits of the caller's key allow a request (identity_admit()), or a call without a model's work. If not,
// the exchange was answered.
bool http_admit(struct http_exchange *x);
bool http_admit_call(struct http_exchange *x);

// Begins the trace of the exchange, to which all its requests belong (request_trace.h).
void http_trace_open(struct http_exchange *x, struct client *client);

// Answers with a JSON body, or with one of another type; UNAVAILABLE, if clients leave too many bytes unread.
void http_answer(struct http_exchange *x, const struct bytes *json);
void http_answer_as(struct http_exchange *x, const char *content_type, const void *bytes, size_t size);

// Answers with the error object of a status, of the API that the path belongs to; EXHAUSTED, KEY_LIMIT and UNAVAILABLE
// have the header Retry-After: a second. INTERNAL and DEADLINE have x-should-retry: false.
void http_fail(struct http_exchange *x, enum status status, const char *message);
// http_fail() with status_message(); retry_us 0: not known.
void http_refuse(struct http_exchange *x, enum status status);
void http_refuse_until(struct http_exchange *x, enum status status, int64_t retry_us);
int http_status_of(enum status status);

// Appends the error object: {"error":{"message","type","param","code"}}. `param` is the field that starts the message.
void http_error_add(struct bytes *out, enum status status, const char *message);

// For http_server_options: error_body and own_headers.
size_t http_error_body(const char *path, int http_status, const char *sentence, char *body, size_t room);
size_t http_own_headers(const struct http_exchange *x, char *lines, size_t room);
