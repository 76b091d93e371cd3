// SPDX-License-Identifier: Apache-2.0
// router/core: the life of a request, step by step, from its arrival to its end. Random sequences of events are tested
// by the simulator.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/utf8.h"
#include "tests/core_case.h"
#include "tests/suite.h"

START_TEST(exactly_the_legal_steps_are_allowed)
{
    static const char *const legal[] = {
        "received>tokenised", "received>failed",     "received>cancelled", "tokenised>scoring", "tokenised>ready",
        "tokenised>failed",   "tokenised>cancelled", "scoring>ready",      "scoring>failed",    "scoring>cancelled",
        "ready>packed",       "ready>done",          "ready>failed",       "ready>cancelled",   "packed>prefill",
        "packed>ready",       "packed>failed",       "packed>cancelled",   "prefill>decode",    "prefill>ready",
        "prefill>done",       "prefill>failed",      "prefill>cancelled",  "decode>ready",      "decode>done",
        "decode>failed",      "decode>cancelled",
    };
    int n_legal = 0;
    for (int from = 0; from < REQUEST_STATE_COUNT; from++) {
        for (int to = 0; to < REQUEST_STATE_COUNT; to++) {
            char *step = mem_format("%s>%s", request_state_name(from), request_state_name(to));
            bool expected = false;
            for (size_t i = 0; i < sizeof legal / sizeof *legal; i++)
                expected |= strcmp(step, legal[i]) == 0;
            ck_assert_msg(request_may_follow(from, to) == expected, "%s", step);
            n_legal += expected;
            free(step);
        }
    }
    ck_assert_int_eq(n_legal, sizeof legal / sizeof *legal);
    ck_assert(!request_may_follow(REQUEST_STATE_COUNT, REQUEST_DONE));
}
END_TEST

START_TEST(a_request_lives_without_a_speculator)
{
    struct fake_node *w = attach_worker("w");
    struct client *a = fixture_send(&f, 100, 4);
    ck_assert(fake_node_has(w, a));
    ck_assert_int_eq(a->r->state, REQUEST_PREFILL);
    fixture_advance(&f, 30);
    fake_node_step(&f, w, a, 0, 1, -1);
    ck_assert_int_eq(a->r->state, REQUEST_DECODE);
    fixture_advance(&f, 10);
    fake_node_step(&f, w, a, 1, 2, -1);
    fake_node_step(&f, w, a, 3, 1, FINISH_REASON_LENGTH);
    ck_ended(a, FINISH_REASON_LENGTH, STATUS_OK);
    ck_counts_up(a, 4);
    ck_assert_int_eq(a->skip, SKIP_OFF);
    ck_assert_int_eq(a->usage.prompt_tokens, 100);
    ck_assert_int_eq(a->usage.kept_tokens, 100);
    ck_assert_int_eq(a->usage.scored_tokens, 0);
    ck_assert_int_eq(a->usage.replays, 0);
    ck_assert_int_eq(a->timing.prefill_us, 30);
    ck_assert_int_eq(a->timing.ttft_us, 30);
    ck_assert_int_eq(a->timing.total_us, 40);
    ck_assert(core_idle(f.c));
    struct core_status status = fixture_status(&f);
    ck_assert_uint_eq(status.totals.done, 1);
    ck_assert_uint_eq(status.totals.skipped[SKIP_OFF], 1);
    ck_assert_uint_eq(status.totals.degraded, 0);
    ck_assert_uint_eq(status.totals.completion_tokens, 4);
    ck_assert_uint_eq(status.nodes[0].tokens_in, 100);
    ck_assert_uint_eq(status.nodes[0].tokens_out, 4);
    core_status_fini(&status);
}
END_TEST

START_TEST(a_request_lives_with_a_speculator_and_its_times_are_split)
{
    struct fake_node *w = attach_worker("w"), *s = attach_speculator("s");
    struct client *a = fixture_request(&f, 100, 4);
    a->r->spec.prefill.mode = PREFILL_ON;
    f.now_us += 3; // tokenising
    fixture_submit(&f, a);
    f.now_us += 4; // queueing
    fixture_advance(&f, 0);
    ck_assert(fake_node_has(s, a));
    ck_assert(!fake_node_has(w, a));
    f.now_us += 50;
    fake_node_forget(s, a->number);
    struct token_range kept[] = {{0, 9}, {10, 19}, {90, 99}}; // the first two touch
    struct score_result result = {.request = a->number, .kept = kept, .n_kept = 3};
    core_scored(f.c, s->node, &result, f.now_us);
    ck_assert_int_eq(a->r->state, REQUEST_READY);
    f.now_us += 6; // packing
    fixture_advance(&f, 0);
    ck_assert(fake_node_has(w, a));
    ck_assert_int_eq(w->last_bin_rows, 30);
    f.now_us += 70;
    fake_node_step(&f, w, a, 0, 1, -1);
    f.now_us += 8;
    fake_node_step(&f, w, a, 1, 1, FINISH_REASON_STOP);
    ck_ended(a, FINISH_REASON_STOP, STATUS_OK);
    ck_assert_int_eq(a->usage.scored_tokens, 100);
    ck_assert_int_eq(a->usage.kept_tokens, 30);
    ck_assert_int_eq(a->skip, SKIP_NONE);
    ck_assert_int_eq(a->n_kept, 2);
    ck_assert_int_eq(a->kept[0].last, 19);
    ck_assert_int_eq(a->kept[1].first, 90);
    const struct request_timing *t = &a->timing;
    ck_assert_int_eq(t->queue_us, 7);
    ck_assert_int_eq(t->score_us, 50);
    ck_assert_int_eq(t->pack_wait_us, 6);
    ck_assert_int_eq(t->prefill_us, 70);
    ck_assert_int_eq(t->ttft_us, 133);
    ck_assert_int_eq(t->total_us, 141);
}
END_TEST

START_TEST(cancel_works_in_every_state)
{
    struct fake_node *w = attach_worker("w"), *s = attach_speculator("s");
    struct client *scoring = speculate(512, 4), *second = speculate(512, 4), *waiting = speculate(512, 4);
    ck_assert_ptr_nonnull(scoring->r->account.node);
    ck_assert_ptr_nonnull(second->r->account.node);
    ck_assert_ptr_null(waiting->r->account.node);
    ck_assert(core_cancel(f.c, waiting->number, f.now_us));
    ck_assert_int_eq(s->cancels, 0);
    ck_assert(core_cancel(f.c, scoring->number, f.now_us));
    ck_assert_int_eq(s->cancels, 1);
    struct client *decode = fixture_send(&f, 512, 4), *prefill = fixture_send(&f, 512, 4);
    fake_node_step(&f, w, decode, 0, 1, -1);
    struct client *another = fixture_send(&f, 512, 4), *ready = fixture_send(&f, 512, 4);
    ck_assert_int_eq(decode->r->state, REQUEST_DECODE);
    ck_assert_int_eq(prefill->r->state, REQUEST_PREFILL);
    ck_assert_ptr_nonnull(another->r->account.node);
    ck_assert_int_eq(ready->r->state, REQUEST_READY);
    ck_assert(core_cancel(f.c, ready->number, f.now_us));
    ck_assert_int_eq(w->cancels, 0);
    ck_assert(core_cancel(f.c, prefill->number, f.now_us));
    ck_assert_int_eq(w->cancels, 1);
    ck_assert(core_cancel(f.c, decode->number, f.now_us));
    ck_assert_int_eq(w->cancels, 2);
    struct client *all[] = {scoring, waiting, decode, prefill, ready};
    for (size_t i = 0; i < 5; i++)
        ck_ended(all[i], FINISH_REASON_CANCELLED, STATUS_CANCELLED);
    ck_assert(!core_cancel(f.c, ready->number, f.now_us));
    ck_assert(!core_cancel(f.c, 1234567, f.now_us));
    // A request is aborted by the client's id. Its place in the bins can be used again.
    struct client *named = fixture_request(&f, 512, 4);
    named->r->id = mem_string("mine");
    named->r->spec.prefill.mode = PREFILL_OFF;
    fixture_submit(&f, named);
    fixture_advance(&f, 0);
    ck_assert(fake_node_has(w, named));
    ck_assert_int_eq(w->n_requests, 2);
    ck_assert(!core_abort(f.c, "yours", 0, f.now_us));
    ck_assert(core_abort(f.c, "mine", 0, f.now_us));
    ck_ended(named, FINISH_REASON_CANCELLED, STATUS_CANCELLED);
}
END_TEST

START_TEST(a_request_ends_when_its_first_token_misses_the_deadline)
{
    struct fake_node *w = attach_worker("w"), *s = attach_speculator("s");
    f.now_us += 5;
    struct client *all[5];
    for (int i = 0; i < 5; i++) {
        all[i] = fixture_request(&f, 512, 4);
        all[i]->r->spec.prefill.mode = i < 3 ? PREFILL_ON : PREFILL_OFF;
        all[i]->r->spec.ttft_deadline_us = f.now_us + 1000 + i / 4; // the last: one later
        fixture_submit(&f, all[i]);
        fixture_advance(&f, 0);
    }
    ck_assert_ptr_nonnull(all[0]->r->account.node);
    ck_assert_ptr_nonnull(all[1]->r->account.node);
    ck_assert_ptr_null(all[2]->r->account.node);
    ck_assert_ptr_nonnull(all[3]->r->account.node);
    ck_assert_ptr_nonnull(all[4]->r->account.node);
    fake_node_step(&f, w, all[4], 0, 1, -1);
    ck_assert_int_eq(core_next_deadline_us(f.c), f.now_us + 500); // the waiting request becomes overdue
    fixture_advance(&f, 500);
    ck_assert_int_eq(core_next_deadline_us(f.c), f.now_us + 500);
    fixture_advance(&f, 500);
    for (int i = 0; i < 4; i++)
        ck_ended(all[i], FINISH_REASON_ERROR, STATUS_DEADLINE);
    fixture_advance(&f, 1000);
    ck_assert_int_eq(all[4]->ends, 0);
    ck_assert_int_eq(s->cancels, 2);
    ck_assert_int_eq(w->cancels, 1);
}
END_TEST

START_TEST(late_results_are_ignored)
{
    struct fake_node *w = attach_worker("w"), *s = attach_speculator("s");
    struct client *a = speculate(100, 4);
    struct token_range kept = {0, 9};
    struct score_result scored = {.request = a->number, .kept = &kept, .n_kept = 1};
    int32_t token = 1;
    struct sequence_result step = {.request = a->number, .tokens = &token, .n_tokens = 1, .finished = true};
    core_step(f.c, w->node, &step, 1, f.now_us); // the request is not on that node
    core_step(f.c, s->node, &step, 1, f.now_us); // a speculator generates no tokens
    core_scored(f.c, w->node, &scored, f.now_us);
    ck_assert_int_eq(a->r->state, REQUEST_SCORING);
    ck_assert(!a->n_tokens);
    fixture_advance(&f, 2 * SECOND); // its score times out, it goes on unpruned
    ck_assert_int_eq(a->r->state, REQUEST_PREFILL);
    core_scored(f.c, s->node, &scored, f.now_us);
    ck_assert_int_eq(a->r->usage.kept_tokens, 100);
    fake_node_step(&f, w, a, 0, 1, FINISH_REASON_STOP);
    core_step(f.c, w->node, &step, 1, f.now_us);
    core_scored(f.c, s->node, &scored, f.now_us);
    scored.request = step.request = 99999999;
    core_step(f.c, w->node, &step, 1, f.now_us);
    core_scored(f.c, s->node, &scored, f.now_us);
    ck_ended(a, FINISH_REASON_STOP, STATUS_OK);
    ck_assert_int_eq(a->n_tokens, 1);
}
END_TEST

START_TEST(results_of_a_worker_group_are_checked)
{
    struct fake_node *w = attach_worker("w");
    for (int bad = 0; bad < 3; bad++) {
        struct client *a = fixture_send(&f, 10, 4);
        int32_t tokens[] = {1, bad == 0 ? VOCAB : bad == 1 ? -1 : 2, 3, 4, 5};
        struct sequence_result step = {.request = a->number, .tokens = tokens, .n_tokens = bad == 2 ? 5 : 2};
        core_step(f.c, w->node, &step, 1, f.now_us);
        ck_ended(a, FINISH_REASON_ERROR, STATUS_INTERNAL);
        ck_assert_int_eq(a->n_tokens, 0);
        ck_assert(!fake_node_has(w, a));
        ck_assert_int_eq(w->cancels, bad + 1);
    }
    struct client *failed = fixture_send(&f, 10, 4), *forgotten = fixture_send(&f, 10, 2);
    fake_node_step(&f, w, failed, 0, 0, FINISH_REASON_ERROR);
    ck_ended(failed, FINISH_REASON_ERROR, STATUS_INTERNAL);
    ck_assert(strstr(failed->message, "out of paper"));
    fake_node_step(&f, w, forgotten, 0, 2, -1); // all its tokens, but not finished
    ck_ended(forgotten, FINISH_REASON_LENGTH, STATUS_OK);
    ck_assert_int_eq(w->cancels, 4);
    struct client *cached = fixture_send(&f, 10, 2), *at_once = fixture_send(&f, 10, 2);
    int32_t token = 1;
    struct sequence_result step = {.request = cached->number, .tokens = &token, .n_tokens = 1, .cached_tokens = 99};
    core_step(f.c, w->node, &step, 1, f.now_us);
    ck_assert_int_eq(cached->r->usage.cached_tokens, 10);
    fixture_advance(&f, 0); // at_once is dispatched
    at_once->r->spec.arrived_us -= 9;
    fake_node_step(&f, w, at_once, 0, 0, FINISH_REASON_STOP); // the first token ended it
    ck_ended(at_once, FINISH_REASON_STOP, STATUS_OK);
    ck_assert_int_eq(at_once->n_tokens, 0);
    ck_assert_int_eq(at_once->timing.ttft_us, 9);
}
END_TEST

START_TEST(log_probabilities_of_a_worker_group_are_checked)
{
    struct fake_node *w = attach_worker("w");
    static const struct token_logprob bad[] = {
        {.token = 1, .logprob = NAN},
        {.token = 1, .logprob = 5},
        {.token = 2, .logprob = -1},
        {.token = 1, .logprob = -1, .rank = -1},
        {.token = 1, .logprob = -1, .n_top = 1, .top_token = {VOCAB}, .top_logprob = {-1}},
        {.token = 1, .logprob = -1, .n_top = 1, .top_token = {3}, .top_logprob = {NAN}},
        {.token = 1, .logprob = -1, .n_top = 1, .top_token = {3}, .top_logprob = {-INFINITY}}, // a masked token
    };
    const int32_t token = 1;
    const int n = sizeof bad / sizeof *bad;
    for (int i = 0; i < n; i++) {
        struct client *a = fixture_request(&f, 10, 4);
        a->r->spec.prefill.mode = PREFILL_OFF;
        a->r->spec.sampling.logprobs = 1;
        fixture_submit(&f, a);
        fixture_advance(&f, 0);
        struct sequence_result step = {.request = a->number, .tokens = &token, .logprobs = &bad[i], .n_tokens = 1};
        core_step(f.c, w->node, &step, 1, f.now_us);
        ck_assert_int_eq(a->n_tokens, i == n - 1);
        if (i < n - 1) ck_ended(a, FINISH_REASON_ERROR, STATUS_INTERNAL);
    }
}
END_TEST

// The request is at fault only if it has a grammar.
START_TEST(a_failed_grammar_is_a_fault_of_the_request)
{
    struct fake_node *w = attach_worker("w");
    for (int with = 0; with < 2; with++) {
        struct client *a = fixture_send(&f, 10, 4);
        if (with) a->r->spec.sampling.grammar = grammar_spec_of(GRAMMAR_REGEX, mem_string("a"));
        struct sequence_result step = {.request = a->number, .finished = true, .reason = FINISH_REASON_ERROR};
        step.error = "a dead end";
        step.grammar_failed = true;
        fake_node_forget(w, a->number);
        core_step(f.c, w->node, &step, 1, f.now_us);
        ck_ended(a, FINISH_REASON_ERROR, with ? STATUS_INVALID : STATUS_INTERNAL);
        ck_assert_str_eq(a->message, with ? "a dead end" : "the worker group failed: a dead end");
    }
}
END_TEST

START_TEST(a_long_error_of_a_worker_group_is_cut_between_characters)
{
    struct fake_node *w = attach_worker("w");
    char error[602] = "x";
    for (int i = 0; i < 300; i++)
        memcpy(error + 1 + 2 * i, "\xC3\xA9", 2);
    for (int skip = 0; skip < 2; skip++) { // one of the two is cut inside a character
        struct client *a = fixture_send(&f, 10, 4);
        struct sequence_result step = {.request = a->number, .finished = true, .reason = FINISH_REASON_ERROR};
        step.error = error + skip;
        fake_node_forget(w, a->number);
        core_step(f.c, w->node, &step, 1, f.now_us);
        ck_ended(a, FINISH_REASON_ERROR, STATUS_INTERNAL);
        ck_assert_uint_gt(strlen(a->message), 500);
        ck_assert(utf8_valid(a->message, strlen(a->message), NULL));
    }
}
END_TEST

START_TEST(a_stop_string_ends_the_text_where_the_sink_says)
{
    struct fake_node *w = attach_worker("w");
    struct client *a = fixture_send(&f, 10, 20), *b = fixture_send(&f, 10, 20);
    a->stop_after = b->stop_after = 3;
    fake_node_step(&f, w, a, 0, 2, -1);
    fake_node_step(&f, w, a, 2, 4, -1);
    ck_ended(a, FINISH_REASON_STOP, STATUS_OK);
    ck_counts_up(a, 3);
    ck_assert_int_eq(a->usage.completion_tokens, 3);
    ck_assert_int_eq(w->cancels, 1);
    fake_node_step(&f, w, b, 0, 5, FINISH_REASON_LENGTH); // the node has ended it: no cancel
    ck_ended(b, FINISH_REASON_STOP, STATUS_OK);
    ck_assert_int_eq(b->usage.completion_tokens, 3);
    ck_assert_int_eq(w->cancels, 1);
    struct core_status status = fixture_status(&f);
    ck_assert(status.totals.completion_tokens == 6);
    core_status_fini(&status);
}
END_TEST

START_TEST(core_free_ends_all_requests)
{
    attach_worker("w");
    attach_speculator("s");
    for (int i = 0; i < 10; i++) {
        fixture_send(&f, 300, 4);
        speculate(300, 4);
    }
    ck_assert_int_eq(f.ended, 0); // fixture_stop checks the rest
}
END_TEST

SUITE("core")
{
    FIXTURE(setup, teardown);
    TEST(exactly_the_legal_steps_are_allowed);
    TEST(a_request_lives_without_a_speculator);
    TEST(a_request_lives_with_a_speculator_and_its_times_are_split);
    TEST(cancel_works_in_every_state);
    TEST(a_request_ends_when_its_first_token_misses_the_deadline);
    TEST(late_results_are_ignored);
    TEST(results_of_a_worker_group_are_checked);
    TEST(log_probabilities_of_a_worker_group_are_checked);
    TEST(a_failed_grammar_is_a_fault_of_the_request);
    TEST(a_long_error_of_a_worker_group_is_cut_between_characters);
    TEST(a_stop_string_ends_the_text_where_the_sink_says);
    TEST(core_free_ends_all_requests);
}
