// SPDX-License-Identifier: Apache-2.0
// Prints text from the network so that a terminal does not act on it.
#pragma once

#include <stdio.h>

// Prints at most `max` bytes of `text`, and blanks up to `width`. Every character except printable ASCII becomes a
// question mark.
void plain_text_print(FILE *out, const char *text, int max, int width);
