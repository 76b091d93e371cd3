// SPDX-License-Identifier: Apache-2.0
// router/core and router/sched: worker groups whose ranks form a pipeline of stages. They get a bin more for each
// further stage, the last pass of a prompt goes through all stages, and a stage may wait for all others.
#include "tests/core_case.h"
#include "tests/suite.h"

enum { STAGES = 4, BUDGET = 512, FIXED_US = 1000, ROW_US = 100 };

static struct fake_node *group(int stages, int64_t stage_us, int64_t latency_us)
{
    struct node_hello hello = fixture_hello(NODE_WORKER, "w");
    hello.ranks = hello.stages = stages;
    hello.token_budget = BUDGET;
    hello.stage_us = stage_us;
    hello.latency_us = latency_us;
    return fixture_attach(&f, &hello);
}

static double pass_us(double rows)
{
    return FIXED_US + ROW_US * rows;
}

static void teach(struct fake_node *w)
{
    for (int i = 0; i < 100; i++) {
        const int64_t rows = 1 << i % 10;
        core_passed(f.c, w->node,
                    &(struct pass_cost){rows, rows * (rows + 1) / 2, (int64_t)pass_us((double)rows), false}, f.now_us);
    }
}

START_TEST(each_further_stage_gets_a_bin)
{
    struct fake_node *w = group(STAGES, 0, 0);
    for (int i = 0; i < 2 + STAGES; i++)
        fixture_send(&f, BUDGET, 4);
    ck_assert_int_eq(w->bins, 2 + STAGES - 1); // bins_ahead is 2
}
END_TEST

// Stage and latency of the measured passes, and the passes by which the result comes later.
static const struct {
    int stages;
    int64_t stage_us, latency_us;
    double fill;
} fills[] = {
    {1, 0, 0, 0},
    {2, 0, 0, 1},
    {STAGES, 0, 0, STAGES - 1},
    {STAGES, 10, 25, 1.5}, // the other stages are shorter
    {STAGES, 10, 10, 0},
    {STAGES, 10, 1000, STAGES - 1}, // no pipeline is that slow
    {1, 10, 1000, 0},
};

START_TEST(the_last_pass_of_a_prompt_goes_through_all_stages)
{
    teach(group(fills[_i].stages, fills[_i].stage_us, fills[_i].latency_us));
    const double fill = fills[_i].fill;
    ck_assert_double_eq_tol(fixture_predicted_us(&f, 200), (1 + fill) * pass_us(200), 0.02 * pass_us(200) * (1 + fill));
    // A long prompt is read in passes of the token budget and one of the last 100 rows.
    const double long_us = 2 * pass_us(BUDGET) + pass_us(100) + fill * pass_us(100);
    ck_assert_double_eq_tol(fixture_predicted_us(&f, 2 * BUDGET + 100), long_us, 0.02 * long_us);
}
END_TEST

START_TEST(the_passes_of_a_pipeline_share_the_decoding_sequences)
{
    struct fake_node *w = group(STAGES, 0, 0);
    teach(w);
    for (int i = 0; i < 40; i++) {
        struct client *client = fixture_send(&f, 1, 1000);
        fake_node_step(&f, w, client, 0, 1, -1);
    }
    ck_assert_double_eq_tol(fixture_predicted_us(&f, 200), STAGES * pass_us(200 + 40.0 / STAGES), 1000);
}
END_TEST

// Sends heartbeats without progress for some seconds.
static bool survives(struct fake_node *w, int seconds)
{
    for (int second = 0; second < seconds && w->node; second++) {
        core_heartbeat(f.c, w->node, &(struct node_heartbeat){.progress = 1}, f.now_us);
        fixture_advance(&f, SECOND);
    }
    return w->node != NULL;
}

START_TEST(a_stage_may_wait_for_all_others)
{
    f.options.heartbeat_us = SECOND;
    f.options.stall_us = 5 * SECOND;
    restart();
    struct fake_node *w = group(STAGES, 0, 0);
    fixture_send(&f, 10, 4);
    ck_assert(survives(w, 5 * STAGES - 1));
    ck_assert(!survives(w, 3));
}
END_TEST

SUITE("core_stages")
{
    FIXTURE(setup, teardown);
    TEST(each_further_stage_gets_a_bin);
    EACH(the_last_pass_of_a_prompt_goes_through_all_stages, fills);
    TEST(the_passes_of_a_pipeline_share_the_decoding_sequences);
    TEST(a_stage_may_wait_for_all_others);
}
