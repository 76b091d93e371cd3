// SPDX-License-Identifier: Apache-2.0
// Added tokens: strings that are one token wherever they occur in a text. They are matched before pre-tokenizer and
// BPE.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/status.h"
#include "lib/text/pattern.h"
#include "lib/text/text_span.h"
#include "lib/text/tokenizer.h"

struct added_token {
    int32_t id;
    char *content; // text to match, owned; of a `normalized` token its normalized form
    size_t n;
    bool special;
    bool single_word;    // matches only between non-word characters
    bool lstrip, rstrip; // also consumes the white space before / behind it
    bool normalized;     // matched in normalized text
};

// Tokens that are matched together, sorted by content. Immutable once built.
struct added_set {
    struct added_token *tokens; // owned
    int n;
    bool starts[256]; // true for the first byte of every content
};

// Takes ownership of `tokens` [n] and sorts them. DATA: two have the same content.
enum status added_set_init(struct added_set *set, struct added_token *tokens, int n);
void added_set_fini(struct added_set *set);

// Where special tokens are recognised.
struct special_policy {
    bool parse_special;
    const struct text_range
        *ranges; // [n] ascending, disjoint, in bytes of the original text: not inside or across these
    int n;
};

struct added_match {
    const struct added_token *token;
    size_t start, end; // in the span, including the white space consumed
};

// The leftmost match at or after byte `from`; of several at one place the longest. *found_p is false when there is
// none. INVALID: `work` is used up. Texts that begin like a token again and again are compared with it at each place.
enum status added_set_search(const struct added_set *set, const struct text_span *span, size_t from,
                             const struct special_policy *policy, struct pattern_scratch *work,
                             struct added_match *match_p, bool *found_p);
