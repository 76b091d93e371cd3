// SPDX-License-Identifier: Apache-2.0
#include "engine/batch_encoding.h"

#include <string.h>

// An even number of counts, the last of which is 0, because the sampling parameters after them have doubles.
enum { COUNTS = 12, SAMPLING_INTS = sizeof(struct row_sampling) / sizeof(int32_t) };

// Returns the number of KV blocks of sequence s that the pass uses.
static size_t blocks_used(const struct ragged_batch *b, int s)
{
    size_t entries = (size_t)b->kv_len[s] + (size_t)(b->row_start[s + 1] - b->row_start[s]);
    return (entries + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
}

static size_t all_blocks_used(const struct ragged_batch *b)
{
    size_t n = 0;
    for (int s = 0; s < b->n_seqs; s++)
        n += blocks_used(b, s);
    return n;
}

static size_t encoded_ints(const struct ragged_batch *b, size_t blocks)
{
    size_t rows = (size_t)b->n_rows, seqs = (size_t)b->n_seqs;
    return COUNTS + 2 * rows + (seqs + 1) + (b->rope_length ? 2 : 1) * seqs + blocks + (size_t)b->n_logit_rows +
           (b->sampling ? SAMPLING_INTS * (size_t)b->n_logit_rows : 0) + 2 * (size_t)b->n_importance_rows;
}

size_t batch_encoded_ints(const struct ragged_batch *b)
{
    return encoded_ints(b, all_blocks_used(b));
}

// Assumes the worst case: every row has logits, sampling parameters and importance.
size_t batch_encoded_ints_max(int n_rows, int n_seqs, int seq_blocks)
{
    size_t rows = (size_t)n_rows, seqs = (size_t)n_seqs;
    return COUNTS + 2 * rows + (seqs + 1) + 2 * seqs + seqs * (size_t)seq_blocks + (1 + SAMPLING_INTS) * rows +
           2 * rows;
}

static int32_t *ints_append(int32_t *to, const int32_t *from, size_t n)
{
    if (n) memcpy(to, from, n * sizeof *to);
    return to + n;
}

void batch_encode(const struct ragged_batch *b, int32_t *w)
{
    size_t rows = (size_t)b->n_rows, seqs = (size_t)b->n_seqs;
    int32_t counts[COUNTS] = {b->n_rows,
                              b->n_seqs,
                              b->max_blocks,
                              b->n_logit_rows,
                              b->n_importance_rows,
                              b->smoothing_window,
                              b->sampling != NULL,
                              b->n_unread_rows,
                              (int32_t)all_blocks_used(b),
                              b->skipped_layers,
                              b->rope_length != NULL};
    w = ints_append(w, counts, COUNTS);
    if (b->sampling)
        w = ints_append(w, (const int32_t *)(const void *)b->sampling, SAMPLING_INTS * (size_t)b->n_logit_rows);
    w = ints_append(w, b->token, rows);
    w = ints_append(w, b->position, rows);
    w = ints_append(w, b->row_start, seqs + 1);
    w = ints_append(w, b->kv_len, seqs);
    if (b->rope_length) w = ints_append(w, b->rope_length, seqs);
    for (int s = 0; s < b->n_seqs; s++)
        w = ints_append(w, b->block_table + (size_t)s * (size_t)b->max_blocks, blocks_used(b, s));
    w = ints_append(w, b->logit_row, (size_t)b->n_logit_rows);
    w = ints_append(w, b->importance_row, (size_t)b->n_importance_rows);
    ints_append(w, b->importance_keys, (size_t)b->n_importance_rows);
}

static bool counts_are_valid(const int32_t *w)
{
    for (int i = 0; i < COUNTS; i++)
        if (w[i] < 0) return false;
    return w[6] <= 1 && w[7] <= w[3] && w[10] <= 1 && w[11] == 0;
}

// Copies the blocks `from` [n] into table rows of max_blocks blocks, with padding. Returns false if `n` is not the
// number of blocks that the sequences use.
static bool table_pad(const struct ragged_batch *b, const int32_t *from, size_t n, int32_t *table, size_t table_ints)
{
    size_t width = (size_t)b->max_blocks;
    if ((size_t)b->n_seqs * width > table_ints || b->row_start[0] != 0) return false;
    for (int s = 0; s < b->n_seqs; s++) {
        if (b->kv_len[s] < 0 || b->row_start[s + 1] < b->row_start[s] || b->row_start[s + 1] > b->n_rows) return false;
        size_t used = blocks_used(b, s);
        if (used > width || used > n) return false;
        memcpy(table, from, used * sizeof *table);
        memset(table + used, 0, (width - used) * sizeof *table);
        from += used;
        table += width;
        n -= used;
    }
    return n == 0;
}

enum status batch_decode(const int32_t *w, size_t n_ints, int32_t *block_table, size_t table_ints,
                         struct ragged_batch *b)
{
    if (n_ints < COUNTS || !counts_are_valid(w))
        return status_fail(STATUS_INTERNAL, "encoded batch of %zu integers: it does not begin with counts", n_ints);
    *b = (struct ragged_batch){w[0], .n_seqs = w[1], .max_blocks = w[2], .n_logit_rows = w[3],
                               .n_importance_rows = w[4]};
    b->smoothing_window = w[5];
    if (w[6]) b->sampling = (const void *)(w + COUNTS);
    b->n_unread_rows = w[7];
    b->skipped_layers = w[9];
    if (w[10]) b->rope_length = w; // set below
    if (encoded_ints(b, (size_t)w[8]) != n_ints) {
        return status_fail(STATUS_INTERNAL, "encoded batch of %zu integers: its counts do not match", n_ints);
    }
    size_t rows = (size_t)b->n_rows, seqs = (size_t)b->n_seqs, blocks = (size_t)w[8];
    b->token = w + COUNTS + (b->sampling ? SAMPLING_INTS * b->n_logit_rows : 0);
    b->position = b->token + rows;
    b->row_start = b->position + rows;
    b->kv_len = b->row_start + seqs + 1;
    const int32_t *used = b->kv_len + seqs;
    if (b->rope_length) b->rope_length = used, used += seqs;
    b->block_table = block_table;
    b->logit_row = used + blocks;
    b->importance_row = b->logit_row + b->n_logit_rows;
    b->importance_keys = b->importance_row + b->n_importance_rows;
    if (table_pad(b, used, blocks, block_table, table_ints)) return STATUS_OK;
    return status_fail(STATUS_INTERNAL, "encoded batch of %zu integers: its %zu KV blocks do not match", n_ints,
                       blocks);
}
