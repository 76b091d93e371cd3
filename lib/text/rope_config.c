// SPDX-License-Identifier: Apache-2.0
#include "lib/text/rope_config.h"

#include <math.h>
#include <string.h>

#include "lib/text/json_file.h"

enum { MAX_CONTEXT = 1 << 24 };
static const double MAX_FACTOR = 1e6;

static double read_factor(struct config_reader *r, double min)
{
    if (!config_reader_get(r, "factor"))
        config_reader_fail(r, STATUS_DATA, "factor", "is missing: this rope_type needs it");
    const double factor = config_read_real(r, "factor", 0, MAX_FACTOR, 1);
    if (factor < min) config_reader_fail(r, STATUS_DATA, "factor", "is %g: must be %g or more", factor, min);
    return factor;
}

// Reads attention_factor, or returns `absent`.
static double read_attention_factor(struct config_reader *r, double absent)
{
    return config_read_real(r, "attention_factor", 0, MAX_FACTOR, absent);
}

static int context_times(int context, double factor)
{
    return (int)fmin(context * factor, MAX_CONTEXT);
}

// ---- the types ----

static void read_llama3(struct config_reader *r, struct rope_config *rope)
{
    static const char *const needed[] = {"low_freq_factor", "high_freq_factor"};
    rope->factor = read_factor(r, 1);
    for (int i = 0; i < 2; i++)
        if (!config_reader_get(r, needed[i]))
            config_reader_fail(r, STATUS_DATA, needed[i], "is missing: rope_type llama3 needs it");
    rope->low_freq_factor = config_read_real(r, "low_freq_factor", 0, MAX_FACTOR, 1);
    rope->high_freq_factor = config_read_real(r, "high_freq_factor", 0, MAX_FACTOR, 4);
    if (rope->high_freq_factor <= rope->low_freq_factor)
        config_reader_fail(r, STATUS_DATA, "high_freq_factor", "is %g: must be over low_freq_factor, which is %g",
                           rope->high_freq_factor, rope->low_freq_factor);
}

static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static void read_yarn(struct config_reader *r, int *context_p, struct rope_config *rope)
{
    rope->factor = read_factor(r, 1);
    const double mscale = config_read_real(r, "mscale", -MAX_FACTOR, MAX_FACTOR, 0);
    const double all = config_read_real(r, "mscale_all_dim", -MAX_FACTOR, MAX_FACTOR, 0);
    const double both = yarn_mscale(rope->factor, mscale) / yarn_mscale(rope->factor, all);
    const double absent = mscale != 0 && all != 0 ? both : yarn_mscale(rope->factor, 1);
    rope->attention_factor = read_attention_factor(r, absent);
    if (!(rope->attention_factor > 0 && rope->attention_factor <= MAX_FACTOR))
        config_reader_fail(r, STATUS_DATA, "mscale", "and mscale_all_dim give the attention factor %g: must be over 0",
                           rope->attention_factor);
    rope->beta_fast = config_read_real(r, "beta_fast", 0, MAX_FACTOR, 32);
    rope->beta_slow = config_read_real(r, "beta_slow", 0, MAX_FACTOR, 1);
    rope->truncate = config_read_bool(r, "truncate", true);
    if (rope->theta <= 1)
        config_reader_fail(r, STATUS_DATA, "rope_theta", "is %g: yarn needs more than 1", rope->theta);
    *context_p = context_times(rope->original_context, rope->factor);
}

static void read_factors(struct config_reader *r, const char *key, int pairs, float *factors)
{
    const json_t *list = config_reader_get(r, key);
    if (r->status == STATUS_OK && json_array_size(list) != (size_t)pairs)
        config_reader_fail(r, STATUS_DATA, key,
                           "must be an array of %d numbers, one for each pair of dims that rotates", pairs);
    for (int i = 0; i < pairs && r->status == STATUS_OK; i++) {
        const json_t *value = json_array_get(list, (size_t)i);
        const double factor = json_is_number(value) ? json_number_value(value) : 0;
        if (!(factor > 1 / MAX_FACTOR && factor <= MAX_FACTOR))
            config_reader_fail(r, STATUS_DATA, key, "has an entry %d that is not a number over 0, at most %g", i,
                               MAX_FACTOR);
        factors[i] = (float)factor;
    }
}

static void read_longrope(struct config_reader *r, int context, struct rope_config *rope)
{
    const double ratio = (double)context / rope->original_context;
    rope->factor = config_read_real(r, "factor", 0, MAX_FACTOR, ratio);
    double absent = 1;
    if (rope->factor > 1 && rope->original_context > 1)
        absent = sqrt(1 + log(rope->factor) / log(rope->original_context));
    rope->attention_factor = read_attention_factor(r, absent);
    read_factors(r, "short_factor", rope->dims / 2, rope->short_factor);
    read_factors(r, "long_factor", rope->dims / 2, rope->long_factor);
}

// ---- the object ----

// Refuses members that change the computation in families which this program does not have, and Ministral's
// llama_4_scaling_beta in other families.
static void check_foreign_members(struct config_reader *r, const struct rope_family *family)
{
    static const char *const foreign[] = {"llama_4_scaling_beta", "short_mscale", "long_mscale", "alpha",
                                          "mrope_section"};
    for (size_t i = family->query_scale; i < sizeof foreign / sizeof foreign[0]; i++)
        if (config_reader_get(r, foreign[i]))
            config_reader_fail(r, STATUS_UNSUPPORTED, foreign[i], "is set: this architecture has no such setting");
}

// Refuses members that need a rope type if the file has no type, because versions of transformers interpret them
// differently. Refuses members that are objects: they hold the settings of one layer type.
static void check_members(struct config_reader *r, bool has_type)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)r->object, name, value)
    {
        const bool plain = strcmp(name, "rope_theta") == 0 || strcmp(name, "partial_rotary_factor") == 0 ||
                           strcmp(name, "original_max_position_embeddings") == 0 ||
                           strcmp(name, "max_position_embeddings") == 0 || strcmp(name, "llama_4_scaling_beta") == 0;
        if (json_is_object(value))
            config_reader_fail(r, STATUS_UNSUPPORTED, name, "is an object: all layers must have the same positions");
        else if (!has_type && !plain && !json_is_null(value))
            config_reader_fail(r, STATUS_DATA, name, "is given without rope_type: add rope_type");
    }
}

static void find_type(struct config_reader *r, const struct rope_family *family, struct rope_config *rope)
{
    static const char *const names[] = {"default", "linear", "dynamic", "llama3", "yarn", "longrope"};
    const char *key = config_reader_get(r, "rope_type") ? "rope_type" : "type", *type = config_read_string(r, key);
    check_members(r, type != NULL);
    if (!type) return;
    const char *name = type;
    if (family->longrope_only && (strcmp(type, "su") == 0 || strcmp(type, "yarn") == 0)) name = "longrope";
    int i = 0;
    while (i < 6 && strcmp(name, names[i]) != 0)
        i++;
    if (i < 6 && (!family->longrope_only || i == ROPE_DEFAULT || i == ROPE_LONGROPE)) {
        rope->type = (enum rope_type)i;
        return;
    }
    config_reader_fail(r, STATUS_UNSUPPORTED, "rope_type", "is %.60s: only %s are supported", type,
                       family->longrope_only ? "default and longrope"
                                             : "default, linear, dynamic, llama3, yarn and longrope");
}

// `original` is original_max_position_embeddings at the top of the file, or 0 if it is absent there.
static void read_type(struct config_reader *r, const struct rope_family *family, int original, int *context_p,
                      struct rope_config *rope)
{
    find_type(r, family, rope);
    if (rope->type == ROPE_DEFAULT) return;
    const int nested = config_read_int(r, "original_max_position_embeddings", 1, MAX_CONTEXT, *context_p);
    if (rope->type != ROPE_LINEAR) rope->original_context = original ? original : nested;
    switch (rope->type) {
    case ROPE_DEFAULT: break;
    case ROPE_LINEAR:
        rope->factor = read_factor(r, 0);
        if (rope->factor > 1) *context_p = context_times(*context_p, rope->factor);
        break;
    case ROPE_DYNAMIC:
        rope->factor = read_factor(r, 1);
        rope->original_context = *context_p;
        *context_p = context_times(*context_p, rope->factor);
        if (rope->dims < 4)
            config_reader_fail(r, STATUS_DATA, "rope_type", "is dynamic: it needs heads of 4 dims or more");
        break;
    case ROPE_LLAMA3: read_llama3(r, rope); break;
    case ROPE_YARN: read_yarn(r, context_p, rope); break;
    case ROPE_LONGROPE: read_longrope(r, *context_p, rope); break;
    }
}

static void read_partial(struct config_reader *r, const struct rope_family *family, int head_size,
                         struct rope_config *rope)
{
    const double factor = config_read_real(r, "partial_rotary_factor", 0, 1, -1);
    const int dims = (int)(head_size * factor);
    if (factor < 0) return; // absent
    if (factor < 1 && !family->partial)
        config_reader_fail(r, STATUS_UNSUPPORTED, "partial_rotary_factor",
                           "is under 1: this architecture rotates whole heads");
    else if (dims < 2 || dims % 2)
        config_reader_fail(r, STATUS_DATA, "partial_rotary_factor",
                           "is %g: %d of %d dims of a head would rotate, which must be an even number", factor, dims,
                           head_size);
    rope->dims = dims;
}

static void read_query_scale(struct config_reader *r, int original, struct rope_config *rope)
{
    static const char key[] = "llama_4_scaling_beta";
    if (!config_reader_get(r, key)) config_reader_fail(r, STATUS_DATA, key, "is missing: this architecture needs it");
    rope->query_beta = config_read_real(r, key, -MAX_FACTOR, MAX_FACTOR, 0);
    rope->query_context = config_read_int(r, "original_max_position_embeddings", 1, MAX_CONTEXT, original);
    if (original) rope->query_context = original;
    if (!rope->query_context)
        config_reader_fail(r, STATUS_DATA, "original_max_position_embeddings", "is missing: %s needs it", key);
}

static void read_object(struct config_reader *r, const struct rope_family *family, int head_size, int original,
                        int *context_p, struct rope_config *rope)
{
    rope->theta = config_read_real(r, "rope_theta", 0, 1e12, rope->theta);
    read_partial(r, family, head_size, rope);
    check_foreign_members(r, family);
    if (family->query_scale) read_query_scale(r, original, rope);
    if (r->status == STATUS_OK) read_type(r, family, original, context_p, rope);
}

// Older files have rope_theta, and rope_scaling {type or rope_type, ...}. Newer files have these settings in
// rope_parameters. If a file has rope_scaling and rope_parameters, transformers uses only rope_scaling, unless
// rope_scaling is empty.
void rope_config_read(struct config_reader *r, const struct rope_family *family, int head_size, int *context_p,
                      struct rope_config *rope)
{
    const json_t *scaling = config_reader_get(r, "rope_scaling");
    const bool is_old = scaling && !(json_is_object(scaling) && json_object_size(scaling) == 0);
    const char *key = is_old ? "rope_scaling" : "rope_parameters";
    const json_t *object = config_reader_get(r, key);
    const int original =
        config_read_int(r, "original_max_position_embeddings", 1, MAX_CONTEXT, family->default_original);
    *rope = (struct rope_config){.dims = head_size, .attention_factor = 1};
    rope->theta = config_read_real(r, "rope_theta", 0, 1e12, family->default_theta);
    read_partial(r, family, head_size, rope);
    json_t *absent = json_loads(family->default_object ? family->default_object : "{}", 0, NULL);
    if (r->status == STATUS_OK && object && !json_is_object(object))
        config_reader_fail(r, STATUS_DATA, key, "is %s: must be an object", json_type_name(object));
    struct config_reader inner = {.path = r->path,
                                  .prefix = is_old ? "rope_scaling." : "rope_parameters.",
                                  .object = object ? object : absent,
                                  .status = r->status};
    read_object(&inner, family, head_size, original, context_p, rope);
    r->status = inner.status;
    json_decref(absent);
}

// ---- frequencies ----

uint64_t rope_config_salt(const struct rope_config *rope, int length)
{
    if (length <= rope->original_context) return 0;
    return rope->type == ROPE_LONGROPE ? 1 : rope->type == ROPE_DYNAMIC ? (uint64_t)length : 0;
}

// A frequency whose wavelength is longer than the original context is divided by `factor`. A frequency with a short
// wavelength stays. A linear ramp joins the two ranges.
static double llama3_frequency(const struct rope_config *rope, double frequency)
{
    const double turns = rope->original_context * frequency / (2 * M_PI); // rotations within the original context
    const double low = rope->low_freq_factor, high = rope->high_freq_factor;
    const double keep = fmin(fmax((turns - low) / (high - low), 0), 1);
    return frequency * (keep + (1 - keep) / rope->factor);
}

// Returns the index of the pair that turns `turns` times within the original context.
static double yarn_pair(const struct rope_config *rope, double turns)
{
    return rope->dims * log(rope->original_context / (turns * 2 * M_PI)) / (2 * log(rope->theta));
}

// Divides the frequencies of slow pairs by `factor`, keeps the frequencies of fast pairs, and joins both by a linear
// ramp. Each step is rounded to f32 as in transformers: at high positions one unit in the last place changes an angle
// visibly.
static float yarn_frequency(const struct rope_config *rope, int pair, float power)
{
    double low = yarn_pair(rope, rope->beta_fast), high = yarn_pair(rope, rope->beta_slow);
    if (rope->truncate) low = floor(low), high = ceil(high);
    low = fmax(low, 0), high = fmin(high, rope->dims - 1);
    if (low == high) high += 0.001; // as in transformers
    const float ramp = fminf(fmaxf(((float)pair - (float)low) / (float)(high - low), 0), 1), fast = 1 - ramp;
    return 1 / ((float)rope->factor * power) * (1 - fast) + 1 / power * fast;
}

void rope_config_frequencies(const struct rope_config *rope, bool longer, float *inv_freq)
{
    const float *factors = longer ? rope->long_factor : rope->short_factor;
    for (int i = 0; i < rope->dims / 2; i++) {
        const float power = (float)pow((float)rope->theta, (float)(2 * i) / (float)rope->dims), frequency = 1 / power;
        switch (rope->type) {
        case ROPE_DEFAULT:
        case ROPE_DYNAMIC: inv_freq[i] = frequency; break;
        case ROPE_LINEAR: inv_freq[i] = frequency / (float)rope->factor; break;
        case ROPE_LLAMA3: inv_freq[i] = (float)llama3_frequency(rope, frequency); break;
        case ROPE_YARN: inv_freq[i] = yarn_frequency(rope, i, power); break;
        case ROPE_LONGROPE: inv_freq[i] = 1 / (factors[i] * power); break;
        }
    }
}
