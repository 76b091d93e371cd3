// SPDX-License-Identifier: Apache-2.0
// The kernels of attention (kernels/cuda: rope, attention, decode, importance) against plain loops in double, at odd
// shapes, on the emulated GPU or a real one. A row's result has the same bits with any other rows in the batch, and for
// any division of its sequence into chunks.
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>

#include "kernels/convert.h"
#include "kernels/cuda/geometry.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/schedule.h"
#include "tests/kernel_fixture.h"
#include "tests/suite.h"
#ifdef FOREPACK_CUDA_EMULATED
#include "kernels/emulator/emulator.h"
#endif

enum { MAX_SEQS = 12, LAYERS = 2, LAYER = 1 };

#define CUDA(call)                                                                                                     \
    do {                                                                                                               \
        cudaError_t error_ = (call);                                                                                   \
        ck_assert_msg(error_ == cudaSuccess, "%s: %s", #call, cudaGetErrorString(error_));                             \
    } while (0)

static double e4m3_value(uint8_t code)
{
    int exponent = code >> 3 & 15, mantissa = code & 7;
    double value = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
    return code & 0x80 ? -value : value;
}

// ---- a batch on both sides ------------------------------------------------------------------------------------------

struct shape {
    int head_size, n_kv_heads, group;
    bool fp8;
};

// A sequence: cached entries and rows.
struct seq_rows {
    int kv_len, rows;
};

struct bench {
    struct shape shape;
    int n_heads, columns; // of qkv
    struct ragged_batch batch;
    int32_t *token, *position, row_start[MAX_SEQS + 1], kv_len[MAX_SEQS], *table;
    int32_t importance_row[MAX_SEQS], importance_keys[MAX_SEQS];

    struct kv_cache kv; // on the device
    size_t kv_bytes, kv_scales;
    unsigned char *data; // the same on the host
    float *scale;
    float *qkv; // [T][columns]

    int max_spans; // see schedule.h
    bool captured; // with the padded lists of a captured pass
    cudaStream_t stream;
    void *staging_device;
    struct device_batch on_device;
    float *qkv_device;
    float *kept; // scores of importance rows, NULL without importance rows
};

static void *to_device(const void *host, size_t bytes)
{
    void *device;
    CUDA(cudaMalloc(&device, bytes ? bytes : 1));
    CUDA(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
    return device;
}

// Returns value `dim` of K or V of an entry as gemms read it. An FP8 value is without its scale, which kv_scale()
// returns.
static double kv_value(const struct bench *b, int seq, int entry, bool v, int kv_head, int dim)
{
    int block = b->table[seq * b->batch.max_blocks + entry / KV_BLOCK_TOKENS];
    size_t at = (size_t)(geometry_kv_at(&b->kv, LAYER, block, v, kv_head) + entry % KV_BLOCK_TOKENS);
    at = at * (size_t)b->shape.head_size + (size_t)dim;
    return b->shape.fp8 ? e4m3_value(b->data[at]) : (double)bf16_to_f32(((const uint16_t *)(const void *)b->data)[at]);
}

static double kv_scale(const struct bench *b, int seq, int entry, bool v, int kv_head)
{
    int block = b->table[seq * b->batch.max_blocks + entry / KV_BLOCK_TOKENS];
    return b->shape.fp8 ? (double)b->scale[geometry_kv_at(&b->kv, LAYER, block, v, kv_head) + entry % KV_BLOCK_TOKENS]
                        : 1;
}

// Fills the cache: random entries, and NaN wherever no sequence of the batch has an entry.
static void cache_fill(struct bench *b)
{
    memset(b->data, 0xff, b->kv_bytes); // NaN in both types
    memset(b->scale, 0xff, b->kv_scales * sizeof *b->scale);
    for (int s = 0; s < b->batch.n_seqs; s++)
        for (int e = 0; e < b->kv_len[s] + b->row_start[s + 1] - b->row_start[s]; e++)
            for (int v = 0; v < 2; v++)
                for (int h = 0; h < b->shape.n_kv_heads; h++) {
                    int block = b->table[s * b->batch.max_blocks + e / KV_BLOCK_TOKENS], d = b->shape.head_size;
                    size_t at = (size_t)(geometry_kv_at(&b->kv, LAYER, block, v, h) + e % KV_BLOCK_TOKENS);
                    b->scale[at] = (0.5f + random_float(0.4f)) * (v ? 0.01f : 0.02f);
                    for (size_t i = at * (size_t)d; i < (at + 1) * (size_t)d; i++)
                        if (b->shape.fp8)
                            b->data[i] = (uint8_t)(random_below(0x77) | random_below(2) << 7);
                        else
                            ((uint16_t *)(void *)b->data)[i] = bf16_from_f32(random_float(v ? 1 : 3));
                }
}

static void batch_schedule(struct bench *b)
{
    struct backend_shape shape = {.n_heads = b->n_heads,
                                  .n_kv_heads = b->shape.n_kv_heads,
                                  .max_rows = b->batch.n_rows + KV_BLOCK_TOKENS,
                                  .max_seqs = b->batch.n_seqs + 2,
                                  .max_context = b->batch.max_blocks * KV_BLOCK_TOKENS};
    size_t bytes = memory_staging_bytes(&shape);
    void *host = mem_alloc(bytes);
    CUDA(cudaMalloc(&b->staging_device, bytes));
    struct schedule_options options = {
        .group = b->shape.group, .max_spans = b->max_spans, .n_kv_heads = b->shape.n_kv_heads, .multiprocessors = 1000};
    struct schedule_counts *c = &options.captured;
    if (b->captured) {
        *c = (struct schedule_counts){.rows = b->batch.n_rows + random_below(KV_BLOCK_TOKENS + 1),
                                      .seqs = b->batch.n_seqs + random_below(3),
                                      .table_columns = b->batch.max_blocks,
                                      .max_splits = memory_max_splits(shape.max_context)};
        c->singles = c->seqs;
        c->spans = schedule_spans_most(&options, shape.max_context);
        c->tiles = schedule_tiles_most(&options, c->rows, c->seqs) + c->spans;
    }
    size_t used = schedule_make(&b->batch, &options, host, b->staging_device, &b->on_device);
    if (b->captured) b->on_device = schedule_padded(&b->on_device, c);
    CUDA(cudaMemcpy(b->staging_device, host, used, cudaMemcpyHostToDevice));
    free(host);
}

static void bench_build(struct bench *b, struct shape shape, const struct seq_rows *seqs, int n_seqs)
{
    *b = (struct bench){.shape = shape, .n_heads = shape.n_kv_heads * shape.group};
    b->columns = (b->n_heads + 2 * shape.n_kv_heads) * shape.head_size;
    int rows = 0, n_blocks = 0, max_blocks = 0;
    for (int s = 0; s < n_seqs; s++) {
        int blocks = (seqs[s].kv_len + seqs[s].rows + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
        b->row_start[s] = rows;
        b->kv_len[s] = seqs[s].kv_len;
        rows += seqs[s].rows;
        n_blocks += blocks;
        if (blocks > max_blocks) max_blocks = blocks;
    }
    b->row_start[n_seqs] = rows;
    b->token = mem_alloc_array((size_t)rows, sizeof *b->token);
    b->position = mem_alloc_array((size_t)rows, sizeof *b->position);
    b->table = mem_alloc_array((size_t)(n_seqs * max_blocks), sizeof *b->table);
    int32_t *order = mem_alloc_array((size_t)n_blocks, sizeof *order);
    random_order(order, n_blocks);
    for (int s = 0, next = 0; s < n_seqs; s++)
        for (int i = 0; i < (seqs[s].kv_len + seqs[s].rows + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS; i++)
            b->table[s * max_blocks + i] = order[next++];
    free(order);
    b->batch = (struct ragged_batch){.n_rows = rows,
                                     .token = b->token,
                                     .position = b->position,
                                     .n_seqs = n_seqs,
                                     .row_start = b->row_start,
                                     .kv_len = b->kv_len,
                                     .block_table = b->table,
                                     .max_blocks = max_blocks,
                                     .importance_row = b->importance_row,
                                     .importance_keys = b->importance_keys};

    b->kv = (struct kv_cache){.fp8 = shape.fp8,
                              .n_layers = LAYERS,
                              .n_blocks = n_blocks,
                              .n_kv_heads = shape.n_kv_heads,
                              .head_size = shape.head_size};
    b->kv_scales = (size_t)geometry_kv_at(&b->kv, LAYERS, 0, false, 0);
    b->kv_bytes = b->kv_scales * (size_t)shape.head_size * (shape.fp8 ? 1 : 2);
    b->data = mem_alloc(b->kv_bytes);
    b->scale = mem_alloc_array(b->kv_scales, sizeof *b->scale);
    b->qkv = random_floats((size_t)rows * (size_t)b->columns, 2);
    CUDA(cudaStreamCreate(&b->stream));
}

// Copies everything to the device.
static void bench_upload(struct bench *b)
{
    b->kv.data = to_device(b->data, b->kv_bytes);
    b->kv.scale = b->shape.fp8 ? to_device(b->scale, b->kv_scales * sizeof *b->scale) : NULL;
    b->qkv_device = to_device(b->qkv, (size_t)b->batch.n_rows * (size_t)b->columns * sizeof *b->qkv);
    batch_schedule(b);
}

static void bench_free(struct bench *b)
{
    CUDA(cudaStreamDestroy(b->stream));
    CUDA(cudaFree(b->kv.data));
    CUDA(cudaFree(b->kv.scale));
    CUDA(cudaFree(b->qkv_device));
    CUDA(cudaFree(b->staging_device));
    free(b->token);
    free(b->position);
    free(b->table);
    free(b->data);
    free(b->scale);
    free(b->qkv);
}

// ---- attention ------------------------------------------------------------------------------------------------------

// Computes the weights 2^(score - M) of the first n entries. Returns their sum.
static double slow_weights(const struct bench *b, int seq, const float *q, int kv_head, int n, double *weight)
{
    int d = b->shape.head_size;
    double largest = -INFINITY, sum = 0;
    for (int e = 0; e < n; e++) {
        double product = 0;
        for (int i = 0; i < d; i++)
            product += (double)bf16_to_f32(bf16_from_f32(q[i])) * kv_value(b, seq, e, false, kv_head, i);
        weight[e] = product * kv_scale(b, seq, e, false, kv_head) / sqrt(d) * M_LOG2E;
        largest = fmax(largest, weight[e]);
    }
    for (int e = 0; e < n; e++)
        sum += weight[e] = exp2(weight[e] - rint(largest));
    return sum;
}

// `room` receives the tolerance: the rounding of the result, and weights near a rounding boundary.
static void slow_attention(const struct bench *b, double *out, double *room)
{
    int d = b->shape.head_size;
    double *weight = mem_alloc_array((size_t)b->batch.max_blocks * KV_BLOCK_TOKENS, sizeof *weight);
    for (int s = 0; s < b->batch.n_seqs; s++)
        for (int t = b->row_start[s]; t < b->row_start[s + 1]; t++)
            for (int h = 0; h < b->n_heads; h++) {
                int n = b->kv_len[s] + t - b->row_start[s] + 1, kv_head = h / b->shape.group;
                double sum = slow_weights(b, s, b->qkv + (size_t)t * (size_t)b->columns + h * d, kv_head, n, weight);
                for (int e = 0; e < n; e++)
                    weight[e] =
                        (double)bf16_to_f32(bf16_from_f32((float)(weight[e] * kv_scale(b, s, e, true, kv_head))));
                for (int i = 0; i < d; i++) {
                    double total = 0, largest = 0, all = 0;
                    for (int e = 0; e < n; e++) {
                        double part = weight[e] * kv_value(b, s, e, true, kv_head, i);
                        total += part, all += fabs(part), largest = fmax(largest, fabs(part));
                    }
                    size_t at = ((size_t)t * (size_t)b->n_heads + (size_t)h) * (size_t)d + (size_t)i;
                    out[at] = total / sum;
                    room[at] = 0x1p-8 * fabs(out[at]) + (0x1p-7 * largest + 1e-5 * all) / sum;
                }
            }
    free(weight);
}

// Runs attention with scratch and output of their exact sizes. Returns the output, [T][stride] bf16. Launches
// `more_splits` splits more than needed, as a captured pass does. With `rope` attention rotates q and writes K and V
// itself.
static uint16_t *run_attention_with(struct bench *b, int stride, int more_splits, const struct rope *rope)
{
    size_t out_bytes = (size_t)b->batch.n_rows * (size_t)stride * 2;
    uint16_t *out = mem_alloc(out_bytes);
    void *out_device = to_device(out, out_bytes);
    struct device_batch *d = &b->on_device;
    d->max_splits += more_splits;
    size_t floats = memory_partials_bytes(d->n_single, d->max_splits, b->n_heads, b->shape.head_size) / sizeof(float);
    size_t spans = (size_t)(d->n_spans * b->shape.n_kv_heads * TILE_ROW_HEADS) * (size_t)(b->shape.head_size + 2);
    if (spans > floats) floats = spans;
    const size_t counters = memory_arrivals_bytes(d->n_single, b->n_heads) / sizeof(uint32_t);
    uint32_t *arrivals = mem_alloc_array(counters + 1, sizeof *arrivals);
    struct attention_scratch scratch = {.arrivals = to_device(arrivals, counters * sizeof *arrivals), .kept = b->kept};
    CUDA(cudaMalloc((void **)&scratch.partials, (floats + 1) * sizeof *scratch.partials));
    CUDA(attention_map_make(&b->kv, &scratch.map));
    if (rope)
        CUDA(launch_attention_single(b->stream, &b->kv, d, LAYER, out_device, stride, b->qkv_device, b->n_heads,
                                     &scratch, rope));
    else
        CUDA(launch_attention(b->stream, &b->kv, d, LAYER, out_device, stride, b->qkv_device, b->n_heads, &scratch));
    CUDA(cudaStreamSynchronize(b->stream));
    CUDA(cudaMemcpy(out, out_device, out_bytes, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(arrivals, scratch.arrivals, counters * sizeof *arrivals, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < counters; i++)
        ck_assert_msg(!arrivals[i], "counter %zu is left at %u", i, arrivals[i]);
    d->max_splits -= more_splits;
    CUDA(cudaFree(scratch.partials));
    CUDA(cudaFree(scratch.arrivals));
    CUDA(cudaFree(out_device));
    free(arrivals);
    return out;
}

static uint16_t *run_attention(struct bench *b, int stride, int more_splits)
{
    return run_attention_with(b, stride, more_splits, NULL);
}

static int stride_of(const struct bench *b)
{
    return (b->n_heads * b->shape.head_size + 15) / 16 * 16;
}

// Returns true if the tiles of the shape run by wgmma. Such tiles may be divided into spans.
static bool has_spans(const struct bench *b)
{
    int device, major;
    CUDA(cudaGetDevice(&device));
    CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    return geometry_wgmma(major, &b->kv);
}

// With `max_spans` some tiles must be divided if the device supports that.
static void check_attention_in(struct shape shape, const struct seq_rows *seqs, int n_seqs, int max_spans)
{
    struct bench b;
    bench_build(&b, shape, seqs, n_seqs);
    cache_fill(&b);
    b.max_spans = has_spans(&b) ? max_spans : 0;
    b.captured = random_below(2);
    bench_upload(&b);
    ck_assert(!b.max_spans == !b.on_device.n_spans);
    int n = b.n_heads * shape.head_size, stride = stride_of(&b);
    double *expected = mem_alloc_array((size_t)b.batch.n_rows * (size_t)n, sizeof *expected);
    double *room = mem_alloc_array((size_t)b.batch.n_rows * (size_t)n, sizeof *room);
    slow_attention(&b, expected, room);
    uint16_t *out = run_attention(&b, stride, random_below(3));
    for (int t = 0; t < b.batch.n_rows; t++)
        for (int i = 0; i < n; i++) {
            size_t at = (size_t)t * (size_t)n + (size_t)i;
            double x = (double)bf16_to_f32(out[t * stride + i]), y = expected[at];
            ck_assert_msg(fabs(x - y) <= room[at], "D %d, %d KV heads, group %d%s: row %d, %d: %g, expected %g",
                          shape.head_size, shape.n_kv_heads, shape.group, shape.fp8 ? ", fp8" : "", t, i, x, y);
        }
    free(out);
    free(expected);
    free(room);
    bench_free(&b);
}

static void check_attention(struct shape shape, const struct seq_rows *seqs, int n_seqs)
{
    check_attention_in(shape, seqs, n_seqs, 0);
}

// Sets the generation of the emulated GPU, so that the kernels of both generations are tested.
static void device_set_hopper(bool hopper)
{
#ifdef FOREPACK_CUDA_EMULATED
    emulator_set_capability(hopper ? 9 : 8, 0);
#else
    (void)hopper;
#endif
}

static const struct seq_rows mixed[] = {{0, 1}, {5, 2}, {300, 17}, {0, 65}, {300, 1},
                                        {5, 1}, {0, 2}, {700, 1},  {5, 200}};
enum { N_MIXED = sizeof mixed / sizeof *mixed };

START_TEST(attention_matches_plain_loops)
{
    static const struct shape shapes[] = {
        {128, 2, 4, false}, {128, 1, 1, false}, {64, 2, 2, false}, {64, 1, 8, false}, {16, 2, 4, false},
        {8, 3, 1, false},   {24, 1, 7, false},  {80, 1, 2, false}, {32, 1, 4, false}, {256, 1, 1, false},
        {96, 1, 20, false}, {128, 1, 4, true},  {8, 2, 2, true},   {24, 1, 3, true},  {80, 1, 8, true},
        {256, 1, 1, true},  {64, 1, 2, true},   {16, 1, 4, false}, {128, 1, 2, true}, {8, 1, 130, false},
    };
    device_set_hopper(_i != 1 && _i != 2 && _i != 18);
    check_attention(shapes[_i], mixed, shapes[_i].head_size * shapes[_i].group > 1000 ? N_MIXED - 1 : N_MIXED);
    device_set_hopper(true);
}
END_TEST

// Rows before and after the end of the second span, and rows without entries in the last span of their tile.
static const struct seq_rows long_prompts[] = {{2 * TILE_SPAN - 6, 8}, {3, 1}, {30, 20}};

START_TEST(spans_match_plain_loops)
{
    check_attention_in((struct shape){64, 1, 9, false}, long_prompts, 3, 8);
    static const struct seq_rows two_spans[] = {{TILE_SPAN - 3, 7}};
    check_attention((struct shape){128, 2, 5, true}, two_spans, 1);
    check_attention((struct shape){128, 1, 1, false}, two_spans, 1);
}
END_TEST

// Sets V of the first sequence's second span to the negative of the first span, except for its last entries. The values
// cover 20 powers of two. With equal weights the sums are then mostly rounding errors, which show the order of the
// additions.
static void values_cancel(struct bench *b)
{
    const int d = b->shape.head_size;
    memset(b->qkv, 0, (size_t)b->batch.n_rows * (size_t)b->columns * sizeof *b->qkv);
    for (int e = 0; e < TILE_SPAN - 16; e++)
        for (int i = 0; i < d; i++) {
            uint16_t value = bf16_from_f32(ldexpf(random_float(1), random_below(20)));
            for (int span = 0; span < 2; span++) {
                int entry = e + span * TILE_SPAN, block = b->table[entry / KV_BLOCK_TOKENS];
                int64_t at = geometry_kv_at(&b->kv, LAYER, block, true, 0) + entry % KV_BLOCK_TOKENS;
                ((uint16_t *)(void *)b->data)[at * d + i] = span ? value ^ 0x8000 : value;
            }
        }
}

// The bits are the same with one thread block for all spans of a tile and with one for each, also in a captured pass.
START_TEST(separate_spans_have_the_same_bits)
{
    struct bench b;
    bench_build(&b, (struct shape){64, 1, 9, false}, long_prompts, 3);
    cache_fill(&b);
    values_cancel(&b);
    int stride = stride_of(&b);
    uint16_t *out[3];
    for (int apart = 0; apart < 3; apart++) {
        b.max_spans = has_spans(&b) && apart ? 3 : 0;
        b.captured = apart == 2;
        bench_upload(&b);
        ck_assert_int_eq(b.on_device.n_spans, b.max_spans);
        out[apart] = run_attention(&b, stride, 0);
        CUDA(cudaFree(b.kv.data));
        CUDA(cudaFree(b.qkv_device));
        CUDA(cudaFree(b.staging_device));
    }
    for (int i = 0; i < b.batch.n_rows * stride; i++) {
        if (i % stride >= b.n_heads * 64) continue;
        ck_assert_msg(out[0][i] == out[1][i], "row %d, column %d: %04x, in spans %04x", i / stride, i % stride,
                      out[0][i], out[1][i]);
        ck_assert_msg(out[0][i] == out[2][i], "row %d, column %d: %04x, captured %04x", i / stride, i % stride,
                      out[0][i], out[2][i]);
    }
    for (int i = 0; i < 3; i++)
        free(out[i]);
    b.kv.data = NULL;
    b.qkv_device = NULL;
    b.staging_device = NULL;
    bench_free(&b);
}
END_TEST

// Gives K (v false) or V of an entry the scale NaN, as rope does if a value is not finite. Rows from the entry on
// become NaN, and earlier rows keep their bits.
static void check_broken_entry(struct shape shape, bool v)
{
    enum { BEFORE = 70, ROWS = 200, ENTRY = 150 };
    static const struct seq_rows seqs[] = {{BEFORE, ROWS}, {3, 9}};
    struct bench b;
    bench_build(&b, shape, seqs, 2);
    cache_fill(&b);
    const int stride = stride_of(&b), n = b.n_heads * shape.head_size;
    uint16_t *out[2];
    for (int broken = 0; broken < 2; broken++) {
        for (int h = 0; broken && h < shape.n_kv_heads; h++)
            b.scale[geometry_kv_at(&b.kv, LAYER, b.table[ENTRY / KV_BLOCK_TOKENS], v, h) + ENTRY % KV_BLOCK_TOKENS] =
                NAN;
        bench_upload(&b);
        out[broken] = run_attention(&b, stride, 0);
        CUDA(cudaFree(b.kv.data));
        CUDA(cudaFree(b.kv.scale));
        CUDA(cudaFree(b.qkv_device));
        CUDA(cudaFree(b.staging_device));
    }
    for (int t = 0; t < b.batch.n_rows; t++)
        for (int i = 0; i < n; i++) {
            const uint16_t whole = out[0][t * stride + i], broken = out[1][t * stride + i];
            const bool sees = t >= ENTRY - BEFORE && t < ROWS;
            ck_assert_msg(sees ? isnan(bf16_to_f32(broken)) : broken == whole, "D %d, %s: row %d, %d: %04x, was %04x",
                          shape.head_size, v ? "V" : "K", t, i, broken, whole);
        }
    free(out[0]);
    free(out[1]);
    b.kv.data = NULL;
    b.kv.scale = NULL;
    b.qkv_device = NULL;
    b.staging_device = NULL;
    bench_free(&b);
}

START_TEST(a_broken_entry_changes_only_rows_that_see_it)
{
    for (int v = 0; v < 2; v++) {
        check_broken_entry((struct shape){128, 2, 2, true}, v);
        check_broken_entry((struct shape){64, 1, 1, true}, v);
        check_broken_entry((struct shape){80, 1, 2, true}, v);
    }
}
END_TEST

// More entries than SPLITS_MAX of the shortest splits hold.
START_TEST(long_single_rows)
{
    static const struct seq_rows seqs[] = {{33000, 1}, {255, 1}, {256, 1}};
    check_attention((struct shape){8, 1, 2, false}, seqs, 3);
    check_attention((struct shape){8, 1, 2, true}, seqs, 3);
}
END_TEST

// Rows that are in both `whole` and `part` have the same bits. Both begin with the same sequence; `part` has later rows
// of it, after more entries.
static void check_same_rows(struct shape shape, const struct seq_rows *whole, int n_whole, const struct seq_rows *part,
                            int n_part)
{
    struct bench a, b;
    bench_build(&a, shape, whole, n_whole);
    cache_fill(&a);
    bench_build(&b, shape, part, n_part);
    cache_fill(&b);
    int skipped = part[0].kv_len - whole[0].kv_len, rows = part[0].rows, d = shape.head_size;
    for (int e = 0; e < part[0].kv_len + rows; e++)
        for (int v = 0; v < 2; v++)
            for (int h = 0; h < shape.n_kv_heads; h++) {
                size_t bytes = (size_t)d * (shape.fp8 ? 1 : 2), in_block = (size_t)(e % KV_BLOCK_TOKENS);
                size_t from = (size_t)geometry_kv_at(&a.kv, LAYER, a.table[e / KV_BLOCK_TOKENS], v, h) + in_block;
                size_t to = (size_t)geometry_kv_at(&b.kv, LAYER, b.table[e / KV_BLOCK_TOKENS], v, h) + in_block;
                memcpy(b.data + to * bytes, a.data + from * bytes, bytes);
                b.scale[to] = a.scale[from];
            }
    memcpy(b.qkv, a.qkv + skipped * a.columns, (size_t)(rows * a.columns) * sizeof *b.qkv);
    bench_upload(&a);
    bench_upload(&b);
    int stride = stride_of(&a);
    uint16_t *of_whole = run_attention(&a, stride, 0), *of_part = run_attention(&b, stride, 2);
    for (int i = 0; i < rows * stride; i++)
        if (i % stride < a.n_heads * d)
            ck_assert_msg(of_whole[skipped * stride + i] == of_part[i], "row %d, column %d: %g, otherwise %g",
                          i / stride, i % stride, (double)bf16_to_f32(of_part[i]),
                          (double)bf16_to_f32(of_whole[skipped * stride + i]));
    free(of_whole);
    free(of_part);
    bench_free(&a);
    bench_free(&b);
}

START_TEST(rows_do_not_depend_on_their_neighbours)
{
    static const struct shape shapes[] = {{64, 1, 4, false}, {128, 1, 2, true}, {16, 2, 3, false}};
    struct shape shape = shapes[_i];
    // Prefilled in one pass with other sequences, then in chunks.
    static const struct seq_rows whole[] = {{37, 150}, {300, 9}, {0, 70}, {100, 1}};
    static const struct seq_rows chunks[][2] = {{{37, 2}, {5, 3}}, {{39, 64}, {5, 2}}, {{103, 84}, {8, 40}}};
    for (int i = 0; i < 3; i++)
        check_same_rows(shape, whole, 4, chunks[i], 2);
    static const struct seq_rows alone[] = {{700, 1}}, among[] = {{700, 1}, {3, 1}, {1500, 1}, {7, 30}, {0, 1}};
    check_same_rows(shape, among, 5, alone, 1);
}
END_TEST

// ---- RoPE -----------------------------------------------------------------------------------------------------------

static void slow_rope(const float *head, const float *gain, double epsilon, int position, const float *inv_freq, int d,
                      double *out)
{
    double scale = 1, sum = 0;
    for (int i = 0; i < d; i++)
        sum += (double)head[i] * (double)head[i];
    if (gain) scale = 1 / sqrt(sum / d + epsilon);
    for (int i = 0; i < d / 2; i++) {
        double x = (double)head[i] * scale * (gain ? (double)gain[i] : 1);
        double y = (double)head[i + d / 2] * scale * (gain ? (double)gain[i + d / 2] : 1);
        double angle = (double)((float)position * inv_freq[i]);
        out[i] = x * cos(angle) - y * sin(angle);
        out[i + d / 2] = y * cos(angle) + x * sin(angle);
    }
}

// Gains of the norms of heads, and the angles of all rows of a batch.
struct rotation {
    float *inv_freq, *gain[2]; // on the host
    float *inv_freq_device, *scale_device, *angles_device, *gain_device[2];
    struct rope rope;
};

static void rotation_make(struct rotation *r, const struct bench *b, bool gains)
{
    const int d = b->shape.head_size, rows = b->batch.n_rows;
    *r = (struct rotation){.inv_freq = mem_alloc_array((size_t)d / 2, sizeof *r->inv_freq)};
    for (int i = 0; i < d / 2; i++)
        r->inv_freq[i] = powf(500000, -2.f * (float)i / (float)d);
    r->inv_freq_device = to_device(r->inv_freq, (size_t)d / 2 * sizeof *r->inv_freq);
    float *ones = mem_alloc_array((size_t)d / 2, sizeof *ones);
    for (int i = 0; i < d / 2; i++)
        ones[i] = 1;
    r->scale_device = to_device(ones, (size_t)d / 2 * sizeof *ones);
    free(ones);
    for (int i = 0; i < 2; i++) {
        r->gain[i] = random_floats((size_t)d, 2);
        if (gains) r->gain_device[i] = to_device(r->gain[i], (size_t)d * sizeof **r->gain);
    }
    CUDA(cudaMalloc((void **)&r->angles_device, (size_t)(rows * d) * sizeof *r->angles_device));
    const struct rope_shape shape = {.inv_freq = r->inv_freq_device, .scale = r->scale_device};
    CUDA(launch_rope_angles(b->stream, r->angles_device, &shape, &b->on_device, d));
    r->rope = (struct rope){.q_gain = r->gain_device[0],
                            .k_gain = r->gain_device[1],
                            .epsilon = 1e-5f,
                            .angles = r->angles_device,
                            .angle_stride = d};
}

static void rotation_free(struct rotation *r)
{
    CUDA(cudaFree(r->inv_freq_device));
    CUDA(cudaFree(r->scale_device));
    CUDA(cudaFree(r->angles_device));
    for (int i = 0; i < 2; i++) {
        CUDA(cudaFree(r->gain_device[i]));
        free(r->gain[i]);
    }
    free(r->inv_freq);
}

static void read_cache(struct bench *b)
{
    CUDA(cudaMemcpy(b->data, b->kv.data, b->kv_bytes, cudaMemcpyDeviceToHost));
    if (b->shape.fp8) CUDA(cudaMemcpy(b->scale, b->kv.scale, b->kv_scales * sizeof *b->scale, cudaMemcpyDeviceToHost));
}

static void check_rope(int d, int n_kv_heads, int group, bool fp8, bool gains)
{
    static const struct seq_rows seqs[] = {{0, 3}, {40, 1}, {7, 12}};
    struct bench b;
    bench_build(&b, (struct shape){d, n_kv_heads, group, fp8}, seqs, 3);
    for (int t = 0; t < b.batch.n_rows;
         t++) // the last row has the largest position, where the rounding of the angle matters
        b.position[t] = t < 3 ? t : 131071 - 3 * (b.batch.n_rows - 1 - t);
    int broken = 4 * b.columns + b.n_heads * d + 1; // in K of the single row
    if (fp8) b.qkv[broken] = INFINITY;
    bench_upload(&b);
    struct rotation r;
    rotation_make(&r, &b, gains);
    CUDA(launch_rope_append(b.stream, &b.kv, &b.on_device, LAYER, b.qkv_device, b.n_heads, &r.rope));
    CUDA(cudaStreamSynchronize(b.stream));
    float *after = mem_alloc_array((size_t)b.batch.n_rows * (size_t)b.columns, sizeof *after);
    CUDA(cudaMemcpy(after, b.qkv_device, (size_t)b.batch.n_rows * (size_t)b.columns * sizeof *after,
                    cudaMemcpyDeviceToHost));
    read_cache(&b);

    double *head = mem_alloc_array((size_t)d, sizeof *head);
    for (int s = 0; s < b.batch.n_seqs; s++)
        for (int t = b.row_start[s]; t < b.row_start[s + 1]; t++)
            for (int h = 0; h < b.n_heads + 2 * n_kv_heads; h++) {
                const float *from = b.qkv + t * b.columns + h * d;
                bool is_v = h >= b.n_heads + n_kv_heads, is_q = h < b.n_heads;
                for (int i = 0; i < d; i++)
                    head[i] = (double)from[i];
                if (!is_v)
                    slow_rope(from, gains ? r.gain[!is_q] : NULL, (double)1e-5f, b.position[t], r.inv_freq, d, head);
                double largest = 0;
                for (int i = 0; i < d; i++)
                    largest = fmax(largest, fabs(head[i]));
                int kv_head = is_v ? h - b.n_heads - n_kv_heads : h - b.n_heads;
                int entry = b.kv_len[s] + t - b.row_start[s];
                double scale = is_q ? 1 : kv_scale(&b, s, entry, is_v, kv_head);
                if (!is_q && from <= b.qkv + broken && b.qkv + broken < from + d && fp8) {
                    ck_assert(isnan(scale));
                    for (int i = 0; i < d; i++)
                        ck_assert(kv_value(&b, s, entry, is_v, kv_head, i) == 0);
                    continue;
                }
                if (!is_q && fp8) ck_assert_double_eq_tol(scale, largest / 448, 1e-6 * largest);
                for (int i = 0; i < d; i++) {
                    double x = is_q ? (double)after[t * b.columns + h * d + i]
                                    : scale * kv_value(&b, s, entry, is_v, kv_head, i);
                    // f32: sums of two terms, sin and cos to 1e-7. bf16: half of 2^-7. e4m3: half of 2^-3, or of the
                    // smallest step.
                    double room = 4e-7 * largest;
                    if (!is_q) room += fp8 ? fmax(0x1p-4 * fabs(head[i]), 0x1p-10 * scale) : 0x1p-8 * fabs(head[i]);
                    ck_assert_msg(fabs(x - head[i]) <= room * 1.001,
                                  "D %d%s, row %d (position %d), head %d, dim %d: %.9g, expected %.9g", d,
                                  fp8 ? ", fp8" : "", t, b.position[t], h, i, x, head[i]);
                }
            }
    free(head);
    free(after);
    rotation_free(&r);
    bench_free(&b);
}

START_TEST(rope_matches_plain_loops)
{
    static const int sizes[] = {8, 16, 24, 64, 80, 128, 256};
    for (int i = 0; i < 7; i++)
        for (int fp8 = 0; fp8 < 2; fp8++)
            for (int gains = 0; gains < 2; gains++)
                check_rope(sizes[i], 1 + i % 2, 1 + i % 3, fp8, gains);
}
END_TEST

// Rotation within attention gives the same results and the same cache as launch_rope_append followed by attention.
static void check_rope_within(struct shape shape, bool gains, const struct seq_rows *seqs, int n_seqs)
{
    struct bench apart, within;
    bench_build(&apart, shape, seqs, n_seqs);
    cache_fill(&apart);
    for (int t = 0; t < apart.batch.n_rows; t++)
        apart.position[t] = 131071 - 1000 * t;
    for (int s = 0; s < n_seqs; s++) // the newest entry is not there yet
        for (int v = 0; v < 2; v++)
            for (int h = 0; h < shape.n_kv_heads; h++) {
                const int block = apart.table[s * apart.batch.max_blocks + seqs[s].kv_len / KV_BLOCK_TOKENS];
                const size_t at =
                    (size_t)geometry_kv_at(&apart.kv, LAYER, block, v, h) + (size_t)(seqs[s].kv_len % KV_BLOCK_TOKENS);
                const size_t bytes = (size_t)shape.head_size * (shape.fp8 ? 1 : 2);
                memset(apart.data + at * bytes, 0xff, bytes);
                apart.scale[at] = NAN;
            }
    bench_upload(&apart);
    within = apart;
    within.kv.data = to_device(apart.data, apart.kv_bytes);
    within.kv.scale = shape.fp8 ? to_device(apart.scale, apart.kv_scales * sizeof *apart.scale) : NULL;
    within.data = mem_alloc(apart.kv_bytes);
    within.scale = mem_alloc_array(apart.kv_scales, sizeof *within.scale);
    within.qkv_device = to_device(apart.qkv, (size_t)apart.batch.n_rows * (size_t)apart.columns * sizeof *apart.qkv);
    struct rotation r;
    rotation_make(&r, &apart, gains);
    CUDA(
        launch_rope_append(apart.stream, &apart.kv, &apart.on_device, LAYER, apart.qkv_device, apart.n_heads, &r.rope));
    const int stride = stride_of(&apart);
    uint16_t *want = run_attention(&apart, stride, 0), *got = run_attention_with(&within, stride, 2, &r.rope);
    for (int i = 0; i < apart.batch.n_rows * stride; i++)
        ck_assert_msg(want[i] == got[i], "D %d, group %d%s: row %d, column %d: %g, otherwise %g", shape.head_size,
                      shape.group, shape.fp8 ? ", fp8" : "", i / stride, i % stride, (double)bf16_to_f32(got[i]),
                      (double)bf16_to_f32(want[i]));
    read_cache(&apart);
    read_cache(&within);
    ck_assert_mem_eq(apart.data, within.data, apart.kv_bytes);
    if (shape.fp8) ck_assert_mem_eq(apart.scale, within.scale, apart.kv_scales * sizeof *apart.scale);
    free(want), free(got);
    rotation_free(&r);
    CUDA(cudaFree(within.kv.data));
    CUDA(cudaFree(within.kv.scale));
    CUDA(cudaFree(within.qkv_device));
    free(within.data), free(within.scale);
    bench_free(&apart);
}

START_TEST(rope_within_attention_is_the_same)
{
    static const struct seq_rows seqs[] = {{0, 1}, {5, 1}, {255, 1}, {256, 1}, {700, 1}};
    static const struct {
        int d, n_kv_heads, group;
    } shapes[] = {{8, 2, 1}, {64, 1, 4}, {80, 2, 3}, {128, 1, 20}, {256, 1, 2}};
    const struct shape shape = {shapes[_i].d, shapes[_i].n_kv_heads, shapes[_i].group, false};
    const struct shape fp8 = {shape.head_size, shape.n_kv_heads, shape.group, true};
    for (int gains = 0; gains < 2; gains++) {
        check_rope_within(shape, gains, seqs, 5);
        check_rope_within(fp8, gains, seqs, 5);
    }
}
END_TEST

// ---- importance -----------------------------------------------------------------------------------------------------

static void slow_importance_of(const struct bench *b, float *maxima)
{
    int d = b->shape.head_size, reach = b->batch.smoothing_window / 2;
    double *weight = mem_alloc_array((size_t)b->batch.max_blocks * KV_BLOCK_TOKENS, sizeof *weight);
    for (int p = 0, s = 0; p < b->batch.n_importance_rows; maxima += b->importance_keys[p++]) {
        while (b->importance_row[p] >= b->row_start[s + 1])
            s++;
        for (int h = 0; h < b->n_heads; h++) {
            const float *q = b->qkv + b->importance_row[p] * b->columns + h * d;
            int n = b->importance_keys[p];
            double sum = slow_weights(b, s, q, h / b->shape.group, n, weight);
            for (int j = 0; j < n; j++) {
                double around = 0;
                for (int i = j - reach; i <= j + reach; i++)
                    around += i >= 0 && i < n ? weight[i] : 0;
                maxima[j] = fmaxf(maxima[j], (float)(around / sum / b->batch.smoothing_window));
            }
        }
    }
    free(weight);
}

static void check_importance(struct shape shape, int window)
{
    static const struct seq_rows seqs[] = {{0, 5}, {300, 1}, {9, 1}, {299, 40}, {700, 1}, {514, 1}};
    struct bench b;
    bench_build(&b, shape, seqs, 6);
    cache_fill(&b);
    b.batch.smoothing_window = window;
    // Two rows of one sequence, prompts that end before the row, within a split and with one, a prompt of one key.
    static const int rows[] = {4, 5, 7, 46, 47, 48}, keys[] = {1, 301, 17, 339, 513, 512};
    enum { N = 6 };
    b.batch.n_importance_rows = N;
    size_t kept = 0;
    for (int p = 0; p < N; p++) {
        b.importance_row[p] = rows[p], b.importance_keys[p] = keys[p];
        kept += (size_t)cuda_kept_blocks(keys[p]) * KV_BLOCK_TOKENS * (size_t)b.n_heads * sizeof *b.kept;
    }
    bench_upload(&b);
    CUDA(cudaMalloc((void **)&b.kept, kept));
    CUDA(cudaMemset(b.kept, 0xff, kept));
    free(run_attention(&b, stride_of(&b), random_below(3)));
    size_t n = (size_t)ragged_importance_size(&b.batch);
    float *expected = mem_alloc_array(n, sizeof *expected), *maxima = mem_alloc_array(n, sizeof *maxima);
    for (size_t i = 0; i < n; i++) // maxima of earlier layers
        expected[i] = maxima[i] = i % 3 ? 0 : (float)random_below(100) / 5000;
    slow_importance_of(&b, expected);
    float *maxima_device = to_device(maxima, n * sizeof *maxima);
    CUDA(launch_importance(b.stream, &b.kv, &b.on_device, LAYER, maxima_device, b.qkv_device, b.n_heads, b.kept));
    CUDA(cudaStreamSynchronize(b.stream));
    CUDA(cudaMemcpy(maxima, maxima_device, n * sizeof *maxima, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < n; i++)
        ck_assert_msg(fabsf(maxima[i] - expected[i]) <= 1e-5f * expected[i] + 1e-12f,
                      "D %d, group %d, window %d%s: %zu: %g, expected %g", shape.head_size, shape.group, window,
                      shape.fp8 ? ", fp8" : "", i, (double)maxima[i], (double)expected[i]);
    CUDA(cudaFree(b.kept));
    CUDA(cudaFree(maxima_device));
    free(expected);
    free(maxima);
    bench_free(&b);
}

START_TEST(importance_matches_plain_loops)
{
    static const int windows[] = {1, 13, 401};
    for (int i = 0; i < 3; i++) {
        check_importance((struct shape){64, 2, 4, false}, windows[i]);
        check_importance((struct shape){24, 1, 19, true}, windows[i]);
        check_importance((struct shape){128, 1, 2, false}, windows[i]);
        check_importance((struct shape){256, 1, 1, true}, windows[i]);
    }
}
END_TEST

static bool device_is_here(void)
{
    int devices;
    const bool here = cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
    if (!here) printf("skipped: no CUDA device\n");
    return here;
}

SUITE("cuda_attention")
{
    SKIP_UNLESS(device_is_here());
    NO_FORK(); // a device does not survive a fork
    LOOP(attention_matches_plain_loops, 0, 20);
    TEST(spans_match_plain_loops);
    TEST(separate_spans_have_the_same_bits);
    TEST(a_broken_entry_changes_only_rows_that_see_it);
    TEST(long_single_rows);
    LOOP(rows_do_not_depend_on_their_neighbours, 0, 3);
    TEST(rope_matches_plain_loops);
    LOOP(rope_within_attention_is_the_same, 0, 5);
    TEST(importance_matches_plain_loops);
}
