// SPDX-License-Identifier: Apache-2.0
// The reference backend against values computed by hand or by the C library, and the checks common to all backends.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"
#include "kernels/check.h"
#include "kernels/convert.h"
#include "tests/suite.h"

static const float inv_freq[2] = {1, 0.01f};
static const struct backend_shape shape = {
    .n_layers = 2,
    .n_heads = 2,
    .n_kv_heads = 1,
    .head_size = 4,
    .rope.inv_freq = inv_freq,
    .max_rows = 8,
    .max_seqs = 2,
    .max_context = 40,
    .n_kv_blocks = 6,
};

static struct backend *open_f32(void)
{
    struct backend *b;
    ck_assert_int_eq(backend_open("reference", &shape, DTYPE_F32, 0, &b), STATUS_OK);
    return b;
}

static struct matrix_view view(const float *data, int rows, int columns)
{
    return (struct matrix_view){.data = data,
                                .dtype = DTYPE_F32,
                                .rows = rows,
                                .columns = columns,
                                .row_stride_bytes = columns * (int64_t)sizeof *data};
}

static void put(struct backend *b, struct tensor *t, const float *values, int count)
{
    memcpy(b->ops->tensor_data(b, t), values, (size_t)count * sizeof *values);
}

START_TEST(f16_converts_every_value)
{
    for (uint32_t h = 0; h < 65536; h++) {
        int sign = h >> 15, exponent = h >> 10 & 31, mantissa = h & 1023;
        float got = f16_to_f32((uint16_t)h);
        if (exponent == 31) {
            ck_assert(mantissa ? isnan(got) : got == (sign ? -INFINITY : INFINITY));
            continue;
        }
        float want = exponent ? ldexpf((float)(1024 + mantissa), exponent - 25) : ldexpf((float)mantissa, -24);
        ck_assert_uint_eq(f32_bits(got), f32_bits(sign ? -want : want));
    }
}
END_TEST

START_TEST(bf16_rounds_to_nearest_even)
{
    for (uint32_t h = 0; h < 65536; h++)
        if (!isnan(bf16_to_f32((uint16_t)h))) ck_assert_uint_eq(bf16_from_f32(bf16_to_f32((uint16_t)h)), h);
    ck_assert_uint_eq(bf16_from_f32(f32_from_bits(0x3f808000)), 0x3f80); // tie: down to even
    ck_assert_uint_eq(bf16_from_f32(f32_from_bits(0x3f818000)), 0x3f82); // tie: up to even
    ck_assert_uint_eq(bf16_from_f32(f32_from_bits(0x3f808001)), 0x3f81);
    ck_assert_uint_eq(bf16_from_f32(f32_from_bits(0x7f7fffff)), 0x7f80); // overflow is infinity
    ck_assert(isnan(bf16_to_f32(bf16_from_f32(f32_from_bits(0x7fffffff)))));
    ck_assert(isnan(bf16_to_f32(bf16_from_f32(f32_from_bits(0xff800001)))));
}
END_TEST

START_TEST(e4m3_converts_every_value)
{
    for (uint32_t code = 0; code < 256; code++) {
        int sign = code >> 7, exponent = code >> 3 & 15, mantissa = code & 7;
        float got = e4m3_to_f32((uint8_t)code);
        if (exponent == 15 && mantissa == 7) {
            ck_assert(isnan(got));
            ck_assert_uint_eq(f32_bits(got) >> 31, (unsigned)sign);
            continue;
        }
        float want = exponent ? ldexpf((float)(8 + mantissa), exponent - 10) : ldexpf((float)mantissa, -9);
        ck_assert_uint_eq(f32_bits(got), f32_bits(sign ? -want : want));
    }
    ck_assert_float_eq(e4m3_to_f32(0x7e), E4M3_MAX);
}
END_TEST

// Returns the nearest representable value, of two equally near ones the even one.
static uint8_t slow_e4m3(double value)
{
    uint8_t best = 0;
    double nearest = INFINITY;
    for (int code = 0; code < 0x7f; code++) {
        int exponent = code >> 3, mantissa = code & 7;
        double number = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
        double away = fabs(fabs(value) - number);
        if (away < nearest || (away == nearest && code % 2 == 0)) {
            nearest = away;
            best = (uint8_t)code;
        }
    }
    return signbit(value) ? best | 0x80 : best;
}

static void check_e4m3(float value)
{
    for (int sign = 0; sign < 2; sign++, value = -value)
        ck_assert_msg(e4m3_from_f32(value) == slow_e4m3((double)value), "%a becomes %02x, should be %02x",
                      (double)value, e4m3_from_f32(value), slow_e4m3((double)value));
}

START_TEST(e4m3_rounds_to_nearest_even_and_saturates)
{
    for (int code = 0; code < 256; code++) // representable values are unchanged
        if ((code & 0x7f) != 0x7f) ck_assert_uint_eq(e4m3_from_f32(e4m3_to_f32((uint8_t)code)), (unsigned)code);
    for (uint8_t code = 0; code < 0x7e; code++) {
        float value = e4m3_to_f32(code), middle = (value + e4m3_to_f32(code + 1)) / 2;
        for (int i = 0; i < 2; i++, value = middle) {
            check_e4m3(value);
            check_e4m3(nextafterf(value, 0));
            check_e4m3(nextafterf(value, INFINITY));
        }
    }
    for (uint32_t upper = 0; upper < 0x7f80; upper++) { // all bf16, and f32 between them
        check_e4m3(f32_from_bits(upper << 16));
        check_e4m3(f32_from_bits(upper << 16 | 0x1234));
    }
    ck_assert_uint_eq(e4m3_from_f32(464), 0x7e);
    ck_assert_uint_eq(e4m3_from_f32(-1e30f), 0xfe);
    ck_assert_uint_eq(e4m3_from_f32(INFINITY), 0x7e);
    ck_assert_uint_eq(e4m3_from_f32(-INFINITY), 0xfe);
    ck_assert_uint_eq(e4m3_from_f32(f32_from_bits(0x7fffffff)), 0x7f);
    ck_assert_uint_eq(e4m3_from_f32(f32_from_bits(0xff800001)), 0xff);
}
END_TEST

START_TEST(fp8_views_apply_the_scales_of_their_rows)
{
    const unsigned char codes[] = {0x38, 0xc0, 0x01, 0x7e, 0x00, 0xb8}; // 1, -2, 2^-9; 448, 0, -1
    const uint16_t f16[2] = {0x3c00, 0x3800}, bf16[2] = {0x3f80, 0x3f00};
    const float f32[2] = {1, 0.5f};
    const void *from[] = {[DTYPE_F32] = f32, [DTYPE_F16] = f16, [DTYPE_BF16] = bf16};
    unsigned char raw[16];
    float out[3];
    for (int dtype = DTYPE_F32; dtype <= DTYPE_BF16; dtype++) {
        size_t size = dtype_size_bytes((enum dtype)dtype);
        memcpy(raw + 1, from[dtype], 2 * size);
        struct matrix_view v = {.data = codes,
                                .dtype = DTYPE_FP8,
                                .rows = 2,
                                .columns = 3,
                                .row_stride_bytes = 3,
                                .scale = raw + 1,
                                .scale_dtype = (enum dtype)dtype,
                                .scale_stride = 1};
        matrix_view_read(&v, 0, 0, 3, out);
        ck_assert_mem_eq(out, ((float[]){1, -2, 0x1p-9f}), sizeof out);
        matrix_view_read(&v, 1, 0, 3, out);
        ck_assert_mem_eq(out, ((float[]){224, 0, -0.5f}), sizeof out);
        v.scale = raw + 1 + size, v.scale_stride = 0; // one for all rows
        matrix_view_read(&v, 0, 1, 2, out);
        ck_assert_mem_eq(out, ((float[]){-1, 0x1p-10f}), 2 * sizeof *out);
        ck_assert_float_eq(matrix_view_scale(&v, 1, 0), 0.5f);
        v.scale = NULL;
        matrix_view_read(&v, 1, 0, 3, out);
        ck_assert_mem_eq(out, ((float[]){448, 0, -1}), sizeof out);
    }
    ck_assert_str_eq(dtype_name(DTYPE_FP8), "fp8");
    ck_assert_uint_eq(dtype_size_bytes(DTYPE_FP8), 1);
    ck_assert_uint_eq(dtype_kv_bytes(DTYPE_FP8, 128), 132);
    ck_assert_int_eq(dtype_of_activations(DTYPE_FP8), DTYPE_BF16);
}
END_TEST

// 17 lies between the FP8 neighbours 16 and 18.
START_TEST(fp8_products_round_rows_and_matrices)
{
    const float ones[3] = {1, 1, 1}, gains[3] = {448, 17, -1}, matrix[3] = {448, 17, 1};
    const unsigned char codes[3] = {0x40, 0x38, 0xb8}; // 2, 1, -1
    const float scale = 0.5f;
    struct matrix_view plain = view(matrix, 1, 3), bytes = {.data = codes,
                                                            .dtype = DTYPE_FP8,
                                                            .rows = 1,
                                                            .columns = 3,
                                                            .row_stride_bytes = 3,
                                                            .scale = &scale,
                                                            .scale_dtype = DTYPE_F32};
    for (int as_stored = 0; as_stored < 2; as_stored++) {
        struct backend *b;
        struct backend_shape s = shape;
        s.as_stored = as_stored;
        ck_assert_int_eq(backend_open("reference", &s, DTYPE_FP8, 0, &b), STATUS_OK);
        struct tensor *raw, *x, *out;
        b->ops->tensor_create(b, TENSOR_F32, 1, 3, &raw);
        b->ops->tensor_create(b, TENSOR_ACTIVATION, 1, 3, &x);
        b->ops->tensor_create(b, TENSOR_F32, 1, 3, &out);
        struct weight *gain, *w, *table;
        struct matrix_view gain_view = view(gains, 1, 3);
        b->ops->weight_vector(b, &gain_view, 1, &gain);
        put(b, raw, ones, 3);
        b->ops->rmsnorm(b, x, raw, gain, 0, NULL, 1);
        // A weight of several parts is computed in FP8 if one part is stored in FP8.
        b->ops->weight_create(b, (struct matrix_view[]){bytes, plain, bytes}, 3, &w);
        b->ops->linear(b, out, x, w, NULL, LINEAR_STORE, 1);
        float y[3];
        b->ops->read(b, out, 1, y);
        ck_assert_float_eq(y[0], 0.5f * (2 * 448 + 16 + 1));
        ck_assert_float_eq(y[1], 448 * 448 + 16 * 16 - 1);
        ck_assert_float_eq(y[2], y[0]);
        struct tensor *one;
        b->ops->tensor_create(b, TENSOR_F32, 1, 1, &one);
        b->ops->weight_create(b, &plain, 1, &w);
        b->ops->linear(b, one, x, w, NULL, LINEAR_STORE, 1);
        b->ops->read(b, one, 1, y);
        ck_assert_float_eq(y[0], as_stored ? 448 * 448 + 17 * 17 - 1 : 448 * 448 + 16 * 16 - 1);
        // An embedding table is not a gemm operand: it is bf16, tied or not.
        b->ops->weight_embedding(b, &plain, 0, w, &table);
        struct ragged_batch batch = {.n_rows = 1,
                                     .token = (int32_t[]){0},
                                     .position = (int32_t[]){0},
                                     .n_seqs = 1,
                                     .row_start = (int32_t[]){0, 1},
                                     .kv_len = (int32_t[]){0},
                                     .block_table = (int32_t[]){0},
                                     .max_blocks = 1};
        b->ops->begin(b, &batch);
        b->ops->embed(b, out, table);
        b->ops->read(b, out, 1, y);
        ck_assert_mem_eq(y, matrix, sizeof y);
        // The results of a row that is not finite are NaN.
        put(b, raw, (float[]){1, NAN, 1}, 3);
        b->ops->rmsnorm(b, x, raw, gain, 0, NULL, 1);
        b->ops->weight_create(b, &bytes, 1, &w);
        b->ops->linear(b, one, x, w, NULL, LINEAR_STORE, 1);
        b->ops->read(b, one, 1, y);
        ck_assert(isnan(y[0]));
        b->ops->close(b);
    }
}
END_TEST

// Attention over one entry is its V as stored in the cache; over two entries it depends on K as stored.
START_TEST(fp8_entries_are_rounded_with_a_scale_each)
{
    struct backend *b;
    struct backend_shape s = shape;
    s.kv_dtype = DTYPE_FP8;
    ck_assert_int_eq(backend_open("reference", &s, DTYPE_BF16, 0, &b), STATUS_OK);
    struct tensor *qkv, *out, *plain;
    b->ops->tensor_create(b, TENSOR_F32, 2, 16, &qkv);
    b->ops->tensor_create(b, TENSOR_ACTIVATION, 2, 8, &out);
    b->ops->tensor_create(b, TENSOR_F32, 2, 8, &plain);
    float eye[64] = {0};
    for (int i = 0; i < 8; i++)
        eye[9 * i] = 1;
    struct weight *identity;
    struct matrix_view eye_view = view(eye, 8, 8);
    b->ops->weight_create(b, &eye_view, 1, &identity);
    for (int bad = 0; bad < 2; bad++) {
        struct ragged_batch batch = {.n_rows = 2,
                                     .token = (int32_t[]){0, 0},
                                     .position = (int32_t[]){0, 0}, // no rotation
                                     .n_seqs = 1,
                                     .row_start = (int32_t[]){0, 2},
                                     .kv_len = (int32_t[]){0},
                                     .block_table = (int32_t[]){0},
                                     .max_blocks = 1};
        b->ops->begin(b, &batch);
        // K and V of entry 0, then of entry 1, 448 times smaller: 17 is stored as 16 in all of them.
        const float rows[32] = {
            [8] = 448, 17, [12] = 448, 17, -17, 1, [17] = 0.125f, [24] = 1, 0, 17 / 448.f, 0, [28] = bad ? INFINITY : 1,
            17 / 448.f};
        put(b, qkv, rows, 32);
        b->ops->rope_append(b, 0, qkv, NULL, NULL, 0);
        b->ops->attention(b, 0, out, qkv);
        b->ops->linear(b, plain, out, identity, NULL, LINEAR_STORE, 2);
        float y[16];
        b->ops->read(b, plain, 2, y);
        ck_assert_mem_eq(y, ((float[]){448, 16, -16, 1}), 4 * sizeof *y);
        // Row 1, head 0: scores 0.125 * 16 / sqrt(4) = 1 and 0.
        double first = 1 / (1 + exp(-1)), want = 16 * first + 16 / 448.0 * (1 - first);
        if (bad)
            ck_assert(isnan(y[8]));
        else
            ck_assert_double_eq_tol((double)y[9], want, want * 0x1p-7);
    }
    b->ops->close(b);
}
END_TEST

START_TEST(views_of_any_dtype_need_no_alignment)
{
    unsigned char raw[32] = {0};
    uint16_t f16[3] = {0x3c00, 0xc000, 0x3555}, bf16[3] = {0x3f80, 0xc000, 0x3eab};
    float f32[3] = {1, -2, 0.3333f}, out[2];
    const void *from[] = {f32, f16, bf16};
    for (int dtype = DTYPE_F32; dtype <= DTYPE_BF16; dtype++) {
        size_t size = dtype_size_bytes((enum dtype)dtype);
        memcpy(raw + 5, from[dtype], 3 * size);
        struct matrix_view v = {
            .data = raw + 1, .dtype = (enum dtype)dtype, .rows = 2, .columns = 3, .row_stride_bytes = 4};
        matrix_view_read(&v, 1, 1, 2, out);
        ck_assert_float_eq(out[0], -2);
        ck_assert_float_eq_tol(out[1], 0.3333f, 1e-3f);
    }
    ck_assert_str_eq(dtype_name(DTYPE_BF16), "bf16");
}
END_TEST

START_TEST(linear_modes_end_as_they_say)
{
    struct backend *b = open_f32();
    struct tensor *x, *norm, *out, *half;
    b->ops->tensor_create(b, TENSOR_F32, 2, 3, &x);
    b->ops->tensor_create(b, TENSOR_ACTIVATION, 2, 3, &norm);
    b->ops->tensor_create(b, TENSOR_F32, 2, 2, &out);
    b->ops->tensor_create(b, TENSOR_F32, 2, 1, &half);
    const float xs[6] = {1, 2, 2, 0, 3, 4}, ones[3] = {1, 2, 1}, ws[6] = {1, 0, 1, 0, 1, -1}, biases[2] = {10, 20};
    struct weight *gain, *w, *gate_up, *bias;
    b->ops->weight_vector(b, (struct matrix_view[]){view(ones, 1, 2), view(ones + 2, 1, 1)}, 2, &gain);
    struct matrix_view bias_view = view(biases, 1, 2);
    b->ops->weight_vector(b, &bias_view, 1, &bias);
    b->ops->weight_create(b, (struct matrix_view[]){view(ws, 1, 3), view(ws + 3, 1, 3)}, 2, &w);
    struct matrix_view gate = view(ws, 1, 3), up = view(ws + 3, 1, 3);
    b->ops->weight_gate_up(b, &gate, &up, &gate_up);
    put(b, x, xs, 6);

    // Row 1 first: rms of (0, 3, 4) is 5 / sqrt(3); rms of (1, 2, 2) is sqrt(3).
    const int32_t rows[2] = {1, 0};
    ck_assert_int_eq(b->ops->rmsnorm(b, norm, x, gain, 0, rows, 2), STATUS_OK);
    float y[4], r = sqrtf(3);
    b->ops->linear(b, out, norm, w, bias, LINEAR_STORE, 2);
    b->ops->read(b, out, 2, y);
    ck_assert_float_eq_tol(y[0], 10 + 4 * r / 5, 1e-5f);
    ck_assert_float_eq_tol(y[1], 20 + (6 - 4) * r / 5, 1e-5f);
    ck_assert_float_eq_tol(y[2], 10 + 3 / r, 1e-5f);
    ck_assert_float_eq_tol(y[3], 20 + 2 / r, 1e-5f);
    b->ops->linear(b, out, norm, w, NULL, LINEAR_ADD, 2);
    b->ops->read(b, out, 1, y);
    ck_assert_float_eq_tol(y[0], 10 + 8 * r / 5, 1e-5f);
    b->ops->linear(b, half, norm, gate_up, NULL, LINEAR_SWIGLU, 2);
    b->ops->read(b, half, 1, y);
    float g = 4 * r / 5;
    ck_assert_float_eq_tol(y[0], g / (1 + expf(-g)) * 2 * r / 5, 1e-5f);
    b->ops->close(b);
}
END_TEST

START_TEST(embed_leaves_zeros_for_other_ranks)
{
    struct backend *b = open_f32();
    struct tensor *out;
    struct weight *head, *table;
    const float ws[6] = {1, 2, 3, 4, 5, 6};
    struct matrix_view v = view(ws, 3, 2);
    b->ops->tensor_create(b, TENSOR_F32, 8, 2, &out);
    b->ops->weight_create(b, &v, 1, &head);
    const int32_t token[4] = {9, 10, 12, 13}, zeros[4] = {0, 1, 2, 3}, start[2] = {0, 4}, len[1] = {0}, blocks[1] = {0};
    struct ragged_batch batch = {.n_rows = 4,
                                 .token = token,
                                 .position = zeros,
                                 .n_seqs = 1,
                                 .row_start = start,
                                 .kv_len = len,
                                 .block_table = blocks,
                                 .max_blocks = 1};
    for (int tied = 0; tied < 2; tied++) {
        ck_assert_int_eq(b->ops->weight_embedding(b, &v, 10, tied ? head : NULL, &table), STATUS_OK);
        b->ops->begin(b, &batch);
        b->ops->embed(b, out, table);
        float y[8];
        b->ops->read(b, out, 4, y);
        ck_assert_mem_eq(y, ((float[]){0, 0, 1, 2, 5, 6, 0, 0}), sizeof y);
    }
    b->ops->close(b);
}
END_TEST

// Two chunks of one sequence through blocks 4 and 2. All keys are equal, so attention is the mean of the values so far
// and the importance of a key is 1/n times the part of the window that lies within the prompt.
START_TEST(attention_and_importance_over_equal_keys)
{
    struct backend *b = open_f32();
    struct tensor *qkv, *out;
    b->ops->tensor_create(b, TENSOR_F32, 8, 16, &qkv);
    b->ops->tensor_create(b, TENSOR_ACTIVATION, 8, 8, &out);
    struct weight *identity;
    float eye[64] = {0};
    for (int i = 0; i < 8; i++)
        eye[9 * i] = 1;
    struct matrix_view v = view(eye, 8, 8);
    struct tensor *plain;
    b->ops->weight_create(b, &v, 1, &identity);
    b->ops->tensor_create(b, TENSOR_F32, 8, 8, &plain);

    const int32_t blocks[2] = {4, 2}, token[8] = {0}, zero[8] = {0};
    for (int done = 0; done < 24; done += 8) {
        struct ragged_batch batch = {.n_rows = 8,
                                     .token = token,
                                     .position = zero,
                                     .n_seqs = 1,
                                     .row_start = (int32_t[]){0, 8},
                                     .kv_len = (int32_t[]){done},
                                     .block_table = blocks,
                                     .max_blocks = 2,
                                     .n_importance_rows = done == 16,
                                     .importance_row = (int32_t[]){7},
                                     .importance_keys = (int32_t[]){20},
                                     .smoothing_window = 5};
        ck_assert_int_eq(b->ops->begin(b, &batch), STATUS_OK);
        float *x = b->ops->tensor_data(b, qkv);
        for (int t = 0; t < 8; t++)
            for (int c = 0; c < 16; c++)
                x[16 * t + c] = c < 12 ? 1 : (float)(done + t);
        ck_assert_int_eq(b->ops->rope_append(b, 1, qkv, NULL, NULL, 0), STATUS_OK);
        ck_assert_int_eq(b->ops->attention(b, 1, out, qkv), STATUS_OK);
        b->ops->linear(b, plain, out, identity, NULL, LINEAR_STORE, 8);
        float y[64];
        b->ops->read(b, plain, 8, y);
        for (int t = 0; t < 8; t++)
            for (int c = 0; c < 8; c++)
                ck_assert_float_eq_tol(y[8 * t + c], (float)(done + t) / 2, 1e-5f);
    }
    float probe[20];
    b->ops->importance_read(b, probe);
    for (int j = 0; j < 20; j++) {
        int inside = (j < 2 ? j : 2) + 1 + (19 - j < 2 ? 19 - j : 2);
        ck_assert_float_eq_tol(probe[j], (float)inside / 100, 1e-6f);
    }
    ck_assert(b->ops->importance_data(b) != NULL);
    b->ops->close(b);
}
END_TEST

START_TEST(rope_rotates_pairs_half_a_head_apart)
{
    struct backend *b = open_f32();
    struct tensor *qkv;
    b->ops->tensor_create(b, TENSOR_F32, 1, 16, &qkv);
    struct ragged_batch batch = {.n_rows = 1,
                                 .token = (int32_t[]){0},
                                 .position = (int32_t[]){100000},
                                 .n_seqs = 1,
                                 .row_start = (int32_t[]){0, 1},
                                 .kv_len = (int32_t[]){0},
                                 .block_table = (int32_t[]){0},
                                 .max_blocks = 1};
    b->ops->begin(b, &batch);
    float *x = b->ops->tensor_data(b, qkv);
    for (int c = 0; c < 16; c++)
        x[c] = (float)(c % 4 + 1);
    const float gains[4] = {2, 2, 2, 2};
    struct weight *gain;
    struct matrix_view v = view(gains, 1, 4);
    b->ops->weight_vector(b, &v, 1, &gain);
    b->ops->rope_append(b, 0, qkv, gain, NULL, 0);
    double scale = 2 / sqrt(30.0 / 4), slow = (double)(100000 * 0.01f); // in f32, as transformers
    const double want[4] = {cos(1e5) - 3 * sin(1e5), 2 * cos(slow) - 4 * sin(slow), 3 * cos(1e5) + sin(1e5),
                            4 * cos(slow) + 2 * sin(slow)};
    for (int i = 0; i < 4; i++)
        ck_assert_double_eq_tol(x[i], scale * want[i], 1e-5);
    b->ops->close(b);
}
END_TEST

START_TEST(bad_shapes_and_batches_are_named)
{
    struct backend *b;
    struct backend_shape bad = shape;
    ck_assert_int_eq(backend_open("abacus", &shape, DTYPE_F32, 0, &b), STATUS_INVALID);
    ck_assert_str_eq(status_message(), "backend 'abacus': must be one of auto|cpu|cuda|reference");
    ck_assert_int_eq(backend_open("reference", &shape, DTYPE_F16, 0, &b), STATUS_UNSUPPORTED);
    bad.n_kv_heads = 3;
    ck_assert_int_eq(backend_open("reference", &bad, DTYPE_F32, 0, &b), STATUS_INVALID);
    bad = shape, bad.head_size = 5;
    ck_assert_int_eq(backend_open("reference", &bad, DTYPE_F32, 0, &b), STATUS_INVALID);
    ck_assert_str_eq(status_message(), "head size 5: must be even and at least 2");
    bad = shape, bad.kv_dtype = DTYPE_INT8;
    ck_assert_int_eq(backend_open("reference", &bad, DTYPE_F32, 0, &b), STATUS_UNSUPPORTED);
    ck_assert_str_eq(status_message(), "K and V in int8 need weights of another dtype than f32");
    bad = shape, bad.kv_dtype = DTYPE_FP8;
    ck_assert_int_eq(backend_open("reference", &bad, DTYPE_F32, 0, &b), STATUS_UNSUPPORTED);
    ck_assert_int_eq(backend_open("cpu", &bad, DTYPE_BF16, 1, &b), STATUS_UNSUPPORTED);
    ck_assert_str_eq(status_message(), "fp8 weights and an fp8 KV cache need the CUDA backend: use dtype bf16 or int8 "
                                       "and kv-cache-dtype bf16 or int8 on the CPU backend");
    ck_assert_int_eq(backend_open("cpu", &shape, DTYPE_FP8, 1, &b), STATUS_UNSUPPORTED);
    bad = shape, bad.n_kv_blocks = 0;
    ck_assert_int_eq(backend_open("reference", &bad, DTYPE_F32, 0, &b), STATUS_INVALID);

    int32_t start[3] = {0, 1, 2}, len[2] = {39, 0}, blocks[6] = {0, 1, 2, 3, 4, 5}, importance_row[1] = {1},
            keys[1] = {1};
    struct ragged_batch batch = {.n_rows = 2,
                                 .n_seqs = 2,
                                 .row_start = start,
                                 .kv_len = len,
                                 .block_table = blocks,
                                 .max_blocks = 3,
                                 .n_importance_rows = 1,
                                 .importance_row = importance_row,
                                 .importance_keys = keys,
                                 .smoothing_window = 13};
    ck_assert_int_eq(ragged_batch_check(&batch, &shape), STATUS_OK);
    len[0] = 40;
    ck_assert_int_eq(ragged_batch_check(&batch, &shape), STATUS_INTERNAL);
    len[0] = 39, blocks[2] = 6;
    ck_assert_int_eq(ragged_batch_check(&batch, &shape), STATUS_INTERNAL);
    ck_assert_str_eq(status_message(), "ragged batch: sequence 0 uses block 6, but there are 6 blocks");
    blocks[2] = 2, start[1] = 2;
    ck_assert_int_eq(ragged_batch_check(&batch, &shape), STATUS_INTERNAL);
    start[1] = 1, keys[0] = 2;
    ck_assert_int_eq(ragged_batch_check(&batch, &shape), STATUS_INTERNAL);
    ck_assert_str_eq(status_message(), "ragged batch: importance row 1 over 2 keys: must be 1 to 1");
    keys[0] = 1, batch.smoothing_window = 4;
    ck_assert_int_eq(ragged_batch_check(&batch, &shape), STATUS_INTERNAL);
    batch.smoothing_window = 1, batch.n_rows = 9;
    ck_assert_int_eq(ragged_batch_check(&batch, &shape), STATUS_INTERNAL);
}
END_TEST

SUITE("reference")
{
    TEST(f16_converts_every_value);
    TEST(bf16_rounds_to_nearest_even);
    TEST(e4m3_converts_every_value);
    TEST(e4m3_rounds_to_nearest_even_and_saturates);
    TEST(fp8_views_apply_the_scales_of_their_rows);
    TEST(fp8_products_round_rows_and_matrices);
    TEST(fp8_entries_are_rounded_with_a_scale_each);
    TEST(views_of_any_dtype_need_no_alignment);
    TEST(linear_modes_end_as_they_say);
    TEST(embed_leaves_zeros_for_other_ranks);
    TEST(attention_and_importance_over_equal_keys);
    TEST(rope_rotates_pairs_half_a_head_apart);
    TEST(bad_shapes_and_batches_are_named);
}
