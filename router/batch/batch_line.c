// SPDX-License-Identifier: Apache-2.0
#include "router/batch/batch_line.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/json_count.h"
#include "lib/base/mem.h"
#include "lib/base/priority.h"
#include "lib/base/utf8.h"

// --- requests

void batch_error_set(struct batch_error *error, const char *code, const char *param, const char *message)
{
    *error = (struct batch_error){.line = 0};
    snprintf(error->code, sizeof error->code, "%s", code);
    snprintf(error->param, sizeof error->param, "%s", param);
    utf8_format(error->message, sizeof error->message, "%s", message);
}

static enum status refuse(struct batch_error *error, const char *code, const char *param, const char *message)
{
    batch_error_set(error, code, param, message);
    return status_fail(STATUS_INVALID, "%s", message);
}

static enum status check_text(const json_t *line, const char *name, const char *expected, const char *code,
                              struct batch_error *error)
{
    char message[160];
    const char *value = json_string_value(json_object_get(line, name));
    if (value && strcmp(value, expected) == 0) return STATUS_OK;
    snprintf(message, sizeof message, "%s: must be \"%s\", as the batch's endpoint", name, expected);
    if (strcmp(name, "method") == 0) snprintf(message, sizeof message, "method: must be \"POST\"");
    return refuse(error, value ? code : "missing_required_parameter", name, message);
}

static enum status check_custom_id(const json_t *line, struct batch_error *error)
{
    const json_t *id = json_object_get(line, "custom_id");
    if (!json_is_string(id) || !json_string_length(id))
        return refuse(error, "missing_required_parameter", "custom_id", "custom_id: must be a text that is not empty");
    if (json_string_length(id) > BATCH_CUSTOM_ID_BYTES || strlen(json_string_value(id)) != json_string_length(id))
        return refuse(error, "invalid_custom_id", "custom_id",
                      "custom_id: must have at most 512 bytes, and no zero byte");
    return STATUS_OK;
}

static enum status check_line(const json_t *line, const char *endpoint, struct batch_error *error)
{
    TRY(check_custom_id(line, error));
    TRY(check_text(line, "method", "POST", "invalid_method", error));
    TRY(check_text(line, "url", endpoint, "mismatched_url", error));
    const json_t *body = json_object_get(line, "body");
    if (!json_is_object(body))
        return refuse(error, "missing_required_parameter", "body", "body: must be an object, the request's body");
    if (json_is_true(json_object_get(body, "stream")))
        return refuse(error, "unsupported_parameter", "body.stream", "body.stream: must be false in a batch");
    return STATUS_OK;
}

// Parses a line with the limits and rules of a request's body.
static json_t *line_parse(const char *line, size_t size, struct batch_error *error)
{
    struct json_count count = {0};
    json_count_add(&count, line, size);
    if (json_count_check(&count, "the line has") != STATUS_OK) {
        refuse(error, "invalid_json_line", "", status_message());
        return NULL;
    }
    json_t *object = json_loadb(line, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    if (json_is_object(object)) return object;
    json_decref(object);
    refuse(error, "invalid_json_line", "", "the line is not a JSON object");
    return NULL;
}

enum status batch_line_read(const char *line, size_t size, const char *endpoint, struct batch_request *request_p,
                            struct batch_error *error_p)
{
    json_t *object = line_parse(line, size, error_p);
    if (!object) return STATUS_INVALID;
    enum status status = check_line(object, endpoint, error_p);
    if (status == STATUS_OK) {
        json_t *body = json_object_get(object, "body");
        json_object_set_new(body, "priority", json_integer(-PRIORITY_MAX));
        char *text = json_dumps(body, JSON_COMPACT);
        *request_p = (struct batch_request){mem_string(json_string_value(json_object_get(object, "custom_id"))), text,
                                            text ? strlen(text) : 0};
        if (!text) {
            batch_request_fini(request_p);
            status = refuse(error_p, "invalid_json_line", "", "the line is not UTF-8");
        }
    }
    json_decref(object);
    return status;
}

void batch_request_fini(struct batch_request *request)
{
    free(request->custom_id);
    free(request->body);
    *request = (struct batch_request){NULL, NULL, 0};
}

// --- answers

#define LINE_START "{\"id\":\"batch_req_"
#define LINE_ID    "batch_req_"
enum { BATCH_DIGITS = 24, INDEX_DIGITS = 8 }; // digits of the batch's id, and of the request's index, in a line's id

void batch_line_id(const char *batch_id, int index, char id[BATCH_LINE_ID_ROOM])
{
    snprintf(id, BATCH_LINE_ID_ROOM, LINE_ID "%.*s%08x", BATCH_DIGITS, batch_id + sizeof BATCH_ID_PREFIX - 1,
             (unsigned)index);
}

int batch_line_index(const char *batch_id, const char *line, size_t size)
{
    char id[BATCH_LINE_ID_ROOM], digits[INDEX_DIGITS + 1] = "";
    const size_t start = sizeof LINE_START - 1 + BATCH_DIGITS;
    if (size < BATCH_LINE_START_BYTES) return -1;
    memcpy(digits, line + start, INDEX_DIGITS);
    if (strspn(digits, "0123456789abcdef") != INDEX_DIGITS) return -1;
    unsigned long index = strtoul(digits, NULL, 16);
    if (index >= BATCH_LINES_MAX) return -1;
    batch_line_id(batch_id, (int)index, id);
    size_t n = strlen(id), from = sizeof LINE_START - sizeof LINE_ID;
    return memcmp(line, LINE_START, from) == 0 && memcmp(line + from, id, n) == 0 && line[from + n] == '"' ? (int)index
                                                                                                           : -1;
}

static void add(struct bytes *out, const char *json)
{
    bytes_add(out, json, strlen(json));
}

static void add_string(struct bytes *out, const char *text)
{
    json_t *string = json_string(text);
    char *json = string ? json_dumps(string, JSON_ENCODE_ANY | JSON_ENSURE_ASCII) : NULL;
    add(out, json ? json : "null");
    free(json);
    json_decref(string);
}

static void add_start(struct bytes *out, const char *line_id, const char *custom_id)
{
    add(out, "{\"id\":\"");
    add(out, line_id);
    add(out, "\",\"custom_id\":");
    add_string(out, custom_id);
}

// Returns the escape of the character at `text` if some readers end a line there (U+0085, U+2028, U+2029), or NULL.
// Sets *size_p to the size of the character.
static const char *line_end_escape(const char *text, size_t size, size_t *size_p)
{
    static const struct {
        const char *bytes, *escape;
    } ends[] = {{"\xc2\x85", "\\u0085"}, {"\xe2\x80\xa8", "\\u2028"}, {"\xe2\x80\xa9", "\\u2029"}};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        *size_p = strlen(ends[i].bytes);
        if (size >= *size_p && memcmp(text, ends[i].bytes, *size_p) == 0) return ends[i].escape;
    }
    return NULL;
}

// Appends JSON as a part of a line. Characters that end a line are escaped, because they can only be in strings, or, as
// line breaks between two tokens, become blanks.
static void add_body(struct bytes *out, const char *body, size_t size)
{
    size_t from = 0, n;
    for (size_t i = 0; i < size; i++) {
        bool is_break = body[i] == '\n' || body[i] == '\r';
        bool is_lead = body[i] == '\xc2' || body[i] == '\xe2';
        const char *instead = is_break ? " " : is_lead ? line_end_escape(body + i, size - i, &n) : NULL;
        if (!instead) continue;
        bytes_add(out, body + from, i - from);
        add(out, instead);
        i += is_break ? 0 : n - 1;
        from = i + 1;
    }
    bytes_add(out, body + from, size - from);
}

void batch_line_add_answer(struct bytes *out, const char *line_id, const char *custom_id, int http_status,
                           const char *request_id, const char *body, size_t body_bytes)
{
    char text[64];
    add_start(out, line_id, custom_id);
    snprintf(text, sizeof text, ",\"response\":{\"status_code\":%d,\"request_id\":", http_status);
    add(out, text);
    add_string(out, request_id);
    add(out, ",\"body\":");
    if (body_bytes)
        add_body(out, body, body_bytes);
    else
        add(out, "null");
    add(out, "},\"error\":null}\n");
}

void batch_line_add_error(struct bytes *out, const char *line_id, const char *custom_id, const char *code,
                          const char *message)
{
    add_start(out, line_id, custom_id);
    add(out, ",\"response\":null,\"error\":{\"code\":");
    add_string(out, code);
    add(out, ",\"message\":");
    add_string(out, message);
    add(out, "}}\n");
}
