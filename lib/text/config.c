// SPDX-License-Identifier: Apache-2.0
// Reads config.json and generation_config.json. Every number has a bound far above any known model and far below
// overflow in later code: the product of two numbers fits 63 bits, and heads * head size fits an int.
#include "lib/text/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/base/mem.h"
#include "lib/text/config_eos.h"
#include "lib/text/config_reader.h"
#include "lib/text/family.h"
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

enum { DEFAULT_WINDOW_LAYERS = 28 };

// Reads which layers rotate: no_rope_layers has a 1 for each layer that does. If it is absent, every
// no_rope_layer_interval-th layer does not rotate.
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

static void read_layer_shape(struct config_reader *r, const struct family *family, struct layer_shape *layer)
{
    *layer = family->layer;
    layer->o_bias = family->attention_bias && config_read_bool(r, "attention_bias", family->default_attention_bias);
    layer->qkv_bias = layer->qkv_bias || layer->o_bias;
    if (family->attention_out_bias) layer->o_bias = config_read_bool(r, "attention_out_bias", false);
    layer->mlp_bias = family->mlp_bias && config_read_bool(r, "mlp_bias", false);
}

// Reads the multipliers of Granite. They are folded into other numbers, so they must not be 0, and not so small or
// large that these would overflow.
static void read_scales(struct config_reader *r, const struct family *family, struct model_scales *scales)
{
    *scales = (struct model_scales){.embedding = 1, .residual = 1, .logits = 1};
    const struct {
        const char *key;
        double *value;
    } keys[] = {{"embedding_multiplier", &scales->embedding},
                {"residual_multiplier", &scales->residual},
                {"attention_multiplier", &scales->attention},
                {"logits_scaling", &scales->logits}};
    for (int i = 0; i < 4 && family->multipliers; i++)
        *keys[i].value = config_read_real(r, keys[i].key, 1e-6, 1e6, 1);
}

// Reads whether the head is the embedding. A checkpoint that holds more than the text model is read as transformers 5
// reads it: the outer key decides, and a head in the file is used in any case.
static void read_tied(struct config_reader *r, const json_t *root, const struct family *family, struct model_config *c)
{
    struct config_reader top = {.path = r->path, .prefix = "", .object = root, .status = r->status};
    c->tied_if_absent = c->holds_more;
    if (c->holds_more) {
        c->tied_embeddings = config_read_bool(&top, "tie_word_embeddings", true);
        r->status = top.status;
        return;
    }
    c->tied_embeddings = config_read_bool(r, "tie_word_embeddings", family->default_tied);
}

// Goes on to text_config if the checkpoint is a Mistral 3 with vision.
static void read_text_config(struct config_reader *r, struct model_config *c)
{
    const char *name = json_string_value(json_array_get(config_reader_get(r, "architectures"), 0));
    const char *type = config_read_string(r, "model_type");
    if (name ? strcmp(name, "Mistral3ForConditionalGeneration") != 0 : !type || strcmp(type, "mistral3") != 0) return;
    const json_t *text = config_reader_get(r, "text_config");
    if (!json_is_object(text)) {
        config_reader_fail(r, STATUS_DATA, "text_config", "is %s: must be an object",
                           text ? json_type_name(text) : "missing");
        return;
    }
    c->holds_more = true;
    r->object = text;
    r->prefix = "text_config.";
}

static enum status read_config(const char *path, struct model_config *c)
{
    json_t *root;
    TRY(json_file_read(path, MAX_FILE_BYTES, &root));
    struct config_reader r = {.path = path, .prefix = "", .object = root};

    read_text_config(&r, c);
    const struct family *family = family_find(&r);
    strcpy(c->architecture, family->architecture);
    family_check_keys(&r, family);

    c->n_layers = config_read_size(&r, "num_hidden_layers", MAX_LAYERS);
    c->hidden = config_read_size(&r, "hidden_size", MAX_HIDDEN);
    c->intermediate = config_read_size(&r, "intermediate_size", MAX_INTERMEDIATE);
    c->n_heads = config_read_size(&r, "num_attention_heads", MAX_HEADS);
    bool no_kv_heads = !json_object_get(r.object, "num_key_value_heads"); // null: as many as heads
    c->n_kv_heads = config_read_int(&r, "num_key_value_heads", 1, MAX_HEADS,
                                    no_kv_heads && family->default_kv_heads ? family->default_kv_heads : c->n_heads);
    c->vocab_size = config_read_size(&r, "vocab_size", MAX_VOCAB);
    c->max_context = config_read_int(&r, "max_position_embeddings", 1, MAX_CONTEXT, family->default_context);
    c->norm_epsilon = (float)config_read_real(&r, "rms_norm_eps", 0, 0.1, family->default_epsilon);
    read_tied(&r, root, family, c);
    read_layer_shape(&r, family, &c->layer);
    read_scales(&r, family, &c->scales);

    if (c->n_heads % c->n_kv_heads != 0)
        config_reader_fail(&r, STATUS_DATA, "num_key_value_heads",
                           "is %d: must divide num_attention_heads, which is %d", c->n_kv_heads, c->n_heads);
    read_head_size(&r, family, c);
    struct config_reader top = {.path = path, .prefix = "", .object = root, .status = r.status};
    quantisation_config_read(c->holds_more && !config_reader_get(&r, "quantization_config") ? &top : &r, c);
    if (r.status == STATUS_OK) r.status = top.status;
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

static enum status add_tokenizer_eos(const char *dir, struct model_config *c)
{
    int64_t id;
    TRY(tokenizer_eos_find(dir, &id));
    if (id < 0 || id >= c->vocab_size || model_config_is_eos(c, (int32_t)id)) return STATUS_OK;
    if (c->n_eos < MODEL_MAX_EOS) c->eos_id[c->n_eos++] = (int)id;
    return STATUS_OK;
}

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
    c.n_file_eos = c.n_eos;
    if (status == STATUS_OK && !is_file) status = add_tokenizer_eos(dir, &c);
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
    double gemms = (2 * heads + 2 * kv_heads + layer_mlp_matrices(&c->layer) * (double)c->intermediate) * c->hidden;
    return gemms > 0 ? 2 * 2 * heads / gemms : 0;
}
