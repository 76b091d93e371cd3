// SPDX-License-Identifier: Apache-2.0
// The Prepacking paper's comparison (arXiv 2404.09529): the same prompts through the engine under every policy, each
// really computed. One thread, the engine's.
#pragma once

#include <stdbool.h>

#include "bench/passes.h"
#include "bench/prompts.h"

enum prepack_policy {
    PREPACK_PADDED,         // an arrival batch is one pass of [batch, longest] rows, padding computed and cached
    PREPACK_LENGTH_ORDERED, // the same, of batches made after sorting all prompts by length
    PREPACK_BATCH,          // an arrival batch is packed into bins, each one pass
    PREPACK_DATASET,        // all prompts are packed into bins, each one pass
    PREPACK_NONE,           // a pass for each prompt
    PREPACK_POLICIES,
    PREPACK_FULL_BINS = PREPACK_POLICIES // no policy: bins without room, to judge dataset by
};
const char *prepack_policy_name(enum prepack_policy policy);

// ---- what is computed when

struct prepack_pass {
    int first, n;  // prompts order[first .. first + n)
    int rows_each; // of every prompt, padding included; 0: what it has tokens
    int rows;
    int group; // passes of one group keep what they cache until its last: a batch, or a bin or prompt alone
};

struct prepack_plan {
    enum prepack_policy policy;
    int batch_size;
    int n_prompts, n_passes, n_groups;
    int32_t *order; // [n_prompts]
    struct prepack_pass *passes;
    int64_t rows;
    int capacity; // of a bin: the longest prompt, or the token budget if that is more; 0: no bins
    double pack_us;
};

struct prepack_plan prepack_plan_make(enum prepack_policy policy, const int32_t *length, int n, int batch_size,
                                      int token_budget);
// As many bins of exactly `capacity` tokens as the prompts need: one prompt after another as they stand, again from the
// first after the last, what begins last in a bin cut to its room. These are the prompts of *cut_p, whose tokens stay
// those of `prompts`.
struct prepack_plan prepack_plan_full_bins(const struct prompts *prompts, int capacity, struct prompts *cut_p);
void prepack_plan_free(struct prepack_plan *plan);

// ---- memory, counted: what an engine with room for just that would hold beside its weights

struct prepack_memory { // of an engine
    double row_bytes;   // activations of a pass for each row
    double logit_bytes; // for each prompt that ends in it
    double block_bytes; // a KV block
};

// A backend's scratch is not in it.
struct prepack_memory prepack_memory_of(const struct model *model);

struct prepack_need {
    double kv_bytes, pass_bytes;
    int kv_blocks, rows, prompts; // the most that a group caches; of one pass
};

struct prepack_need prepack_group_need(const struct prepack_plan *plan, const int32_t *length, int group,
                                       const struct prepack_memory *memory);
// The group with the largest sum; each count is the largest of any.
struct prepack_need prepack_plan_need(const struct prepack_plan *plan, const int32_t *length,
                                      const struct prepack_memory *memory);
// How many of the prompts (again from the first after the last) the policy can prefill as one batch in `bytes`.
int prepack_largest_batch(enum prepack_policy policy, const struct prompts *prompts, int token_budget, double bytes,
                          const struct prepack_memory *memory);

// ---- runs

struct prepack_run {
    struct prepack_plan plan;
    const struct prompts *prompts;
    int next_pass, rounds_done;
    int64_t rows_done;
    double clock_s;          // of all its passes so far in this round
    double *batch_s;         // [n_batches] a pass's time is shared among its prompts by their tokens
    double *ttft_s;          // [n_prompts] from the begin of its group to its first token; sums over rounds
    double *waited_ttft_s;   // [n_prompts] the same from the begin of the whole run
    struct work work;        // of all its passes
    uint64_t *digest;        // [n_prompts] of the first token, and of the logits that chose it where the host has them
    double total_s;          // of all its passes
    int n_batches, batch_at; // per round; first of the round under way in batch_s
};

// Room for `rounds` rounds. The run owns the plan, but not the prompts.
void prepack_run_init(struct prepack_run *run, const struct prepack_plan *plan, const struct prompts *prompts,
                      int rounds);
void prepack_run_free(struct prepack_run *run);
// The passes of the next group. After the last one it starts again.
enum status prepack_run_group(struct prepack_run *run, struct passes *passes, int vocab_size);
