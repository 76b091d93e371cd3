// SPDX-License-Identifier: Apache-2.0
// What a KServe client receives for a request: one response, or pieces of the text and then the last one. Core's
// thread.
#pragma once

#include "lib/net/rpc.h"
#include "router/front/kserve/kserve_request.h"
#include "router/front/request/answer.h"

// What an answer needs to know of its request, and its output that is not sent yet.
struct kserve_answer {
    char *id, *model; // owned
    bool on_stream;   // of a ModelStreamInfer call
    bool pieces, empty_final;
    unsigned outputs; // bit of each kserve_output
    const struct tokenizer *tokenizer;
    struct whole_answers *whole;      // of the front
    size_t whole_bytes;               // of this answer in it
    bool ended;                       // its error was sent
    struct bytes text, ids, logprobs; // ids: int32_t
    int n_tokens;
    double cumulative_logprob;
};

struct kserve_answer *kserve_answer_create(struct front *front, const Inference__ModelInferRequest *m,
                                           const struct kserve_request *q, bool on_stream);
// Counts the prompt that the text repeats, from its submission on: a request may wait for long. False: as of
// kserve_chunk().
bool kserve_answer_begin(struct kserve_answer *a);
void kserve_answer_free(struct kserve_answer *a);

// Adds tokens to the output; those of an answer in pieces are sent. False: a whole answer is too large, with the
// reason.
bool kserve_chunk(struct rpc_call *call, struct kserve_answer *a, const struct answer_chunk *chunk,
                  const struct request *r);
// Sends the rest with the usage.
void kserve_end(struct rpc_call *call, struct kserve_answer *a, const struct request *r,
                const struct answer_chunk *rest, enum finish_reason reason);

// The error of one request of a ModelStreamInfer call. An id that is not UTF-8 is sent as "".
void kserve_error_send(struct rpc_call *call, const char *id, const char *message);
