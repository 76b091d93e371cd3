// SPDX-License-Identifier: Apache-2.0
#include "engine/batch_builder.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/invariant.h"
#include "lib/base/mem.h"

void batch_builder_init(struct batch_builder *b, const struct batch_limits *limits)
{
    *b = (struct batch_builder){.limits = *limits};
    size_t rows = (size_t)limits->rows, seqs = (size_t)limits->seqs, logit_rows = (size_t)limits->logit_rows;
    size_t importance_rows = (size_t)limits->importance_rows;
    b->token = mem_alloc_array(rows, sizeof *b->token);
    b->position = mem_alloc_array(rows, sizeof *b->position);
    b->row_start = mem_alloc_array(seqs + 1, sizeof *b->row_start);
    b->kv_len = mem_alloc_array(seqs, sizeof *b->kv_len);
    b->rope_length = mem_alloc_array(seqs, sizeof *b->rope_length);
    b->block_table = mem_alloc_array(seqs * (size_t)limits->seq_blocks, sizeof *b->block_table);
    b->logit_row = mem_alloc_array(logit_rows, sizeof *b->logit_row);
    b->sampling = mem_alloc_array(logit_rows, sizeof *b->sampling);
    b->wanted = mem_alloc_array(logit_rows, sizeof *b->wanted);
    b->importance_row = mem_alloc_array(importance_rows, sizeof *b->importance_row);
    b->importance_keys = mem_alloc_array(importance_rows, sizeof *b->importance_keys);
    b->blocks = mem_alloc_array(seqs, sizeof *b->blocks);
    b->n_blocks = mem_alloc_array(seqs, sizeof *b->n_blocks);
    batch_builder_reset(b);
}

void batch_builder_fini(struct batch_builder *b)
{
    free(b->token);
    free(b->position);
    free(b->row_start);
    free(b->kv_len);
    free(b->rope_length);
    free(b->block_table);
    free(b->logit_row);
    free(b->sampling);
    free(b->wanted);
    free(b->importance_row);
    free(b->importance_keys);
    free((void *)b->blocks);
    free(b->n_blocks);
    *b = (struct batch_builder){0};
}

void batch_builder_reset(struct batch_builder *b)
{
    b->batch = (struct ragged_batch){.token = b->token,
                                     .position = b->position,
                                     .row_start = b->row_start,
                                     .kv_len = b->kv_len,
                                     .block_table = b->block_table,
                                     .logit_row = b->logit_row,
                                     .importance_row = b->importance_row,
                                     .importance_keys = b->importance_keys,
                                     .smoothing_window = 1};
    b->row_start[0] = 0;
    b->n_sampled = 0;
}

void batch_builder_add_sequence(struct batch_builder *b, const int32_t *blocks, int n_blocks, int n_cached)
{
    int s = b->batch.n_seqs++;
    INVARIANT(s < b->limits.seqs && n_blocks <= b->limits.seq_blocks, "sequence %d of %d with %d blocks of %d", s,
              b->limits.seqs, n_blocks, b->limits.seq_blocks);
    b->kv_len[s] = n_cached;
    b->rope_length[s] = 0;
    b->blocks[s] = blocks;
    b->n_blocks[s] = n_blocks;
    if (n_blocks > b->batch.max_blocks) b->batch.max_blocks = n_blocks;
}

void batch_builder_set_rope_length(struct batch_builder *b, int length)
{
    b->rope_length[b->batch.n_seqs - 1] = length;
    b->batch.rope_length = b->rope_length;
}

void batch_builder_add_row(struct batch_builder *b, int32_t token, int32_t position)
{
    int row = b->batch.n_rows++;
    INVARIANT(row < b->limits.rows, "row %d of %d", row, b->limits.rows);
    b->token[row] = token;
    b->position[row] = position;
    b->row_start[b->batch.n_seqs] = row + 1;
}

static void wanted_row_add(struct batch_builder *b, struct wanted_row wanted)
{
    int index = b->batch.n_logit_rows++;
    INVARIANT(index < b->limits.logit_rows, "logit row %d of %d", index, b->limits.logit_rows);
    b->wanted[index] = wanted;
    b->n_sampled += wanted.sampled;
}

void batch_builder_want_logits(struct batch_builder *b, int row)
{
    wanted_row_add(b, (struct wanted_row){row, false, batch_greedy()}); // sampling parameters are not used for logits
}

void batch_builder_want_token(struct batch_builder *b, int row, const struct row_sampling *sampling)
{
    wanted_row_add(b, (struct wanted_row){row, true, *sampling});
}

void batch_builder_want_importance(struct batch_builder *b, int keys)
{
    int index = b->batch.n_importance_rows++;
    INVARIANT(index < b->limits.importance_rows, "importance row %d of %d", index, b->limits.importance_rows);
    b->importance_row[index] = b->batch.n_rows - 1;
    b->importance_keys[index] = keys;
}

// Orders the logit rows: first the rows whose logits are read, then the rows whose token is sampled.
static void logit_rows_order(struct batch_builder *b)
{
    int n_read = 0, n_sampled = b->batch.n_logit_rows - b->n_sampled;
    for (int i = 0; i < b->batch.n_logit_rows; i++) {
        int to = b->wanted[i].sampled ? n_sampled++ : n_read++;
        b->logit_row[to] = b->wanted[i].row;
        b->sampling[to] = b->wanted[i].sampling;
    }
    if (b->n_sampled) b->batch.sampling = b->sampling;
    b->batch.n_unread_rows = b->n_sampled;
}

const struct ragged_batch *batch_builder_finish(struct batch_builder *b)
{
    size_t width = (size_t)b->batch.max_blocks;
    for (int s = 0; s < b->batch.n_seqs; s++) {
        size_t n = (size_t)b->n_blocks[s];
        int32_t *row = b->block_table + (size_t)s * width;
        memcpy(row, b->blocks[s], n * sizeof *row);
        memset(row + n, 0, (width - n) * sizeof *row);
    }
    logit_rows_order(b);
    return &b->batch;
}
