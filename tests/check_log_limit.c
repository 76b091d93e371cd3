// SPDX-License-Identifier: Apache-2.0
// lib/base/log.h: an event that clients can cause writes a bounded number of lines, and the dropped lines are counted.
#include <stdlib.h>

#include "lib/base/log.h"
#include "tests/suite.h"

enum { SECOND_US = 1000000, EVENTS = 1000 };

static int lines(struct log_limit *limit, int64_t now_us, unsigned long long *left_out)
{
    unsigned long long n;
    int written = 0;
    for (int i = 0; i < EVENTS; i++) {
        if (!log_limit_take(limit, now_us, &n)) continue;
        *left_out += n;
        written++;
    }
    return written;
}

START_TEST(a_second_has_a_bounded_number_of_lines)
{
    struct log_limit limit = {0};
    unsigned long long left_out = 0;
    for (int64_t second = 0; second < 3; second++)
        ck_assert_int_eq(lines(&limit, second * SECOND_US + 5, &left_out), LOG_LIMIT_LINES);
    ck_assert_uint_eq(left_out, 2 * (EVENTS - LOG_LIMIT_LINES)); // the next line would report those of the last second
    ck_assert(log_limit_take(&limit, 9 * SECOND_US, &left_out));
    ck_assert_uint_eq(left_out, EVENTS - LOG_LIMIT_LINES);
    ck_assert(log_limit_take(&limit, 9 * SECOND_US, &left_out));
    ck_assert_uint_eq(left_out, 0);
}
END_TEST

START_TEST(few_lines_are_not_limited)
{
    struct log_limit limit = {0};
    unsigned long long left_out;
    for (int64_t i = 0; i < EVENTS; i++) {
        ck_assert(log_limit_take(&limit, i * SECOND_US / LOG_LIMIT_LINES, &left_out));
        ck_assert_uint_eq(left_out, 0);
    }
}
END_TEST

SUITE("log_limit")
{
    TEST(a_second_has_a_bounded_number_of_lines);
    TEST(few_lines_are_not_limited);
}
