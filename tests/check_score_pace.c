// SPDX-License-Identifier: Apache-2.0
// speculator/score_pace: how a scorer divides its passes between prompts that are read and prompts in look-ahead. The
// model is a fake whose passes take the time of an 8B model on one GPU, on a clock that only passes move.
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "speculator/scorer.h"
#include "tests/suite.h"

enum { VOCAB = 8, CONTEXT = 140000, MAX_SEQS = 64, MAX_PROMPTS = 64, LOOK_AHEAD = 8 };

static const double FIXED_US = 8000, ROW_US = 27, PAIR_US = 0.002;
static const struct model_config config = {.n_layers = 32,
                                           .hidden = 4096,
                                           .intermediate = 14336,
                                           .n_heads = 32,
                                           .n_kv_heads = 8,
                                           .head_size = 128,
                                           .vocab_size = VOCAB,
                                           .bos_id = -1};

static int64_t now_us;

// Replaces the function of libc, so that lib/base/clock.h reads the time of this test.
int clock_gettime(clockid_t id, struct timespec *time)
{
    *time = (struct timespec){now_us / 1000000, now_us % 1000000 * 1000};
    return 0;
}

static struct scorer *scorer;
static int token_budget, passes, full_passes; // full: with at least half of the budget
static int64_t longest_pass_us;
static int answers;
static int64_t answered_us[MAX_PROMPTS];
static int32_t tokens[CONTEXT];
static float logits[MAX_SEQS * VOCAB], *importance;

static double pass_us(double rows, double pairs)
{
    return FIXED_US + ROW_US * rows + PAIR_US * pairs;
}

static enum status fake_forward(void *context, const struct ragged_batch *batch, struct forward_result *result)
{
    int64_t us = (int64_t)pass_us(batch->n_rows, (double)ragged_attention_pairs(batch));
    now_us += us;
    if (us > longest_pass_us) longest_pass_us = us;
    passes++;
    full_passes += 2 * batch->n_rows >= token_budget;
    *result = (struct forward_result){.logits = logits, .importance = importance};
    return STATUS_OK;
}

static void take_result(void *context, const struct score_result *result)
{
    ck_assert_msg(!result->error, "%s", result->error);
    answered_us[result->request] = now_us;
    answers++;
}

static void start(int budget)
{
    struct scorer_model model = {.config = &config,
                                 .token_budget = token_budget = budget,
                                 .max_seqs = MAX_SEQS,
                                 .context_tokens = CONTEXT,
                                 .kv_blocks = 40000,
                                 .forward = fake_forward};
    log_setup("test", LOG_ERROR);
    scorer = scorer_create(&model, take_result, NULL);
}

static void setup(void)
{
    importance = mem_alloc_array(CONTEXT + MAX_SEQS * 8192, sizeof *importance);
    now_us = 1000000;
    passes = full_passes = answers = 0;
    longest_pass_us = 0;
    memset(answered_us, 0, sizeof answered_us);
}

static void teardown(void)
{
    scorer_free(scorer);
    free(importance);
}

static void add(int request, int n)
{
    scorer_add(scorer,
               &(struct score_item){
                   .request = (uint64_t)request,
                   .tokens = tokens,
                   .n = n,
                   .prefill = {.keep_rate = 0.3, .look_ahead = LOOK_AHEAD, .chunk_tokens = 32, .pool_window = 13}});
}

static void step(void)
{
    ck_assert_int_eq(scorer_step(scorer), STATUS_OK);
}

static void run_until(int n_answers)
{
    while (answers < n_answers)
        step();
}

START_TEST(look_ahead_does_not_wait_for_the_passes_of_other_prompts)
{
    enum { N = 8 };
    start(8192);
    add(0, 120000); // over 15 full passes
    step();
    for (int i = 1; i <= N; i++)
        add(i, 500);
    int64_t added_us = now_us;
    full_passes = 0;
    run_until(N);
    ck_assert(!answered_us[0]);
    ck_assert_int_le(full_passes, 3); // seven steps inside full passes would be eight
    ck_assert_int_le(now_us - added_us, (int64_t)(3 * pass_us(8192, 0) + LOOK_AHEAD * pass_us(N, N * 500)));
    run_until(N + 1);
}
END_TEST

START_TEST(prompts_that_arrive_together_share_their_look_ahead_passes)
{
    enum { N = 32 };
    start(8192);
    for (int i = 0; i < N; i++)
        add(i, 1024);
    run_until(N);
    // Four passes read the prompts. Look-ahead takes an eighth of that time, then as many passes as the last prompts
    // need.
    ck_assert_int_eq(full_passes, 4);
    ck_assert_int_le(passes, 4 + 4 * 4 + LOOK_AHEAD - 1);
    ck_assert_int_le(answered_us[0], (int64_t)(1000000 + 2.5 * pass_us(8192, 8 * 1024.0 * 512)));
}
END_TEST

START_TEST(reading_keeps_eight_ninths_of_the_time)
{
    enum { LONG = 120000 };
    start(8192);
    add(0, LONG);
    run_until(1);
    int64_t alone_us = now_us - 1000000;
    teardown();
    setup();
    start(8192);
    add(0, LONG);
    double short_us = 0;
    for (int next = 1; !answered_us[0]; step()) {
        if (next == MAX_PROMPTS || next - answers > 2) continue;
        add(next++, 500);
        short_us += pass_us(500, 500 * 250) - FIXED_US;
    }
    ck_assert_int_ge(answers, 20);
    ck_assert_int_le(now_us - 1000000, (int64_t)(9 * ((double)alone_us + short_us) / 8 + pass_us(8192, 0)));
}
END_TEST

START_TEST(short_prompts_do_not_wait_for_a_long_one_to_be_read)
{
    enum { LONG = 131072, SHORT = 300, N = 10, BUDGET = 2048 };
    start(BUDGET);
    add(0, LONG);
    run_until(1);
    int64_t alone_us = now_us - 1000000;
    for (int depth = 1; depth < 120; depth += 40) { // passes of the long prompt before the short ones arrive
        teardown();
        setup();
        start(BUDGET);
        add(0, LONG);
        for (int i = 0; i < depth; i++)
            step();
        for (int i = 1; i <= N; i++)
            add(i, SHORT);
        int64_t added_us = now_us;
        run_until(N);
        ck_assert(!answered_us[0]);
        // The short prompts get 1,024 rows of each pass. They take three passes, then the look-ahead of the last.
        ck_assert_int_le(now_us - added_us, (int64_t)(6 * 1.5 * pass_us(BUDGET, 0)));
        run_until(N + 1);
        ck_assert_int_le(now_us - 1000000, 2 * alone_us);
    }
}
END_TEST

START_TEST(a_chunk_after_many_entries_takes_no_longer_than_a_full_pass)
{
    start(2048);
    add(0, 131072);
    run_until(1);
    ck_assert_int_le(longest_pass_us, (int64_t)(1.5 * pass_us(2048, 2048 * 1024)));
}
END_TEST

START_TEST(a_prompt_that_is_longer_than_the_others_ends_although_others_keep_arriving)
{
    start(512);
    add(0, 5120);
    int next = 1;
    int64_t begun = passes;
    for (; !answered_us[0]; step()) {
        if (next < MAX_PROMPTS) add(next++, 256);
        ck_assert_int_lt(passes - begun, 400);
    }
    ck_assert_int_le(answers, MAX_PROMPTS);
    run_until(next);
}
END_TEST

SUITE("score_pace")
{
    TIMEOUT(60);
    FIXTURE(setup, teardown);
    TEST(look_ahead_does_not_wait_for_the_passes_of_other_prompts);
    TEST(prompts_that_arrive_together_share_their_look_ahead_passes);
    TEST(reading_keeps_eight_ninths_of_the_time);
    TEST(short_prompts_do_not_wait_for_a_long_one_to_be_read);
    TEST(a_chunk_after_many_entries_takes_no_longer_than_a_full_pass);
    TEST(a_prompt_that_is_longer_than_the_others_ends_although_others_keep_arriving);
}
