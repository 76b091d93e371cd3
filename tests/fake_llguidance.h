// SPDX-License-Identifier: Apache-2.0
// A shared library with the functions of llguidance that Forepack uses. Every grammar allows every token; the text
// "bad" is refused. Compiling waits while the test says so. The text "steps N" is a grammar of N tokens, each with its
// own mask, which allows four of every five tokens. Masks of the text "hang" take for ever. The text "dead end" allows
// one token, and has no mask after it. Any thread may call these
// functions.
#pragma once

#include <stdbool.h>

void fake_llguidance_hold(bool hold);     // true: compiling waits until a call with false
void fake_llguidance_await_compile(void); // waits until a grammar has begun to be compiled since the last call
int fake_llguidance_compiled(void);       // number of grammars so far
int fake_llguidance_matchers(void);       // number of existing matchers
