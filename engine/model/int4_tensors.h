// SPDX-License-Identifier: Apache-2.0
// Matrices of 4-bit codes in a checkpoint. A matrix of N outputs and K inputs has G = K / 128 groups and these tensors,
// where [..] are I32 words of eight codes and (..) are F16, BF16 or F32:
//
//                         codes                       zeros                        scales
//     AutoAWQ             NAME.qweight [K, N/8]       NAME.qzeros [G, N/8]         NAME.scales (G, N)
//     GPTQ                NAME.qweight [K/8, N]       NAME.qzeros [G, N/8]         NAME.scales (G, N)
//     compressed-tensors  NAME.weight_packed [N, K/8] NAME.weight_zero_point [N/8, G]  NAME.weight_scale (N, G)
//
// GPTQ and compressed-tensors may also store the group of each input (g_idx), which must be input / 128.
#pragma once

#include "engine/model/safetensors.h"
#include "kernels/backend.h"
#include "lib/text/config.h"

struct int4_tensors {
    // The last three are NULL if the checkpoint does not store them.
    const struct safetensors_tensor *codes, *scales, *zeros, *groups, *shape;
};

// Finds the tensors of the matrix `weight`, such as "model.layers.0.mlp.up_proj.weight". Returns false if it is not
// stored in 4 bits.
bool int4_tensors_find(const struct safetensors *st, const struct model_config *c, const char *weight,
                       struct int4_tensors *tensors);

// Checks shapes and dtypes and describes the whole matrix. With `values`, also checks scales and groups.
enum status int4_tensors_view(const struct int4_tensors *tensors, const struct model_config *c, int64_t rows,
                              int64_t columns, bool values, struct matrix_view *view);

// The bytes of a view in int4: `n` runs of `bytes` bytes, `stride` bytes apart.
struct int4_extent {
    const char *start;
    int64_t n, stride;
    size_t bytes;
};
struct int4_extent int4_view_extent(const struct matrix_view *view);
// Returns the bytes of a view with its scales and zeros.
size_t int4_view_bytes(const struct matrix_view *view);
