// SPDX-License-Identifier: Apache-2.0
// Checks a speculator's answer and reads the selection in it. The answer is not trusted. Changes no request. Use on the
// core's thread only.
#pragma once

#include "router/core/core_state.h"

// Returns why the answer is invalid, or NULL if it is valid.
const char *score_answer_error(const struct core *c, const struct request *r, const struct score_result *result);

// Returns the speculator's selection of the prompt. Selects all tokens if core_rate_holds() is false for the request.
// The caller frees *kept_p, the kept ranges. The draft is borrowed from the result. An invalid draft is dropped and
// logged.
struct selection score_answer_selection(const struct core *c, const struct request *r,
                                        const struct score_result *result, struct token_range **kept_p);
