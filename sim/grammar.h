// SPDX-License-Identifier: Apache-2.0
// Grammars of simulated requests. The simulator links grammar.c in place of lib/grammar. A grammar is the text "LENGTH
// MODULUS". An answer is complete after LENGTH tokens. Output token number `index` may be any token, unless the id
// plus `index` is a multiple of MODULUS.
#pragma once

#include "lib/grammar/compiler.h"

const struct grammar_library *sim_grammar_library(int vocab_size); // returns a static object
bool sim_grammar_allows(int modulus, int index, int32_t token);    // true if `token` may be output token `index`
