// SPDX-License-Identifier: Apache-2.0
// The kernels of kernels/cuda/rows.cu at odd widths, on an emulated GPU: their results, and that they write nothing
// else to memory.
#include <math.h>

#include "kernels/convert.h"
#include "kernels/cuda/cuda.h"
#include "tests/cuda_here.h"
#include "tests/kernel_fixture.h"
#include "tests/suite.h"

enum { ROWS = 3, X_ROWS = 6 }; // X_ROWS: rows that an index chooses from
static const float GUARD = -12345.5f;
static const int widths[] = {1, 2, 7, 8, 15, 16, 24, 33, 64, 100, 257, 520, 4104};
enum { N_WIDTHS = sizeof widths / sizeof widths[0] };

// ---- device memory by hand ------------------------------------------------------------------------------------------

static void *to_device(const void *host, size_t bytes)
{
    void *device;
    ck_assert_int_eq(cudaMalloc(&device, bytes), cudaSuccess);
    ck_assert_int_eq(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice), cudaSuccess);
    return device;
}

// Copies memory of to_device back to the host and frees it.
static void from_device(void *host, void *device, size_t bytes)
{
    ck_assert_int_eq(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
    cudaFree(device);
}

static uint16_t *bf16_of(const float *values, size_t n)
{
    uint16_t *halves = mem_alloc_array(n, sizeof *halves);
    for (size_t i = 0; i < n; i++)
        halves[i] = bf16_from_f32(values[i]);
    return halves;
}

// Checks ROWS rows of `stride` values: the first n columns equal `want` within `relative`, the others are unchanged.
static void check_bf16(const uint16_t *got, const double *want, int n, int stride, double relative)
{
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < stride; c++) {
            double is = (double)bf16_to_f32(got[r * stride + c]);
            double should = c < n ? want[r * n + c] : (double)bf16_to_f32(bf16_from_f32(GUARD));
            ck_assert_msg(fabs(is - should) <= relative * fabs(should) + 1e-30, "row %d, column %d of %d: %g, not %g",
                          r, c, n, is, should);
        }
}

static uint16_t *guarded(int stride)
{
    uint16_t *out = mem_alloc_array((size_t)ROWS * (size_t)stride, sizeof *out);
    for (int i = 0; i < ROWS * stride; i++)
        out[i] = bf16_from_f32(GUARD);
    return out;
}

// ---- rows -----------------------------------------------------------------------------------------------------------

START_TEST(embed_scales_rows_of_this_rank)
{
    const int n = widths[_i], stride = cuda_stride(n);
    enum { TABLE = 5, FIRST = 100 };
    float *values = random_floats(TABLE * (size_t)stride, 1),
          *out = mem_alloc_array((size_t)ROWS * (size_t)n, sizeof *out);
    uint16_t *table = bf16_of(values, TABLE * (size_t)stride);
    const int32_t token[ROWS] = {FIRST + TABLE - 1, FIRST + TABLE, FIRST};
    void *device_table = to_device(table, TABLE * (size_t)stride * 2), *device_token = to_device(token, sizeof token);
    void *device_out = to_device(out, (size_t)ROWS * (size_t)n * sizeof *out);
    ck_assert_int_eq(launch_embed(NULL, device_out, device_table, stride, TABLE, FIRST, device_token, ROWS, n, 0.5f),
                     cudaSuccess);
    from_device(out, device_out, (size_t)ROWS * (size_t)n * sizeof *out);
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < n; c++)
            ck_assert(out[r * n + c] == (r == 1 ? 0 : bf16_to_f32(table[(token[r] - FIRST) * stride + c]) / 2));
    cudaFree(device_table), cudaFree(device_token);
    free(values), free(table), free(out);
}
END_TEST

START_TEST(rmsnorm_normalises_the_rows_of_an_index)
{
    const int n = widths[_i], stride = cuda_stride(n);
    const int32_t index[ROWS] = {4, 0, 5};
    float *x = random_floats(X_ROWS * (size_t)n, 3), *gain = random_floats((size_t)n, 2);
    uint16_t *out = guarded(stride);
    double *want = mem_alloc_array((size_t)ROWS * (size_t)n, sizeof *want);
    void *device_x = to_device(x, X_ROWS * (size_t)n * sizeof *x),
         *device_gain = to_device(gain, (size_t)n * sizeof *gain);
    for (int indexed = 0; indexed < 2; indexed++) {
        void *device_out = to_device(out, (size_t)(ROWS * stride) * 2), *device_index = to_device(index, sizeof index);
        for (int r = 0; r < ROWS; r++) {
            const float *row = x + (indexed ? index[r] : r) * n;
            double sum = 0;
            for (int c = 0; c < n; c++)
                sum += (double)row[c] * (double)row[c];
            for (int c = 0; c < n; c++)
                want[r * n + c] = (double)row[c] / sqrt(sum / n + 1e-5) * (double)gain[c];
        }
        ck_assert_int_eq(launch_rmsnorm(NULL, device_out, stride, device_x, device_gain, 1e-5f,
                                        indexed ? device_index : NULL, ROWS, n),
                         cudaSuccess);
        uint16_t *got = guarded(stride);
        from_device(got, device_out, (size_t)(ROWS * stride) * 2);
        check_bf16(got, want, n, stride, 0x1p-8 + 1e-5);
        cudaFree(device_index);
        free(got);
    }
    cudaFree(device_x), cudaFree(device_gain);
    free(x), free(gain), free(out), free(want);
}
END_TEST

// Checks that the first `n_rows` rows of the residual stream are sums and the other rows are as before.
static void check_sums(const float *after, const float *sum, const float *before, int n_rows, int n)
{
    for (int i = 0; i < X_ROWS * n; i++)
        ck_assert_msg(after[i] == (i < n_rows * n ? sum[i] : before[i]), "column %d of row %d", i % n, i / n);
}

START_TEST(add_rmsnorm_has_the_bits_of_adding_and_rmsnorm)
{
    const int n = widths[_i], stride = cuda_stride(n);
    const int32_t index[ROWS] = {4, 0, 5};
    const size_t x_bytes = X_ROWS * (size_t)n * sizeof(float), out_bytes = (size_t)(ROWS * stride) * 2;
    float *x = random_floats(X_ROWS * (size_t)n, 3), *sum = mem_alloc_array(X_ROWS * (size_t)n, sizeof *sum);
    float *gain = random_floats((size_t)n, 2), *parts = random_floats(X_ROWS * (size_t)stride, 2);
    float *after = mem_alloc_array(X_ROWS * (size_t)n, sizeof *after);
    uint16_t *addend = bf16_of(parts, X_ROWS * (size_t)stride);
    const size_t byte_count = (size_t)(ROWS * stride);
    for (int i = 0; i < X_ROWS * n; i++)
        sum[i] = x[i] + bf16_to_f32(addend[i / n * stride + i % n]);
    void *device_gain = to_device(gain, (size_t)n * sizeof *gain), *device_index = to_device(index, sizeof index);
    void *device_addend = to_device(addend, X_ROWS * (size_t)stride * 2);
    for (int indexed = 0; indexed < 2; indexed++) {
        uint16_t *want = guarded(stride), *got = guarded(stride);
        void *device_x = to_device(x, x_bytes), *device_sum = to_device(sum, x_bytes);
        void *device_want = to_device(want, out_bytes), *device_got = to_device(got, out_bytes);
        const int32_t *rows = indexed ? device_index : NULL;
        ck_assert_int_eq(launch_rmsnorm(NULL, device_want, stride, device_sum, device_gain, 1e-5f, rows, ROWS, n),
                         cudaSuccess);
        ck_assert_int_eq(launch_add_rmsnorm(NULL, device_got, stride, device_x, device_addend, stride, device_gain,
                                            1e-5f, rows, ROWS, n),
                         cudaSuccess);
        from_device(want, device_want, out_bytes);
        from_device(got, device_got, out_bytes);
        ck_assert_mem_eq(got, want, out_bytes);
        from_device(after, device_x, x_bytes);
        check_sums(after, sum, x, indexed ? 0 : ROWS, n);
        // The same with rows in FP8.
        uint8_t *want_fp8 = mem_alloc(byte_count), *got_fp8 = mem_alloc(byte_count);
        float want_scale[ROWS], got_scale[ROWS];
        void *device_want_fp8 = to_device(want_fp8, byte_count), *device_got_fp8 = to_device(got_fp8, byte_count);
        void *device_want_scale = to_device(want_scale, sizeof want_scale);
        void *device_got_scale = to_device(got_scale, sizeof got_scale);
        device_x = to_device(x, x_bytes);
        ck_assert_int_eq(launch_rmsnorm_fp8(NULL, device_want_fp8, stride, device_want_scale, 0, device_sum,
                                            device_gain, 1e-5f, rows, ROWS, n),
                         cudaSuccess);
        ck_assert_int_eq(launch_add_rmsnorm_fp8(NULL, device_got_fp8, stride, device_got_scale, device_x, device_addend,
                                                stride, device_gain, 1e-5f, rows, ROWS, n),
                         cudaSuccess);
        from_device(want_fp8, device_want_fp8, byte_count), from_device(got_fp8, device_got_fp8, byte_count);
        from_device(want_scale, device_want_scale, sizeof want_scale);
        from_device(got_scale, device_got_scale, sizeof got_scale);
        ck_assert_mem_eq(got_fp8, want_fp8, byte_count);
        ck_assert_mem_eq(got_scale, want_scale, sizeof want_scale);
        from_device(after, device_x, x_bytes);
        check_sums(after, sum, x, indexed ? 0 : ROWS, n);
        cudaFree(device_sum);
        free(want), free(got), free(want_fp8), free(got_fp8);
    }
    cudaFree(device_gain), cudaFree(device_index), cudaFree(device_addend);
    free(x), free(sum), free(gain), free(parts), free(after), free(addend);
}
END_TEST

START_TEST(swiglu_reads_both_halves_of_a_row)
{
    const int n = widths[_i], stride = cuda_stride(n), x_stride = cuda_stride(2 * n);
    float *x = random_floats((size_t)(ROWS * x_stride), 20);
    x[0] = 300, x[x_stride] = -300; // exp(300) is infinite in f32
    uint16_t *out = guarded(stride);
    double *want = mem_alloc_array((size_t)ROWS * (size_t)n, sizeof *want);
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < n; c++) {
            double gate = (double)x[r * x_stride + c];
            want[r * n + c] = gate / (1 + exp(-gate)) * (double)x[r * x_stride + n + c];
        }
    void *device_x = to_device(x, (size_t)(ROWS * x_stride) * sizeof *x);
    void *device_out = to_device(out, (size_t)(ROWS * stride) * 2);
    ck_assert_int_eq(launch_swiglu(NULL, device_out, stride, device_x, x_stride, ROWS, n), cudaSuccess);
    from_device(out, device_out, (size_t)(ROWS * stride) * 2);
    check_bf16(out, want, n, stride, 0x1p-8 + 1e-5);
    cudaFree(device_x);
    free(x), free(out), free(want);
}
END_TEST

// Bytes and scales have the bits that convert.h defines for them.
START_TEST(rows_are_quantised_as_convert_h_defines)
{
    const int n = widths[_i], stride = cuda_stride(n);
    enum { ALL = 6 };
    for (int f32 = 0; f32 < 2; f32++) {
        float *x = mem_alloc_array((size_t)(ALL * stride), sizeof *x), scale[ALL];
        for (int r = 0; r < ALL; r++)
            for (int c = 0; c < n; c++)
                x[r * stride + c] = r == 2 ? 0 : random_float(r == 1 ? 1e-4f : 100);
        x[3 * stride + n / 2] = NAN, x[4 * stride] = INFINITY;
        for (int c = 0; c < n; c++)
            x[5 * stride + c] = 1e-33f; // below QUANTISE_MIN
        uint16_t *halves = bf16_of(x, (size_t)(ALL * stride));
        for (int i = 0; i < ALL * stride && !f32; i++)
            x[i] = bf16_to_f32(halves[i]);
        uint8_t *bytes = mem_alloc((size_t)(ALL * stride));
        memset(bytes, 0xaa, (size_t)(ALL * stride));
        void *device_x = f32 ? to_device(x, (size_t)(ALL * stride) * 4) : to_device(halves, (size_t)(ALL * stride) * 2);
        void *device_out = to_device(bytes, (size_t)(ALL * stride)), *device_scale = to_device(scale, sizeof scale);
        ck_assert_int_eq(launch_quantise_rows(NULL, device_out, stride, device_scale, device_x, f32, stride, ALL, n),
                         cudaSuccess);
        from_device(bytes, device_out, (size_t)(ALL * stride));
        from_device(scale, device_scale, sizeof scale);
        for (int r = 0; r < ALL; r++) {
            float largest = 0;
            for (int c = 0; c < n; c++)
                largest = fmaxf(largest, fabsf(x[r * stride + c]));
            bool finite = r != 3 && r != 4;
            if (finite) ck_assert(scale[r] == largest / E4M3_MAX);
            if (!finite) ck_assert(isnan(scale[r]));
            for (int c = 0; c < stride; c++) {
                float q = !finite || largest < QUANTISE_MIN ? 0 : x[r * stride + c] * (E4M3_MAX / largest);
                ck_assert_int_eq(bytes[r * stride + c], c < n ? e4m3_from_f32(q) : 0xaa);
            }
        }
        cudaFree(device_x);
        free(x), free(halves), free(bytes);
    }
}
END_TEST

START_TEST(swiglu_to_fp8_is_swiglu_and_quantisation)
{
    const int n = widths[_i], stride = cuda_stride(n), x_stride = cuda_stride(2 * n);
    float *x = random_floats((size_t)(ROWS * x_stride), 20), scale[2][ROWS];
    for (int c = 0; c < 2 * n; c++)
        x[x_stride + c] = 0;
    x[2 * x_stride + n / 2] = INFINITY;
    const size_t bytes = (size_t)(ROWS * stride);
    uint16_t *halves = mem_alloc_array(bytes, sizeof *halves);
    uint8_t *got[2] = {mem_alloc(bytes), mem_alloc(bytes)};
    memset(got[0], 0xaa, bytes);
    void *device_x = to_device(x, (size_t)(ROWS * x_stride) * sizeof *x), *device_halves = to_device(halves, bytes * 2);
    void *device[2], *device_scale[2];
    for (int i = 0; i < 2; i++)
        device[i] = to_device(got[i], bytes), device_scale[i] = to_device(scale[i], sizeof scale[i]);
    ck_assert_int_eq(launch_swiglu_fp8(NULL, device[0], stride, device_scale[0], device_x, x_stride, ROWS, n),
                     cudaSuccess);
    ck_assert_int_eq(launch_swiglu(NULL, device_halves, stride, device_x, x_stride, ROWS, n), cudaSuccess);
    ck_assert_int_eq(
        launch_quantise_rows(NULL, device[1], stride, device_scale[1], device_halves, false, stride, ROWS, stride),
        cudaSuccess);
    for (int i = 0; i < 2; i++) {
        from_device(got[i], device[i], bytes);
        from_device(scale[i], device_scale[i], sizeof scale[i]);
    }
    ck_assert_mem_eq(got[0], got[1], bytes);
    for (int r = 0; r < ROWS; r++) {
        if (r != 2) ck_assert(!isnan(scale[0][r]));
        ck_assert_msg(float_is_same(scale[0][r], scale[1][r]), "row %d: %g, not %g", r, (double)scale[0][r],
                      (double)scale[1][r]);
    }
    cudaFree(device_x), cudaFree(device_halves);
    free(x), free(halves), free(got[0]), free(got[1]);
}
END_TEST

// The bits are those of launch_rmsnorm followed by launch_quantise_rows or launch_quantise_blocks, with zeros after the
// row.
START_TEST(rmsnorm_to_fp8_is_rmsnorm_and_quantisation)
{
    const int n = widths[_i], stride = cuda_stride(n), blocks = (stride + FP8_BLOCK - 1) / FP8_BLOCK;
    enum { ALL = 5 };
    const int32_t index[ALL] = {4, 0, 3, 1, 2};
    float *x = random_floats(ALL * (size_t)n, 3), *gain = random_floats((size_t)n, 2);
    for (int c = 0; c < n; c++)
        x[c] = 0;
    x[n + n / 2] = NAN, x[2 * n] = INFINITY;
    void *device_x = to_device(x, ALL * (size_t)n * 4), *device_gain = to_device(gain, (size_t)n * 4);
    void *device_index = to_device(index, sizeof index);
    for (int kind = 0; kind < 4; kind++) {
        const int32_t *rows = kind & 1 ? device_index : NULL;
        const int scale_stride = kind & 2 ? ALL + 3 : 0;
        const size_t row_bytes = (size_t)(ALL * stride), scales = (size_t)(scale_stride ? blocks * scale_stride : ALL);
        uint16_t *normed = mem_alloc_array(row_bytes, sizeof *normed);
        uint8_t *bytes[2] = {mem_alloc(row_bytes), mem_alloc(row_bytes)};
        float *scale[2] = {mem_alloc_array(scales, 4), mem_alloc_array(scales, 4)};
        memset(bytes[0], 0xaa, row_bytes);
        void *device_normed = to_device(normed, row_bytes * 2), *device_bytes[2], *device_scale[2];
        for (int i = 0; i < 2; i++)
            device_bytes[i] = to_device(bytes[i], row_bytes), device_scale[i] = to_device(scale[i], scales * 4);
        ck_assert_int_eq(launch_rmsnorm_fp8(NULL, device_bytes[0], stride, device_scale[0], scale_stride, device_x,
                                            device_gain, 1e-5f, rows, ALL, n),
                         cudaSuccess);
        ck_assert_int_eq(launch_rmsnorm(NULL, device_normed, stride, device_x, device_gain, 1e-5f, rows, ALL, n),
                         cudaSuccess);
        ck_assert_int_eq(scale_stride ? launch_quantise_blocks(NULL, device_bytes[1], stride, device_scale[1],
                                                               scale_stride, device_normed, stride, ALL, stride)
                                      : launch_quantise_rows(NULL, device_bytes[1], stride, device_scale[1],
                                                             device_normed, false, stride, ALL, stride),
                         cudaSuccess);
        for (int i = 0; i < 2; i++) {
            from_device(bytes[i], device_bytes[i], row_bytes);
            from_device(scale[i], device_scale[i], scales * 4);
        }
        ck_assert_mem_eq(bytes[0], bytes[1], row_bytes);
        for (size_t i = 0; i < scales; i++)
            ck_assert_msg(float_is_same(scale[0][i], scale[1][i]), "kind %d, width %d: scale %zu is %g, not %g", kind,
                          n, i, (double)scale[0][i], (double)scale[1][i]);
        cudaFree(device_normed);
        for (int i = 0; i < 2; i++)
            free(bytes[i]), free(scale[i]);
        free(normed);
    }
    cudaFree(device_x), cudaFree(device_gain), cudaFree(device_index);
    free(x), free(gain);
}
END_TEST

START_TEST(epilogue_scales_adds_and_stores)
{
    const int n = widths[_i], stride = cuda_stride(n), x_stride = cuda_stride(n) + 16;
    float *x = random_floats((size_t)(ROWS * x_stride), 2), *column = random_floats((size_t)n, 2);
    float *bias = random_floats((size_t)n, 2), *base = random_floats((size_t)(ROWS * stride), 2),
          row[ROWS] = {2, 0.3f, -1};
    void *device_x = to_device(x, (size_t)(ROWS * x_stride) * 4), *device_column = to_device(column, (size_t)n * 4);
    void *device_bias = to_device(bias, (size_t)n * 4), *device_row = to_device(row, sizeof row);
    for (int kind = 0; kind < 8; kind++) {
        const bool scaled = kind & 1, biased = kind & 2, add = kind & 4;
        void *device_out = to_device(base, (size_t)(ROWS * stride) * 4);
        float *out = mem_alloc_array((size_t)(ROWS * stride), sizeof *out);
        ck_assert_int_eq(launch_epilogue(NULL, device_out, stride, false, add, device_x, x_stride,
                                         scaled ? device_row : NULL, scaled ? device_column : NULL,
                                         biased ? device_bias : NULL, ROWS, n),
                         cudaSuccess);
        from_device(out, device_out, (size_t)(ROWS * stride) * 4);
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < stride; c++) {
                float y = c < n ? x[r * x_stride + c] : base[r * stride + c];
                if (c < n && scaled) y = y * row[r] * column[c];
                if (c < n && biased) y += bias[c];
                if (c < n && add) y += base[r * stride + c];
                ck_assert_msg(fabsf(out[r * stride + c] - y) <= 1e-5f, "kind %d, row %d, column %d of %d", kind, r, c,
                              n);
            }
        free(out);
    }
    uint16_t *out = guarded(stride);
    double *want = mem_alloc_array((size_t)ROWS * (size_t)n, sizeof *want);
    for (int i = 0; i < ROWS * n; i++)
        want[i] = (double)x[i / n * x_stride + i % n] + (double)bias[i % n];
    void *device_out = to_device(out, (size_t)(ROWS * stride) * 2);
    ck_assert_int_eq(
        launch_epilogue(NULL, device_out, stride, true, false, device_x, x_stride, NULL, NULL, device_bias, ROWS, n),
        cudaSuccess);
    from_device(out, device_out, (size_t)(ROWS * stride) * 2);
    check_bf16(out, want, n, stride, 0x1p-8 + 1e-4);
    cudaFree(device_x), cudaFree(device_column), cudaFree(device_bias), cudaFree(device_row);
    free(x), free(column), free(bias), free(base), free(out), free(want);
}
END_TEST

SUITE("cuda_rows")
{
    SKIP_UNLESS(cuda_is_here());
    TIMEOUT(120);
    LOOP(embed_scales_rows_of_this_rank, 0, N_WIDTHS);
    LOOP(rmsnorm_normalises_the_rows_of_an_index, 0, N_WIDTHS);
    LOOP(add_rmsnorm_has_the_bits_of_adding_and_rmsnorm, 0, N_WIDTHS);
    LOOP(swiglu_reads_both_halves_of_a_row, 0, N_WIDTHS);
    LOOP(rows_are_quantised_as_convert_h_defines, 0, N_WIDTHS);
    LOOP(swiglu_to_fp8_is_swiglu_and_quantisation, 0, N_WIDTHS);
    LOOP(rmsnorm_to_fp8_is_rmsnorm_and_quantisation, 0, N_WIDTHS);
    LOOP(epilogue_scales_adds_and_stores, 0, N_WIDTHS);
}
