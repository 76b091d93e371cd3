// SPDX-License-Identifier: Apache-2.0
// Adds the tokens that files other than tokenizer.json describe. As in transformers 5, they are recognised in texts
// like the added tokens of tokenizer.json, and added_tokens_decoder overrides the flags of tokenizer.json. A new token
// without a certain id is refused: transformers would append it, even if the model was trained with another id.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/text/tokenizer_parts.h"

struct flags {
    bool special, single_word, lstrip, rstrip, normalized;
};

struct merger {
    json_t *added;       // added_tokens of tokenizer.json; this file adds tokens to it
    json_t *by_content;  // content -> its item of `added`
    json_t *named;       // content -> key of tokenizer_config.json that names the token: "pad_token", "image_token"
    json_t *made_by;     // content -> key that gave the token its flags; has no tokens of lists
    const json_t *vocab; // model.vocab
    json_int_t next_id;  // id for a token that has none yet
};

static enum status flags_read(const json_t *item, const char *content, bool special, struct flags *f)
{
    TRY(member_bool(item, content, "special", special, &f->special));
    TRY(member_bool(item, content, "single_word", false, &f->single_word));
    TRY(member_bool(item, content, "lstrip", false, &f->lstrip));
    TRY(member_bool(item, content, "rstrip", false, &f->rstrip));
    return member_bool(item, content, "normalized", !f->special, &f->normalized);
}

static bool flags_equal(const struct flags *a, const struct flags *b)
{
    return a->special == b->special && a->single_word == b->single_word && a->lstrip == b->lstrip &&
           a->rstrip == b->rstrip && a->normalized == b->normalized;
}

static void flags_write(json_t *item, const struct flags *f)
{
    json_object_set_new(item, "special", json_boolean(f->special));
    json_object_set_new(item, "single_word", json_boolean(f->single_word));
    json_object_set_new(item, "lstrip", json_boolean(f->lstrip));
    json_object_set_new(item, "rstrip", json_boolean(f->rstrip));
    json_object_set_new(item, "normalized", json_boolean(f->normalized));
}

static void note_id(struct merger *m, json_int_t id)
{
    if (id >= m->next_id && id < TOKEN_IDS_LIMIT) m->next_id = id + 1;
}

static void token_append(struct merger *m, json_int_t id, const char *content, const struct flags *f)
{
    json_t *item = json_pack("{s:I,s:s}", "id", id, "content", content);
    flags_write(item, f);
    json_array_append_new(m->added, item);
    json_object_set(m->by_content, content, item);
    note_id(m, id);
}

// Reads a string, or an object with `content`. *content_p is NULL for an empty token and for other types.
static enum status token_content(const json_t *value, const char *key, const char **content_p)
{
    *content_p = json_string_value(value);
    if (json_is_object(value)) TRY(member_string(value, key, "content", NULL, content_p));
    if (*content_p && !**content_p) *content_p = NULL;
    return STATUS_OK;
}

// ---- added_tokens_decoder: {"32000": {"content": "<x>", ...}} ----

struct entry {
    json_int_t id;
    const json_t *item;
};

static int entry_compare(const void *a, const void *b)
{
    const struct entry *left = a, *right = b;
    return (left->id > right->id) - (left->id < right->id);
}

static enum status entry_merge(struct merger *m, const struct entry *entry)
{
    static const char where[] = "added_tokens_decoder";
    const char *content;
    struct flags flags, old = {0};
    TRY(token_content(entry->item, where, &content));
    if (!content) return STATUS_OK;
    TRY(flags_read(entry->item, content, false, &flags));
    json_t *known = json_object_get(m->by_content, content);
    if (known) TRY(flags_read(known, content, false, &old));
    if (known && flags_equal(&flags, &old)) return STATUS_OK;
    if (json_object_get(m->named, content)) flags.special = true;
    const json_t *in_vocab = json_object_get(m->vocab, content);
    if (known) {
        flags.special = flags.special || old.special; // as in the `tokenizers` library, a special token stays special
        flags_write(known, &flags);
    } else if (in_vocab) {
        token_append(m, json_integer_value(in_vocab), content, &flags);
    } else if (entry->id == m->next_id) {
        token_append(m, entry->id, content, &flags);
    } else {
        return status_fail(STATUS_DATA,
                           "%s.%lld: \"%.64s\" is not a token of tokenizer.json, whose next id is %lld: add it to "
                           "added_tokens there",
                           where, (long long)entry->id, content, (long long)m->next_id);
    }
    return STATUS_OK;
}

// Merges added_tokens_decoder, which may be NULL.
static enum status merge_decoder(struct merger *m, const json_t *decoder)
{
    const char *key;
    json_t *item;
    int n = 0;
    struct entry *entries = mem_alloc_array(json_object_size(decoder) + 1, sizeof *entries);
    json_object_foreach((json_t *)decoder, key, item) entries[n++] = (struct entry){strtoll(key, NULL, 10), item};
    qsort(entries, (size_t)n, sizeof *entries, entry_compare);
    enum status status = STATUS_OK;
    for (int i = 0; i < n && status == STATUS_OK; i++)
        status = entry_merge(m, &entries[i]);
    free(entries);
    return status;
}

// Merges added_tokens.json: {"<x>": 32000}. Tokens that tokenizer.json also has keep their definition there.
static enum status merge_added_file(struct merger *m, const json_t *file)
{
    const char *content;
    json_t *id, *decoder = json_object();
    json_object_foreach((json_t *)file, content, id)
    {
        char key[32];
        snprintf(key, sizeof key, "%.0f", json_number_value(id));
        json_t *item =
            json_pack("{s:s,s:b}", "content", content, "special", json_object_get(m->named, content) != NULL);
        if (json_object_get(m->by_content, content))
            json_decref(item);
        else
            json_object_set_new(decoder, key, item);
    }
    enum status status = merge_decoder(m, decoder);
    json_decref(decoder);
    return status;
}

// ---- tokens by name ----

static enum status merge_token(struct merger *m, const char *key, const json_t *value)
{
    const char *content;
    struct flags flags, made;
    TRY(token_content(value, key, &content));
    if (!content) return STATUS_OK;
    const json_t *known = json_object_get(m->by_content, content), *made_by = json_object_get(m->made_by, content);
    if (known && !made_by) return STATUS_OK;
    if (made_by) {
        TRY(flags_read(value, content, true, &flags));
        TRY(flags_read(known, content, true, &made));
        flags.special = true;
        return flags_equal(&flags, &made)
                   ? STATUS_OK
                   : status_fail(STATUS_UNSUPPORTED,
                                 "%s and %s name \"%.64s\" with different flags: give both the same flags",
                                 json_string_value(made_by), key, content);
    }
    const json_t *in_vocab = json_object_get(m->vocab, content);
    if (!in_vocab)
        return status_fail(STATUS_DATA, "%s \"%.64s\" is not a token of tokenizer.json: add it to added_tokens there",
                           key, content);
    TRY(flags_read(value, content, true, &flags));
    flags.special = true;
    token_append(m, json_integer_value(in_vocab), content, &flags);
    json_object_set_new(m->made_by, content, json_string(key));
    return STATUS_OK;
}

// Calls merge_token() for every member of an object or array that names a token.
static enum status merge_tokens(struct merger *m, const char *key, const json_t *values)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)values, name, value) TRY(merge_token(m, name, value));
    for (size_t i = 0; i < json_array_size(values); i++)
        TRY(merge_token(m, key, json_array_get(values, i)));
    return STATUS_OK;
}

static bool names_token(const char *key)
{
    size_t n = strlen(key), suffix = strlen("_token");
    return n > suffix && strcmp(key + n - suffix, "_token") == 0;
}

static enum status find_named(struct merger *m, const json_t *config)
{
    const char *key, *content;
    json_t *value;
    json_object_foreach((json_t *)config, key, value)
    {
        TRY(token_content(value, key, &content));
        if (content && names_token(key)) json_object_set_new(m->named, content, json_string(key));
    }
    return STATUS_OK;
}

static enum status merge_named(struct merger *m, const json_t *config)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)config, key, value)
    {
        if (names_token(key)) TRY(merge_token(m, key, value));
    }
    // The older name is read if the newer one is absent or empty.
    key = "extra_special_tokens";
    value = json_object_get(config, key);
    if (!json_object_size(value) && !json_array_size(value))
        value = json_object_get(config, key = "additional_special_tokens");
    return merge_tokens(m, key, value);
}

// ---- all files ----

static void index_added(struct merger *m)
{
    m->next_id = (json_int_t)json_object_size(m->vocab);
    for (size_t i = 0; i < json_array_size(m->added); i++) {
        json_t *item = json_array_get(m->added, i);
        const char *content = json_string_value(json_object_get(item, "content"));
        note_id(m, json_integer_value(json_object_get(item, "id")));
        if (content) json_object_set(m->by_content, content, item);
    }
}

static enum status merge_all(struct merger *m, const json_t *config)
{
    const json_t *decoder;
    TRY(member_object(config, "tokenizer_config", "added_tokens_decoder", &decoder));
    index_added(m);
    TRY(find_named(m, config));
    TRY(merge_decoder(m, decoder));
    TRY(merge_added_file(m, json_object_get(config, TOKENIZER_ADDED_FILE)));
    return merge_named(m, config);
}

enum status tokenizer_merge_config(json_t *root, const json_t *config)
{
    const json_t *model = json_object_get(root, "model");
    struct merger m = {.added = json_object_get(root, "added_tokens"), .vocab = json_object_get(model, "vocab")};
    if (json_is_true(json_object_get(config, "split_special_tokens")))
        return status_fail(STATUS_UNSUPPORTED, "split_special_tokens is true: special tokens of a trusted text are "
                                               "always recognised here");
    if (!m.added || json_is_null(m.added)) {
        m.added = json_array();
        json_object_set_new(root, "added_tokens", m.added);
    }
    if (!json_is_array(m.added) || !json_is_object(m.vocab)) return STATUS_OK; // tokenizer_read() reports the error
    m.by_content = json_object();
    m.named = json_object();
    m.made_by = json_object();
    enum status status = merge_all(&m, config);
    json_decref(m.by_content);
    json_decref(m.named);
    json_decref(m.made_by);
    return status;
}
