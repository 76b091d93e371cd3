// SPDX-License-Identifier: Apache-2.0
// Added tokens: strings that are one token wherever they occur in a text. They are matched before the pre-tokenizer and
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
    char *content; // text to match, owned; normalized if the token is `normalized`
    size_t n;
    bool special;
    bool single_word;    // matches only between non-word characters
    bool lstrip, rstrip; // also matches the white space before / after it
    bool normalized;     // matched in normalized text
};

// Tokens that are matched together, sorted by content. Immutable once built.
struct added_set {
    struct added_token *tokens; // owned
    int n;
    bool starts[256]; // true for the first byte of each content
    int only_start;   // the first byte of all contents, or -1 if they have several
};

// Takes ownership of `tokens` [n] and sorts them. Returns DATA if two tokens have the same content.
enum status added_set_init(struct added_set *set, struct added_token *tokens, int n);
void added_set_fini(struct added_set *set);

// Decides where special tokens are recognised.
struct special_policy {
    bool parse_special;
    const struct text_range
        *ranges; // [n] ascending, disjoint, in bytes of the original text: no special token may overlap a range
    int n;
};

struct added_match {
    const struct added_token *token;
    size_t start, end; // bytes in the span, white space included
    size_t next;       // end of the token without white space, where the next search begins
};

// Finds the leftmost match at or after byte `from`, and the longest match at that place. *found_p is false if there is
// none. `floor` is the end of the match before, which may be after `from`: as in Hugging Face, a token may begin in the
// white space that the match before has taken. Returns INVALID if `work` is used up: a hostile text may begin like a token at every place, and each place
// costs a comparison.
enum status added_set_search(const struct added_set *set, const struct text_span *span, size_t from, size_t floor,
                             const struct special_policy *policy, struct pattern_scratch *work,
                             struct added_match *match_p, bool *found_p);
