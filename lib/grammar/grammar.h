// SPDX-License-Identifier: Apache-2.0
// Structured output: answers that match a JSON schema, a regular expression or a grammar. Before each token a matcher
// computes the mask of the tokens that may come next; the sampler excludes all others.
//
// llguidance (github.com/guidance-ai/llguidance) does the work. It is a shared library, loaded at run time, so that
// Forepack runs without it. Two files have its C interface: libllguidance.so, built from its sources, and _lib.abi3.so
// of its Python package, for which the matching libpython is loaded too.
//
// The masks depend only on the grammar and the tokens of the answer so far, so a replay that accepts the delivered
// tokens continues with the same masks.
//
// Threads: a library is immutable and any thread may use it; a matcher has one owner and is used by one thread at a
// time.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lib/text/grammar_spec.h"
#include "lib/text/tokenizer.h"

#define GRAMMAR_LIBRARY_DEFAULT "libllguidance.so"
#define GRAMMAR_LIBRARY_HELP                                                                                           \
    "llguidance's shared library, for structured output: libllguidance.so, or _lib.abi3.so of its Python package"
struct grammar_library; // llguidance with the vocabulary of a model
struct grammar_matcher; // position of one answer in its grammar

// Opens the library at the start of a program: logs structured_output_ready, or structured_output_refused with the
// reason and returns NULL.
struct grammar_library *grammar_library_start(const char *path, const struct tokenizer *tokenizer, int vocab_size,
                                              const int32_t *eos, int n_eos);

// path: the file, or its name where the dynamic loader finds it. eos [n_eos]: tokens that end an answer; each is
// allowed where the grammar is complete. vocab_size: of the model; at least that of the tokenizer. NOT_FOUND: the file
// does not exist or cannot be loaded; UNSUPPORTED: it is not a usable llguidance.
enum status grammar_library_open(const char *path, const struct tokenizer *tokenizer, int vocab_size,
                                 const int32_t *eos, int n_eos, struct grammar_library **library_p);
void grammar_library_free(struct grammar_library *library); // NULL is fine; after its matchers

// Without the member "x-guidance" in a JSON schema, one blank, or a new line with its indentation, is allowed between
// two tokens of JSON: with any number of blanks allowed, a model may write blanks for ever. INVALID: the grammar is
// wrong, or exceeds the limits (limits.h); the sentence says where.
enum status grammar_matcher_create(const struct grammar_library *library, const struct grammar_spec *spec,
                                   struct grammar_matcher **matcher_p);
// A matcher of its own that stands where this one stands.
struct grammar_matcher *grammar_matcher_copy(const struct grammar_matcher *matcher);
void grammar_matcher_free(struct grammar_matcher *matcher); // NULL is fine

// 32-bit words of a mask: bit t % 32 of word t / 32 is set if token t may come next.
int grammar_matcher_mask_words(const struct grammar_matcher *matcher);

// INTERNAL: llguidance gave up, for example because of a limit on the work for one mask.
enum status grammar_matcher_mask(struct grammar_matcher *matcher, uint32_t *mask);
// Appends tokens [n], without tokens that end the answer. INVALID: the grammar does not allow one of them.
enum status grammar_matcher_accept(struct grammar_matcher *matcher, const int32_t *tokens, int n);
// Whether the answer is complete and only its end may follow.
bool grammar_matcher_is_complete(const struct grammar_matcher *matcher);
