// SPDX-License-Identifier: Apache-2.0
// cli/plain_text: what `forepack status` and `forepack top` print of a node.
#include <limits.h>
#include <stdlib.h>

#include "cli/plain_text.h"
#include "tests/suite.h"

static void expect_printed(const char *expected, const char *text, int max, int width)
{
    char *printed;
    size_t n;
    FILE *out = open_memstream(&printed, &n);
    plain_text_print(out, text, max, width);
    fclose(out);
    ck_assert_str_eq(printed, expected);
    free(printed);
}

START_TEST(only_printable_ascii_is_printed)
{
    expect_printed("bf16 ", "bf16", INT_MAX, 5);
    expect_printed("?[2J?? ??", "\x1b[2J\n\x7f \xc2\x9b", INT_MAX, 5);
    expect_printed("work", "worker", 4, 4);
    expect_printed("worker", "worker", INT_MAX, 4);
}
END_TEST

SUITE("plain_text")
{
    TEST(only_printable_ascii_is_printed);
}
