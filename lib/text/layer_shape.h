// SPDX-License-Identifier: Apache-2.0
// The parts in which the layers of families of models differ. Everything else is as in Llama.
#pragma once

#include <stdbool.h>

enum head_norm {
    HEAD_NORM_NONE,
    HEAD_NORM_EACH,  // RMSNorm of each head of q and k, with gains [D]
    HEAD_NORM_WHOLE, // RMSNorm of all heads of q together, and of k, with gains [H D] and [Hkv D]
};

enum mlp_kind {
    MLP_SWIGLU, // down(silu(gate x) * (up x))
    MLP_RELU2,  // down(relu(up x)^2), without gate
    MLP_XIELU,  // down(xielu(up x)) (arXiv 2411.13010), without gate, with parameters in each layer
};

struct layer_shape {
    bool qkv_bias, o_bias, mlp_bias;
    bool fused_projections; // q, k and v are one matrix, and gate and up are one
    bool norms_outputs;     // the norms are applied to the outputs of attention and MLP instead of to their inputs
    enum head_norm head_norm;
    enum mlp_kind mlp;
    const char *attention_norm, *mlp_norm; // names of the gains of the two norms in the file
};

// Returns the number of matrices of the MLP.
static inline int layer_mlp_matrices(const struct layer_shape *layer)
{
    return layer->mlp == MLP_SWIGLU ? 3 : 2;
}

// Returns true if backends compute this kind of MLP as a single step.
static inline bool layer_mlp_is_fused(const struct layer_shape *layer)
{
    return layer->mlp == MLP_SWIGLU && !layer->mlp_bias;
}
