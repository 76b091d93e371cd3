// SPDX-License-Identifier: Apache-2.0
// The one descriptor of every forward pass: packed prefill, chunked prefill, restored positions, decode rows and
// look-ahead rows, mixed freely.
//
// T rows (tokens) of S sequences lie one after another, without padding. A row attends to the cached entries of its
// own sequence and to the rows of its own sequence up to and including itself, nothing else: independence comes from
// construction, no T x T mask exists. Attention order is row order; positions enter RoPE only, so they may have gaps.
// The K and V of row r of sequence s become cache entry kv_len[s] + (r - row_start[s]).
//
// Plain data, borrowed: every array belongs to the caller and must stay put during the call it is passed to.
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { KV_BLOCK_TOKENS = 16 }; // entries of KV in one block

// How the token of a logit row is drawn, in the terms of worker/sampler.h: nothing but its logits counts beside these.
struct draw {
    double uniform;            // in [0, 1): where in the distribution
    double top_p;              // 1: off
    float inverse_temperature; // 0: the likeliest token, and nothing else here counts
    float min_p;               // 0: off
    int32_t top_k;             // 0: off
    int32_t unused;
};

// What came of it, in the place of two floats.
struct pick {
    float logit;
    int32_t id; // -1: none can be chosen, all logits are NaN or -inf
};

struct ragged_batch {
    int n_rows;              // T, at least 1
    const int32_t *token;    // [T] token ids
    const int32_t *position; // [T] position ids for RoPE, increasing within a sequence

    int n_seqs;                 // S, at least 1; a sequence has at least one row
    const int32_t *row_start;   // [S+1] rows of sequence s are row_start[s] .. row_start[s+1]-1
    const int32_t *kv_len;      // [S] entries already cached (entries, not positions)
    const int32_t *block_table; // [S][max_blocks] block of entry e is block_table[s][e / KV_BLOCK_TOKENS]
    int max_blocks;             // row length of block_table; covers kv_len + rows of the longest sequence

    int n_logit_rows;         // L
    const int32_t *logit_row; // [L] rows whose logits, or next tokens, are wanted, ascending
    const struct draw *draw;  // [L] the token of each is drawn where its logits are; NULL: no tokens are wanted
    bool tokens_alone;        // with `draw`: no logits are wanted

    // Speculator only: rows whose attention over the first `importance_keys` entries of their sequence (the prompt) is
    // wanted, as max over layers and heads of the smoothed softmax (design: token importance; arXiv 2502.02789).
    int n_importance_rows;          // P
    const int32_t *importance_row;  // [P] ascending
    const int32_t *importance_keys; // [P] prompt length n of that row's sequence, at most kv_len + rows up to it
    int smoothing_window;           // odd width of the centred average along the prompt; 1 means none
};

// A pass of one row that is nobody's, to try out or warm up what computes: token 0 into block 0, which nobody holds
// yet.
struct ragged_batch ragged_warm_up_batch(void);

// Pairs of a row and an entry it attends to, itself included: what the cost of attention is proportional to.
static inline int64_t ragged_attention_pairs(const struct ragged_batch *batch)
{
    int64_t pairs = 0;
    for (int s = 0; s < batch->n_seqs; s++) {
        int64_t rows = batch->row_start[s + 1] - batch->row_start[s];
        pairs += rows * batch->kv_len[s] + rows * (rows + 1) / 2;
    }
    return pairs;
}

// Total floats of probe output: the sum of importance_keys.
static inline int64_t ragged_importance_size(const struct ragged_batch *batch)
{
    int64_t size = 0;
    for (int p = 0; p < batch->n_importance_rows; p++)
        size += batch->importance_keys[p];
    return size;
}
