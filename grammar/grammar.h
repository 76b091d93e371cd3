// SPDX-License-Identifier: Apache-2.0
// Structured output: answers that match a JSON schema, a regular expression or a grammar. Before each token a matcher
// tells which tokens of the vocabulary may come next; the sampler excludes the others.
//
// The work is done by llguidance (github.com/guidance-ai/llguidance), a shared library that is loaded at run time, so
// that Forepack runs without it. Two files have its C interface: libllguidance.so, built from its sources, and
// _lib.abi3.so of its Python package, for which the matching libpython is loaded too.
//
// A matcher depends on the grammar and the tokens of the answer so far alone: a replay that gives it the delivered
// tokens continues with the same ones.
//
// Threads: a library is immutable and any thread may use it; a matcher has one owner and is used by one thread at a
// time.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "model/grammar_spec.h"
#include "model/tokenizer.h"

#define GRAMMAR_LIBRARY_DEFAULT "libllguidance.so"
#define GRAMMAR_LIBRARY_HELP                                                                                           \
    "llguidance's shared library, for structured output: libllguidance.so, or _lib.abi3.so of its Python package"
struct grammar_library; // llguidance with the vocabulary of a model
struct grammar_matcher; // an answer's place in its grammar

// Opens the library for a program: logs its version, or why there is none. NULL: there is none.
struct grammar_library *grammar_library_start(const char *path, const struct tokenizer *tokenizer, int vocab_size,
                                              const int32_t *eos, int n_eos);

// path: the file, or its name where the dynamic loader finds it. eos [n_eos]: tokens that end an answer; each may come
// where the grammar is complete. vocab_size: of the model; at least the tokenizer's. NOT_FOUND: the file does not exist
// or cannot be loaded; UNSUPPORTED: it is not a usable llguidance.
enum status grammar_library_open(const char *path, const struct tokenizer *tokenizer, int vocab_size,
                                 const int32_t *eos, int n_eos, struct grammar_library **library_p);
void grammar_library_free(struct grammar_library *library); // NULL is fine; after its matchers
const char *grammar_library_version(const struct grammar_library *library);

// A JSON schema without llguidance's "x-guidance" allows a blank, or a new line with indentation, between the tokens of
// the answer; any number of them may make a model write blanks for ever.
// INVALID: the grammar is wrong, or exceeds llguidance's limits; the sentence says where.
enum status grammar_matcher_create(const struct grammar_library *library, const struct grammar_spec *spec,
                                   struct grammar_matcher **matcher_p);
void grammar_matcher_free(struct grammar_matcher *matcher); // NULL is fine

// 32-bit words of a mask: bit t % 32 of word t / 32 is set if token t may come next.
int grammar_matcher_mask_words(const struct grammar_matcher *matcher);

// INTERNAL: llguidance gave up, for example because of a limit on the work for one mask.
enum status grammar_matcher_mask(struct grammar_matcher *matcher, uint32_t *mask);
// Tokens [n] follow; none that ends the answer. INVALID: the grammar does not allow one of them.
enum status grammar_matcher_accept(struct grammar_matcher *matcher, const int32_t *tokens, int n);
// The answer is complete and nothing but its end may follow.
bool grammar_matcher_is_complete(const struct grammar_matcher *matcher);
