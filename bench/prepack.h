// SPDX-License-Identifier: Apache-2.0
// The comparison of the Prepacking paper (arXiv 2404.09529): the engine prefills the same prompts under every policy.
// Used by the engine's thread.
#pragma once

#include <stdbool.h>

#include "bench/passes.h"
#include "bench/prompts.h"

enum prepack_policy {
    PREPACK_PADDED,         // an arrival batch is one pass of [batch, longest] rows; padding is computed and cached
    PREPACK_LENGTH_ORDERED, // like padded, with batches formed after sorting all prompts by length
    PREPACK_BATCH,          // an arrival batch is packed into bins, each one pass
    PREPACK_DATASET,        // all prompts are packed into bins, each one pass
    PREPACK_NONE,           // one pass per prompt
    PREPACK_POLICIES,
    PREPACK_FULL_BINS = PREPACK_POLICIES // not a policy: completely full bins, the reference for `dataset`
};
const char *prepack_policy_name(enum prepack_policy policy);

// --- plans: the prompts of each pass

struct prepack_pass {
    int first, n;  // prompts order[first .. first + n)
    int rows_each; // rows of every prompt, padding included; 0: as many as the prompt has tokens
    int rows;
    int group; // a batch, a bin or a prompt; KV entries stay cached until the last pass of the group
};

struct prepack_plan {
    enum prepack_policy policy;
    int batch_size;
    int n_prompts, n_passes, n_groups;
    int32_t *order;              // [n_prompts] prompts in the order of their passes
    struct prepack_pass *passes; // [n_passes]
    int64_t rows;                // rows of all passes, padding included
    int capacity;                // rows of a bin: the longest prompt or the token budget, whichever is more; 0: no bins
    double pack_us;              // time that packing took
};

struct prepack_plan prepack_plan_make(enum prepack_policy policy, const int32_t *length, int n, int batch_size,
                                      int token_budget);
// Plans as many bins of exactly `capacity` tokens as the prompts' tokens need. Prompts fill the bins in order, starting
// over after the last; the last prompt of a bin is cut to the room left. The cut prompts go to *cut_p, which borrows
// the tokens of `prompts`.
struct prepack_plan prepack_plan_full_bins(const struct prompts *prompts, int capacity, struct prompts *cut_p);
void prepack_plan_free(struct prepack_plan *plan);

// ---- memory, computed: the needs of an engine sized for exactly these passes, in addition to its weights

struct prepack_memory {
    double row_bytes;   // bytes of activations per row of a pass
    double logit_bytes; // bytes of logits per prompt that ends in the pass
    double block_bytes; // bytes of a KV block
};

// Returns the memory of a model, except the backend's scratch memory.
struct prepack_memory prepack_memory_of(const struct model *model);

struct prepack_need {
    double kv_bytes, pass_bytes;
    int kv_blocks; // KV blocks that the group caches
    int rows;      // rows of the group's largest pass
    int prompts;   // most prompts of a pass of the group
};

struct prepack_need prepack_group_need(const struct prepack_plan *plan, const int32_t *length, int group,
                                       const struct prepack_memory *memory);
// Returns the needs of a whole plan. Bytes are of the group that needs most bytes. Each count is the maximum over
// groups.
struct prepack_need prepack_plan_need(const struct prepack_plan *plan, const int32_t *length,
                                      const struct prepack_memory *memory);
// Returns the largest number of prompts (starting over after the last) that the policy can prefill as one batch in
// `bytes`.
int prepack_largest_batch(enum prepack_policy policy, const struct prompts *prompts, int token_budget, double bytes,
                          const struct prepack_memory *memory);

// ---- runs

struct prepack_run {
    struct prepack_plan plan;
    const struct prompts *prompts;
    int next_pass, rounds_done;
    int64_t rows_done;
    double clock_s;        // sum over the passes of this round so far
    double *batch_s;       // [rounds * n_batches]; a pass's time is divided among its prompts by their tokens
    double *ttft_s;        // [n_prompts] from the start of the prompt's group to its first token, summed over rounds
    double *waited_ttft_s; // [n_prompts] like ttft_s, but from the start of the round
    struct work work;      // work of all passes
    uint64_t *digest;      // [n_prompts] hash of the first token, and of its logits if the host has them
    double total_s;        // time of all passes
    int n_batches;         // batches of a round
    int batch_at;          // index in batch_s of the current round's first batch
};

// Allocates for `rounds` rounds. The run owns the plan and borrows the prompts.
void prepack_run_init(struct prepack_run *run, const struct prepack_plan *plan, const struct prompts *prompts,
                      int rounds);
void prepack_run_free(struct prepack_run *run);
// Runs the passes of the next group. After the last group the next round starts.
enum status prepack_run_group(struct prepack_run *run, struct passes *passes, int vocab_size);
