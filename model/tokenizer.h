// SPDX-License-Identifier: Apache-2.0
// A model's tokenizer.json: text to token ids and back.
//
// Byte-level BPE (GPT-2, Llama 3, Qwen) and SentencePiece-style BPE with byte fallback (Llama 2, Mistral), with the
// meaning Hugging Face's `tokenizers` library gives the file: the same text gives the same ids. Kinds of
// normalizer, pre-tokenizer, model, decoder or post-processor that are not built give STATUS_UNSUPPORTED and a
// sentence that names them. (BPE for text: Sennrich et al., arXiv 1508.07909.)
//
// Ownership: the caller owns what a function returns through `_p` and frees it with free(), and the tokenizer with
// tokenizer_free(). Threads: immutable after tokenizer_open(); any thread may use it at any time. Errors: see each
// function; nothing here logs or prints text.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct tokenizer;

// Longest text one call takes; more is STATUS_INVALID.
#define TOKENIZER_TEXT_LIMIT_BYTES ((size_t)128 << 20)

// Reads `model_dir`/tokenizer.json and, where there is one, tokenizer_config.json (bos_token, eos_token, add_bos_token,
// add_eos_token, chat_template) or chat_template.jinja. NOT_FOUND: no tokenizer.json. DATA: broken or contradictory,
// with file and place. UNSUPPORTED: sound, but of a kind that is not built.
enum status tokenizer_open(const char *model_dir, struct tokenizer **tokenizer_p);
void tokenizer_free(struct tokenizer *tokenizer); // NULL is fine

enum tokenizer_encode_flags {
    TOKENIZER_ADD_SPECIAL = 1,   // put what the file's template puts around a text (usually BOS) around it
    TOKENIZER_PARSE_SPECIAL = 2, // "<|eot_id|>" in the text is that token; without this flag it is mere text
};

// Text [size_bytes], UTF-8, NULs allowed, to `*n_p` ids in `*ids_p` (never NULL on success). Time is near linear for
// any text. Added tokens that are not special ("<tool_call>") are always recognised, as in Hugging Face.
// INVALID: not UTF-8 (with the byte offset), or longer than the limit.
enum status tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t size_bytes, unsigned flags,
                             int32_t **ids_p, int *n_p);

struct text_range {
    size_t start, end; // bytes, half-open
};

// The same for a text of which parts come from strangers: with PARSE_SPECIAL set, special tokens are recognised only
// where they lie wholly outside the `guarded` ranges (ascending, apart; n_guarded may be 0). Everything else is as
// if the text were encoded whole. With `starts_p` not NULL it receives, per id, the byte of `text` where the
// token begins (ascending; an id added around the text gets 0 or size_bytes).
enum status tokenizer_encode_guarded(const struct tokenizer *tokenizer, const char *text, size_t size_bytes,
                                     unsigned flags, const struct text_range *guarded, int n_guarded, int32_t **ids_p,
                                     size_t **starts_p, int *n_p);

enum tokenizer_decode_flags {
    TOKENIZER_SKIP_SPECIAL = 1, // special tokens give no text
    TOKENIZER_CONTINUATION = 2, // the ids follow others: the space that starts a SentencePiece text is kept
};

// Ids [n] to UTF-8 text, NUL-terminated for convenience (it may hold NULs: `*size_bytes_p` counts, may be NULL).
// Each ill-formed part of the joined bytes becomes one U+FFFD, as Unicode recommends. (Hugging Face's ByteFallback
// gives one per byte and spoils the whole run of byte tokens, which streamed text could not follow.)
// `clean_up_tokenization_spaces` is not applied: it would change the text.
// INVALID: an id outside 0..vocab_size-1.
enum status tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, int n, unsigned flags,
                             char **text_p, size_t *size_bytes_p);

// The bytes one token adds to a text, perhaps part of a character; for special tokens their name. `*bytes_p` lives as
// long as the tokenizer and is not NUL-terminated. An id outside the vocabulary, or one that no token has, gives
// no bytes: models pad their vocabulary, and a sampled padding id must not stop a stream.
void tokenizer_piece(const struct tokenizer *tokenizer, int32_t id, const char **bytes_p, size_t *size_bytes_p);

// The token as tokenizer.json spells it ("▁the", "Ġthe", "<0x0A>"), NUL-terminated; NULL when no token has this id.
const char *tokenizer_token(const struct tokenizer *tokenizer, int32_t id);

bool tokenizer_is_special(const struct tokenizer *tokenizer, int32_t id);
int tokenizer_vocab_size(const struct tokenizer *tokenizer); // largest id + 1
int32_t tokenizer_bos(const struct tokenizer *tokenizer);    // -1: none
int32_t tokenizer_eos(const struct tokenizer *tokenizer);    // -1: none; generation_config.json may name more
const char *tokenizer_chat_template(const struct tokenizer *tokenizer); // Jinja source; NULL: none. See model/chat.h

// No token stands for more bytes of the original text than this, so a text of more than context * this bytes is
// too long without looking. SIZE_MAX when this tokenizer has no such bound (tokens that swallow blanks, dropped
// characters, fused unknowns).
size_t tokenizer_longest_piece_bytes(const struct tokenizer *tokenizer);

// Hash of all that decides how text becomes ids: vocabulary, merges, added tokens, normalizer, pre-tokenizer. Equal
// for files that say the same, however they are laid out; never 0.
uint64_t tokenizer_fingerprint(const struct tokenizer *tokenizer);
