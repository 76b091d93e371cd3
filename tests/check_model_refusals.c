// SPDX-License-Identifier: Apache-2.0
// What a model refuses, each time with a sentence that names the defect: splits over ranks, options, checkpoints that
// contradict their config, broken FP8 scales, batches over the limits.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/mem.h"
#include "tests/forward.h"
#include "tests/model_fixture.h"
#include "tests/suite.h"
#include "tests/tiny_model.h"
static struct forward f;

static void refuse_open(const struct model_options *options, int size, enum status status, const char *text)
{
    struct ranks ranks;
    enum status got = ranks_try_open(&ranks, options, size);
    ck_assert_msg(got == status, "wanted \"%s\", got %s: \"%s\"", text, status_name(got),
                  got == STATUS_OK ? "" : status_message());
    ck_assert_msg(strstr(status_message(), text) != NULL, "\"%s\" lacks \"%s\"", status_message(), text);
}

START_TEST(impossible_splits_are_refused_with_both_numbers)
{
    struct tiny_model spec = tiny_model_spec("llama");
    spec.vocab_size = 9;
    spec.intermediate = 90;
    char *dir = tiny_model_temp(&spec);
    struct model_options options = options_for(dir, "reference", "auto");
    refuse_open(&options, 3, STATUS_UNSUPPORTED,
                "4 KV heads cannot be split over 3 ranks: use a number of ranks that divides 4 or is a multiple of it");
    refuse_open(&options, 4, STATUS_UNSUPPORTED, "90 MLP columns cannot be split evenly over 4 ranks");
    tiny_model_remove(dir);
    spec.intermediate = 96; // 4 ranks: 9 = 3 + 3 + 3 + 0
    dir = tiny_model_temp(&spec);
    options.dir = dir;
    refuse_open(&options, 4, STATUS_UNSUPPORTED, "vocabulary of 9 is too small for 4 ranks");
    tiny_model_remove(dir);
}
END_TEST

START_TEST(wrong_options_are_refused)
{
    struct tiny_model spec = tiny_model_spec("llama");
    char *dir = tiny_model_temp(&spec);
    struct model_options options = options_for(dir, "reference", "f64");
    refuse_open(&options, 1, STATUS_INVALID,
                "dtype f64: must be one of auto|f32|bf16|bf12|int8|int8-g128|fp8|int4-g128");
    options = options_for(dir, "reference", "f16");
    refuse_open(&options, 1, STATUS_INVALID, "dtype f16: must be one of");
    options = options_for(dir, "cpu", "fp8");
    refuse_open(&options, 1, STATUS_UNSUPPORTED, "fp8 weights and an fp8 KV cache need the CUDA backend: use dtype");
    options = options_for(dir, "cpu", "bf16");
    options.kv_dtype = "fp8";
    refuse_open(&options, 1, STATUS_UNSUPPORTED, "fp8 weights and an fp8 KV cache need the CUDA backend: use dtype");
    options = options_for(dir, "reference", "bf16");
    options.kv_dtype = "int4";
    refuse_open(&options, 1, STATUS_INVALID, "kv-cache-dtype int4: must be one of auto|bf16|int8|fp8");
    options = options_for(dir, "reference", "f32");
    options.kv_dtype = "int8";
    refuse_open(&options, 1, STATUS_INVALID, "kv-cache-dtype int8: a model computed in f32 keeps K and V in f32");
    options = options_for(dir, "abacus", "auto");
    refuse_open(&options, 1, STATUS_INVALID, "abacus");
    options = options_for(dir, "reference", "auto");
    options.max_context = 513;
    refuse_open(&options, 1, STATUS_INVALID, "max_context 513: must be in 1..512");
    options = options_for(dir, "reference", "auto");
    options.max_rows = 0;
    refuse_open(&options, 1, STATUS_INVALID, "0 rows");
    options = options_for("/nonexistent", "reference", "auto");
    refuse_open(&options, 1, STATUS_NOT_FOUND, "/nonexistent/config.json: No such file");
    tiny_model_remove(dir);
}
END_TEST

// Expects that the weights of `stored` with the config.json of `described` are refused.
static void refuse_mix(const struct tiny_model *stored, const struct tiny_model *described, const char *text)
{
    char *dir = tiny_model_temp(stored), *other = tiny_model_temp(described);
    char *from = mem_format("%s/config.json", other), *to = mem_format("%s/config.json", dir);
    ck_assert_int_eq(rename(from, to), 0);
    struct model_options options = options_for(dir, "reference", "auto");
    refuse_open(&options, 1, STATUS_DATA, text);
    refuse_open(&options, 2, STATUS_DATA, text);
    free(from);
    free(to);
    tiny_model_remove(dir);
    tiny_model_remove(other);
}

START_TEST(a_stored_head_that_differs_from_the_tied_table_is_refused)
{
    struct tiny_model untied = tiny_model_spec("llama"), tied = untied;
    tied.tied = true;
    refuse_mix(&untied, &tied, "lm_head.weight differs from model.embed_tokens.weight, but tie_word_embeddings");
}
END_TEST

START_TEST(weights_that_contradict_the_config_are_refused)
{
    struct tiny_model stored = tiny_model_spec("llama"), described = stored;
    described.vocab_size = 280;
    refuse_mix(&stored, &described,
               "tensor model.embed_tokens.weight has shape [272, 64], but config.json calls for [280, 64]");
    described = stored;
    described.hidden = 32;
    refuse_mix(&stored, &described, "embed_tokens.weight has shape [272, 64], but config.json calls for [272, 32]");
    described = stored;
    described.n_kv_heads = 2;
    refuse_mix(&stored, &described, "self_attn.k_proj.weight has shape [64, 64], but config.json calls for [32, 64]");
    described = stored;
    described.head_size = 8;
    refuse_mix(&stored, &described, "self_attn.q_proj.weight has shape [128, 64], but config.json calls for [64, 64]");
    described = stored;
    described.intermediate = 64;
    refuse_mix(&stored, &described, "mlp.gate_proj.weight has shape [96, 64], but config.json calls for [64, 64]");
    described = stored;
    described.n_layers = 3;
    refuse_mix(&stored, &described, "tensor model.layers.2.input_layernorm.weight is missing");
    described = stored;
    described.n_layers = 1;
    refuse_mix(&stored, &described, "tensor model.layers.1.input_layernorm.weight does not belong");

    struct tiny_model qwen2 = tiny_model_spec("qwen2"), qwen3 = tiny_model_spec("qwen3"), tied = stored;
    refuse_mix(&qwen2, &stored, "self_attn.k_proj.bias does not belong to a LlamaForCausalLM");
    refuse_mix(&stored, &qwen2, "tensor model.layers.0.self_attn.q_proj.bias is missing");
    refuse_mix(&qwen3, &stored, "self_attn.k_norm.weight does not belong");
    refuse_mix(&stored, &qwen3, "tensor model.layers.0.self_attn.q_norm.weight is missing");
    tied.tied = true;
    refuse_mix(&tied, &stored, "tensor lm_head.weight is missing: config.json calls for it");
    tied.tied_as_head = true;
    refuse_mix(&tied, &stored, "tensor model.embed_tokens.weight is missing");
}
END_TEST

#define GATE "model.layers.1.mlp.gate_proj.weight"

START_TEST(broken_scales_are_refused_with_the_defect)
{
    struct tiny_model spec = tiny_model_spec("llama");
    spec.fp8 = TINY_FP8_FBGEMM;
    static const struct {
        const char *tensor, *from, *to; // of the header
        enum status status;
        const char *text;
    } cases[] = {
        {GATE "_scale", "_scale", "_scalf", STATUS_DATA,
         "tensor " GATE " is F8_E4M3, but there is no tensor " GATE "_scale"},
        {GATE "_scale", "[96,1]", "[1,96]", STATUS_DATA,
         "tensor " GATE
         "_scale has shape [1, 96]: must be [1], one scale for the matrix, or [96, 1], one for each output"},
        {GATE "_scale", "[96,1]", "[48,2]", STATUS_DATA, "has shape [48, 2]: must be [1]"},
        {GATE "_scale", "F32", "I32", STATUS_UNSUPPORTED, "_scale is I32: must be F32, F16 or BF16"},
        {GATE, "F8_E4M3", "F8_E5M2", STATUS_UNSUPPORTED, GATE " is F8_E5M2: must be F32, F16, BF16, F8_E4M3 or I8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *dir = tiny_model_temp(&spec);
        edit_text(dir, cases[i].tensor, cases[i].from, cases[i].to);
        for (int size = 1; size <= 2; size++) {
            struct model_options options = options_for(dir, "reference", "auto");
            refuse_open(&options, size, cases[i].status, cases[i].text);
            refuse_open(&options, size, cases[i].status, "model.safetensors");
        }
        tiny_model_remove(dir);
    }
    static const float values[] = {0, -1, NAN, INFINITY};
    for (int i = 0; i < 4; i++) {
        char *dir = tiny_model_temp(&spec);
        edit_f32(dir, GATE "_scale", 95, values[i]);
        struct model_options options = options_for(dir, "cpu", "auto");
        refuse_open(&options, 1, STATUS_DATA, "model.safetensors: tensor " GATE "_scale: scale 95 is ");
        refuse_open(&options, 1, STATUS_DATA, ": must be a positive number");
        tiny_model_remove(dir);
    }
    struct tiny_model plain = tiny_model_spec("llama");
    refuse_mix(&spec, &plain, "is F8_E4M3, but config.json has no quantization_config");
}
END_TEST

START_TEST(unknown_dtypes_are_refused)
{
    struct tiny_model spec = tiny_model_spec("llama");
    char *dir = tiny_model_temp(&spec), *path = mem_format("%s/model.safetensors", dir), header[256];
    FILE *file = fopen(path, "r+b");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fread(header, 1, sizeof header, file), sizeof header);
    char *type = memmem(header, sizeof header, "\"F32\"", 5); // of model.embed_tokens.weight
    ck_assert_ptr_nonnull(type);
    ck_assert_int_eq(fseek(file, type + 1 - header, SEEK_SET), 0);
    ck_assert_int_eq(fputc('I', file), 'I');
    fclose(file);
    struct model_options options = options_for(dir, "reference", "auto");
    refuse_open(&options, 1, STATUS_UNSUPPORTED,
                "tensor model.embed_tokens.weight is I32: must be F32, F16, BF16, "
                "F8_E4M3 or I8");
    free(path);
    tiny_model_remove(dir);
}
END_TEST

START_TEST(a_batch_over_the_limits_is_refused_and_the_next_one_runs)
{
    static const int32_t token[] = {1, 2, 3, 271}, outside[] = {1, 272}, negative[] = {-1}, before[] = {-5};
    struct tiny_model spec = tiny_model_spec("llama");
    char *dir = tiny_model_temp(&spec);
    for (int size = 1; size <= 2; size++) {
        struct model_options options = options_for(dir, "reference", "auto");
        options.max_rows = 4;
        options.max_logit_rows = 2;
        struct ranks ranks;
        struct forward_result result;
        ranks_open(&ranks, &options, size);
        forward_start(&f, 1);
        forward_add(&f, 0, 0, token, NULL, 4, LOGITS_ALL);
        ck_assert_int_eq(ranks_try_forward(&ranks, &f.batch, &result), STATUS_INTERNAL);
        ck_assert_ptr_nonnull(strstr(status_message(), "4 logit rows; room for 2"));
        forward_start(&f, 2);
        forward_add(&f, 0, 0, token, NULL, 4, LOGITS_NONE);
        forward_add(&f, 1, 0, token, NULL, 1, LOGITS_NONE);
        ck_assert_int_eq(ranks_try_forward(&ranks, &f.batch, &result), STATUS_INTERNAL);
        forward_start(&f, 1);
        forward_add(&f, 0, 0, outside, NULL, 2, LOGITS_LAST);
        ck_assert_int_eq(ranks_try_forward(&ranks, &f.batch, &result), STATUS_INTERNAL);
        ck_assert_ptr_nonnull(strstr(status_message(), "token 272 of 272"));
        forward_start(&f, 1);
        forward_add(&f, 0, 0, negative, NULL, 1, LOGITS_LAST);
        ck_assert_int_eq(ranks_try_forward(&ranks, &f.batch, &result), STATUS_INTERNAL);
        forward_start(&f, 1);
        forward_add(&f, 0, 0, token, before, 1, LOGITS_LAST);
        ck_assert_int_eq(ranks_try_forward(&ranks, &f.batch, &result), STATUS_INTERNAL);
        forward_start(&f, 1);
        forward_add(&f, 0, 0, token, NULL, 4, LOGITS_LAST);
        f.logit_row[0] = 4;
        ck_assert_int_eq(ranks_try_forward(&ranks, &f.batch, &result), STATUS_INTERNAL);

        forward_start(&f, 1);
        forward_add(&f, 0, 0, token, NULL, 4, LOGITS_LAST);
        result = ranks_forward(&ranks, &f.batch);
        ck_assert_ptr_nonnull(result.logits);
        ck_assert_ptr_null(result.importance);
        ranks_close(&ranks);
    }
    tiny_model_remove(dir);
}
END_TEST

SUITE("model_refusals")
{
    TIMEOUT(60);
    TEST(a_stored_head_that_differs_from_the_tied_table_is_refused);
    TEST(impossible_splits_are_refused_with_both_numbers);
    TEST(wrong_options_are_refused);
    TEST(weights_that_contradict_the_config_are_refused);
    TEST(broken_scales_are_refused_with_the_defect);
    TEST(unknown_dtypes_are_refused);
    TEST(a_batch_over_the_limits_is_refused_and_the_next_one_runs);
}
