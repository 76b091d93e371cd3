// SPDX-License-Identifier: Apache-2.0
// Runs prefill and decode passes by engine_forward directly, as a worker does, but without a scheduler or a network.
// Prompts of pseudo-random tokens fill each pass up to the token budget, in order; a prompt that exceeds the room left
// is cut into chunks.
//
// Used by the thread that owns the engine. passes_create() allocates all memory.
#pragma once

#include "engine/engine.h"
#include "engine/model/work.h"

struct passes;

struct passes_limits {
    int rows;      // token budget of one pass
    int seqs;      // concurrent sequences
    int context;   // KV entries of one sequence
    int kv_blocks; // KV blocks of all sequences together
};

struct passes *passes_create(struct engine *engine, const struct passes_limits *limits, const struct work_model *work);
void passes_free(struct passes *p);

// Gives every sequence of the calls below the KV blocks for `entries` KV entries. Forgets all cached entries.
void passes_set_entries(struct passes *p, int entries);

// Prefills sequences [first, first + n) with `tokens` tokens each and asks for the logits of their last tokens. Adds
// the work and the time to *work_p and *seconds_p, which may be NULL.
enum status passes_prefill(struct passes *p, int first, int n, int tokens, struct work *work_p, double *seconds_p);

// Runs one pass of `tokens` tokens after the first `cached` entries of sequence `seq`, and asks for the logits of the
// last token. The tokens must fit one pass.
enum status passes_continue(struct passes *p, int seq, int cached, int tokens, struct work *work_p, double *seconds_p);

// Runs `steps` passes with one row for each of the sequences [0, n), which have `context` cached entries.
enum status passes_decode(struct passes *p, int n, int context, int steps, struct work *work_p, double *seconds_p);

// A prompt that one pass computes whole.
struct passes_prompt {
    const int32_t *tokens; // [n]
    int n;
    int rows; // at least n; the rows after the prompt are padding, computed and cached like the prompt
};

// Runs one pass over `n` prompts. Their KV blocks start at *block_p, which is moved past them. The result belongs to
// the prompts' last tokens: greedy tokens if the model can sample, else logits. It is valid until the next pass. Adds
// the work to *work_p, which may be NULL.
enum status passes_prompts(struct passes *p, const struct passes_prompt *prompts, int n, int *block_p,
                           struct work *work_p, struct forward_result *result);

// Fills tokens [n] with pseudo-random token ids, the same on every call.
void passes_tokens(int32_t *tokens, int n, int vocab_size);
