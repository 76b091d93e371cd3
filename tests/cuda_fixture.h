// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of the CUDA backend: backends of a small shape, FP8 matrices, and the functions of the emulator,
// which do nothing on a GPU.
#pragma once

#include "kernels/convert.h"
#include "kernels/cuda/limits.h"
#include "tests/cuda_here.h"
#include "tests/kernel_fixture.h"

#ifdef FOREPACK_CUDA_EMULATED
#include "kernels/emulator/emulator.h"
enum { EMULATED = 1 };
#else // a real GPU does not count and cannot be changed
enum { EMULATED = 0 };
static inline int emulator_launches(void)
{
    return 0;
}
static inline int emulator_graph_launches(void)
{
    return 0;
}
static inline int emulator_map_encodes(void)
{
    return 0;
}
static inline size_t emulator_memory_used(void)
{
    return 0;
}
static inline void emulator_set_capability(int major, int minor)
{
}
static inline void emulator_refuse_fp8(int from_rows, int to_rows)
{
}
static inline void emulator_refuse_fast_accum(void)
{
}
#endif

// Tests copy this shape and change the copy.
static const struct backend_shape small_shape = {.n_layers = 1,
                                                 .n_heads = 1,
                                                 .n_kv_heads = 1,
                                                 .head_size = 16,
                                                 .rope.inv_freq = (float[8]){1},
                                                 .max_rows = 64,
                                                 .max_seqs = 8,
                                                 .max_context = 64,
                                                 .n_kv_blocks = 32};

static inline struct backend *open_cuda(const struct backend_shape *shape, enum dtype dtype)
{
    struct backend *b;
    OK(backend_open("cuda", shape, dtype, 0, &b));
    return b;
}

// Returns true if the device multiplies in FP8. Otherwise prints the reason.
static inline bool fp8_is_here(void)
{
    struct backend *b;
    const enum status status = backend_open("cuda", &small_shape, DTYPE_FP8, 0, &b);
    if (status == STATUS_OK) b->ops->close(b);
    if (status == STATUS_UNSUPPORTED) printf("skipped: %s\n", status_message()); // for example on an Ampere GPU
    ck_assert(status == STATUS_OK || status == STATUS_UNSUPPORTED);
    return status == STATUS_OK;
}

// A stored FP8 matrix of n outputs.
struct fp8_matrix {
    int n, k, block; // block: FP8_BLOCK, or 0 for one scale per output
    uint8_t *bytes;
    float *scale;
};

static inline int fp8_blocks_across(int k)
{
    return (k + FP8_BLOCK - 1) / FP8_BLOCK;
}

static inline struct fp8_matrix fp8_matrix_make(int n, int k, int block)
{
    const int scales = n * fp8_blocks_across(k);
    struct fp8_matrix m = {n, k, block, mem_alloc((size_t)n * (size_t)k), random_floats((size_t)scales, 1)};
    for (int i = 0; i < n * k; i++)
        m.bytes[i] = e4m3_from_f32(random_float(300));
    for (int i = 0; i < scales; i++)
        m.scale[i] = 0.0005f * (1.5f + m.scale[i]);
    return m;
}

static inline void fp8_matrix_free(struct fp8_matrix *m)
{
    free(m->bytes);
    free(m->scale);
}

static inline struct matrix_view fp8_matrix_view(const struct fp8_matrix *m)
{
    return (struct matrix_view){.data = m->bytes,
                                .dtype = DTYPE_FP8,
                                .rows = m->n,
                                .columns = m->k,
                                .row_stride_bytes = m->k,
                                .scale = m->scale,
                                .scale_dtype = DTYPE_F32,
                                .scale_stride = m->block ? fp8_blocks_across(m->k) : 1,
                                .scale_block = m->block};
}
