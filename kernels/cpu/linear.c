// SPDX-License-Identifier: Apache-2.0
// Matrix products over the rows of a batch: cut into items of some rows by one panel, spread over the threads.
#include "kernels/cpu/cpu.h"

struct product {
    const struct cpu *cpu;
    struct tensor *out;
    const struct tensor *x;
    const struct weight *w, *bias;
    enum linear_mode mode;
    int rows, row_blocks, panels;
    int panel_columns; // of out: PANEL_COLUMNS, half of that for SwiGLU
    const char *words; // of x as the kernel reads them, row 0
    size_t row_bytes;
};

// int8: one row of x as bytes, with a scale for each group.
static void quantise_row(void *arg, int row, int thread)
{
    const struct product *p = arg;
    const struct cpu *cpu = p->cpu;
    int k = p->x->columns, groups = p->w->groups, size = groups > 1 ? GROUP_SIZE : k;
    const char *x = cpu_row(p->x, row);
    uint8_t *out = cpu->quantised + (size_t)row * p->row_bytes;
    for (int g = 0, at = 0; g < groups; g++, at += size)
        cpu->row_scale[row * groups + g] =
            cpu->isa->quantise(out + at, x + at * (p->x->bf16 ? 2 : 4), p->x->bf16, k - at < size ? k - at : size);
}

// Item i: one panel for one of the row blocks, which are cut evenly. A thread starts on the panels that it packed, all
// of them for one block of rows after another: consecutive items share the rows of x.
static void product_item(void *arg, int item, int thread)
{
    const struct product *p = arg;
    const struct cpu *cpu = p->cpu;
    const struct weight *w = p->w;
    int share = thread_pool_thread_of(p->panels, item / p->row_blocks, cpu->threads);
    int first = thread_pool_range(p->panels, share, cpu->threads),
        end = thread_pool_range(p->panels, share + 1, cpu->threads);
    int in_share = item - first * p->row_blocks, block = in_share / (end - first);
    int panel = first + in_share % (end - first);
    int row = (int)((int64_t)p->rows * block / p->row_blocks);
    int rows = (int)((int64_t)p->rows * (block + 1) / p->row_blocks) - row;
    size_t scales = (size_t)panel * (size_t)w->groups * PANEL_COLUMNS;
    struct panel_product product = {
        .type = cpu->product,
        .rows = rows,
        .c = cpu_thread_scratch(cpu, thread),
        .x_stride = p->row_bytes / sizeof(uint32_t),
    };
    for (int k = 0; k < w->words; k += BLOCK_WORDS) {
        product.accumulate = k > 0;
        product.words = w->words - k < BLOCK_WORDS ? w->words - k : BLOCK_WORDS;
        product.x = (const uint32_t *)(const void *)(p->words + (size_t)row * p->row_bytes) + k;
        product.panel = w->panels + ((size_t)panel * (size_t)w->words + (size_t)k) * PANEL_COLUMNS;
        if (cpu_int8(cpu)) {
            int group = w->groups > 1 ? k / GROUP_WORDS : 0;
            product.start = w->start + scales + group * PANEL_COLUMNS;
            product.w_scale = w->scale + scales + group * PANEL_COLUMNS;
            product.x_scale = cpu->row_scale + row * w->groups + group;
            product.x_scale_stride = w->groups;
        }
        cpu->isa->panel_product(&product);
    }
    int column = panel * p->panel_columns, left = p->out->columns - column;
    bool integers = cpu->product == PRODUCT_INT8;
    struct panel_out out = {
        .mode = p->mode,
        .bias = p->bias ? p->bias->vector + (size_t)panel * PANEL_COLUMNS : NULL,
        .x_scale = integers ? cpu->row_scale + row : NULL,
        .w_scale = integers ? w->scale + scales : NULL,
        .bf16 = p->out->bf16,
        .out = (char *)cpu_row(p->out, row) + (size_t)column * (p->out->bf16 ? 2 : 4),
        .stride = p->out->stride,
        .columns = left < p->panel_columns ? left : p->panel_columns,
    };
    cpu->isa->panel_finish(product.c, rows, &out);
}

enum status cpu_linear(struct backend *b, struct tensor *out, const struct tensor *x, const struct weight *w,
                       const struct weight *bias, enum linear_mode mode, int rows)
{
    struct cpu *cpu = cpu_of(b);
    assert(w->kind == WEIGHT_MATRIX && x->kind == TENSOR_ACTIVATION && x->columns == w->columns);
    assert(w->gate_up == (mode == LINEAR_SWIGLU) && out->columns == (w->gate_up ? w->rows / 2 : w->rows));
    assert(rows <= out->max_rows && rows <= x->max_rows && (mode != LINEAR_ADD || out->kind == TENSOR_F32));
    assert(!bias || (bias->columns == w->rows && !w->gate_up));
    if (rows < 1) return STATUS_OK;
    struct product p = {.cpu = cpu, .out = out, .x = x, .w = w, .bias = bias, .mode = mode, .rows = rows};
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
    cpu_run_groups(cpu, (int64_t)rows * w->rows * w->columns, product_item, &p, p.panels, p.row_blocks);
    return STATUS_OK;
}
