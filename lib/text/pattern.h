// SPDX-License-Identifier: Apache-2.0
// Matches the patterns of tokenizer.json: a literal, or a regular expression with Oniguruma's meaning, run by PCRE2.
//
// tokenizer.json is written for Oniguruma (Ruby syntax). The source is translated where PCRE2 would read it
// differently: \s is Unicode White_Space (PCRE2 adds U+180E), [:alpha:] is Unicode Alphabetic (PCRE2: letters), ^ and $
// are line anchors, \p{Han} is the script without its extensions. A source that cannot be translated is
// STATUS_UNSUPPORTED, never a silent difference. A pattern is immutable and shared by threads. A scratch belongs to one
// thread and bounds the work of all its walks.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/status.h"

struct pattern;
struct pattern_scratch;

enum status pattern_open_regex(const char *source, struct pattern **pattern_p);
enum status pattern_open_literal(const char *literal, struct pattern **pattern_p); // `literal` is not empty
void pattern_free(struct pattern *pattern);

const char *pattern_source(const struct pattern *pattern);    // the source as written in the file
size_t pattern_literal_length(const struct pattern *pattern); // bytes of a literal; 0 for a regular expression

// Creates a scratch for texts of `n_bytes` in all, counted before any replacement.
struct pattern_scratch *pattern_scratch_create(size_t n_bytes);
// Adds work that is proportional to `n_bytes` of a text. Returns INVALID if the work is too much.
enum status pattern_scratch_spend(struct pattern_scratch *scratch, size_t n_bytes);
void pattern_scratch_free(struct pattern_scratch *scratch);

// Iterates over the matches of a pattern in well-formed text, from left to right.
struct pattern_walk {
    const struct pattern *pattern;
    struct pattern_scratch *scratch;
    const char *text;
    size_t n, from, last_end;
    bool matched;
    size_t last_position;
};

struct pattern_walk pattern_walk_start(const struct pattern *pattern, struct pattern_scratch *scratch, const char *text,
                                       size_t n);
// Finds the next match [*start_p, *end_p). Sets *found_p to false after the last match. Returns INVALID if the walks of
// the scratch take too much work. The limit is proportional to the texts, and patterns of known tokenizers stay far
// below it.
enum status pattern_walk_next(struct pattern_walk *walk, size_t *start_p, size_t *end_p, bool *found_p);
