// SPDX-License-Identifier: Apache-2.0
// RoPE (arXiv 2104.09864) as every backend computes it: the angles of a row, and the factors of their cosines and
// sines. Frequencies and angles are rounded to f32 where transformers rounds them. So a model's long prompts have the
// positions with which it was trained.
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __CUDACC__
#define ROPE_FUNCTION static __host__ __device__ __forceinline__
#else
#define ROPE_FUNCTION static inline
#endif

// Dims i and i + D/2 of a head rotate as a pair. A row rotates by its position times the frequencies of its length: the
// number of tokens of the whole prompt, or the position + 1 if that is larger. The arrays have D/2 elements. A backend
// copies them.
struct rope_shape {
    const float *inv_freq;      // frequencies in radians; 0: the pair does not rotate
    const float *scale;         // factors of cosines and sines; NULL: 1
    const float *long_inv_freq; // longrope: frequencies of lengths over original_context; NULL: none
    int original_context;       // used with long_inv_freq and with ntk_factor
    int ntk_dims;               // dims of a head that rotate
    double ntk_factor;          // dynamic NTK: lengths over original_context have a larger theta; 0: none
    double theta;
    const uint8_t *still_layers; // [n_layers] layers with 1 do not rotate and have no scale; NULL: all rotate
};

// Returns true if the rows of a layer rotate.
static inline bool rope_layer_rotates(const struct rope_shape *rope, int layer)
{
    return !rope->still_layers || !rope->still_layers[layer];
}

// Makes copies of the arrays. `scale` becomes an array of ones if it is NULL. rope_shape_free() frees the copies.
void rope_shape_copy(const struct rope_shape *from, int head_size, int n_layers, struct rope_shape *to);
void rope_shape_free(struct rope_shape *rope);

// Returns the theta of a row of `length` tokens, as transformers' _compute_dynamic_ntk_parameters() computes it.
ROPE_FUNCTION float rope_theta(const struct rope_shape *rope, int length)
{
    const float factor = (float)rope->ntk_factor, relative = factor * (float)length / (float)rope->original_context;
    const float power = (float)pow((double)(relative - (factor - 1)), rope->ntk_dims / (rope->ntk_dims - 2.0));
    return (float)rope->theta * power;
}

// Returns the angle of a pair in radians. `theta` is rope_theta() of the row's length, used if rope_is_scaled().
ROPE_FUNCTION float rope_angle(const struct rope_shape *rope, int pair, int position, int length, float theta)
{
    float frequency = rope->inv_freq[pair];
    if (length > rope->original_context) {
        if (rope->long_inv_freq) frequency = rope->long_inv_freq[pair];
        if (rope->ntk_factor != 0 && frequency != 0)
            frequency = 1 / (float)pow((double)theta, (double)((float)(2 * pair) / (float)rope->ntk_dims));
    }
    return (float)position * frequency;
}

// Returns true if the angles of a row of `length` tokens need rope_theta().
ROPE_FUNCTION int rope_is_scaled(const struct rope_shape *rope, int length)
{
    return rope->ntk_factor != 0 && length > rope->original_context;
}

// Returns the factor of the q of a position, see rope_config.query_beta in lib/text/rope_config.h.
ROPE_FUNCTION float rope_query_scale(int position, float beta, int context)
{
    return 1 + beta * logf(1 + (float)(position / context));
}
