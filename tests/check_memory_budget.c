// SPDX-License-Identifier: Apache-2.0
// The router's memory budgets within the memory limit of a cgroup.
#include <string.h>

#include "router/memory_budget.h"
#include "tests/suite.h"

static int64_t a, b, c;

static enum status fit(int64_t limit_mib)
{
    const struct memory_budget budgets[] = {{"a", &a, 20, false}, {"b", &b, 100, false}, {"c", &c, 1, true}};
    return memory_budgets_fit(limit_mib, 100, budgets, 3);
}

static void setup(void)
{
    a = 220, b = 500, c = 50; // with the base 870, at least 270
}

START_TEST(budgets_that_fit_do_not_change)
{
    ck_assert_int_eq(fit(870), STATUS_OK);
    ck_assert_int_eq(a, 220);
    ck_assert_int_eq(b, 500);
}
END_TEST

START_TEST(budgets_shrink_in_proportion_to_what_they_may_give_up)
{
    ck_assert_int_eq(fit(570), STATUS_OK);
    ck_assert_int_eq(a, 120);
    ck_assert_int_eq(b, 300);
    ck_assert_int_eq(c, 50);
}
END_TEST

START_TEST(a_limit_that_is_too_low_is_refused_with_the_numbers)
{
    ck_assert_int_eq(fit(270), STATUS_OK);
    ck_assert_int_eq(b, 100);
    setup();
    ck_assert_int_eq(fit(269), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(status_message(), "allows the router 269 MiB, but it needs 270 MiB: 100 MiB"));
    ck_assert_int_eq(a, 220);
}
END_TEST

SUITE("memory_budget")
{
    FIXTURE(setup, NULL);
    TEST(budgets_that_fit_do_not_change);
    TEST(budgets_shrink_in_proportion_to_what_they_may_give_up);
    TEST(a_limit_that_is_too_low_is_refused_with_the_numbers);
}
