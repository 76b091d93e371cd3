// SPDX-License-Identifier: Apache-2.0
// Every operation of the CPU backend, and of the CUDA backend, against the reference backend: odd shapes, each level of
// the machine, every dtype. Bounds: sums over K of values below 1 may differ by K roundings of f32. A result stored as
// bf16 may round to the neighbouring value, which differs by up to 2^-7 of the value. With int8 both sides quantise the
// same numbers to the same bytes, so gemms are as close as in f32.
#include <math.h>
#include <stdio.h>

#include "tests/isa_levels.h"
#include "tests/kernel_fixture.h"
#include "tests/suite.h"

static const float ROUNDING = 0x1p-22f, BF16_STEP = 0x1p-7f, GUARD = -12345.5f;

enum { DTYPES = 7 };
static enum dtype dtype;
static enum dtype kv_dtype;
static const char *backend_name;
static struct backend *both[2]; // reference, tested backend

// Returns how far sums of k products of values below 1 may differ. Hopper's tensor cores keep 14 bits of FP8 sums
// (kernels/emulator/fp8_accumulator.h). The emulated ones keep as many bits as the reference.
static float sum_rounding(int k)
{
#if defined FOREPACK_TEST_CUDA && !defined FOREPACK_CUDA_EMULATED
    if (dtype == DTYPE_FP8) return 0x1p-14f * (float)(k + 16);
#endif
    return ROUNDING * (float)(k + 16);
}

// Every test runs for each (level, dtype) that the backend supports.
static struct variant {
    const struct cpu_isa *isa;
    enum dtype dtype;
} variants[ISAS_MAX * DTYPES];
static int n_variants;

static void variants_list(void)
{
    static const enum dtype dtypes[DTYPES] = {DTYPE_F32, DTYPE_BF16,      DTYPE_INT8, DTYPE_INT8_G128,
                                              DTYPE_FP8, DTYPE_INT4_G128, DTYPE_BF12};
    for (int i = 0; i < n_isas * DTYPES; i++) {
        struct variant v = {isas[i / DTYPES], dtypes[i % DTYPES]};
        bool cuda = v.isa == &cuda_level, on_gpu = v.dtype == DTYPE_BF16 || v.dtype == DTYPE_INT4_G128;
        if (cuda ? on_gpu || v.dtype == DTYPE_FP8 : v.dtype != DTYPE_FP8) variants[n_variants++] = v;
    }
}

static void variant_setup(int variant)
{
    dtype = variants[variant].dtype;
    kv_dtype = DTYPE_F32; // the dtype of activations
    random_state = 0x9e3779b97f4a7c15u + (uint64_t)variant;
    bool cuda = variants[variant].isa == &cuda_level;
    backend_name = cuda ? "cuda" : "cpu";
    if (!cuda) cpu_isa_prefer(variants[variant].isa);
}

static void open_both(const struct backend_shape *shape)
{
    OK(backend_open("reference", shape, dtype, 0, &both[0]));
    OK(backend_open(backend_name, shape, dtype, 2, &both[1]));
}

static void close_both(void)
{
    for (int i = 0; i < 2; i++)
        both[i]->ops->close(both[i]);
}

static const struct backend_shape small = {.n_layers = 1,
                                           .n_heads = 1,
                                           .n_kv_heads = 1,
                                           .head_size = 8,
                                           .rope.inv_freq = (float[]){1, 1, 1, 1},
                                           .max_rows = 256,
                                           .max_seqs = 8,
                                           .max_context = 8,
                                           .n_kv_blocks = 1};

// |got - want| <= absolute + relative * |want|. NaN is accepted only where the reference has NaN.
static void compare(const float *got, const float *want, int rows, int columns, float absolute, float relative)
{
    for (int i = 0; i < rows * columns; i++) {
        if (isnan(want[i]) && isnan(got[i])) continue;
        ck_assert_msg(fabsf(got[i] - want[i]) <= absolute + relative * fabsf(want[i]),
                      "row %d of %d, column %d of %d: %.9g, reference %.9g", i / columns, rows, i % columns, columns,
                      got[i], want[i]);
    }
}

static bool is_int8(void)
{
    return dtype == DTYPE_INT8 || dtype == DTYPE_INT8_G128;
}

static void compare_activation(struct tensor *const x[2], int rows, int columns, float absolute, float relative)
{
    int n;
    float *want = read_activation(both[0], x[0], rows, columns, &n);
    float *got = read_activation(both[1], x[1], rows, columns, &n);
    // Reading an activation is a gemm: with int8 its bytes may also round to neighbours, in steps of (row maximum) /
    // 127.
    float largest = 0;
    for (int i = 0; is_int8() && i < rows * n; i++)
        largest = fmaxf(largest, fabsf(want[i]));
    absolute += largest / 100;
    if (dtype == DTYPE_FP8) relative += 0x1p-3f; // e4m3 may also round to the neighbour
    compare(got, want, rows, n, absolute, relative + (dtype == DTYPE_F32 ? 0 : BF16_STEP));
    free(want);
    free(got);
}

// Row r, column c = +-gain[c], exactly the same values in both backends: the rms of a row of +-1 is 1.
static void random_activation(struct tensor *x[2], int rows, int columns)
{
    float *signs = random_floats((size_t)rows * (size_t)columns, 1), *gain = random_floats((size_t)columns, 1);
    for (int i = 0; i < rows * columns; i++)
        signs[i] = signs[i] < 0 ? -1 : 1;
    for (int i = 0; i < 2; i++) {
        struct backend *b = both[i];
        struct tensor *raw = make_tensor(b, TENSOR_F32, rows, columns);
        tensor_write(b, raw, signs, (size_t)(rows * columns));
        x[i] = make_tensor(b, TENSOR_ACTIVATION, rows, columns);
        OK(b->ops->rmsnorm(b, x[i], raw, make_vector(b, gain, columns), 0, NULL, rows));
    }
    free(signs);
    free(gain);
}

// ---- gemms ----------------------------------------------------------------------------------------------------------

static void check_linear(int rows, int n, int k, bool with_bias)
{
    open_both(&small);
    struct tensor *x[2], *stored[2];
    random_activation(x, rows, k);
    float *w = random_floats((size_t)n * (size_t)k, 1), *bias = random_floats((size_t)n, 1);
    float *base = random_floats((size_t)(rows + 1) * (size_t)n, 1), *y[2];
    for (int c = 0; c < n; c++)
        base[rows * n + c] = GUARD;
    for (int mode = LINEAR_STORE; mode <= LINEAR_ADD; mode++) {
        for (int i = 0; i < 2; i++) {
            struct backend *b = both[i];
            struct tensor *out = make_tensor(b, TENSOR_F32, rows + 1, n);
            tensor_write(b, out, base, (size_t)((rows + 1) * n));
            struct weight *bw = make_weight(b, w, n, k), *bv = with_bias ? make_vector(b, bias, n) : NULL;
            OK(b->ops->linear(b, out, x[i], bw, bv, (enum linear_mode)mode, rows));
            y[i] = mem_alloc_array((size_t)(rows + 1) * (size_t)n, sizeof(float));
            OK(b->ops->read(b, out, rows + 1, y[i]));
            for (int c = 0; c < n; c++)
                ck_assert(y[i][rows * n + c] == GUARD);
            stored[i] = make_tensor(b, TENSOR_ACTIVATION, rows, n);
            OK(b->ops->linear(b, stored[i], x[i], bw, bv, LINEAR_STORE, rows));
        }
        compare(y[1], y[0], rows, n, sum_rounding(k), 0);
        free(y[0]);
        free(y[1]);
    }
    compare_activation(stored, rows, n, sum_rounding(k), 0);
    free(w);
    free(bias);
    free(base);
    close_both();
}

START_TEST(linear_matches_reference)
{
    variant_setup(_i);
    static const int rows[] = {1, 2, 3, 5, 6, 7, 13, 31}, ns[] = {1, 15, 63, 64, 65, 130},
                     ks[] = {1, 2, 3, 6, 17, 62, 66, 130};
    for (int i = 0; i < 40; i++)
        check_linear(rows[i % 8], ns[random_below(6)], ks[random_below(8)], i % 3 == 0);
    check_linear(2, 70, 2 * 512 + 6, true);   // two blocks of K in f32
    check_linear(7, 64, 4 * 512 + 10, false); // three blocks of K in bf16
    check_linear(193, 65, 30, true);          // two blocks of rows
    check_linear(200, 8, 34, false);
    check_linear(32, 64, 96, false); // whole AMX tiles; then last tiles of 1, 15 and 16 rows
    check_linear(33, 80, 70, true);
    check_linear(63, 72, 40, false);
    check_linear(48, 64, 66, true);
    check_linear(9, 66, 2 * 2048 + 133, true); // three blocks of K in int8, the last group is short
    check_linear(71, 33, 2 * 512 + 70, false); // pairs of row tiles over two blocks of tiles and a part of one
    check_linear(70, 1090, 150, true);         // several panels in an item: AMX finishes one while it computes the next
    check_linear(19, 520, 2 * 1024 + 40, false);
}
END_TEST

// Checks rows of 64 columns, and of fewer columns, which are not whole cache lines.
static void check_streamed(const struct cpu_isa *isa, enum linear_mode mode, bool bf16, int columns)
{
    enum { ROWS = 17, STRIDE = 96 };
    static float sums[2 * TILE_SIDE * PANEL_COLUMNS];
    static float out[2][ROWS * STRIDE] __attribute__((aligned(64)));
    for (int i = 0; i < 2 * TILE_SIDE * PANEL_COLUMNS; i++)
        sums[i] = random_float(3);
    memset(out, 0, sizeof out);
    for (int streamed = 0; streamed < 2; streamed++) {
        struct panel_out to = {.sums = sums,
                               .rows = ROWS,
                               .mode = mode,
                               .tiled = isa->tiled,
                               .to = {.data = out[streamed], .stride = STRIDE, .bf16 = bf16},
                               .columns = columns,
                               .streamed = streamed};
        isa->panel_finish(&to, 5);
        isa->panel_finish(&to, ROWS);
    }
    ck_assert_mem_eq(out[0], out[1], sizeof out[0]);
}

// Checks bf16 rows from row 3 on, in tiles and row by row.
static void check_tiled(const struct cpu_isa *isa, enum linear_mode mode, int column, int columns)
{
    enum { ROWS = 17, FIRST = 3, STRIDE = 128, PADDED = 2 * TILE_SIDE };
    static float sums[2 * TILE_SIDE * PANEL_COLUMNS];
    static uint16_t out[2][PADDED * STRIDE] __attribute__((aligned(64)));
    for (int i = 0; i < 2 * TILE_SIDE * PANEL_COLUMNS; i++)
        sums[i] = random_float(3);
    memset(out, 0, sizeof out);
    struct rows_out to[2];
    for (int tiled = 0; tiled < 2; tiled++) {
        to[tiled] = (struct rows_out){.data = out[tiled], .stride = STRIDE, .bf16 = true, .tiled = tiled};
        struct panel_out panel = {.sums = sums,
                                  .rows = ROWS,
                                  .mode = mode,
                                  .tiled = isa->tiled,
                                  .to = to[tiled],
                                  .row = FIRST,
                                  .column = column,
                                  .columns = columns};
        isa->panel_finish(&panel, ROWS);
    }
    for (int r = 0; r < PADDED; r++)
        for (int c = 0; c < STRIDE; c++) {
            uint16_t *want = rows_out_at(to[0], r, c), *got = rows_out_at(to[1], r, c);
            ck_assert_msg(*got == *want, "row %d, column %d: %x, row-major %x", r, c, *got, *want);
            ck_assert(got == out[1] + ((r / 16 * (STRIDE / 32) + c / 32) * 16 + r % 16) * 32 + c % 32);
        }
}

START_TEST(tiled_outputs_are_the_same)
{
    if (isas[_i] == &cuda_level) return;
    check_tiled(isas[_i], LINEAR_STORE, PANEL_COLUMNS, PANEL_COLUMNS);
    check_tiled(isas[_i], LINEAR_STORE, 0, PANEL_COLUMNS - 5);
    check_tiled(isas[_i], LINEAR_SWIGLU, PANEL_COLUMNS / 2, PANEL_COLUMNS / 2);
    check_tiled(isas[_i], LINEAR_SWIGLU, PANEL_COLUMNS, 7);
}
END_TEST

START_TEST(streamed_outputs_are_the_same)
{
    if (isas[_i] == &cuda_level) return;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        check_streamed(isas[_i], LINEAR_STORE, bf16, PANEL_COLUMNS);
        check_streamed(isas[_i], LINEAR_STORE, bf16, PANEL_COLUMNS - 5);
        check_streamed(isas[_i], LINEAR_SWIGLU, bf16, PANEL_COLUMNS / 2);
        check_streamed(isas[_i], LINEAR_SWIGLU, bf16, 3);
    }
}
END_TEST

START_TEST(swiglu_matches_reference)
{
    variant_setup(_i);
    static const int halves[] = {1, 15, 16, 31, 32, 33, 50, 97};
    for (int i = 0; i < 17; i++) {
        int n = halves[i % 8], k = 2 + random_below(70), rows = 1 + random_below(14);
        if (i == 16) n = 530, rows = 36; // several panels in an item
        open_both(&small);
        struct tensor *x[2], *out[2];
        random_activation(x, rows, k);
        float *gate = random_floats((size_t)n * (size_t)k, 2), *up = random_floats((size_t)n * (size_t)k, 1);
        for (int j = 0; j < 2; j++) {
            struct matrix_view gate_view = float_view(gate, n, k), up_view = float_view(up, n, k);
            struct weight *w;
            OK(both[j]->ops->weight_gate_up(both[j], &gate_view, &up_view, &w));
            weights_settle(both[j]);
            out[j] = make_tensor(both[j], TENSOR_ACTIVATION, rows, n);
            OK(both[j]->ops->linear(both[j], out[j], x[j], w, NULL, LINEAR_SWIGLU, rows));
        }
        // silu(g) * u: the error of each gemm times the other factor (below 2 sqrt(k) here)
        compare_activation(out, rows, n, sum_rounding(k) * 4 * sqrtf((float)k), 0);
        free(gate);
        free(up);
        close_both();
    }
}
END_TEST

// Writes a random number of this dtype: below 1 (FP8: below 448), never NaN.
static void random_element(enum dtype type, unsigned char *to)
{
    float value = random_float(1);
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint16_t half = (uint16_t)(type == DTYPE_BF16 ? bits >> 16 : random_bits() & 0xbbff);
    uint8_t byte = (uint8_t)random_bits();
    byte -= (byte & 0x7f) == 0x7f;
    memcpy(to, type == DTYPE_F32 ? (void *)&bits : type == DTYPE_FP8 ? (void *)&byte : &half, dtype_size_bytes(type));
}

// Parts of different dtypes at odd addresses, with gaps between rows, give the same weight as one plain matrix.
START_TEST(weights_pack_from_unaligned_views)
{
    variant_setup(_i);
    open_both(&small);
    enum { K = 35, ROWS = 40, PARTS = 5 };
    static const enum dtype types[PARTS] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_FP8, DTYPE_FP8};
    struct tensor *x[2];
    random_activation(x, 3, K);
    unsigned char *raw = mem_alloc(PARTS * ROWS * (4 * K + 3) + 8), scales[2 * ROWS + 1];
    for (int r = 0; r < ROWS; r++) { // scales of 2^-10 to 2^-9 in bf16, at an odd address
        uint16_t scale = (uint16_t)(0x3a80 | (random_bits() & 0x7f));
        memcpy(scales + 1 + 2 * r, &scale, 2);
    }
    struct matrix_view parts[PARTS];
    size_t at = 1;
    for (int p = 0; p < PARTS; p++) {
        int64_t size = (int64_t)dtype_size_bytes(types[p]), stride = size * K + 3;
        parts[p] = (struct matrix_view){.data = raw + at,
                                        .dtype = types[p],
                                        .rows = ROWS - p,
                                        .columns = K,
                                        .row_stride_bytes = stride,
                                        .scale = scales + 1,
                                        .scale_dtype = DTYPE_BF16,
                                        .scale_stride = p == PARTS - 1};
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < K; c++)
                random_element(types[p], raw + at + r * stride + c * size);
        at += (size_t)stride * ROWS;
    }
    enum { N = PARTS * ROWS - 10 };
    float y[2][3 * N];
    int n = N;
    for (int i = 0; i < 2; i++) {
        struct weight *w;
        OK(both[i]->ops->weight_create(both[i], parts, PARTS, &w));
        weights_settle(both[i]);
        struct tensor *out = make_tensor(both[i], TENSOR_F32, 3, n);
        OK(both[i]->ops->linear(both[i], out, x[i], w, NULL, LINEAR_STORE, 3));
        OK(both[i]->ops->read(both[i], out, 3, y[i]));
    }
    compare(y[1], y[0], 3, n, sum_rounding(K), 0);
    free(raw);
    close_both();
}
END_TEST

// ---- rows -----------------------------------------------------------------------------------------------------------

START_TEST(rmsnorm_matches_reference)
{
    variant_setup(_i);
    static const int sizes[] = {1, 3, 16, 65, 257};
    for (int i = 0; i < 5; i++) {
        int n = sizes[i];
        open_both(&small);
        const int32_t index[3] = {4, 0, 3};
        float *values = random_floats((size_t)(5 * n), 8), *gain = random_floats((size_t)n, 2);
        struct tensor *out[2];
        for (int j = 0; j < 2; j++) {
            struct backend *b = both[j];
            struct tensor *x = make_tensor(b, TENSOR_F32, 5, n);
            tensor_write(b, x, values, (size_t)(5 * n));
            out[j] = make_tensor(b, TENSOR_ACTIVATION, 5, n);
            OK(b->ops->rmsnorm(b, out[j], x, make_vector(b, gain, n), 1e-5f, index, 3));
        }
        compare_activation(out, 3, n, 1e-6f, 1e-6f);
        free(values);
        free(gain);
        close_both();
    }
}
END_TEST

START_TEST(embeddings_are_exact_tied_or_not)
{
    variant_setup(_i);
    enum { ROWS = 70, K = 37 };
    open_both(&small);
    float *table = random_floats(ROWS * K, 1), y[4][8 * K];
    struct matrix_view view = float_view(table, ROWS, K);
    const int32_t token[8] = {99, 100, 101, 163, 164, 169, 170, 0}, start[2] = {0, 8};
    struct ragged_batch batch = {.n_rows = 8,
                                 .token = token,
                                 .position = token,
                                 .n_seqs = 1,
                                 .row_start = start,
                                 .kv_len = (int32_t[]){0},
                                 .block_table = (int32_t[]){0},
                                 .max_blocks = 1};
    for (int i = 0; i < 4; i++) {
        struct backend *b = both[i / 2];
        struct weight *w, *head = i % 2 ? make_weight(b, table, ROWS, K) : NULL;
        OK(b->ops->weight_embedding(b, &view, 100, head, &w));
        struct tensor *out = make_tensor(b, TENSOR_F32, 8, K);
        OK(b->ops->begin(b, &batch));
        OK(b->ops->embed(b, out, w));
        OK(b->ops->read(b, out, 8, y[i]));
        ck_assert_mem_eq(y[i], y[0], sizeof y[0]);
    }
    ck_assert(y[0][0] == 0);
    ck_assert(y[0][K] != 0);
    ck_assert(y[0][6 * K] == 0);
    free(table);
    close_both();
}
END_TEST

// A NaN or infinity in one row changes that row only.
START_TEST(nan_stays_in_its_row)
{
    variant_setup(_i);
    open_both(&small);
    enum { ROWS = 9, K = 40, N = 70 };
    float *values = random_floats(ROWS * K, 1), *w = random_floats(N * K, 1), ones[K], y[2][ROWS * N];
    for (int i = 0; i < K; i++)
        ones[i] = 1;
    for (int bad = 0; bad < 2; bad++) {
        struct backend *b = both[1];
        struct tensor *x = make_tensor(b, TENSOR_F32, ROWS, K), *norm = make_tensor(b, TENSOR_ACTIVATION, ROWS, K);
        if (bad) values[4 * K + 7] = NAN, values[2 * K] = INFINITY;
        tensor_write(b, x, values, ROWS * K);
        OK(b->ops->rmsnorm(b, norm, x, make_vector(b, ones, K), 1e-5f, NULL, ROWS));
        struct tensor *out = make_tensor(b, TENSOR_F32, ROWS, N);
        OK(b->ops->linear(b, out, norm, make_weight(b, w, N, K), NULL, LINEAR_STORE, ROWS));
        OK(b->ops->read(b, out, ROWS, y[bad]));
    }
    for (int i = 0; i < ROWS * N; i++)
        if (i / N == 4 || i / N == 2)
            ck_assert(isnan(y[1][i]));
        else
            ck_assert(y[1][i] == y[0][i]);
    free(values);
    free(w);
    close_both();
}
END_TEST

// ---- attention ------------------------------------------------------------------------------------------------------

enum { SEQUENCES = 3, CONTEXT = 150 };

// Three sequences grow in random steps over shuffled blocks with random qkv; RoPE, the KV cache, attention and
// importance are compared after every step. `window` 1 means no smoothing.
static void check_attention(int d, int group, int n_kv_heads, int window, bool with_gains)
{
    if (!strcmp(backend_name, "cuda") && d % 8) return; // refused: its copies are 16 bytes wide
    int n_heads = group * n_kv_heads, columns = (n_heads + 2 * n_kv_heads) * d, max_blocks = 10;
    const bool bytes = kv_dtype == DTYPE_INT8 || kv_dtype == DTYPE_FP8;
    float inv_freq[72], long_inv_freq[72], scale[72];
    static const uint8_t still_layers[2] = {1, 0};
    static const int32_t rope_length[SEQUENCES] = {0, 120, 90};
    for (int i = 0; i < d / 2; i++) {
        inv_freq[i] = bytes ? 0 : powf(10000, -2 * (float)i / (float)d);
        long_inv_freq[i] = inv_freq[i] / (float)(i + 2);
        scale[i] = bytes ? 1 : 0.5F + (float)i / (float)d;
    }
    struct backend_shape shape = {.n_layers = 2,
                                  .n_heads = n_heads,
                                  .n_kv_heads = n_kv_heads,
                                  .head_size = d,
                                  .rope = {.inv_freq = inv_freq,
                                           .scale = scale,
                                           .long_inv_freq = n_kv_heads % 2 ? NULL : long_inv_freq,
                                           .original_context = 100,
                                           .ntk_dims = d,
                                           .ntk_factor = n_kv_heads % 2 && d > 2 ? 2 : 0,
                                           .theta = 10000,
                                           .still_layers = still_layers},
                                  .max_rows = SEQUENCES * CONTEXT,
                                  .max_seqs = SEQUENCES,
                                  .max_context = CONTEXT,
                                  .n_kv_blocks = SEQUENCES * max_blocks,
                                  .kv_dtype = kv_dtype};
    open_both(&shape);
    struct tensor *qkv[2], *out[2];
    struct weight *gains[2][2] = {{NULL}};
    float *gain = random_floats((size_t)d, 2);
    for (int i = 0; i < 2; i++) {
        qkv[i] = make_tensor(both[i], TENSOR_F32, shape.max_rows, columns);
        out[i] = make_tensor(both[i], TENSOR_ACTIVATION, shape.max_rows, n_heads * d);
        for (int j = 0; with_gains && !bytes && j < 2; j++)
            gains[i][j] = make_vector(both[i], gain, d);
    }
    int32_t table[SEQUENCES * 10], kv_len[SEQUENCES] = {0}, row_start[SEQUENCES + 1], importance_row[SEQUENCES];
    int32_t importance_keys[SEQUENCES], position[SEQUENCES * CONTEXT];
    random_order(table, SEQUENCES * max_blocks);
    for (int step = 0; step < (n_heads * d > 300 ? 3 : 5); step++) {
        int rows = 0;
        for (int s = 0; s < SEQUENCES; s++) {
            int n = step % 2 ? 1 : 1 + random_below(36);
            if (kv_len[s] + n > CONTEXT) n = CONTEXT - kv_len[s];
            row_start[s] = rows;
            for (int i = 0; i < n; i++)
                position[rows++] = 3 * (kv_len[s] + i) + s;
            importance_row[s] = rows - 1;
            importance_keys[s] = 1 + random_below(kv_len[s] + n);
        }
        row_start[SEQUENCES] = rows;
        struct ragged_batch batch = {.n_rows = rows,
                                     .token = position, // no token is looked up
                                     .position = position,
                                     .n_seqs = SEQUENCES,
                                     .row_start = row_start,
                                     .kv_len = kv_len,
                                     .rope_length = rope_length,
                                     .block_table = table,
                                     .max_blocks = max_blocks,
                                     .n_importance_rows = step % 3,
                                     .importance_row = importance_row,
                                     .importance_keys = importance_keys,
                                     .smoothing_window = window};
        float *values = random_floats((size_t)(rows * columns), 2), *rotated[2], *importance[2];
        int64_t importance_size = ragged_importance_size(&batch);
        for (int i = 0; i < 2; i++) {
            struct backend *b = both[i];
            OK(b->ops->begin(b, &batch));
            for (int layer = 0; layer < 2; layer++) {
                tensor_write(b, qkv[i], values, (size_t)(rows * columns));
                OK(b->ops->rope_append(b, layer, qkv[i], gains[i][0], gains[i][1], 1e-6f));
                OK(b->ops->attention(b, layer, out[i], qkv[i]));
            }
            rotated[i] = mem_alloc_array((size_t)(rows * columns), sizeof(float));
            OK(b->ops->read(b, qkv[i], rows, rotated[i]));
            importance[i] = mem_alloc_array((size_t)importance_size, sizeof(float));
            ck_assert((b->ops->importance_data(b) != NULL) == (importance_size > 0));
            if (importance_size) OK(b->ops->importance_read(b, importance[i]));
        }
        for (int r = 0; r < rows; r++) // q only: backends may leave anything in the k and v columns
            compare(rotated[1] + r * columns, rotated[0] + r * columns, 1, n_heads * d, 1e-5f, 1e-6f);
        // In bf16 a key or value may round to its neighbour in one backend. With an 8-bit cache nothing is rotated or
        // normalised here, so both backends quantise the same numbers.
        compare_activation(out, rows, n_heads * d, dtype == DTYPE_BF16 ? 4e-3f : 1e-5f, 0);
        compare(importance[1], importance[0], 1, (int)importance_size, 1e-6f, dtype == DTYPE_BF16 ? 2e-2f : 1e-4f);
        for (int i = 0; i < 2; i++) {
            free(rotated[i]);
            free(importance[i]);
        }
        free(values);
        for (int s = 0; s < SEQUENCES; s++)
            kv_len[s] += row_start[s + 1] - row_start[s];
    }
    free(gain);
    close_both();
}

static void check_attention_shapes(void)
{
    check_attention(8, 1, 2, 13, false);
    check_attention(16, 2, 2, 1, true);
    check_attention(64, 4, 1, 13, false);
    check_attention(96, 1, 1, 5, true);
    check_attention(128, 8, 1, 401, false);
    check_attention(2, 3, 2, 3, true);
    check_attention(10, 8, 1, 13, false);
    check_attention(24, 3, 2, 7, false);
    check_attention(40, 5, 1, 13, true);
    check_attention(80, 7, 1, 13, false);
    check_attention(112, 6, 1, 3, false);
    check_attention(6, 36, 1, 13, false); // more heads in a group than a query tile holds
}

START_TEST(attention_matches_reference)
{
    variant_setup(_i);
    if (dtype != DTYPE_F32 && dtype != DTYPE_BF16) return; // attention itself has no 8-bit dtype
    check_attention_shapes();
}
END_TEST

START_TEST(attention_over_int8_kv_matches_reference)
{
    variant_setup(_i);
    if (dtype != DTYPE_BF16 || !strcmp(backend_name, "cuda")) return;
    kv_dtype = DTYPE_INT8;
    check_attention_shapes();
    check_attention(144, 2, 1, 13, false); // more dims than one step quantises
}
END_TEST

START_TEST(attention_over_fp8_kv_matches_reference)
{
    variant_setup(_i);
    if (dtype != DTYPE_BF16 || strcmp(backend_name, "cuda") != 0) return;
    kv_dtype = DTYPE_FP8;
    check_attention_shapes();
}
END_TEST

// An entry that is not finite affects the rows that see it, and no row after it was overwritten. A key that is not
// finite makes the importance infinite, which every maximum keeps.
static void check_non_finite_entries(enum dtype cache_dtype)
{
    enum { D = 8, ROWS = 20 };
    struct backend_shape shape = small;
    float inv_freq[D / 2] = {0};
    shape.head_size = D, shape.rope.inv_freq = inv_freq;
    shape.kv_dtype = cache_dtype;
    shape.max_rows = shape.max_context = ROWS, shape.n_kv_blocks = 2;
    open_both(&shape);
    int32_t position[ROWS], start[2] = {0, ROWS}, kv_len[1] = {0}, blocks[2] = {1, 0};
    for (int i = 0; i < ROWS; i++)
        position[i] = i;
    struct ragged_batch batch = {.n_rows = ROWS,
                                 .token = position, // no token is looked up
                                 .position = position,
                                 .n_seqs = 1,
                                 .row_start = start,
                                 .kv_len = kv_len,
                                 .block_table = blocks,
                                 .max_blocks = 2,
                                 .n_importance_rows = 1,
                                 .importance_row = (int32_t[]){ROWS - 1},
                                 .importance_keys = (int32_t[]){ROWS},
                                 .smoothing_window = 3};
    float *values = random_floats(ROWS * 3 * D, 1), importance[ROWS];
    for (int bad = 0; bad < 4; bad++) { // a bad key, a bad value, a key of zeros, none
        for (int i = 0; i < D; i++)
            values[9 * 3 * D + D + i] = bad == 2 ? 0 : 0.5f;
        values[9 * 3 * D + D + 1] = bad == 0 ? INFINITY : bad == 2 ? 0 : 0.25f;
        values[9 * 3 * D + 2 * D + 1] = bad == 1 ? NAN : 0.25f;
        for (int i = 0; i < 2; i++) {
            struct backend *b = both[i];
            struct tensor *qkv = make_tensor(b, TENSOR_F32, ROWS, 3 * D);
            struct tensor *out = make_tensor(b, TENSOR_ACTIVATION, ROWS, D);
            tensor_write(b, qkv, values, ROWS * 3 * D);
            OK(b->ops->begin(b, &batch));
            OK(b->ops->rope_append(b, 0, qkv, NULL, NULL, 0));
            OK(b->ops->attention(b, 0, out, qkv));
            int n;
            float *y = read_activation(b, out, ROWS, D, &n);
            const int n_numbers = bad < 2 ? 9 : ROWS; // the rows before the first NaN
            for (int r = 0; r < ROWS; r++)
                ck_assert_msg(isnan(y[r * n + 1]) == (r >= n_numbers), "row %d of case %d: %g", r, bad, y[r * n + 1]);
            free(y);
            OK(b->ops->importance_read(b, importance));
            for (int k = 0; k < ROWS; k++) {
                ck_assert_msg(isfinite(importance[k]) == (bad > 0), "key %d of case %d: %g", k, bad, importance[k]);
                ck_assert_msg(importance[k] > 0, "key %d of case %d: %g", k, bad, importance[k]);
            }
        }
    }
    free(values);
    close_both();
}

START_TEST(non_finite_entries_reach_only_the_rows_that_see_them)
{
    variant_setup(_i);
    if (dtype == DTYPE_F32) return;
    // CUDA multiplies V of a hidden bf16 entry by 0, so there a value that is not finite reaches the other rows too.
    if (strcmp(backend_name, "cuda")) check_non_finite_entries(DTYPE_BF16);
    check_non_finite_entries(strcmp(backend_name, "cuda") ? DTYPE_INT8 : DTYPE_FP8);
}
END_TEST

SUITE("kernels")
{
    SKIP_UNLESS(choose_isas(argc, argv));
    variants_list();
    LOOP(linear_matches_reference, 0, n_variants);
    LOOP(tiled_outputs_are_the_same, 0, n_isas);
    LOOP(streamed_outputs_are_the_same, 0, n_isas);
    LOOP(swiglu_matches_reference, 0, n_variants);
    LOOP(weights_pack_from_unaligned_views, 0, n_variants);
    LOOP(rmsnorm_matches_reference, 0, n_variants);
    LOOP(embeddings_are_exact_tied_or_not, 0, n_variants);
    LOOP(nan_stays_in_its_row, 0, n_variants);
    LOOP(attention_matches_reference, 0, n_variants);
    LOOP(attention_over_int8_kv_matches_reference, 0, n_variants);
    LOOP(attention_over_fp8_kv_matches_reference, 0, n_variants);
    LOOP(non_finite_entries_reach_only_the_rows_that_see_them, 0, n_variants);
}
