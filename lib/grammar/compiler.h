// SPDX-License-Identifier: Apache-2.0
// Compiles grammars on a separate thread, so that passes do not wait for a compilation. Grammars are compiled in order
// of arrival. If several waiting jobs have equal grammars, the grammar is compiled once, and each job gets a
// separate matcher.
//
// Owned by one thread, which calls all functions.
#pragma once

#include "lib/grammar/grammar.h"

struct grammar_compiler;

// Called on the compiler's thread when results are ready, once for all jobs of a grammar. It must not call functions of
// the compiler, whose lock is held.
typedef void grammar_wake_fn(void *arg);

// Borrows the library.
struct grammar_compiler *grammar_compiler_create(const struct grammar_library *library, grammar_wake_fn *wake,
                                                 void *arg);
// Drops all jobs; waits for the grammar that is being compiled. NULL is fine.
void grammar_compiler_free(struct grammar_compiler *compiler);

// Adds a job: makes a matcher of the grammar and advances it over `tokens` [n], the output so far. Copies the spec and
// the tokens. The caller has checked the spec. No other job may have the same `id`.
void grammar_compiler_add(struct grammar_compiler *compiler, uint64_t id, const struct grammar_spec *spec,
                          const int32_t *tokens, int n);
// Drops the job, if there is one. Nothing is returned for it.
void grammar_compiler_drop(struct grammar_compiler *compiler, uint64_t id);

struct grammar_compiled {
    uint64_t id;
    struct grammar_matcher *matcher; // owned by the caller; NULL if the grammar or a token was refused
    char *reason;                    // error message if so; the caller frees it
};

// Writes the next result. Returns false if there is none yet.
bool grammar_compiler_take(struct grammar_compiler *compiler, struct grammar_compiled *result);
