// SPDX-License-Identifier: Apache-2.0
// Answers that continue after the tokens that the client has (router/core/resume.h). The thread that reads a message.
#pragma once

#include "router/front/request/answer.h"

// Makes the answer continue after the client's tokens: ids [n_ids], or the first `n_received` tokens, which are
// generated again. Call it when the request is read and a->text shows all tokens that it will show. Returns INVALID or
// OUT_OF_RANGE if these tokens cannot be the beginning of the answer. May compile the request's grammar.
enum status answer_resume(struct answer *a, const uint32_t *ids, size_t n_ids, uint32_t n_received);
