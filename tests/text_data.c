// SPDX-License-Identifier: Apache-2.0
#include "text_data.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/mem.h"

char *fixture_path(const char *name)
{
    const char *source = getenv("FOREPACK_SOURCE");
    return mem_format("%s/tests/data/tokenizers/%s", source ? source : ".", name);
}

char *file_read(const char *path, size_t *size_p)
{
    FILE *file = fopen(path, "rb");
    ck_assert_msg(file != NULL, "%s is missing", path);
    size_t n = 0, capacity = 1 << 16;
    char *text = mem_alloc(capacity);
    for (size_t got; (got = fread(text + n, 1, capacity - 1 - n, file)) > 0;) {
        n += got;
        if (n == capacity - 1) text = mem_resize(text, capacity *= 2, 1);
    }
    fclose(file);
    text[n] = 0;
    if (size_p) *size_p = n;
    return text;
}

static json_t *json_parse(const char *text, size_t n, const char *what)
{
    json_error_t error;
    json_t *value = json_loadb(text, n, JSON_ALLOW_NUL | JSON_DECODE_ANY, &error);
    ck_assert_msg(value != NULL, "%s: %s", what, error.text);
    return value;
}

json_t *json_read(const char *path)
{
    size_t n;
    char *text = file_read(path, &n);
    json_t *value = json_parse(text, n, path);
    free(text);
    return value;
}

json_t *json_lines_read(const char *path)
{
    char *text = file_read(path, NULL);
    json_t *rows = json_array();
    for (char *line = text, *end; *line; line = end + 1) {
        end = strchrnul(line, '\n');
        json_array_append_new(rows, json_parse(line, (size_t)(end - line), path));
        if (!*end) break;
    }
    free(text);
    return rows;
}

void scratch_write(const char *dir, const char *name, const char *text)
{
    char *path = mem_format("%s/%s", dir, name);
    FILE *file = fopen(path, "wb");
    ck_assert(file != NULL);
    ck_assert_uint_eq(fwrite(text, 1, strlen(text), file), strlen(text));
    ck_assert_int_eq(fclose(file), 0);
    free(path);
}

char *scratch_create(const char *tokenizer, const char *config)
{
    char *dir = mem_string("/tmp/forepack-text-XXXXXX");
    ck_assert(mkdtemp(dir) != NULL);
    if (tokenizer) scratch_write(dir, "tokenizer.json", tokenizer);
    if (config) scratch_write(dir, "tokenizer_config.json", config);
    return dir;
}

void scratch_remove(char *dir)
{
    static const char *const names[] = {"tokenizer.json",           "tokenizer_config.json",
                                        "special_tokens_map.json",  "added_tokens.json",
                                        "chat_template.jinja",      "additional_chat_templates/tool_use.jinja",
                                        "additional_chat_templates"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *path = mem_format("%s/%s", dir, names[i]);
        remove(path);
        free(path);
    }
    rmdir(dir);
    free(dir);
}

json_t *fixture_changed(const char *base, json_t *change)
{
    char *name = mem_format("%s/tokenizer.json", base), *path = fixture_path(name);
    json_t *root = json_read(path), *value;
    const char *key;
    json_object_foreach(change, key, value)
    {
        bool inside = !strncmp(key, "model.", 6);
        json_object_set(inside ? json_object_get(root, "model") : root, inside ? key + 6 : key, value);
    }
    free(name);
    free(path);
    return root;
}

struct tokenizer *open_dir(const char *dir)
{
    struct tokenizer *tokenizer = NULL;
    enum status status = tokenizer_open(dir, &tokenizer);
    ck_assert_msg(status == STATUS_OK, "%s: %s", dir, status_message());
    return tokenizer;
}

struct tokenizer *open_variant(const char *base, const char *change, const char *config)
{
    json_t *changes = change ? json_parse(change, strlen(change), change) : NULL;
    json_t *root = fixture_changed(base, changes);
    char *text = json_dumps(root, 0), *dir = scratch_create(text, config);
    struct tokenizer *tokenizer = open_dir(dir);
    scratch_remove(dir);
    free(text);
    json_decref(root);
    json_decref(changes);
    return tokenizer;
}

uint64_t random_next(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}
