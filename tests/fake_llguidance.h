// SPDX-License-Identifier: Apache-2.0
// A shared library with the functions of llguidance that Forepack uses: every grammar allows every token, the text
// "bad" is refused, and compiling waits while the test says so. The text "steps N" is a grammar of N tokens, each with
// a mask of its own: of five tokens in a row four may come next. The masks of the text "hang" never end. Any thread.
#pragma once

#include <stdbool.h>

void fake_llguidance_hold(bool hold);     // grammars are compiled when it is false again
void fake_llguidance_await_compile(void); // until a grammar has begun to be compiled since the last call
int fake_llguidance_compiled(void);       // grammars so far
int fake_llguidance_matchers(void);       // that exist
