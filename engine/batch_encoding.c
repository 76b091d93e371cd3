// SPDX-License-Identifier: Apache-2.0
// See batch_encoding.h.
#include "engine/batch_encoding.h"

#include <string.h>

enum { COUNTS = 8, SAMPLING_INTS = sizeof(struct row_sampling) / sizeof(int32_t) };
enum { SAMPLING_NONE, SAMPLING_WITH_LOGITS, SAMPLING_ONLY }; // what the pass returns for logit rows

size_t batch_encoded_ints(const struct ragged_batch *b)
{
    size_t rows = (size_t)b->n_rows, seqs = (size_t)b->n_seqs;
    return COUNTS + 2 * rows + (seqs + 1) + seqs + seqs * (size_t)b->max_blocks + (size_t)b->n_logit_rows +
           (b->sampling ? SAMPLING_INTS * (size_t)b->n_logit_rows : 0) + 2 * (size_t)b->n_importance_rows;
}

// Every row may have logits, sampling parameters and importance.
size_t batch_encoded_ints_max(int n_rows, int n_seqs, int seq_blocks)
{
    size_t rows = (size_t)n_rows, seqs = (size_t)n_seqs;
    return COUNTS + 2 * rows + (seqs + 1) + seqs + seqs * (size_t)seq_blocks + (1 + SAMPLING_INTS) * rows + 2 * rows;
}

static int32_t *ints_append(int32_t *to, const int32_t *from, size_t n)
{
    if (n) memcpy(to, from, n * sizeof *to);
    return to + n;
}

void batch_encode(const struct ragged_batch *b, int32_t *w)
{
    size_t rows = (size_t)b->n_rows, seqs = (size_t)b->n_seqs;
    int sampling = !b->sampling ? SAMPLING_NONE : b->tokens_only ? SAMPLING_ONLY : SAMPLING_WITH_LOGITS;
    int32_t counts[COUNTS] = {b->n_rows,           b->n_seqs, b->max_blocks, b->n_logit_rows, b->n_importance_rows,
                              b->smoothing_window, sampling};
    w = ints_append(w, counts, COUNTS);
    if (b->sampling)
        w = ints_append(w, (const int32_t *)(const void *)b->sampling, SAMPLING_INTS * (size_t)b->n_logit_rows);
    w = ints_append(w, b->token, rows);
    w = ints_append(w, b->position, rows);
    w = ints_append(w, b->row_start, seqs + 1);
    w = ints_append(w, b->kv_len, seqs);
    w = ints_append(w, b->block_table, seqs * (size_t)b->max_blocks);
    w = ints_append(w, b->logit_row, (size_t)b->n_logit_rows);
    w = ints_append(w, b->importance_row, (size_t)b->n_importance_rows);
    ints_append(w, b->importance_keys, (size_t)b->n_importance_rows);
}

static bool counts_are_valid(const int32_t *w)
{
    for (int i = 0; i < COUNTS; i++)
        if (w[i] < 0) return false;
    return w[6] <= SAMPLING_ONLY;
}

enum status batch_decode(const int32_t *w, size_t n_ints, struct ragged_batch *b)
{
    *b = (struct ragged_batch){w[0], .n_seqs = w[1], .max_blocks = w[2], .n_logit_rows = w[3],
                               .n_importance_rows = w[4]};
    b->smoothing_window = w[5];
    if (w[6] != SAMPLING_NONE) b->sampling = (const void *)(w + COUNTS);
    b->tokens_only = w[6] == SAMPLING_ONLY;
    if (!counts_are_valid(w) || batch_encoded_ints(b) != n_ints) {
        return status_fail(STATUS_INTERNAL, "encoded batch of %zu integers: its counts do not match", n_ints);
    }
    size_t rows = (size_t)b->n_rows, seqs = (size_t)b->n_seqs;
    b->token = w + COUNTS + (b->sampling ? SAMPLING_INTS * b->n_logit_rows : 0);
    b->position = b->token + rows;
    b->row_start = b->position + rows;
    b->kv_len = b->row_start + seqs + 1;
    b->block_table = b->kv_len + seqs;
    b->logit_row = b->block_table + seqs * (size_t)b->max_blocks;
    b->importance_row = b->logit_row + b->n_logit_rows;
    b->importance_keys = b->importance_row + b->n_importance_rows;
    return STATUS_OK;
}
