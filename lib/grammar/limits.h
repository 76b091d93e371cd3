// SPDX-License-Identifier: Apache-2.0
// Limits the work that llguidance may spend on a grammar. A regular expression with n optional parts, such as
// `a?b?c?`, takes about n * n steps to compile. So a grammar with long regular expressions gets a smaller limit than
// one that is mostly literal text, such as the member names of a schema.
#pragma once

#include <jansson.h>

#include "lib/grammar/llguidance.h"
#include "lib/text/grammar_spec.h"

// Flags for jansson to read JSON like llguidance: integers of any size, and the character 0 in texts.
enum { GRAMMAR_JSON_FLAGS = JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL };

// Sets limits that keep every grammar within about a second and 128 MiB to compile, and a matcher within about 64 MiB.
// Ordinary schemas take 1 to 150 ms. INVALID: a JSON schema has too many members or requires itself without end, or the
// other text of the grammar is too long.
enum status grammar_limits_set(const struct grammar_spec *spec, struct llg_limits *limits);
