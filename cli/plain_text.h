// SPDX-License-Identifier: Apache-2.0
// Text from the network, printed so that a terminal does not act on it.
#pragma once

#include <stdio.h>

// Prints at most `max` bytes of `text`, and blanks up to `width`. All but printable ASCII becomes a question mark.
void plain_text_print(FILE *out, const char *text, int max, int width);
