// SPDX-License-Identifier: Apache-2.0
// What came back for one request, gathered from its chunks and its completion, and its JSON form (the same for
// `generate --json`, `batch` and the in-process run).
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/forepack/v1/inference.pb-c.h"

struct answer {
    char *text; // NUL-terminated; NULL while there is none
    size_t text_bytes;
    json_t *token_ids, *logprobs; // arrays
    json_t *completion;           // finish_reason, usage, timing, kept, error; NULL until it came
    int error_code;               // gRPC code of an error completion, 0: none
};

void answer_init(struct answer *a);
void answer_free(struct answer *a);
void answer_add_text(struct answer *a, const char *text, size_t size_bytes);

// Takes one message of the stream; true when it was the completion.
bool answer_take(struct answer *a, const Forepack__V1__GenerateResponse *response);

// The finished object; `id` may be NULL. The caller owns it.
json_t *answer_json(const struct answer *a, const char *id);

// "finish_reason", "error" sentence or NULL.
const char *answer_error(const struct answer *a);

// A line for people: "[42 tokens; kept 310 of 1008 prompt tokens; first token after 35 ms]".
void answer_print_summary(const struct answer *a);
