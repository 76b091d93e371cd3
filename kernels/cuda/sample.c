// SPDX-License-Identifier: Apache-2.0
// Implements backend_ops.sample, see sample.cu.
#include <assert.h>

#include "kernels/cuda/cuda.h"

enum status cuda_sample(struct backend *b, struct tensor *sampled, const struct tensor *logits, int parts, int rows,
                        int32_t first_id, int32_t n_ids, bool use_sampling)
{
    struct cuda *cuda = (struct cuda *)b;
    assert(sampled->columns == 2 && rows <= sampled->max_rows && parts * rows <= logits->max_rows);
    assert(n_ids <= parts * logits->columns && (!use_sampling || cuda->on_device.sampling));
    const struct logit_rows all = {.data = logits->data,
                                   .part = (int64_t)rows * logits->stride,
                                   .row_stride = logits->stride,
                                   .columns = logits->columns,
                                   .n_ids = n_ids,
                                   .first_id = first_id};
    cudaError_t error = use_sampling ? launch_sample(cuda->stream, &all, rows, cuda->on_device.sampling, sampled->data)
                                     : launch_argmax(cuda->stream, &all, rows, sampled->data);
    return cuda_status(error, "sampling tokens");
}
