// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/http_batches.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "router/front/http/http_batching.h"
#include "router/front/http/http_paging.h"
#include "router/front/http/json_body.h"

enum { LIST_MAX = 100, LIST_USUAL = 20, KEY_CHARACTERS = 64, VALUE_CHARACTERS = 512 };

static const char *id_of(const struct http_exchange *x)
{
    return http_path(x) + sizeof "/v1/batches/" - 1;
}

// Answers with a batch and frees it, or with status_message().
static void batch_answer(struct http_exchange *x, enum status status, json_t *object)
{
    if (status != STATUS_OK) {
        http_batching_refuse(x, status);
        return;
    }
    char *text = json_dumps(object, JSON_COMPACT);
    http_answer_as(x, "application/json", text, strlen(text));
    free(text);
    json_decref(object);
}

static void batch_done(void *arg, enum status status, json_t *object)
{
    batch_answer(arg, status, object);
    http_unref(arg);
}

// --- creating

struct values {
    const char *input_file_id, *endpoint, *completion_window;
    const json_t *metadata, *output_expires_after;
};

#define FIELD(name_, type_)                                                                                            \
    {                                                                                                                  \
        .name = #name_, .type = JSON_FIELD_##type_, .offset = offsetof(struct values, name_)                           \
    }
static const struct json_field fields[] = {
    FIELD(input_file_id, NAME),          FIELD(endpoint, NAME),
    FIELD(completion_window, NAME),      FIELD(metadata, OBJECT),
    FIELD(output_expires_after, OBJECT), {0},
};

static size_t characters(const char *text)
{
    size_t n = 0;
    for (; *text; text++)
        n += ((unsigned char)*text & 0xC0) != 0x80;
    return n;
}

static enum status check_metadata(const json_t *metadata)
{
    const char *key;
    json_t *value;
    if (json_object_size(metadata) > BATCH_METADATA_MAX)
        return status_fail(STATUS_INVALID, "metadata: must have at most %d members", BATCH_METADATA_MAX);
    json_object_foreach((json_t *)metadata, key, value)
    {
        const char *text = json_string_value(value);
        if (characters(key) > KEY_CHARACTERS || !text || characters(text) > VALUE_CHARACTERS ||
            strlen(text) != json_string_length(value))
            return status_fail(STATUS_INVALID,
                               "metadata: keys must have at most %d characters, and values must be texts of at most %d "
                               "characters",
                               KEY_CHARACTERS, VALUE_CHARACTERS);
    }
    return STATUS_OK;
}

static enum status expiry_read(const json_t *expires, int64_t *seconds_p)
{
    static const struct json_field members[] = {
        {.name = "seconds", .type = JSON_FIELD_INT, .min = 3600, .max = 2592000}, {0}};
    const char *anchor = json_string_value(json_object_get(expires, "anchor"));
    if (!expires) return STATUS_OK;
    if (!anchor || strcmp(anchor, "created_at") != 0)
        return status_fail(STATUS_INVALID, "output_expires_after: anchor must be created_at");
    TRY(json_fields_read(expires, members, seconds_p));
    return *seconds_p ? STATUS_OK : status_fail(STATUS_INVALID, "output_expires_after: seconds is required");
}

static enum status params_read(const json_t *body, struct values *v, struct batch_params *params)
{
    static const char *const endpoints[] = {"/v1/chat/completions", "/v1/completions", "/v1/responses"};
    TRY(json_fields_read(body, fields, v));
    if (!v->input_file_id) return status_fail(STATUS_INVALID, "input_file_id: required");
    if (!v->completion_window || strcmp(v->completion_window, "24h") != 0)
        return status_fail(STATUS_INVALID, "completion_window: must be 24h");
    for (size_t i = 0; v->endpoint && i < sizeof endpoints / sizeof *endpoints; i++)
        if (strcmp(v->endpoint, endpoints[i]) == 0) params->endpoint = endpoints[i];
    if (!params->endpoint)
        return status_fail(STATUS_INVALID, "endpoint: must be /v1/chat/completions, /v1/completions or /v1/responses");
    TRY(check_metadata(v->metadata));
    params->input_id = v->input_file_id;
    params->metadata = (json_t *)v->metadata;
    return expiry_read(v->output_expires_after, &params->result_expires_s);
}

void http_batches_post(struct http_exchange *x)
{
    struct http_batching *batching = http_batching_of(x);
    const struct principal *p = ((struct http_call *)http_user(x))->principal;
    struct batch_params params = {.tenant = http_call_tenant(x), .key_id = p ? principal_key_id(p) : ""};
    struct values v = {NULL, NULL, NULL, NULL, NULL};
    json_t *body;
    size_t size;
    if (!batching) return;
    const char *bytes = http_body(x, &size);
    enum status status = json_body_parse(bytes, size, &body);
    http_body_free(x);
    if (status == STATUS_OK) {
        status = params_read(body, &v, &params);
        http_ref(x);
        if (status == STATUS_OK)
            batch_runner_create(batching->runner, &params, batch_done, x);
        else
            batch_done(x, status, NULL);
        json_decref(body);
    } else {
        http_refuse(x, status);
    }
}

// --- the other handlers

void http_batches_cancel(struct http_exchange *x)
{
    static const char cancel[] = "/cancel";
    struct http_batching *batching = http_batching_of(x);
    char id[HTTP_CURSOR_ROOM] = "";
    size_t n = strcspn(id_of(x), "/");
    if (!batching) return;
    if (strcmp(id_of(x) + n, cancel) != 0) {
        http_fail_as(x, 404, "the path does not exist: a batch is cancelled with POST /v1/batches/ID/cancel");
        return;
    }
    if (n < sizeof id) memcpy(id, id_of(x), n);
    http_ref(x);
    batch_runner_cancel(batching->runner, http_call_tenant(x), id, batch_done, x);
}

void http_batches_get(struct http_exchange *x)
{
    struct http_batching *batching = http_batching_of(x);
    json_t *object = NULL;
    if (!batching) return;
    enum status status = batch_table_get(batch_runner_table(batching->runner), http_call_tenant(x), id_of(x), &object);
    batch_answer(x, status, object);
}

static const char *item_id(const json_t *list, size_t i)
{
    return json_string_value(json_object_get(json_array_get(list, i), "id"));
}

void http_batches_list(struct http_exchange *x)
{
    struct http_batching *batching = http_batching_of(x);
    struct http_page page;
    json_t *list;
    bool more;
    if (!batching) return;
    enum status status = http_page_read(x, LIST_MAX, LIST_USUAL, &page);
    if (status == STATUS_OK)
        status = batch_table_list(batch_runner_table(batching->runner), http_call_tenant(x),
                                  *page.after ? page.after : NULL, page.limit, &list, &more);
    if (status != STATUS_OK) {
        http_batching_refuse(x, status);
        return;
    }
    size_t n = json_array_size(list);
    json_t *answer = json_pack("{ss, so, so, so, sb}", "object", "list", "data", list, "first_id",
                               n ? json_string(item_id(list, 0)) : json_null(), "last_id",
                               n ? json_string(item_id(list, n - 1)) : json_null(), "has_more", more);
    batch_answer(x, STATUS_OK, answer);
}
