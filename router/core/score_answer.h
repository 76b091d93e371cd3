// SPDX-License-Identifier: Apache-2.0
// Checks the answer of a speculator, which may be wrong or lie, and reads the selection in it. Changes no request. Use
// on the core's thread only.
#pragma once

#include "router/core/core_state.h"

// Returns what is wrong with the answer, or NULL.
const char *score_answer_error(const struct core *c, const struct request *r, const struct score_result *result);

// Returns the speculator's selection of the prompt, or all tokens if the rate no longer holds. The caller frees
// *kept_p, the kept ranges; the draft is borrowed from the result. A wrong draft is left out with a line in the log.
struct selection score_answer_selection(const struct core *c, const struct request *r,
                                        const struct score_result *result, struct token_range **kept_p);
