// SPDX-License-Identifier: Apache-2.0
// The answer to one request, collected from its chunks and its completion, and its JSON object, which `generate --json`
// and `batch` print. One thread.
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/forepack/v1/inference.pb-c.h"

struct answer {
    char *text; // NUL-terminated; NULL before the first text
    size_t text_bytes;
    json_t *token_ids, *logprobs; // arrays
    json_t *prompt_logprobs;      // array: null for the first prompt token; empty: not asked for
    json_t *completion;           // finish_reason, usage, timing, kept, error; NULL before the completion
    int error_code;               // gRPC code of a completion with an error; 0: no error
};

struct answer_logprob { // of a prompt token, or with rank 0 of a new one
    int32_t token;
    int rank;
    double logprob;
    json_t *top; // [[id, logprob], ...]; the reference passes to answer_add_logprob()
};

void answer_init(struct answer *a);
void answer_free(struct answer *a);
void answer_add_text(struct answer *a, const char *text, size_t size_bytes);
void answer_add_logprob(struct answer *a, const struct answer_logprob *logprob);

// Adds one message of the stream; true when the message is the completion.
bool answer_add_response(struct answer *a, const Forepack__V1__GenerateResponse *response);

// The JSON object of the answer; `id` may be NULL. The caller owns the object.
json_t *answer_json(const struct answer *a, const char *id);

// Whether the request failed or was aborted, by the finish_reason of its answer; NULL: the answer has none.
bool answer_reason_is_failure(const char *finish_reason);

// The sentence of the error; NULL without an error.
const char *answer_error(const struct answer *a);
