// SPDX-License-Identifier: Apache-2.0
// Reads config.json and generation_config.json. Every number has a bound far above any known model and far below
// overflow in later code: the product of two numbers fits 63 bits, and heads * head size fits an int.
#include "lib/text/config.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/base/mem.h"
#include "lib/text/json_file.h"

enum {
    MAX_LAYERS = 1024,
    MAX_HIDDEN = 1 << 17,
    MAX_INTERMEDIATE = 1 << 20,
    MAX_HEADS = 4096,
    MAX_HEAD_SIZE = 1024,
    MAX_VOCAB = 1 << 22,
    MAX_CONTEXT = 1 << 24,
    MAX_FILE_BYTES = 16 << 20,
    MAX_EXCLUDED = 1 << 16 // names in one list. With MAX_LAYERS, the counts of three lists fit an int
};

// Differences between the configuration classes of Hugging Face.
struct family {
    const char *architecture, *model_type;
    int default_context;
    int default_head_size; // 0: hidden / heads
    int default_bos, default_eos;
    bool qkv_bias;       // always has a bias
    bool attention_bias; // reads the key attention_bias
    bool qk_norm;
    int default_kv_heads;  // 0: as many as heads
    int default_window;    // 0: no window
    bool window_optional;  // sliding_window applies if use_sliding_window is true, to layers from max_window_layers on
    bool window_unlayered; // layer_types does not decide which layers have the window
};

enum { DEFAULT_WINDOW = 4096, DEFAULT_WINDOW_LAYERS = 28 };

static const struct family families[] = {
    {.architecture = "LlamaForCausalLM",
     .model_type = "llama",
     .default_context = 2048,
     .default_bos = 1,
     .default_eos = 2,
     .attention_bias = true},
    {.architecture = "MistralForCausalLM",
     .model_type = "mistral",
     .default_context = 131072,
     .default_bos = 1,
     .default_eos = 2,
     .default_kv_heads = 8,
     .default_window = DEFAULT_WINDOW,
     .window_unlayered = true},
    {.architecture = "Qwen2ForCausalLM",
     .model_type = "qwen2",
     .default_context = 32768,
     .default_bos = -1,
     .default_eos = -1,
     .default_kv_heads = 32,
     .default_window = DEFAULT_WINDOW,
     .qkv_bias = true,
     .window_optional = true},
    {.architecture = "Qwen3ForCausalLM",
     .model_type = "qwen3",
     .default_context = 32768,
     .default_head_size = 128,
     .default_bos = -1,
     .default_eos = -1,
     .default_kv_heads = 32,
     .default_window = DEFAULT_WINDOW,
     .attention_bias = true,
     .qk_norm = true,
     .window_optional = true},
};
static const int n_families = sizeof families / sizeof families[0];
static const char known[] = "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM";

// ---- one object, read key by key. The first failure stays, and later reads return their default ----

struct reader {
    const char *path;   // for messages
    const char *prefix; // "", "rope_scaling." or another object
    const json_t *object;
    enum status status;
};

__attribute__((format(printf, 4, 5))) static void reader_fail(struct reader *r, enum status code, const char *key,
                                                              const char *format, ...)
{
    if (r->status != STATUS_OK) return;
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    r->status = status_fail(code, "%s: %s%s %s", r->path, r->prefix, key, text);
}

// Returns NULL if the value is absent or null.
static const json_t *reader_get(const struct reader *r, const char *key)
{
    const json_t *value = r->status == STATUS_OK ? json_object_get(r->object, key) : NULL;
    return json_is_null(value) ? NULL : value;
}

static int read_int(struct reader *r, const char *key, int min, int max, int absent)
{
    const json_t *value = reader_get(r, key);
    if (!value) return absent;
    if (!json_is_integer(value))
        reader_fail(r, STATUS_DATA, key, "is %s: must be an integer in %d..%d", json_type_name(value), min, max);
    else if (json_integer_value(value) < min || json_integer_value(value) > max)
        reader_fail(r, STATUS_DATA, key, "is %lld: must be in %d..%d", (long long)json_integer_value(value), min, max);
    return r->status == STATUS_OK ? (int)json_integer_value(value) : absent;
}

static int read_size(struct reader *r, const char *key, int max)
{
    if (r->status == STATUS_OK && !reader_get(r, key))
        reader_fail(r, STATUS_DATA, key, "is missing: must be in 1..%d", max);
    return read_int(r, key, 1, max, 1);
}

// Reads a number above `above` and at most `max`.
static double read_real(struct reader *r, const char *key, double above, double max, double absent)
{
    const json_t *value = reader_get(r, key);
    if (!value) return absent;
    if (!json_is_number(value))
        reader_fail(r, STATUS_DATA, key, "is %s: must be a number over %g, at most %g", json_type_name(value), above,
                    max);
    else if (!(json_number_value(value) > above && json_number_value(value) <= max))
        reader_fail(r, STATUS_DATA, key, "is %g: must be over %g, at most %g", json_number_value(value), above, max);
    return r->status == STATUS_OK ? json_number_value(value) : absent;
}

static bool read_bool(struct reader *r, const char *key, bool absent)
{
    const json_t *value = reader_get(r, key);
    if (!value) return absent;
    if (!json_is_boolean(value))
        reader_fail(r, STATUS_DATA, key, "is %s: must be true or false", json_type_name(value));
    return json_is_true(value);
}

// Returns NULL if the value is absent or null.
static const char *read_string(struct reader *r, const char *key)
{
    const json_t *value = reader_get(r, key);
    if (value && !json_is_string(value))
        reader_fail(r, STATUS_DATA, key, "is %s: must be a string", json_type_name(value));
    return json_string_value(value);
}

// ---- parts of the file ----

static const struct family *read_family(struct reader *r)
{
    const json_t *list = reader_get(r, "architectures");
    const char *name = json_string_value(json_array_get(list, 0)), *type = read_string(r, "model_type");
    const struct family *family = NULL;
    if (r->status != STATUS_OK) return &families[0];
    if (list && (!name || json_array_size(list) != 1)) {
        reader_fail(r, STATUS_DATA, "architectures", "must be an array of one string, one of %s", known);
        return &families[0];
    }
    if (!name && !type) {
        reader_fail(r, STATUS_DATA, "architectures", "is missing: must be one of %s", known);
        return &families[0];
    }
    for (int i = 0; i < n_families && !family; i++)
        if (strcmp(name ? name : type, name ? families[i].architecture : families[i].model_type) == 0)
            family = &families[i];
    if (!family) {
        reader_fail(r, STATUS_UNSUPPORTED, name ? "architectures" : "model_type", "is %.60s: this program runs %s",
                    name ? name : type, known);
        return &families[0];
    }
    if (type && strcmp(type, family->model_type) != 0)
        reader_fail(r, STATUS_DATA, "model_type", "is %.60s, but architectures is %s, whose model_type is %s", type,
                    family->architecture, family->model_type);
    return family;
}

static void check_unsupported_keys(struct reader *r)
{
    static const char *const absent[] = {"per_layer_config", "attention_chunk_size", "kv_sharing_modes"};
    for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++)
        if (reader_get(r, absent[i]))
            reader_fail(r, STATUS_UNSUPPORTED, absent[i],
                        "is set: layers of different shape or attention are not "
                        "supported");
    if (!read_bool(r, "is_causal", true))
        reader_fail(r, STATUS_UNSUPPORTED, "is_causal", "is false: only causal attention is supported");
    const char *activation = read_string(r, "hidden_act");
    if (activation && strcmp(activation, "silu") != 0 && strcmp(activation, "swish") != 0)
        reader_fail(r, STATUS_UNSUPPORTED, "hidden_act", "is %.60s: only silu is supported", activation);
    if (read_bool(r, "mlp_bias", false))
        reader_fail(r, STATUS_UNSUPPORTED, "mlp_bias", "is true: only models without MLP biases are supported");
    if (read_real(r, "partial_rotary_factor", 0, 1, 1) != 1)
        reader_fail(r, STATUS_UNSUPPORTED, "partial_rotary_factor", "is under 1: only whole heads are rotated");
}

// ---- quantised checkpoints ----

static const char readable[] =
    "FP8 weights (e4m3 with one scale for a matrix, for each output or for each block of 128 x 128) as "
    "compressed-tensors, fp8 or fbgemm_fp8 store them";

enum { BLOCK = 128 };

// Reads the rows and columns of a block, which must be [128, 128].
static void read_block(struct reader *r, const char *key, struct model_config *c)
{
    const json_t *size = reader_get(r, key);
    const bool fits = json_array_size(size) == 2 && json_integer_value(json_array_get(size, 0)) == BLOCK &&
                      json_integer_value(json_array_get(size, 1)) == BLOCK;
    if (!fits)
        reader_fail(r, STATUS_UNSUPPORTED, key, "is not [%d, %d]: this program reads %s", BLOCK, BLOCK, readable);
    c->fp8_block = BLOCK;
}

static void expect_string(struct reader *r, const char *key, const char *value, const char *a, const char *b)
{
    if (!value || (strcmp(value, a) != 0 && strcmp(value, b) != 0))
        reader_fail(r, STATUS_UNSUPPORTED, key, "is %.60s: this program reads %s", value ? value : "missing", readable);
}

// Checks how a group of compressed-tensors stores its weights. The classes and patterns by which a group selects
// matrices are not needed: the loader looks at the dtype of each tensor.
static void read_group(struct reader *r, struct model_config *c)
{
    const json_t *weights = json_object_get(r->object, "weights");
    if (!json_is_object(weights)) {
        reader_fail(r, STATUS_UNSUPPORTED, "weights", "is %s: this program reads %s",
                    weights ? json_type_name(weights) : "missing", readable);
        return;
    }
    r->object = weights;
    expect_string(r, "weights.type", read_string(r, "type"), "float", "float");
    const char *strategy = read_string(r, "strategy");
    if (strategy && strcmp(strategy, "block") == 0)
        read_block(r, "block_structure", c);
    else
        expect_string(r, "weights.strategy", strategy, "tensor", "channel");
    int bits = read_int(r, "num_bits", 1, 64, 0);
    if (bits != 8 || !read_bool(r, "symmetric", true))
        reader_fail(r, STATUS_UNSUPPORTED, "weights", "are of %d bits, %s: this program reads %s", bits,
                    read_bool(r, "symmetric", true) ? "symmetric" : "not symmetric", readable);
}

static void read_compressed_tensors(struct reader *r, struct model_config *c)
{
    const json_t *groups = reader_get(r, "config_groups"), *rotations = reader_get(r, "transform_config");
    const char *name;
    json_t *group;
    expect_string(r, "format", read_string(r, "format"), "float-quantized", "naive-quantized");
    if (!json_is_object(groups) || !json_object_size(groups))
        reader_fail(r, STATUS_DATA, "config_groups", "must be an object of one group or more");
    if (json_object_size(rotations))
        reader_fail(r, STATUS_UNSUPPORTED, "transform_config", "is set: activations are not rotated here");
    json_object_foreach((json_t *)groups, name, group)
    {
        char *prefix = mem_format("%sconfig_groups.%.40s.", r->prefix, name);
        struct reader g = {.path = r->path, .prefix = prefix, .object = group, .status = r->status};
        if (r->status == STATUS_OK) read_group(&g, c);
        r->status = g.status;
        free(prefix);
    }
}

// Counts the matrices of all layers that a list of names or patterns ("re:...") excludes from FP8. The count is exact
// enough for the memory plan; the loader looks at the tensors.
static void count_excluded(struct reader *r, const char *key, struct model_config *c)
{
    const json_t *list = reader_get(r, key);
    if (json_array_size(list) > MAX_EXCLUDED) {
        reader_fail(r, STATUS_DATA, key, "has %zu entries: at most %d", json_array_size(list), MAX_EXCLUDED);
        return;
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        if (!name) continue;
        bool all = strncmp(name, "re:", 3) == 0;
        if (strstr(name, "self_attn")) c->fp8_excluded_attention += all ? 4 * c->n_layers : 1;
        if (strstr(name, "mlp")) c->fp8_excluded_mlp += all ? 3 * c->n_layers : 1;
    }
}

// Reads how weights are quantised. Ignores settings of activations: a calibrated scale (activation_scheme static) and a
// bound against outliers (activation_scale_ub). Here the largest value of a row decides its scale, so nothing is
// clipped and no row depends on another row.
static void read_quantisation(struct reader *r, struct model_config *c)
{
    const char *key =
        reader_get(r, "compression_config") ? "compression_config" : "quantization_config"; // the older name wins
    const json_t *object = reader_get(r, key);
    if (!object) return;
    if (!json_is_object(object)) {
        reader_fail(r, STATUS_DATA, key, "is %s: must be an object", json_type_name(object));
        return;
    }
    char *prefix = mem_format("%s.", key);
    struct reader q = {.path = r->path, .prefix = prefix, .object = object};
    const char *method = read_string(&q, "quant_method");
    if (!method && reader_get(&q, "config_groups")) method = "compressed-tensors";
    if (method && strcmp(method, "compressed-tensors") == 0) {
        read_compressed_tensors(&q, c);
    } else if (method && strcmp(method, "fp8") == 0) {
        expect_string(&q, "activation_scheme", read_string(&q, "activation_scheme"), "static", "dynamic");
        if (reader_get(&q, "weight_block_size")) read_block(&q, "weight_block_size", c);
    } else {
        expect_string(&q, "quant_method", method, "fbgemm_fp8", "fbgemm_fp8");
    }
    static const char *const lists[] = {"ignore", "ignored_layers", "modules_to_not_convert"};
    for (int i = 0; i < 3; i++)
        count_excluded(&q, lists[i], c);
    free(prefix);
    r->status = q.status;
    c->fp8 = true;
}

// ---- positions ----

static double read_factor(struct reader *rope)
{
    if (!reader_get(rope, "factor")) reader_fail(rope, STATUS_DATA, "factor", "is missing: this rope_type needs it");
    return read_real(rope, "factor", 0, 1e6, 1);
}

// Reads rope type llama3. `original` is original_max_position_embeddings at the top of the file, or 0 if it is absent
// there.
static void read_rope_llama3(struct reader *rope, int original, struct model_config *c)
{
    static const char *const needed[] = {"low_freq_factor", "high_freq_factor"};
    c->rope_llama3 = true;
    c->rope_factor = read_factor(rope);
    for (int i = 0; i < 2; i++)
        if (!reader_get(rope, needed[i]))
            reader_fail(rope, STATUS_DATA, needed[i], "is missing: rope_type llama3 needs it");
    c->rope_low_freq_factor = read_real(rope, "low_freq_factor", 0, 1e6, 1);
    c->rope_high_freq_factor = read_real(rope, "high_freq_factor", 0, 1e6, 4);
    int nested = read_int(rope, "original_max_position_embeddings", 1, MAX_CONTEXT, c->max_context);
    c->rope_original_context = original ? original : nested;
    if (c->rope_factor < 1) reader_fail(rope, STATUS_DATA, "factor", "is %g: must be 1 or more", c->rope_factor);
    if (c->rope_high_freq_factor <= c->rope_low_freq_factor)
        reader_fail(rope, STATUS_DATA, "high_freq_factor", "is %g: must be over low_freq_factor, which is %g",
                    c->rope_high_freq_factor, c->rope_low_freq_factor);
}

// Refuses members that need a rope type if the file has no type, because versions of transformers interpret them
// differently. Refuses members that are objects: they hold the settings of one layer type.
static void check_rope_members(struct reader *rope, bool has_type)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)rope->object, name, value)
    {
        bool plain = strcmp(name, "rope_theta") == 0 || strcmp(name, "partial_rotary_factor") == 0;
        if (json_is_object(value))
            reader_fail(rope, STATUS_UNSUPPORTED, name, "is an object: all layers must have the same positions");
        else if (!has_type && !plain && !json_is_null(value))
            reader_fail(rope, STATUS_DATA, name, "is given without rope_type: add rope_type");
    }
}

// Reads the rope type. Dynamic scaling needs no code: it starts beyond max_position_embeddings, where the context ends.
static void read_rope_type(struct reader *rope, int original, struct model_config *c)
{
    const char *key = reader_get(rope, "rope_type") ? "rope_type" : "type", *type = read_string(rope, key);
    check_rope_members(rope, type != NULL);
    if (!type || strcmp(type, "default") == 0) return;
    if (strcmp(type, "llama3") == 0)
        read_rope_llama3(rope, original, c);
    else if (strcmp(type, "linear") == 0)
        c->rope_factor = read_factor(rope);
    else if (strcmp(type, "dynamic") != 0)
        reader_fail(rope, STATUS_UNSUPPORTED, "rope_type",
                    "is %.60s: only default, linear, dynamic and llama3 are supported", type);
}

// Reads the rope settings. Older files have rope_theta, and rope_scaling {type or rope_type, ...}. Newer files have
// these settings in rope_parameters. If a file has rope_scaling and rope_parameters, transformers uses only
// rope_scaling, unless rope_scaling is empty.
static void read_rope(struct reader *r, struct model_config *c)
{
    const json_t *scaling = reader_get(r, "rope_scaling");
    bool is_old = scaling && !(json_is_object(scaling) && json_object_size(scaling) == 0);
    const char *key = is_old ? "rope_scaling" : "rope_parameters";
    const json_t *object = reader_get(r, key);
    int original = read_int(r, "original_max_position_embeddings", 1, MAX_CONTEXT, 0);
    c->rope_theta = read_real(r, "rope_theta", 0, 1e12, 10000);
    if (r->status != STATUS_OK || !object) return;
    if (!json_is_object(object)) {
        reader_fail(r, STATUS_DATA, key, "is %s: must be an object", json_type_name(object));
        return;
    }
    struct reader rope = {.path = r->path, .prefix = is_old ? "rope_scaling." : "rope_parameters.", .object = object};
    c->rope_theta = read_real(&rope, "rope_theta", 0, 1e12, c->rope_theta);
    if (read_real(&rope, "partial_rotary_factor", 0, 1, 1) != 1)
        reader_fail(&rope, STATUS_UNSUPPORTED, "partial_rotary_factor", "is under 1: only whole heads are rotated");
    read_rope_type(&rope, original, c);
    r->status = rope.status;
}

// ---- windows ----

// Reads layer_types. Sets *windowed_p to true if a layer attends to a window. Leaves it unchanged if the key is absent.
static void read_layer_types(struct reader *r, const struct model_config *c, bool *windowed_p)
{
    const json_t *types = reader_get(r, "layer_types");
    if (!types) return;
    *windowed_p = false;
    if (json_array_size(types) != (size_t)c->n_layers)
        reader_fail(r, STATUS_DATA, "layer_types", "must be an array of %d strings, one for each layer", c->n_layers);
    for (int i = 0; i < c->n_layers && r->status == STATUS_OK; i++) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        bool sliding = type && strcmp(type, "sliding_attention") == 0;
        if (!sliding && (!type || strcmp(type, "full_attention") != 0))
            reader_fail(r, STATUS_UNSUPPORTED, "layer_types",
                        "has %.60s: only full_attention and sliding_attention are supported",
                        type ? type : "an entry that is not a string");
        *windowed_p = *windowed_p || sliding;
    }
}

// Reads the window. Windowed attention is not implemented, so the window limits the context. Llama's layers attend to
// all tokens, but the cache of transformers drops entries outside of a sliding_window.
static void read_window(struct reader *r, const struct family *family, struct model_config *c)
{
    bool on = !family->window_optional || read_bool(r, "use_sliding_window", false), windowed = true;
    if (family->window_optional)
        windowed = read_int(r, "max_window_layers", 0, INT32_MAX, DEFAULT_WINDOW_LAYERS) < c->n_layers;
    read_layer_types(r, c, &windowed);
    bool absent = !json_object_get(r->object, "sliding_window"); // null means no window
    int window = on ? read_int(r, "sliding_window", 1, INT32_MAX, absent ? family->default_window : 0) : 0;
    if (reader_get(r, "layer_types") && windowed && !window)
        reader_fail(r, STATUS_DATA, "layer_types", "has sliding_attention, but %s",
                    on ? "there is no sliding_window" : "use_sliding_window is not true");
    c->sliding_window = windowed || family->window_unlayered ? window : 0;
    if (c->sliding_window && c->sliding_window < c->max_context) c->max_context = c->sliding_window;
}

// ---- the rest ----

static void add_eos(struct reader *r, const json_t *value, struct model_config *c)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) >= c->vocab_size) {
        reader_fail(r, STATUS_DATA, "eos_token_id", "must be a token id, or a list of them, in 0..%d",
                    c->vocab_size - 1);
        return;
    }
    int id = (int)json_integer_value(value);
    if (model_config_is_eos(c, id)) return;
    if (c->n_eos == MODEL_MAX_EOS)
        reader_fail(r, STATUS_UNSUPPORTED, "eos_token_id", "has more than %d different ids", MODEL_MAX_EOS);
    else
        c->eos_id[c->n_eos++] = id;
}

static void read_special_ids(struct reader *r, int default_bos, int default_eos, struct model_config *c)
{
    bool no_bos = json_is_null(json_object_get(r->object, "bos_token_id"));
    bool no_eos = json_is_null(json_object_get(r->object, "eos_token_id"));
    c->bos_id = read_int(r, "bos_token_id", 0, c->vocab_size - 1, no_bos ? -1 : default_bos);
    const json_t *eos = reader_get(r, "eos_token_id");
    if (json_is_array(eos)) {
        for (size_t i = 0; i < json_array_size(eos) && r->status == STATUS_OK; i++)
            add_eos(r, json_array_get(eos, i), c);
    } else if (eos) {
        add_eos(r, eos, c);
    } else if (!no_eos && default_eos >= 0 && default_eos < c->vocab_size && r->status == STATUS_OK) {
        c->eos_id[c->n_eos++] = default_eos;
    }
}

static void read_head_size(struct reader *r, const struct family *family, struct model_config *c)
{
    if (!reader_get(r, "head_dim") && !family->default_head_size && c->hidden % c->n_heads != 0)
        reader_fail(r, STATUS_DATA, "hidden_size",
                    "is %d: must be a multiple of num_attention_heads, which is %d, "
                    "where there is no head_dim",
                    c->hidden, c->n_heads);
    int head_size = family->default_head_size ? family->default_head_size : c->hidden / c->n_heads;
    c->head_size = read_int(r, "head_dim", 1, MAX_HEAD_SIZE, head_size);
    if (c->head_size % 2 != 0 || c->head_size > MAX_HEAD_SIZE)
        reader_fail(r, STATUS_DATA, "head_dim", "is %d: must be even (its halves rotate together) and at most %d",
                    c->head_size, MAX_HEAD_SIZE);
}

static enum status read_config(const char *path, struct model_config *c)
{
    json_t *root;
    TRY(json_file_read(path, MAX_FILE_BYTES, &root));
    struct reader r = {.path = path, .prefix = "", .object = root};

    const struct family *family = read_family(&r);
    strcpy(c->architecture, family->architecture);
    check_unsupported_keys(&r);

    c->n_layers = read_size(&r, "num_hidden_layers", MAX_LAYERS);
    c->hidden = read_size(&r, "hidden_size", MAX_HIDDEN);
    c->intermediate = read_size(&r, "intermediate_size", MAX_INTERMEDIATE);
    c->n_heads = read_size(&r, "num_attention_heads", MAX_HEADS);
    bool no_kv_heads = !json_object_get(root, "num_key_value_heads"); // null: as many as heads
    c->n_kv_heads = read_int(&r, "num_key_value_heads", 1, MAX_HEADS,
                             no_kv_heads && family->default_kv_heads ? family->default_kv_heads : c->n_heads);
    c->vocab_size = read_size(&r, "vocab_size", MAX_VOCAB);
    c->max_context = read_int(&r, "max_position_embeddings", 1, MAX_CONTEXT, family->default_context);
    c->norm_epsilon = (float)read_real(&r, "rms_norm_eps", 0, 0.1, 1e-6);
    c->tied_embeddings = read_bool(&r, "tie_word_embeddings", false);
    c->o_bias = family->attention_bias && read_bool(&r, "attention_bias", false);
    c->qkv_bias = family->qkv_bias || c->o_bias;
    c->qk_norm = family->qk_norm;

    if (c->n_heads % c->n_kv_heads != 0)
        reader_fail(&r, STATUS_DATA, "num_key_value_heads", "is %d: must divide num_attention_heads, which is %d",
                    c->n_kv_heads, c->n_heads);
    read_head_size(&r, family, c);
    read_quantisation(&r, c);
    read_rope(&r, c);
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
    struct reader r = {.path = path, .prefix = "", .object = root};
    int bos = c->bos_id;
    read_special_ids(&r, bos, -1, c);
    if (!reader_get(&r, "bos_token_id")) c->bos_id = bos;
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

// Llama 3.1's context extension: frequencies with wavelengths over the original context are divided by `factor`.
// Frequencies with short wavelengths stay, and a linear ramp joins the two ranges (Hugging Face, modeling_rope_utils,
// "llama3").
void model_config_inv_freq(const struct model_config *c, float *inv_freq)
{
    for (int i = 0; i < c->head_size / 2; i++) {
        double frequency = pow(c->rope_theta, -2.0 * i / c->head_size);
        if (c->rope_llama3) {
            double turns = c->rope_original_context * frequency / (2 * M_PI); // rotations within the original context
            double low = c->rope_low_freq_factor, high = c->rope_high_freq_factor;
            double keep = fmin(fmax((turns - low) / (high - low), 0), 1);
            frequency *= keep + (1 - keep) / c->rope_factor;
        } else if (c->rope_factor > 0) {
            frequency /= c->rope_factor;
        }
        inv_freq[i] = (float)frequency;
    }
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
