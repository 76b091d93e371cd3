// SPDX-License-Identifier: Apache-2.0
// Sends the answer of a request to a gRPC client: chunks and then one completion, a score, or a compression.
// Any thread may call.
#pragma once

#include "lib/net/rpc.h"
#include "proto/forepack/v1/inference.pb-c.h"
#include "router/front/request/answer.h"
#include "router/front/request/compression.h"

// Sends a chunk, unless it is empty: no text, no token and no prompt log-probabilities.
void wire_chunk_send(struct rpc_call *call, const char *request_id, const struct answer_chunk *chunk, uint64_t mark);

// Writes how the prompt of `r` is prefilled: "speculated", "whole:REASON", or "" while this is not decided.
enum { WIRE_PREFILL_ROOM = 64 };
void wire_prefill_format(const struct request *r, char text[WIRE_PREFILL_ROOM]);

// Decisions and times of the stages of a request. Texts are borrowed from the request.
struct wire_explanation {
    Forepack__V1__Stages stages;
    Forepack__V1__Stage of[NODE_ROLES]; // stages.score and stages.prefill, if they are set
    Forepack__V1__Timing timing;
};
// Leaves out nodes and the load from other clients, unless it is for an operator.
void wire_explanation_fill(const struct request *r, bool for_operator, struct wire_explanation *m);

// Sends a completion. `status` and `message` are sent only with FINISH_REASON_ERROR.
void wire_completion_send(struct rpc_call *call, const struct request *r, bool return_kept, enum finish_reason reason,
                          enum status status, const char *message);

// Sends the completion of a refused request of GenerateMany. An id that is not UTF-8 is sent as "".
void wire_refusal_send(struct rpc_call *call, const char *request_id, enum status status, const char *message);

// Answers a Score call and ends it.
void wire_score_send(struct rpc_call *call, const struct request *r);

// Answers a Compress call `to`, and drops a reference to it: a compress_send_fn.
void wire_compression_send(void *to, const struct compression *c, enum status status);
