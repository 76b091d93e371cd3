// SPDX-License-Identifier: Apache-2.0
// Prints text from the network, so that a terminal does not execute control sequences in it.
#pragma once

#include <stdio.h>

// Prints at most `max` bytes of `text`, and adds blanks up to `width`. Prints a question mark for every byte that is
// not printable ASCII.
void plain_text_print(FILE *out, const char *text, int max, int width);
