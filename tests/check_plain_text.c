// SPDX-License-Identifier: Apache-2.0
// cli/plain_text: what `forepack status` and `forepack top` print of a node.
#include <check.h>
#include <limits.h>
#include <stdlib.h>

#include "cli/plain_text.h"

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

int main(void)
{
    Suite *suite = suite_create("plain_text");
    TCase *all = tcase_create("all");
    tcase_add_test(all, only_printable_ascii_is_printed);
    suite_add_tcase(suite, all);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
