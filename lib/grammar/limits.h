// SPDX-License-Identifier: Apache-2.0
// How much work llguidance may spend on a grammar. A regular expression of n parts that may be empty costs n * n to
// compile, so what a client may write as expressions is bounded more tightly than names and other literal text.
#pragma once

#include <jansson.h>

#include "lib/grammar/llguidance.h"
#include "lib/text/grammar_spec.h"

// How llguidance reads JSON, for jansson: integers of any size, and the character 0 in texts.
enum { GRAMMAR_JSON_FLAGS = JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL };

// Keeps every grammar within about 100 ms and 64 MiB to compile, and a matcher within about 64 MiB.
void grammar_limits_set(const struct grammar_spec *spec, struct llg_limits *limits);
