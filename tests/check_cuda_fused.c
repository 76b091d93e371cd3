// SPDX-License-Identifier: Apache-2.0
// Steps that the CUDA backend computes in one kernel have the bits of the separate steps: RMSNorm before a gemm, an
// MLP, RoPE with attention. Weights are bf16, FP8 with a scale for each output, and FP8 with a scale for each block.
// Shapes are odd, with few rows and with many. Also tests how many kernels a layer of a decode pass has on an emulated
// GPU.
#include <math.h>

#include "kernels/cuda/limits.h"
#include "tests/cuda_fixture.h"
#include "tests/suite.h"

#ifdef FOREPACK_CUDA_EMULATED
#include "kernels/cuda/gemm.h"
#endif

enum { ROWS = 20 };

// How weights are stored.
enum form { BF16, FP8_OUTPUTS, FP8_BLOCKS, FORMS };

static struct backend_shape shape_of_rows(void)
{
    struct backend_shape shape = small_shape;
    shape.max_rows = shape.max_seqs = ROWS;
    shape.n_kv_blocks = 4 * ROWS;
    return shape;
}

static enum dtype dtype_of(enum form form)
{
    return form == BF16 ? DTYPE_BF16 : DTYPE_FP8;
}

static struct weight *weight_in(struct backend *b, enum form form, int n, int k)
{
    if (form != FP8_BLOCKS) return random_weight(b, n, k, 1);
    struct fp8_matrix m = fp8_matrix_make(n, k, FP8_BLOCK);
    struct weight *w = make_weight_from(b, fp8_matrix_view(&m));
    fp8_matrix_free(&m);
    return w;
}

static void check_same(const float *got, const float *want, int rows, int n, const char *what, int asked)
{
    for (int i = 0; i < rows * n; i++)
        ck_assert_msg(float_is_same(got[i], want[i]), "%s, %d rows: row %d, column %d of %d: %.9g, otherwise %.9g",
                      what, asked, i / n, i % n, n, (double)got[i], (double)want[i]);
}

// ---- RMSNorm and MLP ------------------------------------------------------------------------------------------------

struct rows_bench {
    struct backend *b;
    int hidden, n;
    struct tensor *x, *normed, *out[2], *inner; // x f32 [ROWS, hidden]; out: fused, separate steps
    struct weight *gain, *bias, *w;             // w [n, hidden]
    struct norm_step norm;
};

static void rows_open(struct rows_bench *t, enum form form, int hidden, int n)
{
    const struct backend_shape shape = shape_of_rows();
    *t = (struct rows_bench){.b = open_cuda(&shape, dtype_of(form)), .hidden = hidden, .n = n};
    float *x = random_floats((size_t)(ROWS * hidden), 3);
    for (int i = 0; i < hidden; i++)
        x[2 * hidden + i] = 0; // a row of zeros
    x[4 * hidden + hidden / 2] = NAN;
    t->x = make_tensor(t->b, TENSOR_F32, ROWS, hidden);
    tensor_write(t->b, t->x, x, (size_t)(ROWS * hidden));
    t->normed = make_tensor(t->b, TENSOR_ACTIVATION, ROWS, hidden);
    t->gain = random_vector(t->b, hidden, 2);
    t->bias = random_vector(t->b, n, 1);
    t->w = weight_in(t->b, form, n, hidden);
    t->norm = (struct norm_step){.out = t->normed, .x = t->x, .gain = t->gain, .epsilon = 1e-5f};
    free(x);
}

static void outs_make(struct rows_bench *t, int columns)
{
    for (int i = 0; i < 2; i++)
        t->out[i] = make_ones(t->b, ROWS, columns);
}

static void outs_compare(struct rows_bench *t, int columns, const char *what, int rows)
{
    float *got[2];
    for (int i = 0; i < 2; i++)
        got[i] = tensor_read(t->b, t->out[i], ROWS, columns);
    check_same(got[0], got[1], ROWS, columns, what, rows);
    for (int i = rows * columns; i < ROWS * columns; i++)
        ck_assert(got[0][i] == 1);
    free(got[0]), free(got[1]);
}

static void check_norm_linear(struct rows_bench *t, int rows, enum linear_mode mode, bool biased, bool indexed)
{
    const struct backend_ops *ops = t->b->ops;
    int32_t index[ROWS];
    for (int i = 0; i < ROWS; i++)
        index[i] = (7 * i + 3) % ROWS;
    const struct weight *bias = biased ? t->bias : NULL;
    struct norm_step norm = t->norm;
    if (indexed) norm.row_index = index;
    outs_make(t, t->n);
    OK(backend_norm_linear(t->b, t->out[0], &norm, t->w, bias, mode, rows));
    OK(ops->rmsnorm(t->b, t->normed, t->x, t->gain, 1e-5f, norm.row_index, rows));
    OK(ops->linear(t->b, t->out[1], t->normed, t->w, bias, mode, rows));
    outs_compare(t, t->n, indexed ? "norm of an index and gemm" : "norm and gemm", rows);
}

static void check_mlp(struct rows_bench *t, enum form form, int rows)
{
    const struct backend_ops *ops = t->b->ops;
    const int inner = t->n / 2;
    struct tensor *mlp = make_tensor(t->b, TENSOR_ACTIVATION, ROWS, inner);
    struct weight *down = weight_in(t->b, form, t->hidden, inner);
    outs_make(t, t->hidden);
    OK(backend_mlp(t->b, t->out[0], mlp, &t->norm, t->w, down, LINEAR_ADD, rows));
    OK(ops->rmsnorm(t->b, t->normed, t->x, t->gain, 1e-5f, NULL, rows));
    OK(ops->linear(t->b, mlp, t->normed, t->w, NULL, LINEAR_SWIGLU, rows));
    OK(ops->linear(t->b, t->out[1], mlp, down, NULL, LINEAR_ADD, rows));
    outs_compare(t, t->hidden, "MLP", rows);
}

// Columns of x and outputs. gemv.cu cannot prepare eight rows of 4,112 columns, nor of 4,112 inner columns.
static const struct {
    int hidden, n;
} sizes[] = {{40, 34}, {257, 130}, {1304, 26}, {4112, 48}, {130, 8224}};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

START_TEST(steps_with_a_norm_are_the_same)
{
    static const int rows[] = {1, 3, 7, GEMV_ROWS, GEMV_ROWS + 3, ROWS};
    const enum form form = (enum form)(_i / SIZES);
    struct rows_bench t;
    if (form != BF16 && !fp8_is_here()) return;
    rows_open(&t, form, sizes[_i % SIZES].hidden, sizes[_i % SIZES].n);
    const size_t every = EMULATED && t.hidden * t.n > 100000 ? 2 : 1; // these take seconds on the emulated GPU
    for (size_t i = every - 1; i < sizeof rows / sizeof rows[0]; i += every) {
        check_norm_linear(&t, rows[i], LINEAR_STORE, false, false);
        if (t.n < 1000) check_norm_linear(&t, rows[i], LINEAR_STORE, true, true);
        if (t.n < 1000) check_norm_linear(&t, rows[i], LINEAR_ADD, false, false);
        check_mlp(&t, form, rows[i]);
    }
    t.b->ops->close(t.b);
}
END_TEST

// Squares added in another order change the last bit of a factor. Rounding to bf16 shows this in about one of ten
// thousand values.
START_TEST(squares_are_added_in_the_order_of_the_kernel)
{
    for (int draw = 0; draw < 12; draw++) {
        struct rows_bench t;
        rows_open(&t, BF16, 4096, 16);
        check_norm_linear(&t, GEMV_ROWS, LINEAR_STORE, false, draw % 2);
        t.b->ops->close(t.b);
    }
}
END_TEST

// A row has the same bits whether the gemm's blocks or a separate kernel prepare it.
START_TEST(a_row_has_the_same_bits_with_any_others)
{
    struct rows_bench t;
    if (_i != BF16 && !fp8_is_here()) return;
    rows_open(&t, (enum form)_i, 4112, 16);
    const struct backend_ops *ops = t.b->ops;
    outs_make(&t, t.n);
    OK(backend_norm_linear(t.b, t.out[0], &t.norm, t.w, NULL, LINEAR_STORE, GEMV_ROWS));
    OK(ops->linear(t.b, t.out[1], t.normed, t.w, NULL, LINEAR_STORE, GEMV_ROWS));
    float *all = tensor_read(t.b, t.out[0], ROWS, t.n), *some;
    for (int rows = 1; rows < GEMV_ROWS; rows++) {
        OK(backend_norm_linear(t.b, t.out[0], &t.norm, t.w, NULL, LINEAR_STORE, rows));
        some = tensor_read(t.b, t.out[0], ROWS, t.n);
        check_same(some, all, rows, t.n, "norm and gemm", rows);
        free(some);
    }
    OK(ops->rmsnorm(t.b, t.normed, t.x, t.gain, 1e-5f, NULL, GEMV_ROWS));
    for (int rows = 1; rows <= GEMV_ROWS; rows++) {
        OK(ops->linear(t.b, t.out[1], t.normed, t.w, NULL, LINEAR_STORE, rows));
        some = tensor_read(t.b, t.out[1], ROWS, t.n);
        check_same(some, all, rows, t.n, "gemm", rows);
        free(some);
    }
    free(all);
    t.b->ops->close(t.b);
}
END_TEST

#ifdef FOREPACK_CUDA_EMULATED
// If the results of all rows do not fit into scratch memory, the norm that adds a sum writes FP8 for all chunks in one
// step.
START_TEST(a_sum_is_added_before_a_gemm_in_chunks)
{
    enum { COLUMNS = 40, OUTPUTS = 34, CHUNK = 8 };
    struct rows_bench t;
    int n;
    rows_open(&t, FP8_OUTPUTS, COLUMNS, OUTPUTS);
    struct tensor *addend = make_tensor(t.b, TENSOR_PARTIAL, ROWS, t.hidden); // zeros
    struct tensor *inner = make_tensor(t.b, TENSOR_ACTIVATION, ROWS, t.n / 2);
    t.norm.addend = addend;
    float *got[2];
    size_t *results = &cuda_of(t.b)->gemm->memory.results;
    const size_t sizes_bytes[] = {(size_t)CHUNK * (size_t)cuda_stride(t.n) * sizeof(float), *results};
    for (int i = 0; i < 2; i++) {
        *results = sizes_bytes[i];
        OK(backend_norm_linear(t.b, inner, &t.norm, t.w, NULL, LINEAR_SWIGLU, ROWS));
        got[i] = read_activation(t.b, inner, ROWS, t.n / 2, &n);
    }
    check_same(got[0], got[1], ROWS, n, "norm, gemm in chunks", ROWS);
    free(got[0]), free(got[1]);
    t.b->ops->close(t.b);
}
END_TEST
#endif

// ---- a layer of a decode pass ---------------------------------------------------------------------------------------

enum { D = 64, KV_HEADS = 2, GROUP = 2, HEADS = KV_HEADS * GROUP, HIDDEN = 128, INNER = 256, QKV = (HEADS + 4) * D };

static struct backend_shape shape_of_layer(void)
{
    static float inv_freq[D / 2];
    rope_frequencies(inv_freq, D);
    struct backend_shape shape = shape_of_rows();
    shape.n_heads = HEADS;
    shape.n_kv_heads = KV_HEADS;
    shape.head_size = D;
    shape.rope.inv_freq = inv_freq;
    return shape;
}

struct layer_bench {
    struct backend *b;
    struct tensor *residual, *normed, *qkv, *attended, *inner;
    struct weight *gains, *qkv_weight, *o, *gate_up, *down;
};

static void layer_open(struct layer_bench *t, struct backend *b, enum form form)
{
    float *x = random_floats((size_t)(ROWS * HIDDEN), 1);
    t->b = b;
    t->residual = make_tensor(b, TENSOR_F32, ROWS, HIDDEN), t->normed = make_tensor(b, TENSOR_ACTIVATION, ROWS, HIDDEN);
    t->qkv = make_tensor(b, TENSOR_F32, ROWS, QKV), t->attended = make_tensor(b, TENSOR_ACTIVATION, ROWS, HEADS * D);
    t->inner = make_tensor(b, TENSOR_ACTIVATION, ROWS, INNER);
    t->gains = random_vector(b, HIDDEN, 1);
    t->qkv_weight = weight_in(b, form, QKV, HIDDEN), t->o = weight_in(b, form, HIDDEN, HEADS * D);
    t->gate_up = weight_in(b, form, 2 * INNER, HIDDEN), t->down = weight_in(b, form, HIDDEN, INNER);
    tensor_write(b, t->residual, x, (size_t)(ROWS * HIDDEN));
    free(x);
}

static void layer_run(const struct layer_bench *t, int rows)
{
    struct backend *b = t->b;
    const struct norm_step norm = {.out = t->normed, .x = t->residual, .gain = t->gains, .epsilon = 1e-5f};
    OK(backend_norm_linear(b, t->qkv, &norm, t->qkv_weight, NULL, LINEAR_STORE, rows));
    OK(backend_rope_attention(b, 0, t->attended, t->qkv, NULL, NULL, 0));
    OK(b->ops->linear(b, t->residual, t->attended, t->o, NULL, LINEAR_ADD, rows));
    OK(backend_mlp(b, t->residual, t->inner, &norm, t->gate_up, t->down, LINEAR_ADD, rows));
}

static void layer_run_single_steps(const struct layer_bench *t, int rows)
{
    struct backend *b = t->b;
    const struct backend_ops *ops = b->ops;
    OK(ops->rmsnorm(b, t->normed, t->residual, t->gains, 1e-5f, NULL, rows));
    OK(ops->linear(b, t->qkv, t->normed, t->qkv_weight, NULL, LINEAR_STORE, rows));
    OK(ops->rope_append(b, 0, t->qkv, NULL, NULL, 0));
    OK(ops->attention(b, 0, t->attended, t->qkv));
    OK(ops->linear(b, t->residual, t->attended, t->o, NULL, LINEAR_ADD, rows));
    OK(ops->rmsnorm(b, t->normed, t->residual, t->gains, 1e-5f, NULL, rows));
    OK(ops->linear(b, t->inner, t->normed, t->gate_up, NULL, LINEAR_SWIGLU, rows));
    OK(ops->linear(b, t->residual, t->inner, t->down, NULL, LINEAR_ADD, rows));
}

static struct ragged_batch decode_batch(int rows)
{
    static int32_t token[ROWS], position[ROWS], kv_len[ROWS], start[ROWS + 1];
    for (int i = 0; i < ROWS; i++)
        position[i] = 3 * i, start[i + 1] = i + 1;
    return (struct ragged_batch){.n_rows = rows,
                                 .token = token,
                                 .position = position,
                                 .n_seqs = rows,
                                 .row_start = start,
                                 .kv_len = kv_len,
                                 .block_table = position, // any blocks
                                 .max_blocks = 1};
}

static int kernels_so_far(struct backend *b)
{
    OK(b->ops->wait(b));
    return emulator_launches();
}

// Kernels of a layer for few rows, and for many rows, whose gemms the library computes.
static const struct {
    int few, many;
} kernels[FORMS] = {[BF16] = {5, 8}, [FP8_OUTPUTS] = {7, 9}, [FP8_BLOCKS] = {7, 10}};

START_TEST(a_layer_of_a_decode_pass_has_few_kernels)
{
    const struct backend_shape shape = shape_of_layer();
    const int rows = _i % 2 ? ROWS : GEMV_ROWS;
    const enum form form = (enum form)(_i / 2);
    float *got[2];
    if (form != BF16 && !fp8_is_here()) return;
    const uint64_t seed = random_state;
    for (int single = 0; single < 2; single++) {
        struct backend *b = open_cuda(&shape, dtype_of(form));
        struct layer_bench t;
        random_state = seed;
        layer_open(&t, b, form);
        const struct ragged_batch batch = decode_batch(rows);
        OK(b->ops->begin(b, &batch));
        const int before = kernels_so_far(b);
        if (single)
            layer_run_single_steps(&t, rows);
        else
            layer_run(&t, rows);
        const int launched = kernels_so_far(b) - before;
        if (!single && EMULATED) ck_assert_int_eq(launched, _i % 2 ? kernels[form].many : kernels[form].few);
        got[single] = tensor_read(b, t.residual, ROWS, HIDDEN);
        b->ops->close(b);
    }
    check_same(got[0], got[1], ROWS, HIDDEN, "a layer", rows);
    free(got[0]), free(got[1]);
}
END_TEST

// Attention of look-ahead rows, which are single rows with importance. Runs entry by entry, then checks the importance
// of the last row.
START_TEST(rope_with_attention_keeps_the_importance)
{
    enum { N = 3, ENTRIES = 20, WIDTH = HEADS * D };
    float *out[2], *maxima[2];
    struct backend_shape shape = shape_of_layer();
    if (_i) shape.kv_dtype = DTYPE_FP8;
    static const int32_t token[N], row_start[N + 1] = {0, 1, 2, 3}, table[2 * N] = {4, 1, 0, 7, 3, 2};
    static const int32_t rows[N] = {0, 1, 2}, keys[N] = {ENTRIES, 7, ENTRIES - 1};
    const uint64_t seed = random_state;
    for (int single = 0; single < 2; single++) {
        random_state = seed;
        struct backend *b = open_cuda(&shape, DTYPE_BF16);
        struct tensor *qkv = make_tensor(b, TENSOR_F32, N, QKV), *to = make_tensor(b, TENSOR_ACTIVATION, N, WIDTH);
        struct ragged_batch batch = {.n_rows = N,
                                     .token = token,
                                     .n_seqs = N,
                                     .row_start = row_start,
                                     .block_table = table,
                                     .max_blocks = 2,
                                     .importance_row = rows,
                                     .importance_keys = keys,
                                     .smoothing_window = 3};
        for (int entry = 0; entry < ENTRIES; entry++) {
            const int32_t position[N] = {entry, 5 * entry, 7 + entry}, kv_len[N] = {entry, entry, entry};
            float *values = random_floats((size_t)(N * QKV), 2);
            batch.position = position, batch.kv_len = kv_len;
            batch.n_importance_rows = entry == ENTRIES - 1 ? N : 0;
            tensor_write(b, qkv, values, (size_t)(N * QKV));
            OK(b->ops->begin(b, &batch));
            if (single) {
                OK(b->ops->rope_append(b, 0, qkv, NULL, NULL, 0));
                OK(b->ops->attention(b, 0, to, qkv));
            } else {
                OK(backend_rope_attention(b, 0, to, qkv, NULL, NULL, 0));
            }
            OK(b->ops->wait(b));
            free(values);
        }
        int n;
        maxima[single] = mem_alloc_array((size_t)ragged_importance_size(&batch), sizeof **maxima);
        OK(b->ops->importance_read(b, maxima[single]));
        out[single] = read_activation(b, to, N, WIDTH, &n);
        check_same(out[single], out[0], N, n, "attention", N);
        check_same(maxima[single], maxima[0], 1, ENTRIES + 7 + ENTRIES - 1, "importance", N);
        ck_assert(maxima[single][0] > 0);
        b->ops->close(b);
    }
    free(out[0]), free(out[1]), free(maxima[0]), free(maxima[1]);
}
END_TEST

SUITE("cuda_fused")
{
    SKIP_UNLESS(cuda_is_here());
    TIMEOUT(120);
    LOOP(steps_with_a_norm_are_the_same, 0, FORMS * SIZES);
    TEST(squares_are_added_in_the_order_of_the_kernel);
    LOOP(a_row_has_the_same_bits_with_any_others, 0, FORMS);
#ifdef FOREPACK_CUDA_EMULATED
    TEST(a_sum_is_added_before_a_gemm_in_chunks);
#endif
    LOOP(a_layer_of_a_decode_pass_has_few_kernels, 0, 2 * FORMS);
    LOOP(rope_with_attention_keeps_the_importance, 0, 2);
}
