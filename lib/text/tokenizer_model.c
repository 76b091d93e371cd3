// SPDX-License-Identifier: Apache-2.0
// Reads the model of tokenizer.json: ids, added tokens, vocabulary and merges. Checks all ids and lengths once, so that
// encoding and decoding need not check them.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/text/tokenizer_parts.h"

// ---- Ids: the model's vocabulary and the added tokens.

static enum status id_check(const json_t *value, const char *what, const char *token, int32_t *id_p)
{
    json_int_t id = json_integer_value(value);
    if (!json_is_integer(value) || id < 0 || id >= TOKEN_IDS_LIMIT)
        return status_fail(STATUS_DATA, "%s: the id of \"%.64s\" must be an integer from 0 to %d", what, token,
                           TOKEN_IDS_LIMIT - 1);
    *id_p = (int32_t)id;
    return STATUS_OK;
}

static enum status ids_count(struct tokenizer *t, const json_t *added)
{
    const char *token;
    json_t *value;
    int32_t id = 0, largest = -1;
    size_t room = 1;
    json_object_foreach(t->vocab, token, value)
    {
        TRY(id_check(value, "model.vocab", token, &id));
        if (id > largest) largest = id;
        room += strlen(token) + 1;
    }
    for (size_t i = 0; i < json_array_size(added); i++) {
        const char *content;
        const json_t *item = json_array_get(added, i);
        TRY(member_string(item, "added_tokens", "content", "", &content));
        if (!*content) return status_fail(STATUS_DATA, "added_tokens[%zu]: has no content", i);
        TRY(id_check(json_object_get(item, "id"), "added_tokens", content, &id));
        if (id > largest) largest = id;
        room += strlen(content) + 1;
    }
    if (largest < 0) return status_fail(STATUS_DATA, "model.vocab is empty");
    t->n_ids = largest + 1;
    t->spelling = mem_alloc_array((size_t)t->n_ids, sizeof *t->spelling);
    t->special = mem_alloc_array((size_t)t->n_ids, sizeof *t->special);
    bytes_reserve(&t->spellings, room); // reserve the final size, so that pointers into it stay valid
    return STATUS_OK;
}

static void spelling_set(struct tokenizer *t, int32_t id, const char *token)
{
    t->spelling[id] = t->spellings.data + t->spellings.n;
    bytes_add(&t->spellings, token, strlen(token) + 1);
}

static enum status read_vocabulary(struct tokenizer *t)
{
    const char *token;
    json_t *value;
    json_object_foreach(t->vocab, token, value)
    {
        int32_t id = (int32_t)json_integer_value(value);
        if (t->spelling[id])
            return status_fail(STATUS_DATA, "model.vocab: \"%.64s\" and \"%.64s\" have the same id %d", t->spelling[id],
                               token, id);
        spelling_set(t, id, token);
    }
    return STATUS_OK;
}

static enum status read_added_members(const json_t *item, const char **content_p, struct added_token *token)
{
    TRY(member_string(item, "added_tokens", "content", "", content_p));
    TRY(member_bool(item, *content_p, "special", false, &token->special));
    TRY(member_bool(item, *content_p, "single_word", false, &token->single_word));
    TRY(member_bool(item, *content_p, "lstrip", false, &token->lstrip));
    TRY(member_bool(item, *content_p, "rstrip", false, &token->rstrip));
    return member_bool(item, *content_p, "normalized", !token->special, &token->normalized);
}

static enum status read_added_token(struct tokenizer *t, const json_t *item, struct added_token *token)
{
    const char *content;
    enum status status = read_added_members(item, &content, token);
    if (status) return status_context(status, "added_tokens");
    token->id = (int32_t)json_integer_value(json_object_get(item, "id"));
    const json_t *in_vocab = json_object_get(t->vocab, content);
    if (in_vocab && json_integer_value(in_vocab) != token->id)
        return status_fail(STATUS_DATA, "added_tokens: \"%.64s\" has id %d, but %lld in model.vocab", content,
                           token->id, (long long)json_integer_value(in_vocab));
    if (t->spelling[token->id] && strcmp(t->spelling[token->id], content) != 0)
        return status_fail(STATUS_DATA, "added_tokens: \"%.64s\" has the id %d of \"%.64s\"", content, token->id,
                           t->spelling[token->id]);
    if (!t->spelling[token->id]) spelling_set(t, token->id, content);
    t->special[token->id] = token->special;
    token->content = mem_string(content);
    token->n = strlen(content);
    return STATUS_OK;
}

// Normalizes the content of a token that is matched in normalized text.
static enum status normalize_token(const struct tokenizer *t, struct pattern_scratch *scratch,
                                   struct added_token *token)
{
    struct text_buffer buffers[2] = {0};
    struct text_span span = {.text = token->content, .n = token->n, .at_start = true};
    enum status status = normalizer_run(&t->normalizer, scratch, span, buffers, &span);
    if (status == STATUS_OK && span.n == 0)
        status = status_fail(STATUS_DATA, "added_tokens: the token with id %d is empty when normalized", token->id);
    if (status == STATUS_OK && span.text != token->content) {
        char *content = mem_alloc(span.n + 1);
        memcpy(content, span.text, span.n);
        free(token->content);
        token->content = content;
        token->n = span.n;
    }
    text_buffer_free(&buffers[0]);
    text_buffer_free(&buffers[1]);
    return status;
}

static size_t contents_bytes(const json_t *added)
{
    size_t i, n = 0;
    const json_t *token;
    json_array_foreach(added, i, token) n += json_string_length(json_object_get(token, "content"));
    return n;
}

static enum status read_added(struct tokenizer *t, const json_t *added)
{
    size_t n = json_array_size(added);
    struct pattern_scratch *scratch = pattern_scratch_create(contents_bytes(added));
    struct added_token *plain = mem_alloc_array(n, sizeof *plain), *normalized = mem_alloc_array(n, sizeof *plain);
    int n_plain = 0, n_normalized = 0;
    enum status status = STATUS_OK;
    for (size_t i = 0; i < n && status == STATUS_OK; i++) {
        struct added_token token = {0};
        status = read_added_token(t, json_array_get(added, i), &token);
        if (status == STATUS_OK && token.normalized) status = normalize_token(t, scratch, &token);
        if (!token.content) break; // reading the token failed
        if (token.normalized)
            normalized[n_normalized++] = token;
        else
            plain[n_plain++] = token;
    }
    pattern_scratch_free(scratch);
    // From here on the sets own their tokens, even if a call fails.
    enum status plain_status = added_set_init(&t->added, plain, n_plain);
    enum status normalized_status = added_set_init(&t->added_normalized, normalized, n_normalized);
    return status ? status : plain_status ? plain_status : normalized_status;
}

// ---- Model.

static enum status check_model(const json_t *model)
{
    static const char *const absent[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const char *text;
    const json_t *dropout = json_object_get(model, "dropout");
    TRY(member_string(model, "model", "type", "BPE", &text));
    if (strcmp(text, "BPE") != 0)
        return status_fail(STATUS_UNSUPPORTED, "model type \"%.64s\" is not supported: known is BPE", text);
    if (dropout && !json_is_null(dropout) && json_number_value(dropout) != 0)
        return status_fail(STATUS_UNSUPPORTED, "model.dropout is not supported: must be null");
    for (int i = 0; i < 2; i++) {
        TRY(member_string(model, "model", absent[i], "", &text));
        if (*text) return status_fail(STATUS_UNSUPPORTED, "model.%s is not supported: must be null", absent[i]);
    }
    return STATUS_OK;
}

// Fills the vocabulary that BPE uses: the tokens as spelled or, in byte-level models, their bytes.
static void make_lookup_vocabulary(struct tokenizer *t)
{
    const char *token;
    json_t *value;
    struct bpe *bpe = &t->bpe;
    size_t *start = mem_alloc_array((size_t)t->n_ids, sizeof *start);
    vocabulary_init(&bpe->vocabulary, t->n_ids);
    json_object_foreach(t->vocab, token, value)
    {
        int32_t id = (int32_t)json_integer_value(value);
        start[id] = t->raw.n + 1;
        if (bpe->byte_level && !byte_level_decode(token, strlen(token), &t->raw)) start[id] = 0;
        if (bpe->byte_level && start[id]) bpe->vocabulary.length[id] = (uint32_t)(t->raw.n + 1 - start[id]);
    }
    bytes_add(&t->raw, "", 1); // makes it not NULL, so that pointers into it are valid
    for (int32_t id = 0; id < t->n_ids; id++) {
        if (!start[id]) continue;
        if (bpe->byte_level)
            vocabulary_add(&bpe->vocabulary, id, t->raw.data + start[id] - 1, bpe->vocabulary.length[id]);
        else
            vocabulary_add(&bpe->vocabulary, id, t->spelling[id], strlen(t->spelling[id]));
    }
    free(start);
    for (int byte = 0; byte < 256; byte++) {
        char name[8] = {(char)byte};
        size_t n = 1;
        if (!bpe->byte_level) n = (size_t)snprintf(name, sizeof name, "<0x%02X>", (unsigned)byte);
        bpe->byte_id[byte] = vocabulary_find(&bpe->vocabulary, name, n);
    }
}

// Creates the model's vocabulary as spelled. Every merge looks up three tokens in it.
static struct vocabulary spelled_vocabulary_create(const struct tokenizer *t)
{
    const char *token;
    json_t *value;
    struct vocabulary spelled;
    vocabulary_init(&spelled, t->n_ids);
    json_object_foreach(t->vocab, token, value)
    {
        int32_t id = (int32_t)json_integer_value(value);
        vocabulary_add(&spelled, id, t->spelling[id], strlen(t->spelling[id]));
    }
    return spelled;
}

// Splits "left right" or ["left", "right"].
static bool split_merge(const json_t *item, const char *part[2], size_t length[2])
{
    if (json_is_string(item)) {
        const char *blank = strchr(json_string_value(item), ' ');
        if (!blank || strchr(blank + 1, ' ')) return false;
        part[0] = json_string_value(item);
        length[0] = (size_t)(blank - part[0]);
        part[1] = blank + 1;
        length[1] = json_string_length(item) - length[0] - 1;
    } else {
        if (json_array_size(item) != 2) return false;
        for (size_t i = 0; i < 2; i++) {
            const json_t *text = json_array_get(item, i);
            if (!json_is_string(text)) return false;
            part[i] = json_string_value(text);
            length[i] = json_string_length(text);
        }
    }
    return length[0] && length[1];
}

static enum status read_merges(struct tokenizer *t, const json_t *merges)
{
    struct bytes joined = {0};
    enum status status = STATUS_OK;
    size_t n = json_array_size(merges);
    if (n >= UINT32_MAX / 4) return status_fail(STATUS_DATA, "model.merges: too many");
    struct vocabulary spelled = spelled_vocabulary_create(t);
    bpe_merges_init(&t->bpe, n);
    for (size_t i = 0; i < n && status == STATUS_OK; i++) {
        const char *part[2];
        size_t length[2];
        const json_t *item = json_array_get(merges, i);
        if (!split_merge(item, part, length)) {
            status = status_fail(STATUS_DATA, "model.merges[%zu]: must be \"left right\" or [\"left\", \"right\"]", i);
            break;
        }
        joined.n = 0;
        bytes_add(&joined, part[0], length[0]);
        bytes_add(&joined, part[1], length[1]);
        struct merge merge = {.left = vocabulary_find(&spelled, part[0], length[0]),
                              .right = vocabulary_find(&spelled, part[1], length[1]),
                              .result = vocabulary_find(&spelled, joined.data, joined.n),
                              .rank = (uint32_t)i};
        if (merge.left < 0 || merge.right < 0 || merge.result < 0) {
            status = status_fail(STATUS_DATA, "model.merges[%zu]: \"%.*s\" is not in model.vocab", i,
                                 merge.left < 0    ? (int)length[0]
                                 : merge.right < 0 ? (int)length[1]
                                                   : (int)joined.n,
                                 merge.left < 0    ? part[0]
                                 : merge.right < 0 ? part[1]
                                                   : joined.data);
            break;
        }
        // Text must never become a special token by merging. In a byte-level model, text never contains a token that is
        // not spelled in bytes.
        const char *const *token = (const char *const *)t->bpe.vocabulary.token;
        if (t->special[merge.result] || !token[merge.left] || !token[merge.right] || !token[merge.result]) continue;
        status = bpe_merge_add(&t->bpe, merge);
    }
    bytes_free(&joined);
    vocabulary_fini(&spelled);
    return status;
}

static enum status read_model(struct tokenizer *t, const json_t *model)
{
    bool ignore_merges;
    const char *unknown;
    const json_t *merges;
    TRY(member_bool(model, "model", "byte_fallback", false, &t->bpe.byte_fallback));
    TRY(member_bool(model, "model", "fuse_unk", false, &t->bpe.fuse_unknown));
    TRY(member_bool(model, "model", "ignore_merges", false, &ignore_merges));
    TRY(member_string(model, "model", "unk_token", NULL, &unknown));
    TRY(member_array(model, "model", "merges", &merges));
    make_lookup_vocabulary(t);
    const json_t *unknown_id = unknown ? json_object_get(t->vocab, unknown) : NULL;
    t->bpe.unknown = unknown_id ? (int32_t)json_integer_value(unknown_id) : -1;
    if (unknown && t->bpe.unknown < 0)
        return status_fail(STATUS_DATA, "model.unk_token \"%.64s\" is not in model.vocab", unknown);
    TRY(read_merges(t, merges));
    bpe_complete(&t->bpe, ignore_merges, t->special);
    return STATUS_OK;
}

// ---- All parts, in the order of their dependences.

enum status tokenizer_read(struct tokenizer *t, const json_t *root)
{
    const json_t *model, *vocab, *added;
    TRY(member_object(root, "tokenizer", "model", &model));
    if (!model) return status_fail(STATUS_DATA, "model is missing");
    TRY(check_model(model));
    TRY(member_object(model, "model", "vocab", &vocab));
    if (!vocab) return status_fail(STATUS_DATA, "model.vocab is missing");
    TRY(member_array(root, "tokenizer", "added_tokens", &added));
    t->vocab = (json_t *)vocab; // borrowed while loading
    TRY(ids_count(t, added));
    TRY(read_vocabulary(t));
    TRY(tokenizer_read_normalizer(t, json_object_get(root, "normalizer")));
    TRY(read_added(t, added));
    TRY(tokenizer_read_pretokenizer(t, json_object_get(root, "pre_tokenizer")));
    TRY(read_model(t, model));
    TRY(tokenizer_read_decoder(t, json_object_get(root, "decoder")));
    TRY(tokenizer_make_pieces(t));
    TRY(tokenizer_read_postprocessor(t, json_object_get(root, "post_processor")));
    t->longest_piece_bytes = tokenizer_compute_longest_piece(t);
    tokenizer_compute_shares(t, &t->shares);
    t->fingerprint = tokenizer_compute_fingerprint(t, json_is_true(json_object_get(model, "ignore_merges")));
    t->vocab = NULL;
    return STATUS_OK;
}
