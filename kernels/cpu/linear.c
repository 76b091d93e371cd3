// SPDX-License-Identifier: Apache-2.0
// Gemms over the rows of a batch. A gemm is cut into items of one row block by a group of panels, which are spread over
// the threads.
#include <string.h>

#include "kernels/cpu/cpu.h"

enum { STREAMED_OUTPUT_BYTES = 2 << 20 };

struct gemm {
    const struct cpu *cpu;
    struct tensor *out;
    const struct tensor *x;
    const struct weight *w, *bias;
    enum linear_mode mode;
    int rows, row_blocks, panels;
    int panel_groups, block_words;
    int sums;          // number of panels of an item whose sums are kept at the same time
    int panel_columns; // outputs of a panel: PANEL_COLUMNS, or half of it for SwiGLU
    const char *words; // row 0 of x in the words that the kernel reads
    size_t row_bytes;
};

// Quantises one row of x, with one scale for each group.
static void quantise_row(const struct gemm *p, int row, uint8_t *out)
{
    const struct cpu *cpu = p->cpu;
    int k = p->x->columns, groups = p->w->groups, size = groups > 1 ? GROUP_SIZE : k;
    const char *x = cpu_row(p->x, row);
    for (int g = 0, at = 0; g < groups; g++, at += size)
        cpu->row_scale[row * groups + g] =
            cpu->isa->quantise(out + at, x + at * (p->x->bf16 ? 2 : 4), p->x->bf16, k - at < size ? k - at : size);
}

static void pack_x_row(void *arg, int row, int thread)
{
    const struct gemm *p = arg;
    quantise_row(p, row, (uint8_t *)p->cpu->packed_x + (size_t)row * p->row_bytes);
}

// Packs one row tile. Rows are first quantised into the thread's scratch, or copied if the weight is in bf16.
static void pack_x_tile(void *arg, int tile, int thread)
{
    const struct gemm *p = arg;
    char *out = p->cpu->packed_x + (size_t)tile * TILE_SIDE * p->row_bytes;
    uint8_t *bytes = (uint8_t *)cpu_thread_scratch(p->cpu, thread);
    int first = tile * TILE_SIDE, rows = p->rows - first < TILE_SIDE ? p->rows - first : TILE_SIDE;
    for (int r = 0; r < rows; r++) {
        if (gemm_is_int8(p->w->type))
            quantise_row(p, first + r, bytes);
        else
            memcpy(bytes, cpu_row(p->x, first + r), p->row_bytes);
        for (size_t at = 0; at < p->row_bytes; at += TILE_SIDE * 4)
            memcpy(out + at * TILE_SIDE + (size_t)r * TILE_SIDE * 4, bytes + at, TILE_SIDE * 4);
    }
}

// Sums each group of one row of x, in the order of K.
static void sum_x_row(void *arg, int row, int thread)
{
    const struct gemm *p = arg;
    const struct rows_out x = cpu_rows_out(p->x);
    const int k = p->x->columns;
    for (int g = 0, at = 0; g < p->w->groups; g++) {
        float sum = 0;
        for (int end = at + GROUP_SIZE < k ? at + GROUP_SIZE : k; at < end;) {
            const uint16_t *halves = rows_out_at(x, row, at); // contiguous up to the next TILE_ROW_HALVES
            const int n = end - at < TILE_ROW_HALVES ? end - at : TILE_ROW_HALVES;
            for (int i = 0; i < n; i++)
                sum += bf16_to_f32(halves[i]);
            at += n;
        }
        p->cpu->row_scale[row * p->w->groups + g] = sum;
    }
}

// Sets `words` and `row_bytes`.
static void gemm_pack_x(struct gemm *p)
{
    const struct cpu *cpu = p->cpu;
    int64_t work = (int64_t)p->rows * p->x->columns;
    if (p->w->type == GEMM_INT4) cpu_run(cpu, THREAD_POOL_STATIC, work, sum_x_row, p, p->rows);
    // The rows of x are not tiled in an int8 backend, but a bf16 weight needs tiles.
    if (!gemm_is_int8(p->w->type) && p->x->tiled == cpu_tiled(cpu)) {
        p->words = p->x->data;
        p->row_bytes = (size_t)p->x->stride * (p->x->bf16 ? 2 : 4);
        return;
    }
    p->words = cpu->packed_x;
    p->row_bytes = cpu_packed_row_bytes(cpu, p->x->columns, p->w->type);
    if (cpu_tiled(cpu))
        cpu_run(cpu, THREAD_POOL_STATIC, work, pack_x_tile, p, (p->rows + TILE_SIDE - 1) / TILE_SIDE);
    else
        cpu_run(cpu, THREAD_POOL_STATIC, work, pack_x_row, p, p->rows);
}

// One item: panels [first_panel, end_panel) by rows [row, row + rows).
struct gemm_block {
    int first_panel, end_panel, row, rows;
};

// Returns the block of an item. Row blocks have equal sizes, in whole pairs of row tiles if x is tiled. A thread starts
// with the panels that it packed (their pages are near it). It computes all of them for one row block before the next
// row block, so consecutive items share their rows of x.
static struct gemm_block gemm_block_at(const struct gemm *p, int item)
{
    int n = p->panel_groups, threads = p->cpu->threads, owner = thread_pool_thread_of(n, item / p->row_blocks, threads);
    int first = thread_pool_range(n, owner, threads), end = thread_pool_range(n, owner + 1, threads);
    int in_range = item - first * p->row_blocks, block = in_range / (end - first);
    int group = first + in_range % (end - first);
    int unit = cpu_tiled(p->cpu) ? 2 * TILE_SIDE : 1, units = (p->rows + unit - 1) / unit;
    int row = (int)((int64_t)units * block / p->row_blocks) * unit;
    int row_end = (int)((int64_t)units * (block + 1) / p->row_blocks) * unit;
    if (row_end > p->rows) row_end = p->rows;
    return (struct gemm_block){.first_panel = thread_pool_range(p->panels, group, n),
                               .end_panel = thread_pool_range(p->panels, group + 1, n),
                               .row = row,
                               .rows = row_end - row};
}

// Multiplies the block's rows of x by one of its panels, over the block of K from word k on. Stores the result in c
// [rows][PANEL_COLUMNS], or adds it from the second block of K on. May finish `waiting` in the meantime.
static void gemm_block_sum(const struct gemm *p, const struct gemm_block *b, int panel, int k, float *c,
                           struct panel_out *waiting, int thread)
{
    const struct cpu *cpu = p->cpu;
    const struct weight *w = p->w;
    const size_t panel_words = (size_t)gemm_stored_words(w->words, w->type) * PANEL_COLUMNS;
    size_t row_words = p->row_bytes / sizeof(uint32_t), unit = cpu_tiled(cpu) ? TILE_SIDE : 1;
    const size_t x_words = w->type == GEMM_INT4 ? INT4_PAIRS : 1; // words of x for a word of the panel
    struct panel_gemm gemm = {
        .type = w->type,
        .accumulate = k > 0,
        .rows = b->rows,
        .words = w->words - k < p->block_words ? w->words - k : p->block_words,
        .c = c,
        .x = (const uint32_t *)(const void *)p->words + (size_t)b->row * row_words + (size_t)k * x_words * unit,
        .x_stride = row_words * unit,
        .panel = w->panels + (size_t)panel * panel_words + (size_t)gemm_stored_words(k, w->type) * PANEL_COLUMNS,
        .prefetch = cpu->prefetch,
        .overlapped = waiting->done < waiting->rows ? waiting : NULL,
    };
    if (cpu->decoded) gemm.decoded = cpu->decoded + (size_t)thread * cpu->decoded_words;
    if (w->type == GEMM_BF12) {
        gemm.exponents = w->exponents + (size_t)panel * BF12_EXPONENTS;
        gemm.escapes = w->escapes + w->first_escape[panel];
        gemm.n_escapes = (int)(w->first_escape[panel + 1] - w->first_escape[panel]);
        gemm.first_word = k;
    }
    if (w->groups) {
        int group = w->groups > 1 ? k / (w->type == GEMM_INT4 ? INT4_GROUP_WORDS : GROUP_WORDS) : 0;
        size_t scales = ((size_t)panel * (size_t)w->groups + (size_t)group) * PANEL_COLUMNS;
        if (w->type == GEMM_INT4)
            gemm.zero = w->zero + scales;
        else
            gemm.start = w->start + scales;
        gemm.w_scale = w->scale + scales;
        gemm.x_scale = cpu->row_scale + b->row * w->groups + group;
        gemm.x_scale_stride = w->groups;
    }
    cpu->isa->panel_gemm(&gemm);
}

// Returns true if a panel's outputs use non-temporal stores. The outputs must be whole cache lines, and the output
// tensor must be so large that L2 would not keep it until it is read.
static bool gemm_streams_out(const struct gemm *p, size_t column_bytes, size_t columns_bytes)
{
    const size_t line = 64, row_bytes = (size_t)p->out->stride * (p->out->bf16 ? 2 : 4);
    uintptr_t at = (uintptr_t)p->out->data + column_bytes;
    return cpu_tiled(p->cpu) && p->mode != LINEAR_ADD && (size_t)p->rows * row_bytes >= STREAMED_OUTPUT_BYTES &&
           (at | row_bytes | columns_bytes) % line == 0;
}

static struct panel_out gemm_block_out(const struct gemm *p, const struct gemm_block *b, int panel, const float *c)
{
    const struct weight *w = p->w;
    int column = panel * p->panel_columns, left = p->out->columns - column;
    bool integers = w->type == GEMM_INT8;
    size_t element = p->out->bf16 ? 2 : 4;
    return (struct panel_out){
        .sums = c,
        .rows = b->rows,
        .mode = p->mode,
        .tiled = cpu_tiled(p->cpu),
        .bias = p->bias ? p->bias->vector + (size_t)panel * PANEL_COLUMNS : NULL,
        .x_scale = integers ? p->cpu->row_scale + b->row : NULL,
        .w_scale = integers ? w->scale + (size_t)panel * (size_t)w->groups * PANEL_COLUMNS : NULL,
        .to = cpu_rows_out(p->out),
        .row = b->row,
        .column = column,
        .columns = left < p->panel_columns ? left : p->panel_columns,
        .streamed = gemm_streams_out(p, (size_t)column * element, (size_t)p->panel_columns * element),
    };
}

static void gemm_finish(const struct gemm *p, struct panel_out *waiting)
{
    if (waiting->done < waiting->rows) p->cpu->isa->panel_finish(waiting, waiting->rows);
}

// Computes an item. At tiled levels, the sums of a panel are finished between the tile instructions of the next panel.
static void gemm_item(void *arg, int item, int thread)
{
    const struct gemm *p = arg;
    struct gemm_block block = gemm_block_at(p, item);
    float *c = cpu_thread_scratch(p->cpu, thread);
    // Round up to whole row tiles: sums are stored by tiles.
    size_t panel_floats = (size_t)((block.rows + TILE_SIDE - 1) / TILE_SIDE * TILE_SIDE) * PANEL_COLUMNS;
    struct panel_out waiting = {0};
    for (int k = 0; k < p->w->words; k += p->block_words) {
        bool last = k + p->block_words >= p->w->words;
        for (int panel = block.first_panel; panel < block.end_panel; panel++) {
            float *sums = c + (size_t)((panel - block.first_panel) % p->sums) * panel_floats;
            gemm_block_sum(p, &block, panel, k, sums, &waiting, thread);
            if (!last) continue;
            gemm_finish(p, &waiting);
            waiting = gemm_block_out(p, &block, panel, sums);
        }
    }
    gemm_finish(p, &waiting);
}

// Returns the words of a block of K. It is all of K if a tiled panel streams past a pair of row tiles, which then reads
// the panel in one run. An int4 panel that is decoded to memory is read in blocks that fit there.
static int gemm_block_words(const struct gemm *p, const struct gemm_blocking *blocking)
{
    if (p->w->type == GEMM_INT4 && !cpu_tiled(p->cpu) && p->rows > INT4_DIRECT_ROWS) return INT4_BLOCK_WORDS;
    return cpu_tiled(p->cpu) && p->rows <= 2 * TILE_SIDE ? p->w->words : blocking->words;
}

// Returns true if K is a single block. At most two panels then have sums at a time.
static bool gemm_sums_once(const struct gemm *p)
{
    return p->w->words <= p->block_words;
}

// Returns the number of panel groups. A group is as large as an item may be, but each thread gets several groups. Large
// groups save reading x again if K has several blocks. If K is a single block, a group has another use: only its last
// panel is finished without overlapping tile instructions. Smaller groups suffice for that. Groups have one panel if
// there are so few rows that finishing them takes no time.
static int gemm_panel_groups(const struct gemm *p, const struct gemm_blocking *blocking)
{
    if (gemm_sums_once(p) && p->rows <= TILE_SIDE) return p->panels;
    int panels = p->panels / ((gemm_sums_once(p) ? 4 : 2) * p->cpu->threads);
    if (panels > blocking->panels) panels = blocking->panels;
    return panels > 1 ? (p->panels + panels - 1) / panels : p->panels;
}

enum status cpu_linear(struct backend *b, struct tensor *out, const struct tensor *x, const struct weight *w,
                       const struct weight *bias, enum linear_mode mode, int rows)
{
    struct cpu *cpu = cpu_of(b);
    INVARIANT(w->kind == WEIGHT_MATRIX && x->kind == TENSOR_ACTIVATION && x->columns == w->columns,
              "linear: weight of kind %d with K %lld, x of kind %d with %d columns", (int)w->kind,
              (long long)w->columns, (int)x->kind, x->columns);
    INVARIANT(w->gate_up == (mode == LINEAR_SWIGLU) && out->columns == (w->gate_up ? w->rows / 2 : w->rows),
              "linear: mode %d, gate_up %d, N %lld, out has %d columns", (int)mode, w->gate_up, (long long)w->rows,
              out->columns);
    INVARIANT(rows <= out->max_rows && rows <= x->max_rows && (mode != LINEAR_ADD || out->kind == TENSOR_F32),
              "linear: mode %d, %d rows, x has %d, out of kind %d has %d", (int)mode, rows, x->max_rows, (int)out->kind,
              out->max_rows);
    INVARIANT(!bias || (bias->columns == w->rows && !w->gate_up), "linear: bias of %lld for N %lld, gate_up %d",
              (long long)(bias ? bias->columns : 0), (long long)w->rows, w->gate_up);
    if (rows < 1) return STATUS_OK;
    struct gemm p = {.cpu = cpu, .out = out, .x = x, .w = w, .bias = bias, .mode = mode, .rows = rows};
    p.panel_columns = w->gate_up ? PANEL_COLUMNS / 2 : PANEL_COLUMNS;
    p.panels = (out->columns + p.panel_columns - 1) / p.panel_columns;
    const struct gemm_blocking *blocking = cpu_blocking(cpu);
    p.row_blocks = (rows + blocking->rows - 1) / blocking->rows;
    p.block_words = gemm_block_words(&p, blocking);
    p.sums = gemm_sums_once(&p) ? 2 : blocking->panels;
    p.panel_groups = gemm_panel_groups(&p, blocking);
    gemm_pack_x(&p);
    cpu_run_groups(cpu, (int64_t)rows * w->rows * w->columns, gemm_item, &p, p.panel_groups, p.row_blocks);
    return STATUS_OK;
}
