// SPDX-License-Identifier: Apache-2.0
// Requests that continue an answer whose stream broke: another router, or this one before it restarted, began it. The
// sequence starts with the tokens that the client has, as a replay does, so the next tokens are those that would have
// come. The mark of an answer identifies all that they depend on: prompt, seed, kept tokens and model.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "router/core/request.h"

// Returns the part of a mark that is known before the request is scored.
uint64_t resume_basis(const int32_t *prompt, int n_tokens, const struct sampling *sampling);
// Returns the mark of a request whose kept tokens are known. A mark is never 0. All routers compute the same mark if
// prompt, seed, kept tokens and model are the same.
uint64_t resume_mark(const struct request *r, uint64_t model_fingerprint);
// Returns true if the answer with this mark was pruned.
bool resume_mark_is_pruned(uint64_t mark);

// Returns OUT_OF_RANGE if the client has more tokens than the answer may have.
enum status resume_check(const struct request *r);
// Returns MISMATCH if the request's mark is not the one that the client has, so that other tokens could come.
enum status resume_compare(const struct request *r);
// Returns true if the client has all tokens of the answer, and lacks only its end.
bool resume_is_complete(const struct request *r);
