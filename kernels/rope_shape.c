// SPDX-License-Identifier: Apache-2.0
#include "kernels/rope_shape.h"

#include <stdlib.h>

#include "lib/base/mem.h"

void rope_shape_copy(const struct rope_shape *from, int head_size, int n_layers, struct rope_shape *to)
{
    const size_t half = (size_t)head_size / 2;
    float *scale = mem_alloc_array(half, sizeof *scale);
    for (size_t i = 0; i < half; i++)
        scale[i] = from->scale ? from->scale[i] : 1;
    *to = *from;
    to->scale = scale;
    to->inv_freq = mem_copy(from->inv_freq, half * sizeof *from->inv_freq);
    if (from->long_inv_freq) to->long_inv_freq = mem_copy(from->long_inv_freq, half * sizeof *from->long_inv_freq);
    if (from->still_layers) to->still_layers = mem_copy(from->still_layers, (size_t)n_layers);
}

void rope_shape_free(struct rope_shape *rope)
{
    free((void *)rope->inv_freq);
    free((void *)rope->scale);
    free((void *)rope->long_inv_freq);
    free((void *)rope->still_layers);
    *rope = (struct rope_shape){0};
}
