// SPDX-License-Identifier: Apache-2.0
// AMX gemm kernels for bf16 and int8 (included by kernels.c where CPU_TILES is set); f32 uses the vector kernel. B
// tiles are read from panels in place (isa.h).
//
// Rows of any number go through tiles, the last ones through a smaller tile: a bf16 sum of the tile instruction differs
// in its bits from a sum of the vector instruction. A tile sums each row separately, so a
// result does not depend on the number of rows. Row blocks of one and of two tiles use the same operations.
//
// Tiles are configured and released within one gemm, so a waiting thread never holds them.
#pragma once

#include "kernels/cpu/tiles.h"

enum { PANEL_BYTES = PANEL_COLUMNS * 4 };

// Two row tiles by 32 columns: sums in tiles 0 to 3, x in 4 and 5, the panel in 6 and 7. One row tile (second_rows 0)
// by 64 columns: sums in 0 to 3, x in 4, the panel in 5 to 7.
INLINE void amx_configure(int first_rows, int second_rows)
{
    struct tile_config config = {.palette = 1};
    for (int t = 0; t < TILE_COUNT; t++) {
        bool second = second_rows && (t == 2 || t == 3 || t == 5), panel = t > (second_rows ? 5 : 4);
        config.rows[t] = (uint8_t)(panel ? TILE_MAX_ROWS : second ? second_rows : first_rows);
        config.row_bytes[t] = 4 * TILE_WORDS;
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

// c [17 to 32 rows][PANEL_COLUMNS], 32 columns of it.
INLINE void amx_two_by_two(float *c, struct amx_start start, const uint32_t *x, size_t x_stride, const uint32_t *panel,
                           int words, const enum gemm_type type)
{
    if (start.at) {
        const char *first = start.at, *second = first + TILE_MAX_ROWS * start.stride;
        tile_load(0, first, start.stride);
        tile_load(1, first + 4 * TILE_WORDS, start.stride);
        tile_load(2, second, start.stride);
        tile_load(3, second + 4 * TILE_WORDS, start.stride);
    } else {
        tile_zero(0);
        tile_zero(1);
        tile_zero(2);
        tile_zero(3);
    }
    const uint32_t *x_second = x + TILE_MAX_ROWS * x_stride;
    for (int k = 0; k < words; k += TILE_WORDS, panel += TILE_WORDS * PANEL_COLUMNS) {
        tile_load(4, x + k, 4 * x_stride);
        tile_load(6, panel, PANEL_BYTES);
        TILE_DOT(0, 4, 6);
        tile_load(7, panel + TILE_WORDS, PANEL_BYTES);
        TILE_DOT(1, 4, 7);
        tile_load(5, x_second + k, 4 * x_stride);
        TILE_DOT(2, 5, 6);
        TILE_DOT(3, 5, 7);
    }
    float *second = c + TILE_MAX_ROWS * PANEL_COLUMNS;
    tile_store(0, c, PANEL_BYTES);
    tile_store(1, c + TILE_WORDS, PANEL_BYTES);
    tile_store(2, second, PANEL_BYTES);
    tile_store(3, second + TILE_WORDS, PANEL_BYTES);
}

// c [1 to 16 rows][PANEL_COLUMNS], all columns: reads the panel once from end to end.
INLINE void amx_one_by_four(float *c, struct amx_start start, const uint32_t *x, size_t x_stride, const uint32_t *panel,
                            int words, const enum gemm_type type)
{
    if (start.at) {
        const char *from = start.at;
        tile_load(0, from, start.stride);
        tile_load(1, from + 4 * TILE_WORDS, start.stride);
        tile_load(2, from + 8 * TILE_WORDS, start.stride);
        tile_load(3, from + 12 * TILE_WORDS, start.stride);
    } else {
        tile_zero(0);
        tile_zero(1);
        tile_zero(2);
        tile_zero(3);
    }
    for (int k = 0; k < words; k += TILE_WORDS, panel += TILE_WORDS * PANEL_COLUMNS) {
        tile_load(4, x + k, 4 * x_stride);
        tile_load(5, panel, PANEL_BYTES);
        TILE_DOT(0, 4, 5);
        tile_load(6, panel + TILE_WORDS, PANEL_BYTES);
        TILE_DOT(1, 4, 6);
        tile_load(7, panel + 2 * TILE_WORDS, PANEL_BYTES);
        TILE_DOT(2, 4, 7);
        tile_load(5, panel + 3 * TILE_WORDS, PANEL_BYTES);
        TILE_DOT(3, 4, 5);
    }
    tile_store(0, c, PANEL_BYTES);
    tile_store(1, c + TILE_WORDS, PANEL_BYTES);
    tile_store(2, c + 2 * TILE_WORDS, PANEL_BYTES);
    tile_store(3, c + 3 * TILE_WORDS, PANEL_BYTES);
}

// Rows [row, row + rows), at most two tiles, by `columns` columns; compare tile_gemm.
INLINE void rows_gemm_amx(const struct panel_gemm *p, int row, int rows, int column, const int columns,
                          const enum gemm_type type)
{
    const bool grouped = type == GEMM_INT8_GROUPS;
    float sums[2 * TILE_MAX_ROWS * PANEL_COLUMNS], *c = grouped ? sums : p->c + row * PANEL_COLUMNS + column;
    const uint32_t *x = p->x + (size_t)row * p->x_stride;
    int step = grouped ? GROUP_WORDS : p->words;
    for (int k = 0, group = 0; k < p->words; k += step, group++) {
        struct amx_start start = {NULL, 0};
        if (p->accumulate && !grouped)
            start = (struct amx_start){c, PANEL_BYTES};
        else if (type != GEMM_BF16)
            start.at = p->start + group * PANEL_COLUMNS + column; // stride 0: the same for every row
        const uint32_t *panel = p->panel + (size_t)k * PANEL_COLUMNS + column;
        int words = p->words - k < step ? p->words - k : step;
        if (columns == PANEL_COLUMNS)
            amx_one_by_four(c, start, x + k, p->x_stride, panel, words, type);
        else
            amx_two_by_two(c, start, x + k, p->x_stride, panel, words, type);
        if (grouped) group_add(p, sums, row, column, rows, columns, group);
    }
}

INLINE void typed_panel_gemm_amx(const struct panel_gemm *p, const enum gemm_type type)
{
    const int most = 2 * TILE_MAX_ROWS;
    for (int row = 0, configured = 0; row < p->rows; row += most) {
        int rows = p->rows - row < most ? p->rows - row : most;
        bool two = rows > TILE_MAX_ROWS;
        if (rows != configured) amx_configure(two ? TILE_MAX_ROWS : rows, two ? rows - TILE_MAX_ROWS : 0);
        configured = rows;
        if (two) {
            rows_gemm_amx(p, row, rows, 0, PANEL_COLUMNS / 2, type);
            rows_gemm_amx(p, row, rows, PANEL_COLUMNS / 2, PANEL_COLUMNS / 2, type);
        } else {
            rows_gemm_amx(p, row, rows, 0, PANEL_COLUMNS, type);
        }
    }
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
