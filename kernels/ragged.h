// SPDX-License-Identifier: Apache-2.0
// Describes every forward pass: packed prefill, chunked prefill, restored positions, decode rows and look-ahead rows,
// in any mix.
//
// The T rows (tokens) of S sequences follow one another without padding. A row attends to the cached entries of its own
// sequence and to the rows of its sequence up to and including itself; there is no T x T mask. Attention order is row
// order. Only RoPE uses positions, so they may have gaps and need not ascend. The K and V of row r of sequence s become
// KV entry kv_len[s] + (r - row_start[s]).
//
// Plain data: every array belongs to the caller and must stay valid and unchanged during a call that gets it.
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { KV_BLOCK_TOKENS = 16 }; // KV entries in one block

// Sampling parameters of one logit row, as defined in worker/sampler.h. The token depends only on these values and on
// the row's logits.
struct row_sampling {
    double uniform;            // random number in [0, 1)
    double top_p;              // 1: off
    float inverse_temperature; // 0: greedy, and the other members are ignored
    float min_p;               // 0: off
    int32_t top_k;             // 0: off
    int32_t unused;
};

// Sampled token of a row, in the size of two floats.
struct sampled_id {
    float logit;
    int32_t id; // -1 if no token can be sampled: all logits are NaN or -inf
};

struct ragged_batch {
    int n_rows;              // T, at least 1
    const int32_t *token;    // [T] token ids
    const int32_t *position; // [T] position ids for RoPE; in a conversation they need not ascend

    int n_seqs;                 // S, at least 1; a sequence has at least one row
    const int32_t *row_start;   // [S+1] rows of sequence s are row_start[s] .. row_start[s+1]-1
    const int32_t *kv_len;      // [S] number of cached entries (not positions)
    const int32_t *rope_length; // [S] least length of the rows for RoPE, see rope_shape.h; NULL: 0
    const int32_t *block_table; // [S][max_blocks] block of entry e is block_table[s][e / KV_BLOCK_TOKENS]
    int max_blocks;             // row length of block_table; covers kv_len + rows of the longest sequence

    int n_logit_rows;                    // L
    const int32_t *logit_row;            // [L] rows that need logits or a sampled token
    const struct row_sampling *sampling; // [L] the backend samples a token for each; NULL: no tokens are needed
    int n_unread_rows; // with `sampling`: number of logit rows, the last ones, whose logits nobody reads

    // Speculator only: importance rows. The pass computes their attention over the first `importance_keys` entries of
    // their sequence (the prompt): the maximum over layers and heads of the smoothed softmax (arXiv 2502.02789).
    int n_importance_rows;          // P
    const int32_t *importance_row;  // [P] ascending
    const int32_t *importance_keys; // [P] prompt length of the row's sequence, at most the entries that the row sees
    int smoothing_window;           // odd width of the centred average along the prompt; 1: no smoothing

    // The pass leaves out this many of the last layers, so its results are useless. Only for measurements of time.
    int skipped_layers;
};

// Returns the dummy warm-up batch: one row with token 0, written to KV block 0. Run it before sequences hold blocks.
struct ragged_batch ragged_warm_up_batch(void);

// Returns the attention pairs of a batch: pairs of a row and a KV entry that it attends to, its own entry included.
static inline int64_t ragged_attention_pairs(const struct ragged_batch *batch)
{
    int64_t pairs = 0;
    for (int s = 0; s < batch->n_seqs; s++) {
        int64_t rows = batch->row_start[s + 1] - batch->row_start[s];
        pairs += rows * batch->kv_len[s] + rows * (rows + 1) / 2;
    }
    return pairs;
}

// Returns the length of a row for RoPE, see rope_shape.h.
static inline int ragged_rope_length(const struct ragged_batch *batch, int sequence, int row)
{
    const int least = batch->rope_length ? batch->rope_length[sequence] : 0, own = batch->position[row] + 1;
    return own > least ? own : least;
}

// Returns the floats of importance output: the sum of importance_keys.
static inline int64_t ragged_importance_size(const struct ragged_batch *batch)
{
    int64_t size = 0;
    for (int p = 0; p < batch->n_importance_rows; p++)
        size += batch->importance_keys[p];
    return size;
}
