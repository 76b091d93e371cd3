// SPDX-License-Identifier: Apache-2.0
// Predicts the pass of a worker group from its sequences by slow and plain rules, and compares it with the pass that
// the group runs.
#pragma once

#include "worker/scheduler_state.h"

// Leading blocks that the first sequence could use of the second one's.
int group_blocks_common(const struct sequence *q, const struct sequence *other);
// Leading blocks of a sequence that the prefix cache has, and their numbers, unless `blocks` is NULL.
int group_cached_blocks(const struct scheduler *s, const struct sequence *q, int32_t *blocks);
int group_blocks_expected(const struct sequence *q); // in the end

struct sequence_before {
    uint64_t id;
    int pending, lost; // rows; entries that would have to be computed again if it were preempted
    bool is_prompt, starts, waits;
};

struct group_oracle {
    struct sequence_before *running, *queue; // in their order
    int n_running, n_queue, running_capacity, queue_capacity;
    int prompt_rows, decodes;           // of the running sequences
    uint64_t preemptions, counted_rows; // rows that were counted as those of prompts
    int generated;                      // running sequences that have computed their prompts
    bool mixes_tenants;
    bool has_wrong_match; // the cached prefix that a waiting sequence remembers is another one than in the cache
};

void group_oracle_before(struct group_oracle *o, const struct scheduler *s);
// After a step. NULL, or what it did wrong.
const char *group_oracle_after(const struct group_oracle *o, const struct scheduler *s);
void group_oracle_fini(struct group_oracle *o);
