// SPDX-License-Identifier: Apache-2.0
// router/sched/estimate: while sequences decode, a worker group gives prompts a share of its time (worker/pace.h), and
// the predicted time to the first token follows the share that the group's passes show.
#include <stdlib.h>

#include "tests/core_case.h"
#include "tests/suite.h"

enum { FIXED_US = 1000, ROW_US = 100, PROMPT = 400, CHUNK = 10, DECODES = 4 };

static struct fake_node *w;

static int64_t pass(int rows)
{
    int64_t us = FIXED_US + ROW_US * rows;
    core_passed(f.c, w->node, &(struct pass_cost){rows, (int64_t)rows * (rows + 1) / 2, us, false}, f.now_us);
    fixture_advance(&f, us);
    return us;
}

static void start(void)
{
    setup();
    w = attach_worker("w");
    for (int i = 0; i < 100; i++)
        pass(1 << i % 10);
}

// Computes a prompt together with the decodes, CHUNK rows in each pass, until `until_rows` rows are computed.
static int64_t read_paced(int until_rows)
{
    int64_t us = 0;
    for (int read = 0; read < until_rows; read += CHUNK)
        us += pass(CHUNK + DECODES);
    return us;
}

START_TEST(a_prompt_with_decodes_takes_the_time_that_pacing_leaves_it)
{
    struct client *decoding[DECODES];
    for (int i = 0; i < DECODES; i++) {
        decoding[i] = fixture_send(&f, 10, 1000);
        fake_node_step(&f, w, decoding[i], 0, 1, -1);
    }
    double unpaced_us = fixture_predicted_us(&f, PROMPT);
    ck_assert(unpaced_us < 1.2 * (FIXED_US + ROW_US * (PROMPT + DECODES))); // as if the prompt filled the pass
    struct client *prompt = fixture_send(&f, PROMPT, 4);
    int64_t us = read_paced(PROMPT); // 40 passes of 2.4 ms instead of one of 41 ms
    fake_node_step(&f, w, prompt, 0, 1, FINISH_REASON_STOP);
    double paced_us = fixture_predicted_us(&f, PROMPT);
    ck_assert_double_gt(paced_us, 0.8 * (double)us);
    ck_assert_double_lt(paced_us, 1.25 * (double)us);
    for (int i = 0; i < DECODES; i++)
        fake_node_step(&f, w, decoding[i], 1, 1, FINISH_REASON_STOP);
    double idle_us = fixture_predicted_us(&f, PROMPT); // no sequence decodes
    ck_assert(idle_us < 1.2 * (FIXED_US + ROW_US * PROMPT));
}
END_TEST

START_TEST(a_share_is_followed_when_pacing_changes)
{
    struct client *decoding = fixture_send(&f, 10, 1000);
    fake_node_step(&f, w, decoding, 0, 1, -1);
    struct client *prompt = fixture_send(&f, PROMPT, 4);
    read_paced(PROMPT);
    double slow_us = fixture_predicted_us(&f, PROMPT);
    for (int i = 0; i < 60; i++)
        pass(PROMPT + DECODES); // whole prompts
    double fast_us = fixture_predicted_us(&f, PROMPT);
    ck_assert_msg(fast_us < 0.7 * slow_us, "%.0f us, then %.0f us", slow_us, fast_us);
    fake_node_step(&f, w, prompt, 0, 1, FINISH_REASON_STOP);
}
END_TEST

SUITE("paced_estimate")
{
    FIXTURE(start, teardown);
    TEST(a_prompt_with_decodes_takes_the_time_that_pacing_leaves_it);
    TEST(a_share_is_followed_when_pacing_changes);
}
