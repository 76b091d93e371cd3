// SPDX-License-Identifier: Apache-2.0
#include "engine/model/dummy.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/convert.h"
#include "lib/base/fnv.h"
#include "lib/base/invariant.h"
#include "lib/base/mem.h"

enum {
    DUMMY_STRIDE = 64,     // elements from the start of a row to the start of the next row
    DUMMY_STARTS = 1 << 20 // number of offsets in the buffer at which a tensor can start
};
static const float FP8_SCALE = 0x1p-12f; // the largest value, 0.07, is stored as 284
static const float INT4_SCALE = 0x1p-8f; // of codes from 0 to 15, all equally frequent

struct dummy {
    int64_t n_random, n_ones;
    uint16_t *random, *ones; // bf16; NULL if all elements are zero
    uint8_t *codes;          // the random values in FP8, divided by their scale
    float *scales;           // scales of one row of blocks, all FP8_SCALE
    enum stored_weights stored;
    int block; // rows and columns of a block with one scale; 0: one scale for the whole matrix
};

static int64_t largest(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

// Returns the next number of splitmix64.
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

// Returns the sum of four uniform numbers, which approximates a normal distribution.
static float next_value(uint64_t *state)
{
    uint64_t bits = next_random(state);
    int sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (int)(bits >> 16 * i & 0xffff);
    const float deviation = 37837; // deviation of the sum: 2 * 2^16 / sqrt(12)
    return (float)(sum - 2 * 0xffff) * (0.02f / deviation);
}

static uint8_t dummy_code(enum stored_weights stored, float value, uint64_t *state)
{
    if (stored == STORED_FP8) return e4m3_from_f32(value / FP8_SCALE);
    if (stored == STORED_INT8) return (uint8_t)(int8_t)(value / FP8_SCALE / 4); // at most 71
    return (uint8_t)next_random(state);
}

struct dummy *dummy_create(const struct model_config *c, bool zeros)
{
    struct dummy *d = mem_alloc(sizeof *d);
    d->stored = c->stored;
    d->block = c->fp8_block;
    if (zeros) return d;
    int64_t q = (int64_t)c->n_heads * c->head_size;
    int64_t columns = largest(largest(q, c->hidden), c->intermediate), rows = largest(columns, c->vocab_size);
    d->n_random = DUMMY_STARTS + rows * DUMMY_STRIDE + columns;
    d->n_ones = columns;
    d->random = mem_alloc_array((size_t)d->n_random, sizeof *d->random);
    d->ones = mem_alloc_array((size_t)d->n_ones, sizeof *d->ones);
    uint64_t state = 1;
    for (int64_t i = 0; i < d->n_random; i++)
        d->random[i] = bf16_from_f32(next_value(&state));
    for (int64_t i = 0; i < d->n_ones; i++)
        d->ones[i] = bf16_from_f32(1);
    if (c->stored == STORED_PLAIN) return d;
    d->codes = mem_alloc_array((size_t)d->n_random, sizeof *d->codes);
    for (int64_t i = 0; i < d->n_random; i++)
        d->codes[i] = dummy_code(c->stored, bf16_to_f32(d->random[i]), &state);
    d->scales = mem_alloc_array((size_t)columns, sizeof *d->scales);
    for (int64_t i = 0; i < columns; i++)
        d->scales[i] = c->stored < STORED_AWQ ? FP8_SCALE : INT4_SCALE;
    return d;
}

void dummy_free(struct dummy *d)
{
    if (!d) return;
    free(d->random);
    free(d->ones);
    free(d->codes);
    free(d->scales);
    free(d);
}

static struct matrix_view quantised_view(const struct dummy *d, struct matrix_view view)
{
    view.dtype = d->stored == STORED_FP8 ? DTYPE_FP8 : d->stored == STORED_INT8 ? DTYPE_INT8 : DTYPE_INT4_G128;
    view.int4 = (struct int4_layout){.output_stride = DUMMY_STRIDE / 4, .input_stride = 1};
    view.row_stride_bytes = DUMMY_STRIDE;
    view.scale = d->scales;
    view.scale_dtype = DTYPE_F32;
    view.scale_block = d->block;
    return view;
}

struct matrix_view dummy_view(const struct dummy *d, const char *name, int64_t rows, int64_t columns, bool quantised)
{
    struct matrix_view view = {.dtype = DTYPE_BF16, .rows = rows ? rows : 1, .columns = columns};
    view.row_stride_bytes = DUMMY_STRIDE * (int64_t)sizeof *d->random;
    if (quantised) view = quantised_view(d, view);
    if (!d->random) return view;
    const uint64_t start = fnv1a(FNV_START, name, strlen(name));
    bool norm = !rows && strstr(name, "norm.weight");
    const size_t at = (start >> 20) % DUMMY_STARTS;
    view.data = norm ? (void *)d->ones : quantised ? (void *)(d->codes + at) : (void *)(d->random + at);
    INVARIANT(norm ? columns <= d->n_ones : DUMMY_STARTS + (view.rows - 1) * DUMMY_STRIDE + columns <= d->n_random,
              "dummy tensor %s of %lld x %lld exceeds the buffer of %lld", name, (long long)rows, (long long)columns,
              (long long)(norm ? d->n_ones : d->n_random));
    return view;
}
