// SPDX-License-Identifier: Apache-2.0
// Added tokens: strings that are one token wherever they stand in a text, found before anything else looks at it.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "model/span.h"
#include "model/tokenizer.h"

struct added_token {
    int32_t id;
    char *content; // what to look for, owned; of a `normalized` token its normalized form
    size_t n;
    bool special;
    bool single_word;    // only where no word character touches it
    bool lstrip, rstrip; // swallows the white space before, behind it
    bool normalized;     // looked for in normalized text
};

// Tokens that are looked for together, sorted by content. Immutable once built.
struct added_set {
    struct added_token *tokens; // owned
    int n;
    bool starts[256]; // some content starts with this byte
};

// Takes over `tokens` [n] and sorts them. DATA: two have the same content.
enum status added_set_init(struct added_set *set, struct added_token *tokens, int n);
void added_set_fini(struct added_set *set);

// Where special tokens may be recognised, in bytes of the original text.
struct added_guard {
    bool parse_special;
    const struct text_range *ranges; // [n] ascending, apart: not inside or across these
    int n;
};

struct added_match {
    const struct added_token *token;
    size_t start, end; // in the span, white space swallowed included
};

// The leftmost, of those the longest token in `span` from byte `from` on; false when there is none.
bool added_set_find(const struct added_set *set, const struct span *span, size_t from, const struct added_guard *guard,
                    struct added_match *match_p);
