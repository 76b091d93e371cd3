// SPDX-License-Identifier: Apache-2.0
// The part of llguidance's C interface that Forepack uses: types in the layout of the library (version 1.x), and a
// table of functions, which is filled when the library is loaded.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct llg_tokenizer;
struct llg_matcher;

struct llg_limits { // 0: the library's default
    size_t max_items_in_row;
    uint64_t initial_lexer_fuel, step_lexer_fuel;
    size_t step_max_items, max_lexer_states, max_grammar_size;
    bool precompute_large_lexemes, verbose_errors;
};

struct llg_init {
    const struct llg_tokenizer *tokenizer;
    uint32_t log_buffer_level, log_stderr_level;
    bool ff_tokens_ok, backtrack_ok;
    struct llg_limits limits;
};

struct llg_tokenizer_init {
    size_t struct_size; // size of this struct: the library ignores members that it does not know
    uint32_t vocab_size;
    uint32_t tok_eos;
    const uint32_t *token_lens;
    const uint8_t *token_bytes;
    const char *tokenizer_json;
    bool tokenize_assumes_string;
    size_t (*tokenize_fn)(const void *user, const uint8_t *bytes, size_t n, uint32_t *tokens, size_t n_tokens);
    bool use_approximate_greedy_tokenize_fn;
    const void *tokenize_user_data;
    const char *const *slices;
    const uint32_t *tok_eos_extra;
    uint32_t tok_eos_extra_count;
};

#define LLG_FUNCTIONS(FUNCTION)                                                                                        \
    FUNCTION(const char *, llg_get_version, (void))                                                                    \
    FUNCTION(struct llg_tokenizer *, llg_new_tokenizer_v2, (const struct llg_tokenizer_init *, char *, size_t))        \
    FUNCTION(void, llg_free_tokenizer, (struct llg_tokenizer *))                                                       \
    FUNCTION(void, llg_constraint_init_set_defaults, (struct llg_init *, const struct llg_tokenizer *))                \
    FUNCTION(struct llg_matcher *, llg_new_matcher, (const struct llg_init *, const char *, const char *))             \
    FUNCTION(const char *, llg_matcher_get_error, (struct llg_matcher *))                                              \
    FUNCTION(struct llg_matcher *, llg_clone_matcher, (const struct llg_matcher *))                                    \
    FUNCTION(void, llg_free_matcher, (struct llg_matcher *))                                                           \
    FUNCTION(size_t, llg_matcher_get_mask_byte_size, (const struct llg_matcher *))                                     \
    FUNCTION(int32_t, llg_matcher_compute_mask_into, (struct llg_matcher *, uint32_t *, size_t))                       \
    FUNCTION(int32_t, llg_matcher_consume_tokens, (struct llg_matcher *, const uint32_t *, size_t))                    \
    FUNCTION(bool, llg_matcher_is_stopped, (const struct llg_matcher *))

struct llg_functions {
#define LLG_MEMBER(result, name, parameters) result(*name) parameters;
    LLG_FUNCTIONS(LLG_MEMBER)
#undef LLG_MEMBER
};
