// SPDX-License-Identifier: Apache-2.0
// Vector gemm kernels (included by kernels.c): a register tile of up to 6 rows by 64 columns over a block of K, and the
// operations that finish an output. One template serves all types, which differ only in word_dot, except that int4
// and bf12 words are decoded first (kernel_int4.h, kernel_bf12.h). The layout of panels is in isa.h.
#pragma once

// 6 x 4 vectors of 16 floats fill 24 of AVX-512's 32 registers; levels with 16 registers fit two vectors for each row.
enum { TILE_ROWS = 6, TILE_VECS = VEC == 16 ? 4 : 2 };

enum {
    L1_PREFETCH_WORDS = 12, // words ahead for which the panel is prefetched from L2 to L1
    L2_PREFETCH_WORDS = 16, // interval between prefetches of the panel's next block into L2
};

// Adds the products of four unsigned bytes of x and signed bytes of w, in 32-bit integers. Exact at every level.
INLINE vec_word dot_bytes(vec_word acc, vec_word x, vec_word w)
{
#if defined(__AVX512VNNI__)
    return (vec_word)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)x, (__m512i)w);
#elif defined(__AVX512BW__)
    __m512i low = _mm512_madd_epi16((__m512i)(x & 0x00ff00ffu), _mm512_srai_epi16(_mm512_slli_epi16((__m512i)w, 8), 8));
    __m512i high = _mm512_madd_epi16(_mm512_srli_epi16((__m512i)x, 8), _mm512_srai_epi16((__m512i)w, 8));
    return acc + (vec_word)low + (vec_word)high;
#elif defined(__AVX2__)
    __m256i low = _mm256_madd_epi16((__m256i)(x & 0x00ff00ffu), _mm256_srai_epi16(_mm256_slli_epi16((__m256i)w, 8), 8));
    __m256i high = _mm256_madd_epi16(_mm256_srli_epi16((__m256i)x, 8), _mm256_srai_epi16((__m256i)w, 8));
    return acc + (vec_word)low + (vec_word)high;
#else
    for (int shift = 0; shift < 32; shift += 8)
        acc += (x >> shift & 0xffu) * (vec_word)((vec_mask)(w << (24 - shift)) >> 24);
    return acc;
#endif
}

// Computes one word of K: acc += x * w (f32), x_even * w_even + x_odd * w_odd (bf16) or four products (int8).
INLINE vec word_dot(vec acc, uint32_t x, vec_word w, const enum gemm_type type)
{
    if (type == GEMM_F32) return vec_fma(vec_set(f32_from_bits(x)), (vec)w, acc);
    vec_word word = vec_set_words(x);
    if (type != GEMM_BF16) return (vec)dot_bytes((vec_word)acc, word, w);
#ifdef __AVX512BF16__
    return _mm512_dpbf16_ps(acc, (__m512bh)word, (__m512bh)w);
#else
    acc = vec_fma(vec_even(word), vec_even(w), acc);
    return vec_fma(vec_odd(word), vec_odd(w), acc);
#endif
}

// Prefetch of the panel's next block into L2, spread over the tiles of the current block.
struct l2_prefetch {
    uintptr_t at; // not a pointer: after the last panel it is out of bounds, where a prefetch does no harm
    int lines;    // cache lines for every L2_PREFETCH_WORDS words
};

// A panel that only one tile uses streams from memory, with panel_gemm.prefetch (PANEL_PREFETCHED) or without software
// prefetch (PANEL_STREAMED, a loop without the branches of prefetching).
enum panel_use { PANEL_STREAMED, PANEL_PREFETCHED, PANEL_REUSED };

// Requests the `vecs` vectors of a streamed panel that are ahead.ahead_bytes after `from`.
INLINE void stream_prefetch_word(const uint32_t *from, struct stream_prefetch ahead, const int vecs)
{
    const char *line = (const char *)from + ahead.ahead_bytes;
    if (ahead.target == STREAM_INTO_L1) {
#pragma GCC unroll 4
        for (int i = 0; i < vecs * VEC * 4; i += 64)
            __builtin_prefetch(line + i, 0, 3);
    } else {
#pragma GCC unroll 4
        for (int i = 0; i < vecs * VEC * 4; i += 64)
            __builtin_prefetch(line + i, 0, 2);
    }
}

#include "kernels/cpu/kernel_int4.h"

// Levels without bf16 instructions multiply bf16 as f32. A tile then widens x once for all its columns: broadcasts from
// memory are loads, while widening each word in registers would compete with the multiply-adds.
#if defined(__AVX512BF16__)
enum { WIDENS_BF16 = 0 };
#else
enum { WIDENS_BF16 = 1 };
#endif

struct wide_x {
    float even[TILE_ROWS][L2_PREFETCH_WORDS], odd[TILE_ROWS][L2_PREFETCH_WORDS];
};

// Widens `words` words (up to L2_PREFETCH_WORDS) of each row of x.
INLINE void wide_x_read(struct wide_x *wide, const uint32_t *x, size_t x_stride, int words, const int rows)
{
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        const uint32_t *from = x + (size_t)r * x_stride;
        int k = 0;
        for (; k + VEC <= words; k += VEC) {
            vec_word word = vec_load_words(from + k);
            vec_store(wide->even[r] + k, vec_even(word));
            vec_store(wide->odd[r] + k, vec_odd(word));
        }
        for (; k < words; k++) {
            uint32_t word;
            memcpy(&word, from + k, sizeof word); // memcpy: x was stored as bf16
            wide->even[r][k] = f32_from_bits(word << 16);
            wide->odd[r][k] = f32_from_bits(word & 0xffff0000u);
        }
    }
}

// Computes acc += x times w for word `k` of widened x. Even elements are added before odd elements, as in word_dot.
INLINE void wide_x_dot(vec acc[TILE_ROWS][4], const struct wide_x *wide, int k, const vec_word w[4], const int rows,
                       const int vecs)
{
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        vec x = vec_set(wide->even[r][k]);
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++)
            acc[r][v] = vec_fma(x, vec_even(w[v]), acc[r][v]);
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        vec x = vec_set(wide->odd[r][k]);
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++)
            acc[r][v] = vec_fma(x, vec_odd(w[v]), acc[r][v]);
    }
}

// Computes acc += `words` words of x times w. rows, vecs, use and type are compile-time constants after inlining, so
// acc stays in registers. Each element is one chain over K, for all values of rows and vecs.
INLINE void tile_dot_words(vec acc[TILE_ROWS][4], const uint32_t *x, size_t x_stride, const uint32_t *panel, int words,
                           struct l2_prefetch *fetch, const struct stream_prefetch ahead, const int rows,
                           const int vecs, const enum panel_use use, const enum gemm_type type)
{
    const bool widens = WIDENS_BF16 && type == GEMM_BF16 && use == PANEL_REUSED;
    for (int k = 0; k < words;) {
        struct wide_x wide;
        int first = k, end = k + L2_PREFETCH_WORDS < words ? k + L2_PREFETCH_WORDS : words;
        if (widens) wide_x_read(&wide, x + k, x_stride, end - k, rows);
        for (int i = 0; i < fetch->lines; i++, fetch->at += 64)
            __builtin_prefetch((const void *)fetch->at, 0, 2);
        for (; k < end; k++) {
            vec_word w[4];
            if (use == PANEL_PREFETCHED) stream_prefetch_word(panel + (size_t)k * PANEL_COLUMNS, ahead, vecs);
#pragma GCC unroll 4
            for (int v = 0; v < vecs; v++) {
                const uint32_t *from = panel + (size_t)k * PANEL_COLUMNS + v * VEC;
                w[v] = vec_load_words(from);
                if (VEC == 16 && use == PANEL_REUSED)
                    __builtin_prefetch(from + L1_PREFETCH_WORDS * PANEL_COLUMNS, 0, 3);
            }
            if (widens) {
                wide_x_dot(acc, &wide, k - first, w, rows, vecs);
                continue;
            }
#pragma GCC unroll 6
            for (int r = 0; r < rows; r++) {
                uint32_t word;
                memcpy(&word, x + (size_t)r * x_stride + k, sizeof word); // memcpy: x was stored as bf16 or bytes
#pragma GCC unroll 4
                for (int v = 0; v < vecs; v++)
                    acc[r][v] = word_dot(acc[r][v], word, w[v], type);
            }
        }
    }
}

// Computes acc += x times a panel of int4 `words`, a multiple of INT4_STEP, decoded in registers. Each element is the
// same chain over K as that of the decoded words.
INLINE void tile_dot_int4(vec acc[TILE_ROWS][4], const uint32_t *x, size_t x_stride, const uint32_t *panel, int words,
                          const struct stream_prefetch ahead, const int rows, const int vecs, const enum panel_use use)
{
    for (int k = 0; k < words; k += INT4_STEP, x += INT4_STEP * INT4_PAIRS) {
        struct wide_x wide;
        if (WIDENS_BF16) wide_x_read(&wide, x, x_stride, INT4_STEP * INT4_PAIRS, rows);
        for (int j = 0; j < INT4_STEP; j++, panel += PANEL_COLUMNS) {
            vec_word codes[4];
            if (use == PANEL_PREFETCHED) stream_prefetch_word(panel, ahead, vecs);
#pragma GCC unroll 4
            for (int v = 0; v < vecs; v++)
                codes[v] = vec_load_words(panel + v * VEC);
#pragma GCC unroll 4
            for (int i = 0; i < INT4_PAIRS; i++) {
                const int at = j * INT4_PAIRS + i;
#pragma GCC unroll 4
                for (int v = 0; v < vecs; v++) {
                    if (WIDENS_BF16) {
                        const vec even = int4_even(codes[v], i), odd = int4_odd(codes[v], i);
#pragma GCC unroll 6
                        for (int r = 0; r < rows; r++)
                            acc[r][v] = vec_fma(vec_set(wide.even[r][at]), even, acc[r][v]);
#pragma GCC unroll 6
                        for (int r = 0; r < rows; r++)
                            acc[r][v] = vec_fma(vec_set(wide.odd[r][at]), odd, acc[r][v]);
                        continue;
                    }
                    const vec_word pair = int4_pair(codes[v], i);
#pragma GCC unroll 6
                    for (int r = 0; r < rows; r++) {
                        uint32_t word;
                        memcpy(&word, x + (size_t)r * x_stride + at, sizeof word);
                        acc[r][v] = word_dot(acc[r][v], word, pair, GEMM_BF16);
                    }
                }
            }
        }
    }
}

#include "kernels/cpu/kernel_bf12.h"

// GEMM_INT8_GROUPS: adds the scaled sums of one group to c. Not inlined: with sums of both kinds in one function the
// compiler keeps neither in registers.
static __attribute__((noinline)) void group_add(const struct panel_gemm *p, const float *sums, bool tiled, int row,
                                                int column, int rows, int columns, int group)
{
    const float *w_scale = p->w_scale + group * PANEL_COLUMNS + column;
    bool first = !p->accumulate && group == 0;
    for (int r = 0; r < rows; r++) {
        float x_scale = p->x_scale[(row + r) * p->x_scale_stride + group];
        for (int i = 0; i < columns; i += VEC) {
            const float *from = sums + (tiled ? tiled_sums_at(r, i) : (size_t)(r * PANEL_COLUMNS + i));
            float *c =
                p->c + (tiled ? tiled_sums_at(row + r, column + i) : (size_t)((row + r) * PANEL_COLUMNS + column + i));
            vec scaled = vec_from_int((vec_mask)vec_load(from)) * x_scale;
            vec_store(c, vec_fma(scaled, vec_load(w_scale + i), first ? vec_set(0) : vec_load(c)));
        }
    }
}

// Computes rows [row, row + rows) of the block by vecs * VEC columns. Between blocks of K, c holds the running sums:
// f32, or the integers of GEMM_INT8. Integer sums start at -128 * (sum of the weights), which cancels the 128 added to
// x.
INLINE void tile_gemm(const struct panel_gemm *p, int row, int column, struct l2_prefetch *fetch, const int rows,
                      const int vecs, const enum panel_use use, const enum gemm_type type)
{
    const bool int4 = type == GEMM_INT4, grouped = type == GEMM_INT8_GROUPS || int4;
    float sums[TILE_ROWS * PANEL_COLUMNS], *c = grouped ? sums : p->c + row * PANEL_COLUMNS + column;
    const uint32_t *x = p->x + (size_t)row * p->x_stride;
    int step = int4 ? INT4_GROUP_WORDS : grouped ? GROUP_WORDS : p->words;
    for (int k = 0, group = 0; k < p->words; k += step, group++) {
        vec acc[TILE_ROWS][4];
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int v = 0; v < vecs; v++)
                if (p->accumulate && !grouped)
                    acc[r][v] = vec_load(c + r * PANEL_COLUMNS + v * VEC);
                else if (type == GEMM_INT8 || type == GEMM_INT8_GROUPS)
                    acc[r][v] = (vec)vec_load_words(p->start + group * PANEL_COLUMNS + column + v * VEC);
                else
                    acc[r][v] = vec_set(0);
        int words = p->words - k < step ? p->words - k : step;
        if (int4 && use == PANEL_REUSED)
            tile_dot_words(acc, x + k * INT4_PAIRS, p->x_stride,
                           p->decoded + (size_t)k * INT4_PAIRS * PANEL_COLUMNS + column, words * INT4_PAIRS, fetch,
                           p->prefetch, rows, vecs, use, GEMM_BF16);
        else if (int4)
            tile_dot_int4(acc, x + k * INT4_PAIRS, p->x_stride, p->panel + (size_t)k * PANEL_COLUMNS + column, words,
                          p->prefetch, rows, vecs, use);
        else
            tile_dot_words(acc, x + k, p->x_stride, p->panel + (size_t)k * PANEL_COLUMNS + column, words, fetch,
                           p->prefetch, rows, vecs, use, type);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int v = 0; v < vecs; v++)
                vec_store(c + r * PANEL_COLUMNS + v * VEC, acc[r][v]);
        if (int4)
            int4_group_add(p, sums, false, row, column, rows, vecs * VEC, group);
        else if (grouped)
            group_add(p, sums, false, row, column, rows, vecs * VEC, group);
    }
}

INLINE void rows_gemm(const struct panel_gemm *p, int row, struct l2_prefetch fetch, const int rows,
                      const enum panel_use use, const enum gemm_type type)
{
    for (int column = 0; column < PANEL_COLUMNS; column += TILE_VECS * VEC) {
        tile_gemm(p, row, column, &fetch, rows, TILE_VECS, use, type);
        fetch.lines = 0;
    }
}

INLINE void any_rows_gemm(const struct panel_gemm *p, int row, struct l2_prefetch fetch, int rows,
                          const enum panel_use use, const enum gemm_type type)
{
    switch (rows) {
    case 1: rows_gemm(p, row, fetch, 1, use, type); break;
    case 2: rows_gemm(p, row, fetch, 2, use, type); break;
    case 3: rows_gemm(p, row, fetch, 3, use, type); break;
    case 4: rows_gemm(p, row, fetch, 4, use, type); break;
    case 5: rows_gemm(p, row, fetch, 5, use, type); break;
    case 6: rows_gemm(p, row, fetch, 6, use, type); break;
    }
}

// Computes a gemm of so few rows that the panel is read from memory as it is multiplied.
INLINE void few_rows_gemm(const struct panel_gemm *p, int row, int rows, const enum gemm_type type)
{
    if (p->prefetch.target == STREAM_NONE)
        any_rows_gemm(p, row, (struct l2_prefetch){0}, rows, PANEL_STREAMED, type);
    else
        any_rows_gemm(p, row, (struct l2_prefetch){0}, rows, PANEL_PREFETCHED, type);
}

INLINE void typed_panel_gemm(const struct panel_gemm *p, const enum gemm_type type)
{
    // Use equal tiles: 7 rows are 4 + 3, not 6 + 1, because a tile of fewer rows costs more per row.
    int tiles = (p->rows + TILE_ROWS - 1) / TILE_ROWS;
    const bool direct = p->rows <= (type == GEMM_INT4 ? (int)INT4_DIRECT_ROWS : (int)TILE_ROWS);
    for (int t = 0; t < tiles && direct; t++)
        few_rows_gemm(p, p->rows * t / tiles, p->rows * (t + 1) / tiles - p->rows * t / tiles, type);
    if (direct) return;
    if (type == GEMM_INT4) int4_decode(p->decoded, p->panel, p->words, (struct stream_prefetch){0});
    // One word of K is four cache lines of the panel.
    const int lines = (type == GEMM_INT4 ? L2_PREFETCH_WORDS / INT4_PAIRS : L2_PREFETCH_WORDS) * 4;
    struct l2_prefetch fetch = {(uintptr_t)(p->panel + (size_t)p->words * PANEL_COLUMNS), (lines + tiles - 1) / tiles};
    const int words = type == GEMM_INT4 ? p->words * INT4_PAIRS : p->words;
    uintptr_t tile_bytes = (uintptr_t)(fetch.lines * 64 * ((words + L2_PREFETCH_WORDS - 1) / L2_PREFETCH_WORDS));
    for (int t = 0; t < tiles; t++, fetch.at += tile_bytes) {
        int from = p->rows * t / tiles;
        any_rows_gemm(p, from, fetch, p->rows * (t + 1) / tiles - from, PANEL_REUSED, type);
    }
}

// Not inlined, so that bf16 panels and decoded bf12 panels use the same code. A second copy was a third slower.
static __attribute__((noinline)) void bf16_panel_gemm(const struct panel_gemm *p)
{
    typed_panel_gemm(p, GEMM_BF16);
}

// Computes a bf12 gemm of few rows in registers, and of more rows as bf16 gemms over decoded blocks of K.
static void bf12_panel_gemm(const struct panel_gemm *p)
{
    switch (p->rows) {
    case 1: bf12_rows_gemm(p, 1); return;
    case 2: bf12_rows_gemm(p, 2); return;
    case 3: bf12_rows_gemm(p, 3); return;
    case 4: bf12_rows_gemm(p, 4); return;
    case 5: bf12_rows_gemm(p, 5); return;
    case 6: bf12_rows_gemm(p, 6); return;
    }
    const bool few = p->rows <= BF12_FEW_ROWS;
    const int step = few ? BF12_FEW_ROWS_WORDS : BF12_BLOCK_WORDS;
    for (int k = 0; k < p->words; k += step) {
        const int words = p->words - k < step ? p->words - k : step;
        struct panel_gemm block = *p;
        block.type = GEMM_BF16;
        block.accumulate = p->accumulate || k > 0;
        block.words = words;
        block.x = p->x + k;
        block.panel = p->decoded;
        bf12_decode_block(p->decoded, p, k, words, few ? p->prefetch : (struct stream_prefetch){0}, false);
        bf16_panel_gemm(&block);
    }
}

static void panel_gemm(const struct panel_gemm *p)
{
    switch (p->type) {
    case GEMM_F32: typed_panel_gemm(p, GEMM_F32); break;
    case GEMM_BF16: bf16_panel_gemm(p); break;
    case GEMM_INT8: typed_panel_gemm(p, GEMM_INT8); break;
    case GEMM_INT8_GROUPS: typed_panel_gemm(p, GEMM_INT8_GROUPS); break;
    case GEMM_INT4: typed_panel_gemm(p, GEMM_INT4); break;
    case GEMM_BF12: bf12_panel_gemm(p); break;
    }
}

// ---- quantisation ---------------------------------------------------------------------------------------------------

// Returns the scale of symmetric quantisation: x ~ q * scale with |q| <= 127, rounded to nearest, ties to even.
// *inverse_p is 1 / scale. If a value is not finite, the scale is NaN, and NaN reaches every product with it.
INLINE float quantise_scale(const void *x, bool bf16, int n, float *inverse_p)
{
    const float *floats = x;
    const uint16_t *halves = x;
    vec largest = vec_set(0), poison = vec_set(0);
    int i = 0;
    for (; i + VEC <= n; i += VEC) {
        vec v = bf16 ? vec_load_bf16(halves + i) : vec_load(floats + i);
        largest = vec_max(largest, (vec)((vec_word)v & 0x7fffffffu));
        poison = poison + v * 0.f;
    }
    float most = vec_largest(largest), bad = vec_sum(poison);
    for (int j = i; j < n; j++) {
        float v = bf16 ? bf16_to_f32(halves[j]) : floats[j];
        most = __builtin_fabsf(v) > most ? __builtin_fabsf(v) : most;
        bad += v * 0.f;
    }
    bool nothing = !(most >= QUANTISE_MIN && bad == 0.f);
    *inverse_p = nothing ? 0 : QUANTISE_MAX / most;
    return (nothing ? 0 : most / QUANTISE_MAX) + bad;
}

// Stores the n values as bytes q + `middle`.
INLINE void quantise_bytes(uint8_t *out, const void *x, bool bf16, int n, float inverse, uint32_t middle)
{
    const float *floats = x;
    const uint16_t *halves = x;
    const float shift = 12582912.f; // as in vec_exp
    int i = 0;
    for (; i + VEC <= n; i += VEC) {
        vec v = bf16 ? vec_load_bf16(halves + i) : vec_load(floats + i);
        vec_word bits = (vec_word)(v * inverse + shift) - 0x4b400000u + middle;
        vec_byte bytes = __builtin_convertvector(bits & 0xffu, vec_byte);
        memcpy(out + i, &bytes, sizeof bytes);
    }
    for (; i < n; i++) {
        float v = bf16 ? bf16_to_f32(halves[i]) : floats[i];
        out[i] = (uint8_t)(f32_bits(v * inverse + shift) - 0x4b400000u + middle);
    }
}

static float quantise(uint8_t *out, const void *x, bool bf16, int n)
{
    float inverse, scale = quantise_scale(x, bf16, n, &inverse);
    quantise_bytes(out, x, bf16, n, inverse, 128);
    return scale;
}

// ---- finishing an output --------------------------------------------------------------------------------------------

// Stores n floats as f32 or bf16. Writes nothing after them.
INLINE void store_row(void *out, bool bf16, const float *from, int n)
{
    int i = 0;
    if (bf16) {
        uint16_t *to = out;
        for (; i + VEC <= n; i += VEC)
            vec_store_bf16(to + i, vec_load(from + i));
        for (; i < n; i++)
            to[i] = bf16_from_f32(from[i]);
    } else {
        memcpy(out, from, (size_t)n * sizeof *from);
    }
}

// Stores n floats from `column` on. Writes nothing after them.
INLINE void store_columns(struct rows_out out, int row, int column, const float *from, int n)
{
    for (int i = 0, part; i < n; i += part) {
        int contiguous = out.tiled ? TILE_ROW_HALVES - (column + i) % TILE_ROW_HALVES : n;
        part = n - i < contiguous ? n - i : contiguous;
        store_row(rows_out_at(out, row, column + i), out.bf16, from + i, part);
    }
}

enum { PANEL_VECS = PANEL_COLUMNS / VEC };

// Loads row r of the sums with scales and bias.
INLINE void finish_load(vec c[PANEL_VECS], const float *sums, int r, const struct panel_out *out, const bool tiled,
                        const bool integers)
{
#pragma GCC unroll 16
    for (int v = 0; v < PANEL_VECS; v++) {
        c[v] = vec_load(sums + (tiled ? tiled_sums_at(r, v * VEC) : (size_t)(r * PANEL_COLUMNS + v * VEC)));
        if (integers) c[v] = vec_from_int((vec_mask)c[v]) * out->x_scale[r] * vec_load(out->w_scale + v * VEC);
        if (out->bias) c[v] = c[v] + vec_load(out->bias + v * VEC);
    }
}

// Stores all columns of row r. Streamed lines are written to memory without being read first.
INLINE void finish_store(const struct panel_out *out, int r, const vec *c, int vecs, const bool bf16, const bool add,
                         const bool streamed)
{
    float *floats = rows_out_at(out->to, out->row + r, out->column);
    uint16_t *halves = (uint16_t *)(void *)floats;
    const size_t apart =
        out->to.tiled ? TILE_SIDE * TILE_ROW_HALVES : TILE_ROW_HALVES; // to the next TILE_ROW_HALVES columns
#pragma GCC unroll 16
    for (int v = 0; v < vecs; v += bf16 ? 2 : 1) {
        const size_t column = (size_t)v * VEC;
        if (bf16)
            vec_store_bf16_pair(halves + column / TILE_ROW_HALVES * apart + column % TILE_ROW_HALVES, c[v], c[v + 1],
                                streamed);
        else if (streamed)
            vec_store_streamed(floats + column, c[v]);
        else
            vec_store(floats + column, add ? vec_load(floats + column) + c[v] : c[v]);
    }
}

// Stores the columns of row r that exist.
static __attribute__((noinline)) void finish_store_some(const struct panel_out *out, int r, const float *c)
{
    float *sum = rows_out_at(out->to, out->row + r, out->column);
    if (out->mode != LINEAR_ADD) store_columns(out->to, out->row + r, out->column, c, out->columns);
    for (int i = 0; out->mode == LINEAR_ADD && i < out->columns; i++)
        sum[i] += c[i];
}

// Rows ahead for which the residual is prefetched when rows are finished between tile instructions. One row then takes
// about as long as a line from memory.
enum { RESIDUAL_AHEAD_ROWS = 2 };

INLINE void residual_prefetch(const struct panel_out *out, int r)
{
    const char *row = rows_out_at(out->to, out->row + r + RESIDUAL_AHEAD_ROWS, out->column);
    for (int line = 0; line < PANEL_COLUMNS * 4; line += 64)
        __builtin_prefetch(row + line, 0, 3);
}

INLINE void finish_rows(const struct panel_out *out, int end, const bool tiled, const bool integers,
                        const enum linear_mode mode, const bool bf16, const bool streamed)
{
    const int vecs = mode == LINEAR_SWIGLU ? PANEL_VECS / 2 : PANEL_VECS;
    for (int r = out->done; r < end; r++) {
        vec c[PANEL_VECS];
        if (tiled && mode == LINEAR_ADD) residual_prefetch(out, r);
        finish_load(c, out->sums, r, out, tiled, integers);
        for (int v = 0; mode == LINEAR_SWIGLU && v < vecs; v++) // gate and up columns alternate vector by vector
            c[v] = vec_silu(c[2 * v]) * c[2 * v + 1];
        if (out->columns == vecs * VEC)
            finish_store(out, r, c, vecs, bf16, mode == LINEAR_ADD, streamed);
        else
            finish_store_some(out, r, (const float *)c);
    }
}

// Finishes rows in the modes that store activations or f32. The streamed stores of a panel are ordered before later
// stores.
INLINE void finish_mode(const struct panel_out *out, int end, const bool tiled, const bool integers,
                        const enum linear_mode mode, const bool bf16)
{
    if (out->streamed) {
        finish_rows(out, end, tiled, integers, mode, bf16, true);
        if (end == out->rows) vec_store_fence();
    } else {
        finish_rows(out, end, tiled, integers, mode, bf16, false);
    }
}

INLINE void finish_typed(const struct panel_out *out, int end, const bool tiled, const bool integers)
{
    if (out->mode == LINEAR_ADD)
        finish_rows(out, end, tiled, integers, LINEAR_ADD, false, false);
    else if (out->mode == LINEAR_SWIGLU && out->to.bf16)
        finish_mode(out, end, tiled, integers, LINEAR_SWIGLU, true);
    else if (out->mode == LINEAR_SWIGLU)
        finish_mode(out, end, tiled, integers, LINEAR_SWIGLU, false);
    else if (out->to.bf16)
        finish_mode(out, end, tiled, integers, LINEAR_STORE, true);
    else
        finish_mode(out, end, tiled, integers, LINEAR_STORE, false);
}

static void panel_finish(struct panel_out *out, int end)
{
    if (out->tiled && out->x_scale)
        finish_typed(out, end, true, true);
    else if (out->tiled)
        finish_typed(out, end, true, false);
    else if (out->x_scale)
        finish_typed(out, end, false, true);
    else
        finish_typed(out, end, false, false);
    out->done = end;
}
