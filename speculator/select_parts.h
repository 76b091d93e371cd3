// SPDX-License-Identifier: Apache-2.0
// The two ways to use the keep budget, for select.c only. Both set kept [n] to 1 for the tokens that they keep. If two
// parts are equally important, they prefer the earlier part. They take O(n log n).
#pragma once

#include "speculator/select.h"

// Keeps the chunks of policy->chunk_tokens tokens with the highest mean importance. The budget counts chunks.
void select_chunks(uint8_t *kept, const float *importance, int n, const struct select_policy *policy);

// Keeps spans of the tokens that are not kept yet. The budget counts tokens, and is always used up.
void select_spans(uint8_t *kept, const float *importance, int n, const struct select_policy *policy);
