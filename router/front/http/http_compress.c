// SPDX-License-Identifier: Apache-2.0
// POST /v1/compress answers with the messages or the prompt of the body, without the parts of their texts that a
// speculator finds least important. The fields of the answer include the fields of Headroom's endpoint of the same
// name, which LiteLLM and Portkey call.
#include <limits.h>
#include <string.h>

#include "lib/text/generation_json.h"
#include "router/front/grpc/wire_request.h"
#include "router/front/http/http_call.h"
#include "router/front/http/http_score.h"
#include "router/front/request/compress_job.h"

// --- the body

struct values {
    const json_t *prompt, *messages, *keep_rate, *quality, *config;
    const char *tenant, *cache_salt;
    int64_t token_budget, priority, ttft_deadline_ms;
    bool cut_system;
};

#define FIELD(name_, type_, ...)                                                                                       \
    {                                                                                                                  \
        .name = #name_, .type = JSON_FIELD_##type_, .offset = offsetof(struct values, name_), __VA_ARGS__              \
    }
// clang-format off
static const struct json_field fields[] = {
    FIELD(prompt, ANY),
    FIELD(messages, LIST),
    FIELD(keep_rate, ANY),
    FIELD(quality, ANY),
    FIELD(token_budget, INT, .min = 1, .max = INT_MAX),
    FIELD(config, OBJECT),
    FIELD(cut_system, BOOL),
    FIELD(tenant, NAME),
    FIELD(cache_salt, NAME),
    FIELD(priority, INT, .min = INT32_MIN, .max = INT32_MAX),
    FIELD(ttft_deadline_ms, INT, .min = 0, .max = UINT32_MAX),
    {0},
};
// clang-format on

// Reads the share `value` as the prefill field `name`, which is `shown` in error messages.
static enum status read_share(const char *name, const char *shown, const json_t *value, double *share_p)
{
    const struct generation_field *field = prefill_fields;
    while (strcmp(field->name, name) != 0)
        field++;
    struct prefill prefill;
    struct generation_field named = *field;
    named.name = shown;
    TRY(generation_field_from_json(&named, value, &prefill));
    *share_p = generation_field_number(&named, &prefill);
    return generation_field_check(&named, *share_p);
}

// Reads how much is kept. Headroom's config.target_ratio counts if the body has no field of Forepack for it.
static enum status read_goal(const struct values *v, Forepack__V1__CompressRequest *m)
{
    const json_t *ratio = json_object_get(v->config, "target_ratio");
    if (!!v->keep_rate + !!v->quality + !!v->token_budget > 1)
        return status_fail(STATUS_INVALID, "keep_rate, quality and token_budget exclude each other: give one of them");
    if (v->token_budget) {
        m->goal_case = FOREPACK__V1__COMPRESS_REQUEST__GOAL_TOKEN_BUDGET;
        m->token_budget = (uint32_t)v->token_budget;
    } else if (v->quality) {
        m->goal_case = FOREPACK__V1__COMPRESS_REQUEST__GOAL_QUALITY;
        return read_share("quality", "quality", v->quality, &m->quality);
    } else if (v->keep_rate || (ratio && !json_is_null(ratio))) {
        m->goal_case = FOREPACK__V1__COMPRESS_REQUEST__GOAL_KEEP_RATE;
        return v->keep_rate ? read_share("keep_rate", "keep_rate", v->keep_rate, &m->keep_rate)
                            : read_share("keep_rate", "config.target_ratio", ratio, &m->keep_rate);
    }
    return STATUS_OK;
}

static const struct json_unsupported unsupported[] = {{"stream", "false", NULL}, {0}};

static bool compress_knows(const char *name)
{
    return json_tables_name(fields, unsupported, name) || strcmp(name, "model") == 0;
}

static enum status compress_read(const json_t *body, struct http_input *in, struct answer *a)
{
    Forepack__V1__CompressRequest m = FOREPACK__V1__COMPRESS_REQUEST__INIT;
    struct values v = {.prompt = NULL};
    TRY(json_unsupported_check(body, unsupported));
    TRY(json_fields_read(body, fields, &v));
    if (!v.prompt == !v.messages) return status_fail(STATUS_INVALID, "prompt: give either prompt or messages");
    if (v.prompt && !json_is_string(v.prompt)) return json_refuse_type("prompt", "a string");
    TRY(read_goal(&v, &m));
    m.cut_system = v.cut_system;
    m.tenant = (char *)(v.tenant ? v.tenant : "");
    m.cache_salt = (char *)(v.cache_salt ? v.cache_salt : "");
    m.priority = (int32_t)v.priority;
    m.ttft_deadline_ms = (uint32_t)v.ttft_deadline_ms;
    TRY(client_check(a->client, m.tenant, m.priority));
    struct compression *c = NULL;
    enum status status =
        wire_compress_request_read(a->client, &m, (json_t *)(v.prompt ? v.prompt : v.messages), a->request, &c);
    a->data = c;
    return status;
}

// --- the answer

static void add_member(struct bytes *out, const char *name, double number)
{
    JSON_ADD(out, ",");
    json_add_string(out, name);
    JSON_ADD(out, ":");
    json_add_real(out, number);
}

static void add_text(struct bytes *out, const char *name, const char *text)
{
    JSON_ADD(out, ",");
    json_add_string(out, name);
    JSON_ADD(out, ":");
    json_add_string(out, text);
}

static void add_kept(struct bytes *out, const struct compress_text *text)
{
    json_add_comma(out);
    JSON_ADD(out, "{\"message\":");
    json_add_integer(out, text->message);
    if (text->part >= 0) add_member(out, "part", text->part);
    add_text(out, "rule", compress_rule_name(text->rule));
    JSON_ADD(out, ",\"ranges\":[");
    for (int k = 0; k < text->n_kept; k++) {
        json_add_comma(out);
        JSON_ADD(out, "[");
        json_add_integer(out, (int64_t)text->kept[k].start);
        JSON_ADD(out, ",");
        json_add_integer(out, (int64_t)text->kept[k].end);
        JSON_ADD(out, "]");
    }
    JSON_ADD(out, "]}");
}

static int dump(const char *bytes, size_t n, void *out)
{
    bytes_add(out, bytes, n);
    return 0;
}

static void compression_add(const struct compression *c, struct bytes *out)
{
    JSON_ADD(out, "{\"object\":\"compression\",");
    json_add_string(out, json_is_string(c->input) ? "prompt" : "messages");
    JSON_ADD(out, ":");
    json_dump_callback(c->input, dump, out, JSON_COMPACT | JSON_ENCODE_ANY);
    add_member(out, "tokens_before", c->tokens_before);
    add_member(out, "tokens_after", c->tokens_after);
    add_member(out, "tokens_saved", c->tokens_before - c->tokens_after);
    add_member(out, "compression_ratio", c->tokens_before ? (double)c->tokens_after / c->tokens_before : 1);
    JSON_ADD(out, ",\"transforms_applied\":[");
    if (c->tokens_after != c->tokens_before) json_add_string(out, "forepack");
    JSON_ADD(out, "],\"ccr_hashes\":[]");
    add_member(out, "keep_rate", c->keep_rate);
    add_text(out, "decided_by", c->decided_by);
    if (*c->limit) add_text(out, "prefill_limit", c->limit);
    add_member(out, "score_ms", c->score_ms);
    JSON_ADD(out, ",\"kept\":[");
    for (int i = 0; i < c->n_texts; i++)
        if (c->texts[i].rule != COMPRESS_CALL && c->texts[i].units.n) add_kept(out, &c->texts[i]);
    JSON_ADD(out, "]}");
}

static void compress_send(void *to, const struct compression *c, enum status status)
{
    struct bytes out = {0};
    if (status == STATUS_OK) {
        compression_add(c, &out);
        http_answer(to, &out);
        bytes_free(&out);
    } else {
        http_refuse(to, status);
    }
    http_unref(to);
}

static void compress_answer(struct http_exchange *x, struct answer *a, const struct request *r)
{
    http_ref(x);
    compress_finish(a, r, compress_send, x);
}

void http_compress_post(struct http_exchange *x)
{
    static const struct http_score_api api = {.method = "compress",
                                              .as_sent = true,
                                              .read = compress_read,
                                              .knows = compress_knows,
                                              .answer = compress_answer};
    http_score_start(x, &api);
}
