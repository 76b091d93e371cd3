// SPDX-License-Identifier: Apache-2.0
// The group of a pass_model: its sequences and their KV blocks, which of them may start, and which is preempted
// (worker/admission.c). For pass_group.c and pass_model.c only.
#pragma once

#include "sim/pass_model.h"

static inline bool pass_rates_prompt(const struct pass_sequence *x)
{
    return x->q->next_logprob < x->q->n_kept;
}

// The group as it is before the pass: sequences, running, queue, refs, free_blocks and blank_blocks. The
// functions below change them and the counts as the group would, and set is_unknown where evicted blocks may matter.
void pass_group_read(struct pass_model *m);
// Each running sequence gets a block for its next row. Where none is free, a sequence is preempted.
void pass_group_grow(struct pass_model *m);

// Of a sequence in the queue: whether it waits for blocks that a running one computes, whether there may be memory for
// it, and the entries that the prefix cache has.
bool pass_group_waits(struct pass_model *m, const struct pass_sequence *x);
bool pass_group_may_start(struct pass_model *m, const struct pass_sequence *x);
int pass_group_cached_entries(struct pass_model *m, const struct pass_sequence *x);
bool pass_group_start(struct pass_model *m, struct pass_sequence *x); // false: it has to wait

// Draft rows for which the sequence has blocks, or gets free ones that no other is expected to need.
int pass_group_draft_blocks(struct pass_model *m, struct pass_sequence *x, int rows);
