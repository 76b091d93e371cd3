// SPDX-License-Identifier: Apache-2.0
// The blocks that sequences of a worker group may share and need, computed from tokens and positions.
#pragma once

#include "worker/scheduler_state.h"

// Returns how many leading KV blocks of `other` the sequence `q` could use.
int group_blocks_common(const struct sequence *q, const struct sequence *other);
// Returns how many leading blocks of a sequence the prefix cache has. Writes their numbers unless `blocks` is NULL.
int group_cached_blocks(const struct scheduler *s, const struct sequence *q, int32_t *blocks);
int group_blocks_expected(const struct sequence *q); // returns the KV blocks expected at the sequence's end

// Checks the waiting sequences when no pass is running. Returns NULL, or what is wrong.
const char *oracle_group(const struct scheduler *s);
