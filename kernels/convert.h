// SPDX-License-Identifier: Apache-2.0
// The 16-bit float formats of weights and KV entries, and reading any of them out of a matrix_view as f32.
// Used by every CPU-side backend; nothing here depends on the instruction set.
#pragma once

#include <stdint.h>
#include <string.h>

#include "kernels/backend.h"

static inline float f32_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

// bf16 is the upper half of an f32.
static inline float bf16_to_f32(uint16_t half)
{
    return f32_from_bits((uint32_t)half << 16);
}

// Rounds to nearest, ties to even; NaN stays NaN (rounding up its payload could otherwise carry into the sign).
static inline uint16_t bf16_from_f32(float value)
{
    uint32_t bits = f32_bits(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float f16_to_f32(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;
    if (rest >= 0x7c00) return f32_from_bits(sign | 0x7f800000 | rest << 13); // Inf, NaN
    // Read as f32, the exponent is 112 too small; the product is exact and makes subnormals right as well.
    return f32_from_bits(sign | f32_bits(f32_from_bits(rest << 13) * 0x1p112f));
}

// Quantisation to signed bytes: x ~ q * scale, symmetric, scale = the largest magnitude / QUANTISE_MOST, q rounded to
// the nearest (ties to even). Values below QUANTISE_LEAST become zeros, so that 1 / scale is a number.
#define QUANTISE_MOST  127.f
#define QUANTISE_LEAST 0x1p-100f
enum { QUANTISE_GROUP = 128 }; // of K that share a scale in DTYPE_INT8_G128

// out[0..count) = elements (row, column..column + count) of the view. The view need not be aligned.
void matrix_view_read(const struct matrix_view *view, int64_t row, int64_t column, int64_t count, float *out);
