// SPDX-License-Identifier: Apache-2.0
// lib/text/config.h: config.json of every family, the meaning of absent keys, and the sentence of every refusal.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/mem.h"
#include "lib/text/config.h"
#include "tests/suite.h"

static char dir[] = "/tmp/forepack-config-XXXXXX";

static void config_file_write(const char *name, const char *text)
{
    char *path = mem_format("%s/%s", dir, name);
    if (text) {
        FILE *file = fopen(path, "w");
        ck_assert_ptr_nonnull(file);
        fputs(text, file);
        fclose(file);
    } else {
        unlink(path);
    }
    free(path);
}

static void setup(void)
{
    strcpy(dir, "/tmp/forepack-config-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
}

static void teardown(void)
{
    config_file_write("config.json", NULL);
    config_file_write("generation_config.json", NULL);
    config_file_write("tokenizer_config.json", NULL);
    config_file_write("tokenizer.json", NULL);
    rmdir(dir);
}

static struct model_config read_both(const char *config, const char *generation)
{
    struct model_config c;
    config_file_write("config.json", config);
    config_file_write("generation_config.json", generation);
    enum status status = model_config_read(dir, &c);
    ck_assert_msg(status == STATUS_OK, "%s", status_message());
    return c;
}

// Expects that config.json is refused with `status` and a sentence that names the file and contains `text`.
static void refuse(const char *config, enum status status, const char *text)
{
    struct model_config c;
    config_file_write("config.json", config);
    config_file_write("generation_config.json", NULL);
    enum status got = model_config_read(dir, &c);
    ck_assert_msg(got == status, "%s: %s: \"%s\"", config ? config : "no file", status_name(got), status_message());
    ck_assert_msg(strstr(status_message(), text) != NULL, "\"%s\" lacks \"%s\"", status_message(), text);
    ck_assert_msg(strstr(status_message(), "/config.json: ") != NULL, "%s", status_message());
}

#define LLAMA_SHAPE                                                                                                    \
    "\"hidden_size\":4096,\"intermediate_size\":11008,\"num_hidden_layers\":32,\"num_attention_heads\":32,"            \
    "\"vocab_size\":32000"
#define LLAMA "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\"," LLAMA_SHAPE

START_TEST(llama2_with_absent_keys_means_what_hugging_face_means)
{
    struct model_config c = read_both(LLAMA "}", NULL);
    ck_assert_str_eq(c.architecture, "LlamaForCausalLM");
    ck_assert_int_eq(c.n_layers, 32);
    ck_assert_int_eq(c.hidden, 4096);
    ck_assert_int_eq(c.intermediate, 11008);
    ck_assert_int_eq(c.n_heads, 32);
    ck_assert_int_eq(c.n_kv_heads, 32);
    ck_assert_int_eq(c.head_size, 128);
    ck_assert_int_eq(c.vocab_size, 32000);
    ck_assert_int_eq(c.max_context, 2048);
    ck_assert_float_eq(c.norm_epsilon, 1e-6f);
    ck_assert_double_eq(c.rope.theta, 10000);
    ck_assert(!c.tied_embeddings);
    ck_assert(!c.layer.qkv_bias);
    ck_assert(!c.layer.o_bias);
    ck_assert(!c.layer.head_norm);
    ck_assert_int_ne(c.rope.type, ROPE_LLAMA3);
    ck_assert_int_eq(c.sliding_window, 0);
    ck_assert_int_eq(c.bos_id, 1);
    ck_assert_int_eq(c.n_eos, 1);
    ck_assert(model_config_is_eos(&c, 2));
    ck_assert(!model_config_is_eos(&c, 1));

    // null means absent, except for an end token, where it means none
    c = read_both(LLAMA ",\"head_dim\":null,\"rope_scaling\":null,\"num_key_value_heads\":null,\"eos_token_id\":null,"
                        "\"bos_token_id\":null,\"pretraining_tp\":1,\"tie_word_embeddings\":true}",
                  NULL);
    ck_assert_int_eq(c.head_size, 128);
    ck_assert_int_eq(c.n_kv_heads, 32);
    ck_assert_int_eq(c.n_eos, 0);
    ck_assert_int_eq(c.bos_id, -1);
    ck_assert(c.tied_embeddings);
}
END_TEST

#define LLAMA32                                                                                                        \
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":2048,"                         \
    "\"intermediate_size\":8192,\"num_hidden_layers\":16,\"num_attention_heads\":32,\"num_key_value_heads\":8,"        \
    "\"head_dim\":64,\"vocab_size\":128256,\"max_position_embeddings\":131072,\"rms_norm_eps\":1e-05,"                 \
    "\"tie_word_embeddings\":true,\"bos_token_id\":128000,\"eos_token_id\":[128001,128008,128009],"

static void check_llama32(const struct model_config *c)
{
    ck_assert_int_eq(c->rope.type, ROPE_LLAMA3);
    ck_assert_double_eq(c->rope.theta, 500000);
    ck_assert_double_eq(c->rope.factor, 32);
    ck_assert_double_eq(c->rope.low_freq_factor, 1);
    ck_assert_double_eq(c->rope.high_freq_factor, 4);
    ck_assert_int_eq(c->rope.original_context, 8192);
    ck_assert_int_eq(c->max_context, 131072);
    ck_assert_int_eq(c->n_eos, 3);
    ck_assert_int_eq(c->n_kv_heads, 8);

    // Reference values: transformers' _compute_llama3_parameters; its three branches are dims 0-13, 14-17 and the
    // others.
    float inv_freq[32];
    rope_config_frequencies(&c->rope, false, inv_freq);
    for (int i = 0; i < 32; i++) {
        double f = pow(500000, -i / 32.0), wavelength = 2 * M_PI / f, expected;
        if (wavelength < 8192 / 4.0)
            expected = f;
        else if (wavelength > 8192)
            expected = f / 32;
        else {
            double smooth = (8192 / wavelength - 1) / (4 - 1);
            expected = (1 - smooth) * f / 32 + smooth * f;
        }
        ck_assert_double_eq_tol(inv_freq[i] / expected, 1, 1e-6);
    }
    ck_assert_float_eq(inv_freq[0], 1);
    ck_assert_double_eq_tol(inv_freq[31], pow(500000, -31 / 32.0) / 32, 1e-12);
}

START_TEST(llama3_rope_is_read_from_old_and_new_files)
{
    struct model_config c = read_both(
        LLAMA32 "\"rope_theta\":500000.0,\"rope_scaling\":{\"factor\":32.0,\"high_freq_factor\":4.0,"
                "\"low_freq_factor\":1.0,\"original_max_position_embeddings\":8192,\"rope_type\":\"llama3\"}}",
        NULL);
    check_llama32(&c);
    c = read_both(LLAMA32 "\"rope_theta\":500000.0,\"rope_scaling\":{\"factor\":32.0,\"high_freq_factor\":4.0,"
                          "\"low_freq_factor\":1.0,\"original_max_position_embeddings\":8192,\"type\":\"llama3\"}}",
                  NULL);
    check_llama32(&c);
    c = read_both(LLAMA32
                  "\"rope_parameters\":{\"rope_theta\":500000.0,\"factor\":32.0,\"high_freq_factor\":4.0,"
                  "\"low_freq_factor\":1.0,\"original_max_position_embeddings\":8192,\"rope_type\":\"llama3\"}}",
                  NULL);
    check_llama32(&c);
    c = read_both(LLAMA ",\"rope_parameters\":{\"rope_theta\":20000.0}}", NULL);
    ck_assert_double_eq(c.rope.theta, 20000);
    ck_assert_int_ne(c.rope.type, ROPE_LLAMA3);
    c = read_both(LLAMA ",\"rope_scaling\":{\"rope_type\":\"default\"},\"rope_theta\":5e5}", NULL);
    ck_assert_double_eq(c.rope.theta, 5e5);
}
END_TEST

#define MISTRAL                                                                                                        \
    "{\"architectures\":[\"MistralForCausalLM\"],\"model_type\":\"mistral\",\"num_key_value_heads\":8,"                \
    "\"max_position_embeddings\":32768,\"rope_theta\":1000000.0," LLAMA_SHAPE

START_TEST(mistral_window_bounds_the_context)
{
    struct model_config c = read_both(MISTRAL ",\"sliding_window\":null}", NULL); // v0.3
    ck_assert_int_eq(c.sliding_window, 0);
    ck_assert_int_eq(c.max_context, 32768);
    ck_assert_int_eq(c.n_kv_heads, 8);
    c = read_both(MISTRAL ",\"sliding_window\":4096}", NULL); // v0.1
    ck_assert_int_eq(c.sliding_window, 4096);
    ck_assert_int_eq(c.max_context, 4096);
    c = read_both(MISTRAL "}", NULL);
    ck_assert_int_eq(c.max_context, 4096);
    c = read_both(MISTRAL ",\"sliding_window\":1000000}", NULL);
    ck_assert_int_eq(c.max_context, 32768);
}
END_TEST

#define QWEN2                                                                                                          \
    "{\"architectures\":[\"Qwen2ForCausalLM\"],\"model_type\":\"qwen2\",\"hidden_size\":896,"                          \
    "\"intermediate_size\":4864,\"num_hidden_layers\":24,\"num_attention_heads\":14,\"num_key_value_heads\":2,"        \
    "\"vocab_size\":151936,\"max_position_embeddings\":32768,\"max_window_layers\":21,\"rms_norm_eps\":1e-06,"         \
    "\"rope_theta\":1000000.0,\"sliding_window\":4096,\"tie_word_embeddings\":true,\"bos_token_id\":151643,"           \
    "\"eos_token_id\":151645,"

START_TEST(qwen2_has_qkv_bias_and_a_window_only_on_request)
{
    struct model_config c =
        read_both(QWEN2 "\"use_sliding_window\":false}", "{\"bos_token_id\":151643,\"eos_token_id\":[151645,151643]}");
    ck_assert(c.layer.qkv_bias);
    ck_assert(!c.layer.o_bias);
    ck_assert(!c.layer.head_norm);
    ck_assert(c.tied_embeddings);
    ck_assert_int_eq(c.head_size, 64);
    ck_assert_int_eq(c.max_context, 32768);
    ck_assert_int_eq(c.sliding_window, 0);
    ck_assert_int_eq(c.n_eos, 2);
    c = read_both(QWEN2 "\"attention_bias\":false}", NULL); // Qwen2 ignores this key
    ck_assert(c.layer.qkv_bias);
    c = read_both(QWEN2 "\"use_sliding_window\":true}", NULL);
    ck_assert_int_eq(c.max_context, 4096);
}
END_TEST

#define QWEN3                                                                                                          \
    "{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"hidden_size\":1024,"                         \
    "\"intermediate_size\":3072,\"num_hidden_layers\":28,\"num_attention_heads\":16,\"num_key_value_heads\":8,"        \
    "\"vocab_size\":151936,\"max_position_embeddings\":40960,\"rope_theta\":1000000,\"max_window_layers\":28,"         \
    "\"use_sliding_window\":false,\"sliding_window\":null,\"attention_bias\":false,\"tie_word_embeddings\":true"

START_TEST(qwen3_has_qk_norm_and_heads_wider_than_its_hidden_size)
{
    struct model_config c = read_both(QWEN3 ",\"head_dim\":128}", NULL);
    ck_assert(c.layer.head_norm);
    ck_assert(!c.layer.qkv_bias);
    ck_assert_int_eq(c.head_size, 128); // 16 * 128 is twice the hidden size of 1024
    ck_assert_int_eq(c.n_eos, 0);
    ck_assert_int_eq(c.bos_id, -1);
    c = read_both(QWEN3 "}", NULL);
    ck_assert_int_eq(c.head_size, 128);
}
END_TEST

START_TEST(end_tokens_are_the_union_of_both_files)
{
    struct model_config c =
        read_both(LLAMA ",\"bos_token_id\":1,\"eos_token_id\":2}", "{\"bos_token_id\":5,\"eos_token_id\":[7,2]}");
    ck_assert_int_eq(c.n_eos, 3 - 1);
    ck_assert(model_config_is_eos(&c, 2));
    ck_assert(model_config_is_eos(&c, 7));
    ck_assert(!model_config_is_eos(&c, 5));
    ck_assert_int_eq(c.bos_id, 5);
    c = read_both(LLAMA "}", "{\"max_length\":4096}");
    ck_assert_int_eq(c.bos_id, 1);
    ck_assert_int_eq(c.n_eos, 1);
}
END_TEST

START_TEST(architecture_may_be_named_by_model_type_alone)
{
    struct model_config c = read_both("{\"model_type\":\"llama\"," LLAMA_SHAPE "}", NULL);
    ck_assert_str_eq(c.architecture, "LlamaForCausalLM");
    c = read_both(LLAMA ",\"attention_bias\":true}", NULL);
    ck_assert(c.layer.qkv_bias);
    ck_assert(c.layer.o_bias);
}
END_TEST

#define WEIGHTS(members)                                                                                               \
    "\"config_groups\":{\"group_0\":{\"targets\":[\"Linear\"],\"input_activations\":null,\"weights\":{" members "}}}"
#define CHANNEL    "\"num_bits\":8,\"type\":\"float\",\"strategy\":\"channel\""
#define COMPRESSED ",\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":\"float-quantized\","

#define QUANTISED(method) ",\"quantization_config\":{\"quant_method\":\"" method "\""
#define PACKED            ",\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\","
#define INT8              ",\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":\"int-quantized\","

START_TEST(integers_are_recognised_in_four_formats)
{
    static const struct {
        const char *text;
        enum stored_weights stored;
        bool has_zeros, zero_added;
    } cases[] = {
        {QUANTISED("awq") ",\"bits\":4,\"group_size\":128,\"version\":\"GEMM\"}", STORED_AWQ, true, false},
        {QUANTISED("awq") ",\"w_bit\":4,\"q_group_size\":128,\"zero_point\":true}", STORED_AWQ, true, false},
        {QUANTISED("gptq") ",\"bits\":4,\"group_size\":128,\"sym\":true,\"desc_act\":false}", STORED_GPTQ, true, true},
        {QUANTISED("gptq") ",\"bits\":4,\"group_size\":128,\"checkpoint_format\":\"gptq_v2\","
                           "\"dynamic\":{\"-:.*q_proj\":{}}}",
         STORED_GPTQ, true, false},
        {PACKED WEIGHTS("\"num_bits\":4,\"type\":\"int\",\"strategy\":\"group\",\"group_size\":128") "}", STORED_PACKED,
         false, false},
        {PACKED WEIGHTS(
             "\"num_bits\":4,\"type\":\"int\",\"strategy\":\"group\",\"group_size\":128,\"symmetric\":false") "}",
         STORED_PACKED, true, false},
        {INT8 WEIGHTS("\"num_bits\":8,\"type\":\"int\",\"strategy\":\"channel\",\"symmetric\":true") "}", STORED_INT8,
         false, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *text = mem_format("%s%s}", LLAMA, cases[i].text);
        const struct model_config c = read_both(text, NULL);
        ck_assert_int_eq(c.stored, cases[i].stored);
        ck_assert_int_eq(c.has_zeros, cases[i].has_zeros);
        ck_assert_int_eq(c.zero_added, cases[i].zero_added);
        ck_assert_int_eq(c.some_zeros, c.stored == STORED_PACKED && !c.has_zeros);
        free(text);
    }
}
END_TEST

START_TEST(fp8_is_recognised_in_three_formats)
{
    const char *const texts[] = {
        COMPRESSED "\"ignore\":[\"lm_head\"],\"kv_cache_scheme\":null," WEIGHTS(CHANNEL) "}",
        COMPRESSED WEIGHTS("\"num_bits\":8,\"type\":\"float\",\"strategy\":\"tensor\",\"symmetric\":true") "}",
        ",\"compression_config\":{\"format\":\"naive-quantized\"," WEIGHTS(CHANNEL) "}",
        ",\"quantization_config\":{\"quant_method\":\"fp8\",\"activation_scheme\":\"static\"}",
        ",\"quantization_config\":{\"quant_method\":\"fp8\",\"activation_scheme\":\"dynamic\",\"ignored_layers\":[]}",
        ",\"quantization_config\":{\"quant_method\":\"fbgemm_fp8\",\"activation_scale_ub\":1200.0,"
        "\"modules_to_not_convert\":[\"lm_head\"]}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        char *text = mem_format("%s%s}", LLAMA, texts[i]);
        ck_assert_int_eq(read_both(text, NULL).stored, STORED_FP8);
        free(text);
    }
    struct model_config kept =
        read_both(LLAMA COMPRESSED
                  "\"ignore\":[\"lm_head\",\"re:.*self_attn.*\",\"model.layers.3.mlp.up_proj\"]," WEIGHTS(CHANNEL) "}}",
                  NULL);
    ck_assert_int_eq(kept.excluded_attention, 4 * 32);
    ck_assert_int_eq(kept.excluded_mlp, 1);
    ck_assert_int_eq(read_both(LLAMA "}", NULL).stored, STORED_PLAIN);
    ck_assert_int_eq(read_both(LLAMA ",\"quantization_config\":null}", NULL).stored, STORED_PLAIN);
}
END_TEST

START_TEST(other_quantisations_are_refused_with_the_supported_ones)
{
#define REFUSE(text, sentence) refuse(LLAMA text "}", STATUS_UNSUPPORTED, sentence)
    static const char what[] = "this program reads FP8 weights (e4m3 with one scale for a matrix, for each output or "
                               "for each block of 128 x 128)";
    REFUSE(",\"quantization_config\":{\"bits\":4}", "quantization_config.quant_method is missing");
    REFUSE(",\"quantization_config\":{\"bits\":4}", what);
    REFUSE(QUANTISED("hqq") "}", "quant_method is hqq: this program reads");
    REFUSE(QUANTISED("gptq") ",\"bits\":3,\"group_size\":128}", "quantization_config.bits is 3: this program reads");
    REFUSE(QUANTISED("gptq") ",\"bits\":4,\"group_size\":-1}", "group_size is -1: this program reads");
    REFUSE(QUANTISED("gptq") ",\"bits\":4,\"group_size\":128,\"checkpoint_format\":\"marlin\"}",
           "checkpoint_format is marlin: this program reads gptq and gptq_v2");
    REFUSE(QUANTISED("gptq") ",\"bits\":4,\"group_size\":128,\"dynamic\":{\"+:.*down.*\":{\"bits\":8}}}",
           "dynamic has settings for +:.*down.*");
    REFUSE(QUANTISED("awq") ",\"bits\":4}", "group_size is 0: this program reads");
    REFUSE(QUANTISED("awq") ",\"w_bit\":8,\"q_group_size\":128}", "w_bit is 8: this program reads");
    REFUSE(QUANTISED("awq") ",\"bits\":4,\"group_size\":128,\"version\":\"gemv\"}",
           "version is gemv: this program reads awq of version gemm");
    REFUSE(QUANTISED("awq") ",\"bits\":4,\"group_size\":128,\"zero_point\":false}", "zero_point is false");
    REFUSE(",\"quantization_config\":{\"quant_method\":\"fp8\",\"activation_scheme\":\"dynamic\","
           "\"weight_block_size\":[64,128]}",
           "weight_block_size is not [128, 128]: this program reads");
    REFUSE(",\"quantization_config\":{\"quant_method\":\"fp8\"}", "activation_scheme is missing: this program reads");
    REFUSE(",\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":\"marlin-24\"," WEIGHTS(
               "\"num_bits\":4,\"type\":\"int\",\"strategy\":\"group\"") "}",
           "quantization_config.format is marlin-24: this program reads");
    REFUSE(PACKED WEIGHTS("\"num_bits\":4,\"type\":\"int\",\"strategy\":\"group\",\"group_size\":32") "}",
           "config_groups.group_0.group_size is 32: this program reads");
    REFUSE(PACKED WEIGHTS("\"num_bits\":4,\"type\":\"int\",\"strategy\":\"channel\"") "}",
           "weights.strategy is channel: this program reads");
    REFUSE(INT8 WEIGHTS("\"num_bits\":8,\"type\":\"int\",\"strategy\":\"channel\",\"symmetric\":false") "}",
           "weights are not symmetric: this program reads");
    REFUSE(INT8 WEIGHTS("\"num_bits\":4,\"type\":\"int\",\"strategy\":\"channel\"") "}", "num_bits is 4: this");
    REFUSE(COMPRESSED WEIGHTS("\"num_bits\":8,\"type\":\"int\",\"strategy\":\"channel\"") "}",
           "config_groups.group_0.weights.type is int: this program reads");
    REFUSE(COMPRESSED WEIGHTS("\"num_bits\":8,\"type\":\"float\",\"strategy\":\"block\"") "}",
           "config_groups.group_0.block_structure is not [128, 128]: this program reads");
    REFUSE(COMPRESSED WEIGHTS("\"num_bits\":8,\"type\":\"float\",\"strategy\":\"group\"") "}",
           "config_groups.group_0.weights.strategy is group: this program reads");
    REFUSE(COMPRESSED WEIGHTS("\"num_bits\":4,\"type\":\"float\",\"strategy\":\"tensor\"") "}", "are of 4 bits");
    REFUSE(COMPRESSED WEIGHTS(CHANNEL ",\"symmetric\":false") "}", "not symmetric");
    REFUSE(COMPRESSED "\"config_groups\":{\"group_0\":{\"weights\":null}}}", "config_groups.group_0.weights is null");
    REFUSE(COMPRESSED "\"transform_config\":{\"config_groups\":{}}," WEIGHTS(CHANNEL) "}", "transform_config is set");
    refuse(LLAMA COMPRESSED "\"config_groups\":{}}}", STATUS_DATA, "config_groups must be an object of one group");
    refuse(LLAMA COMPRESSED "\"config_groups\":{\"a\":3}}}", STATUS_UNSUPPORTED, "config_groups.a.weights is missing");
    refuse(LLAMA ",\"quantization_config\":7}", STATUS_DATA, "quantization_config is an integer: must be an object");
    refuse(LLAMA ",\"quantization_config\":{\"quant_method\":3}}", STATUS_DATA,
           "quant_method is an integer: must be a");
#undef REFUSE
}
END_TEST

#define DEEPEST                                                                                                        \
    "{\"model_type\":\"llama\",\"hidden_size\":8,\"intermediate_size\":8,\"num_hidden_layers\":1024,"                  \
    "\"num_attention_heads\":1,\"vocab_size\":10"

// Returns a config with the most layers and `n` entries in quantization_config.ignore. The caller frees it.
static char *config_with_excluded(const char *entry, size_t n)
{
    size_t length = strlen(entry), used;
    char *text = mem_alloc(n * (length + 3) + 1024);
    used = (size_t)sprintf(text, "%s", DEEPEST COMPRESSED WEIGHTS(CHANNEL) ",\"ignore\":[");
    for (size_t i = 0; i < n; i++)
        used += (size_t)sprintf(text + used, "%s\"%s\"", i ? "," : "", entry);
    strcpy(text + used, "]}}");
    return text;
}

START_TEST(counts_of_excluded_matrices_do_not_overflow)
{
    char *text = config_with_excluded("re:self_attn.mlp", 1 << 16);
    struct model_config c = read_both(text, NULL);
    ck_assert_int_eq(c.excluded_attention, (1 << 16) * 4 * 1024);
    ck_assert_int_eq(c.excluded_mlp, (1 << 16) * 3 * 1024);
    free(text);
    text = config_with_excluded("re:self_attn.mlp", 525000);
    config_file_write("config.json", text);
    enum status status = model_config_read(dir, &c);
    ck_assert_msg(status == STATUS_DATA, "%d excluded", c.excluded_attention);
    ck_assert_ptr_nonnull(strstr(status_message(), "quantization_config.ignore has 525000 entries: at most 65536"));
    free(text);
}
END_TEST

START_TEST(wrong_files_are_refused_with_the_key_and_what_is_allowed)
{
    refuse(NULL, STATUS_NOT_FOUND, "No such file");
    refuse("", STATUS_DATA, "not valid JSON");
    refuse("[1]", STATUS_DATA, "must be an object");
    refuse("{\"model_type\":\"llama\",\"model_type\":\"llama\"}", STATUS_DATA, "duplicate");
    refuse("{}", STATUS_DATA, "architectures is missing: must be one of LlamaForCausalLM");
    refuse("{\"architectures\":\"LlamaForCausalLM\"}", STATUS_DATA, "must be an array of one string");
    refuse("{\"architectures\":[]}", STATUS_DATA, "must be an array of one string");
    refuse("{\"architectures\":[7]}", STATUS_DATA, "must be an array of one string");
    refuse("{\"architectures\":[\"GPT2LMHeadModel\"]}", STATUS_UNSUPPORTED, "architectures is GPT2LMHeadModel");
    refuse("{\"model_type\":\"gpt2\"}", STATUS_UNSUPPORTED, "model_type is gpt2");
    refuse("{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"mistral\"}", STATUS_DATA,
           "whose model_type is llama");
    refuse("{\"model_type\":\"llama\"}", STATUS_DATA, "num_hidden_layers is missing: must be in 1..1024");
    refuse("{\"model_type\":\"llama\",\"num_hidden_layers\":0}", STATUS_DATA,
           "num_hidden_layers is 0: must be in 1..1024");
    refuse("{\"model_type\":\"llama\",\"num_hidden_layers\":-3}", STATUS_DATA, "is -3");
    refuse("{\"model_type\":\"llama\",\"num_hidden_layers\":\"2\"}", STATUS_DATA, "is a string: must be an integer");
    refuse("{\"model_type\":\"llama\",\"num_hidden_layers\":2.5}", STATUS_DATA, "is a number: must be an integer");
    refuse("{\"model_type\":\"llama\",\"num_hidden_layers\":4294967297}", STATUS_DATA, "is 4294967297");
    refuse("{\"model_type\":\"llama\",\"num_hidden_layers\":99999999999999999999999}", STATUS_DATA, "not valid JSON");
    refuse(LLAMA ",\"num_key_value_heads\":5}", STATUS_DATA,
           "num_key_value_heads is 5: must divide num_attention_heads");
    refuse(LLAMA ",\"head_dim\":127}", STATUS_DATA, "head_dim is 127: must be even");
    refuse(LLAMA ",\"head_dim\":65536}", STATUS_DATA, "head_dim is 65536");
    refuse("{\"model_type\":\"llama\",\"num_hidden_layers\":1,\"hidden_size\":100,\"intermediate_size\":8,"
           "\"num_attention_heads\":3,\"vocab_size\":10}",
           STATUS_DATA, "hidden_size is 100: must be a multiple");
    refuse("{\"model_type\":\"llama\",\"num_hidden_layers\":1,\"hidden_size\":100000,\"intermediate_size\":8,"
           "\"num_attention_heads\":1,\"vocab_size\":10}",
           STATUS_DATA, "head_dim is 100000");
    refuse(LLAMA ",\"rms_norm_eps\":0}", STATUS_DATA, "rms_norm_eps is 0: must be over 0, at most 0.1");
    refuse(LLAMA ",\"rms_norm_eps\":\"x\"}", STATUS_DATA, "is a string: must be a number");
    refuse(LLAMA ",\"rope_theta\":-1}", STATUS_DATA, "rope_theta is -1");
    refuse(LLAMA ",\"tie_word_embeddings\":1}", STATUS_DATA, "must be true or false");
    refuse(LLAMA ",\"hidden_act\":\"gelu\"}", STATUS_UNSUPPORTED, "hidden_act is gelu: only silu");
    refuse(LLAMA ",\"embedding_multiplier\":12}", STATUS_UNSUPPORTED,
           "embedding_multiplier is set: LlamaForCausalLM has no such setting, so it must be 1 or absent");
    refuse(LLAMA ",\"final_logit_softcapping\":30}", STATUS_UNSUPPORTED, "final_logit_softcapping is set");
    refuse(LLAMA ",\"rope_scaling\":{\"rope_type\":\"ntk\",\"factor\":2}}", STATUS_UNSUPPORTED,
           "rope_scaling.rope_type is ntk: only default, linear, dynamic, llama3, yarn and longrope");
    refuse(LLAMA ",\"rope_scaling\":{\"factor\":2}}", STATUS_DATA, "rope_scaling.factor is given without rope_type");
    refuse(LLAMA ",\"rope_scaling\":7}", STATUS_DATA, "rope_scaling is an integer: must be an object");
    refuse(LLAMA ",\"rope_parameters\":{\"full_attention\":{}}}", STATUS_UNSUPPORTED,
           "rope_parameters.full_attention is an object");
    refuse(LLAMA ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8}}", STATUS_DATA,
           "rope_scaling.low_freq_factor is missing");
    refuse(LLAMA ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
                 "\"high_freq_factor\":4,\"original_max_position_embeddings\":8192}}",
           STATUS_DATA, "must be over low_freq_factor, which is 4");
    refuse(LLAMA ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":0.5,\"low_freq_factor\":1,"
                 "\"high_freq_factor\":4,\"original_max_position_embeddings\":8192}}",
           STATUS_DATA, "factor is 0.5: must be 1 or more");
    refuse(LLAMA ",\"eos_token_id\":32000}", STATUS_DATA, "eos_token_id must be a token id");
    refuse(LLAMA ",\"eos_token_id\":[1,\"x\"]}", STATUS_DATA, "eos_token_id must be a token id");
    refuse(LLAMA ",\"eos_token_id\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}", STATUS_UNSUPPORTED, "more than 16");
    refuse(LLAMA ",\"bos_token_id\":-1}", STATUS_DATA, "bos_token_id is -1");
    refuse(MISTRAL ",\"sliding_window\":0}", STATUS_DATA, "sliding_window is 0");

    struct model_config c;
    config_file_write("config.json", LLAMA "}");
    config_file_write("generation_config.json", "{\"eos_token_id\":");
    ck_assert_int_eq(model_config_read(dir, &c), STATUS_DATA);
    ck_assert_ptr_nonnull(strstr(status_message(), "generation_config.json: not valid JSON"));
}
END_TEST

START_TEST(the_eos_token_of_the_tokenizer_ends_answers_too)
{
    static const struct {
        const char *config, *tokenizer;
        int id; // -1: none is added
    } cases[] = {
        {"{\"eos_token\":\"<end>\",\"added_tokens_decoder\":{\"9\":{\"content\":\"<end>\"}}}", NULL, 9},
        {"{\"eos_token\":{\"content\":\"<end>\"}}", "{\"added_tokens\":[{\"id\":7,\"content\":\"<end>\"}]}", 7},
        {"{\"eos_token\":\"<end>\"}", "{\"model\":{\"vocab\":{\"<end>\":5}}}", 5},
        {"{\"eos_token\":\"<end>\"}", "{\"model\":{\"vocab\":{\"<end>\":500000000}}}", -1},
        {"{\"eos_token\":\"<end>\"}", NULL, -1},
        {"{\"eos_token\":\"<end>\",\"added_tokens_decoder\":{\"\":{\"content\":\"<end>\"}}}", NULL, -1},
        {"{\"eos_token\":null}", NULL, -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        config_file_write("tokenizer_config.json", cases[i].config);
        config_file_write("tokenizer.json", cases[i].tokenizer);
        struct model_config c = read_both(LLAMA ",\"eos_token_id\":2}", "{\"eos_token_id\":[2,3]}");
        ck_assert_int_eq(c.n_file_eos, 2);
        ck_assert_int_eq(c.n_eos, cases[i].id < 0 ? 2 : 3);
        if (cases[i].id >= 0) ck_assert_int_eq(c.eos_id[2], cases[i].id);
    }
}
END_TEST

START_TEST(families_that_are_refused_say_what_is_missing)
{
    static const struct {
        const char *architecture, *missing;
    } cases[] = {
        {"MixtralForCausalLM", "which needs mixtures of experts"},
        {"Gemma3ForCausalLM", "which needs norms with the gain 1 + w"},
        {"Olmo3ForCausalLM", "which needs windows and RoPE settings that differ between layers"},
        {"FamilyForCausalLM", "is FamilyForCausalLM: this program runs LlamaForCausalLM"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *text = mem_format("{\"architectures\":[\"%s\"]}", cases[i].architecture);
        refuse(text, STATUS_UNSUPPORTED, cases[i].missing);
        free(text);
    }
}
END_TEST

SUITE("config")
{
    FIXTURE(setup, teardown);
    TEST(the_eos_token_of_the_tokenizer_ends_answers_too);
    TEST(families_that_are_refused_say_what_is_missing);
    TEST(llama2_with_absent_keys_means_what_hugging_face_means);
    TEST(llama3_rope_is_read_from_old_and_new_files);
    TEST(mistral_window_bounds_the_context);
    TEST(qwen2_has_qkv_bias_and_a_window_only_on_request);
    TEST(qwen3_has_qk_norm_and_heads_wider_than_its_hidden_size);
    TEST(end_tokens_are_the_union_of_both_files);
    TEST(architecture_may_be_named_by_model_type_alone);
    TEST(fp8_is_recognised_in_three_formats);
    TEST(integers_are_recognised_in_four_formats);
    TEST(other_quantisations_are_refused_with_the_supported_ones);
    TEST(counts_of_excluded_matrices_do_not_overflow);
    TEST(wrong_files_are_refused_with_the_key_and_what_is_allowed);
}
