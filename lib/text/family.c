// SPDX-License-Identifier: Apache-2.0
#include "lib/text/family.h"

#include <math.h>
#include <string.h>
#include <strings.h>

#include "lib/text/json_file.h"

enum { DEFAULT_WINDOW = 4096 };

// The names of norms of Llama and of most families.
#define LLAMA_NORMS .attention_norm = "input_layernorm", .mlp_norm = "post_attention_layernorm"

static const struct family families[] = {
    {.architecture = "LlamaForCausalLM",
     .model_type = "llama",
     .activation = "silu",
     .default_context = 2048,
     .default_bos = 1,
     .default_eos = 2,
     .default_epsilon = 1e-6,
     .attention_bias = true,
     .mlp_bias = true,
     .layer = {LLAMA_NORMS},
     .rope = {.default_theta = 10000}},
    {.architecture = "MistralForCausalLM",
     .model_type = "mistral",
     .activation = "silu",
     .default_context = 131072,
     .default_bos = 1,
     .default_eos = 2,
     .default_kv_heads = 8,
     .default_window = DEFAULT_WINDOW,
     .default_epsilon = 1e-6,
     .window_unlayered = true,
     .layer = {LLAMA_NORMS},
     .rope = {.default_theta = 10000}},
    {.architecture = "Ministral3ForCausalLM",
     .model_type = "ministral3",
     .activation = "silu",
     .default_context = 262144,
     .default_head_size = 128,
     .default_bos = 1,
     .default_eos = 2,
     .default_kv_heads = 8,
     .default_epsilon = 1e-5,
     .window_unlayered = true,
     .layer = {LLAMA_NORMS},
     .rope = {.default_theta = 10000,
              .query_scale = true,
              .default_object = "{\"type\":\"yarn\",\"rope_theta\":1000000.0,\"factor\":16.0,\"beta_fast\":32.0,"
                                "\"beta_slow\":1.0,\"original_max_position_embeddings\":16384,"
                                "\"mscale_all_dim\":1.0,\"mscale\":1.0,\"llama_4_scaling_beta\":0.1}"}},
    {.architecture = "Qwen2ForCausalLM",
     .model_type = "qwen2",
     .activation = "silu",
     .default_context = 32768,
     .default_bos = -1,
     .default_eos = -1,
     .default_kv_heads = 32,
     .default_window = DEFAULT_WINDOW,
     .default_epsilon = 1e-6,
     .window_optional = true,
     .layer = {LLAMA_NORMS, .qkv_bias = true},
     .rope = {.default_theta = 10000}},
    {.architecture = "Qwen3ForCausalLM",
     .model_type = "qwen3",
     .activation = "silu",
     .default_context = 32768,
     .default_head_size = 128,
     .default_bos = -1,
     .default_eos = -1,
     .default_kv_heads = 32,
     .default_window = DEFAULT_WINDOW,
     .default_epsilon = 1e-6,
     .attention_bias = true,
     .window_optional = true,
     .layer = {LLAMA_NORMS, .head_norm = HEAD_NORM_EACH},
     .rope = {.default_theta = 10000}},
    {.architecture = "Phi3ForCausalLM",
     .model_type = "phi3",
     .activation = "silu",
     .default_context = 4096,
     .default_bos = 1,
     .default_eos = 32000,
     .default_epsilon = 1e-5,
     .window_unlayered = true,
     .layer = {LLAMA_NORMS, .fused_projections = true},
     .rope = {.default_theta = 10000, .default_original = 4096, .partial = true, .longrope_only = true}},
    {.architecture = "SeedOssForCausalLM",
     .model_type = "seed_oss",
     .activation = "silu",
     .default_context = 524288,
     .default_head_size = 128,
     .default_bos = 0,
     .default_eos = 2,
     .default_kv_heads = 8,
     .default_epsilon = 1e-6,
     .attention_bias = true,
     .default_attention_bias = true,
     .attention_out_bias = true,
     .mlp_bias = true,
     .layer = {LLAMA_NORMS},
     .rope = {.default_theta = 10000}},
    {.architecture = "SmolLM3ForCausalLM",
     .model_type = "smollm3",
     .activation = "silu",
     .default_context = 32768,
     .default_bos = 128000,
     .default_eos = 128001,
     .default_kv_heads = 4,
     .default_epsilon = 1e-6,
     .attention_bias = true,
     .mlp_bias = true,
     .default_tied = true,
     .no_rope_layers = true,
     .window_optional = true,
     .layer = {LLAMA_NORMS},
     .rope = {.default_theta = 2000000}},
    {.architecture = "GraniteForCausalLM",
     .model_type = "granite",
     .activation = "silu",
     .default_context = 2048,
     .default_bos = 1,
     .default_eos = 2,
     .default_epsilon = 1e-6,
     .attention_bias = true,
     .mlp_bias = true,
     .multipliers = true,
     .layer = {LLAMA_NORMS},
     .rope = {.default_theta = 10000}},
    {.architecture = "Olmo2ForCausalLM",
     .model_type = "olmo2",
     .activation = "silu",
     .default_context = 2048,
     .default_bos = -1,
     .default_eos = 50279,
     .default_epsilon = 1e-5,
     .attention_bias = true,
     .layer = {.attention_norm = "post_attention_layernorm",
               .mlp_norm = "post_feedforward_layernorm",
               .norms_outputs = true,
               .head_norm = HEAD_NORM_WHOLE},
     .rope = {.default_theta = 10000}},
    {.architecture = "ArceeForCausalLM",
     .model_type = "arcee",
     .activation = "relu2",
     .default_context = 4096,
     .default_bos = 128000,
     .default_eos = 128001,
     .default_epsilon = 1e-5,
     .attention_bias = true,
     .mlp_bias = true,
     .layer = {LLAMA_NORMS, .mlp = MLP_RELU2},
     .rope = {.default_theta = 10000}},
    {.architecture = "ApertusForCausalLM",
     .model_type = "apertus",
     .activation = "xielu",
     .default_context = 65536,
     .default_bos = 1,
     .default_eos = 2,
     .default_epsilon = 1e-5,
     .attention_bias = true,
     .layer = {.attention_norm = "attention_layernorm",
               .mlp_norm = "feedforward_layernorm",
               .head_norm = HEAD_NORM_EACH,
               .mlp = MLP_XIELU},
     .rope = {.default_theta = 12000000,
              .default_object = "{\"rope_type\":\"llama3\",\"rope_theta\":12000000.0,\"factor\":8.0,"
                                "\"original_max_position_embeddings\":8192,\"low_freq_factor\":1.0,"
                                "\"high_freq_factor\":4.0}"}},
};
static const int n_families = sizeof families / sizeof families[0];
static const char known[] =
    "LlamaForCausalLM, MistralForCausalLM, Mistral3ForConditionalGeneration, Ministral3ForCausalLM, Qwen2ForCausalLM, "
    "Qwen3ForCausalLM, Phi3ForCausalLM, SeedOssForCausalLM, SmolLM3ForCausalLM, GraniteForCausalLM, Olmo2ForCausalLM, "
    "ArceeForCausalLM, ApertusForCausalLM";

// ---- families that are refused ----

// Features of other families that Forepack lacks. The first entry whose word is in the architecture's name applies.
static const struct {
    const char *word, *missing;
} missing_parts[] = {
    {"moe", "mixtures of experts"},
    {"mixtral", "mixtures of experts"},
    {"gptoss", "mixtures of experts and attention sinks"},
    {"gpt_oss", "mixtures of experts and attention sinks"},
    {"dbrx", "mixtures of experts"},
    {"llama4", "mixtures of experts and chunked attention"},
    {"deepseek", "latent attention and mixtures of experts"},
    {"kimi", "latent attention and mixtures of experts"},
    {"mistral4", "latent attention and mixtures of experts"},
    {"minimax", "mixtures of experts and linear attention"},
    {"glm", "RoPE of neighbouring dims"},
    {"helium", "RoPE of neighbouring dims"},
    {"ernie", "RoPE of neighbouring dims"},
    {"mamba", "state-space layers"},
    {"bamba", "state-space layers"},
    {"jamba", "state-space layers"},
    {"falconh1", "state-space layers"},
    {"falcon_h1", "state-space layers"},
    {"hybrid", "state-space layers"},
    {"nemotronh", "state-space layers"},
    {"nemotron_h", "state-space layers"},
    {"rwkv", "recurrent layers"},
    {"recurrent", "recurrent layers"},
    {"lfm", "convolution layers"},
    {"qwen3next", "linear attention"},
    {"qwen3_next", "linear attention"},
    {"qwen3_5", "linear attention"},
    {"gemma", "norms with the gain 1 + w, GELU and soft caps of logits"},
    {"cohere", "LayerNorm, and attention and MLP in parallel"},
    {"olmo3", "windows and RoPE settings that differ between layers"},
    {"exaone4", "windows and RoPE that differ between layers"},
    {"gpt_neox", "LayerNorm, and attention and MLP in parallel"},
    {"gptneox", "LayerNorm, and attention and MLP in parallel"},
    {"gptj", "LayerNorm, and attention and MLP in parallel"},
    {"falcon", "LayerNorm, and attention and MLP in parallel"},
    {"phi", "LayerNorm, and attention and MLP in parallel"},
    {"gpt", "LayerNorm and learned positions"},
    {"opt", "LayerNorm and learned positions"},
    {"bloom", "LayerNorm and positions by ALiBi"},
    {"mpt", "LayerNorm and positions by ALiBi"},
    {"olmo", "LayerNorm without gains"},
    {"nemotron", "LayerNorm"},
    {"starcoder", "LayerNorm"},
    {"stablelm", "LayerNorm"},
    {"bert", "bidirectional attention"},
    {"t5", "encoders"},
    {"vl", "images"},
    {"vision", "images"},
    {"conditionalgeneration", "images, audio and encoders"},
};

// Returns true if `name` contains the lower-case `word`, in any case.
static bool has_word(const char *name, const char *word)
{
    const size_t n = strlen(word);
    for (; *name; name++)
        if (strncasecmp(name, word, n) == 0) return true;
    return false;
}

static void refuse_family(struct config_reader *r, const char *key, const char *name)
{
    for (size_t i = 0; i < sizeof missing_parts / sizeof missing_parts[0]; i++) {
        if (!has_word(name, missing_parts[i].word)) continue;
        config_reader_fail(r, STATUS_UNSUPPORTED, key, "is %.60s, which needs %s: this program runs %s", name,
                           missing_parts[i].missing, known);
        return;
    }
    config_reader_fail(r, STATUS_UNSUPPORTED, key, "is %.60s: this program runs %s", name, known);
}

// ---- finding ----

const struct family *family_find(struct config_reader *r)
{
    const json_t *list = config_reader_get(r, "architectures");
    const char *name = json_string_value(json_array_get(list, 0)), *type = config_read_string(r, "model_type");
    const struct family *family = NULL;
    if (r->status != STATUS_OK) return &families[0];
    if (list && (!name || json_array_size(list) != 1)) {
        config_reader_fail(r, STATUS_DATA, "architectures", "must be an array of one string, one of %s", known);
        return &families[0];
    }
    if (!name && !type) {
        config_reader_fail(r, STATUS_DATA, "architectures", "is missing: must be one of %s", known);
        return &families[0];
    }
    for (int i = 0; i < n_families && !family; i++)
        if (strcmp(name ? name : type, name ? families[i].architecture : families[i].model_type) == 0)
            family = &families[i];
    if (!family) {
        refuse_family(r, name ? "architectures" : "model_type", name ? name : type);
        return &families[0];
    }
    if (type && strcmp(type, family->model_type) != 0)
        config_reader_fail(r, STATUS_DATA, "model_type", "is %.60s, but architectures is %s, whose model_type is %s",
                           type, family->architecture, family->model_type);
    return family;
}

// ---- keys ----

// Keys that change the computation in other families, with the value at which they change nothing. NAN: no number does,
// so the key must be absent or null. Booleans count as 0 and 1.
static const struct {
    const char *key;
    double neutral;
    bool granite, bias; // read by families with multipliers; read by families with biases of the MLP
} foreign_keys[] = {
    {.key = "embedding_multiplier", .neutral = 1, .granite = true},
    {.key = "residual_multiplier", .neutral = 1, .granite = true},
    {.key = "logits_scaling", .neutral = 1, .granite = true},
    {.key = "attention_multiplier", .neutral = NAN, .granite = true},
    {.key = "mlp_bias", .neutral = 0, .bias = true},
    {.key = "logit_scale", .neutral = 1},
    {.key = "lm_head_multiplier", .neutral = 1},
    {.key = "scale_emb", .neutral = 1},
    {.key = "scale_depth", .neutral = NAN},
    {.key = "attn_logit_softcapping", .neutral = NAN},
    {.key = "final_logit_softcapping", .neutral = NAN},
    {.key = "query_pre_attn_scalar", .neutral = NAN},
    {.key = "clip_qkv", .neutral = NAN},
    {.key = "use_qk_norm", .neutral = 0},
    {.key = "use_parallel_residual", .neutral = 0},
    {.key = "alibi", .neutral = 0},
    {.key = "lm_head_bias", .neutral = 0},
    {.key = "num_experts", .neutral = 0},
    {.key = "num_local_experts", .neutral = 0},
    {.key = "n_routed_experts", .neutral = 0},
    {.key = "kv_lora_rank", .neutral = NAN},
    {.key = "attn_temperature_tuning", .neutral = 0},
};

static void check_foreign_keys(struct config_reader *r, const struct family *family)
{
    for (size_t i = 0; i < sizeof foreign_keys / sizeof foreign_keys[0]; i++) {
        const json_t *value = config_reader_get(r, foreign_keys[i].key);
        const bool read =
            (foreign_keys[i].granite && family->multipliers) || (foreign_keys[i].bias && family->mlp_bias);
        if (!value || read) continue;
        const double number = json_is_boolean(value) ? json_is_true(value) : json_number_value(value);
        if ((json_is_number(value) || json_is_boolean(value)) && number == foreign_keys[i].neutral) continue;
        if (isnan(foreign_keys[i].neutral))
            config_reader_fail(r, STATUS_UNSUPPORTED, foreign_keys[i].key, "is set: %s has no such setting",
                               family->architecture);
        else
            config_reader_fail(r, STATUS_UNSUPPORTED, foreign_keys[i].key,
                               "is set: %s has no such setting, so it must be %g or absent", family->architecture,
                               foreign_keys[i].neutral);
    }
}

static void check_activation(struct config_reader *r, const struct family *family)
{
    const char *name = config_read_string(r, "hidden_act");
    if (!name || strcmp(name, family->activation) == 0) return;
    if (strcmp(name, "swish") == 0 && strcmp(family->activation, "silu") == 0) return;
    config_reader_fail(r, STATUS_UNSUPPORTED, "hidden_act", "is %.60s: only %s is supported in a %s", name,
                       family->activation, family->architecture);
}

void family_check_keys(struct config_reader *r, const struct family *family)
{
    static const char *const absent[] = {"per_layer_config", "attention_chunk_size", "kv_sharing_modes"};
    for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++)
        if (config_reader_get(r, absent[i]))
            config_reader_fail(r, STATUS_UNSUPPORTED, absent[i],
                               "is set: layers of different shape or attention are not supported");
    if (!config_read_bool(r, "is_causal", true))
        config_reader_fail(r, STATUS_UNSUPPORTED, "is_causal", "is false: only causal attention is supported");
    check_activation(r, family);
    check_foreign_keys(r, family);
}
