// SPDX-License-Identifier: Apache-2.0
// jansson checks that the text is JSON. Then brackets, commas and quotes suffice to find the elements of a list.
#include <jansson.h>
#include <string.h>

#include "lib/base/json_count.h"
#include "lib/text/cut_parts.h"

enum { DEPTH_MAX = 8 }; // objects that are searched for a list, because each costs a pass over its text

static size_t skip_blanks(const char *text, size_t at, size_t end)
{
    while (at < end && cut_is_blank(text[at]))
        at++;
    return at;
}

bool cut_is_json(const char *text, size_t n)
{
    struct json_count count = {0};
    size_t first = skip_blanks(text, 0, n);
    if (first == n || (text[first] != '[' && text[first] != '{')) return false;
    json_count_add(&count, text, n);
    if (json_count_check(&count, "the text has") != STATUS_OK) return false;
    json_t *value = json_loadb(text, n, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
    bool valid = json_is_array(value) || json_is_object(value);
    json_decref(value);
    return valid;
}

// Returns the end of the value that begins at `at`.
static size_t value_end(const char *text, size_t at, size_t end)
{
    int depth = 0;
    bool quoted = false;
    for (size_t i = at; i < end; i++) {
        char c = text[i];
        if (quoted) {
            if (c == '\\') i++;
            if (c == '"') quoted = false;
            if (!quoted && !depth) return i + 1;
        } else if (c == '"') {
            quoted = true;
        } else if (c == '[' || c == '{') {
            depth++;
        } else if (c == ']' || c == '}') {
            if (depth == 0) return i;
            if (--depth == 0) return i + 1;
        } else if (!depth && (c == ',' || cut_is_blank(c))) {
            return i;
        }
    }
    return end;
}

// Finds the largest list or object among the members of the object at `at`. Returns false if it has none.
static bool largest_member(const char *text, struct text_range object, struct text_range *largest_p)
{
    struct text_range largest = {0, 0};
    for (size_t at = skip_blanks(text, object.start + 1, object.end); at < object.end && text[at] != '}';) {
        at = skip_blanks(text, value_end(text, at, object.end), object.end); // the name
        at = skip_blanks(text, at + 1, object.end);                          // the colon
        struct text_range value = {at, value_end(text, at, object.end)};
        bool holds = text[at] == '[' || text[at] == '{';
        if (holds && value.end - value.start > largest.end - largest.start) largest = value;
        at = skip_blanks(text, value.end, object.end);
        if (at < object.end && text[at] == ',') at = skip_blanks(text, at + 1, object.end);
    }
    *largest_p = largest;
    return largest.end > 0;
}

static void add_elements(const char *text, struct text_range list, struct cut_units *units)
{
    int block = ++units->n_blocks;
    for (size_t at = skip_blanks(text, list.start + 1, list.end); at < list.end && text[at] != ']';) {
        size_t end = value_end(text, at, list.end), next = skip_blanks(text, end, list.end);
        bool more = next < list.end && text[next] == ',';
        if (more) next = skip_blanks(text, next + 1, list.end);
        cut_add(units, (struct cut_unit){.range = {at, next}, .block = block, .trim = more ? next - end : 0});
        at = next;
    }
}

bool cut_json(const char *text, size_t n, struct cut_units *units)
{
    if (!cut_is_json(text, n)) return false;
    struct text_range value = {skip_blanks(text, 0, n), n};
    value.end = value_end(text, value.start, n);
    for (int depth = 0; depth < DEPTH_MAX && text[value.start] == '{'; depth++)
        if (!largest_member(text, value, &value)) break;
    units->kind = CUT_JSON;
    bool list = value.end && text[value.start] == '[';
    size_t first = list ? skip_blanks(text, value.start + 1, value.end) : n;
    cut_add(units, (struct cut_unit){.range = {0, first}, .fixed = true});
    if (list) add_elements(text, value, units);
    size_t last = units->units[units->n - 1].range.end;
    cut_add(units, (struct cut_unit){.range = {last, n}, .fixed = true});
    return true;
}
