// SPDX-License-Identifier: Apache-2.0
// Writes the small random checkpoints of tiny_model.h.
#include "tests/tiny_model.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/mem.h"

static FILE *create(const char *dir, const char *name)
{
    char *path = mem_format("%s/%s", dir, name);
    FILE *file = fopen(path, "wb");
    if (!file) {
        fprintf(stderr, "tiny_model: %s: %s\n", path, strerror(errno));
        abort();
    }
    free(path);
    return file;
}

static void finish(FILE *file)
{
    if (ferror(file) | fclose(file)) {
        fprintf(stderr, "tiny_model: write failed: %s\n", strerror(errno));
        abort();
    }
}

static bool is_family(const struct tiny_model *spec, const char *family)
{
    return strcmp(spec->family, family) == 0;
}

// ---- values ----

static uint64_t splitmix64(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

// Returns the nearest value with `bits` bits of mantissa (including the leading one), no finer than 2^least. Ties go to
// even.
static double round_to(double value, int bits, int least)
{
    int exponent;
    if (value == 0) return 0;
    frexp(value, &exponent);
    int step = exponent - bits > least ? exponent - bits : least;
    return ldexp(nearbyint(ldexp(value, -step)), step);
}

static float round_dtype(double value, enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_BF16: return (float)round_to(value, 8, -133);
    case DTYPE_F16: return (float)round_to(value, 11, -24);
    case DTYPE_FP8: return (float)round_to(fmin(fmax(value, -448), 448), 4, -9);
    default: return (float)value;
    }
}

// Returns the scale of a tensor's values. The scales make attention far from uniform and separate the best logit from
// the second. They let the layers outweigh the embedding in the residual stream, because a tied model would only repeat
// its input otherwise.
static double tensor_spread(const char *name, int rows, int columns)
{
    if (rows == 0) return 0.3;
    if (strstr(name, "embed_tokens") || strstr(name, "lm_head")) return 0.7;
    return 2 * sqrt(3.0 / columns);
}

static double uniform(const struct tiny_model *spec, const char *name, size_t index) // [-1, 1)
{
    uint64_t key = spec->seed;
    for (const char *c = name; *c; c++)
        key = splitmix64(key ^ (uint64_t)(unsigned char)*c);
    return (double)(splitmix64(key + index) >> 11) * 0x1p-52 - 1;
}

static bool has_scale_per_output(const struct tiny_model *spec) // one scale for each output
{
    return spec->fp8 == TINY_FP8_CHANNEL || spec->fp8 == TINY_FP8_FBGEMM;
}

enum { BLOCK = 128 }; // rows and columns with one scale in TINY_FP8_BLOCK

static int blocks_of(int n)
{
    return (n + BLOCK - 1) / BLOCK;
}

// Returns the number of the scale of an element of an FP8 matrix.
static size_t scale_index(const struct tiny_model *spec, const struct tiny_tensor *t, size_t index)
{
    const size_t row = index / (size_t)t->columns, column = index % (size_t)t->columns;
    if (spec->fp8 == TINY_FP8_BLOCK) return row / BLOCK * (size_t)blocks_of(t->columns) + column / BLOCK;
    return has_scale_per_output(spec) ? row : 0;
}

static enum dtype scale_dtype(const struct tiny_model *spec)
{
    return spec->fp8 == TINY_FP8_CHANNEL || spec->fp8 == TINY_FP8_TENSOR ? DTYPE_BF16 : DTYPE_F32;
}

// Returns scale number `index` of the FP8 matrix `name`: between the smallest scale that fits its largest value and
// twice that.
static float scale_value(const struct tiny_model *spec, const char *name, double spread, size_t index)
{
    char full[128];
    snprintf(full, sizeof full, "%s_scale", name);
    return round_dtype(spread / 448 * (1.5 + 0.5 * uniform(spec, full, index)), scale_dtype(spec));
}

// Returns the value of a byte of an FP8 matrix.
static float fp8_value(const struct tiny_model *spec, const struct tiny_tensor *t, size_t index, float *scale_p)
{
    *scale_p = scale_value(spec, t->name, t->spread, scale_index(spec, t, index));
    return round_dtype(t->spread * uniform(spec, t->name, index) / (double)*scale_p, DTYPE_FP8);
}

float tiny_model_value(const struct tiny_model *spec, const struct tiny_tensor *tensor, size_t index)
{
    const char *suffix = strstr(tensor->name, "weight_scale");
    if (suffix) {
        char matrix[96];
        snprintf(matrix, sizeof matrix, "%.*sweight", (int)(suffix - tensor->name), tensor->name);
        return scale_value(spec, matrix, tensor->spread, index);
    }
    if (tensor->dtype == DTYPE_FP8) {
        float scale, value = fp8_value(spec, tensor, index, &scale);
        return value * scale;
    }
    bool gain = strstr(tensor->name, "norm") != NULL;
    return round_dtype((gain ? 1 : 0) + tensor->spread * uniform(spec, tensor->name, index), tensor->dtype);
}

// ---- tensors ----

struct list {
    const struct tiny_model *spec;
    struct tiny_tensor *items;
    int n, capacity;
};

static struct tiny_tensor *add_tensor(struct list *list, int rows, int columns, enum dtype dtype)
{
    MEM_GROW(list->items, list->n, list->capacity);
    struct tiny_tensor *t = &list->items[list->n++];
    *t = (struct tiny_tensor){.rows = rows, .columns = columns, .dtype = dtype};
    return t;
}

static bool is_fp8(const struct tiny_model *spec, const char *name, int rows)
{
    if (!spec->fp8 || rows == 0 || !strstr(name, "_proj.weight")) return false;
    return spec->fp8 != TINY_FP8_FBGEMM || strstr(name, "mlp");
}

__attribute__((format(printf, 4, 5))) static void add(struct list *list, int rows, int columns, const char *format, ...)
{
    const struct tiny_model *spec = list->spec;
    struct tiny_tensor *t = add_tensor(list, rows, columns, spec->dtype);
    va_list args;
    va_start(args, format);
    vsnprintf(t->name, sizeof t->name, format, args);
    va_end(args);
    t->spread = tensor_spread(t->name, rows, columns);
    if (!is_fp8(spec, t->name, rows)) return;
    t->dtype = DTYPE_FP8;
    struct tiny_tensor matrix = *t;
    if (spec->fp8 == TINY_FP8_BLOCK) {
        struct tiny_tensor *scale = add_tensor(list, blocks_of(rows), blocks_of(columns), scale_dtype(spec));
        snprintf(scale->name, sizeof scale->name, "%.80s_scale_inv", matrix.name);
        scale->spread = matrix.spread;
        return;
    }
    int n = has_scale_per_output(spec) ? rows : 0, one = has_scale_per_output(spec) || spec->fp8 == TINY_FP8_TENSOR;
    struct tiny_tensor *scale = add_tensor(list, n, one, scale_dtype(spec));
    snprintf(scale->name, sizeof scale->name, "%.80s_scale", matrix.name);
    scale->spread = matrix.spread;
    if (has_scale_per_output(spec)) return;
    struct tiny_tensor *input = add_tensor(list, 0, one, scale_dtype(spec));
    snprintf(input->name, sizeof input->name, "%.*s.input_scale", (int)strlen(matrix.name) - 7, matrix.name);
}

// Adds the first or the second norm of a layer.
static void add_norm(struct list *list, bool second, int l)
{
    const char *names[2] = {"input_layernorm", "post_attention_layernorm"};
    if (is_family(list->spec, "olmo2")) names[0] = "post_attention_layernorm", names[1] = "post_feedforward_layernorm";
    if (is_family(list->spec, "apertus")) names[0] = "attention_layernorm", names[1] = "feedforward_layernorm";
    add(list, 0, list->spec->hidden, "model.layers.%d.%s.weight", l, names[second]);
}

static void add_mlp(struct list *list, int l)
{
    const struct tiny_model *spec = list->spec;
    const int hidden = spec->hidden, inner = spec->intermediate;
    const bool gate = !is_family(spec, "arcee") && !is_family(spec, "apertus");
    if (gate) add(list, inner, hidden, "model.layers.%d.mlp.gate_proj.weight", l);
    add(list, inner, hidden, "model.layers.%d.mlp.up_proj.weight", l);
    add(list, hidden, inner, "model.layers.%d.mlp.down_proj.weight", l);
    if (is_family(spec, "arcee") || is_family(spec, "mlp-bias")) {
        if (gate) add(list, 0, inner, "model.layers.%d.mlp.gate_proj.bias", l);
        add(list, 0, inner, "model.layers.%d.mlp.up_proj.bias", l);
        add(list, 0, hidden, "model.layers.%d.mlp.down_proj.bias", l);
    }
    if (!is_family(spec, "apertus")) return;
    add(list, 0, 0, "model.layers.%d.mlp.act_fn.alpha_p", l);
    add(list, 0, 0, "model.layers.%d.mlp.act_fn.alpha_n", l);
}

struct tiny_tensor *tiny_model_tensors(const struct tiny_model *spec, int *n_p)
{
    struct list list = {.spec = spec};
    int q = spec->n_heads * spec->head_size, kv = spec->n_kv_heads * spec->head_size, hidden = spec->hidden;
    if (!spec->tied || !spec->tied_as_head) add(&list, spec->vocab_size, hidden, "model.embed_tokens.weight");
    for (int l = 0; l < spec->n_layers; l++) {
        add_norm(&list, false, l);
        add(&list, q, hidden, "model.layers.%d.self_attn.q_proj.weight", l);
        add(&list, kv, hidden, "model.layers.%d.self_attn.k_proj.weight", l);
        add(&list, kv, hidden, "model.layers.%d.self_attn.v_proj.weight", l);
        add(&list, hidden, q, "model.layers.%d.self_attn.o_proj.weight", l);
        if (is_family(spec, "qwen2") || spec->attention_bias) {
            add(&list, 0, q, "model.layers.%d.self_attn.q_proj.bias", l);
            add(&list, 0, kv, "model.layers.%d.self_attn.k_proj.bias", l);
            add(&list, 0, kv, "model.layers.%d.self_attn.v_proj.bias", l);
        }
        if (spec->attention_bias) add(&list, 0, hidden, "model.layers.%d.self_attn.o_proj.bias", l);
        if (is_family(spec, "qwen3") || is_family(spec, "apertus") || is_family(spec, "olmo2")) {
            const bool whole = is_family(spec, "olmo2");
            add(&list, 0, whole ? q : spec->head_size, "model.layers.%d.self_attn.q_norm.weight", l);
            add(&list, 0, whole ? kv : spec->head_size, "model.layers.%d.self_attn.k_norm.weight", l);
        }
        add_norm(&list, true, l);
        add_mlp(&list, l);
    }
    add(&list, 0, hidden, "model.norm.weight");
    if (!spec->tied || spec->tied_as_head) add(&list, spec->vocab_size, hidden, "lm_head.weight");
    *n_p = list.n;
    return list.items;
}

static size_t element_count(const struct tiny_tensor *t)
{
    return (size_t)(t->rows ? t->rows : 1) * (size_t)(t->columns ? t->columns : 1);
}

// Returns the e4m3 byte of a value that has one.
static uint8_t e4m3_code(float value)
{
    int exponent = 0, sign = value < 0 ? 0x80 : 0;
    float magnitude = fabsf(value);
    if (magnitude < 0x1p-6f) return (uint8_t)(sign | (int)(magnitude * 0x1p9f));
    float mantissa = frexpf(magnitude, &exponent); // in [1/2, 1)
    return (uint8_t)(sign | (exponent + 6) << 3 | ((int)(mantissa * 16) - 8));
}

static void write_element(FILE *file, const struct tiny_model *spec, const struct tiny_tensor *t, size_t index)
{
    enum dtype dtype = t->dtype;
    if (dtype == DTYPE_FP8) {
        float scale;
        fputc(e4m3_code(fp8_value(spec, t, index, &scale)), file);
        return;
    }
    float value = tiny_model_value(spec, t, index);
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (dtype == DTYPE_F32) {
        fwrite(&bits, sizeof bits, 1, file);
        return;
    }
    uint16_t half = (uint16_t)(bits >> 16); // bf16; the value is already rounded
    if (dtype == DTYPE_F16) {
        uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
        if (magnitude >= 0x38800000) // 2^-14, the least normal number
            half = (uint16_t)(sign | ((magnitude - 0x38000000) >> 13));
        else
            half = (uint16_t)(sign | (uint32_t)fabsf(value * 0x1p24f));
    }
    fwrite(&half, sizeof half, 1, file);
}

// Writes every n_shards-th tensor, starting with `shard`.
static void write_safetensors(const char *dir, const char *name, const struct tiny_model *spec,
                              const struct tiny_tensor *tensors, int n, int shard)
{
    static const char *const type_name[] = {
        [DTYPE_F32] = "F32", [DTYPE_F16] = "F16", [DTYPE_BF16] = "BF16", [DTYPE_FP8] = "F8_E4M3"};
    char *header;
    size_t header_bytes, offset = 0;
    FILE *text = open_memstream(&header, &header_bytes);
    fprintf(text, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int i = shard; i < n; i += spec->n_shards) {
        const struct tiny_tensor *t = &tensors[i];
        size_t bytes = element_count(t) * dtype_size_bytes(t->dtype);
        fprintf(text, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", t->name, type_name[t->dtype]);
        if (t->rows) fprintf(text, "%d,", t->rows);
        if (t->columns) fprintf(text, "%d", t->columns);
        fprintf(text, "],\"data_offsets\":[%zu,%zu]}", offset, offset + bytes);
        offset += bytes;
    }
    fputc('}', text);
    while (ftell(text) % 8)
        fputc(' ', text);
    finish(text);

    FILE *file = create(dir, name);
    uint64_t length = header_bytes;
    fwrite(&length, sizeof length, 1, file);
    fwrite(header, 1, header_bytes, file);
    for (int i = shard; i < n; i += spec->n_shards)
        for (size_t e = 0; e < element_count(&tensors[i]); e++)
            write_element(file, spec, &tensors[i], e);
    finish(file);
    free(header);
}

static void write_weights(const char *dir, const struct tiny_model *spec)
{
    int n;
    struct tiny_tensor *tensors = tiny_model_tensors(spec, &n);
    FILE *index = spec->n_shards > 1 ? create(dir, "model.safetensors.index.json") : NULL;
    for (int shard = 0; shard < spec->n_shards; shard++) {
        char name[64] = "model.safetensors";
        if (index) snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", shard + 1, spec->n_shards);
        write_safetensors(dir, name, spec, tensors, n, shard);
    }
    if (index) {
        fprintf(index, "{\"metadata\":{\"total_size\":0},\"weight_map\":{");
        for (int i = 0; i < n; i++)
            fprintf(index, "%s\"%s\":\"model-%05d-of-%05d.safetensors\"", i ? "," : "", tensors[i].name,
                    i % spec->n_shards + 1, spec->n_shards);
        fprintf(index, "}}");
        finish(index);
    }
    free(tensors);
}

// ---- config.json ----

static void write_quantisation(FILE *file, const struct tiny_model *spec)
{
    switch (spec->fp8) {
    case TINY_FP8_NONE: return;
    case TINY_FP8_CHANNEL:
    case TINY_FP8_TENSOR:
        fprintf(
            file,
            "  \"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"float-quantized\",\n"
            "    \"config_groups\": {\"group_0\": {\"targets\": [\"Linear\"], \"output_activations\": null,\n"
            "      \"weights\": {\"num_bits\": 8, \"type\": \"float\", \"symmetric\": true, \"strategy\": \"%s\",\n"
            "        \"dynamic\": false, \"group_size\": null},\n"
            "      \"input_activations\": {\"num_bits\": 8, \"type\": \"float\", \"symmetric\": true,\n"
            "        \"strategy\": \"%s\", \"dynamic\": %s}}},\n"
            "    \"ignore\": [\"lm_head\"], \"kv_cache_scheme\": null},\n",
            has_scale_per_output(spec) ? "channel" : "tensor", has_scale_per_output(spec) ? "token" : "tensor",
            has_scale_per_output(spec) ? "true" : "false");
        return;
    case TINY_FP8_STATIC:
        fprintf(file, "  \"quantization_config\": {\"quant_method\": \"fp8\", \"activation_scheme\": \"static\",\n"
                      "    \"ignored_layers\": [\"lm_head\"]},\n");
        return;
    case TINY_FP8_BLOCK:
        fprintf(file, "  \"quantization_config\": {\"quant_method\": \"fp8\", \"activation_scheme\": \"dynamic\",\n"
                      "    \"fmt\": \"e4m3\", \"weight_block_size\": [128, 128]},\n");
        return;
    case TINY_FP8_FBGEMM:
        fprintf(file, "  \"quantization_config\": {\"quant_method\": \"fbgemm_fp8\", \"activation_scale_ub\": 1200.0,\n"
                      "    \"modules_to_not_convert\": [\"lm_head\"");
        for (int i = 0; i < 4 * spec->n_layers; i++)
            fprintf(file, ", \"model.layers.%d.self_attn.%c_proj\"", i / 4, "qkvo"[i % 4]);
        fprintf(file, "]},\n");
    }
}

static const struct family {
    const char *name, *architecture, *type, *keys;
} families[] = {
    {"llama", "LlamaForCausalLM", "llama", ""},
    {"llama3", "LlamaForCausalLM", "llama", ""},
    {"longrope", "LlamaForCausalLM", "llama", ""},
    {"mistral", "MistralForCausalLM", "mistral", "  \"sliding_window\": null,\n"},
    {"qwen2", "Qwen2ForCausalLM", "qwen2", ""},
    {"qwen3", "Qwen3ForCausalLM", "qwen3", ""},
    {"granite", "GraniteForCausalLM", "granite",
     "  \"embedding_multiplier\": 3.0,\n  \"residual_multiplier\": 0.4,\n  \"attention_multiplier\": 0.2,\n"
     "  \"logits_scaling\": 0.5,\n"},
    {"olmo2", "Olmo2ForCausalLM", "olmo2", ""},
    {"arcee", "ArceeForCausalLM", "arcee", "  \"mlp_bias\": true,\n"},
    {"apertus", "ApertusForCausalLM", "apertus", "  \"rope_parameters\": {\"rope_type\": \"default\"},\n"},
    {"ministral3", "Ministral3ForCausalLM", "ministral3",
     "  \"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 16.0, \"llama_4_scaling_beta\": 0.3,\n"
     "    \"original_max_position_embeddings\": 32},\n"},
    {"smollm3", "SmolLM3ForCausalLM", "smollm3", "  \"no_rope_layer_interval\": 2,\n"},
    {"mlp-bias", "LlamaForCausalLM", "llama", "  \"mlp_bias\": true,\n"},
};

static const struct family *find_family(const struct tiny_model *spec)
{
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        if (is_family(spec, families[i].name)) return &families[i];
    fprintf(stderr, "tiny_model: no family \"%s\"\n", spec->family);
    abort();
}

static void write_longrope(FILE *file, const struct tiny_model *spec)
{
    fprintf(file, "  \"rope_scaling\": {\"rope_type\": \"longrope\", \"original_max_position_embeddings\": %d",
            spec->max_context / 8);
    for (int longer = 0; longer < 2; longer++) {
        fprintf(file, ",\n    \"%s_factor\": [1.0", longer ? "long" : "short");
        for (int i = 1; i < spec->head_size / 2; i++)
            fprintf(file, ", %d.5", longer ? 3 * i : i);
        fprintf(file, "]");
    }
    fprintf(file, "},\n");
}

static void write_config(const char *dir, const struct tiny_model *spec)
{
    static const char *const torch_type[] = {
        [DTYPE_F32] = "float32", [DTYPE_F16] = "float16", [DTYPE_BF16] = "bfloat16"};
    const struct family *family = find_family(spec);
    FILE *file = create(dir, "config.json");
    fprintf(file, "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\",\n", family->architecture, family->type);
    fprintf(file, "  \"hidden_size\": %d,\n  \"intermediate_size\": %d,\n", spec->hidden, spec->intermediate);
    fprintf(file, "  \"num_hidden_layers\": %d,\n  \"num_attention_heads\": %d,\n", spec->n_layers, spec->n_heads);
    fprintf(file, "  \"num_key_value_heads\": %d,\n  \"head_dim\": %d,\n", spec->n_kv_heads, spec->head_size);
    fprintf(file, "  \"vocab_size\": %d,\n  \"max_position_embeddings\": %d,\n", spec->vocab_size, spec->max_context);
    fprintf(file, "  \"rms_norm_eps\": 1e-05,\n  \"rope_theta\": %s,\n",
            is_family(spec, "llama") ? "10000.0" : "500000.0");
    if (is_family(spec, "llama3")) // the original context is so short that all three branches of the scaling occur
        fprintf(file,
                "  \"rope_scaling\": {\"factor\": 8.0, \"high_freq_factor\": 4.0, \"low_freq_factor\": 1.0,\n"
                "    \"original_max_position_embeddings\": %d, \"rope_type\": \"llama3\"},\n",
                spec->max_context / 4);
    if (is_family(spec, "longrope")) write_longrope(file, spec);
    fprintf(file, "%s", family->keys);
    if (spec->attention_bias) fprintf(file, "  \"attention_bias\": true,\n");
    write_quantisation(file, spec);
    fprintf(file, "  \"tie_word_embeddings\": %s,\n", spec->tied ? "true" : "false");
    if (spec->vocab_size >= TINY_TOKENIZER_SIZE)
        fprintf(file, "  \"bos_token_id\": %d,\n  \"eos_token_id\": %d,\n", TINY_BOS, TINY_EOS);
    else
        fprintf(file, "  \"bos_token_id\": null,\n  \"eos_token_id\": null,\n");
    fprintf(file, "  \"torch_dtype\": \"%s\"\n}\n", torch_type[spec->dtype]);
    finish(file);
    if (spec->vocab_size >= TINY_TOKENIZER_SIZE) {
        file = create(dir, "generation_config.json");
        fprintf(file, "{\"bos_token_id\": %d, \"eos_token_id\": [%d, %d]}\n", TINY_BOS, TINY_EOS, TINY_IM_END);
        finish(file);
    }
}

// ---- tokenizer.json ----

// Returns GPT-2's printable character for a byte: itself if printable, else the next free character from U+0100 on.
static unsigned byte_character(unsigned byte)
{
    unsigned next = 0x100;
    for (unsigned b = 0; b <= byte; b++) {
        bool prints = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        if (b == byte) return prints ? b : next;
        next += !prints;
    }
    return 0;
}

static const char *const special[] = {"<bos>", "<eos>", "<|im_start|>", "<|im_end|>"};
enum { N_MERGES = TINY_BOS - 256, N_SPECIAL = sizeof special / sizeof special[0] };
_Static_assert(TINY_BOS + N_SPECIAL == TINY_TOKENIZER_SIZE, "every special token has an id");

static const char *const merges[N_MERGES][2] = {{"\\u0120", "t"}, {"h", "e"}, {"i", "n"}, {"\\u0120t", "he"},
                                                {"e", "r"},       {"a", "n"}, {"o", "u"}, {"r", "e"}};

static void write_special(FILE *file, int i, bool as_key)
{
    if (as_key)
        fprintf(file, "\"%d\":{", TINY_BOS + i);
    else
        fprintf(file, "{\"id\":%d,", TINY_BOS + i);
    fprintf(file,
            "\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"
            "\"special\":true}%s",
            special[i], i + 1 < N_SPECIAL ? "," : "");
}

static void write_tokenizer(const char *dir)
{
    FILE *file = create(dir, "tokenizer.json");
    fprintf(file, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[");
    for (int i = 0; i < N_SPECIAL; i++)
        write_special(file, i, false);
    fprintf(file, "],\n\"normalizer\":null,\n\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                  "\"trim_offsets\":true,\"use_regex\":true},\n");
    fprintf(file,
            "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<bos>\","
            "\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":[{\"Sequence\":{\"id\":\"A\","
            "\"type_id\":0}},{\"Sequence\":{\"id\":\"B\",\"type_id\":1}}],\"special_tokens\":{\"<bos>\":{\"id\":"
            "\"<bos>\",\"ids\":[%d],\"tokens\":[\"<bos>\"]}}},\n",
            TINY_BOS);
    fprintf(file, "\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,"
                  "\"use_regex\":true},\n");
    fprintf(file, "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,"
                  "\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":false,\"vocab\":{");
    for (unsigned byte = 0; byte < 256; byte++)
        fprintf(file, "%s\"\\u%04x\":%u", byte ? "," : "", byte_character(byte), byte);
    for (int m = 0; m < N_MERGES; m++)
        fprintf(file, ",\"%s%s\":%d", merges[m][0], merges[m][1], 256 + m);
    fprintf(file, "},\"merges\":[");
    for (int m = 0; m < N_MERGES; m++)
        fprintf(file, "%s\"%s %s\"", m ? "," : "", merges[m][0], merges[m][1]);
    fprintf(file, "]}}\n");
    finish(file);

    file = create(dir, "tokenizer_config.json");
    fprintf(file, "{\"add_bos_token\":true,\"added_tokens_decoder\":{");
    for (int i = 0; i < N_SPECIAL; i++)
        write_special(file, i, true);
    fprintf(file, "},\n\"bos_token\":\"<bos>\",\"eos_token\":\"<eos>\",\"model_max_length\":512,\n"
                  "\"chat_template\":\"{%% for message in messages %%}{{'<|im_start|>' + message['role'] + '\\\\n' + "
                  "message['content'] + '<|im_end|>' + '\\\\n'}}{%% endfor %%}{%% if add_generation_prompt %%}"
                  "{{ '<|im_start|>assistant\\\\n' }}{%% endif %%}\",\n"
                  "\"tokenizer_class\":\"PreTrainedTokenizerFast\"}\n");
    finish(file);
}

// ---- public ----

struct tiny_model tiny_model_spec(const char *family)
{
    return (struct tiny_model){.family = family,
                               .seed = 1,
                               .n_layers = 2,
                               .hidden = 64,
                               .intermediate = 96,
                               .n_heads = 8,
                               .n_kv_heads = 4,
                               .head_size = 16,
                               .vocab_size = 272,
                               .max_context = 512,
                               .dtype = DTYPE_F32,
                               .n_shards = 1};
}

void tiny_model_write(const char *dir, const struct tiny_model *spec)
{
    if (mkdir(dir, 0777) != 0 && errno != EEXIST) {
        fprintf(stderr, "tiny_model: %s: %s\n", dir, strerror(errno));
        abort();
    }
    if (spec->tokenizer && spec->vocab_size < TINY_TOKENIZER_SIZE) {
        fprintf(stderr, "tiny_model: vocab_size %d: the tokenizer has %d tokens\n", spec->vocab_size,
                TINY_TOKENIZER_SIZE);
        abort();
    }
    write_config(dir, spec);
    write_weights(dir, spec);
    if (spec->tokenizer) write_tokenizer(dir);
}

char *tiny_model_temp(const struct tiny_model *spec)
{
    const char *tmp = getenv("TMPDIR");
    char *dir = mem_format("%s/forepack-tiny-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(dir)) {
        fprintf(stderr, "tiny_model: %s: %s\n", dir, strerror(errno));
        abort();
    }
    tiny_model_write(dir, spec);
    return dir;
}

void tiny_model_remove(char *dir)
{
    DIR *folder = opendir(dir);
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        char *path = mem_format("%s/%s", dir, entry->d_name);
        unlink(path); // refuses "." and ".."
        free(path);
    }
    if (folder) closedir(folder);
    rmdir(dir);
    free(dir);
}
