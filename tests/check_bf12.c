// SPDX-License-Identifier: Apache-2.0
// bf16 weights in 12 bits (kernels/bf12.h): every product has the bits of the bf16 product, at each level of the
// machine, for trained-like weights and for constructed ones: zeros, subnormals, infinities, NaN, all exponents in one
// row, and rows of escapes only. A matrix that does not compress stays bf16.
#include <stdio.h>

#include "kernels/bf12.h"
#include "kernels/cpu/cpu.h"
#include "tests/isa_levels.h"
#include "tests/kernel_fixture.h"
#include "tests/suite.h"

enum { MAX_ROWS = 200 };

// ---- the format -----------------------------------------------------------------------------------------------------

START_TEST(every_bf16_survives_a_quad)
{
    uint8_t exponent[BF12_EXPONENTS], code[256];
    for (uint32_t half = 0; half < 1 << 16; half += BF12_QUAD) {
        // Exponents of a table are consecutive here, and those of the quad are among them.
        for (int i = 0; i < BF12_EXPONENTS; i++)
            exponent[i] = (uint8_t)((half >> 7) + (uint32_t)i);
        bf12_codes(exponent, code);
        uint32_t word[BF12_QUAD], quad[BF12_QUAD_WORDS];
        for (uint32_t i = 0; i < BF12_QUAD; i++)
            word[i] = (half + i) | (((half ^ 0x8000) + 5 * 0x80 * i) & 0xffff) << 16;
        bf12_encode(word, code, quad);
        for (int i = 0; i < BF12_QUAD; i++) {
            ck_assert_uint_ne(code[word[i] >> 7 & 0xff], BF12_NO_CODE);
            ck_assert_uint_ne(code[word[i] >> 23 & 0xff], BF12_NO_CODE);
            ck_assert_uint_eq(bf12_decode(quad, exponent, i), word[i]);
        }
    }
}
END_TEST

START_TEST(the_most_frequent_exponents_have_codes)
{
    uint32_t count[256] = {0};
    uint8_t exponent[BF12_EXPONENTS], code[256];
    for (uint32_t e = 0; e < 20; e++)
        count[100 + e] = 10 + e;
    ck_assert_uint_eq(bf12_choose(count, exponent), 10 + 11 + 12 + 13);
    bf12_codes(exponent, code);
    for (int e = 100; e < 120; e++)
        ck_assert_int_eq(code[e] != BF12_NO_CODE, e >= 104);
}
END_TEST

// ---- matrices -------------------------------------------------------------------------------------------------------

enum kind { KIND_NORMAL, KIND_ZEROS, KIND_SPECIAL, KIND_SCALED, KINDS, KIND_RANDOM = KINDS };

static uint16_t normal_half(float scale)
{
    return bf16_from_f32(random_float(scale) + random_float(scale) + random_float(scale) + random_float(scale));
}

// Fills a row of a KIND_SPECIAL matrix.
static void fill_special(uint16_t *row, int r, int k)
{
    for (int i = 0; i < k; i++) {
        const uint16_t rest = (uint16_t)(random_bits() & 0x807f);
        switch (r) {
        case 0: row[i] = (uint16_t)(rest | (i & 0xff) << 7); break;              // all exponents
        case 1: row[i] = (uint16_t)(rest | (40 + random_below(30)) << 7); break; // escapes only
        case 2: row[i] = rest; break;                                            // subnormals and zeros
        case 3: row[i] = (uint16_t)((rest & 0x8000) | 0x7f80); break;            // infinities
        case 4: row[i] = (uint16_t)(rest | 0x7f81); break;                       // NaN
        case 5: row[i] = 0x8000; break;
        case 6: row[i] = random_below(64) ? 0x8000 : 0x7f7f; break; // the largest number
        default: row[i] = random_below(500) ? normal_half(0.02f) : (uint16_t)random_bits() & 0xbfff;
        }
    }
}

// Makes a matrix in bf16 of `rows` rows. The caller frees it.
static uint16_t *matrix_make(enum kind kind, int rows, int k)
{
    uint16_t *data = mem_alloc_array((size_t)rows * (size_t)k, sizeof *data);
    for (int r = 0; r < rows; r++) {
        uint16_t *row = data + (size_t)r * (size_t)k;
        const float scale = kind == KIND_SCALED ? 0.1f / (float)(1 << r % 4) : 0.02f;
        for (int i = 0; i < k && kind != KIND_ZEROS; i++)
            row[i] = kind == KIND_RANDOM ? (uint16_t)random_bits() : normal_half(scale);
        if (kind == KIND_SPECIAL) fill_special(row, r, k);
    }
    return data;
}

static struct matrix_view half_view(const uint16_t *data, int rows, int k)
{
    return (struct matrix_view){
        .data = data, .dtype = DTYPE_BF16, .rows = rows, .columns = k, .row_stride_bytes = 2 * (int64_t)k};
}

static struct backend *open_dtype(enum dtype dtype, int level)
{
    cpu_isa_prefer(isas[level]);
    const struct backend_shape shape = {.n_layers = 1,
                                        .n_heads = 1,
                                        .n_kv_heads = 1,
                                        .head_size = 2,
                                        .rope.inv_freq = (float[]){1},
                                        .max_rows = MAX_ROWS,
                                        .max_seqs = 1,
                                        .max_context = 1,
                                        .n_kv_blocks = 1};
    struct backend *b;
    OK(backend_open_cpu(&shape, dtype, 2, &b));
    return b;
}

// The same products in bf16 [0] and bf12 [1].
struct products {
    struct backend *b[2];
    struct weight *w[2], *gate_up[2], *bias[2];
    struct tensor *x[2];
    int n, k;
};

static struct products products_open(enum kind kind, int n, int k, int level)
{
    struct products p = {.n = n, .k = k};
    uint16_t *matrix = matrix_make(kind, n, k), *up = matrix_make(kind, n, k);
    const struct matrix_view view = half_view(matrix, n, k), up_view = half_view(up, n, k);
    float *values = random_floats((size_t)MAX_ROWS * (size_t)k, 1), *gain = random_floats((size_t)k, 1);
    float *bias = random_floats((size_t)n, 1);
    for (int i = 0; i < 2; i++) {
        struct backend *b = p.b[i] = open_dtype(i ? DTYPE_BF12 : DTYPE_BF16, level);
        p.x[i] = make_normed(b, values, gain, MAX_ROWS, k);
        p.w[i] = make_weight_from(b, view);
        OK(b->ops->weight_gate_up(b, &view, &up_view, &p.gate_up[i]));
        p.bias[i] = make_vector(b, bias, n);
    }
    free(matrix);
    free(up);
    free(values);
    free(gain);
    free(bias);
    return p;
}

static void products_close(struct products *p)
{
    for (int i = 0; i < 2; i++)
        p->b[i]->ops->close(p->b[i]);
}

static void products_compare(struct products *p, int rows, enum linear_mode mode)
{
    float *y[2];
    for (int i = 0; i < 2; i++) {
        struct backend *b = p->b[i];
        struct tensor *out = make_ones(b, rows, p->n);
        const bool swiglu = mode == LINEAR_SWIGLU;
        OK(b->ops->linear(b, out, p->x[i], swiglu ? p->gate_up[i] : p->w[i], swiglu ? NULL : p->bias[i], mode, rows));
        y[i] = tensor_read(b, out, rows, p->n);
    }
    for (int i = 0; i < rows * p->n; i++)
        ck_assert_msg(float_is_same(y[0][i], y[1][i]), "%d rows, %d x %d, mode %d: row %d, column %d: %a, in bf16 %a",
                      rows, p->n, p->k, (int)mode, i / p->n, i % p->n, (double)y[1][i], (double)y[0][i]);
    free(y[0]);
    free(y[1]);
}

static const struct {
    int n, k;
} shapes[] = {{1000, 520}, {70, 1101}, {64, 1}, {65, 7}, {129, 35}, {64, 64}, {66, 2049}};
enum { SHAPES = sizeof shapes / sizeof *shapes };
static const int some_rows[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 17, 18, 19, 32, 33, 48, 64, 65, 200};

START_TEST(products_have_the_bits_of_bf16)
{
    const enum kind kind = (enum kind)(_i % KINDS);
    for (int s = 0; s < SHAPES; s++) {
        if (kind == KIND_SPECIAL && s) break; // smaller matrices have too many escapes
        struct products p = products_open(kind, shapes[s].n, shapes[s].k, _i / KINDS);
        ck_assert_int_eq(p.w[1]->type, GEMM_BF12);
        ck_assert_int_eq(p.gate_up[1]->type, GEMM_BF12);
        if (kind == KIND_SPECIAL) ck_assert_uint_gt(p.w[1]->first_escape[p.w[1]->n_panels], 1000);
        for (size_t i = 0; i < sizeof some_rows / sizeof *some_rows; i++)
            for (int mode = LINEAR_STORE; mode <= LINEAR_SWIGLU; mode++)
                products_compare(&p, some_rows[i], (enum linear_mode)mode);
        products_close(&p);
    }
}
END_TEST

START_TEST(random_exponents_stay_bf16)
{
    struct products p = products_open(KIND_RANDOM, 200, 300, _i);
    ck_assert_int_eq(p.w[1]->type, GEMM_BF16);
    ck_assert_int_eq(p.gate_up[1]->type, GEMM_BF16);
    for (int rows = 1; rows < 40; rows += 6)
        for (int mode = LINEAR_STORE; mode <= LINEAR_SWIGLU; mode++)
            products_compare(&p, rows, (enum linear_mode)mode);
    products_close(&p);
}
END_TEST

// A tied table is read from the panels of the head.
START_TEST(embeddings_are_those_of_bf16)
{
    static const enum gemm_type types[] = {[KIND_SPECIAL] = GEMM_BF12, [KIND_RANDOM] = GEMM_BF16};
    for (int kind = KIND_SPECIAL; kind <= KIND_RANDOM; kind += KIND_RANDOM - KIND_SPECIAL) {
        enum { ROWS = 1000, K = 519 };
        uint16_t *data = matrix_make((enum kind)kind, ROWS, K);
        const struct matrix_view view = half_view(data, ROWS, K);
        struct backend *b[2];
        struct weight *table[2];
        for (int i = 0; i < 2; i++) {
            b[i] = open_dtype(i ? DTYPE_BF12 : DTYPE_BF16, _i);
            struct weight *head = make_weight_from(b[i], view);
            ck_assert_int_eq(head->type, i ? types[kind] : GEMM_BF16);
            OK(b[i]->ops->weight_embedding(b[i], &view, 5, head, &table[i]));
            ck_assert_ptr_eq(table[i]->head, head);
        }
        for (int r = 0; r < ROWS; r++) {
            float row[2][K];
            for (int i = 0; i < 2; i++)
                cpu_embedding_row(table[i], true, 5 + r, row[i]);
            ck_assert_mem_eq(row[1], row[0], sizeof row[0]);
        }
        for (int i = 0; i < 2; i++)
            b[i]->ops->close(b[i]);
        free(data);
    }
}
END_TEST

START_TEST(weights_take_three_quarters_of_bf16)
{
    enum { N = 256, K = 2048 };
    struct products p = products_open(KIND_NORMAL, N, K, _i);
    const struct weight *w = p.w[1];
    const size_t escapes = w->first_escape[w->n_panels];
    ck_assert_uint_lt(escapes, N * K / 10000);
    ck_assert_int_eq(gemm_stored_words(w->words, w->type) * 4, w->words * 3);
    products_close(&p);
}
END_TEST

START_TEST(damaged_escapes_are_detected)
{
    struct products p = products_open(KIND_SPECIAL, 1000, 520, 0);
    struct weight *w = p.w[1];
    const size_t n = w->first_escape[w->n_panels], bytes = n * sizeof *w->escapes;
    ck_assert(bf12_is_whole(w, bytes));
    ck_assert(!bf12_is_whole(w, bytes - 1));
    ck_assert(!bf12_is_whole(w, bytes - sizeof *w->escapes));
    struct bf12_escape *e = &w->escapes[n / 2], good = *e;
    const struct bf12_escape bad[] = {{(uint32_t)w->words, good.column, 0, good.half},
                                      {good.word, PANEL_COLUMNS, 0, good.half},
                                      {good.word, good.column, 2, good.half},
                                      {0, good.column, 0, good.half}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        *e = bad[i];
        ck_assert_msg(!bf12_is_whole(w, bytes), "case %zu", i);
        *e = good;
    }
    const uint32_t last = w->first_escape[1];
    w->first_escape[1] = (uint32_t)n + 1;
    ck_assert(!bf12_is_whole(w, bytes));
    w->first_escape[1] = last;
    w->first_escape[0] = 1;
    ck_assert(!bf12_is_whole(w, bytes));
    w->first_escape[0] = 0;
    ck_assert(bf12_is_whole(w, bytes));
    products_close(&p);
}
END_TEST

SUITE("bf12")
{
    SKIP_UNLESS(choose_isas(argc, argv));
    TIMEOUT(60);
    TEST(every_bf16_survives_a_quad);
    TEST(the_most_frequent_exponents_have_codes);
    LOOP(products_have_the_bits_of_bf16, 0, KINDS * n_isas);
    LOOP(random_exponents_stay_bf16, 0, n_isas);
    LOOP(embeddings_are_those_of_bf16, 0, n_isas);
    LOOP(weights_take_three_quarters_of_bf16, 0, n_isas);
    TEST(damaged_escapes_are_detected);
}
