// SPDX-License-Identifier: Apache-2.0
// backend_ops.sample: see sample.cu.
#include <assert.h>

#include "kernels/cuda/cuda.h"

enum status cuda_sample(struct backend *b, struct tensor *picks, const struct tensor *logits, int parts, int rows,
                        int32_t first_id, int32_t n_ids, bool draw)
{
    struct cuda *cuda = (struct cuda *)b;
    assert(picks->columns == 2 && rows <= picks->max_rows && parts * rows <= logits->max_rows);
    assert(n_ids <= parts * logits->columns && (!draw || cuda->on_device.draw));
    const struct logit_rows all = {.data = logits->data,
                                   .part = (int64_t)rows * logits->stride,
                                   .row_stride = logits->stride,
                                   .columns = logits->columns,
                                   .n_ids = n_ids,
                                   .first_id = first_id};
    cudaError_t error = draw ? launch_sample(cuda->stream, &all, rows, cuda->on_device.draw, picks->data)
                             : launch_argmax(cuda->stream, &all, rows, picks->data);
    return cuda_status(error, "drawing tokens");
}
