// SPDX-License-Identifier: Apache-2.0
// More importance rows than sequences: the CUDA backend has working memory for one row of each sequence and computes
// them in turns. Together they have the bits of each one alone.
#include <stdio.h>

#include "tests/cuda_here.h"
#include "tests/kernel_fixture.h"

enum { ROWS = 11, COLUMNS = 3 * 16, CONTEXT = 64 };

static const struct backend_shape shape = {.n_layers = 1,
                                           .n_heads = 1,
                                           .n_kv_heads = 1,
                                           .head_size = 16,
                                           .inv_freq = (float[8]){1, 0.3f, 0.1f},
                                           .max_rows = ROWS,
                                           .max_seqs = 2,
                                           .max_context = CONTEXT,
                                           .n_kv_blocks = 4};

// Importance of n rows from `first` on, of one sequence of ROWS rows. Returns the number of values.
static int importance_of(struct backend *b, struct tensor *qkv, const float *values, int first, int n,
                         float *importance)
{
    int32_t position[ROWS], row[ROWS], keys[ROWS];
    const int32_t start[2] = {0, ROWS}, zero[1] = {0}, blocks[1] = {2};
    for (int i = 0; i < ROWS; i++) {
        position[i] = i;
        row[i] = first + i;
        keys[i] = 1 + (first + i) * 7 % (first + i + 1);
    }
    const struct ragged_batch batch = {.n_rows = ROWS,
                                       .token = position,
                                       .position = position,
                                       .n_seqs = 1,
                                       .row_start = start,
                                       .kv_len = zero,
                                       .block_table = blocks,
                                       .max_blocks = 1,
                                       .n_importance_rows = n,
                                       .importance_row = row,
                                       .importance_keys = keys,
                                       .smoothing_window = 3};
    struct tensor *out = make_tensor(b, TENSOR_ACTIVATION, ROWS, 16);
    OK(b->ops->begin(b, &batch));
    tensor_write(b, qkv, values, ROWS * COLUMNS);
    OK(b->ops->rope_append(b, 0, qkv, NULL, NULL, 1e-6f));
    OK(b->ops->attention(b, 0, out, qkv));
    OK(b->ops->importance_read(b, importance));
    return (int)ragged_importance_size(&batch);
}

START_TEST(rows_computed_in_turns_have_the_bits_of_rows_alone)
{
    struct backend *b;
    OK(backend_open("cuda", &shape, DTYPE_BF16, 0, &b));
    struct tensor *qkv = make_tensor(b, TENSOR_F32, ROWS, COLUMNS);
    float *values = random_floats(ROWS * COLUMNS, 2), all[2 * CONTEXT], one[2 * CONTEXT];
    const int count = importance_of(b, qkv, values, 0, ROWS, all);
    int at = 0;
    for (int r = 0; r < ROWS; r++) {
        const int n = importance_of(b, qkv, values, r, 1, one);
        for (int i = 0; i < n; i++, at++)
            ck_assert_msg(all[at] == one[i] && one[i] > 0, "row %d, entry %d: %g together, %g alone", r, i,
                          (double)all[at], (double)one[i]);
    }
    ck_assert_int_eq(at, count);
    b->ops->close(b);
    free(values);
}
END_TEST

int main(void)
{
    if (!cuda_is_here()) return EXIT_SKIPPED;
    Suite *suite = suite_create("cuda_importance");
    TCase *tests = tcase_create("cuda_importance");
    tcase_add_test(tests, rows_computed_in_turns_have_the_bits_of_rows_alone);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
