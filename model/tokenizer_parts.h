// SPDX-License-Identifier: Apache-2.0
// What a tokenizer is made of: filled by tokenizer_model.c and tokenizer_kinds.c, used by tokenizer_encode.c
// and tokenizer_decode.c. Private to the tokenizer*.c files.
#pragma once

#include <jansson.h>

#include "model/added_tokens.h"
#include "model/bpe.h"
#include "model/json_members.h"
#include "model/normalizer.h"
#include "model/pattern.h"
#include "model/tokenizer.h"
#include "model/unicode.h"

enum { PRETOKEN_STEPS_LIMIT = 16, AROUND_LIMIT = 16, REPLACE_LIMIT = 8, TOKEN_IDS_LIMIT = 1 << 21 };

enum split_behavior { SPLIT_ISOLATED, SPLIT_REMOVED, SPLIT_CONTIGUOUS, SPLIT_WITH_PREVIOUS, SPLIT_WITH_NEXT };
enum prepend_scheme { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER };

enum pretoken_kind {
    PRETOKEN_SPLIT,     // cut at the matches of `pattern`
    PRETOKEN_BLANK,     // put a blank in front unless there is one (ByteLevel's add_prefix_space)
    PRETOKEN_METASPACE, // blanks become `text`, which also comes in front by `scheme`
};

struct pretoken_step {
    enum pretoken_kind kind;
    struct pattern *pattern; // SPLIT: owned
    enum split_behavior behavior;
    bool invert; // what lies between matches counts as the match
    char *text;  // METASPACE: owned
    size_t n;
    enum prepend_scheme scheme;
};

struct decoder {
    bool known, fused;  // while loading: something was read; Fuse came
    bool byte_level;    // tokens spell bytes in GPT-2's alphabet
    bool byte_fallback; // "<0x0A>" is that byte
    struct {
        struct pattern *pattern; // owned
        char *text;              // owned
        size_t n;
    } replace[REPLACE_LIMIT]; // within each token
    int n_replace;
    char *strip; // owned, NULL: none; up to `strip_most` of these are taken off the start of a text
    int strip_most;
    char *metaspace; // owned, NULL: none; in the first token of a text it is dropped, not turned into a blank
};

struct tokenizer {
    json_t *vocab;          // only while loading: the model's vocabulary as spelled
    int n_ids;              // largest id + 1, added tokens included
    char **spelling;        // [n_ids], NULL: no such token; they point into `spellings`
    struct bytes spellings; // all of them, one after another, each with its NUL
    bool *special;          // [n_ids]
    struct bytes pieces;    // decoded bytes of all tokens
    uint32_t *piece_start;  // [n_ids + 1] into `pieces`
    struct bytes raw;       // byte-level: the bytes that tokens stand for, which bpe.vocabulary points into
    struct added_set added; // looked for in the text as it comes
    struct added_set added_normalized;
    struct normalizer normalizer;
    struct pretoken_step pretoken[PRETOKEN_STEPS_LIMIT];
    int n_pretoken;
    struct bpe bpe;
    struct decoder decoder;
    int32_t before[AROUND_LIMIT], after[AROUND_LIMIT]; // ids that ADD_SPECIAL puts around a text
    int n_before, n_after;
    int32_t bos, eos;
    char *chat_template; // owned, NULL: none
    size_t longest_piece_bytes;
    uint64_t fingerprint;
};

// tokenizer_kinds.c: each reads one part of tokenizer.json (`value` may be NULL or null: absent) into `tokenizer`.
enum status tokenizer_read_normalizer(struct tokenizer *tokenizer, const json_t *value);
enum status tokenizer_read_pretokenizer(struct tokenizer *tokenizer, const json_t *value);
enum status tokenizer_read_decoder(struct tokenizer *tokenizer, const json_t *value);
enum status tokenizer_read_postprocessor(struct tokenizer *tokenizer, const json_t *value);

// tokenizer_model.c: fills all from the object in tokenizer.json, save bos, eos and chat_template.
enum status tokenizer_read(struct tokenizer *tokenizer, const json_t *root);

// tokenizer_derived.c
size_t tokenizer_find_longest_piece(const struct tokenizer *tokenizer);
uint64_t tokenizer_find_fingerprint(const struct tokenizer *tokenizer, bool ignore_merges);

// tokenizer_decode.c: fills `pieces` from spellings and decoder.
enum status tokenizer_make_pieces(struct tokenizer *tokenizer);

// GPT-2's alphabet, in which byte-level vocabularies spell bytes as printable characters. False when `text`
// holds another character.
bool byte_level_decode(const char *text, size_t n, struct bytes *out);

// The byte that a byte-fallback token ("<0x0A>") stands for; -1: it is none.
int byte_fallback_value(const char *token);
