// SPDX-License-Identifier: Apache-2.0
// AMX gemm kernels for bf16 and int8 (included by kernels.c if CPU_TILES is set). f32 uses the vector kernel. Weights
// and rows of x are stored as tiles (isa.h), so that every tile load reads 1 KiB of contiguous memory.
//
// Any number of rows goes through tiles, the last rows through a smaller tile. The reason is that a bf16 sum of the
// tile instruction differs in its bits from a sum of the vector instruction. A tile sums each row separately, so a
// result does not depend on the number of rows. Row blocks of one and of two tiles use the same operations.
//
// Tiles are configured and released within one gemm, so a waiting thread never holds them.
#pragma once

#include "kernels/cpu/tiles.h"

enum {
    TILE_BYTES = 4 * TILE_WORDS, // bytes of a row of a tile in memory
    HALF_COLUMNS = PANEL_COLUMNS / 2,
    STEP_WORDS = TILE_SIZE * (HALF_COLUMNS / TILE_WORDS), // words of half a panel for TILE_WORDS words of K
    ROW_TILE_FLOATS = TILE_SIDE * PANEL_COLUMNS           // floats of the sums of a row tile
};

// Bytes by which a panel is prefetched into L2 ahead of its use, if several row tiles use it from L1. A panel that is
// used once is prefetched according to panel_gemm.prefetch.
enum { PAIRS_AHEAD_BYTES = 32768 };

// Prefetch into L2, spread over the steps of a gemm. Lines are requested alternately from several pages. The hardware
// prefetcher runs ahead by a limited number of lines in each page. In one page alone, these lines would not cover the
// latency of memory. The requests of the hardware prefetcher take none of the core's few fill buffers, which loads from
// L2 need.
enum { PREFETCH_PAGE_BYTES = 4096, PREFETCH_MAX_PAGES = 8 };

struct page_prefetch {
    // In the first of `pages` pages. Not a pointer: it may be out of bounds, where a prefetch does no harm.
    uintptr_t at;
    int pages; // a power of two
    int lines; // lines of each page for each step
};

// Returns the prefetch of one block of `lines_per_step` cache lines in `parts` passes over its steps.
INLINE struct page_prefetch page_prefetch_of(int lines_per_step, int parts)
{
    int lines = (lines_per_step + parts - 1) / parts, pages = 1;
    while (2 * pages <= lines && pages < PREFETCH_MAX_PAGES)
        pages *= 2;
    return (struct page_prefetch){.pages = pages, .lines = (lines + pages - 1) / pages};
}

INLINE void page_prefetch_step(struct page_prefetch *fetch)
{
    for (int line = 0; line < fetch->lines; line++) {
        for (int page = 0; page < fetch->pages; page++)
            __builtin_prefetch((const void *)(fetch->at + (uintptr_t)(page * PREFETCH_PAGE_BYTES)), 0, 2);
        fetch->at += 64;
        if (fetch->at % PREFETCH_PAGE_BYTES == 0) fetch->at += (uintptr_t)((fetch->pages - 1) * PREFETCH_PAGE_BYTES);
    }
}

// Rows of another panel that are finished evenly between the steps of a gemm. The tile unit multiplies while the vector
// units finish them, and a residual that comes from memory delays neither unit.
struct overlap {
    struct panel_out *out; // NULL if there are none
    int step, steps;       // steps of the gemm, of TILE_WORDS words of half a panel each
};

enum { OVERLAP_STEPS = 4 }; // steps between two calls of panel_finish: one or two rows of a full block

INLINE void overlap_advance(struct overlap *overlap, int steps)
{
    if (!overlap->out) return;
    overlap->step += steps;
    int end = (int)((int64_t)overlap->out->rows * overlap->step / overlap->steps);
    if (end > overlap->out->done) panel_finish(overlap->out, end);
}

// Finishes rows after step k of `steps`.
INLINE void overlap_step(struct overlap *overlap, int k, int steps)
{
    if (k % OVERLAP_STEPS == OVERLAP_STEPS - 1)
        overlap_advance(overlap, OVERLAP_STEPS);
    else if (k == steps - 1)
        overlap_advance(overlap, steps % OVERLAP_STEPS);
}

// Configures the tiles for two row tiles by half a panel: sums in tiles 0 to 3, x in 4 and 5, the panel in 6 and 7. If
// second_rows is 0, configures them for one row tile by a whole panel: sums in 0 to 3, x in 4, the panel in 6 and 7.
INLINE void amx_configure(int first_rows, int second_rows)
{
    struct tile_config config = {.palette = 1};
    for (int t = 0; t < TILE_COUNT; t++) {
        bool second = second_rows && (t == 2 || t == 3 || t == 5);
        config.rows[t] = (uint8_t)(t > 5 ? TILE_MAX_ROWS : second ? second_rows : first_rows);
        config.row_bytes[t] = TILE_BYTES;
    }
    tile_configure(&config);
}

// Start values of sums: zeros if `at` is NULL, else tiles whose rows are `stride` bytes apart. `row_tile` and
// `column_tile` are the floats from one tile to the next tile of rows and of columns.
struct amx_start {
    const float *at;
    size_t stride;
    int row_tile, column_tile;
};

// Returns the start values of the sums at c, for words of K from k on.
INLINE struct amx_start amx_start_at(const struct panel_gemm *p, const float *c, int k, int column,
                                     const enum gemm_type type)
{
    if ((p->accumulate || k > 0) && type != GEMM_INT8_GROUPS)
        return (struct amx_start){c, TILE_BYTES, ROW_TILE_FLOATS, TILE_SIZE};
    if (type == GEMM_BF16) return (struct amx_start){0};
    int group = type == GEMM_INT8_GROUPS ? k / GROUP_WORDS : 0;
    const void *same = p->start + group * PANEL_COLUMNS + column; // the same for every row: stride 0
    return (struct amx_start){same, 0, 0, TILE_WORDS};
}

#define TILE_DOT(c, a, b)                                                                                              \
    do {                                                                                                               \
        if (type == GEMM_BF16)                                                                                         \
            tile_dot_bf16(c, a, b);                                                                                    \
        else                                                                                                           \
            tile_dot_bytes(c, a, b);                                                                                   \
    } while (0)

#define TILE_START(t, start, row, column)                                                                              \
    do {                                                                                                               \
        if ((start).at)                                                                                                \
            tile_load(t, (start).at + (row) * (start).row_tile + (column) * (start).column_tile, (start).stride);      \
        else                                                                                                           \
            tile_zero(t);                                                                                              \
    } while (0)

// Loads a tile of x or of a panel. `once`: this tile is used once, while the other operand is reused from L1.
#define TILE_LOAD(t, from, once)                                                                                       \
    do {                                                                                                               \
        if (once)                                                                                                      \
            tile_load_streamed(t, from, TILE_BYTES);                                                                   \
        else                                                                                                           \
            tile_load(t, from, TILE_BYTES);                                                                            \
    } while (0)

// Prefetches a tile's size of a streamed panel, `ahead.ahead_bytes` after `tile`. Called before the load of each tile:
// more concurrent requests would wait for each other.
INLINE void tile_prefetch(const uint32_t *tile, struct stream_prefetch ahead)
{
    const char *to = (const char *)tile + ahead.ahead_bytes;
    if (ahead.target == STREAM_INTO_L1)
        for (int line = 0; line < TILE_SIZE * 4; line += 64)
            __builtin_prefetch(to + line, 0, 3);
    else if (ahead.target == STREAM_INTO_L2)
        for (int line = 0; line < TILE_SIZE * 4; line += 64)
            __builtin_prefetch(to + line, 0, 2);
}

// Computes the sums of 17 to 32 rows by half a panel, four tiles at c. If `use` is PANEL_REUSED, `fetch` advances with
// each step.
INLINE void amx_two_by_two(float *c, struct amx_start start, const uint32_t *x, size_t x_stride, const uint32_t *panel,
                           int steps, struct page_prefetch *fetch, struct stream_prefetch stream,
                           struct overlap *overlap, const enum panel_use use, const enum gemm_type type)
{
    TILE_START(0, start, 0, 0);
    TILE_START(1, start, 0, 1);
    TILE_START(2, start, 1, 0);
    TILE_START(3, start, 1, 1);
    const uint32_t *x_second = x + x_stride;
    struct page_prefetch ahead = *fetch; // keep it in registers: the tile instructions clobber memory
    for (int k = 0; k < steps; k++, x += TILE_SIZE, x_second += TILE_SIZE, panel += STEP_WORDS) {
        TILE_LOAD(4, x, use == PANEL_REUSED);
        if (use == PANEL_STREAMED) tile_prefetch(panel, stream);
        TILE_LOAD(6, panel, use == PANEL_STREAMED);
        TILE_DOT(0, 4, 6);
        if (use == PANEL_STREAMED) tile_prefetch(panel + TILE_SIZE, stream);
        TILE_LOAD(7, panel + TILE_SIZE, use == PANEL_STREAMED);
        TILE_DOT(1, 4, 7);
        TILE_LOAD(5, x_second, use == PANEL_REUSED);
        TILE_DOT(2, 5, 6);
        TILE_DOT(3, 5, 7);
        if (use == PANEL_REUSED) page_prefetch_step(&ahead);
        overlap_step(overlap, k, steps);
    }
    *fetch = ahead;
    tile_store(0, c, TILE_BYTES);
    tile_store(1, c + TILE_SIZE, TILE_BYTES);
    tile_store(2, c + ROW_TILE_FLOATS, TILE_BYTES);
    tile_store(3, c + ROW_TILE_FLOATS + TILE_SIZE, TILE_BYTES);
}

// Computes one row tile by half a panel: adds to the sums in tiles 0 and 1, or 2 and 3.
INLINE void amx_one_by_two(const uint32_t *x, const uint32_t *panel, int steps, struct stream_prefetch stream,
                           struct overlap *overlap, const bool second_half, const enum gemm_type type)
{
    for (int k = 0; k < steps; k++, x += TILE_SIZE, panel += STEP_WORDS) {
        tile_load(4, x, TILE_BYTES);
        tile_prefetch(panel, stream);
        TILE_LOAD(6, panel, true);
        tile_prefetch(panel + TILE_SIZE, stream);
        TILE_LOAD(7, panel + TILE_SIZE, true);
        if (second_half) {
            TILE_DOT(2, 4, 6);
            TILE_DOT(3, 4, 7);
        } else {
            TILE_DOT(0, 4, 6);
            TILE_DOT(1, 4, 7);
        }
        overlap_step(overlap, k, steps);
    }
}

// Computes the sums of 1 to 16 rows over words [k, k + words), four tiles at c. Reads the panel once from end to end.
INLINE void amx_one_by_four(const struct panel_gemm *p, float *c, struct amx_start start, const uint32_t *x, int k,
                            int words, struct overlap *overlap, const enum gemm_type type)
{
    TILE_START(0, start, 0, 0);
    TILE_START(1, start, 0, 1);
    TILE_START(2, start, 0, 2);
    TILE_START(3, start, 0, 3);
    for (int end = k + words; k < end;) {
        int left = TILED_BLOCK_WORDS - k % TILED_BLOCK_WORDS, block = end - k < left ? end - k : left;
        const uint32_t *x_block = x + (size_t)k * TILE_SIDE, *first = p->panel + tiled_panel_at(p->words, k, 0);
        const uint32_t *second = p->panel + tiled_panel_at(p->words, k, HALF_COLUMNS);
        const int steps = block / TILE_WORDS;
        amx_one_by_two(x_block, first, steps, p->prefetch, overlap, false, type);
        amx_one_by_two(x_block, second, steps, p->prefetch, overlap, true, type);
        k += block;
    }
    tile_store(0, c, TILE_BYTES);
    tile_store(1, c + TILE_SIZE, TILE_BYTES);
    tile_store(2, c + 2 * TILE_SIZE, TILE_BYTES);
    tile_store(3, c + 3 * TILE_SIZE, TILE_BYTES);
}

// Computes rows [row, row + rows), at most two tiles, by `columns` columns, over words [word, word + words) of K. The
// words are part of one block of TILED_BLOCK_WORDS, or all of K if `columns` is all columns. Compare tile_gemm.
INLINE void rows_gemm_amx(const struct panel_gemm *p, int row, int rows, int column, int word, int words,
                          struct page_prefetch *fetch, struct overlap *overlap, const int columns,
                          const enum panel_use use, const enum gemm_type type)
{
    const bool grouped = type == GEMM_INT8_GROUPS;
    float sums[2 * ROW_TILE_FLOATS], *c = grouped ? sums : p->c + tiled_sums_at(row, column);
    const uint32_t *x = p->x + (size_t)(row / TILE_MAX_ROWS) * p->x_stride;
    int step = grouped ? GROUP_WORDS : words;
    for (int k = word, end = word + words; k < end; k += step) {
        int part = end - k < step ? end - k : step;
        struct amx_start start = amx_start_at(p, c, k, column, type);
        if (columns == PANEL_COLUMNS)
            amx_one_by_four(p, c, start, x, k, part, overlap, type);
        else
            amx_two_by_two(c, start, x + (size_t)k * TILE_MAX_ROWS, p->x_stride,
                           p->panel + tiled_panel_at(p->words, k, column), part / TILE_WORDS, fetch, p->prefetch,
                           overlap, use, type);
        if (grouped) group_add(p, sums, true, row, column, rows, columns, k / GROUP_WORDS);
    }
}

// Computes one row tile, which uses each part of the panel once.
INLINE void one_tile_gemm(const struct panel_gemm *p, int row, int rows, struct overlap *overlap,
                          const enum gemm_type type)
{
    amx_configure(rows, 0);
    rows_gemm_amx(p, row, rows, 0, 0, p->words, NULL, overlap, PANEL_COLUMNS, PANEL_STREAMED, type);
}

// Computes pairs of row tiles, all full except the last one. While several pairs use half a panel from L1, the next
// words in memory are prefetched.
INLINE void tile_pairs_gemm(const struct panel_gemm *p, int pairs, int last_rows, struct overlap *overlap,
                            const enum panel_use use, const enum gemm_type type)
{
    const int pair_rows = 2 * TILE_MAX_ROWS;
    struct page_prefetch fetch = page_prefetch_of(STEP_WORDS * 4 / 64, pairs);
    int configured = 0;
    for (int word = 0; word < p->words; word += TILED_BLOCK_WORDS) {
        int left = p->words - word, words = left < TILED_BLOCK_WORDS ? left : TILED_BLOCK_WORDS;
        for (int column = 0; column < PANEL_COLUMNS; column += HALF_COLUMNS) {
            fetch.at = (uintptr_t)(p->panel + tiled_panel_at(p->words, word, column)) + PAIRS_AHEAD_BYTES;
            for (int i = 0; i < pairs; i++) {
                int rows = i == pairs - 1 ? last_rows : pair_rows;
                if (rows != configured) amx_configure(TILE_MAX_ROWS, rows - TILE_MAX_ROWS);
                configured = rows;
                rows_gemm_amx(p, i * pair_rows, rows, column, word, words, &fetch, overlap, HALF_COLUMNS, use, type);
            }
        }
    }
}

INLINE void typed_panel_gemm_amx(const struct panel_gemm *p, const enum gemm_type type)
{
    const int pair_rows = 2 * TILE_MAX_ROWS;
    int rest = p->rows % pair_rows, pairs = p->rows / pair_rows + (rest > TILE_MAX_ROWS);
    int last_rows = rest > TILE_MAX_ROWS ? rest : pair_rows;
    bool single = rest && rest <= TILE_MAX_ROWS;
    struct overlap overlap = {.out = p->overlapped, .steps = 2 * (pairs + single) * (p->words / TILE_WORDS)};
    if (pairs == 1) tile_pairs_gemm(p, 1, last_rows, &overlap, PANEL_STREAMED, type);
    if (pairs > 1) tile_pairs_gemm(p, pairs, last_rows, &overlap, PANEL_REUSED, type);
    if (single) one_tile_gemm(p, p->rows - rest, rest, &overlap, type);
    tile_release();
}

// Decodes a group of an int4 panel to tiles of bf16 words.
static void int4_decode_tiles(uint32_t *out, const uint32_t *panel, int words, const struct stream_prefetch ahead)
{
    enum { WORDS = INT4_GROUP_WORDS * INT4_PAIRS };
    _Alignas(64) uint32_t rows[WORDS * PANEL_COLUMNS];
    int4_decode(rows, panel, words, ahead);
    for (int k = 0; k < words * INT4_PAIRS; k++)
        for (int column = 0; column < PANEL_COLUMNS; column += TILE_SIDE)
            memcpy(out + tiled_panel_at(words * INT4_PAIRS, k - k % TILE_SIDE, column) + k % TILE_SIDE * TILE_SIDE,
                   rows + k * PANEL_COLUMNS + column, TILE_BYTES);
}

// Computes an int4 gemm as a bf16 gemm for each group.
static void int4_panel_gemm_amx(const struct panel_gemm *p)
{
    float *sums = (float *)(void *)(p->decoded + (size_t)INT4_GROUP_WORDS * INT4_PAIRS * PANEL_COLUMNS);
    for (int k = 0; k < p->words; k += INT4_GROUP_WORDS) {
        const int words = p->words - k < INT4_GROUP_WORDS ? p->words - k : INT4_GROUP_WORDS;
        const struct panel_gemm group = {.type = GEMM_BF16,
                                         .rows = p->rows,
                                         .words = words * INT4_PAIRS,
                                         .c = sums,
                                         .x = p->x + (size_t)k * INT4_PAIRS * TILE_SIDE,
                                         .x_stride = p->x_stride,
                                         .panel = p->decoded,
                                         .overlapped = k ? NULL : p->overlapped};
        int4_decode_tiles(p->decoded, p->panel + (size_t)k * PANEL_COLUMNS, words, p->prefetch);
        typed_panel_gemm_amx(&group, GEMM_BF16);
        int4_group_add(p, sums, true, 0, 0, p->rows, PANEL_COLUMNS, k / INT4_GROUP_WORDS);
    }
}

enum { BF12_TILE_WORDS = 64 }; // words of K that one row tile decodes at a time, which stay in L1

// Computes one row tile by a bf12 panel. Sums stay in tiles while parts of the panel are decoded between the products.
static void bf12_one_tile_gemm(const struct panel_gemm *p, struct overlap *overlap)
{
    const enum gemm_type type = GEMM_BF16;
    const struct amx_start start = amx_start_at(p, p->c, 0, 0, type);
    amx_configure(p->rows, 0);
    TILE_START(0, start, 0, 0);
    TILE_START(1, start, 0, 1);
    TILE_START(2, start, 0, 2);
    TILE_START(3, start, 0, 3);
    for (int k = 0; k < p->words; k += BF12_TILE_WORDS) {
        const int words = p->words - k < BF12_TILE_WORDS ? p->words - k : BF12_TILE_WORDS, steps = words / TILE_WORDS;
        const uint32_t *x = p->x + (size_t)k * TILE_SIDE, *second = p->decoded + tiled_panel_at(words, 0, HALF_COLUMNS);
        bf12_decode_block(p->decoded, p, k, words, p->prefetch, true);
        amx_one_by_two(x, p->decoded, steps, (struct stream_prefetch){0}, overlap, false, type);
        amx_one_by_two(x, second, steps, (struct stream_prefetch){0}, overlap, true, type);
    }
    tile_store(0, p->c, TILE_BYTES);
    tile_store(1, p->c + TILE_SIZE, TILE_BYTES);
    tile_store(2, p->c + 2 * TILE_SIZE, TILE_BYTES);
    tile_store(3, p->c + 3 * TILE_SIZE, TILE_BYTES);
    tile_release();
}

// Computes a bf12 gemm of more than one row tile as bf16 gemms over decoded blocks of K.
static void bf12_panel_gemm_amx(const struct panel_gemm *p)
{
    struct overlap overlap = {.out = p->overlapped, .steps = 2 * (p->words / TILE_WORDS)};
    if (p->rows <= TILE_MAX_ROWS) {
        bf12_one_tile_gemm(p, &overlap);
        return;
    }
    for (int k = 0; k < p->words; k += BF12_TILED_BLOCK_WORDS) {
        struct panel_gemm block = *p;
        block.type = GEMM_BF16;
        block.accumulate = p->accumulate || k > 0;
        block.words = p->words - k < BF12_TILED_BLOCK_WORDS ? p->words - k : BF12_TILED_BLOCK_WORDS;
        block.x = p->x + (size_t)k * TILE_SIDE;
        block.panel = p->decoded;
        block.overlapped = k ? NULL : p->overlapped;
        bf12_decode_block(p->decoded, p, k, block.words, p->prefetch, true);
        typed_panel_gemm_amx(&block, GEMM_BF16);
    }
}

static void panel_gemm_amx(const struct panel_gemm *p)
{
    switch (p->type) {
    case GEMM_F32: panel_gemm(p); break;
    case GEMM_BF16: typed_panel_gemm_amx(p, GEMM_BF16); break;
    case GEMM_INT8: typed_panel_gemm_amx(p, GEMM_INT8); break;
    case GEMM_INT8_GROUPS: typed_panel_gemm_amx(p, GEMM_INT8_GROUPS); break;
    case GEMM_INT4: int4_panel_gemm_amx(p); break;
    case GEMM_BF12: bf12_panel_gemm_amx(p); break;
    }
}
