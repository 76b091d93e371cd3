// SPDX-License-Identifier: Apache-2.0
#include "lib/text/config_eos.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/text/json_file.h"

#define TOKENIZER_BYTES_MAX ((size_t)256 << 20)

// Returns the content of a token: a string, or an object with it. NULL if there is none.
static const char *token_content(const json_t *token)
{
    return json_string_value(json_is_object(token) ? json_object_get(token, "content") : token);
}

static bool is_token(const json_t *token, const char *content)
{
    const char *own = token_content(token);
    return own && strcmp(own, content) == 0;
}

// Looks in added_tokens_decoder, whose names are ids.
static int64_t find_in_decoder(const json_t *config, const char *content)
{
    const char *name;
    json_t *token;
    json_object_foreach(json_object_get(config, "added_tokens_decoder"), name, token)
    {
        char *end;
        const long long id = strtoll(name, &end, 10);
        if (end != name && *end == 0 && is_token(token, content)) return id;
    }
    return -1;
}

// Looks in the added tokens and in the vocabulary of tokenizer.json.
static int64_t find_in_tokenizer(const json_t *tokenizer, const char *content)
{
    const json_t *list = json_object_get(tokenizer, "added_tokens");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *token = json_array_get(list, i), *id = json_object_get(token, "id");
        if (json_is_integer(id) && is_token(token, content)) return json_integer_value(id);
    }
    const json_t *id = json_object_get(json_object_get(json_object_get(tokenizer, "model"), "vocab"), content);
    return json_is_integer(id) ? json_integer_value(id) : -1;
}

static enum status find_token(const char *dir, const json_t *config, const char *content, int64_t *id_p)
{
    *id_p = find_in_decoder(config, content);
    if (*id_p >= 0) return STATUS_OK;
    char *path = mem_format("%s/tokenizer.json", dir);
    json_t *tokenizer = NULL;
    enum status status = json_file_read(path, TOKENIZER_BYTES_MAX, &tokenizer);
    free(path);
    if (status != STATUS_OK) return status == STATUS_NOT_FOUND ? STATUS_OK : status;
    *id_p = find_in_tokenizer(tokenizer, content);
    json_decref(tokenizer);
    return STATUS_OK;
}

enum status tokenizer_eos_find(const char *dir, int64_t *id_p)
{
    char *path = mem_format("%s/tokenizer_config.json", dir);
    json_t *config = NULL;
    *id_p = -1;
    enum status status = json_file_read_reals(path, JSON_CONFIG_BYTES_MAX, &config);
    const char *content = token_content(json_object_get(config, "eos_token"));
    if (status == STATUS_NOT_FOUND) status = STATUS_OK;
    if (status == STATUS_OK && content && *content) status = find_token(dir, config, content, id_p);
    json_decref(config);
    free(path);
    return status;
}
