// SPDX-License-Identifier: Apache-2.0
// Opens a tokenizer: tokenizer.json, then tokenizer_config.json.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "model/json_file.h"
#include "model/tokenizer_parts.h"

#define FILE_LIMIT_BYTES ((size_t)256 << 20)

// bos_token and eos_token are a string, or an added token object with its content.
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

// Adds `id` at the outer end of the tokens before or after a text, or removes it there.
static void set_frame_token(int32_t *around, int *n, int at, int32_t id, bool wanted)
{
    bool there = *n && around[at < 0 ? *n - 1 : at] == id;
    if (there == wanted || id < 0 || (wanted && *n == FRAME_LIMIT)) return;
    if (at < 0) at = wanted ? *n : *n - 1; // -1: the last one
    int move = *n - at - (wanted ? 0 : 1);
    memmove(around + at + (wanted ? 1 : 0), around + at + (wanted ? 0 : 1), (size_t)move * sizeof *around);
    if (wanted) around[at] = id;
    *n += wanted ? 1 : -1;
}

// For Llama tokenizers Hugging Face rebuilds the post-processor from add_bos_token and add_eos_token. For others true
// adds the token and false changes nothing.
static enum status read_add_tokens(struct tokenizer *t, const json_t *config)
{
    const char *class;
    bool bos = false, eos = false;
    TRY(member_string(config, "tokenizer_config", "tokenizer_class", "", &class));
    TRY(member_bool(config, "tokenizer_config", "add_bos_token", false, &bos));
    TRY(member_bool(config, "tokenizer_config", "add_eos_token", false, &eos));
    bool rebuilt = !strncmp(class, "Llama", 5) || !strncmp(class, "CodeLlama", 9);
    if (bos || (rebuilt && json_is_false(json_object_get(config, "add_bos_token"))))
        set_frame_token(t->before, &t->n_before, 0, t->bos, bos);
    if (eos || (rebuilt && json_is_false(json_object_get(config, "add_eos_token"))))
        set_frame_token(t->after, &t->n_after, -1, t->eos, eos);
    return STATUS_OK;
}

static enum status read_config(struct tokenizer *t, const json_t *config)
{
    TRY(read_named_token(t, config, "bos_token", &t->bos));
    TRY(read_named_token(t, config, "eos_token", &t->eos));
    return read_add_tokens(t, config);
}

enum status tokenizer_open(const char *model_dir, struct tokenizer **tokenizer_p)
{
    char *path = mem_format("%s/tokenizer.json", model_dir);
    char *config_path = mem_format("%s/tokenizer_config.json", model_dir);
    json_t *root = NULL, *config = NULL;
    struct tokenizer *t = mem_alloc(sizeof *t);
    t->bos = t->eos = t->bpe.unknown = -1;

    enum status status = json_file_read(path, FILE_LIMIT_BYTES, &root);
    if (status == STATUS_OK && (status = tokenizer_read(t, root))) status_context(status, "%s", path);
    if (status == STATUS_INVALID) status = STATUS_DATA; // a token of the file on which its own pattern fails
    if (status == STATUS_OK && access(config_path, F_OK) == 0) {
        status = json_file_read_reals(config_path, &config);
        if (status == STATUS_OK && (status = read_config(t, config))) status_context(status, "%s", config_path);
    }
    if (status == STATUS_OK) {
        if (t->bos < 0 && t->n_before) t->bos = t->before[0];
        *tokenizer_p = t;
    } else {
        tokenizer_free(t);
    }
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

int32_t tokenizer_bos(const struct tokenizer *t)
{
    return t->bos;
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
