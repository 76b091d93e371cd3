// SPDX-License-Identifier: Apache-2.0
// Implements the steps of backend_ops that only some families of models have.
#include <assert.h>

#include "kernels/cuda/cuda.h"

enum status cuda_activate(struct backend *b, struct tensor *out, const struct tensor *x,
                          const struct activation *activation, int rows)
{
    const struct cuda *cuda = cuda_of(b);
    assert(x->kind == TENSOR_F32 && out->kind == TENSOR_ACTIVATION);
    assert(x->columns == (activation->kind == ACTIVATION_SWIGLU ? 2 : 1) * out->columns);
    return cuda_status(launch_activate(cuda->stream, cuda_rows(cuda, out, 0), out->stride, cuda_rows(cuda, x, 0),
                                       activation, rows, out->columns),
                       "activate");
}

enum status cuda_add_norm(struct backend *b, struct tensor *out, struct tensor *x, const struct tensor *addend,
                          const struct weight *gain, float epsilon, int rows)
{
    const struct cuda *cuda = cuda_of(b);
    assert(x->kind == TENSOR_F32 && out->kind == TENSOR_ACTIVATION && x->columns == out->columns);
    return cuda_status(launch_add_norm(cuda->stream, cuda_rows(cuda, out, 0), out->stride, cuda_rows(cuda, x, 0),
                                       addend ? cuda_rows(cuda, addend, 0) : NULL, gain ? gain->data : NULL, epsilon,
                                       rows, x->columns),
                       "add_norm");
}

static int q_columns(const struct cuda *cuda)
{
    return cuda->shape.n_heads * cuda->shape.head_size;
}

static int k_columns(const struct cuda *cuda)
{
    return cuda->shape.n_kv_heads * cuda->shape.head_size;
}

enum status cuda_sum_squares(struct backend *b, struct tensor *squares, const struct tensor *qkv, int rows)
{
    const struct cuda *cuda = cuda_of(b);
    assert(squares->kind == TENSOR_F32 && squares->columns == 2);
    return cuda_status(launch_sum_squares(cuda->stream, cuda_rows(cuda, squares, 0), cuda_rows(cuda, qkv, 0),
                                          qkv->stride, rows, q_columns(cuda), k_columns(cuda)),
                       "sum_squares");
}

enum status cuda_norm_whole(struct backend *b, struct tensor *qkv, const struct whole_norm *norm, int rows)
{
    const struct cuda *cuda = cuda_of(b);
    const struct whole_rows on_device = {.squares = cuda_rows(cuda, norm->squares, 0),
                                         .q_gain = norm->q_gain->data,
                                         .k_gain = norm->k_gain->data,
                                         .q = q_columns(cuda),
                                         .k = k_columns(cuda),
                                         .q_dims = norm->q_dims,
                                         .k_dims = norm->k_dims,
                                         .stride = qkv->stride,
                                         .epsilon = norm->epsilon};
    return cuda_status(launch_norm_whole(cuda->stream, cuda_rows(cuda, qkv, 0), &on_device, rows), "norm_whole");
}

enum status cuda_scale_queries(struct backend *b, struct tensor *qkv, float beta, int context, int rows)
{
    const struct cuda *cuda = cuda_of(b);
    const struct device_batch *batch = &cuda->on_device;
    return cuda_status(launch_scale_queries(cuda->stream, cuda_rows(cuda, qkv, 0), qkv->stride,
                                            batch->position + batch->first_row, beta, context, rows, q_columns(cuda)),
                       "scale_queries");
}
