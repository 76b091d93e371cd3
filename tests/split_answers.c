// SPDX-License-Identifier: Apache-2.0
// Splits answers in the form of a chat template: tests/suites/bfcl.py compares the calls.
// Usage: split_answers TEMPLATE. Each line of the input is {"tools": {NAME: ...}, "answer": TEXT}, and each line of the
// output {"content": TEXT, "calls": [{"name": TEXT, "arguments": TEXT}]}. Exit code 1 if the calls depend on how the
// answer is cut into pieces.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/text/chat.h"

static void append(json_t *object, const char *name, const char *text, size_t n)
{
    const json_t *before = json_object_get(object, name);
    size_t length = json_string_length(before);
    char *joined = malloc(length + n + 1);
    if (length) memcpy(joined, json_string_value(before), length);
    memcpy(joined + length, text, n);
    json_object_set_new(object, name, json_stringn(joined, length + n));
    free(joined);
}

static void add_part(void *user, enum output_kind kind, const char *text, size_t n)
{
    json_t *parts = user, *calls = json_object_get(parts, "calls");
    if (kind == OUTPUT_CONTENT) append(parts, "content", text, n);
    if (kind == OUTPUT_CALL)
        json_array_append_new(calls, json_pack("{s:s#,s:s}", "name", text, (int)n, "arguments", ""));
    if (kind == OUTPUT_ARGUMENTS) append(json_array_get(calls, json_array_size(calls) - 1), "arguments", text, n);
}

static json_t *split(const struct output_syntax *syntax, const json_t *line, size_t piece)
{
    const json_t *answer = json_object_get(line, "answer");
    const char *text = json_string_value(answer);
    size_t size = json_string_length(answer);
    json_t *parts = json_pack("{s:s,s:[]}", "content", "", "calls");
    struct output_parser *p = output_parser_create(syntax, false, json_object_get(line, "tools"));
    for (size_t i = 0, n; i < size; i += n) {
        n = piece < size - i ? piece : size - i;
        while (i + n < size && ((unsigned char)text[i + n] & 0xC0) == 0x80) // whole characters only
            n++;
        output_parser_push(p, text + i, n, add_part, parts);
    }
    output_parser_finish(p, false, add_part, parts);
    output_parser_free(p);
    return parts;
}

int main(int argc, char **argv)
{
    struct chat_template *chat;
    if (argc != 2 || chat_template_open(NULL, argv[1], &chat) != STATUS_OK) return 2;
    const struct output_syntax syntax = chat_template_syntax(chat);
    int code = 0;
    json_t *line;
    while ((line = json_loadf(stdin, JSON_DISABLE_EOF_CHECK, NULL))) {
        json_t *whole = split(&syntax, line, (size_t)1 << 30), *bytes = split(&syntax, line, 1);
        if (!json_equal(whole, bytes)) code = 1;
        json_dumpf(whole, stdout, JSON_COMPACT);
        putchar('\n');
        json_decref(whole);
        json_decref(bytes);
        json_decref(line);
    }
    chat_template_free(chat);
    return code;
}
