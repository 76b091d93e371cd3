// SPDX-License-Identifier: Apache-2.0
// NCCL in a group of one rank, which is all that one GPU can hold: it connects, every collective gives back what it
// got, also in passes that are kept and in those of halves, and it closes. Groups of several are in check_cuda_comm, on
// emulated GPUs.
#include <stdio.h>

#include "kernels/comm.h"
#include "kernels/convert.h"
#include "tests/cuda_here.h"
#include "tests/kernel_fixture.h"

enum { ROWS = 8, COLUMNS = 16, N = ROWS * COLUMNS, MOST_ROWS = 128 };

static struct backend *b;
static struct comm *self, *comm;

static void setup(void)
{
    const struct backend_shape shape = {.n_layers = 1,
                                        .n_heads = 1,
                                        .n_kv_heads = 1,
                                        .head_size = 16,
                                        .inv_freq = (float[8]){1},
                                        .max_rows = MOST_ROWS,
                                        .max_seqs = ROWS,
                                        .max_context = MOST_ROWS,
                                        .n_kv_blocks = ROWS,
                                        .overlap_rows = MOST_ROWS / 2};
    OK(backend_open("cuda", &shape, DTYPE_BF16, 0, &b));
    OK(comm_open_self(&self));
    OK(b->ops->comm_open(b, self, &comm));
    ck_assert_int_eq(comm->size, 1);
}

static void teardown(void)
{
    comm->ops->close(comm);
    self->ops->close(self);
    b->ops->close(b);
}

static void check_holds(struct tensor *t, const float *values)
{
    float got[N];
    OK(b->ops->read(b, t, ROWS, got));
    ck_assert_mem_eq(got, values, sizeof got);
}

START_TEST(one_rank_gets_back_what_it_gave)
{
    struct tensor *t = make_tensor(b, TENSOR_F32, ROWS, COLUMNS), *other = make_tensor(b, TENSOR_F32, ROWS, COLUMNS);
    float *values = random_floats(N, 3);
    float *data = b->ops->tensor_data(b, t);
    tensor_write(b, t, values, N);
    OK(comm->ops->all_reduce_sum(comm, data, N));
    check_holds(t, values);
    OK(comm->ops->all_reduce_max(comm, data, N));
    check_holds(t, values);
    OK(comm->ops->gather(comm, data, N, data));
    check_holds(t, values);
    OK(comm->ops->gather(comm, data, N, b->ops->tensor_data(b, other)));
    check_holds(other, values);
    OK(comm->ops->all_reduce_sum(comm, data, 0));
    int number = 42;
    OK(comm->ops->broadcast(comm, &number, sizeof number));
    ck_assert_int_eq(number, 42);
    free(values);
}
END_TEST

START_TEST(sums_are_kept_with_their_pass)
{
    float *values = random_floats(10 * COLUMNS, 1), got[3 * COLUMNS];
    struct matrix_view view = float_view(values, 10, COLUMNS);
    struct weight *table;
    OK(b->ops->weight_embedding(b, &view, 0, NULL, &table));
    struct tensor *out = make_tensor(b, TENSOR_F32, ROWS, COLUMNS);
    for (int pass = 0; pass < 5; pass++) {
        const int32_t token[3] = {pass, 9 - pass, pass / 2};
        const struct ragged_batch batch = three_single_rows(token);
        bool again = false;
        int rows = ROWS;
        OK(b->ops->begin(b, &batch));
        bool replayed = b->ops->replay(b, &rows);
        ck_assert_int_eq(replayed, pass >= 2); // kept, and not refused: NCCL can be captured
        enum status status = replayed ? STATUS_OK : b->ops->embed(b, out, table);
        if (status == STATUS_OK && !replayed)
            status = comm->ops->all_reduce_sum(comm, b->ops->tensor_data(b, out), (size_t)rows * COLUMNS);
        OK(b->ops->pass_end(b, status, &again));
        ck_assert(!again);
        OK(b->ops->read(b, out, 3, got));
        for (int i = 0; i < 3 * COLUMNS; i++)
            ck_assert(got[i] == bf16_to_f32(bf16_from_f32(values[token[i / COLUMNS] * COLUMNS + i % COLUMNS])));
    }
    free(values);
}
END_TEST

START_TEST(halves_are_summed_beside)
{
    static float got[MOST_ROWS * COLUMNS];
    float *values = random_floats(10 * COLUMNS, 1);
    struct matrix_view view = float_view(values, 10, COLUMNS);
    struct weight *table;
    OK(b->ops->weight_embedding(b, &view, 0, NULL, &table));
    struct tensor *out = make_tensor(b, TENSOR_F32, MOST_ROWS, COLUMNS);
    float *data = b->ops->tensor_data(b, out);
    int32_t token[MOST_ROWS], position[MOST_ROWS], blocks[MOST_ROWS / KV_BLOCK_TOKENS];
    for (int r = 0; r < MOST_ROWS; r++)
        token[r] = r % 10, position[r] = r, blocks[r / KV_BLOCK_TOKENS] = r / KV_BLOCK_TOKENS;
    int32_t row_start[2] = {0, MOST_ROWS}, kv_len = 0;
    struct ragged_batch batch = {
        MOST_ROWS, token, position, 1, row_start, &kv_len, blocks, ROWS, .smoothing_window = 1};
    for (int pass = 0; pass < 3; pass++) {
        OK(b->ops->begin(b, &batch));
        ck_assert_int_eq(b->ops->halve(b), MOST_ROWS / 2);
        for (int round = 0; round < 4; round++)
            for (int first = 0; first < MOST_ROWS; first += MOST_ROWS / 2) {
                OK(b->ops->half(b, first, MOST_ROWS / 2));
                OK(b->ops->embed(b, out, table));
                OK(comm->ops->all_reduce_sum(comm, data + first * COLUMNS, MOST_ROWS / 2 * COLUMNS));
            }
        OK(b->ops->half(b, 0, MOST_ROWS));
        OK(b->ops->read(b, out, MOST_ROWS, got));
        for (int i = 0; i < MOST_ROWS * COLUMNS; i++)
            ck_assert(got[i] == bf16_to_f32(bf16_from_f32(values[token[i / COLUMNS] * COLUMNS + i % COLUMNS])));
    }
    row_start[1] = batch.n_rows = MOST_ROWS - 1; // too few for halves
    OK(b->ops->begin(b, &batch));
    ck_assert_int_eq(b->ops->halve(b), 0);
    free(values);
}
END_TEST

int main(int argc, char **argv)
{
    if (!cuda_is_here()) return EXIT_SKIPPED;
    Suite *suite = suite_create("cuda_nccl");
    TCase *tests = tcase_create("cuda_nccl");
    tcase_set_timeout(tests, 120);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, one_rank_gets_back_what_it_gave);
    tcase_add_test(tests, sums_are_kept_with_their_pass);
    tcase_add_test(tests, halves_are_summed_beside);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
