// SPDX-License-Identifier: Apache-2.0
// speculator/scorer with a fake model and a calibration: the keep rate of a prompt does not depend on prompts that are
// scored in the same passes. A look-ahead that the context cuts short has no calibrated rate.
#include <stdlib.h>

#include "speculator/scorer.h"
#include "tests/suite.h"

enum { VOCAB = 20, CONTEXT = 300, LOOK_AHEAD = 4, PROMPTS = 24, BUDGETS = 3 };

static const struct model_config config = {.vocab_size = VOCAB, .eos_id = {7}, .n_eos = 1};
static struct calibration calibration;
static float logits[PROMPTS * VOCAB], importance[PROMPTS * CONTEXT];

static float number_of(int n, int entries, int j) // of a prompt of n tokens; some have peaks
{
    unsigned x = (unsigned)(n * 7919 + entries * 104729 + j * 1299709);
    x = (x ^ x >> 13) * 2654435761u;
    float even = (float)(x >> 16) / 65536;
    return j % 11 == n % 11 ? even * (float)(n % 50) : even;
}

static enum status fake_forward(void *context, const struct ragged_batch *batch, struct forward_result *result)
{
    int logit = 0, probe = 0;
    float *to = importance;
    for (int s = 0; s < batch->n_seqs; s++) {
        int row = batch->row_start[s + 1] - 1, entries = batch->kv_len[s] + row - batch->row_start[s];
        if (probe == batch->n_importance_rows || batch->importance_row[probe] != row) continue;
        int n = batch->importance_keys[probe++];
        for (int j = 0; j < n; j++)
            *to++ = number_of(n, entries, j);
        if (logit == batch->n_logit_rows || batch->logit_row[logit] != row) continue;
        for (int v = 0; v < VOCAB; v++)
            logits[logit * VOCAB + v] = 5 * number_of(n, entries, CONTEXT + v);
        logit++;
    }
    *result = (struct forward_result){.logits = logits, .importance = importance};
    return STATUS_OK;
}

struct answer {
    double keep_rate;
    enum rate_reason reason;
    int kept, answers;
};

static void take_result(void *context, const struct score_result *result)
{
    struct answer *answer = (struct answer *)context + result->request;
    ck_assert_msg(!result->error, "%s", result->error);
    *answer = (struct answer){result->keep_rate, result->reason, 0, answer->answers + 1};
    for (int k = 0; k < result->n_kept; k++)
        answer->kept += result->kept[k].last - result->kept[k].first + 1;
}

static void setup(void)
{
    calibration =
        (struct calibration){.look_ahead = LOOK_AHEAD, .chunk_tokens = 0, .pool_window = 13, .tail_tokens = 0};
    for (int v = 0; v < QUALITY_VALUES; v++)
        calibration.deviation[v] = 1;
    for (int v = 0; v < EVIDENCE_VALUES; v++) {
        calibration.low[v] = -1e6;
        calibration.high[v] = 1e6;
    }
    for (int m = 0; m < 2; m++) {
        struct calibration_fit *fit = &calibration.fits[m];
        const double slopes[QUALITY_VALUES] = {1, -0.5, -1, 2, 0.01, 0.4, 0.3};
        *fit = (struct calibration_fit){.weights = {3}};
        for (int v = 0; v < QUALITY_VALUES; v++)
            fit->weights[calibration_feature_of(v)] = slopes[v];
        for (int t = 0; t < QUALITY_TARGETS; t++)
            fit->prices[t] = 1 << t;
    }
}

static struct scorer *scorer_open(int budget, struct answer *answers)
{
    struct scorer_model model = {.config = &config,
                                 .token_budget = budget,
                                 .max_seqs = PROMPTS,
                                 .context_tokens = CONTEXT,
                                 .kv_blocks = 800,
                                 .calibration = &calibration,
                                 .forward = fake_forward};
    return scorer_create(&model, take_result, answers);
}

static void add_bounded(struct scorer *s, uint64_t request, int n, double quality, double min_keep_rate)
{
    static int32_t tokens[CONTEXT];
    struct score_item item = {
        .request = request,
        .tokens = tokens,
        .n = n,
        .prefill = {.keep_rate = 1, .quality = quality, .look_ahead = LOOK_AHEAD, .pool_window = 13}};
    item.prefill.min_keep_rate = min_keep_rate;
    scorer_add(s, &item);
}

static void add(struct scorer *s, uint64_t request, int n, double quality)
{
    add_bounded(s, request, n, quality, 0);
}

static void run(struct scorer *s)
{
    while (scorer_get_load(s).running + scorer_get_load(s).waiting)
        ck_assert_int_eq(scorer_step(s), STATUS_OK);
}

static int length_of(int i)
{
    return 20 + 11 * i;
}

static double quality_of(int i)
{
    return 0.6 + 0.05 * (i % 8);
}

START_TEST(the_rate_of_a_prompt_does_not_depend_on_the_others)
{
    static const int budgets[BUDGETS] = {7, 100, 4000};
    struct answer alone[PROMPTS] = {0}, together[PROMPTS] = {0};
    int rates = 0;
    for (int i = 0; i < PROMPTS; i++) {
        struct scorer *s = scorer_open(512, alone);
        add(s, (uint64_t)i, length_of(i), quality_of(i));
        run(s);
        scorer_free(s);
        rates += i && alone[i].keep_rate != alone[i - 1].keep_rate;
    }
    ck_assert_int_ge(rates, 4); // not all the same
    struct scorer *s = scorer_open(budgets[_i], together);
    for (int i = PROMPTS - 1; i >= 0; i--)
        add(s, (uint64_t)i, length_of(i), quality_of(i));
    run(s);
    scorer_free(s);
    for (int i = 0; i < PROMPTS; i++) {
        ck_assert_int_eq(together[i].answers, 1);
        ck_assert_int_eq(together[i].reason, alone[i].reason);
        ck_assert(together[i].keep_rate == alone[i].keep_rate);
        ck_assert_int_eq(together[i].kept, alone[i].kept);
    }
}
END_TEST

// Fewer steps give other evidence than the calibration's documents have.
START_TEST(a_look_ahead_cut_short_by_the_context_keeps_all)
{
    struct answer answers[2] = {0};
    struct scorer *s = scorer_open(512, answers);
    add(s, 0, CONTEXT - LOOK_AHEAD + 1, 0.5);
    add(s, 1, CONTEXT - LOOK_AHEAD + 2, 0.5);
    run(s);
    scorer_free(s);
    ck_assert_int_eq(answers[0].reason, RATE_QUALITY);
    ck_assert(answers[0].keep_rate < 1);
    ck_assert_int_eq(answers[1].reason, RATE_UNCALIBRATED);
    ck_assert(answers[1].keep_rate == 1);
    ck_assert_int_eq(answers[1].kept, CONTEXT - LOOK_AHEAD + 2);
}
END_TEST

START_TEST(the_rate_is_not_below_the_requests_bound)
{
    struct answer answers[3] = {0};
    struct scorer *s = scorer_open(512, answers);
    add(s, 0, 200, 0.6);
    add_bounded(s, 1, 200, 0.6, 0.01);
    add_bounded(s, 2, 200, 0.6, 0.95);
    run(s);
    scorer_free(s);
    ck_assert(answers[0].keep_rate < 0.95);
    ck_assert(answers[1].keep_rate == answers[0].keep_rate);
    ck_assert(answers[2].keep_rate == 0.95);
    ck_assert_int_eq(answers[2].reason, RATE_QUALITY);
    ck_assert_int_gt(answers[2].kept, answers[0].kept);
}
END_TEST

SUITE("scorer_quality")
{
    FIXTURE(setup, NULL);
    LOOP(the_rate_of_a_prompt_does_not_depend_on_the_others, 0, BUDGETS);
    TEST(the_rate_is_not_below_the_requests_bound);
    TEST(a_look_ahead_cut_short_by_the_context_keeps_all);
}
