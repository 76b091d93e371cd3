// SPDX-License-Identifier: Apache-2.0
// Prepares a norm, as a separate step or as part of a larger step: checks its tensors, and copies its row indices to
// the device.
#include <assert.h>

#include "kernels/cuda/cuda.h"

void cuda_norm_check(const struct cuda *cuda, const struct tensor *out, const struct tensor *x,
                     const struct weight *gain, const int32_t *row_index, int rows)
{
    assert(cuda->on_device.first_row + rows <= out->max_rows && !(row_index && cuda->on_device.first_row));
    assert(out->columns == x->columns && gain->columns == x->columns);
    assert(x->kind == TENSOR_F32 && out->kind == TENSOR_ACTIVATION);
}

// Returns row indices on the device. The batch's logit rows are there already. Other indices are copied. The function
// waits for the copy, since the caller may change the indices afterwards.
enum status cuda_row_index(struct cuda *cuda, const int32_t *row_index, int rows, const int32_t **device_p)
{
    *device_p = row_index ? cuda->on_device.logit_row : NULL;
    if (!row_index || row_index == cuda->batch.logit_row) return STATUS_OK;
    assert(rows <= cuda->shape.max_rows);
    *device_p = cuda->row_index;
    cudaError_t error = cudaMemcpyAsync(cuda->row_index, row_index, (size_t)rows * sizeof *row_index,
                                        cudaMemcpyHostToDevice, cuda->stream);
    return error == cudaSuccess ? cuda_wait(cuda) : cuda_status(error, "rmsnorm");
}
