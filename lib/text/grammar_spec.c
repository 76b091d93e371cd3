// SPDX-License-Identifier: Apache-2.0
#include "lib/text/grammar_spec.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/utf8.h"

struct grammar_spec grammar_spec_of(enum grammar_kind kind, char *text)
{
    return (struct grammar_spec){kind, text, text ? strlen(text) : 0};
}

// Writes a regular expression that matches only the text. Returns its end.
static char *write_escaped(char *regex, const char *text)
{
    for (; *text; text++) {
        if (strchr("\\.+*?()|[]{}^$#&-~/", *text)) *regex++ = '\\';
        *regex++ = *text;
    }
    return regex;
}

struct grammar_spec grammar_spec_choice(const char *const *texts, size_t n)
{
    size_t room = 1;
    for (size_t i = 0; i < n; i++)
        room += 2 * strlen(texts[i]) + 1;
    char *regex = mem_alloc(room), *end = regex;
    for (size_t i = 0; i < n; i++) {
        if (i) *end++ = '|';
        end = write_escaped(end, texts[i]);
    }
    return grammar_spec_of(GRAMMAR_REGEX, regex);
}

struct grammar_spec grammar_spec_copy(const struct grammar_spec *from)
{
    return (struct grammar_spec){from->kind, mem_string(from->text), from->text_bytes};
}

bool grammar_specs_equal(const struct grammar_spec *a, const struct grammar_spec *b)
{
    return a->kind == b->kind && a->text_bytes == b->text_bytes && memcmp(a->text, b->text, a->text_bytes) == 0;
}

void grammar_spec_free(struct grammar_spec *spec)
{
    free(spec->text);
    *spec = (struct grammar_spec){0};
}

enum status grammar_spec_check(const struct grammar_spec *spec)
{
    static const char *const names[GRAMMAR_KINDS] = {[GRAMMAR_JSON_SCHEMA] = "the JSON schema",
                                                     [GRAMMAR_REGEX] = "the regular expression",
                                                     [GRAMMAR_LARK] = "the grammar"};
    if (spec->kind == GRAMMAR_NONE) return STATUS_OK;
    size_t n = spec->text_bytes;
    if (n == 0) return status_fail(STATUS_INVALID, "%s is empty", names[spec->kind]);
    if (n > GRAMMAR_TEXT_BYTES_MAX)
        return status_fail(STATUS_INVALID, "%s has %zu bytes: at most %d", names[spec->kind], n,
                           GRAMMAR_TEXT_BYTES_MAX);
    if (!utf8_valid(spec->text, n, NULL)) return status_fail(STATUS_INVALID, "%s is not UTF-8", names[spec->kind]);
    return STATUS_OK;
}
