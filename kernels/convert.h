// SPDX-License-Identifier: Apache-2.0
// Converts the 16-bit and 8-bit float formats of weights and KV entries, and reads a matrix_view as f32. This code does
// not depend on the instruction set.
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

// Converts bf16, which is the upper half of an f32.
static inline float bf16_to_f32(uint16_t half)
{
    return f32_from_bits((uint32_t)half << 16);
}

// Rounds to nearest, ties to even. NaN stays NaN (rounding up its payload could otherwise carry into the sign).
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
    // The exponent read as f32 is 112 too small. The multiplication is exact and also correct for subnormals.
    return f32_from_bits(sign | f32_bits(f32_from_bits(rest << 13) * 0x1p112f));
}

// Converts e4m3fn: 2^(exponent - 7) * 1.mantissa, below 2^-6 multiples of 2^-9; 0x7f and 0xff are NaN. Has no branches,
// so that compilers vectorise loops over it, and no f32 subnormals, which are slow.
static inline float e4m3_to_f32(uint8_t code)
{
    uint32_t sign = (uint32_t)(code & 0x80) << 24, rest = code & 0x7f;
    uint32_t small = f32_bits((float)(int32_t)rest * 0x1p-9f), normal = (rest << 20) + (120u << 23);
    return f32_from_bits(sign | (rest < 8 ? small : rest < 0x7f ? normal : 0x7fc00000));
}

// Rounds to nearest, ties to even. Values above 448, and infinity, become 448, with their sign. NaN stays NaN.
static inline uint8_t e4m3_from_f32(float value)
{
    uint32_t bits = f32_bits(value), sign = bits >> 24 & 0x80, rest = bits & 0x7fffffff;
    // An f32 of this size has steps of 2^-9.
    uint32_t small = f32_bits(f32_from_bits(rest) + 0x1p14f) - f32_bits(0x1p14f);
    uint32_t normal = ((rest + 0x7ffff + (rest >> 20 & 1)) >> 20) - (120u << 3);
    uint32_t code = rest < f32_bits(0x1p-6f) ? small : rest < f32_bits(448) ? normal : 0x7e;
    return (uint8_t)(sign | (rest > 0x7f800000 ? 0x7f : code));
}

// Symmetric quantisation to bytes, x ~ q * scale. With `largest` the largest magnitude:
//   integers: scale = largest / QUANTISE_MAX, q rounded to nearest, ties to even
//   e4m3:     scale = largest / E4M3_MAX, q rounded by e4m3_from_f32
// x / scale is computed in f32 as x * (MAX / largest). If `largest` is below QUANTISE_MIN, all values become zeros,
// since MAX / largest could overflow.
#define QUANTISE_MAX 127.f
#define E4M3_MAX     448.f
#define QUANTISE_MIN 0x1p-100f
enum { QUANTISE_GROUP = 128 }; // number of values of K per scale in DTYPE_INT8_G128

// Reads out[0..count) = elements (row, column..column + count) of the view. The view need not be aligned.
void matrix_view_read(const struct matrix_view *view, int64_t row, int64_t column, int64_t count, float *out);
// Returns the scale of an element of an FP8 or INT8 view.
float matrix_view_scale(const struct matrix_view *view, int64_t row, int64_t column);
