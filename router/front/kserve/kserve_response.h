// SPDX-License-Identifier: Apache-2.0
// Sends the answer of a request to a KServe client: one response, or pieces of the text and then the last response.
// Core's thread.
#pragma once

#include "lib/net/rpc.h"
#include "router/front/kserve/kserve_request.h"
#include "router/front/request/answer.h"

// The answer to one request: the properties of the request that determine the answer's form, and the output that is not
// sent yet.
struct kserve_answer {
    char *id, *model; // owned
    bool on_stream;   // the request came in a ModelStreamInfer call
    bool pieces;      // the answer is sent in pieces
    bool empty_final; // as in struct kserve_request
    unsigned outputs; // as in struct kserve_request
    const struct tokenizer *tokenizer;
    struct whole_answers *whole; // borrowed from the front
    size_t whole_bytes;          // bytes of this answer in `whole`
    bool ended;                  // an error was sent, which ended the answer
    // Output that is not sent yet:
    struct bytes text;
    struct bytes ids;          // token ids as int32_t
    struct bytes logprobs;     // items of a JSON list
    int n_tokens;              // number of tokens
    double cumulative_logprob; // sum over all tokens of the answer, sent or not
};

struct kserve_answer *kserve_answer_create(struct front *front, const Inference__ModelInferRequest *m,
                                           const struct kserve_request *q, bool on_stream);
// If the answer repeats the prompt, counts the prompt's memory. Call it when the request is submitted, because a
// request may wait for a long time. Returns false in the same case as kserve_chunk().
bool kserve_answer_begin(struct kserve_answer *a);
void kserve_answer_free(struct kserve_answer *a);

// Adds tokens to the output, and sends them if the answer is sent in pieces. Returns false if a whole answer is too
// large (whole_answer_grow()); status_message() has the error message.
bool kserve_chunk(struct rpc_call *call, struct kserve_answer *a, const struct answer_chunk *chunk,
                  const struct request *r);
// Sends the last response: the remaining output, with the usage.
void kserve_end(struct rpc_call *call, struct kserve_answer *a, const struct request *r,
                const struct answer_chunk *rest, enum finish_reason reason);

// Sends the error of one request of a ModelStreamInfer call. An id that is not UTF-8 is sent as "".
void kserve_error_send(struct rpc_call *call, const char *id, const char *message);
