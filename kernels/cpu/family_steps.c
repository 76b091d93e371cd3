// SPDX-License-Identifier: Apache-2.0
// Steps that only some families of models have: activations apart from the gemm, norms of the outputs of attention and
// MLP, norms of all heads together, and queries that are scaled by their position. Each is one loop over rows.
#include <math.h>

#include "kernels/cpu/cpu.h"

struct family_step {
    const struct cpu *cpu;
    struct tensor *out, *x;
    const struct tensor *from;
    const struct weight *gain;
    float epsilon;
    const struct activation *activation;
    const struct whole_norm *whole;
    float beta;
    int context;
};

// Runs fn for all rows of a step. Reads and writes take longer than the multiply-adds.
static enum status step_run(struct family_step *step, thread_pool_fn fn, int rows, int columns)
{
    cpu_run(step->cpu, THREAD_POOL_STATIC, 8 * (int64_t)rows * columns, fn, step, rows);
    return STATUS_OK;
}

// ---- activations ----------------------------------------------------------------------------------------------------

static void activate_row(void *arg, int row, int thread)
{
    const struct family_step *s = arg;
    s->cpu->isa->activate_row(cpu_rows_out(s->out), row, cpu_row(s->from, row), s->activation, s->out->columns);
}

enum status cpu_activate(struct backend *b, struct tensor *out, const struct tensor *x,
                         const struct activation *activation, int rows)
{
    const int parts = activation->kind == ACTIVATION_SWIGLU ? 2 : 1;
    INVARIANT(x->kind == TENSOR_F32 && out->kind == TENSOR_ACTIVATION && x->columns == parts * out->columns &&
                  rows <= x->max_rows && rows <= out->max_rows,
              "activation %d: %d rows of %d columns into a tensor of %d x %d", (int)activation->kind, rows, x->columns,
              out->max_rows, out->columns);
    struct family_step step = {.cpu = cpu_of(b), .out = out, .from = x, .activation = activation};
    return step_run(&step, activate_row, rows, x->columns);
}

// ---- norms of outputs -----------------------------------------------------------------------------------------------

static void add_norm_row(void *arg, int row, int thread)
{
    const struct family_step *s = arg;
    const float *addend = s->from ? cpu_row(s->from, row) : NULL;
    s->cpu->isa->add_norm_row(cpu_rows_out(s->out), row, cpu_row(s->x, row), addend, s->gain ? s->gain->vector : NULL,
                              s->x->columns, s->epsilon);
}

enum status cpu_add_norm(struct backend *b, struct tensor *out, struct tensor *x, const struct tensor *addend,
                         const struct weight *gain, float epsilon, int rows)
{
    INVARIANT(x->kind == TENSOR_F32 && out->kind == TENSOR_ACTIVATION && x->columns == out->columns &&
                  (!addend || (addend->columns == x->columns && gain->columns == x->columns)),
              "add_norm: x of %d columns into a tensor of kind %d with %d", x->columns, (int)out->kind, out->columns);
    struct family_step step = {.cpu = cpu_of(b), .out = out, .x = x, .from = addend, .gain = gain, .epsilon = epsilon};
    return step_run(&step, add_norm_row, rows, x->columns);
}

// ---- norms of all heads ---------------------------------------------------------------------------------------------

static void sum_squares_row(void *arg, int row, int thread)
{
    const struct family_step *s = arg;
    const struct backend_shape *shape = &s->cpu->shape;
    const float *q = cpu_row(s->from, row);
    const int q_dims = shape->n_heads * shape->head_size;
    float *squares = cpu_row(s->out, row);
    squares[0] = s->cpu->isa->sum_squares(q, q_dims);
    squares[1] = s->cpu->isa->sum_squares(q + q_dims, shape->n_kv_heads * shape->head_size);
}

enum status cpu_sum_squares(struct backend *b, struct tensor *squares, const struct tensor *qkv, int rows)
{
    INVARIANT(squares->kind == TENSOR_F32 && squares->columns == 2, "sum_squares: a tensor of %d columns",
              squares->columns);
    struct family_step step = {.cpu = cpu_of(b), .out = squares, .from = qkv};
    return step_run(&step, sum_squares_row, rows, qkv->columns);
}

static void norm_whole_row(void *arg, int row, int thread)
{
    const struct family_step *s = arg;
    const struct cpu *cpu = s->cpu;
    const struct whole_norm *n = s->whole;
    const float *squares = cpu_row(n->squares, row);
    const int q_dims = cpu->shape.n_heads * cpu->shape.head_size;
    float *q = cpu_row(s->x, row);
    cpu->isa->scale_row(q, 1 / sqrtf(squares[0] / (float)n->q_dims + n->epsilon), n->q_gain->vector, q_dims);
    cpu->isa->scale_row(q + q_dims, 1 / sqrtf(squares[1] / (float)n->k_dims + n->epsilon), n->k_gain->vector,
                        cpu->shape.n_kv_heads * cpu->shape.head_size);
}

enum status cpu_norm_whole(struct backend *b, struct tensor *qkv, const struct whole_norm *norm, int rows)
{
    const struct backend_shape *shape = &cpu_of(b)->shape;
    INVARIANT(norm->q_gain->columns == shape->n_heads * shape->head_size &&
                  norm->k_gain->columns == shape->n_kv_heads * shape->head_size,
              "norm_whole: gains of %lld and %lld", (long long)norm->q_gain->columns, (long long)norm->k_gain->columns);
    struct family_step step = {.cpu = cpu_of(b), .x = qkv, .whole = norm};
    return step_run(&step, norm_whole_row, rows, qkv->columns);
}

// ---- queries --------------------------------------------------------------------------------------------------------

static void scale_queries_row(void *arg, int row, int thread)
{
    const struct family_step *s = arg;
    const struct backend_shape *shape = &s->cpu->shape;
    const float scale = rope_query_scale(s->cpu->batch.position[row], s->beta, s->context);
    float *q = cpu_row(s->x, row);
    for (int i = 0; i < shape->n_heads * shape->head_size && scale != 1; i++)
        q[i] *= scale;
}

enum status cpu_scale_queries(struct backend *b, struct tensor *qkv, float beta, int context, int rows)
{
    struct family_step step = {.cpu = cpu_of(b), .x = qkv, .beta = beta, .context = context};
    return step_run(&step, scale_queries_row, rows, qkv->columns);
}
