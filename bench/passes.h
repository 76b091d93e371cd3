// SPDX-License-Identifier: Apache-2.0
// Prefill and decode as a worker would run them, on engine_forward directly: no sampling, no network. Prompts of
// pseudo-random tokens share passes up to the token budget, first come first served, and are cut into chunks where
// they are longer than the room left.
//
// Owned by the thread that owns the engine. Memory is taken at creation.
#pragma once

#include "bench/work.h"
#include "engine/engine.h"

struct passes;

struct passes_limits {
    int rows;      // token budget of one pass
    int seqs;      // sequences at once
    int context;   // KV entries of one sequence
    int kv_blocks; // of all
};

struct passes *passes_create(struct engine *engine, const struct passes_limits *limits, const struct work_model *work);
void passes_free(struct passes *p);

// Sequence s of those below owns as many KV blocks as `entries` take. What is cached is forgotten.
void passes_set_entries(struct passes *p, int entries);

// Prefills sequences [first, first + n) with `tokens` each from scratch, the logits of their last tokens wanted.
// What it took is added to *work_p and *seconds_p, which may be NULL.
enum status passes_prefill(struct passes *p, int first, int n, int tokens, struct work *work_p, double *seconds_p);

// `steps` passes of one row for each of the sequences [0, n), which have `context` entries cached.
enum status passes_decode(struct passes *p, int n, int context, int steps, struct work *work_p, double *seconds_p);

// A whole prompt as one pass computes it.
struct passes_prompt {
    const int32_t *tokens; // [n]
    int n;
    int rows; // at least n: the rest is padding, rows behind the prompt that are computed and cached like its own
};

// One pass over `n` prompts from scratch, their KV blocks from *block_p on, which moves behind them. The result is of
// their last tokens: the likeliest tokens where the model draws, else logits; valid until the next pass. What it took
// is added to *work_p, which may be NULL.
enum status passes_prompts(struct passes *p, const struct passes_prompt *prompts, int n, int *block_p,
                           struct work *work_p, struct forward_result *result);

// Pseudo-random token ids, always the same.
void passes_tokens(int32_t *tokens, int n, int vocab_size);
