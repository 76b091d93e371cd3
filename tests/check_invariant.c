// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/invariant.h"
#include "tests/suite.h"

START_TEST(an_invariant_that_holds_does_nothing)
{
    int evaluated = 0;
    INVARIANT(++evaluated == 1, "evaluated %d times", evaluated);
    ck_assert_int_eq(evaluated, 1);
}
END_TEST

// This holds in release builds too: nothing here depends on NDEBUG.
START_TEST(a_broken_invariant_aborts)
{
    INVARIANT(1 + 1 == 3, "the sum is %d", 1 + 1);
}
END_TEST

START_TEST(a_broken_invariant_logs_place_condition_and_values)
{
    int ends[2], rows = 5;
    ck_assert_int_eq(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        INVARIANT(rows <= 4, "%d rows: at most 4", rows);
    }
    close(ends[1]);
    char line[2048] = "";
    size_t n = 0;
    for (ssize_t got; n < sizeof line - 1 && (got = read(ends[0], line + n, sizeof line - 1 - n)) > 0;)
        n += (size_t)got;
    close(ends[0]);
    line[n] = 0;
    ck_assert_ptr_nonnull(strstr(line, "invariant_broken at="));
    ck_assert_ptr_nonnull(strstr(line, "check_invariant.c:"));
    ck_assert_ptr_nonnull(strstr(line, "condition=\"rows <= 4\""));
    ck_assert_ptr_nonnull(strstr(line, "message=\"5 rows: at most 4\""));
}
END_TEST

SUITE("invariant")
{
    TEST(an_invariant_that_holds_does_nothing);
    TEST_ABORTS(a_broken_invariant_aborts);
    TEST(a_broken_invariant_logs_place_condition_and_values);
}
