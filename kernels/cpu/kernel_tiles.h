// SPDX-License-Identifier: Apache-2.0
// AMX gemm kernels for bf16 and int8 (included by kernels.c where CPU_TILES is set); f32 uses the vector kernel.
// Weights and rows of x are stored as tiles (isa.h), so that every tile load reads 1 KiB that is contiguous.
//
// Rows of any number go through tiles, the last ones through a smaller tile: a bf16 sum of the tile instruction differs
// in its bits from a sum of the vector instruction. A tile sums each row separately, so a result does not depend on the
// number of rows. Row blocks of one and of two tiles use the same operations.
//
// Tiles are configured and released within one gemm, so a waiting thread never holds them.
#pragma once

#include "kernels/cpu/tiles.h"

enum {
    TILE_BYTES = 4 * TILE_WORDS,     // of a row of a tile in memory
    PANEL_BYTES = PANEL_COLUMNS * 4, // of a row of sums
    PANEL_TILES = PANEL_COLUMNS / TILE_WORDS,
    STEP_WORDS = TILE_SIZE * PANEL_TILES // of a panel, for TILE_WORDS words of K
};

// Steps of K for which a part of the panel is used by all rows before the next part: 32 columns of it take 16 KiB and
// stay in L1 while the rows of x come from L2.
enum { L1_STEPS = 8 };

// How far ahead a panel is prefetched that is used by one row block only.
enum { STREAM_AHEAD_BYTES = 8192 };

// Two row tiles by 32 columns: sums in tiles 0 to 3, x in 4 and 5, the panel in 6 and 7. One row tile (second_rows 0)
// by 64 columns: sums in 0 to 3, x in 4, the panel in 5 to 7.
INLINE void amx_configure(int first_rows, int second_rows)
{
    struct tile_config config = {.palette = 1};
    for (int t = 0; t < TILE_COUNT; t++) {
        bool second = second_rows && (t == 2 || t == 3 || t == 5), panel = t > (second_rows ? 5 : 4);
        config.rows[t] = (uint8_t)(panel ? TILE_MAX_ROWS : second ? second_rows : first_rows);
        config.row_bytes[t] = TILE_BYTES;
    }
    tile_configure(&config);
}

// Start values of sums: zeros (`at` NULL), or rows `stride` bytes apart.
struct amx_start {
    const void *at;
    size_t stride;
};

#define TILE_DOT(c, a, b)                                                                                              \
    do {                                                                                                               \
        if (type == GEMM_BF16)                                                                                         \
            tile_dot_bf16(c, a, b);                                                                                    \
        else                                                                                                           \
            tile_dot_bytes(c, a, b);                                                                                   \
    } while (0)

// c [17 to 32 rows][PANEL_COLUMNS], 32 columns of it. Prefetches `fetch->lines` cache lines into L2 for each step.
INLINE void amx_two_by_two(float *c, struct amx_start start, const uint32_t *x, size_t x_stride, const uint32_t *panel,
                           int steps, struct l2_prefetch *fetch, const enum gemm_type type)
{
    if (start.at) {
        const char *first = start.at, *second = first + TILE_MAX_ROWS * start.stride;
        tile_load(0, first, start.stride);
        tile_load(1, first + TILE_BYTES, start.stride);
        tile_load(2, second, start.stride);
        tile_load(3, second + TILE_BYTES, start.stride);
    } else {
        tile_zero(0);
        tile_zero(1);
        tile_zero(2);
        tile_zero(3);
    }
    const uint32_t *x_second = x + x_stride;
    uintptr_t ahead = fetch->at; // in registers: the tile instructions clobber memory
    const uintptr_t ahead_bytes = 64 * (uintptr_t)fetch->lines;
    for (int k = 0; k < steps; k++, x += TILE_SIZE, x_second += TILE_SIZE, panel += STEP_WORDS) {
        tile_load(4, x, TILE_BYTES);
        tile_load(6, panel, TILE_BYTES);
        TILE_DOT(0, 4, 6);
        tile_load(7, panel + TILE_SIZE, TILE_BYTES);
        TILE_DOT(1, 4, 7);
        tile_load(5, x_second, TILE_BYTES);
        TILE_DOT(2, 5, 6);
        TILE_DOT(3, 5, 7);
        for (uintptr_t end = ahead + ahead_bytes; ahead < end; ahead += 64)
            __builtin_prefetch((const void *)ahead, 0, 2);
    }
    fetch->at = ahead;
    float *second = c + TILE_MAX_ROWS * PANEL_COLUMNS;
    tile_store(0, c, PANEL_BYTES);
    tile_store(1, c + TILE_WORDS, PANEL_BYTES);
    tile_store(2, second, PANEL_BYTES);
    tile_store(3, second + TILE_WORDS, PANEL_BYTES);
}

// c [1 to 16 rows][PANEL_COLUMNS], all columns: reads the panel once from end to end.
INLINE void amx_one_by_four(float *c, struct amx_start start, const uint32_t *x, const uint32_t *panel, int steps,
                            const enum gemm_type type)
{
    if (start.at) {
        const char *from = start.at;
        tile_load(0, from, start.stride);
        tile_load(1, from + TILE_BYTES, start.stride);
        tile_load(2, from + 2 * TILE_BYTES, start.stride);
        tile_load(3, from + 3 * TILE_BYTES, start.stride);
    } else {
        tile_zero(0);
        tile_zero(1);
        tile_zero(2);
        tile_zero(3);
    }
    for (int k = 0; k < steps; k++, x += TILE_SIZE, panel += STEP_WORDS) {
        const char *ahead = (const char *)panel + STREAM_AHEAD_BYTES;
        for (int line = 0; line < STEP_WORDS * 4; line += 64)
            __builtin_prefetch(ahead + line, 0, 3);
        tile_load(4, x, TILE_BYTES);
        tile_load(5, panel, TILE_BYTES);
        TILE_DOT(0, 4, 5);
        tile_load(6, panel + TILE_SIZE, TILE_BYTES);
        TILE_DOT(1, 4, 6);
        tile_load(7, panel + 2 * TILE_SIZE, TILE_BYTES);
        TILE_DOT(2, 4, 7);
        tile_load(5, panel + 3 * TILE_SIZE, TILE_BYTES);
        TILE_DOT(3, 4, 5);
    }
    tile_store(0, c, PANEL_BYTES);
    tile_store(1, c + TILE_WORDS, PANEL_BYTES);
    tile_store(2, c + 2 * TILE_WORDS, PANEL_BYTES);
    tile_store(3, c + 3 * TILE_WORDS, PANEL_BYTES);
}

// Rows [row, row + rows), at most two tiles, by `columns` columns, over words [word, word + words); compare tile_gemm.
INLINE void rows_gemm_amx(const struct panel_gemm *p, int row, int rows, int column, int word, int words,
                          struct l2_prefetch *fetch, const int columns, const enum gemm_type type)
{
    const bool grouped = type == GEMM_INT8_GROUPS;
    float sums[2 * TILE_MAX_ROWS * PANEL_COLUMNS], *c = grouped ? sums : p->c + row * PANEL_COLUMNS + column;
    const uint32_t *x = p->x + (size_t)(row / TILE_MAX_ROWS) * p->x_stride;
    int step = grouped ? GROUP_WORDS : words, end = word + words;
    for (int k = word; k < end; k += step) {
        int group = grouped ? k / GROUP_WORDS : 0;
        struct amx_start start = {NULL, 0};
        if ((p->accumulate || k > 0) && !grouped)
            start = (struct amx_start){c, PANEL_BYTES};
        else if (type != GEMM_BF16)
            start.at = p->start + group * PANEL_COLUMNS + column; // stride 0: the same for every row
        const uint32_t *panel = p->panel + (size_t)k * PANEL_COLUMNS + column / TILE_WORDS * TILE_SIZE;
        const uint32_t *x_tile = x + (size_t)k * TILE_MAX_ROWS;
        int steps = (end - k < step ? end - k : step) / TILE_WORDS;
        if (columns == PANEL_COLUMNS)
            amx_one_by_four(c, start, x_tile, panel, steps, type);
        else
            amx_two_by_two(c, start, x_tile, p->x_stride, panel, steps, fetch, type);
        if (grouped) group_add(p, sums, row, column, rows, columns, group);
    }
}

// One row tile: the panel streams past it.
INLINE void one_tile_gemm(const struct panel_gemm *p, int row, int rows, const enum gemm_type type)
{
    amx_configure(rows, 0);
    rows_gemm_amx(p, row, rows, 0, 0, p->words, NULL, PANEL_COLUMNS, type);
}

// Pairs of row tiles, all but the last one full. While they use this panel, the next one is prefetched into L2.
INLINE void tile_pairs_gemm(const struct panel_gemm *p, int pairs, int last_rows, const enum gemm_type type)
{
    const int pair_rows = 2 * TILE_MAX_ROWS, half = PANEL_COLUMNS / 2;
    struct l2_prefetch fetch = {(uintptr_t)p->next_panel, 0};
    if (p->next_panel) fetch.lines = (STEP_WORDS * 4 / 64 + 2 * pairs - 1) / (2 * pairs);
    int configured = 0;
    for (int word = 0; word < p->words; word += L1_STEPS * TILE_WORDS) {
        int left = p->words - word, words = left < L1_STEPS * TILE_WORDS ? left : L1_STEPS * TILE_WORDS;
        for (int column = 0; column < PANEL_COLUMNS; column += half) {
            for (int i = 0; i < pairs; i++) {
                int rows = i == pairs - 1 ? last_rows : pair_rows;
                if (rows != configured) amx_configure(TILE_MAX_ROWS, rows - TILE_MAX_ROWS);
                configured = rows;
                rows_gemm_amx(p, i * pair_rows, rows, column, word, words, &fetch, half, type);
            }
        }
    }
}

INLINE void typed_panel_gemm_amx(const struct panel_gemm *p, const enum gemm_type type)
{
    const int pair_rows = 2 * TILE_MAX_ROWS;
    int rest = p->rows % pair_rows, pairs = p->rows / pair_rows + (rest > TILE_MAX_ROWS);
    if (pairs) tile_pairs_gemm(p, pairs, rest > TILE_MAX_ROWS ? rest : pair_rows, type);
    if (rest && rest <= TILE_MAX_ROWS) one_tile_gemm(p, p->rows - rest, rest, type);
    tile_release();
}

static void panel_gemm_amx(const struct panel_gemm *p)
{
    switch (p->type) {
    case GEMM_F32: panel_gemm(p); break;
    case GEMM_BF16: typed_panel_gemm_amx(p, GEMM_BF16); break;
    case GEMM_INT8: typed_panel_gemm_amx(p, GEMM_INT8); break;
    case GEMM_INT8_GROUPS: typed_panel_gemm_amx(p, GEMM_INT8_GROUPS); break;
    }
}
