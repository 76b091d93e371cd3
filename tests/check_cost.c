// SPDX-License-Identifier: Apache-2.0
// router/sched/cost: the cost model finds the coefficients of invented nodes from their reports, in any order.
#include "router/sched/cost.h"
#include "tests/suite.h"

#include <math.h>

static struct cost_model m;
static int64_t now_us;
static uint64_t random_state;

static void setup(void)
{
    m = (struct cost_model){0};
    now_us = 1000;
    random_state = 7;
}

static double random_from(double low, double high)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return low + (high - low) * (double)(random_state >> 40) / (double)(1 << 24);
}

struct truth {
    double fixed_us, row_us, pair_us;
};

static double true_us(const struct truth *t, double rows, double pairs)
{
    return t->fixed_us + t->row_us * rows + t->pair_us * pairs;
}

static void report(const struct truth *t, int64_t rows, double pairs, double noise)
{
    double us = true_us(t, (double)rows, pairs) * (1 + random_from(-noise, noise));
    cost_learn(&m, rows, (int64_t)pairs, (int64_t)us, ++now_us);
}

static void ck_near(double value, double expected, double share)
{
    ck_assert_msg(fabs(value - expected) <= share * expected, "%g is not within %g %% of %g", value, 100 * share,
                  expected);
}

static void ck_predicts(const struct truth *t, double rows, double cached, double share)
{
    double pairs = cost_pairs(rows, cached);
    ck_near(cost_pass_us(&m, 1, rows, pairs), true_us(t, rows, pairs), share);
}

static const struct truth truths[] = {
    {2000, 50, 0.002}, {0, 20, 0.01}, {5000, 3, 0}, {100, 1000, 0.5}, {30000, 80, 0.0001},
};

static void mixed_passes(const struct truth *t, int n, double noise)
{
    for (int i = 0; i < n; i++) {
        double rows = floor(exp(random_from(0, log(4096)))), cached = random_from(0, 8000);
        report(t, (int64_t)rows, floor(cost_pairs(rows, i % 2 ? cached : 0)), noise);
    }
}

START_TEST(a_node_is_known_from_its_passes)
{
    const struct truth *t = &truths[_i];
    mixed_passes(t, 400, 0.1);
    ck_predicts(t, 2048, 0, 0.05);
    ck_predicts(t, 300, 4000, 0.05);
    ck_predicts(t, 1, 2000, 0.05);
    ck_predicts(t, 4096, 12000, 0.08);
}
END_TEST

START_TEST(a_thousand_decodes_do_not_wash_out_a_prefill)
{
    const struct truth t = {3000, 60, 0.003};
    for (int i = 0; i < 12; i++) {
        report(&t, 2048 - 100 * i, cost_pairs(2048 - 100 * i, i % 3 * 2000), 0.02);
        report(&t, 8 + i, cost_pairs(1, 500) * (8 + i), 0.02);
    }
    for (int i = 0; i < 5000; i++)
        report(&t, 8, 8 * cost_pairs(1, 700), 0.02);
    ck_predicts(&t, 2048, 0, 0.05);
    ck_predicts(&t, 1024, 2000, 0.05);
}
END_TEST

START_TEST(a_node_that_changes_is_followed)
{
    const struct truth fast = {1000, 20, 0.001}, slow = {2000, 90, 0.004};
    mixed_passes(&fast, 300, 0.05);
    mixed_passes(&slow, 600, 0.05);
    ck_predicts(&slow, 2048, 0, 0.1);
    mixed_passes(&fast, 600, 0.05);
    ck_predicts(&fast, 2048, 0, 0.1);
}
END_TEST

START_TEST(an_outlier_moves_little_and_impossible_reports_nothing)
{
    const struct truth t = {1000, 20, 0.001};
    mixed_passes(&t, 300, 0.02);
    cost_learn(&m, 1024, 1024 * 512, 60000000, now_us);
    ck_predicts(&t, 2048, 0, 0.1);
    cost_learn(&m, 1024, 1024 * 512, 1, now_us); // far too fast: counts as a quarter of the expected time
    ck_predicts(&t, 2048, 0, 0.35);
    mixed_passes(&t, 50, 0.02);
    ck_predicts(&t, 2048, 0, 0.1);
    struct cost_model before = m;
    cost_learn(&m, 0, 0, 1000, now_us);
    cost_learn(&m, 100, 99, 1000, now_us);
    cost_learn(&m, 100, 200, 0, now_us);
    cost_learn(&m, -5, 200, 1000, now_us);
    cost_learn(&m, 100, 200, -1, now_us);
    ck_assert_int_eq(before.passes, m.passes);
    ck_assert(before.row_us == m.row_us);
    // Any report from the network leaves finite numbers.
    cost_learn(&m, INT32_MAX, INT64_MAX, INT64_MAX, now_us);
    cost_learn(&m, 1, INT64_MAX, 1, now_us);
    ck_assert(isfinite(m.fixed_us));
    ck_assert(isfinite(m.row_us));
    ck_assert(isfinite(m.pair_us));
    ck_assert(m.fixed_us >= 0);
    ck_assert(m.row_us >= 0);
    ck_assert(m.pair_us >= 0);
}
END_TEST

START_TEST(the_time_of_passes_of_one_size_is_attributed_to_rows)
{
    const struct truth t = {0, 40, 0};
    for (int i = 0; i < 20; i++)
        report(&t, 512, cost_pairs(512, 0), 0);
    ck_near(cost_pass_us(&m, 1, 1024, 2 * cost_pairs(512, 0)), 40 * 1024, 0.1);
    ck_assert_double_gt(m.row_us, 30);
}
END_TEST

// The first passes compute a long prompt, so all time is attributed to rows. A short pass then takes many times the
// expected time. The model must know the time of every size after a few passes of that size.
START_TEST(the_time_of_short_passes_after_a_long_prompt_is_known)
{
    const struct truth t = {2707, 3.929, 0.000113};
    for (int i = 0; i < 8; i++)
        report(&t, 140, cost_pairs(140, 140 * i), 0);
    report(&t, 1, cost_pairs(1, 1118), 0);
    report(&t, 52, cost_pairs(52, 0), 0);
    for (int i = 0; i < 3; i++)
        report(&t, 2 + i, cost_pairs(1, 30) * (2 + i), 0);
    ck_predicts(&t, 1, 400, 0.05);
    ck_predicts(&t, 3, 400, 0.05);
    ck_predicts(&t, 140, 400, 0.05);
}
END_TEST

START_TEST(the_time_of_a_first_prompt_after_short_passes_is_known)
{
    const struct truth t = {10264, 28.959, 0.000977};
    for (int i = 0; i < 8; i++)
        report(&t, 1 + i % 3, cost_pairs(1, 300) * (1 + i % 3), 0);
    for (int i = 0; i < 3; i++)
        report(&t, 256, cost_pairs(256, 256 * i), 0);
    ck_predicts(&t, 256, 0, 0.1);
    ck_predicts(&t, 2, 300, 0.1);
}
END_TEST

START_TEST(a_computed_prompt_makes_its_length_known)
{
    const struct truth t = {1000, 20, 0.001};
    cost_prompt_done(&m, 1000, now_us);
    ck_assert(!cost_knows(&m, 1, now_us)); // no pass has been seen
    for (int i = 0; i < 4; i++)
        report(&t, 8, 4000, 0);
    ck_assert(cost_knows(&m, 4000, now_us));
    ck_assert(!cost_knows(&m, 4001, now_us));
    cost_prompt_done(&m, 100, now_us + 300000000);
    cost_prompt_done(&m, -1, now_us + 300000000);
    ck_assert(cost_knows(&m, 4000, now_us + 599000000));
    ck_assert(!cost_knows(&m, 4000, now_us + 601000000));
    cost_prompt_done(&m, 100, now_us + 601000000); // now this is the longest recent prompt
    ck_assert(cost_knows(&m, 400, now_us + 601000000));
    ck_assert(!cost_knows(&m, 401, now_us + 601000000));
}
END_TEST

START_TEST(unknown_sizes_are_reported_as_unknown)
{
    const struct truth t = {1000, 20, 0.001};
    ck_assert(!cost_knows(&m, 1, now_us));
    for (int i = 0; i < 3; i++)
        report(&t, 8, 4000, 0);
    ck_assert(!cost_knows(&m, 8, now_us));
    report(&t, 8, 4000, 0);
    ck_assert(cost_knows(&m, 32, now_us));
    ck_assert(!cost_knows(&m, 33, now_us)); // decodes alone say nothing about prefills
    report(&t, 512, cost_pairs(512, 0), 0);
    ck_assert(cost_knows(&m, 2048, now_us));
    ck_assert(cost_knows(&m, 2048, now_us + 599000000));
    ck_assert(!cost_knows(&m, 2048, now_us + 601000000));
    // Sizes that still occur do not keep another size known.
    for (int i = 0; i < 10; i++) {
        now_us += 90000000;
        report(&t, 8, 4000, 0);
    }
    ck_assert(cost_knows(&m, 32, now_us));
    ck_assert(!cost_knows(&m, 33, now_us));
    // A forgotten size has no influence on the fit.
    now_us += 601000000;
    const struct truth other = {300, 400, 0};
    report(&other, 512, cost_pairs(512, 0), 0);
    ck_assert(!cost_knows(&m, 8, now_us));
    for (int i = 0; i < 3; i++)
        report(&other, 512, cost_pairs(512, 0), 0);
    ck_assert(cost_knows(&m, 2048, now_us));
    ck_near(cost_pass_us(&m, 1, 512, cost_pairs(512, 0)), true_us(&other, 512, cost_pairs(512, 0)), 0.02);
}
END_TEST

// Times of passes with prompts vary. Times of decode passes hardly vary.
static void passes_with_varying_prompts(const struct truth *t)
{
    for (int i = 0; i < 1000; i++) {
        report(t, 2, 1000, 0);
        double rows = floor(random_from(100, 500));
        report(t, (int64_t)rows, cost_pairs(rows, 0), 0.6);
    }
}

START_TEST(varying_times_are_predicted_by_their_mean)
{
    const struct truth t = {16000, 250, 0};
    double predicted_us = 0;
    for (int k = 0; k < 20; k++) {
        passes_with_varying_prompts(&t);
        predicted_us += cost_pass_us(&m, 1, 300, cost_pairs(300, 0)) / 20;
    }
    ck_near(predicted_us, true_us(&t, 300, 0), 0.05);
    ck_predicts(&t, 2, 500, 0.02);
}
END_TEST

START_TEST(the_noise_of_passes_is_measured)
{
    const struct truth t = {16000, 250, 0};
    ck_assert(cost_noise(&m) == 0);
    mixed_passes(&t, 1000, 0);
    ck_assert_double_lt(cost_noise(&m), 0.01);
    passes_with_varying_prompts(
        &t); // half of the passes vary by up to 60 %: uniform times have a deviation of 0.6 / sqrt(3)
    ck_near(cost_noise(&m), 0.6 / sqrt(3) / sqrt(2), 0.15);
    cost_learn(&m, 300, 300 * 301 / 2, 600000000, now_us); // one pass counts as twice its time at most
    ck_assert_double_lt(cost_noise(&m), 0.35);
}
END_TEST

START_TEST(costs_are_known_from_the_passes_of_a_start)
{
    const struct truth t = {2000, 50, 0.002};
    struct cost_pass passes[] = {{1, 1, 0}, {64, 64 * 1984 + 64 * 65 / 2, 0}, {64, 64 * 65 / 2, 0}};
    for (int i = 0; i < 3; i++)
        passes[i].us = (int64_t)true_us(&t, (double)passes[i].rows, (double)passes[i].pairs);
    cost_begin(&m, passes, 3, now_us);
    ck_assert(cost_knows(&m, 4 * 2000, now_us)); // the second pass is the end of a prompt of 2,048 tokens
    ck_assert(!cost_knows(&m, 5 * 2048, now_us));
    ck_predicts(&t, 64, 0, 0.05);
    ck_predicts(&t, 1024, 0, 0.1);
    mixed_passes(&t, 100, 0);
    ck_predicts(&t, 1024, 0, 0.01);
    m = (struct cost_model){0};
    cost_begin(&m, NULL, 0, now_us);
    ck_assert(!cost_knows(&m, 1, now_us));
}
END_TEST

SUITE("cost")
{
    FIXTURE(setup, NULL);
    EACH(a_node_is_known_from_its_passes, truths);
    TEST(a_thousand_decodes_do_not_wash_out_a_prefill);
    TEST(a_node_that_changes_is_followed);
    TEST(an_outlier_moves_little_and_impossible_reports_nothing);
    TEST(the_time_of_passes_of_one_size_is_attributed_to_rows);
    TEST(the_time_of_short_passes_after_a_long_prompt_is_known);
    TEST(the_time_of_a_first_prompt_after_short_passes_is_known);
    TEST(a_computed_prompt_makes_its_length_known);
    TEST(unknown_sizes_are_reported_as_unknown);
    TEST(varying_times_are_predicted_by_their_mean);
    TEST(the_noise_of_passes_is_measured);
    TEST(costs_are_known_from_the_passes_of_a_start);
}
