// SPDX-License-Identifier: Apache-2.0
// Scanners written by hand for the pre-tokenizer patterns of GPT-2, Llama 3, Qwen and their relatives, which divide a
// text into words. They find the same words as PCRE2 (tests/check_pattern_scan.c compares them) in a fraction of the
// time. A pattern without a scanner is run by PCRE2.
#pragma once

#include <stdbool.h>
#include <stddef.h>

// The rules in which the known patterns differ. Each pattern matches at every position of a text.
struct pattern_scan {
    const char *source; // the pattern as tokenizer.json has it
    bool any_case;      // contractions ('s, 'll) match in any case
    bool
        any_before_word; // one character that is no letter, digit or line end may stand before a word; else a blank may
    size_t digits_max;   // longest number; 0: numbers have no limit, and a blank may stand before them
    bool line_ends;      // line ends after punctuation belong to it, and blanks end with the last line end
};

// Returns the scanner of a pattern, or NULL if there is none.
const struct pattern_scan *pattern_scan_find(const char *source);

// Returns the end of the match at `from` < `n`. `text` [n] is well-formed UTF-8.
size_t pattern_scan_match(const struct pattern_scan *scan, const char *text, size_t n, size_t from);
