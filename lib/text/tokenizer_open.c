// SPDX-License-Identifier: Apache-2.0
// Opens a tokenizer from tokenizer.json and tokenizer_config.json.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/mem.h"
#include "lib/text/json_file.h"
#include "lib/text/tokenizer_parts.h"

#define FILE_LIMIT_BYTES ((size_t)256 << 20)

// Reads bos_token or eos_token, a string or an added token object with its content.
static enum status read_named_token(const struct tokenizer *t, const json_t *config, const char *key, int32_t *id_p)
{
    const json_t *value = json_object_get(config, key);
    const char *content = NULL;
    *id_p = -1;
    if (json_is_object(value)) {
        TRY(member_string(value, key, "content", NULL, &content));
    } else if (json_is_string(value)) {
        content = json_string_value(value);
    } else if (value && !json_is_null(value)) {
        return status_fail(STATUS_DATA, "%s is %s: must be a string or an object", key, json_type_name(value));
    }
    if (!content || !*content) return STATUS_OK;
    for (int32_t id = 0; id < t->n_ids; id++)
        if (t->spelling[id] && !strcmp(t->spelling[id], content)) {
            *id_p = id;
            return STATUS_OK;
        }
    return status_fail(STATUS_DATA, "%s \"%.64s\" is not a token of tokenizer.json", key, content);
}

static enum status read_named_tokens(struct tokenizer *t, const json_t *config)
{
    int32_t bos; // only checked: chat templates write its text
    TRY(read_named_token(t, config, "bos_token", &bos));
    return read_named_token(t, config, "eos_token", &t->eos);
}

// Reads tokenizer_config.json. If it has no added_tokens_decoder, adds special_tokens_map.json and added_tokens.json,
// which older versions of transformers wrote next to it.
static enum status read_config(const char *dir, json_t **config_p)
{
    static const struct {
        const char *file, *key; // key: the file becomes the value of this member; NULL: its members join the config
    } parts[] = {{"tokenizer_config.json", NULL},
                 {"special_tokens_map.json", NULL},
                 {TOKENIZER_ADDED_FILE, TOKENIZER_ADDED_FILE}};
    json_t *config = json_object(), *part = NULL;
    enum status status = STATUS_OK;
    for (int i = 0; i < 3 && status == STATUS_OK && !json_object_get(config, "added_tokens_decoder"); i++) {
        char *path = mem_format("%s/%s", dir, parts[i].file);
        status = access(path, F_OK) == 0 ? json_file_read_reals(path, JSON_CONFIG_BYTES_MAX, &part) : STATUS_NOT_FOUND;
        if (status == STATUS_OK && parts[i].key)
            json_object_set(config, parts[i].key, part);
        else if (status == STATUS_OK)
            json_object_update(config, part);
        if (status == STATUS_OK) json_decref(part);
        if (status == STATUS_NOT_FOUND) status = STATUS_OK;
        free(path);
    }
    if (status == STATUS_OK)
        *config_p = config;
    else
        json_decref(config);
    return status;
}

enum status tokenizer_open(const char *model_dir, struct tokenizer **tokenizer_p)
{
    char *path = mem_format("%s/tokenizer.json", model_dir);
    char *config_path =
        mem_format("%s/tokenizer_config.json", model_dir); // in messages it stands for all files of read_config()
    json_t *root = NULL, *config = NULL;
    struct tokenizer *t = mem_alloc(sizeof *t);
    t->eos = t->bpe.unknown = -1;

    enum status status = json_file_read(path, FILE_LIMIT_BYTES, &root);
    if (status == STATUS_OK) status = read_config(model_dir, &config);
    if (status == STATUS_OK && (status = tokenizer_merge_config(root, config)))
        status_context(status, "%s", config_path);
    if (status == STATUS_OK && (status = tokenizer_read(t, root))) status_context(status, "%s", path);
    if (status == STATUS_INVALID) status = STATUS_DATA; // the file's own pattern fails on one of its tokens
    if (status == STATUS_OK && (status = read_named_tokens(t, config))) status_context(status, "%s", config_path);
    if (status == STATUS_OK)
        *tokenizer_p = t;
    else
        tokenizer_free(t);
    json_decref(root);
    json_decref(config);
    free(path);
    free(config_path);
    return status;
}

void tokenizer_free(struct tokenizer *t)
{
    if (!t) return;
    free(t->spelling);
    bytes_free(&t->spellings);
    free(t->special);
    bytes_free(&t->pieces);
    free(t->piece_start);
    bytes_free(&t->raw);
    added_set_fini(&t->added);
    added_set_fini(&t->added_normalized);
    normalizer_fini(&t->normalizer);
    for (int i = 0; i < t->n_pretoken; i++) {
        pattern_free(t->pretoken[i].pattern);
        free(t->pretoken[i].text);
    }
    bpe_fini(&t->bpe);
    for (int i = 0; i < t->decoder.n_replace; i++) {
        pattern_free(t->decoder.replace[i].pattern);
        free(t->decoder.replace[i].text);
    }
    free(t->decoder.strip);
    free(t->decoder.metaspace);
    free(t);
}

const char *tokenizer_token(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n_ids ? t->spelling[id] : NULL;
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n_ids && t->special[id];
}

int tokenizer_vocab_size(const struct tokenizer *t)
{
    return t->n_ids;
}

int32_t tokenizer_eos(const struct tokenizer *t)
{
    return t->eos;
}

size_t tokenizer_longest_piece_bytes(const struct tokenizer *t)
{
    return t->longest_piece_bytes;
}

size_t tokenizer_min_tokens(const struct tokenizer *t, const char *text, size_t n)
{
    const struct token_shares *shares = &t->shares;
    uint64_t sum = 0;
    unsigned char bits = 0;
    for (size_t i = 0; i < n; i++) {
        sum += shares->byte[(unsigned char)text[i]];
        bits |= (unsigned char)text[i];
    }
    bool by_byte = bits & 0x80 ? shares->unicode : shares->ascii;
    return (size_t)((by_byte ? sum : shares->any * n) / TOKEN_SHARE_ONE);
}

uint64_t tokenizer_fingerprint(const struct tokenizer *t)
{
    return t->fingerprint;
}
