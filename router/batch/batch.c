// SPDX-License-Identifier: Apache-2.0
#include "router/batch/batch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/base/mem.h"
#include "lib/text/json_file.h"
#include "router/batch/disk_file.h"

enum { RECORD_BYTES_MAX = 256 << 10 };

static const char *const names[BATCH_STATES] = {"validating", "failed",  "in_progress", "finalizing",
                                                "completed",  "expired", "cancelling",  "cancelled"};
// Members with the times of states.
static const char *const times[BATCH_STATES] = {NULL,           "failed_at",  "in_progress_at", "finalizing_at",
                                                "completed_at", "expired_at", "cancelling_at",  "cancelled_at"};

const char *batch_state_name(enum batch_state state)
{
    return names[state];
}

void batch_free(struct batch *b)
{
    if (!b) return;
    free(b->tenant);
    free(b->key_id);
    free(b->endpoint);
    free(b->errors);
    json_decref(b->metadata);
    batch_usage_fini(&b->usage);
    free(b);
}

bool batch_is_final(const struct batch *b)
{
    return b->state == BATCH_FAILED || b->state == BATCH_COMPLETED || b->state == BATCH_EXPIRED ||
           b->state == BATCH_CANCELLED;
}

void batch_set_state(struct batch *b, enum batch_state state)
{
    b->state = state;
    b->reached_s[state] = (int64_t)time(NULL);
}

void batch_add_error(struct batch *b, const struct batch_error *error)
{
    if (b->n_errors == BATCH_ERRORS_MAX) return;
    b->errors = mem_resize(b->errors, (size_t)b->n_errors + 1, sizeof *b->errors);
    b->errors[b->n_errors++] = *error;
}

// --- JSON

static json_t *text_or_null(const char *text)
{
    return text ? json_string(text) : json_null();
}

static json_t *number_or_null(int64_t number)
{
    return number ? json_integer(number) : json_null();
}

static json_t *errors_to_json(const struct batch *b)
{
    if (!b->n_errors) return json_null();
    json_t *list = json_array();
    for (int i = 0; i < b->n_errors; i++) {
        const struct batch_error *e = &b->errors[i];
        json_array_append_new(list,
                              json_pack("{ss, ss, so, so}", "code", e->code, "message", e->message, "param",
                                        text_or_null(*e->param ? e->param : NULL), "line", number_or_null(e->line)));
    }
    return json_pack("{ss, so}", "object", "list", "data", list);
}

static json_t *result_id(const struct batch *b, int which)
{
    return text_or_null(b->has_result[which] && batch_is_final(b) ? b->result_ids[which] : NULL);
}

json_t *batch_to_json(const struct batch *b)
{
    json_t *object = json_pack(
        "{ss, ss, ss, so, ss, ss, ss, so, so, sI, sI, s{si, si, si}, sO}", "id", b->id, "object", "batch", "endpoint",
        b->endpoint, "errors", errors_to_json(b), "input_file_id", b->input_id, "completion_window", "24h", "status",
        names[b->state], "output_file_id", result_id(b, 0), "error_file_id", result_id(b, 1), "created_at",
        (json_int_t)(b->created_us / 1000000), "expires_at", (json_int_t)b->expires_s, "request_counts", "total",
        b->total, "completed", b->completed, "failed", b->failed, "metadata", b->metadata ? b->metadata : json_null());
    for (int i = 0; i < BATCH_STATES; i++)
        if (times[i]) json_object_set_new(object, times[i], number_or_null(b->reached_s[i]));
    if (b->sealed) batch_usage_to_json(&b->usage, object);
    return object;
}

// The members of the record that the API does not show.
static json_t *private_to_json(const struct batch *b)
{
    return json_pack("{ss, ss, s[ss], s[bb], sI, sI, ss, sb}", "tenant", b->tenant, "key_id", b->key_id, "result_ids",
                     b->result_ids[0], b->result_ids[1], "has_result", b->has_result[0], b->has_result[1],
                     "result_expires_s", (json_int_t)b->result_expires_s, "created_us", (json_int_t)b->created_us,
                     "ending", names[b->ending], "sealed", b->sealed);
}

enum status batch_save(const struct batch *b, const char *path)
{
    json_t *object = batch_to_json(b);
    json_object_set_new(object, "private", private_to_json(b));
    enum status status = disk_save_json(path, object);
    json_decref(object);
    return status;
}

// --- loading

static bool state_read(const char *name, enum batch_state *state_p)
{
    for (int i = 0; i < BATCH_STATES; i++) {
        if (strcmp(name, names[i]) != 0) continue;
        *state_p = (enum batch_state)i;
        return true;
    }
    return false;
}

static bool id_copy(const char *prefix, const char *id, char to[BATCH_ID_ROOM])
{
    if (!batch_id_valid(prefix, id)) return false;
    snprintf(to, BATCH_ID_ROOM, "%s", id);
    return true;
}

static bool private_read(const json_t *record, struct batch *b)
{
    const char *tenant, *key_id, *output, *errors, *ending;
    int has_output, has_errors, sealed;
    json_int_t result_expires_s, created_us;
    if (json_unpack((json_t *)record, "{s{ss, ss, s[ss], s[bb], sI, sI, ss, sb}}", "private", "tenant", &tenant,
                    "key_id", &key_id, "result_ids", &output, &errors, "has_result", &has_output, &has_errors,
                    "result_expires_s", &result_expires_s, "created_us", &created_us, "ending", &ending, "sealed",
                    &sealed) != 0)
        return false;
    b->tenant = mem_string(tenant);
    b->key_id = mem_string(key_id);
    b->has_result[0] = has_output;
    b->has_result[1] = has_errors;
    b->sealed = sealed;
    b->result_expires_s = result_expires_s;
    b->created_us = created_us;
    return id_copy(FILE_ID_PREFIX, output, b->result_ids[0]) && id_copy(FILE_ID_PREFIX, errors, b->result_ids[1]) &&
           state_read(ending, &b->ending);
}

static bool public_read(const json_t *record, struct batch *b)
{
    const char *id, *endpoint, *input, *state;
    json_int_t expires_s;
    json_t *metadata;
    if (json_unpack((json_t *)record, "{ss, ss, ss, ss, sI, s{si, si, si}, sO}", "id", &id, "endpoint", &endpoint,
                    "input_file_id", &input, "status", &state, "expires_at", &expires_s, "request_counts", "total",
                    &b->total, "completed", &b->completed, "failed", &b->failed, "metadata", &metadata) != 0)
        return false;
    b->metadata = json_is_object(metadata) ? metadata : NULL;
    if (!b->metadata) json_decref(metadata);
    b->endpoint = mem_string(endpoint);
    b->expires_s = expires_s;
    for (int i = 0; i < BATCH_STATES; i++)
        if (times[i]) b->reached_s[i] = json_integer_value(json_object_get(record, times[i]));
    return id_copy(BATCH_ID_PREFIX, id, b->id) && id_copy(FILE_ID_PREFIX, input, b->input_id) &&
           state_read(state, &b->state) && b->total >= 0 && b->total <= BATCH_LINES_MAX;
}

static const char *text_of(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));
    return text ? text : "";
}

static void errors_read(const json_t *record, struct batch *b)
{
    const json_t *list = json_object_get(json_object_get(record, "errors"), "data");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *e = json_array_get(list, i);
        struct batch_error error;
        batch_error_set(&error, text_of(e, "code"), text_of(e, "param"), text_of(e, "message"));
        error.line = (int)json_integer_value(json_object_get(e, "line"));
        batch_add_error(b, &error);
    }
}

enum status batch_load(const char *path, struct batch **b_p)
{
    json_t *record;
    TRY(json_file_read(path, RECORD_BYTES_MAX, &record));
    struct batch *b = mem_alloc(sizeof *b);
    bool sound = public_read(record, b) && private_read(record, b);
    if (sound) errors_read(record, b);
    if (sound) batch_usage_from_json(record, &b->usage);
    json_decref(record);
    if (!sound) {
        batch_free(b);
        return status_fail(STATUS_DATA, "%s: a member is missing or has a wrong value", path);
    }
    *b_p = b;
    return STATUS_OK;
}
