// SPDX-License-Identifier: Apache-2.0
// Serves the endpoints whose requests end with their score: POST /v1/score and POST /v1/compress.
#pragma once

#include "router/front/http/http_service.h"
#include "router/front/http/json_body.h"
#include "router/front/request/answer.h"

// The part of an endpoint that depends on it.
struct http_score_api {
    const char *method; // name in the log
    bool as_sent;       // images of the body are not replaced by the router's text for them
    // Reads the body into the answer's request. May set `a->data` to a compression. Any thread may call.
    enum status (*read)(const json_t *body, struct http_input *in, struct answer *a);
    json_knows_fn *knows; // as in struct http_api
    // Answers a request that has its score. Core's thread.
    void (*answer)(struct http_exchange *x, struct answer *a, const struct request *r);
};

// Reads the exchange's body and submits its request: a route's on_request calls it. `api` is static.
void http_score_start(struct http_exchange *x, const struct http_score_api *api);

void http_score_post(struct http_exchange *x);
void http_compress_post(struct http_exchange *x); // http_compress.c
