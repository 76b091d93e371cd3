// SPDX-License-Identifier: Apache-2.0
// What a worker group may share and needs, computed from tokens and positions.
#pragma once

#include "worker/scheduler_state.h"

// Leading blocks that the first sequence could use of the second one's.
int group_blocks_common(const struct sequence *q, const struct sequence *other);
// Leading blocks of a sequence that the prefix cache has, and their numbers, unless `blocks` is NULL.
int group_cached_blocks(const struct scheduler *s, const struct sequence *q, int32_t *blocks);
int group_blocks_expected(const struct sequence *q); // in the end

// Before a pass: NULL, or what is wrong with the sequences that wait.
const char *oracle_group(const struct scheduler *s);
