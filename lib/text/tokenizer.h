// SPDX-License-Identifier: Apache-2.0
// A model's tokenizer.json: converts text to token ids and back.
//
// Supports byte-level BPE (GPT-2, Llama 3, Qwen) and SentencePiece-style BPE with byte fallback (Llama 2, Mistral). The
// same text gives the same ids as in Hugging Face's `tokenizers` library. Unsupported types of normalizer,
// pre-tokenizer, model, decoder or post-processor give STATUS_UNSUPPORTED and an error message that names them. BPE for
// text: Sennrich et al., arXiv 1508.07909.
//
// Ownership: the caller frees arrays and strings returned through `_p` with free(), and the tokenizer with
// tokenizer_free(). Threads: immutable after tokenizer_open(); any thread may use it at any time. The tokenizer never
// logs.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/status.h"

struct tokenizer;

// Longest text that one call encodes (INVALID if it is longer), and longest result of decoding (OUT_OF_RANGE).
#define TOKENIZER_TEXT_LIMIT_BYTES   ((size_t)128 << 20)
#define TOKENIZER_DECODE_LIMIT_BYTES ((size_t)16 << 20)

// Reads `model_dir`/tokenizer.json and, if present, the tokens of tokenizer_config.json, special_tokens_map.json and
// added_tokens.json. As in transformers 5, only the post-processor of tokenizer.json decides which tokens surround a
// text: add_bos_token and add_eos_token are ignored. NOT_FOUND: there is no tokenizer.json. DATA: a file is broken or
// contradictory; the error message names file and place. UNSUPPORTED: a file is valid, but has an unsupported type.
enum status tokenizer_open(const char *model_dir, struct tokenizer **tokenizer_p);
void tokenizer_free(struct tokenizer *tokenizer); // NULL is fine

enum tokenizer_encode_flags {
    TOKENIZER_ADD_SPECIAL = 1,   // add the post-processor's tokens, usually BOS
    TOKENIZER_PARSE_SPECIAL = 2, // parse "<|eot_id|>" as that token; without this flag it is plain text
};

// Encodes text [size_bytes], UTF-8 that may contain NULs, to `*n_p` ids in `*ids_p` (never NULL on success). Takes
// nearly linear time for any text. Added tokens that are not special ("<tool_call>") are always recognised, as in
// Hugging Face. INVALID: the text is not UTF-8 (with the byte offset), or longer than the limit.
enum status tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t size_bytes, unsigned flags,
                             int32_t **ids_p, int *n_p);

struct text_range {
    size_t start, end; // bytes, half-open
};

// Encodes a text that contains untrusted parts. With PARSE_SPECIAL, special tokens are recognised only outside the
// `untrusted` ranges (ascending, disjoint; n_untrusted may be 0). In all other respects the ids equal the ids of
// tokenizer_encode(). Returns OUT_OF_RANGE as soon as there are more than `max_ids` ids, without encoding the rest of
// the text. If `starts_p` is not NULL, it receives for each id the byte of `text` where the token starts (ascending; an
// id added before or after the text gets 0 or size_bytes).
enum status tokenizer_encode_untrusted(const struct tokenizer *tokenizer, const char *text, size_t size_bytes,
                                       unsigned flags, const struct text_range *untrusted, int n_untrusted, int max_ids,
                                       int32_t **ids_p, size_t **starts_p, int *n_p);

enum tokenizer_decode_flags {
    TOKENIZER_SKIP_SPECIAL = 1, // omit special tokens
    TOKENIZER_CONTINUATION = 2, // the ids continue an earlier text: keep the first token's leading space, which
                                // SentencePiece removes at the start of a text
};

// Decodes ids [n] to UTF-8 text, NUL-terminated for convenience (the text may contain NULs; size_bytes_p may be NULL).
// Each ill-formed part of the joined bytes becomes one U+FFFD, as Unicode recommends. This differs from Hugging
// Face's ByteFallback, which replaces every byte of an ill-formed run of byte tokens. A stream cannot do that, because
// it has sent the beginning of the run already.
// `clean_up_tokenization_spaces` is not applied: it would change the text. INVALID: an id is outside 0..vocab_size-1.
// OUT_OF_RANGE: the tokens have more than TOKENIZER_DECODE_LIMIT_BYTES. The limit is needed because an id of a few
// bytes can stand for a long text.
enum status tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, int n, unsigned flags,
                             char **text_p, size_t *size_bytes_p);

// Finds the bytes of one token, possibly part of a character. The bytes of a special token are its name. `*bytes_p` is
// valid as long as the tokenizer and not NUL-terminated. An unused id, or an id outside the vocabulary, has no bytes:
// models pad their vocabulary, and a sampled padding id must not end a stream.
void tokenizer_piece(const struct tokenizer *tokenizer, int32_t id, const char **bytes_p, size_t *size_bytes_p);

// Returns the token as tokenizer.json spells it ("▁the", "Ġthe", "<0x0A>"), NUL-terminated, or NULL if no token has
// this id.
const char *tokenizer_token(const struct tokenizer *tokenizer, int32_t id);

bool tokenizer_is_special(const struct tokenizer *tokenizer, int32_t id);
int tokenizer_vocab_size(const struct tokenizer *tokenizer); // largest id + 1
int32_t tokenizer_eos(const struct tokenizer *tokenizer); // -1 if there is none; generation_config.json may name more

// Returns an upper bound on the bytes of text that one token stands for. A text of more than context * bound bytes is
// too long and need not be encoded. Returns SIZE_MAX if there is no bound: if an added token includes the
// blanks next to it, if characters are dropped, or if unknown characters are fused into one token.
size_t tokenizer_longest_piece_bytes(const struct tokenizer *tokenizer);

// Returns a lower bound on the number of tokens of a text [size_bytes], without the tokens of ADD_SPECIAL, at about a
// nanosecond per byte. Let L(b) be the length of the longest token that has the byte b. Each byte of the text is at
// least 1/L(b) of a token, and the bound is the sum over all bytes.
size_t tokenizer_min_tokens(const struct tokenizer *tokenizer, const char *text, size_t size_bytes);

// Returns a hash of everything that decides how text becomes ids: vocabulary, merges, added tokens, normalizer,
// pre-tokenizer. Equivalent files have equal hashes, whatever their formatting. Never 0.
uint64_t tokenizer_fingerprint(const struct tokenizer *tokenizer);
