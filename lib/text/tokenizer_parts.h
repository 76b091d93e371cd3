// SPDX-License-Identifier: Apache-2.0
// The parts of a tokenizer: filled by tokenizer_model.c and tokenizer_kinds.c, used by tokenizer_encode.c and
// tokenizer_decode.c. Private to the tokenizer*.c files.
#pragma once

#include <jansson.h>

#include "lib/text/added_tokens.h"
#include "lib/text/bpe.h"
#include "lib/text/json_members.h"
#include "lib/text/normalizer.h"
#include "lib/text/pattern.h"
#include "lib/text/tokenizer.h"
#include "lib/text/unicode.h"

enum { PRETOKEN_STEPS_LIMIT = 16, FRAME_LIMIT = 16, REPLACE_LIMIT = 8, TOKEN_IDS_LIMIT = 1 << 21 };

// Spelling of a blank in vocabularies of SentencePiece: U+2581.
#define TOKENIZER_METASPACE "\xE2\x96\x81"

enum split_behavior { SPLIT_ISOLATED, SPLIT_REMOVED, SPLIT_CONTIGUOUS, SPLIT_WITH_PREVIOUS, SPLIT_WITH_NEXT };
enum prepend_scheme { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER };

enum pretoken_kind {
    PRETOKEN_SPLIT,     // split at the matches of `pattern`
    PRETOKEN_BLANK,     // add a blank at the start unless there is one (ByteLevel's add_prefix_space)
    PRETOKEN_METASPACE, // replace blanks by `text`, and add `text` at the start according to `scheme`
};

struct pretoken_step {
    enum pretoken_kind kind;
    struct pattern *pattern; // SPLIT: owned
    enum split_behavior behavior;
    bool invert; // the text between matches counts as the match
    char *text;  // METASPACE: owned
    size_t n;
    enum prepend_scheme scheme;
};

struct decoder {
    bool known, fused;  // used while loading: a decoder was read; Fuse was read
    bool byte_level;    // tokens spell bytes in GPT-2's alphabet
    bool byte_fallback; // "<0x0A>" decodes to that byte
    struct {
        struct pattern *pattern; // owned
        char *text;              // owned
        size_t n;
    } replace[REPLACE_LIMIT]; // replacements within each token
    int n_replace;
    char *strip; // removed from the start of a text, at most `strip_max` times; owned, or NULL
    int strip_max;
    char *metaspace; // removed from the first token of a text instead of becoming a blank; owned, or NULL
};

// Shares: each byte of a text makes up at least this part of a token, in units of 1 / TOKEN_SHARE_ONE.
#define TOKEN_SHARE_ONE ((uint64_t)1 << 32)
struct token_shares {
    uint64_t any;        // share of every byte of any text; 0: a token may stand for any number of bytes
    uint64_t byte[256];  // share of each byte, for texts to which these shares apply
    bool ascii, unicode; // `byte` applies to ASCII texts; `byte` applies to all other texts
};

struct tokenizer {
    json_t *vocab;          // used only while loading: the model's vocabulary in the file
    int n_ids;              // largest id + 1, added tokens included
    char **spelling;        // [n_ids], pointers into `spellings`; NULL: unused id
    struct bytes spellings; // NUL-terminated, one after another
    bool *special;          // [n_ids]
    struct bytes pieces;    // decoded bytes of all tokens
    uint32_t *piece_start;  // [n_ids + 1] into `pieces`
    struct bytes raw;       // byte-level: the bytes of all tokens, borrowed by bpe.vocabulary
    struct added_set added; // matched in the text before normalization
    struct added_set added_normalized;
    struct normalizer normalizer;
    struct pretoken_step pretoken[PRETOKEN_STEPS_LIMIT];
    int n_pretoken;
    struct bpe bpe;
    struct decoder decoder;
    int32_t before[FRAME_LIMIT], after[FRAME_LIMIT]; // ids that ADD_SPECIAL adds before and after a text
    int n_before, n_after;
    int32_t eos;
    size_t longest_piece_bytes;
    struct token_shares shares;
    uint64_t fingerprint;
};

// tokenizer_kinds.c: read one part of tokenizer.json into `tokenizer`. The part is absent if `value` is NULL or null.
enum status tokenizer_read_normalizer(struct tokenizer *tokenizer, const json_t *value);
enum status tokenizer_read_pretokenizer(struct tokenizer *tokenizer, const json_t *value);
enum status tokenizer_read_decoder(struct tokenizer *tokenizer, const json_t *value);
enum status tokenizer_read_postprocessor(struct tokenizer *tokenizer, const json_t *value);

// tokenizer_config.c: adds the tokens of tokenizer_config.json to added_tokens of `root`, which is tokenizer.json. A
// member TOKENIZER_ADDED_FILE of `config` has the content of that file. Returns STATUS_DATA or STATUS_UNSUPPORTED; the
// error message names the key.
#define TOKENIZER_ADDED_FILE "added_tokens.json"
enum status tokenizer_merge_config(json_t *root, const json_t *config);

// tokenizer_model.c: reads all of tokenizer.json. BOS and EOS come from tokenizer_config.json.
enum status tokenizer_read(struct tokenizer *tokenizer, const json_t *root);

// tokenizer_derived.c: compute values for tokenizer.h.
size_t tokenizer_compute_longest_piece(const struct tokenizer *tokenizer);
void tokenizer_compute_shares(const struct tokenizer *tokenizer, struct token_shares *shares_p);
uint64_t tokenizer_compute_fingerprint(const struct tokenizer *tokenizer, bool ignore_merges);

// tokenizer_decode.c: decodes every token once, into `pieces`.
enum status tokenizer_make_pieces(struct tokenizer *tokenizer);

// Decodes GPT-2's alphabet, in which byte-level vocabularies spell bytes as printable characters. Returns false if
// `text` contains another character.
bool byte_level_decode(const char *text, size_t n, struct bytes *out);
