// SPDX-License-Identifier: Apache-2.0
// router/core: requests and speculators. Which prompts are scored, and what happens when a score does not come.
#include <math.h>
#include <string.h>

#include "tests/core_case.h"
#include "tests/suite.h"

START_TEST(each_skip_reason_has_its_condition)
{
    struct fake_node *w = attach_worker("w");
    struct client *none = speculate(100, 1);
    struct fake_node *s = attach_speculator("s");
    struct client *off = fixture_send(&f, 100, 1), *short_one = fixture_request(&f, 63, 1);
    fixture_submit(&f, short_one);
    struct client *all = fixture_request(&f, 100, 1), *enough = fixture_request(&f, 64, 1);
    all->r->spec.prefill.mode = PREFILL_ON;
    all->r->spec.prefill.keep_rate = 1;
    fixture_submit(&f, all);
    fixture_submit(&f, enough);
    fixture_advance(&f, 0);
    ck_assert_int_eq(none->r->skip, SKIP_NO_NODE);
    ck_assert_int_eq(off->r->skip, SKIP_OFF);
    ck_assert_int_eq(short_one->r->skip, SKIP_SHORT);
    ck_assert_int_eq(all->r->skip, SKIP_KEEP_ALL);
    ck_assert(fake_node_has(s, enough));
    ck_assert_int_eq(s->n_requests, 1);
    ck_assert(fake_node_has(w, none));
    ck_assert(fake_node_has(w, off));
    struct core_status status = fixture_status(&f);
    ck_assert_uint_eq(status.totals.degraded, 1);
    ck_assert_uint_eq(status.totals.skipped[SKIP_NO_NODE], 1);
    core_status_fini(&status);
    // The prompt and the look-ahead exceed the speculator's context: the whole prompt is kept.
    struct node_hello hello = fixture_hello(NODE_WORKER, "long");
    hello.context_tokens = 8192;
    hello.kv_blocks = 8192;
    fixture_attach(&f, &hello);
    struct client *fits = speculate(4096 - 7, 1), *too_long = speculate(4096 - 6, 1);
    ck_assert_int_eq(fits->r->state, REQUEST_SCORING);
    ck_assert_int_eq(too_long->r->skip, SKIP_TOO_LONG);
    // A reason is counted when it is certain. SKIP_NONE is certain with the speculator's answer.
    fake_node_score(&f, s, enough, 0, 9);
    const uint64_t counts[SKIP_COUNT] = {[SKIP_NONE] = 1,  [SKIP_OFF] = 1,     [SKIP_KEEP_ALL] = 1,
                                         [SKIP_SHORT] = 1, [SKIP_NO_NODE] = 1, [SKIP_TOO_LONG] = 1};
    status = fixture_status(&f);
    for (int reason = 0; reason < SKIP_COUNT; reason++)
        ck_assert_msg(status.totals.skipped[reason] == counts[reason], "%s", skip_reason_name(reason));
    ck_assert_uint_eq(status.totals.degraded, 2);
    core_status_fini(&status);
}
END_TEST

// A client that requires speculation never gets an answer from the whole prompt.
START_TEST(a_required_score_is_refused_where_another_prompt_is_kept_whole)
{
    attach_worker("w");
    struct client *client = fixture_request(&f, 64, 4);
    client->r->spec.prefill.mode = PREFILL_REQUIRED;
    fixture_submit(&f, client); // no speculator is attached
    ck_ended(client, FINISH_REASON_ERROR, STATUS_UNAVAILABLE);

    struct fake_node *nodes[2] = {attach_speculator("s0"), attach_speculator("s1")};
    client = fixture_request(&f, 64, 4);
    client->r->spec.prefill.mode = PREFILL_REQUIRED;
    fixture_submit(&f, client);
    fixture_advance(&f, 0);
    for (int lost = 0; lost < 2; lost++) {
        struct fake_node *node = fake_node_has(nodes[0], client) ? nodes[0] : nodes[1];
        ck_assert(fake_node_has(node, client));
        fixture_detach(&f, node);
        fixture_advance(&f, 0);
    }
    ck_ended(client, FINISH_REASON_ERROR, STATUS_UNAVAILABLE);
}
END_TEST

START_TEST(any_fault_of_a_speculator_keeps_the_whole_prompt)
{
    struct fake_node *w = attach_worker("w"), *s = attach_speculator("s");
    struct {
        struct token_range kept[2];
        int n;
        const char *error;
    } bad[] = {
        {{{0, 9}}, 1, "no memory"}, {{{0, 9}}, 0, NULL},   {{{5, 9}, {9, 12}}, 2, NULL},  {{{5, 4}}, 1, NULL},
        {{{-1, 4}}, 1, NULL},       {{{0, 100}}, 1, NULL}, {{{50, 60}, {0, 9}}, 2, NULL},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct client *a = speculate(100, 1);
        struct score_result result = {
            .request = a->number, .kept = bad[i].kept, .n_kept = bad[i].n, .error = bad[i].error};
        fake_node_forget(s, a->number);
        core_scored(f.c, s->node, &result, f.now_us);
        fixture_advance(&f, 0);
        ck_assert_msg(fake_node_has(w, a), "case %zu", i);
        ck_assert_msg(a->r->skip == SKIP_LOST, "case %zu", i);
        ck_assert_msg(a->r->usage.kept_tokens == 100, "case %zu", i);
        fake_node_step(&f, w, a, 0, 1, FINISH_REASON_LENGTH);
    }
    struct client *late = speculate(100, 1);
    fixture_advance(&f, 2 * SECOND - 1);
    ck_assert_int_eq(late->r->state, REQUEST_SCORING);
    ck_assert_int_eq(core_next_deadline_us(f.c), f.now_us + 1);
    fixture_advance(&f, 1);
    ck_assert_int_eq(late->r->skip, SKIP_TIMEOUT);
    ck_assert(fake_node_has(w, late));
    ck_assert_int_eq(s->cancels, 1);
    ck_assert(!fake_node_has(s, late));
    struct core_status status = fixture_status(&f);
    ck_assert_uint_eq(status.totals.degraded, 8);
    ck_assert_uint_eq(status.totals.skipped[SKIP_LOST], 7);
    ck_assert_uint_eq(status.totals.skipped[SKIP_TIMEOUT], 1);
    core_status_fini(&status);
}
END_TEST

START_TEST(a_lost_speculator_delays_no_request)
{
    struct fake_node *w = attach_worker("w"), *s = attach_speculator("s"), *other = attach_speculator("other");
    f.options.bins_ahead = 2;
    struct client *on[3], *on_s = NULL, *on_other = NULL;
    for (int i = 0; i < 3; i++) {
        on[i] = speculate(500, 1);
        *(fake_node_has(s, on[i]) ? &on_s : &on_other) = on[i];
    }
    ck_assert_ptr_nonnull(on_s);
    ck_assert_ptr_nonnull(on_other);
    struct client *more[6];
    for (int i = 0; i < 6; i++)
        more[i] = speculate(500, 1);
    int waiting = 0;
    for (int i = 0; i < 6; i++)
        waiting += more[i]->r->account.node == NULL;
    ck_assert_int_eq(waiting, 5); // two bins on each of the two
    fixture_detach(&f, s);
    ck_assert_int_eq(on_s->r->skip, SKIP_LOST);
    ck_assert(fake_node_has(w, on_s));
    ck_assert_int_eq(more[5]->r->state, REQUEST_SCORING);
    ck_assert_ptr_null(more[5]->r->account.node); // waits for the other speculator
    fixture_detach(&f, other);
    for (int i = 0; i < 6; i++) {
        enum skip_reason skip = more[i]->r->skip;
        ck_assert_int_ne(more[i]->r->state, REQUEST_SCORING);
        ck_assert(skip == SKIP_LOST || skip == SKIP_NO_NODE);
    }
    ck_assert_int_eq(more[5]->r->skip, SKIP_NO_NODE);
}
END_TEST

START_TEST(a_draining_speculator_finishes_its_requests_and_gets_no_more)
{
    attach_worker("w");
    struct fake_node *s = attach_speculator("s");
    struct client *a = speculate(512, 1), *b = speculate(512, 1), *c = speculate(512, 1);
    ck_assert(!c->r->account.node);
    core_draining(f.c, s->node, "", f.now_us);
    fixture_advance(&f, 0);
    ck_assert(fake_node_has(s, a));
    ck_assert(fake_node_has(s, b));
    ck_assert_int_eq(c->r->skip, SKIP_NO_NODE);
    fake_node_score(&f, s, a, 0, 99);
    ck_assert_int_eq(a->r->usage.kept_tokens, 100);
    ck_assert_int_eq(a->r->skip, SKIP_NONE);
    ck_assert_int_eq(speculate(512, 1)->r->skip, SKIP_NO_NODE);
}
END_TEST

static struct client *score(int n_tokens, bool importance)
{
    struct client *client = fixture_request(&f, n_tokens, 0);
    client->r->spec.score_only = true;
    client->r->spec.want_importance = importance;
    fixture_submit(&f, client);
    fixture_advance(&f, 0);
    return client;
}

START_TEST(a_score_call_that_keeps_everything_needs_no_speculator)
{
    struct client *client = fixture_request(&f, 4, 0);
    client->r->spec.score_only = true;
    client->r->spec.prefill.mode = PREFILL_OFF;
    fixture_submit(&f, client);
    ck_ended(client, FINISH_REASON_STOP, STATUS_OK);
    ck_assert_int_eq(client->skip, SKIP_OFF);
}
END_TEST

START_TEST(score_calls_get_an_answer_or_a_reason)
{
    struct client *nobody = score(4, true);
    ck_ended(nobody, FINISH_REASON_ERROR, STATUS_UNAVAILABLE);
    ck_assert(strstr(nobody->message, "no speculator is attached"));
    struct fake_node *s = attach_speculator("s"); // no worker is needed
    struct client *a = score(4, true), *b = score(4, true), *c = score(5000, true);
    ck_ended(c, FINISH_REASON_ERROR, STATUS_OUT_OF_RANGE);
    ck_assert_ptr_nonnull(strstr(c->message, "5000"));
    ck_assert_ptr_nonnull(strstr(c->message, "4089"));
    float importance[] = {0.5, 0.25, 0.125, 0};
    struct token_range kept = {1, 2};
    struct score_result result = {
        .request = a->number, .kept = &kept, .n_kept = 1, .importance = importance, .n_importance = 4};
    fake_node_forget(s, a->number);
    core_scored(f.c, s->node, &result, f.now_us);
    ck_ended(a, FINISH_REASON_STOP, STATUS_OK);
    ck_assert(a->importance);
    ck_assert(a->importance_0 == 0.5f);
    ck_assert_int_eq(a->n_kept, 1);
    ck_assert_int_eq(a->kept[0].last, 2);
    fixture_advance(&f, 0); // now b
    importance[2] = NAN;
    result.request = b->number;
    fake_node_forget(s, b->number);
    core_scored(f.c, s->node, &result, f.now_us);
    ck_ended(b, FINISH_REASON_ERROR, STATUS_UNAVAILABLE);
    struct client *slow = score(4, false);
    fixture_advance(&f, 2 * SECOND);
    ck_ended(slow, FINISH_REASON_ERROR, STATUS_UNAVAILABLE);
    // If its speculator is lost, another one answers. Without another one the request fails.
    struct client *moved = score(4, false);
    struct fake_node *t = attach_speculator("t");
    fixture_detach(&f, s);
    ck_assert(fake_node_has(t, moved));
    fixture_detach(&f, t);
    ck_ended(moved, FINISH_REASON_ERROR, STATUS_UNAVAILABLE);
}
END_TEST

SUITE("core_scores")
{
    FIXTURE(setup, teardown);
    TEST(each_skip_reason_has_its_condition);
    TEST(a_required_score_is_refused_where_another_prompt_is_kept_whole);
    TEST(any_fault_of_a_speculator_keeps_the_whole_prompt);
    TEST(a_lost_speculator_delays_no_request);
    TEST(a_draining_speculator_finishes_its_requests_and_gets_no_more);
    TEST(a_score_call_that_keeps_everything_needs_no_speculator);
    TEST(score_calls_get_an_answer_or_a_reason);
}
