// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/json_generation.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/text/generation_json.h"
#include "lib/text/grammar_json.h"
#include "lib/text/grammar_message.h"
#include "lib/text/logit_bias_entries.h"
#include "router/front/http/json_body.h"

struct values {
    const char *model, *tenant, *cache_salt, *user, *prefill, *drafts;
    bool stream, include_usage, continuous_usage, return_kept, return_token_ids, explain, resumable;
    const char *last_event_id;
    const json_t *resume_token_ids;
    int64_t n, best_of, priority, ttft_deadline_ms;
    const json_t *stream_options, *stop, *stop_token_ids, *max_completion_tokens, *logit_bias, *pinned;
};

#define FIELD(name_, type_, ...)                                                                                       \
    {                                                                                                                  \
        .name = #name_, .type = JSON_FIELD_##type_, .offset = offsetof(struct values, name_), __VA_ARGS__              \
    }
// clang-format off
static const struct json_field fields[] = {
    FIELD(model, NAME),
    FIELD(stream, BOOL),
    FIELD(stream_options, OBJECT),
    FIELD(n, INT, .min = 1, .max = JSON_CHOICES_MAX),
    FIELD(best_of, INT, .min = 1, .max = JSON_CHOICES_MAX),
    FIELD(stop, ANY),
    FIELD(stop_token_ids, ANY),
    FIELD(max_completion_tokens, ANY),
    FIELD(logit_bias, ANY),
    FIELD(user, NAME),
    FIELD(tenant, NAME),
    FIELD(cache_salt, NAME),
    FIELD(priority, INT, .min = INT32_MIN, .max = INT32_MAX),
    FIELD(ttft_deadline_ms, INT, .min = 0, .max = UINT32_MAX),
    FIELD(prefill, NAME),
    FIELD(drafts, NAME),
    FIELD(pinned, LIST),
    FIELD(return_kept, BOOL),
    FIELD(return_token_ids, BOOL),
    FIELD(explain, BOOL),
    FIELD(resumable, BOOL),
    FIELD(last_event_id, NAME),
    FIELD(resume_token_ids, LIST),
    {0},
};
static const struct json_field stream_fields[] = {
    FIELD(include_usage, BOOL),
    {.name = "continuous_usage_stats", .type = JSON_FIELD_BOOL, .offset = offsetof(struct values, continuous_usage)},
    {0},
};

static const struct json_unsupported unsupported[] = {
    {"truncate_prompt_tokens", NULL, "shorten the prompt"},
    {"skip_special_tokens", "true", "ask for return_token_ids"},
    {"include_stop_str_in_output", "false", NULL},
    {"use_beam_search", "false", NULL},
    {"bad_words", "[]", NULL},
    {"allowed_token_ids", "[]", NULL},
    {"logits_processors", "[]", NULL},
    {0},
};
// clang-format on

// Hints and data for services that do not exist here, without effect.
static const char *const ignored[] = {
    "metadata", "prediction", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "service_tier",
    "store",    NULL};

static bool among(const struct generation_field *rows, const char *name)
{
    while (rows->name && strcmp(rows->name, name) != 0)
        rows++;
    return rows->name != NULL;
}

bool json_generation_knows(const char *name)
{
    return json_tables_name(fields, unsupported, name) || json_list_has(ignored, name) ||
           among(sampling_fields, name) || among(prefill_fields, name) || grammar_json_knows(name);
}

static bool given(const json_t *value)
{
    return value && !json_is_null(value);
}

// Reads the sampling field `f`, which has the name `name` in the body.
static enum status read_as(const struct generation_field *f, const char *name, const json_t *value,
                           struct json_generation *g)
{
    struct generation_field named = *f;
    named.name = name;
    g->sampling_given |= generation_field_bit(sampling_fields, f->name);
    return generation_field_from_json(&named, value, &g->sampling);
}

static const struct generation_field *sampling_field(const char *name)
{
    const struct generation_field *f = sampling_fields;
    while (strcmp(f->name, name) != 0)
        f++;
    return f;
}

enum status json_generation_set_logprobs(struct json_generation *g, const char *name, int n)
{
    struct generation_field named = *sampling_field("logprobs");
    g->sampling.logprobs = n;
    g->sampling_given |= generation_field_bit(sampling_fields, named.name);
    named.name = name;
    return generation_field_check(&named, n);
}

void json_generation_set_prompt_logprobs(struct json_generation *g, int n)
{
    g->sampling.prompt_logprobs = n;
    g->sampling_given |= generation_field_bit(sampling_fields, "prompt_logprobs");
}

// json_generation_finish() refuses max_tokens 0 unless the API allows it.
static enum status read_max_tokens(const json_t *value, struct json_generation *g)
{
    json_int_t number;
    g->sampling.no_output = json_whole(value, &number) && number == 0;
    if (!g->sampling.no_output) return read_as(sampling_field("max_tokens"), "max_tokens", value, g);
    g->sampling.max_tokens = 1;
    g->sampling_given |= generation_field_bit(sampling_fields, "max_tokens");
    return STATUS_OK;
}

// The limit is OpenAI's. gRPC has a higher one.
static enum status check_temperature(double temperature)
{
    struct generation_field limited = *sampling_field("temperature");
    limited.max = 2;
    return generation_field_check(&limited, temperature);
}

// OpenAI's API accepts top_p 0, which leaves only the most likely token. This is top_k 1 here.
static void read_top_p_zero(struct json_generation *g)
{
    if (g->sampling.top_p != 0) return;
    g->sampling.top_p = 1;
    g->sampling.top_k = 1;
    g->sampling_given |= generation_field_bit(sampling_fields, "top_k");
}

static enum status read_sampling(const json_t *body, const struct values *v, struct json_generation *g)
{
    const json_names names = json_names_of(body);
    sampling_defaults(&g->sampling);
    g->sampling.temperature = 1;
    g->sampling_given = generation_field_bit(sampling_fields, "temperature");
    for (const struct generation_field *f = sampling_fields; f->name; f++) {
        const json_t *value = json_names_get(names, body, f->name);
        if (!given(value) || strcmp(f->name, "logprobs") == 0) continue;
        TRY(strcmp(f->name, "max_tokens") ? read_as(f, f->name, value, g) : read_max_tokens(value, g));
    }
    if (g->sampling.top_k == -1) g->sampling.top_k = 0; // "all", as in vLLM
    TRY(check_temperature(g->sampling.temperature));
    read_top_p_zero(g);
    const json_t *newer = v->max_completion_tokens;
    if (!newer) return STATUS_OK;
    g->sampling.no_output = false;
    return read_as(sampling_field("max_tokens"), "max_completion_tokens", newer, g);
}

static enum status read_stop(const json_t *value, struct json_generation *g)
{
    static const char expected[] = "a string or a list of strings";
    bool list = json_is_array(value);
    if (!list && !json_is_string(value)) return json_refuse_type("stop", expected);
    size_t n = list ? json_array_size(value) : 1;
    g->stop = mem_alloc_array(n + 1, sizeof *g->stop);
    for (size_t i = 0; i < n; i++) {
        const json_t *item = list ? json_array_get(value, i) : value;
        if (!json_is_string(item)) return json_refuse_type("stop", expected);
        g->stop[i] = (ProtobufCBinaryData){json_string_length(item), (uint8_t *)json_string_value(item)};
    }
    g->sampling_options.stop = g->stop;
    g->sampling_options.n_stop = n;
    return STATUS_OK;
}

static enum status read_logit_bias(const json_t *value, struct json_generation *g)
{
    TRY(sampling_logit_bias_from_json(value, &g->sampling));
    g->logit_bias = logit_bias_entries(&g->sampling.logit_bias);
    g->sampling_options.logit_bias = g->logit_bias;
    g->sampling_options.n_logit_bias = (size_t)g->sampling.logit_bias.n;
    return STATUS_OK;
}

static enum status read_range(const json_t *value, Forepack__V1__TokenRange *range)
{
    json_int_t first, last;
    bool whole = json_array_size(value) == 2 && json_whole(json_array_get(value, 0), &first) &&
                 json_whole(json_array_get(value, 1), &last);
    if (!whole || first < 0 || last < 0 || first > UINT32_MAX || last > UINT32_MAX)
        return json_refuse_type("pinned", "a list of [first, last] token ranges");
    forepack__v1__token_range__init(range);
    range->first = (uint32_t)first;
    range->last = (uint32_t)last;
    return STATUS_OK;
}

static enum status read_pinned(const json_t *list, struct json_generation *g)
{
    size_t n = json_array_size(list);
    g->pinned = mem_alloc_array(n + 1, sizeof *g->pinned);
    g->pinned_list = mem_alloc_array(n + 1, sizeof *g->pinned_list);
    for (size_t i = 0; i < n; i++) {
        g->pinned_list[i] = &g->pinned[i];
        TRY(read_range(json_array_get(list, i), &g->pinned[i]));
    }
    g->prefill_options.pinned = g->pinned_list;
    g->prefill_options.n_pinned = n;
    return STATUS_OK;
}

static enum status read_prefill_mode(const char *name, Forepack__V1__PrefillMode *mode_p)
{
    static const Forepack__V1__PrefillMode modes[] = {
        [PREFILL_AUTO] = FOREPACK__V1__PREFILL_MODE__PREFILL_MODE_AUTO,
        [PREFILL_ON] = FOREPACK__V1__PREFILL_MODE__PREFILL_MODE_ON,
        [PREFILL_OFF] = FOREPACK__V1__PREFILL_MODE__PREFILL_MODE_OFF,
        [PREFILL_REQUIRED] = FOREPACK__V1__PREFILL_MODE__PREFILL_MODE_REQUIRED,
    };
    enum prefill_mode mode;
    if (!prefill_mode_parse(name, &mode)) return json_refuse_type("prefill", "auto, on, off or required");
    *mode_p = modes[mode];
    return STATUS_OK;
}

static enum status read_draft_mode(const char *name, Forepack__V1__DraftMode *mode_p)
{
    enum draft_mode mode;
    if (!draft_mode_parse(name, &mode)) return json_refuse_type("drafts", "auto or off");
    *mode_p = mode == DRAFTS_OFF ? FOREPACK__V1__DRAFT_MODE__DRAFT_MODE_OFF : FOREPACK__V1__DRAFT_MODE__DRAFT_MODE_AUTO;
    return STATUS_OK;
}

static enum status read_prefill(const json_t *body, const struct values *v, struct json_generation *g)
{
    const json_names names = json_names_of(body);
    struct prefill prefill;
    generation_given fields_given = 0;
    prefill_defaults(&prefill);
    for (const struct generation_field *f = prefill_fields; f->name; f++) {
        const json_t *value = json_names_get(names, body, f->name);
        if (!given(value)) continue;
        TRY(generation_field_from_json(f, value, &prefill));
        fields_given |= generation_field_bit(prefill_fields, f->name);
    }
    TRY(prefill_check(&prefill));
    prefill_to_message(&prefill, fields_given, &g->prefill_options.base);
    g->prefill_options.return_kept = v->return_kept;
    if (v->prefill) TRY(read_prefill_mode(v->prefill, &g->prefill_options.mode));
    if (v->drafts) TRY(read_draft_mode(v->drafts, &g->prefill_options.drafts));
    return v->pinned ? read_pinned(v->pinned, g) : STATUS_OK;
}

static enum status read_values(const json_t *body, struct values *v)
{
    TRY(json_fields_read(body, fields, v));
    if (v->best_of > v->n)
        return status_fail(STATUS_UNSUPPORTED, "best_of %lld: not supported over n (%lld): leave it out",
                           (long long)v->best_of, (long long)v->n);
    return v->stream_options ? json_fields_read(v->stream_options, stream_fields, v) : STATUS_OK;
}

static void set_values(const struct values *v, struct json_generation *g)
{
    g->message.model = (char *)(v->model ? v->model : "");
    g->message.tenant = (char *)(v->tenant ? v->tenant : "");
    g->message.cache_salt = (char *)(v->cache_salt ? v->cache_salt : "");
    g->message.priority = (int32_t)v->priority;
    g->message.ttft_deadline_ms = (uint32_t)v->ttft_deadline_ms;
    g->message.explain = v->explain;
    g->stream = v->stream;
    g->include_usage = v->include_usage || v->continuous_usage;
    g->continuous_usage = v->continuous_usage;
    g->return_token_ids = v->return_token_ids;
    g->resumable = v->resumable;
    g->last_event_id = v->last_event_id;
    g->resume_token_ids = v->resume_token_ids;
    g->n = (int)v->n;
}

enum status json_generation_read(const json_t *body, struct json_generation *g)
{
    *g = (struct json_generation){0};
    forepack__v1__generate_request__init(&g->message);
    forepack__v1__sampling_options__init(&g->sampling_options);
    forepack__v1__prefill_options__init(&g->prefill_options);
    g->message.sampling = &g->sampling_options;
    g->message.prefill = &g->prefill_options;
    struct values v = {.n = 1};
    TRY(json_unsupported_check(body, unsupported));
    TRY(read_values(body, &v));
    set_values(&v, g);
    TRY(read_sampling(body, &v, g));
    if (v.stop) TRY(read_stop(v.stop, g));
    if (v.logit_bias) TRY(read_logit_bias(v.logit_bias, g));
    TRY(grammar_from_json(body, &g->sampling.grammar));
    grammar_to_message(&g->sampling.grammar, &g->sampling_options);
    if (v.stop_token_ids) TRY(sampling_stop_ids_from_json(v.stop_token_ids, &g->sampling));
    return read_prefill(body, &v, g);
}

enum status json_generation_finish(struct json_generation *g)
{
    if (g->sampling.no_output && !g->allows_no_output) return generation_field_check(sampling_field("max_tokens"), 0);
    TRY(sampling_check(&g->sampling, INT_MAX)); // wire_request_read() checks against the vocabulary
    sampling_to_message(&g->sampling, g->sampling_given, &g->sampling_options.base);
    return STATUS_OK;
}

void json_generation_fini(struct json_generation *g)
{
    free(g->stop);
    free(g->logit_bias);
    logit_bias_free(&g->sampling.logit_bias);
    grammar_spec_free(&g->sampling.grammar);
    free(g->pinned);
    free(g->pinned_list);
}
