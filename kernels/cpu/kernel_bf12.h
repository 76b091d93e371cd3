// SPDX-License-Identifier: Apache-2.0
// Gemms by bf12 panels (included by kernel_gemm.h). Few rows decode quads in registers. More rows first decode a block
// of the panel to bf16 words and multiply these. Both put escapes in place before the product, so every sum has the
// order, and the bits, of a bf16 gemm. The layout of quads is in kernels/bf12.h.
#pragma once

enum {
    BF12_ROW = BF12_QUAD_WORDS * PANEL_COLUMNS, // words of a quad of all columns
    // Words of K that are decoded at a time. A block for few rows stays in L1 (16 KiB). A block for many rows is as
    // long as a block of K, so that sums are loaded and stored as often as in a bf16 gemm.
    BF12_FEW_ROWS = 3 * TILE_ROWS,
    BF12_FEW_ROWS_WORDS = 64,
};

// Four words of K of one vector of outputs: exponents of words 0 and 1, and 2 and 3, as bytes; signs and mantissas.
struct bf12_vec {
    vec_word exponents[2], rest[2];
};

// Returns the table of exponents in every 16 bytes of a vector.
INLINE vec_word bf12_table(const uint8_t exponent[BF12_EXPONENTS])
{
    vec_word table;
    for (size_t i = 0; i < sizeof table; i += BF12_EXPONENTS)
        memcpy((char *)&table + i, exponent, BF12_EXPONENTS);
    return table;
}

// Returns the exponents of the codes in the lower half of each byte.
INLINE vec_word bf12_lookup(vec_word table, vec_word codes)
{
    codes &= 0x0f0f0f0fu;
#if defined(__AVX512BW__)
    return (vec_word)_mm512_shuffle_epi8((__m512i)table, (__m512i)codes);
#elif defined(__AVX2__)
    return (vec_word)_mm256_shuffle_epi8((__m256i)table, (__m256i)codes);
#else
    typedef uint8_t bytes __attribute__((vector_size(4 * VEC)));
    return (vec_word)__builtin_shuffle((bytes)table, (bytes)codes);
#endif
}

INLINE vec_word bf12_rotate(vec_word rest)
{
#if defined(__AVX512F__)
    return (vec_word)_mm512_ror_epi32((__m512i)rest, 8);
#elif defined(__AVX2__)
    const __m256i order = _mm256_setr_epi8(1, 2, 3, 0, 5, 6, 7, 4, 9, 10, 11, 8, 13, 14, 15, 12, 1, 2, 3, 0, 5, 6, 7, 4,
                                           9, 10, 11, 8, 13, 14, 15, 12);
    return (vec_word)_mm256_shuffle_epi8((__m256i)rest, order);
#else
    return rest >> 8 | rest << 24;
#endif
}

INLINE struct bf12_vec bf12_load(const uint32_t *quad, vec_word table)
{
    const vec_word codes = vec_load_words(quad);
    return (struct bf12_vec){.exponents = {bf12_lookup(table, codes), bf12_lookup(table, codes >> 4)},
                             .rest = {vec_load_words(quad + PANEL_COLUMNS), vec_load_words(quad + 2 * PANEL_COLUMNS)}};
}

// Returns the bf16 words of word i.
INLINE vec_word bf12_word(const struct bf12_vec *quad, const int i)
{
    const vec_word bytes = quad->exponents[i / 2], exponents = i % 2 ? bytes >> 1 : bytes << 7;
    const vec_word rest = i % 2 ? bf12_rotate(quad->rest[i / 2]) : quad->rest[i / 2];
#if defined(__AVX512F__)
    const __m512i select = _mm512_set1_epi32((int)BF12_EXPONENT);
    return (vec_word)_mm512_ternarylogic_epi32(select, (__m512i)exponents, (__m512i)rest, 0xca);
#else
    return (exponents & BF12_EXPONENT) | (rest & BF12_REST);
#endif
}

// Returns the place of a decoded word in a block of `words` words, a panel or a tiled panel.
INLINE size_t bf12_place(int words, int k, int column, const bool tiled)
{
    if (!tiled) return (size_t)k * PANEL_COLUMNS + (size_t)column;
    return tiled_panel_at(words, k - k % TILE_SIDE, column - column % TILE_SIDE) +
           (size_t)(k % TILE_SIDE * TILE_SIDE + column % TILE_SIDE);
}

// Returns the first escape of the block at or after word k.
INLINE const struct bf12_escape *bf12_escape_from(const struct panel_gemm *p, int k)
{
    const struct bf12_escape *low = p->escapes;
    for (int n = p->n_escapes; n > 0;) {
        const int half = n / 2;
        const bool before = low[half].word < (uint32_t)(p->first_word + k);
        low = before ? low + half + 1 : low;
        n = before ? n - half - 1 : half;
    }
    return low;
}

// Prefetches the `vecs` vectors of a streamed quad.
INLINE void bf12_prefetch(const uint32_t *quad, struct stream_prefetch ahead, const int vecs)
{
#pragma GCC unroll 3
    for (int i = 0; i < BF12_QUAD_WORDS; i++)
        stream_prefetch_word(quad + i * PANEL_COLUMNS, ahead, vecs);
}

// Decodes words [k, k + words) of the block, k a multiple of BF12_QUAD, with their escapes.
INLINE void bf12_decode_block(uint32_t *out, const struct panel_gemm *p, int k, int words,
                              const struct stream_prefetch ahead, const bool tiled)
{
    const vec_word table = bf12_table(p->exponents);
    const uint32_t *quad = p->panel + (size_t)(k / BF12_QUAD) * BF12_ROW;
    for (int i = 0; i < words; i += BF12_QUAD, quad += BF12_ROW) {
        if (ahead.target != STREAM_NONE) bf12_prefetch(quad, ahead, PANEL_COLUMNS / VEC);
        for (int column = 0; column < PANEL_COLUMNS; column += VEC) {
            const struct bf12_vec from = bf12_load(quad + column, table);
#pragma GCC unroll 4
            for (int j = 0; j < BF12_QUAD; j++) {
                const vec_word word = bf12_word(&from, j);
                memcpy(out + bf12_place(words, i + j, column, tiled), &word, sizeof word);
            }
        }
    }
    const struct bf12_escape *end = p->escapes + p->n_escapes;
    for (const struct bf12_escape *e = bf12_escape_from(p, k); e < end && (int)e->word < p->first_word + k + words; e++)
        memcpy((uint16_t *)(out + bf12_place(words, (int)e->word - p->first_word - k, e->column, tiled)) + e->odd,
               &e->half, sizeof e->half);
}

// Computes acc += `words` words of x, a multiple of BF12_QUAD, times quads without escapes. Each element is the same
// chain over K as in tile_dot_words.
INLINE void tile_dot_bf12(vec acc[TILE_ROWS][4], const uint32_t *x, size_t x_stride, const uint32_t *quad, int words,
                          const vec_word table, const struct stream_prefetch ahead, const int rows, const int vecs,
                          const enum panel_use use)
{
    for (int k = 0; k < words;) {
        struct wide_x wide;
        const int first = k, end = k + L2_PREFETCH_WORDS < words ? k + L2_PREFETCH_WORDS : words;
        if (WIDENS_BF16) wide_x_read(&wide, x + k, x_stride, end - k, rows);
        for (; k < end; k += BF12_QUAD, quad += BF12_ROW) {
            if (use == PANEL_PREFETCHED) bf12_prefetch(quad, ahead, vecs);
#pragma GCC unroll 4
            for (int v = 0; v < vecs; v++) {
                const struct bf12_vec from = bf12_load(quad + v * VEC, table);
#pragma GCC unroll 4
                for (int i = 0; i < BF12_QUAD; i++) {
                    const vec_word w = bf12_word(&from, i);
#pragma GCC unroll 6
                    for (int r = 0; r < rows; r++) {
                        if (WIDENS_BF16) {
                            acc[r][v] = vec_fma(vec_set(wide.even[r][k - first + i]), vec_even(w), acc[r][v]);
                            acc[r][v] = vec_fma(vec_set(wide.odd[r][k - first + i]), vec_odd(w), acc[r][v]);
                            continue;
                        }
                        uint32_t word;
                        memcpy(&word, x + (size_t)r * x_stride + k + i, sizeof word);
                        acc[r][v] = word_dot(acc[r][v], word, w, GEMM_BF16);
                    }
                }
            }
        }
    }
}

// Computes the words of one quad that has escapes, or that ends the block: c += x times its words. Not inlined, as
// group_add.
static __attribute__((noinline)) void bf12_quad_gemm(const struct panel_gemm *p, int k, int row, int column, int rows,
                                                     int columns)
{
    _Alignas(64) uint32_t decoded[BF12_QUAD * PANEL_COLUMNS];
    const int words = p->words - k < BF12_QUAD ? p->words - k : BF12_QUAD;
    const bool first = !p->accumulate && k == 0;
    bf12_decode_block(decoded, p, k, BF12_QUAD, (struct stream_prefetch){0}, false);
    for (int r = row; r < row + rows; r++)
        for (int i = column; i < column + columns; i += VEC) {
            float *c = p->c + r * PANEL_COLUMNS + i;
            vec acc = first ? vec_set(0) : vec_load(c);
            for (int j = 0; j < words; j++) {
                uint32_t word;
                memcpy(&word, p->x + (size_t)r * p->x_stride + k + j, sizeof word);
                acc = word_dot(acc, word, vec_load_words(decoded + j * PANEL_COLUMNS + i), GEMM_BF16);
            }
            vec_store(c, acc);
        }
}

// Computes rows [row, row + rows) by vecs * VEC columns. Quads with escapes are computed one by one.
INLINE void bf12_tile_gemm(const struct panel_gemm *p, int row, int column, const int rows, const int vecs,
                           const enum panel_use use)
{
    const vec_word table = bf12_table(p->exponents);
    const struct bf12_escape *escape = p->escapes, *end = escape + p->n_escapes;
    for (int k = 0; k < p->words;) {
        while (escape < end && ((int)escape->word < p->first_word + k || escape->column < column ||
                                escape->column >= column + vecs * VEC))
            escape++;
        int stop = escape < end ? (int)escape->word - p->first_word : p->words;
        stop = (stop < p->words ? stop : p->words) / BF12_QUAD * BF12_QUAD;
        if (stop == k) {
            bf12_quad_gemm(p, k, row, column, rows, vecs * VEC);
            k += BF12_QUAD;
            continue;
        }
        float *c = p->c + row * PANEL_COLUMNS + column;
        vec acc[TILE_ROWS][4];
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int v = 0; v < vecs; v++)
                acc[r][v] = p->accumulate || k ? vec_load(c + r * PANEL_COLUMNS + v * VEC) : vec_set(0);
        tile_dot_bf12(acc, p->x + (size_t)row * p->x_stride + k, p->x_stride,
                      p->panel + (size_t)(k / BF12_QUAD) * BF12_ROW + column, stop - k, table, p->prefetch, rows, vecs,
                      use);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int v = 0; v < vecs; v++)
                vec_store(c + r * PANEL_COLUMNS + v * VEC, acc[r][v]);
        k = stop;
    }
}

INLINE void bf12_rows_gemm(const struct panel_gemm *p, const int rows)
{
    // One or two rows leave registers for twice as many columns at levels with 16 registers.
    const int vecs = rows <= 2 ? 4 : TILE_VECS;
    for (int column = 0; column < PANEL_COLUMNS; column += vecs * VEC)
        if (p->prefetch.target == STREAM_NONE)
            bf12_tile_gemm(p, 0, column, rows, vecs, PANEL_STREAMED);
        else
            bf12_tile_gemm(p, 0, column, rows, vecs, PANEL_PREFETCHED);
}
