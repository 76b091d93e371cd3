// SPDX-License-Identifier: Apache-2.0
// engine/model/dummy.h: a model opens from its config.json alone. Its values are the same in every run and for any
// number of ranks, and have the scale of trained weights.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/dummy.h"
#include "kernels/convert.h"
#include "lib/base/mem.h"
#include "tests/forward.h"
#include "tests/suite.h"

enum { VOCAB = 515, N_TOKENS = 9 };

static struct forward f;

static char *shape_path(const char *name)
{
    const char *source = getenv("FOREPACK_SOURCE");
    return mem_format("%s/tests/data/shapes/%s", source ? source : ".", name);
}

static struct model_options options_for(const char *path, const char *backend, const char *dtype)
{
    return (struct model_options){.dir = path,
                                  .dummy = true,
                                  .backend = backend,
                                  .dtype = dtype,
                                  .threads = 1,
                                  .max_rows = 32,
                                  .max_seqs = 2,
                                  .max_context = 64,
                                  .n_kv_blocks = 8};
}

// Returns the logits of the last of a few tokens.
static float *logits_of(const char *name, const char *backend, const char *dtype, int size)
{
    static const int32_t token[N_TOKENS] = {3, 1, 4, 1, 5, 9, 2, 6, 514};
    char *path = shape_path(name);
    struct model_options options = options_for(path, backend, dtype);
    struct ranks ranks;
    ranks_open(&ranks, &options, size);
    forward_start(&f, 1);
    forward_add(&f, 0, 0, token, NULL, N_TOKENS, LOGITS_LAST);
    float *copy = mem_copy(ranks_forward(&ranks, &f.batch).logits, VOCAB * sizeof *copy);
    ranks_close(&ranks);
    free(path);
    return copy;
}

START_TEST(a_shape_runs_with_the_same_values_every_time)
{
    static const char *const shapes[] = {"tiny.json", "tiny-qwen3.json"}, *const backends[] = {"reference", "cpu"};
    const char *shape = shapes[_i / 2], *backend = backends[_i % 2];
    float *one = logits_of(shape, backend, "f32", 1), *again = logits_of(shape, backend, "f32", 1);
    float *split = logits_of(shape, backend, "f32", 2), *bf16 = logits_of(shape, backend, "auto", 1);
    ck_assert_mem_eq(one, again, VOCAB * sizeof *one);
    double squares = 0;
    for (int i = 0; i < VOCAB; i++) {
        ck_assert_double_eq_tol((double)one[i], (double)split[i], 1e-5); // slices of the same matrices
        ck_assert_double_eq_tol((double)one[i], (double)bf16[i], 0.02);
        squares += (double)one[i] * (double)one[i];
    }
    // The head sums 64 products of values of size 1 and 0.02: 0.16.
    double size = sqrt(squares / VOCAB);
    ck_assert_double_gt(size, 0.1);
    ck_assert_double_lt(size, 0.25);
    free(one);
    free(again);
    free(split);
    free(bf16);
}
END_TEST

START_TEST(values_have_the_scale_of_trained_weights)
{
    char *path = shape_path("tiny.json");
    struct model_config config;
    ck_assert_int_eq(model_config_read(path, &config), STATUS_OK);
    struct dummy *d = dummy_create(&config, false);
    static float row[64], other[64];
    double sum = 0, squares = 0;
    struct matrix_view up = dummy_view(d, "model.layers.0.mlp.up_proj.weight", 96, 64, false);
    for (int r = 0; r < 96; r++) {
        matrix_view_read(&up, r, 0, 64, row);
        for (int c = 0; c < 64; c++) {
            sum += (double)row[c];
            squares += (double)row[c] * (double)row[c];
        }
    }
    ck_assert_double_eq_tol(sum / (96 * 64), 0, 1e-3);
    ck_assert_double_eq_tol(sqrt(squares / (96 * 64)), 0.02, 1e-3);

    struct matrix_view next = dummy_view(d, "model.layers.1.mlp.up_proj.weight", 96, 64, false);
    matrix_view_read(&up, 0, 0, 64, row);
    matrix_view_read(&next, 0, 0, 64, other);
    ck_assert_mem_ne(row, other, sizeof row);
    struct matrix_view norm = dummy_view(d, "model.norm.weight", 0, 64, false);
    matrix_view_read(&norm, 0, 0, 64, row);
    for (int c = 0; c < 64; c++)
        ck_assert(row[c] == 1);
    dummy_free(d);
    free(path);
}
END_TEST

START_TEST(opening_a_shape_as_a_checkpoint_names_the_missing_file)
{
    char *path = shape_path("tiny.json");
    struct model_options options = options_for(path, "cpu", "auto");
    options.dummy = false;
    struct ranks ranks;
    ck_assert_int_ne(ranks_try_open(&ranks, &options, 1), STATUS_OK);
    ck_assert_msg(strstr(status_message(), "tiny.json") != NULL, "%s", status_message());
    options = options_for(path, "cpu", "auto");
    ck_assert_int_eq(ranks_try_open(&ranks, &options, 3), STATUS_UNSUPPORTED); // it has 2 KV heads
    ck_assert_msg(strstr(status_message(), "tiny.json: 2 KV heads") != NULL, "%s", status_message());
    free(path);
}
END_TEST

SUITE("dummy")
{
    LOOP(a_shape_runs_with_the_same_values_every_time, 0, 4);
    TEST(values_have_the_scale_of_trained_weights);
    TEST(opening_a_shape_as_a_checkpoint_names_the_missing_file);
}
