// SPDX-License-Identifier: Apache-2.0
// router/core/shadow, shadow_run: which requests get shadows, when shadows run, what they measure, that no request
// waits for them or is charged, and that pruning falls back.
#include "router/core/shadow.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/mem.h"
#include "router/core/core_state.h"
#include "tests/core_case.h"
#include "tests/suite.h"

enum { PROMPT = 40, KEPT = 10, ANSWER = 3 };

static struct fake_node *worker, *speculator;

static void begin(void)
{
    fixture_init(&f);
    f.options.shadow = (struct shadow_options){.share = 1, .per_s = 1000, .promise = 0.9};
    fixture_start(&f);
    worker = attach_worker("w");
    speculator = attach_speculator("s");
}

static const struct shadows *shadows(void)
{
    return &f.c->shadows;
}

static struct client *request_make(const char *id)
{
    struct client *client = fixture_request(&f, PROMPT, ANSWER);
    for (int i = 0; i < PROMPT; i++)
        client->r->spec.tokens[i] = 100 + i;
    client->r->id = mem_string(id);
    client->r->spec.prefill.mode = PREFILL_ON;
    client->r->spec.prefill.conversation = false;
    return client;
}

static void answer(struct client *client, int finish)
{
    fixture_submit(&f, client);
    fixture_advance(&f, 0);
    if (client->r->state == REQUEST_SCORING) fake_node_score(&f, speculator, client, 0, KEPT - 1);
    fake_node_step(&f, worker, client, 5, ANSWER, finish);
    ck_assert_int_eq(client->ends, 1);
}

static struct client *ask(const char *id)
{
    struct client *client = request_make(id);
    answer(client, FINISH_REASON_LENGTH);
    return client;
}

// Returns the request of the shadow that runs on the worker group.
static struct request *running(void)
{
    ck_assert_int_eq(shadows()->n_running, 1);
    ck_assert_int_eq(worker->n_requests, 1);
    return request_table_find(&f.c->table, worker->requests[0]);
}

// Sends the result of a shadow: the ranks of the answer's tokens, then one token more, or the end.
static void measure(const int ranks[ANSWER], bool ends)
{
    struct request *r = running();
    struct token_logprob logprobs[ANSWER] = {{0}};
    static const int32_t next = 9;
    for (int i = 0; i < ANSWER; i++)
        logprobs[i] = (struct token_logprob){.token = 5 + i, .rank = ranks[i], .logprob = -0.5F};
    const struct sequence_result result = {.request = r->number,
                                           .tokens = &next,
                                           .n_tokens = !ends,
                                           .prompt_logprobs = logprobs,
                                           .n_prompt_logprobs = ANSWER,
                                           .prompt_logprobs_from = PROMPT,
                                           .finished = true,
                                           .reason = ends ? FINISH_REASON_STOP : FINISH_REASON_LENGTH};
    fake_node_forget(worker, r->number);
    core_step(f.c, worker->node, &result, 1, f.now_us);
    fixture_advance(&f, 0);
}

static const int all_agree[ANSWER] = {1, 1, 1}, last_differs[ANSWER] = {1, 1, 2}, first_differs[ANSWER] = {2, 1, 1};

static const struct agreement_counts *counts(void)
{
    ck_assert_int_ge(shadows()->agreement.n_tenants, 1);
    return &shadows()->agreement.tenants[0].counts;
}

// --- the request of a shadow

START_TEST(a_shadow_asks_for_the_whole_prompt_with_the_answer)
{
    struct client *client = request_make("r");
    client->r->spec.prefix_salt = 77;
    fixture_submit(&f, client);
    fixture_advance(&f, 0);
    fake_node_score(&f, speculator, client, 0, KEPT - 1);
    ck_assert_int_eq(shadows()->n, 0); // the answer has not ended
    fake_node_step(&f, worker, client, 5, ANSWER, FINISH_REASON_LENGTH);
    const struct request *r = running();
    ck_assert_int_eq(r->spec.n_tokens, PROMPT + ANSWER);
    ck_assert_int_eq(r->usage.kept_tokens, PROMPT + ANSWER);
    for (int i = 0; i < PROMPT; i++)
        ck_assert_int_eq(r->spec.tokens[i], 100 + i);
    for (int i = 0; i < ANSWER; i++)
        ck_assert_int_eq(r->spec.tokens[PROMPT + i], 5 + i);
    ck_assert_int_eq(r->spec.sampling.max_tokens, 1);
    ck_assert_int_eq(r->spec.sampling.prompt_logprobs, 0);
    ck_assert_int_eq(r->n_prompt_logprobs, PROMPT - 1); // node_bins.c asks for the answer's tokens only
    ck_assert_uint_eq(r->spec.prefix_salt, 77);
}
END_TEST

START_TEST(all_three_are_measured)
{
    static const struct {
        const int *ranks;
        int finish;
        bool ends;
        uint64_t first, whole;
    } cases[] = {
        {all_agree, FINISH_REASON_LENGTH, false, 1, 1},    {all_agree, FINISH_REASON_LENGTH, true, 1, 1},
        {all_agree, FINISH_REASON_STOP, true, 1, 1},       {all_agree, FINISH_REASON_STOP, false, 1, 0}, // goes on
        {last_differs, FINISH_REASON_LENGTH, false, 1, 0}, {first_differs, FINISH_REASON_LENGTH, false, 0, 0},
    };
    struct client *client = request_make("r");
    answer(client, cases[_i].finish);
    measure(cases[_i].ranks, cases[_i].ends);
    ck_assert_uint_eq(shadows()->totals.measured, 1);
    ck_assert_uint_eq(counts()->compared, 1);
    ck_assert_uint_eq(counts()->first, cases[_i].first);
    ck_assert_uint_eq(counts()->whole, cases[_i].whole);
    ck_assert_double_eq_tol(counts()->surprise, 1.5, 1e-9);
    ck_assert_int_eq(shadows()->n, 0);
}
END_TEST

START_TEST(a_stop_string_needs_no_end_token)
{
    struct client *client = request_make("r");
    client->stop_after = ANSWER;
    fixture_submit(&f, client);
    fixture_advance(&f, 0);
    fake_node_score(&f, speculator, client, 0, KEPT - 1);
    fake_node_step(&f, worker, client, 5, ANSWER, -1);
    measure(all_agree, false);
    ck_assert_uint_eq(counts()->whole, 1);
}
END_TEST

START_TEST(sampled_answers_are_not_compared)
{
    struct client *client = request_make("r");
    client->r->spec.sampling.temperature = 1;
    answer(client, FINISH_REASON_LENGTH);
    measure(all_agree, false);
    ck_assert_uint_eq(counts()->scored, 1);
    ck_assert_uint_eq(counts()->compared, 0);
    ck_assert_uint_eq(counts()->tokens, ANSWER);
}
END_TEST

START_TEST(numbers_that_are_none_are_not_measured)
{
    static const float wrong[] = {0.5F, NAN, -INFINITY};
    ask("r");
    const uint64_t number = running()->number;
    struct token_logprob logprob = {.token = 5, .rank = 1, .logprob = wrong[_i]};
    struct sequence_result result = {
        .request = number, .prompt_logprobs = &logprob, .n_prompt_logprobs = 1, .prompt_logprobs_from = PROMPT};
    core_step(f.c, worker->node, &result, 1, f.now_us);
    ck_assert_int_eq(worker->n_requests, isinf(wrong[_i]) ? 1 : 0); // other numbers end the shadow immediately
    struct token_logprob rest[ANSWER - 1] = {{.token = 6, .rank = 1}, {.token = 7, .rank = 1}};
    result = (struct sequence_result){.request = number,
                                      .prompt_logprobs = rest,
                                      .n_prompt_logprobs = ANSWER - 1,
                                      .prompt_logprobs_from = PROMPT + 1,
                                      .finished = true,
                                      .reason = FINISH_REASON_STOP};
    if (shadows()->n_running) fake_node_forget(worker, number); // the first step may have ended the shadow
    core_step(f.c, worker->node, &result, 1, f.now_us);
    ck_assert_uint_eq(shadows()->totals.dropped[SHADOW_FAILED], 1);
    ck_assert_uint_eq(shadows()->totals.measured, 0);
}
END_TEST

// --- which requests

START_TEST(ids_decide_and_can_be_repeated)
{
    char id[16];
    int chosen[2] = {0, 0};
    f.options.shadow.share = 0.25;
    f.options.shadow.per_s = 0; // no shadow is made, but the chosen requests are counted
    for (int round = 0; round < 2; round++) {
        restart();
        worker = attach_worker("w");
        speculator = attach_speculator("s");
        for (int i = 0; i < 400; i++) {
            snprintf(id, sizeof id, "r%d", i);
            ask(id);
        }
        chosen[round] = (int)shadows()->totals.chosen;
        ck_assert_uint_eq(shadows()->totals.dropped[SHADOW_RATE], shadows()->totals.chosen);
    }
    ck_assert_int_eq(chosen[0], chosen[1]);
    ck_assert_int_gt(chosen[0], 70);
    ck_assert_int_lt(chosen[0], 130);
}
END_TEST

START_TEST(some_requests_get_no_shadow)
{
    struct client *client = request_make("r");
    struct sampling *s = &client->r->spec.sampling;
    enum shadow_skip skip = SHADOW_CHANGED;
    switch (_i) {
    case 0: s->repetition_penalty = 1.1; break;
    case 1: s->presence_penalty = 0.5; break;
    case 2: s->frequency_penalty = -0.5; break;
    case 3: s->min_tokens = 1; break;
    case 4:
        s->grammar = grammar_spec_of(GRAMMAR_REGEX, mem_string("a*"));
        skip = SHADOW_GRAMMAR;
        break;
    default: client->r->score_with = 12345; skip = SHADOW_CHOICE;
    }
    answer(client, FINISH_REASON_LENGTH);
    ck_assert_uint_eq(shadows()->totals.skipped[skip], 1);
    ck_assert_int_eq(shadows()->n, 0);
}
END_TEST

START_TEST(an_answer_without_tokens_gets_no_shadow)
{
    struct client *client = request_make("r");
    fixture_submit(&f, client);
    fixture_advance(&f, 0);
    fake_node_score(&f, speculator, client, 0, KEPT - 1);
    fake_node_step(&f, worker, client, 0, 0, FINISH_REASON_STOP);
    ck_assert_uint_eq(shadows()->totals.skipped[SHADOW_NO_ANSWER], 1);
}
END_TEST

START_TEST(whole_prompts_and_failed_requests_get_no_shadow)
{
    struct client *whole = request_make("a"), *failed = request_make("b"), *left = request_make("c");
    whole->r->spec.prefill.mode = PREFILL_OFF;
    answer(whole, FINISH_REASON_LENGTH);
    answer(failed, FINISH_REASON_ERROR);
    fixture_submit(&f, left);
    fixture_advance(&f, 0);
    core_cancel(f.c, left->number, f.now_us);
    ck_assert_uint_eq(shadows()->totals.chosen, 0);
}
END_TEST

START_TEST(shadows_are_off_without_a_share)
{
    f.options.shadow.share = 0;
    restart();
    worker = attach_worker("w");
    speculator = attach_speculator("s");
    ask("r");
    ck_assert_int_eq(shadows()->n, 0);
    ck_assert_uint_eq(shadows()->totals.chosen, 0);
}
END_TEST

// --- when they run

START_TEST(a_request_interrupts_a_shadow)
{
    ask("r");
    running();
    struct client *other = fixture_request(&f, PROMPT, 2);
    other->r->spec.prefill.mode = PREFILL_OFF;
    fixture_submit(&f, other);
    ck_assert_int_eq(shadows()->n_running, 0);
    ck_assert_int_eq(worker->cancels, 1);
    fixture_advance(&f, 0);
    ck_assert_int_eq(worker->n_requests, 1);
    ck_assert(fake_node_has(worker, other));
    ck_assert_int_eq(shadows()->n, 1); // it waits again
    fake_node_step(&f, worker, other, 0, 1, -1);
    ck_assert_int_eq(shadows()->n_running, 0); // the group is not idle
    finish(worker, other);
    measure(all_agree, false);
    ck_assert_uint_eq(shadows()->totals.measured, 1);
}
END_TEST

START_TEST(a_shadow_goes_on_while_another_group_is_idle)
{
    struct node_hello small = fixture_hello(NODE_WORKER, "small");
    small.kv_blocks /= 2;
    ask("r");
    running();
    struct fake_node *others[] = {fixture_attach(&f, &small), attach_worker("idle")};
    struct client *first = fixture_send(&f, PROMPT, 2);
    ck_assert(fake_node_has(others[0], first) || fake_node_has(others[1], first));
    ck_assert_int_eq(shadows()->n_running, 1);
    struct client *second = fixture_send(&f, PROMPT, 2); // the group left may be too small for it
    ck_assert_int_eq(shadows()->n_running, fake_node_has(others[0], first));
    fake_node_step(&f, others[fake_node_has(others[1], first)], first, 0, 1, FINISH_REASON_STOP);
    for (int i = 0; i < 2; i++)
        if (fake_node_has(others[i], second)) finish(others[i], second);
    if (fake_node_has(worker, second)) finish(worker, second);
}
END_TEST

START_TEST(no_shadow_runs_while_a_prompt_is_scored)
{
    struct client *scored = request_make("s");
    struct client *first = request_make("r");
    fixture_submit(&f, first);
    fixture_advance(&f, 0);
    fake_node_score(&f, speculator, first, 0, KEPT - 1);
    fixture_submit(&f, scored);
    fixture_advance(&f, 0);
    fake_node_step(&f, worker, first, 5, ANSWER, FINISH_REASON_LENGTH);
    ck_assert_int_eq(shadows()->n, 1);
    ck_assert_int_eq(shadows()->n_running, 0);
}
END_TEST

START_TEST(a_shadow_is_dropped_after_some_interruptions)
{
    ask("r");
    for (int i = 0; i < SHADOW_TRIES; i++) {
        running();
        finish(worker, fixture_send(&f, PROMPT, 2));
    }
    ck_assert_uint_eq(shadows()->totals.dropped[SHADOW_INTERRUPTED], 1);
    ck_assert_int_eq(shadows()->n, 0);
}
END_TEST

START_TEST(a_shadow_of_a_lost_group_runs_on_another)
{
    ask("r");
    running();
    struct fake_node *lost = worker;
    worker = attach_worker("w2");
    fixture_detach(&f, lost);
    fixture_advance(&f, 0);
    measure(all_agree, false);
    struct core_status status = fixture_status(&f);
    ck_assert_uint_eq(status.totals.replays, 0);
    core_status_fini(&status);
}
END_TEST

START_TEST(shadows_wait_a_bounded_time)
{
    struct client *busy = fixture_send(&f, PROMPT, 2);
    fake_node_step(&f, worker, busy, 0, 1, -1);
    ask("r");
    ck_assert_int_eq(shadows()->n, 1);
    fixture_advance(&f, SHADOW_WAIT_US - 1);
    ck_assert_int_eq(shadows()->n, 1);
    fixture_advance(&f, 1);
    ck_assert_int_eq(shadows()->n, 0);
    ck_assert_uint_eq(shadows()->totals.dropped[SHADOW_EXPIRED], 1);
}
END_TEST

START_TEST(waiting_shadows_are_bounded)
{
    char id[16];
    struct client *busy = fixture_send(&f, PROMPT, 2);
    fake_node_step(&f, worker, busy, 0, 1, -1);
    for (int i = 0; i < SHADOW_PENDING_MAX + 3; i++) {
        snprintf(id, sizeof id, "r%d", i);
        ask(id);
    }
    ck_assert_int_eq(shadows()->n, SHADOW_PENDING_MAX);
    ck_assert_int_eq(shadows()->tokens, SHADOW_PENDING_MAX * (PROMPT + ANSWER));
    ck_assert_uint_eq(shadows()->totals.dropped[SHADOW_FULL], 3);
}
END_TEST

START_TEST(the_rate_is_bounded)
{
    f.options.shadow.per_s = 2;
    restart();
    worker = attach_worker("w");
    speculator = attach_speculator("s");
    struct client *busy = fixture_send(&f, PROMPT, 2);
    fake_node_step(&f, worker, busy, 0, 1, -1);
    for (int second = 0; second < 3; second++) {
        ask("a");
        ask("b");
        ask("c");
        fixture_advance(&f, SECOND);
    }
    ck_assert_int_eq(shadows()->n, 6);
    ck_assert_uint_eq(shadows()->totals.dropped[SHADOW_RATE], 3);
}
END_TEST

START_TEST(draining_ends_shadows)
{
    ask("r");
    running();
    core_drain(f.c);
    fixture_advance(&f, 0);
    ck_assert(core_idle(f.c));
    ck_assert_int_eq(shadows()->n, 0);
    ck_assert_uint_eq(shadows()->totals.dropped[SHADOW_DRAINED], 1);
}
END_TEST

// --- accounts

START_TEST(a_shadow_counts_in_no_account_of_requests)
{
    ask("r");
    struct core_status before = fixture_status(&f);
    const struct core_measures measures = f.c->ledger.measures;
    running();
    measure(all_agree, false);
    struct core_status after = fixture_status(&f);
    ck_assert_mem_eq(&before.totals, &after.totals, sizeof before.totals);
    ck_assert_mem_eq(&measures, &f.c->ledger.measures, sizeof measures);
    ck_assert_uint_eq(after.shadow.totals.measured, 1);
    core_status_fini(&before);
    core_status_fini(&after);
}
END_TEST

// --- the fallback

static void disagree(int n, const char *prefix)
{
    char id[32];
    for (int i = 0; i < n; i++) {
        snprintf(id, sizeof id, "%s%d", prefix, i);
        ask(id);
        measure(first_differs, false);
    }
}

// Returns how many of 200 requests are pruned.
static int pruned_of_200(enum prefill_mode mode, double keep_rate)
{
    char id[32];
    int pruned = 0;
    for (int i = 0; i < 200; i++) {
        snprintf(id, sizeof id, "p%d", i);
        struct client *client = request_make(id);
        client->r->spec.prefill.mode = mode;
        client->r->spec.prefill.keep_rate = keep_rate;
        client->r->spec.sampling.min_tokens = 1; // no shadow
        answer(client, FINISH_REASON_LENGTH);
        ck_assert(client->skip == SKIP_NONE || client->skip == SKIP_FALLBACK);
        pruned += client->skip == SKIP_NONE;
    }
    return pruned;
}

START_TEST(pruning_falls_back_for_requests_of_the_key)
{
    f.options.shadow.measure = AGREEMENT_FIRST_TOKEN;
    restart();
    worker = attach_worker("w");
    speculator = attach_speculator("s");
    disagree(AGREEMENT_LEAST, "r");
    int probes = pruned_of_200(PREFILL_ON, 0.3);
    ck_assert_int_gt(probes, 0); // agreement is measured again
    ck_assert_int_lt(probes, 200 * 3 * SHADOW_PROBE_SHARE);
    ck_assert_int_eq(pruned_of_200(PREFILL_REQUIRED, 0.3), 200);
    ck_assert_int_eq(pruned_of_200(PREFILL_ON, 0.6), 200);
}
END_TEST

START_TEST(nothing_falls_back_unless_it_is_asked_for)
{
    disagree(2 * AGREEMENT_LEAST, "r");
    ck_assert_int_eq(pruned_of_200(PREFILL_ON, 0.3), 200);
}
END_TEST

SUITE("shadow")
{
    FIXTURE(begin, teardown);
    TEST(a_shadow_asks_for_the_whole_prompt_with_the_answer);
    LOOP(all_three_are_measured, 0, 6);
    TEST(a_stop_string_needs_no_end_token);
    TEST(sampled_answers_are_not_compared);
    LOOP(numbers_that_are_none_are_not_measured, 0, 3);
    TEST(ids_decide_and_can_be_repeated);
    LOOP(some_requests_get_no_shadow, 0, 6);
    TEST(an_answer_without_tokens_gets_no_shadow);
    TEST(whole_prompts_and_failed_requests_get_no_shadow);
    TEST(shadows_are_off_without_a_share);
    TEST(a_request_interrupts_a_shadow);
    TEST(a_shadow_goes_on_while_another_group_is_idle);
    TEST(no_shadow_runs_while_a_prompt_is_scored);
    TEST(a_shadow_is_dropped_after_some_interruptions);
    TEST(a_shadow_of_a_lost_group_runs_on_another);
    TEST(shadows_wait_a_bounded_time);
    TEST(waiting_shadows_are_bounded);
    TEST(the_rate_is_bounded);
    TEST(draining_ends_shadows);
    TEST(a_shadow_counts_in_no_account_of_requests);
    TEST(pruning_falls_back_for_requests_of_the_key);
    TEST(nothing_falls_back_unless_it_is_asked_for);
}
