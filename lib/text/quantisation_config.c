// SPDX-License-Identifier: Apache-2.0
#include "lib/text/quantisation_config.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "lib/base/mem.h"
#include "lib/text/json_file.h"

static const char readable[] =
    "FP8 weights (e4m3 with one scale for a matrix, for each output or for each block of 128 x 128) as "
    "compressed-tensors, fp8 or fbgemm_fp8 store them, INT8 weights with one scale for each output as "
    "compressed-tensors stores them, and weights of 4 bits in groups of 128 as awq, gptq or compressed-tensors store "
    "them";

enum {
    BLOCK = 128,
    GROUP = 128,
    BITS = 4,
    MAX_EXCLUDED = 1 << 16 // names in one list. With MODEL_MAX_LAYERS, the counts of three lists fit an int
};

// Reads the rows and columns of a block, which must be [128, 128].
static void read_block(struct config_reader *r, const char *key, struct model_config *c)
{
    const json_t *size = config_reader_get(r, key);
    const bool fits = json_array_size(size) == 2 && json_integer_value(json_array_get(size, 0)) == BLOCK &&
                      json_integer_value(json_array_get(size, 1)) == BLOCK;
    if (!fits)
        config_reader_fail(r, STATUS_UNSUPPORTED, key, "is not [%d, %d]: this program reads %s", BLOCK, BLOCK,
                           readable);
    c->fp8_block = BLOCK;
}

static void expect_string(struct config_reader *r, const char *key, const char *value, const char *a, const char *b)
{
    if (!value || (strcmp(value, a) != 0 && strcmp(value, b) != 0))
        config_reader_fail(r, STATUS_UNSUPPORTED, key, "is %.60s: this program reads %s", value ? value : "missing",
                           readable);
}

// Refuses any value of the key but `wanted`.
static void expect_number(struct config_reader *r, const char *key, int wanted)
{
    const int value = config_read_int(r, key, INT32_MIN, INT32_MAX, 0);
    if (value != wanted)
        config_reader_fail(r, STATUS_UNSUPPORTED, key, "is %d: this program reads %s", value, readable);
}

// ---- compressed-tensors ----

static void read_float_group(struct config_reader *r, struct model_config *c, bool symmetric)
{
    expect_string(r, "weights.type", config_read_string(r, "type"), "float", "float");
    const char *strategy = config_read_string(r, "strategy");
    if (strategy && strcmp(strategy, "block") == 0)
        read_block(r, "block_structure", c);
    else
        expect_string(r, "weights.strategy", strategy, "tensor", "channel");
    int bits = config_read_int(r, "num_bits", 1, 64, 0);
    if (bits != 8 || !symmetric)
        config_reader_fail(r, STATUS_UNSUPPORTED, "weights", "are of %d bits, %s: this program reads %s", bits,
                           symmetric ? "symmetric" : "not symmetric", readable);
}

static void read_int8_group(struct config_reader *r, bool symmetric)
{
    expect_string(r, "weights.type", config_read_string(r, "type"), "int", "int");
    expect_string(r, "weights.strategy", config_read_string(r, "strategy"), "channel", "tensor");
    expect_number(r, "num_bits", 8);
    if (!symmetric)
        config_reader_fail(r, STATUS_UNSUPPORTED, "weights", "are not symmetric: this program reads %s", readable);
}

static void read_int4_group(struct config_reader *r, struct model_config *c, bool symmetric)
{
    expect_string(r, "weights.type", config_read_string(r, "type"), "int", "int");
    expect_string(r, "weights.strategy", config_read_string(r, "strategy"), "group", "group");
    expect_number(r, "num_bits", BITS);
    expect_number(r, "group_size", GROUP);
    c->has_zeros = c->has_zeros || !symmetric;
    c->some_zeros = c->some_zeros || symmetric;
}

// Checks how a group of compressed-tensors stores its weights. The classes and patterns by which a group selects
// matrices are not needed: the loader looks at the dtype of each tensor.
static void read_group(struct config_reader *r, struct model_config *c)
{
    const json_t *weights = json_object_get(r->object, "weights");
    if (!json_is_object(weights)) {
        config_reader_fail(r, STATUS_UNSUPPORTED, "weights", "is %s: this program reads %s",
                           weights ? json_type_name(weights) : "missing", readable);
        return;
    }
    r->object = weights;
    const bool symmetric = config_read_bool(r, "symmetric", true);
    switch (c->stored) {
    case STORED_INT8: read_int8_group(r, symmetric); break;
    case STORED_PACKED: read_int4_group(r, c, symmetric); break;
    default: read_float_group(r, c, symmetric); break;
    }
}

static enum stored_weights read_format(struct config_reader *r)
{
    const char *format = config_read_string(r, "format");
    if (format && strcmp(format, "int-quantized") == 0) return STORED_INT8;
    if (format && strcmp(format, "pack-quantized") == 0) return STORED_PACKED;
    expect_string(r, "format", format, "float-quantized", "naive-quantized");
    return STORED_FP8;
}

static void read_compressed_tensors(struct config_reader *r, struct model_config *c)
{
    const json_t *groups = config_reader_get(r, "config_groups"), *rotations = config_reader_get(r, "transform_config");
    const char *name;
    json_t *group;
    c->stored = read_format(r);
    if (!json_is_object(groups) || !json_object_size(groups))
        config_reader_fail(r, STATUS_DATA, "config_groups", "must be an object of one group or more");
    if (json_object_size(rotations))
        config_reader_fail(r, STATUS_UNSUPPORTED, "transform_config", "is set: activations are not rotated here");
    json_object_foreach((json_t *)groups, name, group)
    {
        char *prefix = mem_format("%sconfig_groups.%.40s.", r->prefix, name);
        struct config_reader g = {.path = r->path, .prefix = prefix, .object = group, .status = r->status};
        if (r->status == STATUS_OK) read_group(&g, c);
        r->status = g.status;
        free(prefix);
    }
}

// ---- awq and gptq ----

// Returns the first of two keys that is there.
static const char *either_key(const struct config_reader *r, const char *a, const char *b)
{
    return config_reader_get(r, a) ? a : config_reader_get(r, b) ? b : a;
}

static void read_awq(struct config_reader *r, struct model_config *c)
{
    c->stored = STORED_AWQ;
    c->has_zeros = true;
    expect_number(r, either_key(r, "bits", "w_bit"), BITS);
    expect_number(r, either_key(r, "group_size", "q_group_size"), GROUP);
    const char *version = config_read_string(r, "version");
    if (version && strcasecmp(version, "gemm") != 0)
        config_reader_fail(r, STATUS_UNSUPPORTED, "version", "is %.60s: this program reads awq of version gemm",
                           version);
    if (!config_read_bool(r, "zero_point", true))
        config_reader_fail(r, STATUS_UNSUPPORTED, "zero_point", "is false: this program reads awq with zeros");
}

// Refuses settings of single modules. An excluded module (a key that starts with "-:") is stored in 16 bits.
static void check_gptq_modules(struct config_reader *r)
{
    const char *pattern;
    json_t *settings;
    json_object_foreach((json_t *)config_reader_get(r, "dynamic"), pattern, settings)
    {
        if (strncmp(pattern, "-:", 2) != 0)
            config_reader_fail(
                r, STATUS_UNSUPPORTED, "dynamic",
                "has settings for %.60s: this program reads gptq with the same settings for all matrices", pattern);
    }
}

static void read_gptq(struct config_reader *r, struct model_config *c)
{
    c->stored = STORED_GPTQ;
    c->has_zeros = true;
    expect_number(r, "bits", BITS);
    expect_number(r, "group_size", GROUP);
    const char *format = config_read_string(r, "checkpoint_format");
    const bool second = format && strcmp(format, "gptq_v2") == 0;
    if (format && !second && strcmp(format, "gptq") != 0)
        config_reader_fail(r, STATUS_UNSUPPORTED, "checkpoint_format", "is %.60s: this program reads gptq and gptq_v2",
                           format);
    if (config_read_bool(r, "is_marlin_format", false))
        config_reader_fail(r, STATUS_UNSUPPORTED, "is_marlin_format", "is true: this program reads gptq and gptq_v2");
    c->zero_added = !second;
    c->reordered = config_read_bool(r, "desc_act", false);
    check_gptq_modules(r);
}

// ---- all methods ----

// Counts the matrices of all layers that a list of names or patterns ("re:...") excludes from quantising. The count is
// exact enough for the memory plan; the loader looks at the tensors.
static void count_excluded(struct config_reader *r, const char *key, struct model_config *c)
{
    const json_t *list = config_reader_get(r, key);
    if (json_array_size(list) > MAX_EXCLUDED) {
        config_reader_fail(r, STATUS_DATA, key, "has %zu entries: at most %d", json_array_size(list), MAX_EXCLUDED);
        return;
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        if (!name) continue;
        bool all = strncmp(name, "re:", 3) == 0;
        if (strstr(name, "self_attn")) c->excluded_attention += all ? 4 * c->n_layers : 1;
        if (strstr(name, "mlp")) c->excluded_mlp += all ? 3 * c->n_layers : 1;
    }
}

static void read_method(struct config_reader *q, struct model_config *c)
{
    const char *method = config_read_string(q, "quant_method");
    if (!method && config_reader_get(q, "config_groups")) method = "compressed-tensors";
    c->stored = STORED_FP8;
    if (method && strcmp(method, "compressed-tensors") == 0) {
        read_compressed_tensors(q, c);
    } else if (method && strcmp(method, "fp8") == 0) {
        expect_string(q, "activation_scheme", config_read_string(q, "activation_scheme"), "static", "dynamic");
        if (config_reader_get(q, "weight_block_size")) read_block(q, "weight_block_size", c);
    } else if (method && strcmp(method, "awq") == 0) {
        read_awq(q, c);
    } else if (method && strcmp(method, "gptq") == 0) {
        read_gptq(q, c);
    } else {
        expect_string(q, "quant_method", method, "fbgemm_fp8", "fbgemm_fp8");
    }
}

void quantisation_config_read(struct config_reader *r, struct model_config *c)
{
    const char *key = config_reader_get(r, "compression_config") ? "compression_config"
                                                                 : "quantization_config"; // the older name wins
    const json_t *object = config_reader_get(r, key);
    if (!object || r->status != STATUS_OK) return;
    if (!json_is_object(object)) {
        config_reader_fail(r, STATUS_DATA, key, "is %s: must be an object", json_type_name(object));
        return;
    }
    char *prefix = mem_format("%s.", key);
    struct config_reader q = {.path = r->path, .prefix = prefix, .object = object};
    read_method(&q, c);
    static const char *const lists[] = {"ignore", "ignored_layers", "modules_to_not_convert"};
    for (int i = 0; i < 3; i++)
        count_excluded(&q, lists[i], c);
    free(prefix);
    r->status = q.status;
}
