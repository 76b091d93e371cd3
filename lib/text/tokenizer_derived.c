// SPDX-License-Identifier: Apache-2.0
// Computes values from a tokenizer's parts: the bounds on the bytes of a token, and the fingerprint.
#include <string.h>

#include "lib/text/tokenizer_parts.h"

size_t tokenizer_compute_longest_piece(const struct tokenizer *t)
{
    size_t longest = 1, factor = 1;
    bool bytes = true;
    for (int i = 0; i < 256; i++)
        bytes = bytes && t->bpe.byte_id[i] >= 0;
    bool covered = bytes && (t->bpe.byte_level || t->bpe.byte_fallback);
    if (!covered && (t->bpe.unknown < 0 || t->bpe.fuse_unknown))
        return SIZE_MAX; // one token may stand for any number of dropped or fused characters
    for (int i = 0; i < t->n_pretoken; i++)
        if (t->pretoken[i].kind == PRETOKEN_SPLIT && t->pretoken[i].behavior == SPLIT_REMOVED) return SIZE_MAX;
    for (int i = 0; i < t->normalizer.n_steps; i++) {
        const struct normalizer_step *step = &t->normalizer.steps[i];
        if (step->kind == NORMALIZER_NFC)
            factor *= 3; // worst case: three jamo of three bytes compose to one syllable of three bytes
        if (step->kind != NORMALIZER_REPLACE) continue;
        size_t length = pattern_literal_length(step->pattern);
        if (!length || !step->n) return SIZE_MAX;
        factor *= (length + step->n - 1) / step->n;
        if (factor > 1 << 20) return SIZE_MAX;
    }
    for (int i = 0; i < t->added.n + t->added_normalized.n; i++) {
        const struct added_token *token =
            i < t->added.n ? &t->added.tokens[i] : &t->added_normalized.tokens[i - t->added.n];
        if (token->lstrip || token->rstrip) return SIZE_MAX;
        if (token->n > longest) longest = token->n;
    }
    for (int32_t id = 0; id < t->n_ids; id++)
        if (t->bpe.vocabulary.length[id] > longest) longest = t->bpe.vocabulary.length[id];
    return (longest < 4 ? 4 : longest) * factor; // an unknown character has up to four bytes
}

static void note_piece(size_t longest[256], const char *bytes, size_t n, size_t stands_for)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char b = (unsigned char)bytes[i];
        if (stands_for > longest[b]) longest[b] = stands_for;
    }
}

// Finds the texts to which the shares of bytes apply. The normalizer must not change the bytes of such a text, except
// that it may spell blanks like the vocabulary. NFC composes characters, but never in a text of ASCII characters.
static void shares_find_texts(const struct tokenizer *t, struct token_shares *shares)
{
    shares->ascii = shares->unicode = true;
    for (int i = 0; i < t->normalizer.n_steps; i++) {
        const struct normalizer_step *step = &t->normalizer.steps[i];
        if (step->kind == NORMALIZER_NFC) shares->unicode = false;
        bool blank = step->kind == NORMALIZER_REPLACE && pattern_literal_length(step->pattern) == 1 &&
                     pattern_source(step->pattern)[0] == ' ' && !strcmp(step->text, TOKENIZER_METASPACE);
        if (step->kind == NORMALIZER_REPLACE && !blank) shares->ascii = shares->unicode = false;
    }
}

void tokenizer_compute_shares(const struct tokenizer *t, struct token_shares *shares_p)
{
    struct token_shares shares = {0};
    size_t longest[256];
    if (t->longest_piece_bytes != SIZE_MAX) {
        shares.any = TOKEN_SHARE_ONE / t->longest_piece_bytes;
        shares_find_texts(t, &shares);
    }
    for (int b = 0; b < 256; b++)
        longest[b] = 4; // an unknown character
    for (int i = 0; i < t->added.n + t->added_normalized.n; i++) {
        const struct added_token *token =
            i < t->added.n ? &t->added.tokens[i] : &t->added_normalized.tokens[i - t->added.n];
        note_piece(longest, token->content, token->n, token->n);
    }
    for (int32_t id = 0; id < t->n_ids; id++) {
        // Consider the spelled and the decoded token: a blank has more bytes when spelled.
        size_t piece = t->piece_start[id + 1] - t->piece_start[id], spelled = t->bpe.vocabulary.length[id];
        size_t most = piece > spelled ? piece : spelled;
        note_piece(longest, t->pieces.data + t->piece_start[id], piece, most);
        note_piece(longest, t->bpe.vocabulary.token[id], spelled, most);
    }
    for (int b = 0; b < 256; b++)
        shares.byte[b] = TOKEN_SHARE_ONE / longest[b];
    *shares_p = shares;
}

static void hash_add(uint64_t *hash, const void *data, size_t n)
{
    const unsigned char *bytes = data;
    for (size_t i = 0; i < n; i++)
        *hash = (*hash ^ bytes[i]) * 0x100000001B3u; // FNV-1a
}

static void hash_int(uint64_t *hash, int64_t value)
{
    hash_add(hash, &value, sizeof value);
}

static void hash_string(uint64_t *hash, const char *text)
{
    hash_int(hash, text ? (int64_t)strlen(text) : -1);
    if (text) hash_add(hash, text, strlen(text));
}

static void hash_pattern(uint64_t *hash, const struct pattern *pattern)
{
    hash_int(hash, pattern ? (int64_t)pattern_literal_length(pattern) : -1); // 0 means a regular expression
    hash_string(hash, pattern ? pattern_source(pattern) : NULL);
}

// Hashes the merges in the order of the file. Skips ranks without a merge.
static void hash_merges(uint64_t *hash, const struct bpe *bpe)
{
    int64_t n = 0;
    for (size_t rank = 0; rank < bpe->n_merges; rank++)
        n += bpe_merge_of_rank(bpe, rank) != NULL;
    hash_int(hash, n);
    for (size_t rank = 0; rank < bpe->n_merges; rank++) {
        const struct merge *merge = bpe_merge_of_rank(bpe, rank);
        if (!merge) continue;
        hash_int(hash, merge->left);
        hash_int(hash, merge->right);
    }
}

static void hash_added(uint64_t *hash, const struct added_set *set)
{
    hash_int(hash, set->n);
    for (int i = 0; i < set->n; i++) { // sorted by content
        const struct added_token *token = &set->tokens[i];
        hash_int(hash, token->id);
        hash_string(hash, token->content);
        hash_int(hash, token->special | token->single_word << 1 | token->lstrip << 2 | token->rstrip << 3);
    }
}

uint64_t tokenizer_compute_fingerprint(const struct tokenizer *t, bool ignore_merges)
{
    uint64_t hash = 0xCBF29CE484222325u;
    hash_int(&hash, t->n_ids);
    for (int32_t id = 0; id < t->n_ids; id++)
        hash_string(&hash, t->spelling[id]);
    hash_merges(&hash, &t->bpe);
    hash_added(&hash, &t->added);
    hash_added(&hash, &t->added_normalized);
    hash_int(&hash, t->normalizer.n_steps);
    for (int i = 0; i < t->normalizer.n_steps; i++) {
        hash_int(&hash, t->normalizer.steps[i].kind);
        hash_string(&hash, t->normalizer.steps[i].text);
        hash_pattern(&hash, t->normalizer.steps[i].pattern);
    }
    hash_int(&hash, t->n_pretoken);
    for (int i = 0; i < t->n_pretoken; i++) {
        const struct pretoken_step *step = &t->pretoken[i];
        hash_int(&hash, step->kind | step->behavior << 4 | step->invert << 8 | step->scheme << 12);
        hash_string(&hash, step->text);
        hash_pattern(&hash, step->pattern);
    }
    hash_int(&hash, t->bpe.byte_level | t->bpe.byte_fallback << 1 | t->bpe.fuse_unknown << 2 | ignore_merges << 3);
    hash_int(&hash, t->bpe.unknown);
    return hash ? hash : 1;
}
