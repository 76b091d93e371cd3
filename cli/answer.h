// SPDX-License-Identifier: Apache-2.0
// The answer to one request, collected from its chunks and its completion. Its JSON object is printed by `generate
// --json` and `batch`. One thread.
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
    json_t *prompt_logprobs;      // array: null for the first prompt token, then objects; empty if not asked for
    json_t *completion;           // finish_reason, usage, timing, kept, error; NULL before the completion
    int error_code;               // gRPC code of a completion with an error; 0: no error
    // For a resume (resume.h):
    uint64_t mark;           // Chunk.mark; 0: not received
    size_t text_sent_bytes;  // bytes of `text` up to the last chunk with tokens; the rest comes again
    size_t text_again_bytes; // bytes of the next chunks that `text` has already
    int resumed;             // times the answer was continued after its stream broke
};

struct answer_logprob { // log-probability of a prompt token, or of a new token if rank is 0
    int32_t token;
    int rank;
    double logprob;
    json_t *top; // [[id, logprob], ...]; answer_add_logprob() takes ownership of the reference
};

void answer_init(struct answer *a);
void answer_free(struct answer *a);
void answer_add_text(struct answer *a, const char *text, size_t size_bytes);
void answer_add_logprob(struct answer *a, const struct answer_logprob *logprob);

// Adds one message of the stream. Returns true when the message is the completion.
bool answer_add_response(struct answer *a, const Forepack__V1__GenerateResponse *response);

// Returns the JSON object of the answer, owned by the caller. `id` may be NULL.
json_t *answer_json(const struct answer *a, const char *id);

// Returns true if the finish_reason of an answer means that the request failed or was aborted. NULL is allowed.
bool answer_reason_is_failure(const char *finish_reason);

// Returns the error message, or NULL if there is no error.
const char *answer_error(const struct answer *a);
