// SPDX-License-Identifier: Apache-2.0
#include "sim/grammar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "sim/scenario.h"

struct grammar_library {
    int vocab_size;
};

struct grammar_matcher {
    int vocab_size, length, modulus, n; // n: number of accepted tokens
};

struct job {
    uint64_t id;
    struct grammar_matcher *matcher; // NULL: the grammar is refused
    int takes_left;                  // calls until the grammar is compiled
};

struct grammar_compiler {
    const struct grammar_library *library;
    struct job *jobs; // [n]
    int n, capacity;
};

const struct grammar_library *sim_grammar_library(int vocab_size)
{
    static struct grammar_library libraries[SCENARIO_VOCAB_MAX + 1];
    libraries[vocab_size].vocab_size = vocab_size;
    return &libraries[vocab_size];
}

bool sim_grammar_allows(int modulus, int index, int32_t token)
{
    return (token + index) % modulus != 0;
}

// --- matchers

void grammar_matcher_free(struct grammar_matcher *matcher)
{
    free(matcher);
}

int grammar_matcher_mask_words(const struct grammar_matcher *matcher)
{
    return (matcher->vocab_size + 31) / 32;
}

void grammar_matcher_problem(const struct grammar_matcher *matcher, char *out, size_t out_bytes)
{
    (void)matcher;
    snprintf(out, out_bytes, "a mask of the simulator failed");
}

enum status grammar_matcher_mask(struct grammar_matcher *matcher, uint32_t *mask)
{
    memset(mask, 0, (size_t)grammar_matcher_mask_words(matcher) * sizeof *mask);
    for (int token = 0; token < matcher->vocab_size; token++)
        if (sim_grammar_allows(matcher->modulus, matcher->n, token)) mask[token / 32] |= UINT32_C(1) << token % 32;
    return STATUS_OK;
}

enum status grammar_matcher_accept(struct grammar_matcher *matcher, const int32_t *tokens, int n)
{
    for (int i = 0; i < n; i++, matcher->n++)
        if (!sim_grammar_allows(matcher->modulus, matcher->n, tokens[i]))
            return status_fail(STATUS_INTERNAL, "token %d is not allowed as number %d", (int)tokens[i], matcher->n);
    return STATUS_OK;
}

bool grammar_matcher_is_complete(const struct grammar_matcher *matcher)
{
    return matcher->n >= matcher->length;
}

// --- the compiler

struct grammar_compiler *grammar_compiler_create(const struct grammar_library *library, grammar_wake_fn *wake,
                                                 void *arg)
{
    struct grammar_compiler *compiler = mem_alloc(sizeof *compiler);
    compiler->library = library;
    return compiler;
}

static void drop_all(struct grammar_compiler *compiler)
{
    for (int i = 0; i < compiler->n; i++)
        free(compiler->jobs[i].matcher);
    compiler->n = 0;
}

void grammar_compiler_free(struct grammar_compiler *compiler)
{
    if (!compiler) return;
    drop_all(compiler);
    free(compiler->jobs);
    free(compiler);
}

// Returns NULL if the text is no grammar, or does not match the tokens generated so far.
static struct grammar_matcher *matcher_create(int vocab_size, const char *text, const int32_t *tokens, int n)
{
    struct grammar_matcher *matcher = mem_alloc(sizeof *matcher);
    matcher->vocab_size = vocab_size;
    bool is_grammar = sscanf(text, "%d %d", &matcher->length, &matcher->modulus) == 2 && matcher->modulus > 0;
    if (is_grammar && grammar_matcher_accept(matcher, tokens, n) == STATUS_OK) return matcher;
    grammar_matcher_free(matcher);
    return NULL;
}

void grammar_compiler_add(struct grammar_compiler *compiler, uint64_t id, const struct grammar_spec *spec,
                          const int32_t *tokens, int n)
{
    struct grammar_matcher *matcher = matcher_create(compiler->library->vocab_size, spec->text, tokens, n);
    MEM_GROW(compiler->jobs, compiler->n, compiler->capacity);
    compiler->jobs[compiler->n++] = (struct job){id, matcher, (int)(id % 3)};
}

static void job_remove(struct grammar_compiler *compiler, int index)
{
    compiler->jobs[index] = compiler->jobs[--compiler->n];
}

void grammar_compiler_drop(struct grammar_compiler *compiler, uint64_t id)
{
    for (int i = 0; i < compiler->n; i++) {
        if (compiler->jobs[i].id != id) continue;
        free(compiler->jobs[i].matcher);
        job_remove(compiler, i);
        return;
    }
}

bool grammar_compiler_take(struct grammar_compiler *compiler, struct grammar_compiled *result)
{
    for (int i = 0; i < compiler->n; i++) {
        if (compiler->jobs[i].takes_left-- > 0) continue;
        struct grammar_matcher *matcher = compiler->jobs[i].matcher;
        char *reason = matcher ? NULL : mem_string("the grammar cannot be compiled, or does not match the tokens");
        *result = (struct grammar_compiled){compiler->jobs[i].id, matcher, reason};
        job_remove(compiler, i);
        return true;
    }
    return false;
}
