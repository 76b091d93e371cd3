// SPDX-License-Identifier: Apache-2.0
// Grammars of simulated requests. Replaces lib/grammar/grammar.h and lib/grammar/compiler.h at link time. A grammar is
// the text "LENGTH MODULUS": an answer has LENGTH tokens. The sum of a token's id and its index is never a multiple of
// MODULUS.
#pragma once

#include "lib/grammar/compiler.h"

const struct grammar_library *sim_grammar_library(int vocab_size); // returns a static object
bool sim_grammar_allows(int modulus, int index, int32_t token);    // true if `token` may be output token `index`
