// SPDX-License-Identifier: Apache-2.0
// Reads config.json and generation_config.json. Every number has a bound far above any known model and far below
// overflow in later code: the product of two numbers fits 63 bits, and heads * head size fits an int.
#include "lib/text/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/base/mem.h"
#include "lib/text/config_reader.h"
#include "lib/text/json_file.h"
#include "lib/text/quantisation_config.h"

enum {
    MAX_LAYERS = MODEL_MAX_LAYERS,
    MAX_HIDDEN = 1 << 17,
    MAX_INTERMEDIATE = 1 << 20,
    MAX_HEADS = 4096,
    MAX_HEAD_SIZE = 2 * ROPE_MAX_PAIRS,
    MAX_VOCAB = 1 << 22,
    MAX_CONTEXT = 1 << 24,
    MAX_FILE_BYTES = 16 << 20
};

// Differences between the configuration classes of Hugging Face.
struct family {
    const char *architecture, *model_type;
    int default_context;
    int default_head_size; // 0: hidden / heads
    int default_bos, default_eos;
    bool qkv_bias;       // always has a bias
    bool attention_bias; // reads the key attention_bias
    bool default_attention_bias;
    bool attention_out_bias; // the key attention_out_bias, not attention_bias, tells if the output has a bias
    bool default_tied;
    bool no_rope_layers; // reads no_rope_layers and no_rope_layer_interval
    bool qk_norm;
    int default_kv_heads;  // 0: as many as heads
    int default_window;    // 0: no window
    bool window_optional;  // sliding_window applies if use_sliding_window is true, to layers from max_window_layers on
    bool window_unlayered; // layer_types does not decide which layers have the window
    bool fused_projections;
    struct rope_family rope;
};

enum { DEFAULT_WINDOW = 4096, DEFAULT_WINDOW_LAYERS = 28 };

static const struct family families[] = {
    {.architecture = "LlamaForCausalLM",
     .model_type = "llama",
     .rope = {.default_theta = 10000},
     .default_context = 2048,
     .default_bos = 1,
     .default_eos = 2,
     .attention_bias = true},
    {.architecture = "MistralForCausalLM",
     .model_type = "mistral",
     .rope = {.default_theta = 10000},
     .default_context = 131072,
     .default_bos = 1,
     .default_eos = 2,
     .default_kv_heads = 8,
     .default_window = DEFAULT_WINDOW,
     .window_unlayered = true},
    {.architecture = "Qwen2ForCausalLM",
     .model_type = "qwen2",
     .rope = {.default_theta = 10000},
     .default_context = 32768,
     .default_bos = -1,
     .default_eos = -1,
     .default_kv_heads = 32,
     .default_window = DEFAULT_WINDOW,
     .qkv_bias = true,
     .window_optional = true},
    {.architecture = "Qwen3ForCausalLM",
     .model_type = "qwen3",
     .rope = {.default_theta = 10000},
     .default_context = 32768,
     .default_head_size = 128,
     .default_bos = -1,
     .default_eos = -1,
     .default_kv_heads = 32,
     .default_window = DEFAULT_WINDOW,
     .attention_bias = true,
     .qk_norm = true,
     .window_optional = true},
    {.architecture = "Phi3ForCausalLM",
     .model_type = "phi3",
     .default_context = 4096,
     .default_bos = 1,
     .default_eos = 32000,
     .window_unlayered = true,
     .fused_projections = true,
     .rope = {.default_theta = 10000, .default_original = 4096, .partial = true, .longrope_only = true}},
    {.architecture = "SeedOssForCausalLM",
     .model_type = "seed_oss",
     .default_context = 524288,
     .default_head_size = 128,
     .default_bos = 0,
     .default_eos = 2,
     .default_kv_heads = 8,
     .attention_bias = true,
     .default_attention_bias = true,
     .attention_out_bias = true,
     .rope = {.default_theta = 10000}},
    {.architecture = "SmolLM3ForCausalLM",
     .model_type = "smollm3",
     .default_context = 32768,
     .default_bos = 128000,
     .default_eos = 128001,
     .default_kv_heads = 4,
     .attention_bias = true,
     .default_tied = true,
     .no_rope_layers = true,
     .window_optional = true,
     .rope = {.default_theta = 2000000}},
};
static const int n_families = sizeof families / sizeof families[0];
static const char known[] =
    "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, Phi3ForCausalLM, "
    "SeedOssForCausalLM, SmolLM3ForCausalLM";

// ---- parts of the file ----

static const struct family *read_family(struct config_reader *r)
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
        config_reader_fail(r, STATUS_UNSUPPORTED, name ? "architectures" : "model_type",
                           "is %.60s: this program runs %s", name ? name : type, known);
        return &families[0];
    }
    if (type && strcmp(type, family->model_type) != 0)
        config_reader_fail(r, STATUS_DATA, "model_type", "is %.60s, but architectures is %s, whose model_type is %s",
                           type, family->architecture, family->model_type);
    return family;
}

static void check_unsupported_keys(struct config_reader *r)
{
    static const char *const absent[] = {"per_layer_config", "attention_chunk_size", "kv_sharing_modes"};
    for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++)
        if (config_reader_get(r, absent[i]))
            config_reader_fail(r, STATUS_UNSUPPORTED, absent[i],
                               "is set: layers of different shape or attention are not "
                               "supported");
    if (!config_read_bool(r, "is_causal", true))
        config_reader_fail(r, STATUS_UNSUPPORTED, "is_causal", "is false: only causal attention is supported");
    const char *activation = config_read_string(r, "hidden_act");
    if (activation && strcmp(activation, "silu") != 0 && strcmp(activation, "swish") != 0)
        config_reader_fail(r, STATUS_UNSUPPORTED, "hidden_act", "is %.60s: only silu is supported", activation);
    if (config_read_bool(r, "mlp_bias", false))
        config_reader_fail(r, STATUS_UNSUPPORTED, "mlp_bias", "is true: only models without MLP biases are supported");
}

// Reads which layers rotate: no_rope_layers has a 1 for each layer that does. Without it, every
// no_rope_layer_interval-th layer does not.
static void read_still_layers(struct config_reader *r, struct model_config *c)
{
    const json_t *list = config_reader_get(r, "no_rope_layers");
    const int interval = config_read_int(r, "no_rope_layer_interval", 1, INT32_MAX, 4);
    if (list && json_array_size(list) != (size_t)c->n_layers)
        config_reader_fail(r, STATUS_DATA, "no_rope_layers", "must be an array of %d numbers, one for each layer",
                           c->n_layers);
    for (int i = 0; i < c->n_layers && r->status == STATUS_OK; i++) {
        const json_t *value = json_array_get(list, (size_t)i);
        if (list && !json_is_integer(value))
            config_reader_fail(r, STATUS_DATA, "no_rope_layers", "must have a 0 or 1 for each layer");
        c->still_layers[i] = list ? json_integer_value(value) == 0 : (i + 1) % interval == 0;
        c->has_still_layers = c->has_still_layers || c->still_layers[i];
    }
}

// ---- windows ----

// Reads layer_types. Sets *windowed_p to true if a layer attends to a window. Leaves it unchanged if the key is absent.
static void read_layer_types(struct config_reader *r, const struct model_config *c, bool *windowed_p)
{
    const json_t *types = config_reader_get(r, "layer_types");
    if (!types) return;
    *windowed_p = false;
    if (json_array_size(types) != (size_t)c->n_layers)
        config_reader_fail(r, STATUS_DATA, "layer_types", "must be an array of %d strings, one for each layer",
                           c->n_layers);
    for (int i = 0; i < c->n_layers && r->status == STATUS_OK; i++) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        bool sliding = type && strcmp(type, "sliding_attention") == 0;
        if (!sliding && (!type || strcmp(type, "full_attention") != 0))
            config_reader_fail(r, STATUS_UNSUPPORTED, "layer_types",
                               "has %.60s: only full_attention and sliding_attention are supported",
                               type ? type : "an entry that is not a string");
        *windowed_p = *windowed_p || sliding;
    }
}

// Reads the window. Windowed attention is not implemented, so the window limits the context. Llama's layers attend to
// all tokens, but the cache of transformers drops entries outside of a sliding_window.
static void read_window(struct config_reader *r, const struct family *family, struct model_config *c)
{
    bool on = !family->window_optional || config_read_bool(r, "use_sliding_window", false), windowed = true;
    if (family->window_optional)
        windowed = config_read_int(r, "max_window_layers", 0, INT32_MAX, DEFAULT_WINDOW_LAYERS) < c->n_layers;
    read_layer_types(r, c, &windowed);
    bool absent = !json_object_get(r->object, "sliding_window"); // null means no window
    int window = on ? config_read_int(r, "sliding_window", 1, INT32_MAX, absent ? family->default_window : 0) : 0;
    if (config_reader_get(r, "layer_types") && windowed && !window)
        config_reader_fail(r, STATUS_DATA, "layer_types", "has sliding_attention, but %s",
                           on ? "there is no sliding_window" : "use_sliding_window is not true");
    c->sliding_window = windowed || family->window_unlayered ? window : 0;
    if (c->sliding_window && c->sliding_window < c->max_context) c->max_context = c->sliding_window;
}

// ---- the rest ----

static void add_eos(struct config_reader *r, const json_t *value, struct model_config *c)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) >= c->vocab_size) {
        config_reader_fail(r, STATUS_DATA, "eos_token_id", "must be a token id, or a list of them, in 0..%d",
                           c->vocab_size - 1);
        return;
    }
    int id = (int)json_integer_value(value);
    if (model_config_is_eos(c, id)) return;
    if (c->n_eos == MODEL_MAX_EOS)
        config_reader_fail(r, STATUS_UNSUPPORTED, "eos_token_id", "has more than %d different ids", MODEL_MAX_EOS);
    else
        c->eos_id[c->n_eos++] = id;
}

static void read_special_ids(struct config_reader *r, int default_bos, int default_eos, struct model_config *c)
{
    bool no_bos = json_is_null(json_object_get(r->object, "bos_token_id"));
    bool no_eos = json_is_null(json_object_get(r->object, "eos_token_id"));
    c->bos_id = config_read_int(r, "bos_token_id", 0, c->vocab_size - 1, no_bos ? -1 : default_bos);
    const json_t *eos = config_reader_get(r, "eos_token_id");
    if (json_is_array(eos)) {
        for (size_t i = 0; i < json_array_size(eos) && r->status == STATUS_OK; i++)
            add_eos(r, json_array_get(eos, i), c);
    } else if (eos) {
        add_eos(r, eos, c);
    } else if (!no_eos && default_eos >= 0 && default_eos < c->vocab_size && r->status == STATUS_OK) {
        c->eos_id[c->n_eos++] = default_eos;
    }
}

static void read_head_size(struct config_reader *r, const struct family *family, struct model_config *c)
{
    if (!config_reader_get(r, "head_dim") && !family->default_head_size && c->hidden % c->n_heads != 0)
        config_reader_fail(r, STATUS_DATA, "hidden_size",
                           "is %d: must be a multiple of num_attention_heads, which is %d, "
                           "where there is no head_dim",
                           c->hidden, c->n_heads);
    int head_size = family->default_head_size ? family->default_head_size : c->hidden / c->n_heads;
    c->head_size = config_read_int(r, "head_dim", 1, MAX_HEAD_SIZE, head_size);
    if (c->head_size % 2 != 0 || c->head_size > MAX_HEAD_SIZE)
        config_reader_fail(r, STATUS_DATA, "head_dim",
                           "is %d: must be even (its halves rotate together) and at most %d", c->head_size,
                           MAX_HEAD_SIZE);
}

static enum status read_config(const char *path, struct model_config *c)
{
    json_t *root;
    TRY(json_file_read(path, MAX_FILE_BYTES, &root));
    struct config_reader r = {.path = path, .prefix = "", .object = root};

    const struct family *family = read_family(&r);
    strcpy(c->architecture, family->architecture);
    check_unsupported_keys(&r);

    c->n_layers = config_read_size(&r, "num_hidden_layers", MAX_LAYERS);
    c->hidden = config_read_size(&r, "hidden_size", MAX_HIDDEN);
    c->intermediate = config_read_size(&r, "intermediate_size", MAX_INTERMEDIATE);
    c->n_heads = config_read_size(&r, "num_attention_heads", MAX_HEADS);
    bool no_kv_heads = !json_object_get(root, "num_key_value_heads"); // null: as many as heads
    c->n_kv_heads = config_read_int(&r, "num_key_value_heads", 1, MAX_HEADS,
                                    no_kv_heads && family->default_kv_heads ? family->default_kv_heads : c->n_heads);
    c->vocab_size = config_read_size(&r, "vocab_size", MAX_VOCAB);
    c->max_context = config_read_int(&r, "max_position_embeddings", 1, MAX_CONTEXT, family->default_context);
    c->norm_epsilon = (float)config_read_real(&r, "rms_norm_eps", 0, 0.1, 1e-6);
    c->tied_embeddings = config_read_bool(&r, "tie_word_embeddings", family->default_tied);
    c->o_bias = family->attention_bias && config_read_bool(&r, "attention_bias", family->default_attention_bias);
    c->qkv_bias = family->qkv_bias || c->o_bias;
    if (family->attention_out_bias) c->o_bias = config_read_bool(&r, "attention_out_bias", false);
    c->qk_norm = family->qk_norm;
    c->fused_projections = family->fused_projections;

    if (c->n_heads % c->n_kv_heads != 0)
        config_reader_fail(&r, STATUS_DATA, "num_key_value_heads",
                           "is %d: must divide num_attention_heads, which is %d", c->n_kv_heads, c->n_heads);
    read_head_size(&r, family, c);
    quantisation_config_read(&r, c);
    rope_config_read(&r, &family->rope, c->head_size, &c->max_context, &c->rope);
    if (family->no_rope_layers) read_still_layers(&r, c);
    read_window(&r, family, c);
    read_special_ids(&r, family->default_bos < c->vocab_size ? family->default_bos : -1, family->default_eos, c);
    json_decref(root);
    return r.status;
}

static enum status read_generation_config(const char *path, struct model_config *c)
{
    json_t *root;
    enum status status = json_file_read(path, MAX_FILE_BYTES, &root);
    if (status != STATUS_OK) return status == STATUS_NOT_FOUND ? STATUS_OK : status;
    struct config_reader r = {.path = path, .prefix = "", .object = root};
    int bos = c->bos_id;
    read_special_ids(&r, bos, -1, c);
    if (!config_reader_get(&r, "bos_token_id")) c->bos_id = bos;
    json_decref(root);
    return r.status;
}

// ---- public ----

enum status model_config_read(const char *dir, struct model_config *config)
{
    struct model_config c;
    memset(&c, 0, sizeof c);
    struct stat info;
    bool is_file = stat(dir, &info) == 0 && S_ISREG(info.st_mode);
    char *path = is_file ? mem_string(dir) : mem_format("%s/config.json", dir);
    char *generation_path = mem_format("%s/generation_config.json", dir);
    enum status status = read_config(path, &c);
    if (status == STATUS_OK && !is_file) status = read_generation_config(generation_path, &c);
    if (status == STATUS_OK) *config = c;
    free(path);
    free(generation_path);
    return status;
}

const char *model_config_context_note(const struct model_config *config)
{
    return config->sliding_window == config->max_context ? " (the sliding_window of the model's config.json)" : "";
}

bool model_config_is_eos(const struct model_config *config, int32_t token)
{
    for (int i = 0; i < config->n_eos; i++)
        if (config->eos_id[i] == token) return true;
    return false;
}

// Assumes that attention runs at about half the rate of gemms.
double model_config_pair_rows(const struct model_config *c)
{
    double heads = (double)c->n_heads * c->head_size, kv_heads = (double)c->n_kv_heads * c->head_size;
    double gemms = (2 * heads + 2 * kv_heads + 3.0 * c->intermediate) * c->hidden;
    return gemms > 0 ? 2 * 2 * heads / gemms : 0;
}
