// SPDX-License-Identifier: Apache-2.0
// Grammars of simulated requests. Replaces lib/grammar/grammar.h and lib/grammar/compiler.h at link time. The text
// "LENGTH MODULUS": an answer has LENGTH tokens, and none of which the number and the place add up to a multiple of
// MODULUS.
#pragma once

#include "lib/grammar/compiler.h"

const struct grammar_library *sim_grammar_library(int vocab_size); // static
bool sim_grammar_allows(int modulus, int index, int32_t token);    // as output token `index`
