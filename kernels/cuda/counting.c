// SPDX-License-Identifier: Apache-2.0
// Implements backend_open_counting: tensors and weights have sizes but no memory. The sizes come from memory.h, which
// also gives the CUDA backend the sizes of its allocations.
#include <stdlib.h>

#include "kernels/cuda/memory.h"
#include "lib/base/mem.h"

struct tensor {
    char unused;
};

struct weight {
    enum dtype dtype;
};

struct counting {
    struct backend base;
    struct backend_shape shape;
    enum dtype dtype;
    struct memory_gemm_need gemm;
    struct device_memory memory; // tensors, weights, KV cache
    struct device_memory all;    // result of count_allocated
    struct tensor tensor;        // stands for every tensor
    struct weight weight[DTYPE_COUNT];
};

static struct counting *counting_of(struct backend *b)
{
    return (struct counting *)b;
}

static void counting_close(struct backend *b)
{
    free(b);
}

static enum status count_tensor(struct backend *b, enum tensor_kind kind, int max_rows, int columns,
                                struct tensor **tensor_p)
{
    struct counting *c = counting_of(b);
    memory_count(&c->memory, MEMORY_ACTIVATIONS, memory_tensor_bytes(kind, max_rows, columns));
    if (kind != TENSOR_F32) memory_gemm_add_rows(&c->gemm, max_rows);
    *tensor_p = &c->tensor;
    return STATUS_OK;
}

static struct weight *count_matrix(struct counting *c, const struct memory_matrix *m)
{
    memory_count(&c->memory, MEMORY_WEIGHTS, m->data_bytes);
    memory_count(&c->memory, MEMORY_WEIGHTS, m->scale_bytes);
    return &c->weight[m->dtype];
}

static enum status count_weight(struct backend *b, const struct matrix_view *parts, int n_parts,
                                struct weight **weight_p)
{
    struct counting *c = counting_of(b);
    const struct memory_matrix m = memory_matrix(&c->shape, c->dtype, true, parts, n_parts);
    memory_gemm_add_weight(&c->gemm, &m);
    *weight_p = count_matrix(c, &m);
    return STATUS_OK;
}

static enum status count_gate_up(struct backend *b, const struct matrix_view *gate, const struct matrix_view *up,
                                 struct weight **weight_p)
{
    return count_weight(b, (struct matrix_view[]){*gate, *up}, 2, weight_p);
}

static enum status count_embedding(struct backend *b, const struct matrix_view *table, int32_t first_row,
                                   struct weight *shared_head, struct weight **weight_p)
{
    (void)first_row;
    struct counting *c = counting_of(b);
    const struct memory_matrix m = memory_table(c->dtype, table);
    *weight_p = shared_head && shared_head->dtype == m.dtype ? shared_head : count_matrix(c, &m);
    return STATUS_OK;
}

static enum status count_vector(struct backend *b, const struct matrix_view *parts, int n_parts,
                                struct weight **weight_p)
{
    struct counting *c = counting_of(b);
    memory_count(&c->memory, MEMORY_WEIGHTS, memory_vector_bytes(parts, n_parts));
    *weight_p = &c->weight[DTYPE_F32];
    return STATUS_OK;
}

static const struct device_memory *count_allocated(struct backend *b)
{
    struct counting *c = counting_of(b);
    const struct memory_gemm gemm = memory_gemm(&c->gemm);
    const struct memory_fixed fixed = memory_fixed(&c->shape);
    const struct {
        enum memory_use use;
        size_t bytes;
    } parts[] = {
        {MEMORY_GEMM, gemm.workspace},        {MEMORY_GEMM, gemm.results},           {MEMORY_GEMM, gemm.quantised},
        {MEMORY_GEMM, gemm.row_scales},       {MEMORY_GEMM, gemm.dequantised},       {MEMORY_GEMM, gemm.maxima},
        {MEMORY_ATTENTION, fixed.importance}, {MEMORY_ATTENTION, fixed.kept_scores}, {MEMORY_ATTENTION, fixed.partials},
        {MEMORY_ATTENTION, fixed.arrivals},   {MEMORY_BATCH, fixed.staging},         {MEMORY_BATCH, fixed.row_index},
        {MEMORY_BATCH, fixed.rope},           {MEMORY_BATCH, fixed.angles}};
    c->all = c->memory;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        memory_count(&c->all, parts[i].use, parts[i].bytes);
    return &c->all;
}

static enum status count_kv(struct backend *b, int n_kv_blocks)
{
    struct counting *c = counting_of(b);
    const struct memory_kv kv = memory_kv(&c->shape, n_kv_blocks);
    memory_count(&c->memory, MEMORY_KV, kv.data_bytes);
    memory_count(&c->memory, MEMORY_KV, kv.scale_bytes);
    return STATUS_OK;
}

enum status backend_open_counting(const struct backend_shape *shape, enum dtype dtype, struct backend **backend_p)
{
    static const struct backend_ops ops = {.name = "counting",
                                           .capabilities = {.reads_no_weights = true, .device_collectives = true},
                                           .close = counting_close,
                                           .tensor_create = count_tensor,
                                           .weight_create = count_weight,
                                           .weight_gate_up = count_gate_up,
                                           .weight_embedding = count_embedding,
                                           .weight_vector = count_vector,
                                           .allocated = count_allocated,
                                           .kv_create = count_kv};
    struct counting *c = mem_alloc(sizeof *c);
    *c = (struct counting){.base = {&ops}, .shape = *shape, .dtype = dtype};
    for (int d = 0; d < DTYPE_COUNT; d++)
        c->weight[d].dtype = (enum dtype)d;
    *backend_p = &c->base;
    return STATUS_OK;
}
