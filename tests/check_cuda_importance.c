// SPDX-License-Identifier: Apache-2.0
// Importance rows on the CUDA backend: rows whose scores do not fit into the working memory together are computed in
// rounds. A row has the same bits alone and in a round with others. It also has the same bits as the only row of its
// sequence in the pass, whose scores attention keeps, and as one of several rows.
#include <stdio.h>

#include "kernels/cuda/memory.h"
#include "tests/cuda_fixture.h"
#include "tests/suite.h"

enum { SEQS = 4, ROWS = 98, HEADS = 3, COLUMNS = (HEADS + 2) * 16, CONTEXT = 64, BLOCKS = CONTEXT / KV_BLOCK_TOKENS };
enum { TILED = 1, TILED_ROWS = 11 }; // the sequence that has several rows in the second pass

static const struct backend_shape shape = {.n_layers = 1,
                                           .n_heads = HEADS,
                                           .n_kv_heads = 1,
                                           .head_size = 16,
                                           .rope.inv_freq = (float[8]){1, 0.3f, 0.1f},
                                           .max_rows = ROWS,
                                           .max_seqs = SEQS,
                                           .max_context = CONTEXT,
                                           .n_kv_blocks = SEQS * BLOCKS};

struct run {
    struct backend *b;
    struct tensor *qkv, *out;
    float importance[SEQS * CONTEXT];
};

static void run_open(struct run *run)
{
    run->b = open_cuda(&shape, DTYPE_BF16);
    run->qkv = make_tensor(run->b, TENSOR_F32, ROWS, COLUMNS);
    run->out = make_tensor(run->b, TENSOR_ACTIVATION, ROWS, HEADS * 16);
}

// Runs attention of a pass with n importance rows `row` over `keys` keys. Returns the number of values.
static int run_pass(struct run *run, const int32_t kv_len[SEQS], const int rows[SEQS], const float *values, int n,
                    const int32_t *row, const int32_t *keys)
{
    int32_t position[ROWS], start[SEQS + 1] = {0}, blocks[SEQS * BLOCKS];
    for (int s = 0; s < SEQS; s++) {
        start[s + 1] = start[s] + rows[s];
        for (int i = 0; i < rows[s]; i++)
            position[start[s] + i] = kv_len[s] + i;
        for (int i = 0; i < BLOCKS; i++)
            blocks[s * BLOCKS + i] = i * SEQS + s;
    }
    const struct ragged_batch batch = {.n_rows = start[SEQS],
                                       .token = position,
                                       .position = position,
                                       .n_seqs = SEQS,
                                       .row_start = start,
                                       .kv_len = kv_len,
                                       .block_table = blocks,
                                       .max_blocks = BLOCKS,
                                       .n_importance_rows = n,
                                       .importance_row = row,
                                       .importance_keys = keys,
                                       .smoothing_window = 3};
    OK(run->b->ops->begin(run->b, &batch));
    tensor_write(run->b, run->qkv, values, (size_t)start[SEQS] * COLUMNS);
    OK(run->b->ops->rope_append(run->b, 0, run->qkv, NULL, NULL, 1e-6f));
    OK(run->b->ops->attention(run->b, 0, run->out, run->qkv));
    if (n) OK(run->b->ops->importance_read(run->b, run->importance));
    return (int)ragged_importance_size(&batch);
}

static void check_bits(const float *expected, const float *found, int n, int row)
{
    for (int i = 0; i < n; i++) {
        ck_assert_msg(found[i] == expected[i], "row %d, entry %d: %g, expected %g", row, i, (double)found[i],
                      (double)expected[i]);
        ck_assert_msg(found[i] > 0, "row %d, entry %d: %g", row, i, (double)found[i]);
    }
}

START_TEST(rows_computed_in_rounds_have_the_bits_of_rows_alone)
{
    static const int filled[SEQS] = {30, 11, 40, 17}, rows[SEQS] = {1, TILED_ROWS, 1, 1};
    const int32_t none[SEQS] = {0}, kv_len[SEQS] = {30, 11, 40, 17};
    enum { N = TILED_ROWS + 3 };
    int32_t row[N], keys[N];
    int blocks = 0;
    for (int p = 0; p < N; p++) {
        row[p] = p;
        keys[p] = p == 0 ? 30 : p <= TILED_ROWS ? 11 + p * 5 % (p + 1) : 36 - 10 * (p - TILED_ROWS);
        blocks += cuda_kept_blocks(keys[p]);
    }
    ck_assert_int_gt(blocks, 2 * memory_kept_blocks(&shape)); // three rounds at least, the last ones without tiles
    struct run run, alone;
    run_open(&run);
    run_open(&alone);
    float *before = random_floats(ROWS * COLUMNS, 2), *values = random_floats(ROWS * COLUMNS, 2);
    run_pass(&run, none, filled, before, 0, NULL, NULL);
    run_pass(&alone, none, filled, before, 0, NULL, NULL);
    run_pass(&run, kv_len, rows, values, N, row, keys);
    const float *all = run.importance;
    for (int p = 0; p < N; all += keys[p++]) {
        ck_assert_int_eq(run_pass(&alone, kv_len, rows, values, 1, &row[p], &keys[p]), keys[p]);
        check_bits(alone.importance, all, keys[p], p);
    }
    // The last of several rows is now the only row.
    const int32_t later[SEQS] = {30, 11 + TILED_ROWS - 1, 40, 17}, single = TILED;
    const int one[SEQS] = {1, 1, 1, 1};
    for (int i = 0; i < COLUMNS; i++)
        values[COLUMNS + i] = values[TILED_ROWS * COLUMNS + i];
    all = run.importance;
    for (int p = 0; p < TILED_ROWS; p++)
        all += keys[p];
    run_pass(&alone, later, one, values, 1, &single, &keys[TILED_ROWS]);
    check_bits(all, alone.importance, keys[TILED_ROWS], TILED_ROWS);
    run.b->ops->close(run.b);
    alone.b->ops->close(alone.b);
    free(before);
    free(values);
}
END_TEST

SUITE("cuda_importance")
{
    SKIP_UNLESS(cuda_is_here());
    TEST(rows_computed_in_rounds_have_the_bits_of_rows_alone);
}
