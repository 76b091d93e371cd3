// SPDX-License-Identifier: Apache-2.0
// Checks a speculator's answer and reads the selection in it. The answer is not trusted. Changes no request. Use on the
// core's thread only.
#pragma once

#include "router/core/core_state.h"

// Returns what is wrong with the answer, or NULL if nothing is.
const char *score_answer_error(const struct core *c, const struct request *r, const struct score_result *result);

// Returns the speculator's selection of the prompt. Selects all tokens if core_rate_holds() is false for the request.
// The caller frees *kept_p, the kept ranges. The draft is borrowed from the result. A wrong draft is left out, and the
// log says so.
struct selection score_answer_selection(const struct core *c, const struct request *r,
                                        const struct score_result *result, struct token_range **kept_p);
