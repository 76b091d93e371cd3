// SPDX-License-Identifier: Apache-2.0
// The CPU backend as an object: opening and closing, tensors, and the steps that are a loop over rows.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/check.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/stream_tuning.h"
#include "lib/base/cpu_limits.h"

// ---- tensors --------------------------------------------------------------------------------------------------------

static enum status tensor_no_memory(int max_rows, int columns)
{
    return status_fail(STATUS_EXHAUSTED, "no memory for a tensor of %d x %d", max_rows, columns);
}

// Makes room for one more ACTIVATION as packed x, with its scales or sums. It is allocated with the tensors, so that
// gemms allocate nothing.
static enum status packed_x_reserve(struct cpu *cpu, int rows, int columns)
{
    size_t padded_rows = ((size_t)rows + TILE_SIDE - 1) / TILE_SIDE * TILE_SIDE;
    const enum gemm_type widest = cpu->shape.as_stored ? GEMM_BF16 : cpu->gemm_type;
    size_t bytes = cpu_int8(cpu) ? padded_rows * cpu_packed_row_bytes(cpu, columns, widest) : 0;
    size_t scales = (size_t)rows * (size_t)cpu_groups(cpu, columns);
    if (bytes > cpu->packed_x_bytes) {
        free(cpu->packed_x);
        cpu->packed_x = cpu_memory_alloc(bytes, 1, true);
        cpu->packed_x_bytes = cpu->packed_x ? bytes : 0;
    }
    if (scales > cpu->row_scales) {
        free(cpu->row_scale);
        cpu->row_scale = cpu_memory_alloc(scales, sizeof *cpu->row_scale, true);
        cpu->row_scales = cpu->row_scale ? scales : 0;
    }
    return (cpu->packed_x || !bytes) && cpu->row_scale ? STATUS_OK : tensor_no_memory(rows, columns);
}

static size_t cpu_row_bytes(const struct backend *b)
{
    const struct cpu *cpu = (const struct cpu *)b;
    return (cpu->packed_x_bytes + cpu->row_scales * sizeof *cpu->row_scale) / (size_t)cpu->shape.max_rows;
}

// Clears a row. The padding after a row is multiplied by zero weights, so it must hold numbers. Each thread clears the
// rows that it will write later, which places their pages near it.
static void tensor_clear_row(void *arg, int row, int thread)
{
    const struct tensor *t = arg;
    size_t bytes = (size_t)t->stride * (t->bf16 ? 2 : 4); // tiled: a 16th of a row tile
    memset((char *)t->data + (size_t)row * bytes, 0, bytes);
}

static enum status cpu_tensor_create(struct backend *b, enum tensor_kind kind, int max_rows, int columns,
                                     struct tensor **tensor_p)
{
    struct cpu *cpu = cpu_of(b);
    if (kind == TENSOR_ACTIVATION && (cpu_int8(cpu) || cpu->gemm_type == GEMM_INT4)) {
        enum status status = packed_x_reserve(cpu, max_rows, columns);
        if (status) return status;
    }
    struct tensor *t = mem_alloc(sizeof *t);
    *t = (struct tensor){.kind = kind, .max_rows = max_rows, .columns = columns, .stride = columns};
    int stored_rows = max_rows;
    if (kind == TENSOR_ACTIVATION && cpu_tiled(cpu) && !cpu_int8(cpu)) {
        t->bf16 = t->tiled = true;
        t->stride = (int)(cpu_packed_row_bytes(cpu, columns, GEMM_BF16) / 2);
        stored_rows = (max_rows + TILE_SIDE - 1) / TILE_SIDE * TILE_SIDE;
    } else if (kind == TENSOR_ACTIVATION) {
        // Pad to whole cache lines plus one: rows a multiple of 4 KiB apart would compete for the same cache sets.
        t->bf16 = cpu->bf16;
        int line = t->bf16 ? 32 : 16;
        t->stride = (columns + line - 1) / line * line + line;
    }
    t->data = cpu_memory_alloc((size_t)stored_rows * (size_t)t->stride, t->bf16 ? 2 : 4, false);
    if (!t->data) {
        free(t);
        return tensor_no_memory(max_rows, columns);
    }
    cpu_run(cpu, THREAD_POOL_STATIC, (int64_t)max_rows * columns, tensor_clear_row, t, stored_rows);
    t->next = cpu->tensors;
    *tensor_p = cpu->tensors = t;
    return STATUS_OK;
}

static float *cpu_tensor_data(struct backend *b, struct tensor *t)
{
    INVARIANT(t->kind == TENSOR_F32, "tensor kind %d is not F32", (int)t->kind);
    return t->data;
}

static enum status cpu_tensor_read(struct backend *b, const struct tensor *t, int rows, float *host)
{
    INVARIANT(t->kind == TENSOR_F32 && rows <= t->max_rows, "reading %d rows of a tensor of kind %d with %d", rows,
              (int)t->kind, t->max_rows);
    memcpy(host, t->data, (size_t)rows * (size_t)t->columns * sizeof *host);
    return STATUS_OK;
}

// ---- steps over rows ------------------------------------------------------------------------------------------------

// Computes the cosines and sines of one row's position.
static void rope_angles_row(void *arg, int row, int thread)
{
    struct cpu *cpu = arg;
    const struct rope_shape *rope = &cpu->shape.rope;
    const int d = cpu->shape.head_size, half = d / 2, position = cpu->batch.position[row];
    const int length = ragged_rope_length(&cpu->batch, cpu->row_sequence[row], row);
    const float theta = rope_is_scaled(rope, length) ? rope_theta(rope, length) : 0;
    float *cosine = cpu->cos_sin + (size_t)row * (size_t)d, *sine = cosine + half;
    for (int i = 0; i < half; i++) {
        const double angle = (double)rope_angle(rope, i, position, length, theta), scale = (double)rope->scale[i];
        cosine[i] = (float)(scale * cos(angle));
        sine[i] = (float)(scale * sin(angle));
    }
}

static enum status cpu_begin(struct backend *b, const struct ragged_batch *batch)
{
    struct cpu *cpu = cpu_of(b);
    enum status status = ragged_batch_check(batch, &cpu->shape);
    if (status) return status;
    cpu->batch = *batch;
    cpu_attention_begin(cpu);
    int64_t work = (int64_t)batch->n_rows * cpu->shape.head_size * 16; // a sine or cosine counts as 16 multiply-adds
    cpu_run(cpu, THREAD_POOL_STATIC, work, rope_angles_row, cpu, batch->n_rows);
    return STATUS_OK;
}

struct embedding {
    const struct cpu *cpu;
    const struct weight *table;
    const struct tensor *out;
};

static void embed_row(void *arg, int row, int thread)
{
    const struct embedding *e = arg;
    float *out = cpu_row(e->out, row);
    const float scale = e->cpu->shape.embedding_scale;
    cpu_embedding_row(e->table, e->cpu->bf16, e->cpu->batch.token[row], out);
    for (int i = 0; i < e->out->columns && scale != 0 && scale != 1; i++)
        out[i] *= scale;
}

static enum status cpu_embed(struct backend *b, struct tensor *out, const struct weight *table)
{
    struct cpu *cpu = cpu_of(b);
    INVARIANT(table->kind == WEIGHT_EMBEDDING && out->kind == TENSOR_F32 && out->columns == table->columns,
              "embedding: weight of kind %d with %lld columns into a tensor of kind %d with %d", (int)table->kind,
              (long long)table->columns, (int)out->kind, out->columns);
    struct embedding e = {cpu, table, out};
    int64_t work = 8 * (int64_t)cpu->batch.n_rows * out->columns; // a tied table is read across its panels
    cpu_run(cpu, THREAD_POOL_STATIC, work, embed_row, &e, cpu->batch.n_rows);
    return STATUS_OK;
}

struct norm {
    const struct cpu *cpu;
    struct tensor *out;
    const struct tensor *x;
    const struct weight *gain;
    float epsilon;
    const int32_t *row_index;
};

static void rmsnorm_row(void *arg, int row, int thread)
{
    const struct norm *n = arg;
    const float *x = cpu_row(n->x, n->row_index ? n->row_index[row] : row);
    n->cpu->isa->rmsnorm_row(cpu_rows_out(n->out), row, x, n->gain->vector, n->x->columns, n->epsilon);
}

static enum status cpu_rmsnorm(struct backend *b, struct tensor *out, const struct tensor *x, const struct weight *gain,
                               float epsilon, const int32_t *row_index, int rows)
{
    INVARIANT(rows <= out->max_rows && out->columns == x->columns && gain->columns == x->columns,
              "rmsnorm: %d rows of %d columns, gain of %lld, into a tensor of %d x %d", rows, x->columns,
              (long long)gain->columns, out->max_rows, out->columns);
    INVARIANT(x->kind == TENSOR_F32 && out->kind == TENSOR_ACTIVATION, "rmsnorm: from tensor kind %d to %d",
              (int)x->kind, (int)out->kind);
    struct norm n = {cpu_of(b), out, x, gain, epsilon, row_index};
    int64_t work = 4 * (int64_t)rows * x->columns; // reads and writes take longer than the multiply-adds
    cpu_run(n.cpu, THREAD_POOL_STATIC, work, rmsnorm_row, &n, rows);
    return STATUS_OK;
}

static enum status cpu_gather_rows(struct backend *b, struct tensor *out, const struct tensor *x,
                                   const int32_t *row_index, int rows)
{
    INVARIANT(rows <= out->max_rows && out->kind == x->kind && out->columns == x->columns,
              "gathering %d rows of kind %d with %d columns into a tensor of kind %d with %d x %d", rows, (int)x->kind,
              x->columns, (int)out->kind, out->max_rows, out->columns);
    const struct rows_out from = cpu_rows_out(x), to = cpu_rows_out(out);
    const int together = x->tiled ? TILE_ROW_HALVES : x->columns; // contiguous columns
    for (int row = 0; row < rows; row++)
        for (int column = 0; column < x->columns; column += together)
            memcpy(rows_out_at(to, row, column), rows_out_at(from, row_index[row], column),
                   (size_t)together * (x->bf16 ? 2 : 4));
    return STATUS_OK;
}

// ---- work of the caller on the pool ----

static void cpu_host_run(struct backend *b, thread_pool_fn fn, void *arg, int n_items)
{
    thread_pool_run(cpu_of(b)->pool, THREAD_POOL_DYNAMIC, fn, arg, n_items);
}

static int cpu_host_threads(const struct backend *b)
{
    return ((const struct cpu *)b)->threads;
}

static struct host_cores cpu_host_cores(const struct backend *b)
{
    const struct placement *placement = &((const struct cpu *)b)->placement;
    return (struct host_cores){placement->cores, placement->decided_by};
}

static uint64_t cpu_machine(const struct backend *b)
{
    return stream_machine((const struct cpu *)b);
}

// ---- opening --------------------------------------------------------------------------------------------------------

static void cpu_close(struct backend *b)
{
    struct cpu *cpu = cpu_of(b);
    prefault_stop(cpu->prefault);
    thread_pool_close(cpu->pool);
    placement_release(&cpu->placement);
    for (struct tensor *t = cpu->tensors, *next; t; t = next) {
        next = t->next;
        free(t->data);
        free(t);
    }
    for (struct weight *w = cpu->weights, *next; w; w = next) {
        next = w->next;
        cpu_weight_free(w);
    }
    packed_cache_close(cpu->packed_cache);
    rope_shape_free(&cpu->shape.rope);
    free(cpu->cos_sin);
    free(cpu->scratch);
    free(cpu->packed_x);
    free(cpu->row_scale);
    free(cpu->decoded);
    cpu_attention_free(cpu);
    free(cpu);
}

static const struct backend_ops cpu_ops = {
    .name = "cpu",
    .capabilities = {.host_memory = true, .exact_rows = true},
    .close = cpu_close,
    .tensor_create = cpu_tensor_create,
    .tensor_data = cpu_tensor_data,
    .read = cpu_tensor_read,
    .row_bytes = cpu_row_bytes,
    .weight_create = cpu_weight_create,
    .weight_gate_up = cpu_weight_gate_up,
    .weight_embedding = cpu_weight_embedding,
    .weight_vector = cpu_weight_vector,
    .packed_cache_open = cpu_packed_cache_open,
    .weights_finish = cpu_weights_finish,
    .machine = cpu_machine,
    .run_pass = backend_run_pass,
    .begin = cpu_begin,
    .embed = cpu_embed,
    .rmsnorm = cpu_rmsnorm,
    .linear = cpu_linear,
    .rope_append = cpu_rope_append,
    .activate = cpu_activate,
    .add_norm = cpu_add_norm,
    .sum_squares = cpu_sum_squares,
    .norm_whole = cpu_norm_whole,
    .scale_queries = cpu_scale_queries,
    .attention = cpu_attention,
    .attention_last = cpu_attention_last,
    .gather_rows = cpu_gather_rows,
    .importance_data = cpu_importance_data,
    .importance_read = cpu_importance_read,
    .host_run = cpu_host_run,
    .host_threads = cpu_host_threads,
    .host_cores = cpu_host_cores,
};

static enum status cpu_scratch_create(struct cpu *cpu)
{
    const struct backend_shape *shape = &cpu->shape;
    const struct gemm_blocking *blocking = cpu_blocking(cpu);
    // 16 more floats, so that threads use separate cache lines.
    cpu->scratch_floats = (size_t)blocking->rows * (size_t)blocking->panels * PANEL_COLUMNS + 16;
    cpu->cos_sin =
        cpu_memory_alloc((size_t)shape->max_rows + 1, (size_t)shape->head_size * sizeof *cpu->cos_sin, false);
    cpu->scratch = cpu_memory_alloc((size_t)cpu->threads, cpu->scratch_floats * sizeof *cpu->scratch, false);
    cpu->decoded_words = decoded_words(cpu->gemm_type, cpu->isa->tiled, blocking->rows);
    const bool decodes = cpu->decoded_words > 0;
    if (decodes)
        cpu->decoded = cpu_memory_alloc((size_t)cpu->threads, cpu->decoded_words * sizeof *cpu->decoded, false);
    if (!cpu->cos_sin || !cpu->scratch || (decodes && !cpu->decoded))
        return status_fail(STATUS_EXHAUSTED, "no memory for the working buffers of %d rows", shape->max_rows);
    const size_t d = (size_t)shape->head_size;
    float *still = cpu->cos_sin + (size_t)shape->max_rows * d;
    for (size_t i = 0; i < d; i++)
        still[i] = i < d / 2; // cosine 1, sine 0
    return STATUS_OK;
}

enum status backend_open_cpu(const struct backend_shape *shape, enum dtype dtype, int threads,
                             struct backend **backend_p)
{
    enum status status = backend_shape_check(shape, dtype);
    if (status) return status;
    if (dtype == DTYPE_FP8 || shape->kv_dtype == DTYPE_FP8)
        return status_fail(STATUS_UNSUPPORTED,
                           "fp8 weights and an fp8 KV cache need the CUDA backend: use dtype bf16 or "
                           "int8 and kv-cache-dtype bf16 or int8 on the CPU backend");
    if (threads < 0) return status_fail(STATUS_INVALID, "threads %d: must be 0 (all usable cores) or more", threads);
    struct cpu *cpu = mem_alloc(sizeof *cpu);
    static const enum gemm_type types[] = {[DTYPE_F32] = GEMM_F32,        [DTYPE_BF16] = GEMM_BF16,
                                           [DTYPE_INT8] = GEMM_INT8,      [DTYPE_INT8_G128] = GEMM_INT8_GROUPS,
                                           [DTYPE_INT4_G128] = GEMM_INT4, [DTYPE_BF12] = GEMM_BF12};
    *cpu = (struct cpu){.base = {&cpu_ops},
                        .shape = *shape,
                        .isa = cpu_isa_best(),
                        .gemm_type = types[dtype],
                        .bf16 = dtype_of_activations(dtype) == DTYPE_BF16};
    rope_shape_copy(&shape->rope, shape->head_size, shape->n_layers, &cpu->shape.rope);
    cpu->threads = threads ? threads : cpu_limits_threads(1, 1);
    cpu->prefetch = stream_candidates[stream_default(cpu->isa)];
    placement_make(cpu->threads, &cpu->placement);
    status = thread_pool_open(cpu->threads, cpu->placement.core, cpu->placement.spins, &cpu->pool);
    if (!status) status = cpu_scratch_create(cpu);
    if (!status) status = cpu_attention_create(cpu);
    if (status) {
        cpu_close(&cpu->base);
        return status;
    }
    *backend_p = &cpu->base;
    return STATUS_OK;
}
