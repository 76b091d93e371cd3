// SPDX-License-Identifier: Apache-2.0
// router/core: a keep rate that a speculator chose for a quality is used only while all speculators have the same
// calibration, and only if the calibration is for the worker groups' model and the options of the request. Otherwise
// every token is kept, or the fixed rate that the request has in addition to its quality applies. A rate that cannot
// have chosen the kept tokens is refused.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/log.h"
#include "tests/core_case.h"
#include "tests/suite.h"

enum { PROMPT = 100, KEEP_FIRST = 10, KEEP_LAST = 39, MAIN = 0x11, OTHER_MAIN = 0x12, RATES = 13, PROBLEMS = 5 };

static struct fake_node *speculator(const char *id, uint64_t fingerprint, uint64_t main)
{
    struct node_hello hello = fixture_hello(NODE_SPECULATOR, id);
    struct prefill prefill;
    prefill_defaults(&prefill);
    if (fingerprint)
        hello.calibration = (struct node_calibration){
            fingerprint, main, prefill.look_ahead, prefill.chunk_tokens, prefill.pool_window, f.options.tail_tokens};
    return fixture_attach(&f, &hello);
}

static struct fake_node *worker(const char *id)
{
    struct node_hello hello = fixture_hello(NODE_WORKER, id);
    hello.model_fingerprint = MAIN;
    return fixture_attach(&f, &hello);
}

static struct client *question(double quality, double keep_rate)
{
    struct client *client = fixture_request(&f, PROMPT, 4);
    struct request_spec *spec = &client->r->spec;
    for (int i = 0; i < PROMPT; i++)
        spec->tokens[i] = 3 + i;
    spec->prefill.mode = PREFILL_ON;
    spec->prefill.quality = quality;
    spec->prefill.keep_rate = keep_rate;
    return client;
}

static struct client *question_score(double quality)
{
    struct client *client = question(quality, 1);
    client->r->spec.score_only = true;
    client->r->spec.sampling.max_tokens = 1;
    return client;
}

static void submit(struct client *client)
{
    fixture_submit(&f, client);
    fixture_advance(&f, 0);
}

static void score(struct fake_node *node, const struct client *client, double rate, enum rate_reason reason)
{
    struct token_range kept = {KEEP_FIRST, KEEP_LAST};
    struct score_result result = {
        .request = client->number, .kept = &kept, .n_kept = 1, .keep_rate = rate, .reason = reason};
    fake_node_forget(node, client->number);
    core_scored(f.c, node->node, &result, f.now_us);
    fixture_advance(&f, 0);
}

static void ck_pruned(const struct client *client, double rate, const char *reason)
{
    ck_assert_int_eq(client->r->usage.kept_tokens, KEEP_LAST - KEEP_FIRST + 1);
    ck_assert_double_eq(client->r->keep_rate, rate);
    ck_assert_str_eq(request_rate_reason(client->r), reason);
}

static void ck_whole(const struct client *client)
{
    ck_assert_int_eq(client->r->usage.kept_tokens, PROMPT);
    ck_assert_double_eq(client->r->keep_rate, 1);
    ck_assert_str_eq(request_rate_reason(client->r), "uncalibrated");
}

// 30 tokens of a prompt of 100 are kept. The tail window has 16, so the rate is over 0.13 and at most 0.3.
START_TEST(a_rate_that_does_not_fit_the_kept_tokens_is_refused)
{
    static const struct {
        double rate;
        enum rate_reason reason;
        bool fits;
    } cases[RATES] = {{0, RATE_QUALITY, false},     {-1, RATE_QUALITY, false}, {NAN, RATE_QUALITY, false},
                      {1.5, RATE_QUALITY, false},   {1, RATE_QUALITY, false},  {0.13, RATE_QUALITY, false},
                      {0.14, RATE_QUALITY, true},   {0.3, RATE_QUALITY, true}, {0.31, RATE_QUALITY, false},
                      {0.2, RATE_FIXED, false},     {0.2, RATE_UNSURE, false}, {1, RATE_UNSURE, false},
                      {1, RATE_UNCALIBRATED, false}};
    struct fake_node *w = worker("w"), *s = speculator("s", 7, MAIN);
    struct client *client = question(0.99, 1);
    submit(client);
    score(s, client, cases[_i].rate, cases[_i].reason);
    ck_assert_int_eq(client->r->usage.kept_tokens, cases[_i].fits ? KEEP_LAST - KEEP_FIRST + 1 : PROMPT);
    ck_assert_int_eq(client->r->skip, cases[_i].fits ? SKIP_NONE : SKIP_LOST);
    finish(w, client);
}
END_TEST

START_TEST(a_chosen_rate_below_the_requests_bound_is_refused)
{
    struct fake_node *w = worker("w"), *s = speculator("s", 7, MAIN);
    struct client *client = question(0.99, 1);
    client->r->spec.prefill.min_keep_rate = _i ? 0.2 : 0.21;
    submit(client);
    score(s, client, 0.2, RATE_QUALITY);
    ck_assert_int_eq(client->r->usage.kept_tokens, _i ? KEEP_LAST - KEEP_FIRST + 1 : PROMPT);
    ck_assert_int_eq(client->r->skip, _i ? SKIP_NONE : SKIP_LOST);
    finish(w, client);
}
END_TEST

static void setup_quality(void)
{
    fixture_init(&f);
    f.options.selection_bytes = 1 << 16;
    fixture_start(&f);
}

// The second request has a bound, so it does not get the tokens that were chosen for the first one.
START_TEST(a_held_selection_is_not_reused_below_a_bound)
{
    struct fake_node *w = worker("w"), *s = speculator("s", 7, MAIN);
    struct client *client = question(0.99, 1), *bounded = question(0.99, 1);
    bounded->r->spec.prefill.min_keep_rate = 0.25;
    submit(client);
    score(s, client, 0.2, RATE_QUALITY);
    submit(bounded);
    ck_assert_int_eq(bounded->r->state, REQUEST_SCORING);
    score(s, bounded, 0.25, RATE_QUALITY);
    ck_pruned(bounded, 0.25, "quality");
    finish(w, client);
    finish(w, bounded);
}
END_TEST

START_TEST(a_calibrated_speculator_chooses_the_rate)
{
    struct fake_node *w = worker("w"), *s = speculator("s", 7, MAIN);
    struct client *client = question(0.99, 1);
    submit(client);
    score(s, client, 0.2, RATE_QUALITY);
    ck_pruned(client, 0.2, "quality");
    finish(w, client);
}
END_TEST

// The cases: no calibration, one for another main model, one for other options, and two that differ.
START_TEST(without_a_calibration_for_the_request_all_is_kept_or_the_fixed_rate_applies)
{
    struct fake_node *w = worker("w"), *s = speculator("s", _i == 0 ? 0 : 7, _i == 1 ? OTHER_MAIN : MAIN);
    struct fake_node *other = _i == 3 ? speculator("t", 8, MAIN) : NULL;
    struct client *whole = question(0.99, 1), *fixed = question(0.99, 0.3);
    if (_i == 2) whole->r->spec.prefill.look_ahead = fixed->r->spec.prefill.look_ahead = 3;
    submit(whole);
    ck_whole(whole);
    finish(w, whole);
    submit(fixed);
    ck_assert(fixed->r->spec.prefill.quality == 0);
    score(other && fake_node_has(other, fixed) ? other : s, fixed, 0.3, RATE_FIXED);
    ck_pruned(fixed, 0.3, "fixed");
    finish(w, fixed);
}
END_TEST

// A speculator does not know whether another one differs, or which main model is served.
START_TEST(a_rate_by_a_calibration_that_does_not_apply_is_not_used_for_a_score)
{
    worker("w");
    struct fake_node *s = speculator("s", 7, _i ? MAIN : OTHER_MAIN);
    struct fake_node *other = _i ? speculator("t", 8, MAIN) : NULL;
    struct client *client = question_score(0.99);
    submit(client);
    score(other && fake_node_has(other, client) ? other : s, client, 0.2, RATE_QUALITY);
    ck_assert_int_eq(client->ends, 1);
    ck_assert_int_eq(client->usage.kept_tokens, PROMPT);
    ck_assert_int_eq(client->skip, SKIP_UNCALIBRATED);
}
END_TEST

START_TEST(a_rate_is_not_used_when_a_speculator_with_another_calibration_has_come)
{
    struct fake_node *w = worker("w"), *s = speculator("s", 7, MAIN);
    struct client *client = question(0.99, 1);
    submit(client);
    ck_assert(fake_node_has(s, client));
    speculator("t", 8, OTHER_MAIN);
    score(s, client, 0.2, RATE_QUALITY);
    ck_whole(client);
    finish(w, client);
}
END_TEST

// The selection is not held for later requests either.
START_TEST(a_selection_by_a_calibration_that_does_not_apply_is_not_reused)
{
    struct fake_node *s = speculator("s", 7, MAIN);
    struct client *first = question_score(0.99); // without a worker group only the speculator's calibration is known
    submit(first);
    score(s, first, 0.2, RATE_QUALITY);
    ck_assert_int_eq(first->usage.kept_tokens, KEEP_LAST - KEEP_FIRST + 1);
    struct node_hello hello = fixture_hello(NODE_WORKER, "w");
    hello.model_fingerprint = OTHER_MAIN;
    fixture_attach(&f, &hello);
    struct client *second = question_score(0.99);
    submit(second);
    ck_assert(fake_node_has(s, second));
    score(s, second, 0.2, RATE_QUALITY);
    ck_assert_int_eq(second->usage.kept_tokens, PROMPT);
}
END_TEST

static void ck_problem(FILE *log, const char *sentence)
{
    char text[8192];
    rewind(log);
    text[fread(text, 1, sizeof text - 1, log)] = 0;
    ck_assert_msg(!strstr(text, "calibration_unused") == !sentence, "%s", text);
    struct core_status status = fixture_status(&f);
    if (sentence) {
        ck_assert_msg(strstr(text, sentence) != NULL, "%s", text);
        ck_assert_ptr_nonnull(status.calibration_problem);
        ck_assert_ptr_nonnull(strstr(status.calibration_problem, sentence));
    } else
        ck_assert_ptr_null(status.calibration_problem);
    core_status_fini(&status);
}

// The nodes attach in any order.
START_TEST(a_calibration_that_is_not_used_is_logged_and_in_the_status_with_the_reason)
{
    static const char *const sentences[PROBLEMS] = {"made for another main model", "made for another main model",
                                                    "do not all have the same calibration", "another tail window",
                                                    NULL};
    FILE *log = tmpfile();
    log_setup("test", LOG_INFO);
    dup2(fileno(log), STDERR_FILENO); // of this test's process
    if (_i == 3) f.options.tail_tokens++;
    if (_i == 0) worker("w");
    speculator("s", 7, _i < 2 ? OTHER_MAIN : MAIN);
    if (_i) worker("w");
    if (_i == 2 || _i == 4) speculator("t", _i == 2 ? 0 : 7, MAIN);
    ck_problem(log, sentences[_i]);
    fclose(log);
}
END_TEST

SUITE("core_quality")
{
    FIXTURE(setup_quality, teardown);
    TEST(a_calibrated_speculator_chooses_the_rate);
    TEST(a_held_selection_is_not_reused_below_a_bound);
    LOOP(without_a_calibration_for_the_request_all_is_kept_or_the_fixed_rate_applies, 0, 4);
    LOOP(a_rate_by_a_calibration_that_does_not_apply_is_not_used_for_a_score, 0, 2);
    TEST(a_rate_is_not_used_when_a_speculator_with_another_calibration_has_come);
    TEST(a_selection_by_a_calibration_that_does_not_apply_is_not_reused);
    LOOP(a_rate_that_does_not_fit_the_kept_tokens_is_refused, 0, RATES);
    LOOP(a_chosen_rate_below_the_requests_bound_is_refused, 0, 2);
    LOOP(a_calibration_that_is_not_used_is_logged_and_in_the_status_with_the_reason, 0, PROBLEMS);
}
