// SPDX-License-Identifier: Apache-2.0
// Structured output: answers that match a JSON schema, a regular expression or a grammar. A matcher computes the mask
// of possible next tokens before each token, and the sampler excludes all other tokens.
//
// llguidance (github.com/guidance-ai/llguidance) does the work. It is a shared library, loaded at run time, so that
// Forepack runs without it. Either of two files provides its C interface: libllguidance.so, built from its sources, or
// _lib.abi3.so of its Python package, which also needs a libpython. deploy/llguidance.sh installs the second file under
// the name of the first.
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

#define GRAMMAR_LIBRARY_HELP                                                                                           \
    "llguidance's shared library, for structured output: libllguidance.so, or _lib.abi3.so of its Python package. "    \
    "Default: the environment variable FOREPACK_GRAMMAR_LIBRARY, or the library that deploy/llguidance.sh installed"
struct grammar_library; // llguidance with the vocabulary of a model
struct grammar_matcher; // position of one answer in its grammar

// Opens the library at the start of a program and logs structured_output_ready. If that fails, logs
// structured_output_refused with the reason and returns NULL.
struct grammar_library *grammar_library_start(const char *path, const struct tokenizer *tokenizer, int vocab_size,
                                              const int32_t *eos, int n_eos);

// Opens the library. `path` is the file, or its name for the dynamic loader. If it is NULL, the first of these is used:
// the path in the environment variable FOREPACK_GRAMMAR_LIBRARY, the library of the installation, the library of the
// build, the library that the dynamic loader finds. eos [n_eos] are the tokens that end an
// answer; each is allowed when the grammar is complete. vocab_size is the model's, which is at least the tokenizer's.
// NOT_FOUND: the file does not exist or cannot be loaded. UNSUPPORTED: it is not a usable llguidance.
enum status grammar_library_open(const char *path, const struct tokenizer *tokenizer, int vocab_size,
                                 const int32_t *eos, int n_eos, struct grammar_library **library_p);
void grammar_library_free(struct grammar_library *library); // NULL is fine; free its matchers first

// Creates a matcher. Between two tokens of JSON, one blank or a new line with its indentation is allowed, unless the
// schema has a member "x-guidance". If any number of blanks were allowed, a model could write blanks for ever. INVALID:
// the grammar is wrong, or exceeds the limits (limits.h); the error message says where.
enum status grammar_matcher_create(const struct grammar_library *library, const struct grammar_spec *spec,
                                   struct grammar_matcher **matcher_p);
// Returns an independent matcher in the same position.
struct grammar_matcher *grammar_matcher_copy(const struct grammar_matcher *matcher);
void grammar_matcher_free(struct grammar_matcher *matcher); // NULL is fine

// Returns the number of 32-bit words of a mask. Bit t % 32 of word t / 32 is set if token t may come next.
int grammar_matcher_mask_words(const struct grammar_matcher *matcher);

// Computes the mask. Returns INVALID if no token may come next though the answer is not complete, or if llguidance gave
// up because of a limit on its work.
enum status grammar_matcher_mask(struct grammar_matcher *matcher, uint32_t *mask);
// After a failed grammar_matcher_mask() or grammar_matcher_accept(): writes what is wrong with the grammar.
void grammar_matcher_problem(const struct grammar_matcher *matcher, char *out, size_t out_bytes);
// Appends tokens [n], none of which may end the answer. Returns INVALID if the grammar does not allow one of them.
enum status grammar_matcher_accept(struct grammar_matcher *matcher, const int32_t *tokens, int n);
// Returns true if the answer is complete and only its end may follow.
bool grammar_matcher_is_complete(const struct grammar_matcher *matcher);
