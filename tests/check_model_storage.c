// SPDX-License-Identifier: Apache-2.0
// How a checkpoint is stored and counted: shards, tied tables, dtypes, FP8 scales, memory of weights, KV cache and
// logits.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/model/llama.h"
#include "lib/base/mem.h"
#include "tests/forward.h"
#include "tests/heap.h"
#include "tests/model_fixture.h"
#include "tests/suite.h"
#include "tests/tiny_model.h"
static const char *const backends[] = {"reference", "cpu"};
static const int sizes[] = {1, 2, 4};
static struct forward f;

static float *logits_of(const char *dir, size_t vocab)
{
    static const int32_t token[] = {3, 1, 4, 1, 5, 9, 2, 6};
    struct ranks ranks;
    struct model_options options = options_for(dir, "reference", "auto");
    ranks_open(&ranks, &options, 1);
    forward_start(&f, 1);
    forward_add(&f, 0, 0, token, NULL, 8, LOGITS_ALL);
    float *copy = mem_copy(ranks_forward(&ranks, &f.batch).logits, 8 * vocab * sizeof(float));
    ranks_close(&ranks);
    return copy;
}

static uint64_t fingerprint_of(const char *dir)
{
    struct ranks ranks;
    struct model_options options = options_for(dir, "reference", "auto");
    ranks_open(&ranks, &options, 1);
    uint64_t fingerprint = model_fingerprint(ranks.model[0]);
    ranks_close(&ranks);
    return fingerprint;
}

START_TEST(shards_and_either_name_of_a_tied_table_change_nothing)
{
    struct tiny_model spec = tiny_model_spec("llama3");
    spec.tied = true;
    size_t vocab = (size_t)spec.vocab_size, bytes = 8 * vocab * sizeof(float);
    char *single = tiny_model_temp(&spec);
    spec.n_shards = 4;
    char *sharded = tiny_model_temp(&spec);
    float *a = logits_of(single, vocab), *b = logits_of(sharded, vocab);
    ck_assert_mem_eq(a, b, bytes);

    tiny_model_remove(sharded);
    tiny_model_remove(single);
    free(b);
    free(a);
}
END_TEST

// Options of routers contain fingerprints, and files of packed weights are named by them. So a new version must compute
// the same ones.
START_TEST(a_fingerprint_tells_checkpoints_apart_and_stays)
{
    struct tiny_model spec = tiny_model_spec("llama"), sharded = spec, other = spec, shorter = spec;
    sharded.n_shards = 4;
    other.seed++;
    shorter.max_context /= 2; // the same weights under another config.json
    const struct {
        struct tiny_model *spec;
        bool same;
    } cases[] = {{&spec, true}, {&sharded, true}, {&other, false}, {&shorter, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *dir = tiny_model_temp(cases[i].spec);
        ck_assert_int_eq(fingerprint_of(dir) == UINT64_C(0xc3cacdf1fbcdddb2), cases[i].same);
        tiny_model_remove(dir);
    }
}
END_TEST

START_TEST(dtypes_and_sizes_follow_the_options)
{
    struct tiny_model spec = tiny_model_spec("llama");
    static const struct {
        enum dtype stored;
        const char *asked, *asked_kv;
        enum dtype expected, expected_kv;
        size_t head_bytes; // K of one entry and head
    } cases[] = {{DTYPE_F32, "auto", NULL, DTYPE_F32, DTYPE_F32, 64},
                 {DTYPE_F16, "auto", "auto", DTYPE_BF16, DTYPE_BF16, 32},
                 {DTYPE_BF16, "auto", "bf16", DTYPE_BF16, DTYPE_BF16, 32},
                 {DTYPE_BF16, "auto", "int8", DTYPE_BF16, DTYPE_INT8, 16 + 4},
                 {DTYPE_BF16, "f32", "auto", DTYPE_F32, DTYPE_F32, 64},
                 {DTYPE_F32, "int8", "auto", DTYPE_INT8, DTYPE_BF16, 32},
                 {DTYPE_F32, "int8-g128", "int8", DTYPE_INT8_G128, DTYPE_INT8, 16 + 4},
                 {DTYPE_BF16, "fp8", "auto", DTYPE_FP8, DTYPE_BF16, 32},
                 {DTYPE_BF16, "bf16", "fp8", DTYPE_BF16, DTYPE_FP8, 16 + 4},
                 {DTYPE_F32, "bf16", "auto", DTYPE_BF16, DTYPE_BF16, 32}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct ranks ranks;
        spec.dtype = cases[i].stored;
        char *dir = tiny_model_temp(&spec);
        struct model_options options = options_for(dir, "reference", cases[i].asked);
        options.kv_dtype = cases[i].asked_kv;
        options.n_kv_blocks = 0; // 8 contexts of 512 tokens
        ranks_open(&ranks, &options, 2);
        ck_assert_int_eq(model_dtype(ranks.model[0]), cases[i].expected);
        ck_assert_int_eq(model_kv_dtype(ranks.model[0]), cases[i].expected_kv);
        ck_assert_int_eq(model_kv_blocks(ranks.model[0]), 8 * 512 / KV_BLOCK_TOKENS);
        // both ranks' K and V: 2 layers, 4 KV heads of 16
        ck_assert_uint_eq(model_kv_bytes(ranks.model[0]), 8u * 512 * 2 * 2 * 2 * cases[i].head_bytes);
        // embedding and head 272 x 64, per layer qkv 256 x 64, o 64 x 128, MLP 3 x 96 x 64 halved; 5 norms whole
        size_t halved = (2u * 272 * 64 + 2 * (256 * 64 + 64 * 128 + 3 * 96 * 64)) / 2;
        ck_assert_uint_eq(ranks.model[1]->weight_bytes, (halved + 5 * 64) * dtype_size_bytes(cases[i].stored));
        ranks_close(&ranks);
        tiny_model_remove(dir);
    }
}
END_TEST

// Returns the heap bytes of a model on all ranks. *counted_p receives the bytes that it reports for its logit rows.
static double allocated(const char *dir, const char *backend, int size, int logit_rows, double *counted_p)
{
    struct ranks ranks;
    struct model_options options = options_for(dir, backend, "f32");
    options.max_logit_rows = logit_rows;
    double before = (double)heap_bytes();
    ranks_open(&ranks, &options, size);
    double bytes = (double)heap_bytes() - before;
    *counted_p = 0;
    for (int rank = 0; rank < size; rank++)
        *counted_p += logit_rows * (double)model_logit_bytes(ranks.model[rank]);
    ranks_close(&ranks);
    return bytes;
}

// With one rank the logits exist once: the host reads them where the backend computed them. The last layer has the
// attention's output and the residual of each logit row.
START_TEST(logit_rows_take_the_memory_that_is_reported)
{
    struct tiny_model spec = tiny_model_spec("llama");
    spec.vocab_size = 3001;
    const int row_floats = spec.vocab_size + spec.hidden + spec.n_heads * spec.head_size;
    char *dir = tiny_model_temp(&spec);
    for (int b = 0; b < 2; b++)
        for (int s = 0; s < 3; s++) {
            double few, many;
            allocated(dir, backends[b], sizes[s], 1,
                      &few); // warm-up: static memory stays allocated after the first model
            double made = -allocated(dir, backends[b], sizes[s], 1, &few);
            made += allocated(dir, backends[b], sizes[s], 129, &many);
            ck_assert_msg(fabs(made - (many - few)) <= 0.02 * made, "%s, %d ranks: counted %.0f bytes, made %.0f",
                          backends[b], sizes[s], many - few, made);
            if (sizes[s] == 1) ck_assert_double_le(made, 128 * 1.02 * row_floats * sizeof(float));
        }
    tiny_model_remove(dir);
}
END_TEST

// weight_bytes counts FP8 matrices and their scales as stored: slices of this rank, norms whole, and per-matrix
// scales whole.
START_TEST(fp8_weights_are_counted_with_their_scales)
{
    struct tiny_model spec = tiny_model_spec("llama");
    spec.dtype = DTYPE_BF16;
    size_t tables = 2u * 272 * 64 / 2, qkv = 256 * 64 / 2, o = 64 * 128 / 2, mlp = 3 * 96 * 64 / 2, norms = 5 * 64;
    const size_t scales[] = {[TINY_FP8_CHANNEL] = 2 * (256 / 2 + 64 + 2 * 96 / 2 + 64) * 2,
                             [TINY_FP8_TENSOR] = 2 * 7 * 2,
                             [TINY_FP8_STATIC] = 2 * 7 * 4,
                             [TINY_FP8_FBGEMM] = 2 * (2 * 96 / 2 + 64) * 4};
    for (spec.fp8 = TINY_FP8_CHANNEL; spec.fp8 <= TINY_FP8_FBGEMM; spec.fp8++) {
        struct ranks ranks;
        char *dir = tiny_model_temp(&spec);
        struct model_options options = options_for(dir, "reference", "auto");
        ranks_open(&ranks, &options, 2);
        size_t attention = 2 * (qkv + o) * (spec.fp8 == TINY_FP8_FBGEMM ? 2 : 1);
        ck_assert_uint_eq(ranks.model[1]->weight_bytes, 2 * (tables + norms) + attention + 2 * mlp + scales[spec.fp8]);
        ranks_close(&ranks);
        tiny_model_remove(dir);
    }
}
END_TEST

// The memory plan counts one f32 scale for each output, whatever the file stores, and norms in f32.
START_TEST(the_fp8_plan_counts_matrices_that_stay_in_16_bits)
{
    struct tiny_model spec = tiny_model_spec("llama");
    spec.dtype = DTYPE_BF16;
    size_t tables = 2u * 272 * 64 * 2, qkv = 256 * 64, o = 64 * 128, mlp = 3 * 96 * 64, norms = 5 * 64 * 4;
    size_t attention_scales = 2 * (256 + 64) * 4, mlp_scales = 2 * (2 * 96 + 64) * 4;
    for (spec.fp8 = TINY_FP8_CHANNEL; spec.fp8 <= TINY_FP8_FBGEMM; spec.fp8++) {
        struct memory_plan plan;
        char *dir = tiny_model_temp(&spec), *shape = mem_format("%s/config.json", dir);
        size_t attention = 2 * (qkv + o) * (spec.fp8 == TINY_FP8_FBGEMM ? 2 : 1);
        if (spec.fp8 != TINY_FP8_FBGEMM) attention += attention_scales;
        for (int alone = 0; alone < 2; alone++) {
            struct model_options options = options_for(alone ? shape : dir, "cuda", "auto");
            options.dummy = alone;
            enum status status = model_plan(&options, 0, 1, &plan);
            ck_assert_msg(status == STATUS_OK, "%s", status_message());
            ck_assert_int_eq(plan.dtype, DTYPE_FP8);
            ck_assert_uint_eq(plan.allocated.bytes[MEMORY_WEIGHTS], tables + attention + 2 * mlp + mlp_scales + norms);
        }
        free(shape);
        tiny_model_remove(dir);
    }
}
END_TEST

#define GATE "model.layers.1.mlp.gate_proj.weight"

// A scale of shape [N] equals one of shape [N, 1]. A checkpoint with another scale has another fingerprint.
START_TEST(scales_have_one_dimension_or_two_and_count_as_weights)
{
    struct tiny_model spec = tiny_model_spec("llama");
    spec.fp8 = TINY_FP8_FBGEMM;
    size_t vocab = (size_t)spec.vocab_size, bytes = 8 * vocab * sizeof(float);
    char *dir = tiny_model_temp(&spec);
    float *two = logits_of(dir, vocab);
    edit_text(dir, GATE "_scale", "[96,1]", "[96]  ");
    float *one = logits_of(dir, vocab);
    ck_assert_mem_eq(one, two, bytes);
    const uint64_t before = fingerprint_of(dir);
    edit_f32(dir, GATE "_scale", 95, 1);
    ck_assert_uint_ne(before, fingerprint_of(dir));
    free(one);
    one = logits_of(dir, vocab);
    ck_assert_mem_ne(one, two, bytes);
    free(one);
    free(two);
    tiny_model_remove(dir);
}
END_TEST

SUITE("model_storage")
{
    TIMEOUT(60);
    TEST(shards_and_either_name_of_a_tied_table_change_nothing);
    TEST(a_fingerprint_tells_checkpoints_apart_and_stays);
    TEST(dtypes_and_sizes_follow_the_options);
    TEST(logit_rows_take_the_memory_that_is_reported);
    TEST(fp8_weights_are_counted_with_their_scales);
    TEST(the_fp8_plan_counts_matrices_that_stay_in_16_bits);
    TEST(scales_have_one_dimension_or_two_and_count_as_weights);
}
