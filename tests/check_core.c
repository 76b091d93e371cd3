// SPDX-License-Identifier: Apache-2.0
// router/core: the life of requests and nodes, step by step. Packing is tested in check_core_bins.c, random sequences
// of events by the simulator.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/utf8.h"
#include "tests/core_case.h"
#include "tests/suite.h"

static struct fake_node *worker(const char *id)
{
    struct node_hello hello = fixture_hello(NODE_WORKER, id);
    return fixture_attach(&f, &hello);
}

static struct fake_node *speculator(const char *id)
{
    struct node_hello hello = fixture_hello(NODE_SPECULATOR, id);
    return fixture_attach(&f, &hello);
}

// Submits a request that asks for speculation.
static struct client *speculate(int n_tokens, int max_tokens)
{
    struct client *client = fixture_request(&f, n_tokens, max_tokens);
    client->r->spec.prefill.mode = PREFILL_ON;
    fixture_submit(&f, client);
    fixture_advance(&f, 0);
    return client;
}

static void ck_ended(const struct client *client, enum finish_reason reason, enum status status)
{
    ck_assert_msg(client->ends == 1, "not ended");
    ck_assert_msg(client->reason == reason, "ended with %s: %s", finish_reason_name(client->reason), client->message);
    ck_assert_msg(client->status == status, "ended with %s: %s", status_name(client->status), client->message);
}

static void ck_counts_up(const struct client *client, int n)
{
    ck_assert_int_eq(client->n_tokens, n);
    for (int i = 0; i < n; i++)
        ck_assert_int_eq(client->tokens[i], i);
}

// A client that requires speculation never gets an answer to the whole prompt.
START_TEST(a_required_score_is_refused_where_another_prompt_is_kept_whole)
{
    worker("w");
    struct client *client = fixture_request(&f, 64, 4);
    client->r->spec.prefill.mode = PREFILL_REQUIRED;
    fixture_submit(&f, client); // no speculator is attached
    ck_ended(client, FINISH_REASON_ERROR, STATUS_UNAVAILABLE);

    struct fake_node *nodes[2] = {speculator("s0"), speculator("s1")};
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
    struct fake_node *w = worker("w");
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
    struct fake_node *w = worker("w"), *s = speculator("s");
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

START_TEST(each_skip_reason_has_its_condition)
{
    struct fake_node *w = worker("w");
    struct client *none = speculate(100, 1);
    struct fake_node *s = speculator("s");
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
    // Over its context, including the entries of the look-ahead: the whole prompt is kept.
    struct node_hello hello = fixture_hello(NODE_WORKER, "long");
    hello.context_tokens = 8192;
    hello.kv_blocks = 8192;
    fixture_attach(&f, &hello);
    struct client *fits = speculate(4096 - 7, 1), *too_long = speculate(4096 - 6, 1);
    ck_assert_int_eq(fits->r->state, REQUEST_SCORING);
    ck_assert_int_eq(too_long->r->skip, SKIP_TOO_LONG);
    // Each reason is counted once it is certain, SKIP_NONE with the speculator's answer.
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

START_TEST(any_fault_of_a_speculator_keeps_the_whole_prompt)
{
    struct fake_node *w = worker("w"), *s = speculator("s");
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
    struct fake_node *w = worker("w"), *s = speculator("s"), *other = speculator("other");
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
    worker("w");
    struct fake_node *s = speculator("s");
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

START_TEST(score_calls_get_an_answer_or_a_reason)
{
    struct client *nobody = score(4, true);
    ck_ended(nobody, FINISH_REASON_ERROR, STATUS_UNAVAILABLE);
    ck_assert(strstr(nobody->message, "no speculator is attached"));
    struct fake_node *s = speculator("s"); // no worker is needed
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
    // Its speculator is lost: another one answers; without another one it fails.
    struct client *moved = score(4, false);
    struct fake_node *t = speculator("t");
    fixture_detach(&f, s);
    ck_assert(fake_node_has(t, moved));
    fixture_detach(&f, t);
    ck_ended(moved, FINISH_REASON_ERROR, STATUS_UNAVAILABLE);
}
END_TEST

START_TEST(after_a_lost_worker_group_no_token_is_missing_or_repeated)
{
    struct fake_node *w = worker("w");
    struct client *decoding = fixture_send(&f, 10, 6), *last = fixture_send(&f, 10, 2),
                  *fresh = fixture_send(&f, 10, 4);
    fake_node_step(&f, w, decoding, 0, 3, -1);
    fake_node_step(&f, w, last, 0, 1, -1);
    struct fake_node *x = worker("x");
    fixture_detach(&f, w);
    ck_assert(fake_node_has(x, decoding));
    ck_assert(fake_node_has(x, fresh));
    ck_assert(fake_node_has(x, last));
    ck_assert_int_eq(x->requests[0], decoding->number); // in the order in which they had been dispatched
    ck_assert_int_eq(x->last_bin_rows, 13 + 11 + 10);   // with the tokens generated so far
    ck_assert_int_eq(decoding->r->output[2], 2);
    ck_assert_int_eq(decoding->r->usage.completion_tokens, 3);
    fake_node_step(&f, x, decoding, 3, 1, -1);
    fake_node_step(&f, x, decoding, 4, 2, FINISH_REASON_LENGTH);
    ck_ended(decoding, FINISH_REASON_LENGTH, STATUS_OK);
    ck_counts_up(decoding, 6);
    ck_assert_int_eq(decoding->usage.replays, 1);
    fake_node_step(&f, x, fresh, 0, 4, FINISH_REASON_LENGTH);
    ck_counts_up(fresh, 4);
    struct core_status status = fixture_status(&f);
    ck_assert(status.totals.replays == 3);
    core_status_fini(&status);
}
END_TEST

START_TEST(a_replayed_request_goes_before_all_others_and_waits_for_a_group)
{
    struct fake_node *w = worker("w");
    struct client *a = fixture_send(&f, 512, 6), *b = fixture_send(&f, 512, 6), *c = fixture_send(&f, 512, 6);
    ck_assert(fake_node_has(w, a));
    ck_assert(fake_node_has(w, b));
    ck_assert_ptr_null(c->r->account.node);
    fixture_detach(&f, w);
    fixture_advance(&f, SECOND);
    struct node_hello hello = fixture_hello(NODE_WORKER, "w");
    hello.token_budget = 512; // a bin each
    w = fixture_attach(&f, &hello);
    ck_assert_uint_eq(w->requests[0], a->number);
    ck_assert_uint_eq(w->requests[1], b->number);
    ck_assert(!fake_node_has(w, c));
    ck_assert_int_eq(a->r->timing.pack_wait_us, SECOND);
    ck_assert_int_eq(a->r->usage.replays, 1);
}
END_TEST

START_TEST(a_request_that_loses_every_group_is_given_up)
{
    struct client *a = NULL;
    for (int i = 0; i < 3; i++) {
        struct fake_node *w = worker("w");
        if (!a) a = fixture_send(&f, 10, 6);
        ck_assert(fake_node_has(w, a));
        fixture_detach(&f, w);
    }
    ck_ended(a, FINISH_REASON_ERROR, STATUS_INTERNAL);
    // But not while it makes progress.
    struct fake_node *w = worker("w");
    struct client *b = fixture_send(&f, 10, 20);
    for (int i = 0; i < 10; i++) {
        fake_node_step(&f, w, b, i, 1, -1);
        fixture_detach(&f, w);
        w = worker("w");
    }
    ck_assert(fake_node_has(w, b));
    ck_assert_int_eq(b->r->usage.replays, 10);
}
END_TEST

START_TEST(cancel_works_in_every_state)
{
    struct fake_node *w = worker("w"), *s = speculator("s");
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
    // By the client's id; its place in the bins can be used again.
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
    struct fake_node *w = worker("w"), *s = speculator("s");
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

START_TEST(without_worker_groups_there_is_a_time_of_grace)
{
    struct client *early = fixture_send(&f, 10, 4);
    ck_ended(early, FINISH_REASON_ERROR, STATUS_UNAVAILABLE);
    struct fake_node *w = worker("w");
    struct client *a = fixture_send(&f, 10, 4);
    fixture_detach(&f, w);
    fixture_advance(&f, 5 * SECOND - 1);
    ck_assert_int_eq(a->ends, 0);
    fixture_advance(&f, 1);
    ck_ended(a, FINISH_REASON_ERROR, STATUS_UNAVAILABLE);
    // It comes back in time.
    w = worker("w");
    struct client *b = fixture_send(&f, 10, 4);
    fixture_detach(&f, w);
    fixture_advance(&f, 4 * SECOND);
    w = worker("w");
    fixture_advance(&f, 4 * SECOND);
    ck_assert(fake_node_has(w, b));
    // Overdue requests that had not been dispatched have it, too.
    fixture_send(&f, 512, 4);
    struct client *waiting = fixture_send(&f, 512, 4);
    fixture_advance(&f, SECOND);
    ck_assert(waiting->r->sched.overdue);
    core_draining(f.c, w->node, "", f.now_us);
    fixture_advance(&f, 5 * SECOND - 1);
    ck_assert_int_eq(waiting->ends, 0);
    fixture_advance(&f, 1);
    ck_ended(waiting, FINISH_REASON_ERROR, STATUS_UNAVAILABLE);
}
END_TEST

// The time of grace begins when it leaves, however long it drains.
START_TEST(a_worker_group_that_drains_for_long_leaves_a_time_of_grace)
{
    struct fake_node *w = worker("w");
    struct client *running = fixture_send(&f, 10, 4), *waiting = fixture_send(&f, 512, 4), *late;
    while (fake_node_has(w, waiting)) // until the bins are full
        waiting = fixture_send(&f, 512, 4);
    core_draining(f.c, w->node, "", f.now_us);
    fixture_advance(&f, 4 * SECOND);
    fixture_detach(&f, w);
    fixture_advance(&f, 4 * SECOND);
    late = fixture_send(&f, 10, 4);
    fixture_advance(&f, SECOND - 1);
    ck_assert(!running->ends);
    ck_assert(!waiting->ends);
    ck_assert(!late->ends);
    fixture_advance(&f, 1);
    ck_ended(running, FINISH_REASON_ERROR, STATUS_UNAVAILABLE);
    ck_ended(waiting, FINISH_REASON_ERROR, STATUS_UNAVAILABLE);
    ck_ended(late, FINISH_REASON_ERROR, STATUS_UNAVAILABLE);
    // It drains for longer than that.
    w = worker("w");
    running = fixture_send(&f, 10, 4);
    core_draining(f.c, w->node, "", f.now_us);
    fixture_advance(&f, 6 * SECOND);
    fixture_detach(&f, w);
    fixture_advance(&f, SECOND);
    ck_assert_int_eq(running->ends, 0);
    w = worker("w");
    fixture_advance(&f, 0);
    ck_assert(fake_node_has(w, running));
}
END_TEST

START_TEST(requests_that_cannot_be_served_are_refused_with_a_reason)
{
    struct fake_node *w = worker("w");
    struct client *fits = fixture_send(&f, 4000, 96), *longer = fixture_send(&f, 4000, 97);
    ck_assert_int_eq(fits->ends, 0);
    ck_ended(longer, FINISH_REASON_ERROR, STATUS_OUT_OF_RANGE);
    ck_assert_ptr_nonnull(strstr(longer->message, "4000"));
    ck_assert_ptr_nonnull(strstr(longer->message, "97"));
    ck_assert_ptr_nonnull(strstr(longer->message, "4096"));
    ck_ended(fixture_send(&f, 10, 0), FINISH_REASON_ERROR, STATUS_INVALID);
    ck_ended(fixture_send(&f, 0, 1), FINISH_REASON_ERROR, STATUS_INVALID);
    struct client *twins[2];
    for (int i = 0; i < 2; i++) {
        twins[i] = fixture_request(&f, 10, 4);
        twins[i]->r->id = mem_string("twin");
        fixture_submit(&f, twins[i]);
    }
    ck_ended(twins[1], FINISH_REASON_ERROR, STATUS_EXISTS);
    ck_assert_ptr_nonnull(strstr(twins[1]->message, "twin"));
    ck_assert(!twins[0]->ends);
    ck_assert(core_abort(f.c, "twin", 0, f.now_us));
    struct client *again = fixture_request(&f, 10, 4); // free again
    again->r->id = mem_string("twin");
    fixture_submit(&f, again);
    ck_assert_int_eq(again->ends, 0);
    core_drain(f.c);
    struct client *closed = fixture_send(&f, 10, 4);
    ck_ended(closed, FINISH_REASON_ERROR, STATUS_UNAVAILABLE);
    ck_assert_ptr_nonnull(strstr(closed->message, "shutting down"));
    ck_assert_ptr_nonnull(w->node);
    struct core_status status = fixture_status(&f);
    ck_assert_uint_eq(status.totals.refused, 5);
    ck_assert_uint_eq(status.totals.requests, 8);
    ck_assert(status.draining);
    ck_assert(!status.ready);
    core_status_fini(&status);
}
END_TEST

START_TEST(kept_tokens_must_fit_the_kv_cache)
{
    struct node_hello hello = fixture_hello(NODE_WORKER, "w");
    hello.kv_blocks = 100; // 1600 entries, over a context of 4096
    struct fake_node *w = fixture_attach(&f, &hello), *s = speculator("s");
    struct client *whole = fixture_send(&f, 1601, 1), *pruned = speculate(3000, 100), *kept = speculate(3000, 100);
    ck_ended(whole, FINISH_REASON_ERROR, STATUS_OUT_OF_RANGE);
    fake_node_score(&f, s, pruned, 0, 1500); // the last generated token needs no entry
    ck_assert(fake_node_has(w, pruned));
    fake_node_score(&f, s, kept, 0, 1501);
    ck_ended(kept, FINISH_REASON_ERROR, STATUS_OUT_OF_RANGE);
}
END_TEST

START_TEST(the_queue_is_bounded)
{
    f.options.max_queue_requests = 3;
    f.options.max_queue_tokens = 2000;
    fixture_stop(&f);
    struct core_options options = f.options;
    fixture_init(&f);
    f.options = options;
    fixture_start(&f);
    struct node_hello hello = fixture_hello(NODE_WORKER, "w");
    hello.max_seqs = 1;
    struct fake_node *w = fixture_attach(&f, &hello);
    struct client *runs = fixture_send(&f, 1900, 4); // on a worker group: does not wait
    ck_assert(fake_node_has(w, runs));
    fixture_send(&f, 1000, 4);
    struct client *tokens = fixture_send(&f, 1001, 4), *never = fixture_send(&f, 2001, 4);
    ck_ended(tokens, FINISH_REASON_ERROR, STATUS_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(tokens->message, "2000"));
    ck_assert_ptr_nonnull(strstr(tokens->message, "1001"));
    ck_ended(never, FINISH_REASON_ERROR, STATUS_OUT_OF_RANGE);
    fixture_send(&f, 10, 4);
    fixture_send(&f, 10, 4);
    struct client *fourth = fixture_send(&f, 10, 4);
    ck_ended(fourth, FINISH_REASON_ERROR, STATUS_EXHAUSTED);
    ck_assert(strstr(fourth->message, "3 are allowed"));
    fake_node_step(&f, w, runs, 0, 1, FINISH_REASON_STOP); // another one is dispatched
    ck_assert_int_eq(fixture_send(&f, 10, 4)->ends, 0);
    struct core_status status = fixture_status(&f);
    ck_assert_int_eq(status.waiting, 3);
    ck_assert_int_eq(status.running, 1);
    core_status_fini(&status);
}
END_TEST

START_TEST(each_class_leaves_room_in_the_queue_for_those_above)
{
    f.options.max_queue_requests = 10;
    f.options.max_queue_tokens = 1000;
    f.options.queue_reserve_percent = 20;
    fixture_stop(&f);
    struct core_options options = f.options;
    fixture_init(&f);
    f.options = options;
    fixture_start(&f);
    struct node_hello hello = fixture_hello(NODE_WORKER, "w");
    hello.max_seqs = 1;
    fixture_attach(&f, &hello);
    fixture_send(&f, 10, 4); // keeps the group busy
    int taken[3] = {0};
    for (int priority = -1; priority <= 1; priority++) {
        struct client *client;
        do {
            client = fixture_request(&f, 10, 4);
            client->r->spec.prefill.mode = PREFILL_OFF;
            client->r->spec.priority = priority * 100;
            fixture_submit(&f, client);
            taken[priority + 1] += client->ends == 0;
        } while (!client->ends);
        ck_ended(client, FINISH_REASON_ERROR, STATUS_EXHAUSTED);
        ck_assert(strstr(client->message, queue_class_name((enum queue_class)(priority + 1))));
    }
    ck_assert_int_eq(taken[0], 6);
    ck_assert_int_eq(taken[1], 2);
    ck_assert_int_eq(taken[2], 2);
    struct core_status status = fixture_status(&f);
    const struct class_status *low = &status.classes[QUEUE_LOW];
    ck_assert_int_eq(low->waiting, 6);
    ck_assert_int_eq(low->waiting_tokens, 60);
    ck_assert_int_eq(low->max_requests, 6);
    ck_assert_int_eq(low->max_tokens, 600);
    ck_assert_int_eq(status.waiting, 10);
    ck_assert_int_eq(status.classes[QUEUE_HIGH].max_requests, 10);
    core_status_fini(&status);
    f.options.queue_reserve_percent = 49; // the largest value allowed: class low has room left
    options = f.options;
    fixture_stop(&f);
    fixture_init(&f);
    f.options = options;
    fixture_start(&f);
    status = fixture_status(&f);
    low = &status.classes[QUEUE_LOW];
    ck_assert_int_eq(low->max_requests, 1);
    ck_assert_int_eq(low->max_tokens, 20);
    core_status_fini(&status);
}
END_TEST

START_TEST(late_results_are_ignored)
{
    struct fake_node *w = worker("w"), *s = speculator("s");
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
    struct fake_node *w = worker("w");
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

START_TEST(a_long_error_of_a_worker_group_is_cut_between_characters)
{
    struct fake_node *w = worker("w");
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
    struct fake_node *w = worker("w");
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

static void refused(struct node_hello hello, const char *word)
{
    struct core_node *node = NULL;
    ck_assert_int_eq(core_attach(f.c, &hello, &f, f.now_us, &node), STATUS_INVALID);
    ck_assert_ptr_null(node);
    ck_assert_msg(strstr(status_message(), word), "\"%s\" does not name %s", status_message(), word);
}

START_TEST(nodes_with_another_model_or_tokenizer_are_refused)
{
    worker("w");
    struct node_hello hello = fixture_hello(NODE_SPECULATOR, "new");
    hello.tokenizer_fingerprint = 78;
    refused(hello, "tokenizer");
    hello = fixture_hello(NODE_WORKER, "new");
    hello.vocab_size = 999;
    refused(hello, "vocabulary");
    hello = fixture_hello(NODE_WORKER, "new");
    hello.model_fingerprint = 6;
    refused(hello, "same model");
    int *const counts[] = {&hello.ranks,    &hello.context_tokens, &hello.token_budget,
                           &hello.max_seqs, &hello.block_tokens,   &hello.kv_blocks};
    const char *const names[] = {"ranks", "context_tokens", "token_budget", "max_seqs", "block_tokens", "kv_blocks"};
    for (int i = 0; i < 6; i++) {
        hello = fixture_hello(NODE_WORKER, "new");
        *counts[i] = i % 2 ? 0 : -5;
        refused(hello, names[i]);
    }
    refused(fixture_hello(NODE_WORKER, ""), "node_id");
    refused(fixture_hello(NODE_WORKER, "a\nb"), "node_id");
    // Another model may replace that of the only worker group, and speculators have their own model.
    hello = fixture_hello(NODE_WORKER, "w");
    hello.model_fingerprint = 6;
    fixture_attach(&f, &hello);
    hello = fixture_hello(NODE_SPECULATOR, "s");
    hello.model_fingerprint = 9;
    hello.kv_blocks = hello.block_tokens = 0;
    fixture_attach(&f, &hello);
    struct core_status status = fixture_status(&f);
    ck_assert_int_eq(status.n_nodes, 2);
    ck_assert_uint_eq(status.model_fingerprint, 6);
    core_status_fini(&status);
}
END_TEST

START_TEST(silent_and_replaced_nodes_are_lost)
{
    struct fake_node *w = worker("w");
    struct client *a = fixture_send(&f, 10, 4);
    struct fake_node *w2 = worker("w"); // the same id
    ck_assert(w->lost);
    ck_assert(fake_node_has(w2, a));
    ck_assert_int_eq(a->r->usage.replays, 1);
    ck_assert(f.ready);
    ck_assert_int_eq(f.ready_changes, 1);
    fixture_advance(&f, 2999 * (int64_t)SECOND);
    ck_assert(!w2->lost);
    ck_assert(fake_node_has(w2, a));
    core_heartbeat(f.c, w2->node, &(struct node_heartbeat){.kv_blocks_free = 7}, f.now_us);
    struct core_status status = fixture_status(&f);
    ck_assert_int_eq(status.nodes[0].kv_blocks_free, 7);
    ck_assert_int_eq(status.nodes[0].running, 1);
    core_status_fini(&status);
    fixture_advance(&f, 2999 * (int64_t)SECOND);
    ck_assert(!w2->lost);
    ck_assert_int_eq(core_next_deadline_us(f.c), f.now_us + SECOND);
    fixture_advance(&f, SECOND);
    ck_assert(w2->lost);
    ck_assert(!f.ready);
    ck_assert_int_eq(a->r->state, REQUEST_READY);
    fixture_advance(&f, 5 * SECOND);
    ck_ended(a, FINISH_REASON_ERROR, STATUS_UNAVAILABLE);
}
END_TEST

START_TEST(a_pause_of_the_router_does_not_count_as_silence_of_the_nodes)
{
    struct fake_node *w = worker("w");
    struct client *a = fixture_send(&f, 10, 4);
    fixture_advance(&f, 500 * (int64_t)SECOND);
    f.now_us += 100000 * (int64_t)SECOND; // without a tick
    core_tick(f.c, f.now_us);
    ck_assert(!w->lost);
    ck_assert(fake_node_has(w, a));
    // Half a heartbeat before and the one that two ticks may be apart count as silence, the rest does not.
    fixture_advance(&f, 1500 * (int64_t)SECOND - 1);
    ck_assert(!w->lost);
    fixture_advance(&f, 1);
    ck_assert(w->lost);
}
END_TEST

START_TEST(readiness_follows_worker_groups_and_draining)
{
    speculator("s");
    ck_assert(!f.ready);
    struct fake_node *w = worker("w"), *x = worker("x");
    ck_assert(f.ready);
    ck_assert_int_eq(f.ready_changes, 1);
    struct client *a = fixture_send(&f, 10, 4);
    struct fake_node *has = fake_node_has(w, a) ? w : x;
    core_draining(f.c, w->node, "", f.now_us);
    ck_assert(f.ready);
    core_draining(f.c, x->node, "", f.now_us);
    ck_assert(!f.ready);
    ck_assert_int_eq(f.ready_changes, 2);
    struct core_status status = fixture_status(&f);
    ck_assert_str_eq(status.nodes[1].state, "draining");
    core_status_fini(&status);
    fake_node_step(&f, has, a, 0, 4, FINISH_REASON_LENGTH); // running requests may end
    ck_ended(a, FINISH_REASON_LENGTH, STATUS_OK);
    worker("y");
    ck_assert(f.ready);
    struct client *b = fixture_send(&f, 10, 4);
    core_drain(f.c);
    ck_assert(!f.ready);
    ck_assert(!core_idle(f.c));
    ck_assert_int_eq(b->ends, 0);
    core_cancel(f.c, b->number, f.now_us);
    ck_assert(core_idle(f.c));
}
END_TEST

START_TEST(core_free_ends_all_requests)
{
    worker("w");
    speculator("s");
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
    TEST(each_skip_reason_has_its_condition);
    TEST(a_required_score_is_refused_where_another_prompt_is_kept_whole);
    TEST(any_fault_of_a_speculator_keeps_the_whole_prompt);
    TEST(a_lost_speculator_delays_no_request);
    TEST(a_draining_speculator_finishes_its_requests_and_gets_no_more);
    TEST(score_calls_get_an_answer_or_a_reason);
    TEST(after_a_lost_worker_group_no_token_is_missing_or_repeated);
    TEST(a_replayed_request_goes_before_all_others_and_waits_for_a_group);
    TEST(a_request_that_loses_every_group_is_given_up);
    TEST(cancel_works_in_every_state);
    TEST(a_request_ends_when_its_first_token_misses_the_deadline);
    TEST(without_worker_groups_there_is_a_time_of_grace);
    TEST(a_worker_group_that_drains_for_long_leaves_a_time_of_grace);
    TEST(requests_that_cannot_be_served_are_refused_with_a_reason);
    TEST(kept_tokens_must_fit_the_kv_cache);
    TEST(the_queue_is_bounded);
    TEST(each_class_leaves_room_in_the_queue_for_those_above);
    TEST(late_results_are_ignored);
    TEST(results_of_a_worker_group_are_checked);
    TEST(a_long_error_of_a_worker_group_is_cut_between_characters);
    TEST(a_stop_string_ends_the_text_where_the_sink_says);
    TEST(nodes_with_another_model_or_tokenizer_are_refused);
    TEST(silent_and_replaced_nodes_are_lost);
    TEST(a_pause_of_the_router_does_not_count_as_silence_of_the_nodes);
    TEST(readiness_follows_worker_groups_and_draining);
    TEST(core_free_ends_all_requests);
}
