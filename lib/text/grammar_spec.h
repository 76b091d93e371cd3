// SPDX-License-Identifier: Apache-2.0
// The grammar that the text of an answer must match. Plain data; any thread.
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "lib/base/status.h"

enum { GRAMMAR_TEXT_BYTES_MAX = 1 << 20 };

enum grammar_kind {
    GRAMMAR_NONE,
    GRAMMAR_JSON_SCHEMA,
    GRAMMAR_REGEX, // matches the whole answer, in the syntax of Rust's regex crate
    GRAMMAR_LARK,  // llguidance's variant of Lark
    GRAMMAR_KINDS
};

// {0} matches any text.
struct grammar_spec {
    enum grammar_kind kind;
    char *text;        // NULL with GRAMMAR_NONE; owned by the owner of the struct
    size_t text_bytes; // without the NUL at its end
};
struct grammar_spec grammar_spec_of(enum grammar_kind kind, char *text); // `text` is NUL-terminated and not copied

// Returns a grammar that matches any one of the texts [n].
struct grammar_spec grammar_spec_choice(const char *const *texts, size_t n);

struct grammar_spec grammar_spec_copy(const struct grammar_spec *from);
bool grammar_specs_equal(const struct grammar_spec *a, const struct grammar_spec *b);
void grammar_spec_free(struct grammar_spec *spec); // leaves it empty

// Returns STATUS_INVALID if there is no text, or if it has more than GRAMMAR_TEXT_BYTES_MAX or is not UTF-8. Only
// grammar_matcher_create() checks the grammar itself.
enum status grammar_spec_check(const struct grammar_spec *spec);
