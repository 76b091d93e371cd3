// SPDX-License-Identifier: Apache-2.0
// NCCL in a group of one rank, the largest group that one GPU can hold. It connects, every collective returns its
// input, also in captured passes and in micro-batches, and it closes. check_cuda_comm tests larger groups on emulated
// GPUs.
#include <math.h>
#include <stdio.h>

#include "kernels/comm.h"
#include "kernels/convert.h"
#include "tests/cuda_fixture.h"
#include "tests/suite.h"

enum { ROWS = 8, COLUMNS = 16, N = ROWS * COLUMNS, ROWS_MAX = 128 };

static struct backend *b;
static struct comm *self, *comm;
static struct tensor *partial; // made before the comm is opened, which registers its memory

static void setup(void)
{
    struct backend_shape shape = small_shape;
    shape.max_rows = shape.max_context = ROWS_MAX;
    shape.overlap_rows = ROWS_MAX / 2;
    b = open_cuda(&shape, DTYPE_BF16);
    partial = make_tensor(b, TENSOR_PARTIAL, ROWS_MAX, COLUMNS);
    OK(comm_open_self(&self));
    OK(b->ops->comm_open(b, self, &comm));
    ck_assert_int_eq(comm->size, 1);
}

static void teardown(void)
{
    b->ops->close(b); // with the comm
    self->ops->close(self);
}

static void check_holds(struct tensor *t, const float *values)
{
    float got[N];
    OK(b->ops->read(b, t, ROWS, got));
    ck_assert_mem_eq(got, values, sizeof got);
}

START_TEST(collectives_of_one_rank_return_their_input)
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

// A pass whose stages embed rows and sum them over the ranks. With `normed` the stages sum the norms of the rows as
// partial sums and add these.
struct sum_pass {
    struct tensor *out, *normed, *after;
    const struct weight *table, *identity, *ones;
    int stages_issued, rows; // rows of the last stage
};

static const float EPSILON = 1e-5f;

static enum status partial_sums(const struct sum_pass *p, int rows)
{
    enum status status = b->ops->rmsnorm(b, p->normed, p->out, p->ones, EPSILON, NULL, rows);
    if (status == STATUS_OK) status = b->ops->linear(b, partial, p->normed, p->identity, NULL, LINEAR_STORE, rows);
    if (status == STATUS_OK) status = b->ops->sum_ranks(b, partial, rows);
    if (status != STATUS_OK) return status;
    const struct norm_step norm = {p->normed, p->out, p->ones, EPSILON, NULL, partial};
    return backend_norm_linear(b, p->after, &norm, p->identity, NULL, LINEAR_STORE, rows);
}

static enum status sum_stage(void *context, int i, int first_row, int rows)
{
    struct sum_pass *p = context;
    p->stages_issued++;
    p->rows = rows;
    enum status status = b->ops->embed(b, p->out, p->table);
    if (status != STATUS_OK) return status;
    if (p->normed) return partial_sums(p, rows);
    float *data = b->ops->tensor_data(b, p->out);
    return comm->ops->all_reduce_sum(comm, data + first_row * COLUMNS, (size_t)(rows * COLUMNS));
}

static void check_rows(const float *got, const float *values, const int32_t *token, int rows)
{
    for (int i = 0; i < rows * COLUMNS; i++)
        ck_assert(got[i] == bf16_to_f32(bf16_from_f32(values[token[i / COLUMNS] * COLUMNS + i % COLUMNS])));
}

static struct sum_pass make_sum_pass(const float *values, bool partials)
{
    struct sum_pass sums = {.out = make_tensor(b, TENSOR_F32, ROWS_MAX, COLUMNS),
                            .table = make_table(b, values, 10, COLUMNS)};
    if (!partials) return sums;
    float identity[COLUMNS * COLUMNS] = {0}, ones[COLUMNS];
    for (int i = 0; i < COLUMNS; i++)
        identity[i * COLUMNS + i] = ones[i] = 1;
    sums.normed = make_tensor(b, TENSOR_ACTIVATION, ROWS_MAX, COLUMNS);
    sums.after = make_tensor(b, TENSOR_F32, ROWS_MAX, COLUMNS);
    sums.identity = make_weight(b, identity, COLUMNS, COLUMNS);
    sums.ones = make_vector(b, ones, COLUMNS);
    return sums;
}

// Checks that each row is its row of the table plus the norm of that row.
static void check_added_rows(const float *got, const float *values, const int32_t *token, int rows)
{
    for (int r = 0; r < rows; r++) {
        double row[COLUMNS], squares = 0;
        for (int i = 0; i < COLUMNS; i++) {
            row[i] = (double)bf16_to_f32(bf16_from_f32(values[token[r] * COLUMNS + i]));
            squares += row[i] * row[i];
        }
        for (int i = 0; i < COLUMNS; i++) {
            const double norm = row[i] / sqrt(squares / COLUMNS + (double)EPSILON);
            const double error = fabs((double)got[r * COLUMNS + i] - (row[i] + norm));
            ck_assert_msg(error <= 0x1p-8 * fabs(norm) + 1e-6, "row %d, column %d: off by %g", r, i, error);
        }
    }
}

// _i: 1 with partial sums.
START_TEST(sums_are_captured_with_their_pass)
{
    float *values = random_floats(10 * COLUMNS, 1), got[3 * COLUMNS];
    struct sum_pass sums = make_sum_pass(values, _i);
    for (int i = 0; i < 5; i++) {
        const int32_t token[3] = {i, 9 - i, i / 2};
        const struct ragged_batch batch = single_rows(token, 3);
        OK(b->ops->run_pass(b, &(struct pass){&batch, &sums, sum_stage, no_logits, 1, ROWS}));
        ck_assert_int_eq(sums.stages_issued, i < 2 ? i + 1 : 2); // then replayed: NCCL can be captured
        OK(b->ops->read(b, sums.out, 3, got));
        (_i ? check_added_rows : check_rows)(got, values, token, 3);
    }
    free(values);
}
END_TEST

START_TEST(micro_batches_are_summed_in_a_second_stream)
{
    enum { STAGES = 4 };
    static float got[ROWS_MAX * COLUMNS];
    float *values = random_floats(10 * COLUMNS, 1);
    struct sum_pass sums = make_sum_pass(values, _i);
    int32_t token[ROWS_MAX], position[ROWS_MAX], blocks[ROWS_MAX / KV_BLOCK_TOKENS];
    for (int r = 0; r < ROWS_MAX; r++)
        token[r] = r % 10, position[r] = r, blocks[r / KV_BLOCK_TOKENS] = r / KV_BLOCK_TOKENS;
    int32_t row_start[2] = {0, ROWS_MAX}, kv_len = 0;
    struct ragged_batch batch = {.n_rows = ROWS_MAX,
                                 .token = token,
                                 .position = position,
                                 .n_seqs = 1,
                                 .row_start = row_start,
                                 .kv_len = &kv_len,
                                 .block_table = blocks,
                                 .max_blocks = ROWS,
                                 .smoothing_window = 1};
    const struct pass pass = {&batch, &sums, sum_stage, no_logits, STAGES, ROWS};
    for (int i = 0; i < 3; i++) {
        sums.stages_issued = 0;
        OK(b->ops->run_pass(b, &pass));
        ck_assert_int_eq(sums.stages_issued, 2 * STAGES);
        ck_assert_int_eq(sums.rows, ROWS_MAX / 2);
        OK(b->ops->read(b, sums.out, ROWS_MAX, got));
        (_i ? check_added_rows : check_rows)(got, values, token, ROWS_MAX);
    }
    row_start[1] = batch.n_rows = ROWS_MAX - 1; // too few rows for two micro-batches
    sums.stages_issued = 0;
    OK(b->ops->run_pass(b, &pass));
    ck_assert_int_eq(sums.stages_issued, STAGES);
    free(values);
}
END_TEST

SUITE("cuda_nccl")
{
    SKIP_UNLESS(cuda_is_here());
    TIMEOUT(120);
    FIXTURE(setup, teardown);
    TEST(collectives_of_one_rank_return_their_input);
    LOOP(sums_are_captured_with_their_pass, 0, 2);
    LOOP(micro_batches_are_summed_in_a_second_stream, 0, 2);
}
