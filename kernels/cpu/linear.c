// SPDX-License-Identifier: Apache-2.0
// Gemms over the rows of a batch, cut into items of one row block by one panel and spread over the threads.
#include "kernels/cpu/cpu.h"

struct gemm {
    const struct cpu *cpu;
    struct tensor *out;
    const struct tensor *x;
    const struct weight *w, *bias;
    enum linear_mode mode;
    int rows, row_blocks, panels;
    int panel_columns; // outputs of a panel: PANEL_COLUMNS, half of it for SwiGLU
    const char *words; // row 0 of x in the words that the kernel reads
    size_t row_bytes;
};

// int8: quantises one row of x, with one scale for each group.
static void quantise_row(void *arg, int row, int thread)
{
    const struct gemm *p = arg;
    const struct cpu *cpu = p->cpu;
    int k = p->x->columns, groups = p->w->groups, size = groups > 1 ? GROUP_SIZE : k;
    const char *x = cpu_row(p->x, row);
    uint8_t *out = cpu->quantised + (size_t)row * p->row_bytes;
    for (int g = 0, at = 0; g < groups; g++, at += size)
        cpu->row_scale[row * groups + g] =
            cpu->isa->quantise(out + at, x + at * (p->x->bf16 ? 2 : 4), p->x->bf16, k - at < size ? k - at : size);
}

// One item: one panel by rows [row, row + rows).
struct gemm_block {
    int panel, row, rows;
};

// Row blocks have equal sizes. A thread starts with the panels that it packed (their pages are near it) and computes
// all of them for one row block before the next, so consecutive items share their rows of x.
static struct gemm_block gemm_block_at(const struct gemm *p, int item)
{
    int threads = p->cpu->threads, owner = thread_pool_thread_of(p->panels, item / p->row_blocks, threads);
    int first = thread_pool_range(p->panels, owner, threads), end = thread_pool_range(p->panels, owner + 1, threads);
    int in_range = item - first * p->row_blocks, block = in_range / (end - first);
    int row = (int)((int64_t)p->rows * block / p->row_blocks);
    int row_end = (int)((int64_t)p->rows * (block + 1) / p->row_blocks);
    return (struct gemm_block){.panel = first + in_range % (end - first), .row = row, .rows = row_end - row};
}

// c [rows][PANEL_COLUMNS] = the block's rows of x times its panel, one block of K after another.
static void gemm_block_sum(const struct gemm *p, const struct gemm_block *b, float *c)
{
    const struct cpu *cpu = p->cpu;
    const struct weight *w = p->w;
    size_t scales = (size_t)b->panel * (size_t)w->groups * PANEL_COLUMNS;
    struct panel_gemm gemm = {
        .type = cpu->gemm_type, .rows = b->rows, .c = c, .x_stride = p->row_bytes / sizeof(uint32_t)};
    for (int k = 0; k < w->words; k += BLOCK_WORDS) {
        gemm.accumulate = k > 0;
        gemm.words = w->words - k < BLOCK_WORDS ? w->words - k : BLOCK_WORDS;
        gemm.x = (const uint32_t *)(const void *)(p->words + (size_t)b->row * p->row_bytes) + k;
        gemm.panel = w->panels + ((size_t)b->panel * (size_t)w->words + (size_t)k) * PANEL_COLUMNS;
        if (cpu_int8(cpu)) {
            int group = w->groups > 1 ? k / GROUP_WORDS : 0;
            gemm.start = w->start + scales + group * PANEL_COLUMNS;
            gemm.w_scale = w->scale + scales + group * PANEL_COLUMNS;
            gemm.x_scale = cpu->row_scale + b->row * w->groups + group;
            gemm.x_scale_stride = w->groups;
        }
        cpu->isa->panel_gemm(&gemm);
    }
}

static void gemm_block_store(const struct gemm *p, const struct gemm_block *b, float *c)
{
    const struct weight *w = p->w;
    int column = b->panel * p->panel_columns, left = p->out->columns - column;
    bool integers = p->cpu->gemm_type == GEMM_INT8;
    struct panel_out out = {
        .mode = p->mode,
        .bias = p->bias ? p->bias->vector + (size_t)b->panel * PANEL_COLUMNS : NULL,
        .x_scale = integers ? p->cpu->row_scale + b->row : NULL,
        .w_scale = integers ? w->scale + (size_t)b->panel * (size_t)w->groups * PANEL_COLUMNS : NULL,
        .bf16 = p->out->bf16,
        .out = (char *)cpu_row(p->out, b->row) + (size_t)column * (p->out->bf16 ? 2 : 4),
        .stride = p->out->stride,
        .columns = left < p->panel_columns ? left : p->panel_columns,
    };
    p->cpu->isa->panel_finish(c, b->rows, &out);
}

static void gemm_item(void *arg, int item, int thread)
{
    const struct gemm *p = arg;
    struct gemm_block block = gemm_block_at(p, item);
    float *c = cpu_thread_scratch(p->cpu, thread);
    gemm_block_sum(p, &block, c);
    gemm_block_store(p, &block, c);
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
    p.row_blocks = (rows + ROW_BLOCK - 1) / ROW_BLOCK;
    if (cpu_int8(cpu)) {
        p.words = (const char *)cpu->quantised;
        p.row_bytes = cpu_quantised_stride(x->columns);
        cpu_run(cpu, THREAD_POOL_STATIC, (int64_t)rows * x->columns, quantise_row, &p, rows);
    } else {
        p.words = x->data;
        p.row_bytes = (size_t)x->stride * (x->bf16 ? 2 : 4);
    }
    cpu_run_groups(cpu, (int64_t)rows * w->rows * w->columns, gemm_item, &p, p.panels, p.row_blocks);
    return STATUS_OK;
}
