// SPDX-License-Identifier: Apache-2.0
// Serves every endpoint of the HTTP API: ids of an exchange, API keys, answers in JSON, errors as OpenAI's error
// object. Any thread, under the rules of lib/http/http.h.
#pragma once

#include "lib/http/http.h"
#include "router/front/http/json_writer.h"
#include "router/front/request/answer.h"

enum { HTTP_ID_ROOM = 129 };

// The user data of an exchange, from its head to its close.
struct http_call {
    uint64_t number;               // random; ids are made of it
    char request_id[HTTP_ID_ROOM]; // value of the header x-request-id: the client's, or made here
    struct principal *principal;   // the caller; NULL: no API keys are used
    struct client *client;         // running requests; NULL: none
    struct intake_owner waiting;   // the body of an exchange without requests, while it waits in the intake pool
};

// on_head and on_close of every route.
void http_call_on_head(struct http_exchange *x);
void http_call_on_close(struct http_exchange *x, bool disconnected);

// Returns true if the limits of the caller's key allow a request (identity_admit()), or a call without a model's work.
// If not, the exchange has been answered.
bool http_admit(struct http_exchange *x);
bool http_admit_call(struct http_exchange *x);

// Begins the trace of the exchange, to which all its requests belong (request_trace.h).
void http_trace_open(struct http_exchange *x, struct client *client);

// Answers with a JSON body, or with one of another type. If clients leave too many bytes unread, answers UNAVAILABLE.
void http_answer(struct http_exchange *x, const struct bytes *json);
void http_answer_as(struct http_exchange *x, const char *content_type, const void *bytes, size_t size);

// Answers with the error object of a status, in the form of the API that the path belongs to. EXHAUSTED, KEY_LIMIT and
// UNAVAILABLE get the header Retry-After with one second, INTERNAL and DEADLINE get x-should-retry: false.
void http_fail(struct http_exchange *x, enum status status, const char *message);
// Calls http_fail() with status_message(). retry_us 0: not known.
void http_refuse(struct http_exchange *x, enum status status);
void http_refuse_until(struct http_exchange *x, enum status status, int64_t retry_us);
int http_status_of(enum status status);

// Appends the error object: {"error":{"message","type","param","code"}}. `param` is the field that starts the message.
void http_error_add(struct bytes *out, enum status status, const char *message);

// For http_server_options: error_body and own_headers.
size_t http_error_body(const char *path, int http_status, const char *sentence, char *body, size_t room);
size_t http_own_headers(const struct http_exchange *x, char *lines, size_t room);
