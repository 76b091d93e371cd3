// SPDX-License-Identifier: Apache-2.0
// Weights of 4 bits: quantising, the packed layouts of checkpoints, and files that are refused.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/int4_tensors.h"
#include "kernels/int4.h"
#include "lib/base/mem.h"
#include "tests/kernel_fixture.h"
#include "tests/suite.h"

enum { N = 24, K = 256, GROUPS = K / 128 };

// The numbers of a matrix, and how a checkpoint stores them.
struct matrix {
    struct model_config config;
    int code[N][K], zero[N][GROUPS];
    uint16_t scale[N][GROUPS]; // f16 bits
    uint32_t words[N * K / 8], zero_words[N / 8 * GROUPS];
    uint16_t scales[N * GROUPS];
    int32_t group[K];
    struct safetensors_tensor codes, zeros, scale_tensor, groups;
    struct int4_tensors tensors;
};

static struct safetensors_tensor tensor_of(const char *name, const char *dtype, int64_t rows, int64_t columns,
                                           const void *data, size_t bytes)
{
    return (struct safetensors_tensor){.name = name,
                                       .file = "model.safetensors",
                                       .dtype = dtype,
                                       .n_dims = 2,
                                       .shape = {rows, columns},
                                       .data = data,
                                       .size_bytes = bytes};
}

static void put(uint32_t *word, int place, int code)
{
    *word |= (uint32_t)code << 4 * place;
}

// Packs output n, input k as the tools of the format do.
static void pack_code(struct matrix *m, int n, int k)
{
    static const int place_of_output[8] = {0, 4, 1, 5, 2, 6, 3, 7}; // AWQ stores 0, 2, 4, 6, 1, 3, 5, 7
    switch (m->config.stored) {
    case STORED_AWQ: put(&m->words[k * (N / 8) + n / 8], place_of_output[n % 8], m->code[n][k]); break;
    case STORED_GPTQ: put(&m->words[k / 8 * N + n], k % 8, m->code[n][k]); break;
    default: put(&m->words[n * (K / 8) + k / 8], k % 8, m->code[n][k]); break;
    }
    const int g = k / 128, stored = m->zero[n][g] - (m->config.zero_added ? 1 : 0);
    if (k % 128) return;
    if (m->config.stored == STORED_PACKED) {
        put(&m->zero_words[n / 8 * GROUPS + g], n % 8, stored & 15);
        m->scales[n * GROUPS + g] = m->scale[n][g];
        return;
    }
    put(&m->zero_words[g * (N / 8) + n / 8], m->config.stored == STORED_AWQ ? place_of_output[n % 8] : n % 8,
        stored & 15);
    m->scales[g * N + n] = m->scale[n][g];
}

static struct matrix *matrix_create(enum stored_weights stored, bool has_zeros, bool zero_added)
{
    struct matrix *m = mem_alloc(sizeof *m);
    m->config = (struct model_config){.stored = stored, .has_zeros = has_zeros, .zero_added = zero_added};
    for (int n = 0; n < N; n++)
        for (int k = 0; k < K; k++) {
            m->code[n][k] = random_below(16);
            if (k % 128 == 0) m->zero[n][k / 128] = has_zeros ? random_below(16) : 8;
            if (k % 128 == 0) m->scale[n][k / 128] = (uint16_t)(0x1000 + random_below(0x2000));
            pack_code(m, n, k);
        }
    for (int k = 0; k < K; k++)
        m->group[k] = k / 128;
    const bool packed = stored == STORED_PACKED, awq = stored == STORED_AWQ;
    m->codes = tensor_of("a.qweight", "I32",
                         packed ? N
                         : awq  ? K
                                : K / 8,
                         packed ? K / 8
                         : awq  ? N / 8
                                : N,
                         m->words, sizeof m->words);
    m->zeros = tensor_of("a.qzeros", "I32", packed ? N / 8 : GROUPS, packed ? GROUPS : N / 8, m->zero_words,
                         sizeof m->zero_words);
    m->scale_tensor =
        tensor_of("a.scales", "F16", packed ? N : GROUPS, packed ? GROUPS : N, m->scales, sizeof m->scales);
    m->groups = tensor_of("a.g_idx", "I32", K, 0, m->group, sizeof m->group);
    m->groups.n_dims = 1;
    m->tensors = (struct int4_tensors){
        .codes = &m->codes, .scales = &m->scale_tensor, .zeros = has_zeros ? &m->zeros : NULL, .groups = &m->groups};
    return m;
}

static const struct layout {
    enum stored_weights stored;
    bool has_zeros, zero_added;
} layouts[] = {{STORED_AWQ, true, false},
               {STORED_GPTQ, true, true},
               {STORED_GPTQ, true, false},
               {STORED_PACKED, false, false},
               {STORED_PACKED, true, false}};

START_TEST(layouts_have_the_weights_of_their_description)
{
    struct matrix *m = matrix_create(layouts[_i].stored, layouts[_i].has_zeros, layouts[_i].zero_added);
    struct matrix_view view;
    OK(int4_tensors_view(&m->tensors, &m->config, N, K, true, &view));
    float out[K];
    for (int n = 0; n < N; n++) {
        matrix_view_read(&view, n, 3, K - 5, out); // from within a group to within another
        for (int k = 3; k < K - 2; k++)
            ck_assert_float_eq(out[k - 3],
                               (float)(m->code[n][k] - m->zero[n][k / 128]) * f16_to_f32(m->scale[n][k / 128]));
    }
    view.scale_row = 5, view.rows = 7, view.scale_column = 128, view.columns = 128; // a slice
    matrix_view_read(&view, 6, 0, 128, out);
    for (int k = 0; k < 128; k++)
        ck_assert_float_eq(out[k], (float)(m->code[11][128 + k] - m->zero[11][1]) * f16_to_f32(m->scale[11][1]));
    const struct int4_extent e = int4_view_extent(&view);
    const char *begin = (const char *)m->words, *end = begin + sizeof m->words;
    ck_assert(e.start >= begin);
    ck_assert(e.start + (e.n - 1) * e.stride + (int64_t)e.bytes <= end);
    free(m);
}
END_TEST

// ---- backends -------------------------------------------------------------------------------------------------------

enum { ROWS = 14 };

// Multiplies the same random rows by weights made of two parts of a view, in a backend. Returns [ROWS][rows of all].
static float *product(const char *name, enum dtype dtype, const struct matrix_view *parts, int n_parts)
{
    const struct backend_shape shape = {.n_layers = 1,
                                        .n_heads = 1,
                                        .n_kv_heads = 1,
                                        .head_size = 8,
                                        .rope.inv_freq = (float[]){1, 1, 1, 1},
                                        .max_rows = ROWS,
                                        .max_seqs = 1,
                                        .max_context = 8,
                                        .n_kv_blocks = 1,
                                        .as_stored = true};
    struct backend *b;
    struct weight *w;
    const int k = (int)parts[0].columns;
    int n = 0;
    for (int p = 0; p < n_parts; p++)
        n += (int)parts[p].rows;
    OK(backend_open(name, &shape, dtype, 2, &b));
    random_state = 77;
    float *x = random_floats((size_t)(ROWS * k), 1), *gain = random_floats((size_t)k, 1);
    struct tensor *normed = make_normed(b, x, gain, ROWS, k), *out = make_tensor(b, TENSOR_F32, ROWS, n);
    OK(b->ops->weight_create(b, parts, n_parts, &w));
    weights_settle(b);
    OK(b->ops->linear(b, out, normed, w, NULL, LINEAR_STORE, ROWS));
    float *values = tensor_read(b, out, ROWS, n);
    free(x);
    free(gain);
    b->ops->close(b);
    return values;
}

// The fast backend computes with the stored codes: its results are those of the reference, which reads every weight.
static void check_backends(enum dtype dtype, const struct matrix_view *parts, int n_parts, int n, float tolerance)
{
    float *want = product("reference", dtype, parts, n_parts), *got = product("cpu", dtype, parts, n_parts);
    float largest = 0;
    for (int i = 0; i < ROWS * n; i++)
        largest = fmaxf(largest, fabsf(want[i]));
    for (int i = 0; i < ROWS * n; i++)
        ck_assert_msg(fabsf(got[i] - want[i]) <= tolerance * largest, "element %d: %.9g, reference %.9g", i, got[i],
                      want[i]);
    free(want);
    free(got);
}

START_TEST(backends_multiply_stored_codes)
{
    struct matrix *m = matrix_create(layouts[_i].stored, layouts[_i].has_zeros, layouts[_i].zero_added);
    struct matrix_view parts[3];
    OK(int4_tensors_view(&m->tensors, &m->config, N, K, true, &parts[0]));
    parts[1] = parts[2] = parts[0];
    parts[1].scale_row = 3, parts[1].rows = 9;
    float plain[2 * K];
    for (int i = 0; i < 2 * K; i++)
        plain[i] = random_float(0.1f);
    parts[2] = float_view(plain, 2, K); // quantised, since another part is in 4 bits
    check_backends(DTYPE_INT4_G128, parts, 3, N + 9 + 2, 1e-6f);
    check_backends(DTYPE_INT4_G128, parts + 2, 1, 2, 1e-6f); // bf16, as no part is in 4 bits
    parts[0].scale_column = 128, parts[0].columns = 128;
    check_backends(DTYPE_INT4_G128, parts, 1, N, 1e-6f);
    free(m);
}
END_TEST

START_TEST(backends_multiply_stored_bytes)
{
    static int8_t bytes[N * K];
    uint16_t scale[N];
    for (int i = 0; i < N * K; i++)
        bytes[i] = (int8_t)(random_below(255) - 127);
    for (int n = 0; n < N; n++)
        scale[n] = bf16_from_f32(0.01f + (float)n / 1000);
    const struct matrix_view view = {.data = bytes,
                                     .dtype = DTYPE_INT8,
                                     .rows = N,
                                     .columns = K,
                                     .row_stride_bytes = K,
                                     .scale = scale,
                                     .scale_dtype = DTYPE_BF16,
                                     .scale_stride = 1};
    float row[K];
    matrix_view_read(&view, 5, 1, 3, row);
    for (int i = 0; i < 3; i++)
        ck_assert_float_eq(row[i], (float)bytes[5 * K + 1 + i] * bf16_to_f32(scale[5]));
    check_backends(DTYPE_INT8, &view, 1, N, 1e-6f);
    check_backends(DTYPE_BF16, &view, 1, N, 1e-6f);
    float plain[2 * K];
    for (int i = 0; i < 2 * K; i++)
        plain[i] = random_float(0.1f);
    const struct matrix_view other = float_view(plain, 2, K);
    check_backends(DTYPE_INT8, &other, 1, 2, 1e-6f); // bf16, as stored
}
END_TEST

// ---- refusals -------------------------------------------------------------------------------------------------------

static void refuse(struct matrix *m, int64_t rows, int64_t columns, enum status wanted, const char *sentence)
{
    struct matrix_view view;
    const enum status status = int4_tensors_view(&m->tensors, &m->config, rows, columns, true, &view);
    const bool refused = status == wanted && strstr(status_message(), sentence);
    ck_assert_msg(refused, "wanted \"%s\", got %s: \"%s\"", sentence, status_name(status),
                  status == STATUS_OK ? "" : status_message());
}

START_TEST(wrong_tensors_are_refused_with_both_shapes)
{
    struct matrix *m = matrix_create(STORED_AWQ, true, false), *of_gptq = matrix_create(STORED_GPTQ, true, true);
    refuse(m, 32, K, STATUS_DATA,
           "model.safetensors: tensor a.qweight has shape [256, 3], but config.json calls for [256, 4]");
    refuse(of_gptq, 32, K, STATUS_DATA, "tensor a.qweight has shape [32, 24], but config.json calls for [32, 32]");
    refuse(m, N, 200, STATUS_UNSUPPORTED,
           "a matrix of 24 x 200: 4-bit codes need outputs in multiples of 8 and inputs");
    refuse(m, 20, K, STATUS_UNSUPPORTED, "a matrix of 20 x 256");
    m->codes.size_bytes -= 4;
    refuse(m, N, K, STATUS_DATA, "tensor a.qweight has shape");
    m->codes.size_bytes += 4, m->codes.dtype = "I16";
    refuse(m, N, K, STATUS_UNSUPPORTED, "tensor a.qweight is I16: must be I32, words of eight codes");
    m->codes.dtype = "I32", m->scale_tensor.shape[0] = 1;
    refuse(m, N, K, STATUS_DATA, "tensor a.scales has shape [1, 24], but config.json calls for [2, 24]");
    m->scale_tensor.shape[0] = 2, m->scale_tensor.dtype = "F64";
    refuse(m, N, K, STATUS_UNSUPPORTED, "tensor a.scales is F64: must be F16, BF16 or F32");
    m->scale_tensor.dtype = "F16", m->scales[30] = 0x7c00;
    refuse(m, N, K, STATUS_DATA, "tensor a.scales: scale 30 is inf: must be a finite number");
    m->scales[30] = 0, m->zeros.shape[1] = 4;
    refuse(m, N, K, STATUS_DATA, "tensor a.qzeros has shape [2, 4], but config.json calls for [2, 3]");
    m->tensors.zeros = NULL;
    refuse(m, N, K, STATUS_DATA, "tensor a.qweight has no tensor qzeros next to it");
    of_gptq->group[7] = 1;
    refuse(of_gptq, N, K, STATUS_UNSUPPORTED,
           "tensor a.g_idx puts input 7 into group 1: groups must be 128 neighbouring");
    of_gptq->groups.shape[0] = 8;
    refuse(of_gptq, N, K, STATUS_DATA, "tensor a.g_idx must be I32 of shape [256]");
    of_gptq->tensors.groups = NULL, of_gptq->config.reordered = true;
    refuse(of_gptq, N, K, STATUS_UNSUPPORTED, "desc_act is true, but there is no g_idx next to it");
    free(m);
    free(of_gptq);
}
END_TEST

// Some matrices of the checkpoint are symmetric and store no zeros.
START_TEST(zeros_that_a_matrix_need_not_store_are_8)
{
    struct matrix *m = matrix_create(STORED_PACKED, false, false);
    struct matrix_view view;
    float out[K];
    m->config.has_zeros = true;
    refuse(m, N, K, STATUS_DATA, "has no tensor weight_zero_point next to it");
    m->config.some_zeros = true;
    OK(int4_tensors_view(&m->tensors, &m->config, N, K, true, &view));
    matrix_view_read(&view, 2, 0, K, out);
    for (int k = 0; k < K; k++)
        ck_assert_float_eq(out[k], (float)(m->code[2][k] - 8) * f16_to_f32(m->scale[2][k / 128]));
    free(m);
}
END_TEST

START_TEST(quantised_weights_are_near_and_zero_is_exact)
{
    for (int i = 0; i < 200; i++) {
        const int n = 1 + random_below(INT4_GROUP);
        float x[INT4_GROUP], low = 0, high = 0;
        struct int4_group group;
        for (int j = 0; j < n; j++) {
            x[j] = j % 7 == 3 ? 0 : random_float(0.3f) + (i % 3 == 1 ? 0.2f : 0);
            low = fminf(low, x[j]), high = fmaxf(high, x[j]);
        }
        int4_quantise(x, n, &group);
        ck_assert_float_eq_tol(group.scale, (high - low) / 15, 1e-6f);
        ck_assert_int_ge(group.zero, 0);
        ck_assert_int_le(group.zero, 15);
        for (int j = 0; j < n; j++) {
            const float weight = (float)(group.code[j] - group.zero) * group.scale;
            ck_assert_uint_le(group.code[j], 15);
            ck_assert_float_le(fabsf(weight - x[j]), group.scale * 1.01f); // the zero is rounded, too
            if (x[j] == 0) ck_assert_float_eq(weight, 0);
        }
    }
    struct int4_group group;
    int4_quantise((float[]){1, INFINITY, 2}, 3, &group);
    ck_assert(isnan(group.scale));
    int4_quantise((float[]){0, 0, 0}, 3, &group);
    ck_assert_float_eq(group.scale, 0);
}
END_TEST

SUITE("int4")
{
    LOOP(layouts_have_the_weights_of_their_description, 0, 5);
    LOOP(backends_multiply_stored_codes, 0, 5);
    TEST(backends_multiply_stored_bytes);
    TEST(wrong_tensors_are_refused_with_both_shapes);
    TEST(zeros_that_a_matrix_need_not_store_are_8);
    TEST(quantised_weights_are_near_and_zero_is_exact);
}
