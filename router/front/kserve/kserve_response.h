// SPDX-License-Identifier: Apache-2.0
// Sends the answer of a request to a KServe client: one response, or pieces of the text and then the last response.
// Core's thread.
#pragma once

#include "lib/net/rpc.h"
#include "router/front/kserve/kserve_request.h"
#include "router/front/request/answer.h"

// The properties of the request that shape its answer, and the output that is not sent yet.
struct kserve_answer {
    char *id, *model; // owned
    bool on_stream;   // the request came in a ModelStreamInfer call
    bool pieces, empty_final;
    unsigned outputs; // bit of each kserve_output
    const struct tokenizer *tokenizer;
    struct whole_answers *whole;      // the front's
    size_t whole_bytes;               // bytes of this answer in `whole`
    bool ended;                       // its error was sent
    struct bytes text, ids, logprobs; // ids: int32_t
    int n_tokens;
    double cumulative_logprob;
};

struct kserve_answer *kserve_answer_create(struct front *front, const Inference__ModelInferRequest *m,
                                           const struct kserve_request *q, bool on_stream);
// Counts the prompt that the text repeats. Call it at the submission, since a request may wait for long. False: as
// kserve_chunk().
bool kserve_answer_begin(struct kserve_answer *a);
void kserve_answer_free(struct kserve_answer *a);

// Adds tokens to the output, and sends them if the answer is sent in pieces. False, with the reason: a whole answer is
// too large.
bool kserve_chunk(struct rpc_call *call, struct kserve_answer *a, const struct answer_chunk *chunk,
                  const struct request *r);
// Sends the rest with the usage.
void kserve_end(struct rpc_call *call, struct kserve_answer *a, const struct request *r,
                const struct answer_chunk *rest, enum finish_reason reason);

// Sends the error of one request of a ModelStreamInfer call. An id that is not UTF-8 is sent as "".
void kserve_error_send(struct rpc_call *call, const char *id, const char *message);
