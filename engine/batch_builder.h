// SPDX-License-Identifier: Apache-2.0
// Builds the ragged batch of one pass (kernels/ragged.h), sequence by sequence, in arrays allocated once. Used by one
// thread. Allocates nothing after batch_builder_init(). Exceeding a limit is a bug, and INVARIANT ends the process.
//
//     batch_builder_reset(&b);
//     batch_builder_add_sequence(&b, blocks, n_blocks, n_cached);
//     batch_builder_add_row(&b, token, position);    // once for each row of the sequence
//     batch_builder_want_logits(&b, row);            // for any row of the sequence, in ascending order
//     const struct ragged_batch *batch = batch_builder_finish(&b);
#pragma once

#include "kernels/ragged.h"

struct batch_limits {
    int rows, seqs;
    int seq_blocks;      // KV blocks of the longest sequence
    int logit_rows;      // rows with logits or a sampled token
    int importance_rows; // rows with importance; 0 if importance is never wanted
};

// The result that the pass returns for a row: a token that the backend samples, or logits that the caller reads.
struct wanted_row {
    int32_t row;
    bool sampled;
    struct row_sampling sampling;
};

struct batch_builder {
    struct batch_limits limits;
    struct ragged_batch batch; // points into the arrays below
    int32_t *token, *position, *row_start, *kv_len, *rope_length, *block_table, *logit_row, *importance_row,
        *importance_keys;
    struct row_sampling *sampling; // [logit_rows]
    struct wanted_row *wanted;     // [logit_rows] in the order of the calls
    int n_sampled;                 // number of wanted rows whose token the backend samples
    const int32_t **blocks;        // [seqs] borrowed from batch_builder_add_sequence() until batch_builder_finish()
    int *n_blocks;                 // [seqs]
};

void batch_builder_init(struct batch_builder *b, const struct batch_limits *limits);
void batch_builder_fini(struct batch_builder *b);

void batch_builder_reset(struct batch_builder *b);

// Begins a sequence with `n_cached` KV entries. `blocks` must also have room for the rows that will be added.
void batch_builder_add_sequence(struct batch_builder *b, const int32_t *blocks, int n_blocks, int n_cached);
// Sets the least RoPE length of the rows of the sequence added last, see ragged_batch.rope_length.
void batch_builder_set_rope_length(struct batch_builder *b, int length);
void batch_builder_add_row(struct batch_builder *b, int32_t token, int32_t position);

// Requests a result for `row`, a row of the sequence added last: its logits, or a token that the backend samples. The
// batch lists the rows with logits first, then the rows with a token, each group in the order of these calls.
void batch_builder_want_logits(struct batch_builder *b, int row);
void batch_builder_want_token(struct batch_builder *b, int row, const struct row_sampling *sampling);

// Requests the importance of the row added last, over the first `keys` entries of its sequence.
void batch_builder_want_importance(struct batch_builder *b, int keys);

// Completes the batch, which is valid until the next reset. Its block table is as wide as its longest sequence.
const struct ragged_batch *batch_builder_finish(struct batch_builder *b);

// Returns the sampling parameters that select the likeliest token.
static inline struct row_sampling batch_greedy(void)
{
    return (struct row_sampling){.top_p = 1};
}
