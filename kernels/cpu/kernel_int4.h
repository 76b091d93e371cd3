// SPDX-License-Identifier: Apache-2.0
// Decoding of int4 words and the scales of int4 sums (included by kernel_gemm.h). The layout of words is in isa.h.
#pragma once

#if defined(__AVX512F__)
static const float int4_values[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
#endif

// Return code - 8 of the even or the odd value of pair i of each word.
INLINE vec int4_value(vec_word codes, int shift)
{
#if defined(__AVX512F__)
    return _mm512_permutexvar_ps((__m512i)(codes >> (uint32_t)shift), vec_load(int4_values)); // reads the low four bits
#else
    return vec_from_int((vec_mask)(codes >> (uint32_t)shift & 15u)) - 8.f;
#endif
}

INLINE vec int4_even(vec_word codes, int i)
{
    return int4_value(codes, 4 * i);
}

INLINE vec int4_odd(vec_word codes, int i)
{
    return int4_value(codes, 4 * i + 16);
}

// Returns the bf16 words of pair i.
INLINE vec_word int4_pair(vec_word codes, int i)
{
#if defined(__AVX512BW__)
    // The instruction reads five bits of each half, so the table has every value twice.
    static const uint16_t values[32] = {0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80,
                                        0,      0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0,
                                        0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80,
                                        0,      0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0};
    return (vec_word)_mm512_permutexvar_epi16((__m512i)(codes >> (uint32_t)(4 * i)), _mm512_loadu_si512(values));
#else
    return vec_pair(int4_even(codes, i), int4_odd(codes, i));
#endif
}

// Adds the sums of one group to c: c += (sum of x (code - 8) - (zero - 8) * sum of x) * scale. `tiled` is the layout of
// both. Not inlined, as group_add.
static __attribute__((noinline)) void int4_group_add(const struct panel_gemm *p, const float *sums, bool tiled, int row,
                                                     int column, int rows, int columns, int group)
{
    const float *scale = p->w_scale + group * PANEL_COLUMNS + column;
    const int8_t *zero = p->zero + group * PANEL_COLUMNS + column;
    const bool first = !p->accumulate && group == 0;
    for (int r = 0; r < rows; r++) {
        const vec x_sum = vec_set(-p->x_scale[(row + r) * p->x_scale_stride + group]);
        for (int i = 0; i < columns; i += VEC) {
            const float *from = sums + (tiled ? tiled_sums_at(r, i) : (size_t)(r * PANEL_COLUMNS + i));
            float *c =
                p->c + (tiled ? tiled_sums_at(row + r, column + i) : (size_t)((row + r) * PANEL_COLUMNS + column + i));
            const vec sum = vec_fma(x_sum, vec_load_bytes(zero + i), vec_load(from));
            vec_store(c, vec_fma(sum, vec_load(scale + i), first ? vec_set(0) : vec_load(c)));
        }
    }
}

// Decodes `words` words of a panel to bf16 words: INT4_PAIRS times as many rows of PANEL_COLUMNS.
INLINE void int4_decode(uint32_t *out, const uint32_t *panel, int words, const struct stream_prefetch ahead)
{
    for (int k = 0; k < words; k++, panel += PANEL_COLUMNS, out += INT4_PAIRS * PANEL_COLUMNS) {
        if (ahead.target != STREAM_NONE) stream_prefetch_word(panel, ahead, PANEL_COLUMNS / VEC);
        for (int column = 0; column < PANEL_COLUMNS; column += VEC) {
            const vec_word codes = vec_load_words(panel + column);
#pragma GCC unroll 4
            for (int i = 0; i < INT4_PAIRS; i++) {
                const vec_word pair = int4_pair(codes, i);
                memcpy(out + i * PANEL_COLUMNS + column, &pair, sizeof pair);
            }
        }
    }
}
