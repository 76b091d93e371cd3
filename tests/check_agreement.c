// SPDX-License-Identifier: Apache-2.0
// router/core/agreement: the bounds against a slow computation of the same interval, the window against a recount of
// all answers, and when pruning falls back and resumes.
#include "router/core/agreement.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "lib/base/random.h"
#include "tests/suite.h"

static struct agreement_table table;
static const struct agreement_key standard = {0, 0.3};

static void start(void)
{
    table = (struct agreement_table){.measure = AGREEMENT_ANSWER, .promise = 0.9};
}

static void stop(void)
{
    agreement_table_fini(&table);
}

static const struct agreement_state *add(const char *tenant, struct agreement_key key, bool first, bool whole)
{
    const struct agreement agreement = {
        .is_compared = true, .first = first, .whole = whole, .tokens = 8, .agreed = whole ? 8 : first, .surprise = 2};
    return agreement_add(&table, tenant, key, &agreement);
}

// Adds n answers that agree, or n that do not. Returns how many came until pruning changed, or 0 if it did not.
static int add_until_change(int n, bool agrees)
{
    for (int i = 1; i <= n; i++)
        if (add("t", standard, agrees, agrees)) return i;
    return 0;
}

// --- the bounds

// Returns the probability that at least k of n agree, by adding the n answers one by one.
static double slow_at_least(int k, int n, double p)
{
    static double chance[AGREEMENT_WINDOW + 2];
    double sum = 0;
    chance[0] = 1;
    for (int i = 1; i <= n; i++) {
        chance[i] = chance[i - 1] * p;
        for (int j = i - 1; j > 0; j--)
            chance[j] = chance[j] * (1 - p) + chance[j - 1] * p;
        chance[0] *= 1 - p;
    }
    for (int j = k; j <= n; j++)
        sum += chance[j];
    return sum;
}

// The lower bound is the share with which the answers, or more of them, would agree by chance in 5 % of the windows.
START_TEST(the_bounds_are_those_of_clopper_and_pearson)
{
    static const int sizes[] = {1, 2, 7, 29, 100, 1000};
    int n = sizes[_i];
    for (int agreed = 0; agreed <= n; agreed += n < 100 ? 1 : n / 20) {
        double lower = agreement_lower_bound(agreed, n), upper = agreement_upper_bound(agreed, n);
        ck_assert_double_le(lower, (double)agreed / n);
        ck_assert_double_ge(upper, (double)agreed / n);
        if (agreed) ck_assert_double_eq_tol(slow_at_least(agreed, n, lower), 0.05, 1e-8);
        if (agreed < n) ck_assert_double_eq_tol(1 - slow_at_least(agreed + 1, n, upper), 0.05, 1e-8);
    }
    ck_assert_double_eq(agreement_lower_bound(0, n), 0);
    ck_assert_double_eq(agreement_upper_bound(n, n), 1);
}
END_TEST

// Tables of the interval have 0.7411 for 10 of 10 and 0.6058 for 9 of 10.
START_TEST(known_bounds)
{
    ck_assert_double_eq_tol(agreement_lower_bound(10, 10), 0.7411, 1e-4);
    ck_assert_double_eq_tol(agreement_lower_bound(9, 10), 0.6058, 1e-4);
    ck_assert_double_eq_tol(agreement_upper_bound(0, 10), 0.2589, 1e-4);
}
END_TEST

START_TEST(the_answers_needed_are_the_fewest_that_can_show_the_promise)
{
    static const double promises[] = {0.5, 0.9, 0.95, 0.99, 0.996};
    int n = agreement_answers_needed(promises[_i]);
    ck_assert_double_ge(agreement_lower_bound(n, n), promises[_i]);
    ck_assert_double_lt(agreement_lower_bound(n - 1, n - 1), promises[_i]);
    ck_assert(agreement_can_show(promises[_i]));
}
END_TEST

START_TEST(a_window_is_too_small_for_some_promises)
{
    ck_assert(!agreement_can_show(0.9965));
    ck_assert(!agreement_can_show(0.999));
    ck_assert(!agreement_can_show(1));
}
END_TEST

// --- the window

START_TEST(a_window_has_the_latest_answers)
{
    static bool all[3 * AGREEMENT_WINDOW][2];
    struct random_source random = random_stream(7, 0);
    table.measure = AGREEMENT_UNWATCHED;
    for (int n = 1; n <= 3 * AGREEMENT_WINDOW; n++) {
        bool *answer = all[n - 1];
        answer[0] = random_below(&random, 4) > 0;
        answer[1] = answer[0] && random_below(&random, 3) > 0;
        ck_assert_ptr_null(add("t", standard, answer[0], answer[1]));
        if (n % 97 && n != 3 * AGREEMENT_WINDOW) continue;
        int from = n > AGREEMENT_WINDOW ? n - AGREEMENT_WINDOW : 0, first = 0, whole = 0;
        for (int i = from; i < n; i++) {
            first += all[i][0];
            whole += all[i][1];
        }
        const struct agreement_state *state = &table.tenants[0].windows[0]->state;
        ck_assert_int_eq(state->n, n - from);
        ck_assert_int_eq(state->n_first, first);
        ck_assert_int_eq(state->n_whole, whole);
        ck_assert_double_eq(state->lower, agreement_lower_bound(whole, n - from));
    }
    ck_assert_uint_eq(table.tenants[0].counts.compared, 3 * AGREEMENT_WINDOW);
    ck_assert_uint_eq(table.tenants[0].counts.tokens, 8 * 3 * AGREEMENT_WINDOW);
}
END_TEST

START_TEST(sampled_answers_have_a_log_probability_only)
{
    const struct agreement sampled = {.tokens = 5, .surprise = 3};
    ck_assert_ptr_null(agreement_add(&table, "t", standard, &sampled));
    ck_assert_uint_eq(table.tenants[0].counts.scored, 1);
    ck_assert_uint_eq(table.tenants[0].counts.compared, 0);
    ck_assert_double_eq(table.tenants[0].counts.surprise, 3);
    ck_assert_int_eq(table.tenants[0].n_windows, 0);
}
END_TEST

// --- the decision

START_TEST(agreement_that_is_shown_keeps_pruning)
{
    ck_assert_int_eq(add_until_change(3 * AGREEMENT_WINDOW, true), 0);
    ck_assert(!agreement_falls_back(&table, "t", standard));
}
END_TEST

// 29 answers that agree show 0.9. If one of the first 29 does not agree, they do not show it.
START_TEST(a_lower_bound_under_the_promise_falls_back)
{
    ck_assert_int_eq(add_until_change(10, true), 0);
    ck_assert_int_eq(add_until_change(1, false), 0);
    ck_assert_int_eq(add_until_change(1000, true), 18);
    ck_assert(agreement_falls_back(&table, "t", standard));
    const struct agreement_state *state = &table.tenants[0].windows[0]->state;
    ck_assert_int_eq(state->decided_n, 29);
    ck_assert_int_eq(state->decided_agreed, 28);
    ck_assert_int_eq(state->n, 0);
}
END_TEST

START_TEST(an_upper_bound_under_the_promise_falls_back_early)
{
    ck_assert_int_eq(add_until_change(1000, false), AGREEMENT_LEAST);
    ck_assert(agreement_falls_back(&table, "t", standard));
}
END_TEST

// Ending the fallback takes 0.925, which 39 answers that agree show. One that does not agree delays it.
START_TEST(pruning_resumes_at_a_higher_bound)
{
    add_until_change(1000, false);
    ck_assert_int_eq(add_until_change(38, true), 0);
    ck_assert_int_eq(add_until_change(1, false), 0);
    ck_assert(agreement_falls_back(&table, "t", standard));
    int more = add_until_change(1000, true);
    ck_assert_int_gt(more, 0);
    ck_assert_double_ge(agreement_lower_bound(38 + more, 39 + more), 0.925);
    ck_assert_double_lt(agreement_lower_bound(37 + more, 38 + more), 0.925);
    ck_assert(!agreement_falls_back(&table, "t", standard));
}
END_TEST

// A window decides after as many answers as can show the promise, or the higher bound that ends a fallback.
START_TEST(changes_are_far_apart)
{
    struct random_source random = random_stream((uint64_t)_i, 0);
    int since = 0, changes = 0;
    bool falls_back = false;
    table.promise = 0.5;
    for (int i = 0; i < 3000; i++) {
        since++;
        bool agrees = random_below(&random, 100) < (i / 300 % 2 ? 20 : 90);
        if (!add("t", standard, agrees, agrees)) continue;
        ck_assert_int_ge(since, agreement_answers_needed(falls_back ? 0.625 : 0.5));
        falls_back = !falls_back;
        changes++;
        since = 0;
    }
    ck_assert_int_ge(changes, 4);
    ck_assert_int_le(changes, 20);
}
END_TEST

START_TEST(the_measure_decides)
{
    table.measure = AGREEMENT_FIRST_TOKEN;
    for (int i = 0; i < 100; i++)
        ck_assert_ptr_null(add("t", standard, true, false));
    table.measure = AGREEMENT_UNWATCHED;
    for (int i = 0; i < 100; i++)
        ck_assert_ptr_null(add("u", standard, false, false));
    table.measure = AGREEMENT_ANSWER;
    bool changed = false;
    for (int i = 0; i < 100; i++)
        changed |= add("v", standard, true, false) != NULL;
    ck_assert(changed);
}
END_TEST

// --- tenants and keys

START_TEST(tenants_and_keys_are_apart)
{
    const struct agreement_key quality = {0.5, 1}, same = {0.5, 0.2};
    add_until_change(1000, false);
    ck_assert(!agreement_falls_back(&table, "u", standard));
    ck_assert(!agreement_falls_back(&table, "t", quality));
    for (int i = 0; i < 20; i++)
        add("t", quality, i != 12, i != 12); // keeps a promise of 0.5, but not of 0.9
    ck_assert(!agreement_falls_back(&table, "t", same));
    ck_assert_double_eq(table.tenants[0].windows[1]->state.promise, 0.5);
    ck_assert(agreement_falls_back(&table, "t", standard));
}
END_TEST

START_TEST(tenants_and_keys_are_bounded)
{
    char name[16];
    for (int i = 0; i < 3 * AGREEMENT_TENANTS; i++) {
        snprintf(name, sizeof name, "t%d", i);
        for (int k = 1; k < 3 * AGREEMENT_WINDOWS; k++)
            add(name, (struct agreement_key){0, 0.01 * k}, true, true);
    }
    add(AGREEMENT_OTHERS, standard, true, true);
    ck_assert_int_eq(table.n_tenants, AGREEMENT_TENANTS + 1);
    ck_assert_str_eq(table.tenants[AGREEMENT_TENANTS].name, AGREEMENT_OTHERS);
    ck_assert_uint_eq(table.tenants[AGREEMENT_TENANTS].counts.scored,
                      2 * AGREEMENT_TENANTS * (3 * AGREEMENT_WINDOWS - 1) + 1);
    for (int i = 0; i < table.n_tenants; i++)
        ck_assert_int_eq(table.tenants[i].n_windows, AGREEMENT_WINDOWS);
}
END_TEST

START_TEST(no_tenant_takes_the_name_of_the_others)
{
    add(AGREEMENT_OTHERS, standard, true, true);
    ck_assert_str_eq(table.tenants[0].name, "");
}
END_TEST

SUITE("agreement")
{
    FIXTURE(start, stop);
    LOOP(the_bounds_are_those_of_clopper_and_pearson, 0, 6);
    TEST(known_bounds);
    LOOP(the_answers_needed_are_the_fewest_that_can_show_the_promise, 0, 5);
    TEST(a_window_is_too_small_for_some_promises);
    TEST(a_window_has_the_latest_answers);
    TEST(sampled_answers_have_a_log_probability_only);
    TEST(agreement_that_is_shown_keeps_pruning);
    TEST(a_lower_bound_under_the_promise_falls_back);
    TEST(an_upper_bound_under_the_promise_falls_back_early);
    TEST(pruning_resumes_at_a_higher_bound);
    LOOP(changes_are_far_apart, 0, 3);
    TEST(the_measure_decides);
    TEST(tenants_and_keys_are_apart);
    TEST(tenants_and_keys_are_bounded);
    TEST(no_tenant_takes_the_name_of_the_others);
}
