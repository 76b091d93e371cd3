// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/json_writer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/utf8.h"

void json_add(struct bytes *out, const char *json)
{
    bytes_add(out, json, strlen(json));
}

static bool must_escape(char c)
{
    return (unsigned char)c < 0x20 || c == '"' || c == '\\';
}

static void add_escaped(struct bytes *out, char c)
{
    static const char letters[] = "btnvfr"; // letters of the escapes for U+0008 to U+000D
    char escape[8];
    if (c == '"' || c == '\\') {
        snprintf(escape, sizeof escape, "\\%c", c);
    } else if (c >= '\b' && c <= '\r' && c != '\v') {
        snprintf(escape, sizeof escape, "\\%c", letters[c - '\b']);
    } else {
        snprintf(escape, sizeof escape, "\\u%04x", (unsigned)c);
    }
    json_add(out, escape);
}

static void add_well_formed(struct bytes *out, const char *text, size_t n)
{
    size_t start = 0;
    for (size_t i = 0; i < n; i++) {
        if (!must_escape(text[i])) continue;
        bytes_add(out, text + start, i - start);
        add_escaped(out, text[i]);
        start = i + 1;
    }
    bytes_add(out, text + start, n - start);
}

void json_add_text(struct bytes *out, const char *text, size_t n)
{
    JSON_ADD(out, "\"");
    if (utf8_valid(text, n, NULL)) {
        add_well_formed(out, text, n);
    } else {
        struct bytes repaired = {0};
        utf8_repair(&repaired, text, n, true);
        add_well_formed(out, repaired.data, repaired.n);
        bytes_free(&repaired);
    }
    JSON_ADD(out, "\"");
}

void json_add_string(struct bytes *out, const char *text)
{
    if (text) {
        json_add_text(out, text, strlen(text));
    } else {
        JSON_ADD(out, "null");
    }
}

void json_add_integer(struct bytes *out, int64_t number)
{
    char digits[24];
    bytes_add(out, digits, (size_t)snprintf(digits, sizeof digits, "%lld", (long long)number));
}

void json_add_real(struct bytes *out, double number)
{
    char digits[32];
    bytes_add(out, digits, (size_t)snprintf(digits, sizeof digits, "%.9g", isfinite(number) ? number : -9999.0));
}

void json_add_comma(struct bytes *out)
{
    char last = out->n ? out->data[out->n - 1] : '[';
    if (last != '[' && last != '{') JSON_ADD(out, ",");
}

void json_add_explanation(struct bytes *out, const struct bytes *object)
{
    if (!object || !object->n) return;
    JSON_ADD(out, ",\"explain\":");
    bytes_add(out, object->data, object->n);
}

void json_add_ids(struct bytes *out, const int32_t *ids, int n)
{
    for (int i = 0; i < n; i++) {
        json_add_comma(out);
        json_add_integer(out, ids[i]);
    }
}

void json_add_ranges(struct bytes *out, const struct token_range *ranges, int n)
{
    char range[48];
    for (int i = 0; i < n; i++) {
        snprintf(range, sizeof range, "[%d,%d]", (int)ranges[i].first, (int)ranges[i].last);
        if (i) JSON_ADD(out, ",");
        json_add(out, range);
    }
}
