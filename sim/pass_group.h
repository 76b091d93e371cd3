// SPDX-License-Identifier: Apache-2.0
// The group of a pass_model (worker/admission.c): its sequences and their KV blocks, which sequences may start, and
// which sequence is preempted. For pass_group.c and pass_model.c only.
#pragma once

#include "sim/pass_model.h"

static inline bool pass_rates_prompt(const struct pass_sequence *x)
{
    return x->q->next_logprob < x->q->n_kept;
}

// Reads the group before the pass: sequences, running, queue, refs, free_blocks and blank_blocks. The functions below
// change them and the counts as the group would. They set is_unknown if evicted blocks may matter.
void pass_group_read(struct pass_model *m);
// Gives each running sequence a block for its next row. If none is free, preempts a sequence.
void pass_group_grow(struct pass_model *m);

// The functions below are for a sequence in the queue.
// Returns true if the sequence waits for blocks that a running sequence computes.
bool pass_group_waits(struct pass_model *m, const struct pass_sequence *x);
// Returns true if there may be KV blocks for the sequence.
bool pass_group_may_start(struct pass_model *m, const struct pass_sequence *x);
// Returns the number of the sequence's entries in the prefix cache.
int pass_group_cached_entries(struct pass_model *m, const struct pass_sequence *x);
bool pass_group_start(struct pass_model *m, struct pass_sequence *x); // false: the sequence has to wait

// Returns for how many of `rows` draft rows the sequence has KV blocks. First gives it free blocks that no other
// sequence is expected to need.
int pass_group_draft_blocks(struct pass_model *m, struct pass_sequence *x, int rows);
