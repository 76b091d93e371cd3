// SPDX-License-Identifier: Apache-2.0
// One layer of the 8B shape at the size that serves prompts: gemms and attention of 16,384 rows, of which samples are
// computed again in double. Then attention over KV blocks at the end of a large cache, whose offsets need 64 bits. The
// emulated GPU runs the same with small sizes.
#include <math.h>
#include <stdio.h>

#include "tests/cuda_fixture.h"
#include "tests/suite.h"

#ifdef FOREPACK_CUDA_EMULATED
enum { ROWS = 192, HEADS = 4, KV_HEADS = 2, D = 64, WIDE = 320, CACHE_BLOCKS = 64 };
#else
// A KV block of 8 KV heads takes 64 KiB. So the offset of block 65,536 is 2^32 bytes, and that of the last block
// exceeds 2^33.
enum { ROWS = 16384, HEADS = 32, KV_HEADS = 8, D = 128, WIDE = 14336, CACHE_BLOCKS = 140000 };
#endif
enum { GROUP = HEADS / KV_HEADS, HIDDEN = HEADS * D, QKV = (HEADS + 2 * KV_HEADS) * D, SAMPLES = 64 };

static float inv_freq[D / 2];

static struct backend *open_layer(int max_rows, int context, int n_kv_blocks, enum dtype kv_dtype)
{
    rope_frequencies(inv_freq, D);
    const struct backend_shape shape = {.n_layers = 1,
                                        .n_heads = HEADS,
                                        .n_kv_heads = KV_HEADS,
                                        .head_size = D,
                                        .rope.inv_freq = inv_freq,
                                        .max_rows = max_rows,
                                        .max_seqs = 2,
                                        .max_context = context,
                                        .n_kv_blocks = n_kv_blocks,
                                        .kv_dtype = kv_dtype};
    return open_cuda(&shape, DTYPE_BF16);
}

static double bf16(double x)
{
    return (double)bf16_to_f32(bf16_from_f32((float)x));
}

static void begin_sequence(struct backend *b, int cached, int rows, int32_t *table, int blocks)
{
    int32_t *token = mem_alloc_array((size_t)rows, sizeof *token);
    int32_t *position = mem_alloc_array((size_t)rows, sizeof *position);
    for (int i = 0; i < rows; i++)
        position[i] = cached + i;
    const int32_t start[2] = {0, rows}, kv_len[1] = {cached};
    const struct ragged_batch batch = {.n_rows = rows,
                                       .n_seqs = 1,
                                       .max_blocks = blocks,
                                       .token = token,
                                       .position = position,
                                       .row_start = start,
                                       .kv_len = kv_len,
                                       .block_table = table};
    OK(b->ops->begin(b, &batch));
    free(token);
    free(position);
}

static int32_t *blocks_from(int first, int n)
{
    int32_t *table = mem_alloc_array((size_t)n, sizeof *table);
    for (int i = 0; i < n; i++)
        table[i] = first + i;
    return table;
}

// ---- gemms ----------------------------------------------------------------------------------------------------------

static const struct gemm_case {
    int n, k;
    enum linear_mode mode;
} gemms[] = {{QKV, HIDDEN, LINEAR_STORE},
             {HIDDEN, HIDDEN, LINEAR_ADD},
             {2 * WIDE, HIDDEN, LINEAR_SWIGLU},
             {HIDDEN, WIDE, LINEAR_ADD}};

static double dot(const double *x, const float *row, int k)
{
    double sum = 0;
    for (int i = 0; i < k; i++)
        sum += x[i] * bf16((double)row[i]);
    return sum;
}

START_TEST(gemms_of_many_rows_match_sums_in_double)
{
    const struct gemm_case *g = &gemms[_i];
    const bool swiglu = g->mode == LINEAR_SWIGLU;
    const int n = swiglu ? g->n / 2 : g->n, k = g->k;
    struct backend *b = open_layer(ROWS, ROWS, ROWS / KV_BLOCK_TOKENS, DTYPE_BF16);
    float *raw = random_floats((size_t)ROWS * (size_t)k, 1), *gain = mem_alloc_array((size_t)k, sizeof *gain);
    float *w = random_floats((size_t)g->n * (size_t)k, 0.02f);
    for (int i = 0; i < k; i++)
        gain[i] = 1;
    struct tensor *x = make_normed(b, raw, gain, ROWS, k);
    struct tensor *out = swiglu ? make_tensor(b, TENSOR_ACTIVATION, ROWS, n) : make_ones(b, ROWS, n);
    struct weight *weight;
    if (swiglu) {
        struct matrix_view gate = float_view(w, n, k), up = float_view(w + (size_t)n * (size_t)k, n, k);
        OK(b->ops->weight_gate_up(b, &gate, &up, &weight));
        weights_settle(b);
    } else {
        weight = make_weight(b, w, n, k);
    }
    int32_t *table = blocks_from(0, ROWS / KV_BLOCK_TOKENS);
    begin_sequence(b, 0, ROWS, table, ROWS / KV_BLOCK_TOKENS);
    OK(b->ops->linear(b, out, x, weight, NULL, g->mode, ROWS));
    const int columns = swiglu ? SAMPLES : n; // of an activation some are read
    float *got = swiglu ? read_columns(b, out, ROWS, n, columns) : tensor_read(b, out, ROWS, n);

    double *normed = mem_alloc_array((size_t)k, sizeof *normed), worst = 0;
    for (int s = 0; s < SAMPLES; s++) {
        const int row = s == 0 ? ROWS - 1 : random_below(ROWS), at = s == 0 ? columns - 1 : random_below(columns);
        const size_t output = swiglu ? (size_t)((int64_t)at * n / columns) : (size_t)at;
        double squares = 0;
        for (int i = 0; i < k; i++)
            squares +=
                (double)raw[(size_t)row * (size_t)k + (size_t)i] * (double)raw[(size_t)row * (size_t)k + (size_t)i];
        for (int i = 0; i < k; i++)
            normed[i] = bf16((double)raw[(size_t)row * (size_t)k + (size_t)i] / sqrt(squares / k + 1e-5));
        double want = dot(normed, w + output * (size_t)k, k);
        if (swiglu) want *= dot(normed, w + ((size_t)n + output) * (size_t)k, k) / (1 + exp(-want));
        if (g->mode == LINEAR_ADD) want += 1;
        const double is = (double)got[(size_t)row * (size_t)columns + (size_t)at], error = fabs(is - want);
        worst = fmax(worst, error / (1 + fabs(want)));
        ck_assert_msg(error <= 0.008 * (1 + fabs(want)), "%d x %d, %d rows: row %d, output %zu: %g, not %g", g->n, k,
                      (int)ROWS, row, output, is, want);
    }
    printf("gemm %d x %d of %d rows: largest error %.2g\n", g->n, k, (int)ROWS, worst);
    free(normed), free(got), free(table), free(w), free(gain), free(raw);
    b->ops->close(b);
}
END_TEST

// ---- attention ------------------------------------------------------------------------------------------------------

// Rotates a head of D values to its position and rounds them to bf16.
static void rotate(const float *head, int position, double *out)
{
    for (int i = 0; i < D / 2; i++) {
        const double angle = (double)((float)position * inv_freq[i]), c = cos(angle), s = sin(angle);
        out[i] = bf16((double)head[i] * c - (double)head[i + D / 2] * s);
        out[i + D / 2] = bf16((double)head[i + D / 2] * c + (double)head[i] * s);
    }
}

// Computes the attention of one head of row `row` of a sequence without cached entries.
static void slow_head(const float *qkv, int row, int head, double *out)
{
    const size_t k_at = (size_t)(HEADS + head / GROUP) * D, v_at = k_at + (size_t)KV_HEADS * D;
    double q[D], k[D], sum = 0, largest = -INFINITY;
    double *score = mem_alloc_array((size_t)row + 1, sizeof *score);
    rotate(qkv + (size_t)row * QKV + (size_t)head * D, row, q);
    for (int e = 0; e <= row; e++) {
        rotate(qkv + (size_t)e * QKV + k_at, e, k);
        for (int i = 0; i < D; i++)
            score[e] += q[i] * k[i] / sqrt(D);
        largest = fmax(largest, score[e]);
    }
    memset(out, 0, D * sizeof *out);
    for (int e = 0; e <= row; e++) {
        const double weight = exp(score[e] - largest);
        sum += weight;
        for (int i = 0; i < D; i++)
            out[i] += weight * bf16((double)qkv[(size_t)e * QKV + v_at + (size_t)i]);
    }
    for (int i = 0; i < D; i++)
        out[i] /= sum;
    free(score);
}

START_TEST(attention_of_many_rows_matches_sums_in_double)
{
    struct backend *b = open_layer(ROWS, ROWS, ROWS / KV_BLOCK_TOKENS, DTYPE_BF16);
    struct tensor *qkv = make_tensor(b, TENSOR_F32, ROWS, QKV), *out = make_tensor(b, TENSOR_ACTIVATION, ROWS, HIDDEN);
    float *values = random_floats((size_t)ROWS * QKV, 2);
    int32_t *table = blocks_from(0, ROWS / KV_BLOCK_TOKENS);
    tensor_write(b, qkv, values, (size_t)ROWS * QKV);
    begin_sequence(b, 0, ROWS, table, ROWS / KV_BLOCK_TOKENS);
    OK(b->ops->rope_append(b, 0, qkv, NULL, NULL, 0));
    OK(b->ops->attention(b, 0, out, qkv));
    float *got = read_columns(b, out, ROWS, HIDDEN, HIDDEN);
    double want[D], worst = 0;
    for (int s = 0; s < SAMPLES; s++) {
        const int row = s == 0 ? ROWS - 1 : random_below(ROWS), head = random_below(HEADS);
        slow_head(values, row, head, want);
        double error = 0, size = 0;
        for (int i = 0; i < D; i++) {
            const double is = (double)got[(size_t)row * HIDDEN + (size_t)(head * D + i)];
            error += (is - want[i]) * (is - want[i]), size += want[i] * want[i];
        }
        worst = fmax(worst, sqrt(error / size));
        ck_assert_msg(sqrt(error / size) <= 0.02, "row %d, head %d: differs by %g of its size", row, head,
                      sqrt(error / size));
    }
    printf("attention of %d rows: largest error of a head %.2g of its size\n", (int)ROWS, worst);
    free(got), free(table), free(values);
    b->ops->close(b);
}
END_TEST

// ---- the end of a large cache ---------------------------------------------------------------------------------------

enum { LENGTH = 300, BLOCKS = (LENGTH + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS };

// Runs attention of a prompt, then of single rows after it, with the KV blocks from `first` on. Returns
// [LENGTH][HIDDEN].
static float *attend_at(struct backend *b, struct tensor *qkv, struct tensor *out, const float *values, int first)
{
    enum { PROMPT = LENGTH - 2 };
    int32_t *table = blocks_from(first, BLOCKS);
    float *got = mem_alloc_array((size_t)LENGTH * HIDDEN, sizeof *got);
    for (int done = 0; done < LENGTH;) {
        const int rows = done ? 1 : PROMPT;
        tensor_write(b, qkv, values + (size_t)done * QKV, (size_t)rows * QKV);
        begin_sequence(b, done, rows, table, BLOCKS);
        OK(b->ops->rope_append(b, 0, qkv, NULL, NULL, 0));
        OK(b->ops->attention(b, 0, out, qkv));
        float *part = read_columns(b, out, rows, HIDDEN, HIDDEN);
        memcpy(got + (size_t)done * HIDDEN, part, (size_t)rows * HIDDEN * sizeof *got);
        free(part);
        done += rows;
    }
    free(table);
    return got;
}

START_TEST(blocks_at_the_end_of_a_large_cache_give_the_same_bits)
{
    struct backend *b = open_layer(LENGTH, LENGTH, CACHE_BLOCKS, _i ? DTYPE_FP8 : DTYPE_BF16);
    struct tensor *qkv = make_tensor(b, TENSOR_F32, LENGTH, QKV);
    struct tensor *out = make_tensor(b, TENSOR_ACTIVATION, LENGTH, HIDDEN);
    float *values = random_floats((size_t)LENGTH * QKV, 2);
    float *begin = attend_at(b, qkv, out, values, 0), *end = attend_at(b, qkv, out, values, CACHE_BLOCKS - BLOCKS);
    for (size_t i = 0; i < (size_t)LENGTH * HIDDEN; i++)
        ck_assert_msg(begin[i] == end[i], "row %zu, column %zu: %g at the begin, %g at the end", i / HIDDEN, i % HIDDEN,
                      (double)begin[i], (double)end[i]);
    free(begin), free(end), free(values);
    b->ops->close(b);
}
END_TEST

SUITE("cuda_large")
{
    SKIP_UNLESS(cuda_is_here());
    TIMEOUT(120);
    EACH(gemms_of_many_rows_match_sums_in_double, gemms);
    TEST(attention_of_many_rows_matches_sums_in_double);
    LOOP(blocks_at_the_end_of_a_large_cache_give_the_same_bits, 0, 2);
}
