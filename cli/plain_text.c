// SPDX-License-Identifier: Apache-2.0
#include "cli/plain_text.h"

void plain_text_print(FILE *out, const char *text, int max, int width)
{
    int n = 0;
    for (; n < max && text[n]; n++)
        fputc(text[n] >= ' ' && text[n] <= '~' ? text[n] : '?', out);
    fprintf(out, "%*s", n < width ? width - n : 0, "");
}
