// SPDX-License-Identifier: Apache-2.0
// The vector type of the kernels, as wide as the instruction set level of this compilation. It has the compiler's
// operators (+ - * / << & <) and the operations below. Loads and stores need no alignment.
//
// The build sets -ffp-contract=off, so a multiply and an add are rounded together only in vec_fma. The compiler could
// otherwise contract only one of two copies of a loop, which would break exactness.
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "kernels/convert.h"

#if defined(__AVX512F__)
enum { VEC = 16 };
#elif defined(__AVX2__)
enum { VEC = 8 };
#else
enum { VEC = 4 };
#endif

#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(4 * VEC)));
typedef int32_t vec_mask __attribute__((vector_size(4 * VEC))); // every lane all ones or all zeros; also lane numbers
typedef uint32_t vec_word __attribute__((vector_size(4 * VEC)));
typedef uint16_t vec_half __attribute__((vector_size(2 * VEC)));
typedef uint8_t vec_byte __attribute__((vector_size(VEC)));
typedef int8_t vec_signed_byte __attribute__((vector_size(VEC)));

INLINE vec vec_load(const float *from)
{
    vec v;
    memcpy(&v, from, sizeof v);
    return v;
}

INLINE void vec_store(float *to, vec v)
{
    memcpy(to, &v, sizeof v);
}

// Uses a non-temporal store, which bypasses the caches, if the level has one. `to` is aligned to a vector.
INLINE void vec_store_streamed(float *to, vec v)
{
#if defined(__AVX512F__)
    _mm512_stream_ps(to, v);
#else
    vec_store(to, v);
#endif
}

INLINE vec_word vec_load_words(const uint32_t *from)
{
    vec_word v;
    memcpy(&v, from, sizeof v);
    return v;
}

INLINE vec vec_set(float value)
{
    return value - (vec){0}; // value + 0 would turn -0 into 0
}

INLINE vec_word vec_set_words(uint32_t value)
{
    return value - (vec_word){0};
}

INLINE vec vec_select(vec_mask mask, vec yes, vec no)
{
    return (vec)((mask & (vec_mask)yes) | (~mask & (vec_mask)no));
}

// Returns a > b ? a : b in every lane, so a NaN in b stays.
INLINE vec vec_max(vec a, vec b)
{
#if defined(__AVX512F__)
    return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
    return _mm256_max_ps(a, b);
#else
    return vec_select(a > b, a, b);
#endif
}

// Returns a * b + c, rounded once if the machine has the instruction.
INLINE vec vec_fma(vec a, vec b, vec c)
{
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
    return _mm256_fmadd_ps(a, b, c);
#else
    return a * b + c;
#endif
}

INLINE vec vec_from_int(vec_mask v)
{
    return __builtin_convertvector(v, vec);
}

// Return the even and the odd elements of bf16 words as f32.
INLINE vec vec_even(vec_word words)
{
    return (vec)(words << 16);
}

INLINE vec vec_odd(vec_word words)
{
    return (vec)(words & 0xffff0000u);
}

INLINE vec vec_load_bytes(const int8_t *from)
{
    vec_signed_byte bytes;
    memcpy(&bytes, from, sizeof bytes);
    return vec_from_int(__builtin_convertvector(bytes, vec_mask));
}

// Returns the bf16 words of two vectors. bf16 must represent their values exactly.
INLINE vec_word vec_pair(vec even, vec odd)
{
    return (vec_word)even >> 16 | ((vec_word)odd & 0xffff0000u); // the low half is 0, but not to memcheck
}

INLINE vec vec_load_bf16(const uint16_t *from)
{
    vec_half half;
    memcpy(&half, from, sizeof half);
    return (vec)(__builtin_convertvector(half, vec_word) << 16);
}

// Stores bf16_from_f32 of every lane. The AVX512-BF16 instruction flushes subnormal numbers to 0.
INLINE void vec_store_bf16(uint16_t *to, vec v)
{
#ifdef __AVX512BF16__
    __m256bh half = _mm512_cvtneps_pbh(v);
#else
    vec_word bits = (vec_word)v;
    vec_word nan = (vec_word)((vec_mask)(bits & 0x7fffffffu) > 0x7f800000);
    vec_word rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    vec_word result = (nan & (bits >> 16 | 0x40u)) | (~nan & rounded);
    vec_half half = __builtin_convertvector(result, vec_half);
#endif
    memcpy(to, &half, sizeof half);
}

// Stores two neighbouring vectors as vec_store_bf16 does. If `streamed`, uses a non-temporal store if the level has
// one, and `to` must be aligned to a vector.
INLINE void vec_store_bf16_pair(uint16_t *to, vec low, vec high, const bool streamed)
{
#ifdef __AVX512BF16__
    __m512i pair = (__m512i)_mm512_cvtne2ps_pbh(high, low);
    if (streamed)
        _mm512_stream_si512((void *)to, pair);
    else
        memcpy(to, &pair, sizeof pair);
#else
    vec_store_bf16(to, low);
    vec_store_bf16(to + VEC, high);
#endif
}

// Orders non-temporal stores before later reads by other threads.
INLINE void vec_store_fence(void)
{
#if defined(__AVX512F__)
    _mm_sfence();
#endif
}

// Returns lane i ^ width of v in lane i. width is 1, 2, 4 or 8 and below VEC.
INLINE vec vec_swap(vec v, const int width)
{
#if defined(__AVX512F__)
    switch (width) {
    case 1: return _mm512_permute_ps(v, 0xb1);
    case 2: return _mm512_permute_ps(v, 0x4e);
    case 4: return _mm512_shuffle_f32x4(v, v, 0xb1);
    default: return _mm512_shuffle_f32x4(v, v, 0x4e);
    }
#elif defined(__AVX2__)
    switch (width) {
    case 1: return _mm256_permute_ps(v, 0xb1);
    case 2: return _mm256_permute_ps(v, 0x4e);
    default: return _mm256_permute2f128_ps(v, v, 1);
    }
#else
    vec swapped = v; // initialised, since gcc may warn although the loop sets every element
    for (int i = 0; i < VEC; i++)
        swapped[i] = v[i ^ width];
    return swapped;
#endif
}

// Sums the lanes in a fixed tree: adds the upper half to the lower half, repeatedly.
INLINE float vec_sum(vec v)
{
#pragma GCC unroll 4
    for (int width = VEC / 2; width; width /= 2)
        v = v + vec_swap(v, width);
    return v[0];
}

INLINE float vec_largest(vec v)
{
#pragma GCC unroll 4
    for (int width = VEC / 2; width; width /= 2)
        v = vec_max(v, vec_swap(v, width));
    return v[0];
}

// Loads v into a register. An instruction that overwrites one of its operands can then overwrite v. If v stayed in
// memory, the compiler would first copy another operand.
INLINE vec vec_in_register(vec v)
{
#if defined(__AVX512F__)
    __asm__("" : "+v"(v));
#endif
    return v;
}

// Returns a constant that is loaded again for each use, so that an instruction can overwrite its register.
INLINE vec vec_broadcast(const float *value)
{
#if defined(__AVX512F__)
    vec v;
    __asm__ volatile("vbroadcastss %1, %0" : "=v"(v) : "m"(*value));
    return v;
#else
    return vec_set(*value);
#endif
}

// Returns in lane i the largest lane of x[i].
INLINE vec vec_largest_of_each(const vec x[VEC])
{
#if defined(__AVX512F__)
    // Each step halves the remaining lanes of two vectors and puts them into one.
    vec of8[8], of4[4], of2[2];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) { // in an order that the last steps turn into 0, 1, 2 ..
        const int first = (i & 4) << 1 | (i & 1) << 1 | (i & 2) >> 1;
        const vec a = x[first], b = x[first + 4];
        of8[i] = vec_max(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        of4[i] =
            vec_max(_mm512_shuffle_f32x4(of8[i], of8[i + 4], 0x88), _mm512_shuffle_f32x4(of8[i], of8[i + 4], 0xdd));
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        of2[i] = vec_max(_mm512_shuffle_ps(of4[i], of4[i + 2], 0x88), _mm512_shuffle_ps(of4[i], of4[i + 2], 0xdd));
    return vec_max(_mm512_shuffle_ps(of2[0], of2[1], 0x88), _mm512_shuffle_ps(of2[0], of2[1], 0xdd));
#else
    vec largest = x[0];
    for (int i = 0; i < VEC; i++)
        largest[i] = vec_largest(x[i]);
    return largest;
#endif
}

// Returns the number of each lane.
INLINE vec_mask vec_lanes(void)
{
    vec_mask lane;
    for (int i = 0; i < VEC; i++)
        lane[i] = i;
    return lane;
}

// Returns the mask of the lanes with a number below n.
INLINE vec_mask vec_first(int n)
{
    return vec_lanes() < n;
}

// Returns e^x to about 1 ulp: x = n ln 2 + r, |r| <= ln 2 / 2, and e^r by the polynomial of Cephes' expf. It is 0 below
// -87 (the last normal numbers) and e^88 above 88. NaN stays NaN.
INLINE vec vec_exp(vec x)
{
    const vec shift = vec_set(12582912.f); // 1.5 * 2^23: the sum holds the rounded integer in its low mantissa bits
    vec clamped = vec_max(vec_set(-87.f), x);
    clamped = vec_select(clamped > 88.f, vec_set(88.f), clamped);
    vec shifted = vec_fma(clamped, vec_set(1.44269504f), shift);
    vec n = shifted - shift;
    vec r = vec_fma(n, vec_set(-0.693359375f), clamped);
    r = vec_fma(n, vec_set(2.12194440e-4f), r);
    vec y = vec_set(1.9875691500e-4f);
    y = vec_fma(y, r, vec_set(1.3981999507e-3f));
    y = vec_fma(y, r, vec_set(8.3334519073e-3f));
    y = vec_fma(y, r, vec_set(4.1665795894e-2f));
    y = vec_fma(y, r, vec_set(1.6666665459e-1f));
    y = vec_fma(y, r, vec_set(5.0000001201e-1f));
    y = vec_fma(y, r * r, r + 1.f);
    vec_word exponent = ((vec_word)shifted - (vec_word)shift + 127u) << 23;
    return vec_select(x < -87.f, vec_set(0), y * (vec)exponent);
}

// Returns the nearest integer for |x| < 2^22, and an approximation beyond. Infinities and NaN stay.
INLINE vec vec_round(vec x)
{
    return x + 12582912.f - 12582912.f;
}

#if defined(__AVX512F__)
// Returns the lanes in which 2^x is not subnormal; lanes with NaN are included. With a subnormal result, the scalef
// instruction takes over a hundred cycles.
INLINE __mmask16 vec_normal_exp2(vec x)
{
    return _mm512_cmp_ps_mask(x, vec_set(-126.f), _CMP_NLT_UQ);
}
#endif

// Computes x[i] = 2^x[i] for n vectors, with a relative error of 1e-7, by a polynomial of degree 5 around the nearest
// integer. Exact for integers. Valid up to 127. The result is 0 below -126. NaN stays NaN. Several vectors are computed
// together to hide the latency of each step.
INLINE void vec_exp2(vec *x, const int n)
{
    const float c[] = {1.326472580e-03f, 9.671512743e-03f, 5.550733748e-02f, 2.402224208e-01f, 6.931469776e-01f, 1};
    vec r[16], y[16];
#pragma GCC unroll 16
    for (int i = 0; i < n; i++) {
#if defined(__AVX512DQ__)
        r[i] = _mm512_reduce_ps(x[i], 0); // x minus the nearest integer, 0 for infinities
#else
        vec clamped = vec_max(vec_set(-126.f), x[i]);
        r[i] = clamped - vec_round(clamped);
#endif
        y[i] = vec_set(c[0]);
    }
#pragma GCC unroll 5
    for (int k = 1; k < 6; k++)
#pragma GCC unroll 16
        for (int i = 0; i < n; i++)
            y[i] = vec_fma(y[i], r[i], vec_set(c[k]));
#pragma GCC unroll 16
    for (int i = 0; i < n; i++) {
#if defined(__AVX512DQ__)
        x[i] = _mm512_maskz_scalef_ps(vec_normal_exp2(x[i]), y[i], x[i] - r[i]);
#else
        const vec shift = vec_set(12582912.f); // as in vec_exp
        vec shifted = vec_max(vec_set(-126.f), x[i]) + shift;
        vec_word exponent = ((vec_word)shifted - (vec_word)shift + 127u) << 23;
        x[i] = vec_select(x[i] < -126.f, vec_set(0), y[i] * (vec)exponent);
#endif
    }
}

// Returns x minus the largest integer that is not above it, or 0 for minus infinity. x is below 2^22.
INLINE vec vec_fraction(vec x)
{
#if defined(__AVX512DQ__)
    return _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF);
#else
    vec clamped = vec_max(vec_set(-127.f), x), nearest = vec_round(clamped);
    return clamped - vec_select(nearest > clamped, nearest - 1.f, nearest);
#endif
}

// Returns y times 2 to the largest integer that is not above x. Valid up to 127. The result is 0 below -126.
INLINE vec vec_scale_exp2(vec y, vec x)
{
#if defined(__AVX512F__)
    return _mm512_maskz_scalef_ps(vec_normal_exp2(x), y, x);
#else
    vec clamped = vec_max(vec_set(-127.f), x);
    vec_word exponent = ((vec_word)(clamped - vec_fraction(clamped) + 12582912.f) - 0x4b400000u + 127u) << 23;
    return vec_select(x < -126.f, vec_set(0), y * (vec)exponent);
#endif
}

// Returns acc + x w for f32 words, or acc + x_even w_even + x_odd w_odd for bf16 words.
INLINE vec vec_dot(vec acc, vec_word x, vec_word w, const bool bf16)
{
    if (!bf16) return vec_fma((vec)x, (vec)w, acc);
#ifdef __AVX512BF16__
    return _mm512_dpbf16_ps(acc, (__m512bh)x, (__m512bh)w);
#else
    acc = vec_fma(vec_even(x), vec_even(w), acc);
    return vec_fma(vec_odd(x), vec_odd(w), acc);
#endif
}

// Returns x * sigmoid(x).
INLINE vec vec_silu(vec x)
{
    return x / (1.f + vec_exp(-x));
}
