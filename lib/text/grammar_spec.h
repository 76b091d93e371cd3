// SPDX-License-Identifier: Apache-2.0
// What the text of an answer must match. Plain data; any thread.
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "lib/base/status.h"

enum { GRAMMAR_TEXT_BYTES_MAX = 64 << 10 };

enum grammar_kind {
    GRAMMAR_NONE,
    GRAMMAR_JSON_SCHEMA,
    GRAMMAR_REGEX, // of the whole answer, in the syntax of Rust's regex crate
    GRAMMAR_LARK,  // llguidance's variant of Lark
    GRAMMAR_KINDS
};

// {0}: any text.
struct grammar_spec {
    enum grammar_kind kind;
    char *text;        // NULL with GRAMMAR_NONE; owned by whatever owns the struct
    size_t text_bytes; // without its NUL
};
struct grammar_spec grammar_spec_of(enum grammar_kind kind, char *text); // NUL-terminated, not copied

// One of the texts [n].
struct grammar_spec grammar_spec_choice(const char *const *texts, size_t n);

struct grammar_spec grammar_spec_copy(const struct grammar_spec *from);
bool grammar_specs_equal(const struct grammar_spec *a, const struct grammar_spec *b);
void grammar_spec_free(struct grammar_spec *spec); // leaves it empty

// STATUS_INVALID: no text, more than GRAMMAR_TEXT_BYTES_MAX, or not UTF-8. Only grammar_matcher_create()
// checks the grammar itself.
enum status grammar_spec_check(const struct grammar_spec *spec);
