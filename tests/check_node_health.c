// SPDX-License-Identifier: Apache-2.0
// router/core/health: nodes that hang, are slow or report impossible values, and the time limits of scores.
#include <stdio.h>
#include <string.h>

#include "router/core/core_state.h"
#include "tests/core_case.h"
#include "tests/suite.h"

static void start(void)
{
    fixture_init(&f);
    f.options.heartbeat_us = SECOND;
    f.options.stall_us = 5 * SECOND;
    f.options.eject_us = 10 * SECOND;
    f.options.score_timeout_us = 100 * (int64_t)SECOND;
    fixture_start(&f);
}

static struct fake_node *attach(enum node_role role, const char *id)
{
    struct node_hello hello = fixture_hello(role, id);
    return fixture_attach(&f, &hello);
}

static const struct fake_node all_nodes;

// All nodes send heartbeats for some seconds. Those of `moving` show progress; with `&all_nodes` those of all nodes do.
static void run(int seconds, const struct fake_node *moving)
{
    for (int second = 0; second < seconds; second++) {
        for (int i = 0; i < f.n_nodes; i++) {
            struct fake_node *node = f.nodes[i];
            if (!node->node) continue;
            uint64_t progress = node == moving || moving == &all_nodes ? (uint64_t)f.now_us : 1;
            core_heartbeat(f.c, node->node, &(struct node_heartbeat){.progress = progress}, f.now_us);
        }
        fixture_advance(&f, SECOND);
    }
}

static const char *state_of(const struct fake_node *node)
{
    static char state[16];
    struct core_status status = fixture_status(&f);
    snprintf(state, sizeof state, "lost");
    for (int i = 0; i < status.n_nodes; i++)
        if (strcmp(status.nodes[i].hello.node_id, node->id) == 0)
            snprintf(state, sizeof state, "%s", status.nodes[i].state);
    core_status_fini(&status);
    return state;
}

static void ck_state(const struct fake_node *node, const char *state)
{
    ck_assert_str_eq(state_of(node), state);
}

static struct client *send_on(int n_tokens)
{
    struct client *client = fixture_request(&f, n_tokens, 4);
    client->r->spec.prefill.mode = PREFILL_ON;
    fixture_submit(&f, client);
    fixture_advance(&f, 0);
    return client;
}

static void pass(struct fake_node *node, int rows, double us)
{
    core_passed(f.c, node->node, &(struct pass_cost){rows, (int64_t)rows * (rows + 1) / 2, (int64_t)us, false},
                f.now_us);
}

// Reports passes of all sizes, `factor` times slower than those of other nodes.
static void teach(struct fake_node *node, double factor)
{
    for (int i = 0; i < 100; i++)
        pass(node, 1 << i % 10, factor * (1000 + 100 * (1 << i % 10)));
    fixture_advance(&f, 0);
}

// --- hung speculators

START_TEST(a_hung_speculator_gets_no_more_work)
{
    struct fake_node *w = attach(NODE_WORKER, "w"), *s = attach(NODE_SPECULATOR, "s"),
                     *t = attach(NODE_SPECULATOR, "t");
    struct client *on_s[4], *on_t[4];
    for (int i = 0; i < 4; i++) {
        struct client *client = send_on(500);
        *(fake_node_has(s, client) ? &on_s[i / 2] : &on_t[i / 2]) = client;
    }
    run(2, NULL);
    fake_node_score(&f, t, on_t[0], 0, 99);
    fake_node_score(&f, t, on_t[1], 0, 99);
    run(4, NULL); // s sends heartbeats, but neither a result nor progress
    ck_state(s, "ejected");
    ck_state(t, "ready");
    ck_assert_int_eq(s->cancels, 2);
    ck_assert_int_eq(s->n_requests, 0);
    ck_assert_int_eq(on_s[0]->r->skip, SKIP_LOST);
    ck_assert_int_ge(on_s[0]->r->state, REQUEST_READY);
    for (int i = 0; i < 6; i++) {
        struct client *client = send_on(500);
        ck_assert(!fake_node_has(s, client));
    }
    struct core_status status = fixture_status(&f);
    ck_assert_uint_eq(status.ejections, 1);
    ck_assert_uint_eq(status.hangs, 1);
    core_status_fini(&status);
    ck_assert(w->node);
}
END_TEST

START_TEST(an_ejected_speculator_is_probed_and_then_admitted_in_steps)
{
    struct fake_node *w = attach(NODE_WORKER, "w"), *s = attach(NODE_SPECULATOR, "s");
    struct client *client = send_on(10);
    run(7, w);
    ck_state(s, "ejected");
    client = send_on(10);
    ck_assert_int_eq(client->r->skip, SKIP_NO_NODE); // no speculator accepts work
    run(9, w);
    ck_state(s, "probing");
    for (int admitted = 1; admitted <= 64; admitted *= 2) {
        struct client *sent[80];
        for (int i = 0; i < 80; i++)
            sent[i] = send_on(2);
        run(2, w); // all are overdue
        ck_assert_int_eq(s->n_requests, admitted);
        for (int i = 0; i < 80; i++) {
            if (fake_node_has(s, sent[i]) && (i == 0 || admitted == 64)) {
                fake_node_score(&f, s, sent[i], 0, 0);
            } else {
                core_cancel(f.c, sent[i]->number, f.now_us);
            }
        }
        fixture_advance(&f, 0);
    }
    ck_state(s, "ready");
}
END_TEST

START_TEST(a_speculator_that_hangs_again_is_ejected_for_longer)
{
    struct fake_node *w = attach(NODE_WORKER, "w"), *s = attach(NODE_SPECULATOR, "s");
    int ejected_s[3];
    for (int i = 0; i < 3; i++) {
        send_on(10);
        run(7, w);
        ck_state(s, "ejected");
        for (ejected_s[i] = 1; strcmp(state_of(s), "ejected") == 0; ejected_s[i]++)
            run(1, w);
    }
    ck_assert_int_ge(ejected_s[0], 8);
    ck_assert_int_ge(ejected_s[1], 18);
    ck_assert_int_ge(ejected_s[2], 38);
}
END_TEST

// --- progress

START_TEST(a_long_pass_that_makes_progress_is_no_hang)
{
    struct fake_node *w = attach(NODE_WORKER, "w"), *s = attach(NODE_SPECULATOR, "s");
    f.options.score_timeout_us = 1000 * (int64_t)SECOND;
    struct client *client = fixture_send(&f, 500, 4);
    run(40, w);
    ck_state(w, "ready");
    ck_assert(fake_node_has(w, client));
    run(300, NULL);
    ck_state(w, "lost");
    client = send_on(500);
    run(60, s);
    ck_state(s, "ready");
}
END_TEST

START_TEST(without_a_count_of_progress_a_pass_may_take_four_times_its_expected_time)
{
    struct node_hello hello = fixture_hello(NODE_WORKER, "w");
    hello.context_tokens = 512;
    struct fake_node *w = fixture_attach(&f, &hello);
    for (int i = 0; i < 100; i++)
        pass(w, 1 << i % 10, 20e3 * (1 << i % 10)); // 10 s for 512 rows
    fixture_send(&f, 500, 4);
    int seconds = 0;
    for (; w->node; seconds++) {
        core_heartbeat(f.c, w->node, &(struct node_heartbeat){.progress = 0}, f.now_us);
        fixture_advance(&f, SECOND);
    }
    ck_assert_int_ge(seconds, 39);
    ck_assert_int_le(seconds, 50);
}
END_TEST

START_TEST(passes_that_take_years_by_the_model_do_not_make_their_node_hang)
{
    struct fake_node *w = worker_with_wrong_clock();
    struct client *client = send_on(100);
    run(10, NULL);
    ck_assert(fake_node_has(w, client));
}
END_TEST

START_TEST(a_group_without_work_does_not_hang)
{
    struct fake_node *w = attach(NODE_WORKER, "w");
    teach(w, 1);
    run(100, NULL);
    ck_state(w, "ready");
    struct client *client = fixture_send(&f, 100, 4);
    run(3, NULL);
    ck_state(w, "ready");
    fake_node_step(&f, w, client, 0, 1, -1); // progress
    run(4, NULL);
    ck_state(w, "ready");
    run(3, NULL);
    ck_state(w, "lost");
}
END_TEST

START_TEST(time_in_which_the_router_did_not_run_is_no_hang)
{
    struct fake_node *w = attach(NODE_WORKER, "w");
    fixture_send(&f, 100, 4);
    run(2, NULL);
    f.now_us += 60 * (int64_t)SECOND;
    core_tick(f.c, f.now_us);
    ck_state(w, "ready");
    run(1, NULL);
    ck_state(w, "ready");
    run(3, NULL);
    ck_state(w, "lost");
}
END_TEST

// --- hung worker groups

START_TEST(the_requests_of_a_hung_group_are_replayed_elsewhere)
{
    struct fake_node *w = attach(NODE_WORKER, "w"), *v;
    struct client *begun = fixture_send(&f, 100, 8), *waiting = fixture_send(&f, 50, 8);
    fake_node_step(&f, w, begun, 0, 3, -1);
    v = attach(NODE_WORKER, "v");
    run(7, v);
    ck_assert(w->lost);
    ck_assert(fake_node_has(v, begun));
    ck_assert(fake_node_has(v, waiting));
    fake_node_step(&f, v, begun, 3, 5, FINISH_REASON_LENGTH);
    fake_node_step(&f, v, waiting, 0, 8, FINISH_REASON_LENGTH);
    ck_assert_int_eq(begun->n_tokens, 8);
    ck_assert_int_eq(begun->tokens[7], 7);
    ck_assert_int_eq(begun->usage.replays, 1);
    // The lost group attaches again. It gets no work before the ejection ends, then one request at a time.
    struct fake_node *again = attach(NODE_WORKER, "w");
    ck_state(again, "ejected");
    struct client *next = fixture_send(&f, 100, 8);
    ck_assert(fake_node_has(v, next));
    fake_node_step(&f, v, next, 0, 8, FINISH_REASON_LENGTH);
    run(12, v);
    ck_state(again, "probing");
    core_draining(f.c, v->node, "", f.now_us);
    struct client *probe = fixture_send(&f, 100, 8), *held = fixture_send(&f, 100, 8);
    ck_assert(fake_node_has(again, probe));
    ck_assert(!fake_node_has(again, held));
    fake_node_step(&f, again, probe, 0, 1, -1);
    ck_assert(fake_node_has(again, held));
}
END_TEST

// A group that reports progress for ever but answers nothing loses its requests after ten times stall_us.
START_TEST(a_group_that_answers_nothing_loses_its_requests)
{
    struct fake_node *w = attach(NODE_WORKER, "w"), *v;
    struct client *begun = fixture_send(&f, 100, 8), *waiting = fixture_send(&f, 50, 8);
    fake_node_step(&f, w, begun, 0, 3, -1);
    v = attach(NODE_WORKER, "v");
    run(48, &all_nodes);
    ck_assert(!w->lost);
    run(5, &all_nodes);
    ck_assert(w->lost);
    ck_assert(fake_node_has(v, begun));
    ck_assert(fake_node_has(v, waiting));
    fake_node_step(&f, v, begun, 3, 5, FINISH_REASON_LENGTH);
    fake_node_step(&f, v, waiting, 0, 8, FINISH_REASON_LENGTH);
}
END_TEST

// The group answers one request and keeps the other for ever.
START_TEST(a_group_that_never_answers_one_request_loses_it)
{
    struct fake_node *w = attach(NODE_WORKER, "w"), *v = NULL;
    struct client *kept = fixture_send(&f, 50, 8), *begun = fixture_send(&f, 100, 128);
    for (int i = 0; i < 60 && !w->lost; i++) {
        fake_node_step(&f, w, begun, i, 1, -1);
        run(10, &all_nodes);
        if (i == 45) v = attach(NODE_WORKER, "v");
    }
    ck_assert(w->lost);
    ck_assert(fake_node_has(v, kept));
    ck_assert(fake_node_has(v, begun));
}
END_TEST

// Sends a heartbeat after `us` that counts the requests of the bins up to `last_bin`.
static void count_after(int64_t us, const struct fake_node *node, uint64_t last_bin, int requests)
{
    fixture_advance(&f, us);
    struct node_heartbeat heartbeat = {.progress = (uint64_t)f.now_us, .last_bin = last_bin, .requests = requests};
    core_heartbeat(f.c, node->node, &heartbeat, f.now_us);
    fixture_advance(&f, 0);
}

// Sends a heartbeat after the shortest interval at which the core counts.
static void count(const struct fake_node *node, uint64_t last_bin, int requests)
{
    count_after(SECOND / 4, node, last_bin, requests);
}

START_TEST(a_group_that_counts_fewer_requests_than_it_was_sent_has_lost_some)
{
    struct fake_node *w = attach(NODE_WORKER, "w");
    struct client *first = fixture_send(&f, 100, 8);
    uint64_t bin = f.c->last_bin;
    fake_node_step(&f, w, first, 0, 1, -1);
    struct client *second = fixture_send(&f, 50, 8);
    ck_assert(fake_node_has(w, first));
    ck_assert(fake_node_has(w, second));
    ck_assert_uint_gt(f.c->last_bin, bin);
    count(w, 0, 0);       // sent before the first bin was handled
    count(w, bin, 1);     // before the second
    count(w, bin + 1, 3); // one to be cancelled
    ck_state(w, "ready");
    fake_node_step(&f, w, first, 1, 7, FINISH_REASON_LENGTH);
    count(w, bin + 1, 1);
    ck_state(w, "ready");
    struct fake_node *v = attach(NODE_WORKER, "v");
    count(w, bin + 1, 0);
    ck_assert(w->lost);
    ck_assert(fake_node_has(v, second));
    ck_state(attach(NODE_WORKER, "w"), "ejected");
}
END_TEST

// The core walks the requests of a node to count the lost ones. A flood of heartbeats must not cause a walk for each.
START_TEST(heartbeats_in_quick_succession_are_not_counted)
{
    struct fake_node *w = attach(NODE_WORKER, "w");
    struct client *client = fixture_send(&f, 100, 8);
    ck_assert(fake_node_has(w, client));
    count_after(0, w, f.c->last_bin, 1); // the first one is counted
    count_after(SECOND / 4 - 1, w, f.c->last_bin, 0);
    ck_assert(!w->lost);
    ck_assert_int_eq(w->node->heard_us, f.now_us);
    count_after(1, w, f.c->last_bin, 0);
    ck_assert(w->lost);
    struct fake_node *v = attach(NODE_WORKER, "v");
    ck_assert(fake_node_has(v, client));
    count_after(0, v, f.c->last_bin, 0);
    ck_assert(v->lost);
}
END_TEST

START_TEST(a_speculator_that_loses_prompts_is_ejected_and_they_go_on)
{
    attach(NODE_WORKER, "w");
    struct fake_node *s = attach(NODE_SPECULATOR, "s");
    struct client *client = send_on(500);
    ck_assert(fake_node_has(s, client));
    count(s, f.c->last_bin, 1);
    ck_state(s, "ready");
    count(s, f.c->last_bin, 0);
    ck_state(s, "ejected");
    ck_assert_int_eq(client->r->skip, SKIP_LOST);
    ck_assert_int_ge(client->r->state, REQUEST_READY);
}
END_TEST

START_TEST(the_only_group_is_probed_immediately_when_it_attaches_again)
{
    struct fake_node *w = attach(NODE_WORKER, "w");
    struct client *client = fixture_send(&f, 100, 8);
    run(7, NULL);
    ck_assert(w->lost);
    ck_assert_int_eq(client->r->state, REQUEST_READY);
    struct fake_node *again = attach(NODE_WORKER, "w");
    ck_state(again, "probing");
    ck_assert(fake_node_has(again, client));
}
END_TEST

// --- slow nodes

START_TEST(a_node_ten_times_slower_than_its_peers_is_drained_until_it_recovers)
{
    struct fake_node *nodes[3] = {attach(NODE_WORKER, "a"), attach(NODE_WORKER, "b"), attach(NODE_WORKER, "c")};
    for (int i = 0; i < 3; i++)
        teach(nodes[i], i == 1 ? 9 : 1);
    run(2, NULL);
    ck_state(nodes[1], "ready");
    for (int i = 0; i < 5; i++)
        teach(nodes[1], 12);
    run(2, NULL);
    ck_state(nodes[1], "ejected");
    for (int i = 0; i < 6; i++)
        ck_assert(!fake_node_has(nodes[1], fixture_send(&f, 500, 4)));
    for (int i = 0; i < f.n_nodes; i++)
        while (f.nodes[i]->n_requests)
            fake_node_finish_oldest_bin(&f, f.nodes[i]);
    run(10, NULL);
    ck_state(nodes[1], "probing");
    for (int i = 0; i < 20; i++)
        pass(nodes[1], 64, 12 * 7400); // still slow
    run(2, NULL);
    ck_state(nodes[1], "ejected");
    run(21, NULL);
    ck_state(nodes[1], "probing");
    for (int i = 0; i < 5; i++)
        teach(nodes[1], 1);
    run(2, NULL);
    ck_state(nodes[1], "probing");
    struct client *client = fixture_send(&f, 100, 4);
    for (int sent = 0; sent < 40 && strcmp(state_of(nodes[1]), "ready") != 0; sent++) {
        for (int i = 0; i < 3; i++)
            while (nodes[i]->n_requests)
                fake_node_finish_oldest_bin(&f, nodes[i]);
        for (int i = 0; i < 30; i++)
            client = fixture_send(&f, 500, 4);
    }
    ck_state(nodes[1], "ready");
    ck_assert_ptr_nonnull(client);
}
END_TEST

START_TEST(the_last_node_and_half_of_a_pool_stay)
{
    struct fake_node *nodes[5];
    char id[2] = "a";
    for (int i = 0; i < 5; i++, id[0]++) {
        nodes[i] = attach(NODE_SPECULATOR, id);
        teach(nodes[i], i < 2 ? 1 : 20 + i); // the median is slow
    }
    run(2, NULL);
    for (int i = 0; i < 5; i++)
        ck_state(nodes[i], "ready");
    for (int k = 0; k < 3; k++)
        teach(nodes[2], 1);
    run(2, NULL);
    ck_state(nodes[3], "ejected");
    ck_state(nodes[4], "ejected");
    core_draining(f.c, nodes[0]->node, "", f.now_us);
    core_draining(f.c, nodes[1]->node, "", f.now_us);
    for (int k = 0; k < 5; k++)
        teach(nodes[2], 50);
    run(2, NULL);
    ck_state(nodes[2], "ready"); // the last node that accepts work
}
END_TEST

START_TEST(nodes_with_other_limits_are_no_peers)
{
    struct node_hello hello = fixture_hello(NODE_WORKER, "small");
    struct fake_node *large = attach(NODE_WORKER, "large"), *small;
    hello.ranks = 8;
    small = fixture_attach(&f, &hello);
    teach(large, 20);
    teach(small, 1);
    run(3, NULL);
    ck_state(large, "ready");
}
END_TEST

START_TEST(passes_that_cannot_be_true_teach_nothing)
{
    struct fake_node *w = attach(NODE_WORKER, "w");
    teach(w, 1);
    struct cost_model before = w->node->sched.cost;
    const struct pass_cost lies[] = {{-1, 10, 100, false},
                                     {0, 0, 1, false},
                                     {513, 600000, 100000, false},
                                     {64, 63, 7400, false},
                                     {64, 2080, 0, false},
                                     {64, 2080, -5, false},
                                     {1, INT64_MAX, 7400, false},
                                     {64, 2080, INT64_MIN, false},
                                     {INT64_MAX, INT64_MAX, 1, false}};
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++)
        core_passed(f.c, w->node, &lies[i], f.now_us);
    ck_assert_mem_eq(&before, &w->node->sched.cost, sizeof before);
}
END_TEST

// --- time limits of scores

START_TEST(the_time_limit_of_a_score_starts_at_dispatch_and_grows_with_the_prompt)
{
    struct node_hello hello = fixture_hello(NODE_SPECULATOR, "s");
    hello.max_seqs = 1;
    f.c->options.score_timeout_us = 10 * SECOND;
    attach(NODE_WORKER, "w");
    struct fake_node *s = fixture_attach(&f, &hello);
    for (int i = 0; i < 100; i++)
        pass(s, 1 << i % 10, 26e3 * (1 << i % 10)); // 13 s for 500 tokens
    struct client *first = send_on(500), *second = send_on(500);
    ck_assert(fake_node_has(s, first));
    ck_assert(!fake_node_has(s, second));
    run(9, &all_nodes);
    ck_assert_int_eq(first->r->state, REQUEST_SCORING);
    ck_assert_int_eq(second->r->state, REQUEST_SCORING);
    run(2, &all_nodes);
    ck_assert_int_eq(second->r->skip, SKIP_TIMEOUT);
    ck_assert(fake_node_has(s, first)); // it waited for ten seconds
    run(45, &all_nodes);
    ck_assert(fake_node_has(s, first));
    run(10, &all_nodes);
    ck_assert_int_eq(first->r->skip, SKIP_TIMEOUT); // 10 + 4 * 13
    ck_state(s, "ejected");
}
END_TEST

START_TEST(a_score_that_times_out_without_progress_ejects_the_speculator)
{
    attach(NODE_WORKER, "w");
    struct fake_node *s = attach(NODE_SPECULATOR, "s");
    f.c->options.score_timeout_us = 2 * SECOND;
    struct client *first = send_on(100), *second;
    fixture_advance(&f, SECOND);
    second = send_on(400);
    fixture_advance(&f, SECOND);
    ck_assert_int_eq(first->r->skip, SKIP_TIMEOUT);
    ck_state(s, "ejected");
    ck_assert_int_eq(second->r->skip, SKIP_LOST);
    ck_assert_int_eq(s->cancels, 2);
    ck_assert_int_eq(s->n_requests, 0);
}
END_TEST

START_TEST(a_prompt_that_would_wait_too_long_for_a_speculator_is_not_speculated)
{
    struct fake_node *w = attach(NODE_WORKER, "w"), *s = attach(NODE_SPECULATOR, "s");
    f.c->options.score_timeout_us = f.c->view.options.score_timeout_us = SECOND;
    for (int i = 0; i < 100; i++) {
        pass(w, 1 << i % 10, 30e3 * (1 << i % 10));  // 15 s for 500 tokens
        pass(s, 1 << i % 10, 500.0 * (1 << i % 10)); // 0.25 s
    }
    enum skip_reason skip = SKIP_NONE;
    int n = 0;
    for (; n < 30 && skip == SKIP_NONE; n++) {
        struct client *client = fixture_request(&f, 500, 4);
        fixture_submit(&f, client);
        skip = client->r->skip;
    }
    ck_assert_int_eq(skip, SKIP_COST); // the whole prompt takes over 15 s: scoring would pay without the limit
    ck_assert_int_gt(n, 3);
    ck_assert_int_lt(n, 8);
}
END_TEST

SUITE("node_health")
{
    FIXTURE(start, teardown);
    TEST(a_hung_speculator_gets_no_more_work);
    TEST(an_ejected_speculator_is_probed_and_then_admitted_in_steps);
    TEST(a_speculator_that_hangs_again_is_ejected_for_longer);
    TEST(a_long_pass_that_makes_progress_is_no_hang);
    TEST(without_a_count_of_progress_a_pass_may_take_four_times_its_expected_time);
    TEST(passes_that_take_years_by_the_model_do_not_make_their_node_hang);
    TEST(a_group_without_work_does_not_hang);
    TEST(time_in_which_the_router_did_not_run_is_no_hang);
    TEST(the_requests_of_a_hung_group_are_replayed_elsewhere);
    TEST(a_group_that_answers_nothing_loses_its_requests);
    TEST(a_group_that_never_answers_one_request_loses_it);
    TEST(a_group_that_counts_fewer_requests_than_it_was_sent_has_lost_some);
    TEST(heartbeats_in_quick_succession_are_not_counted);
    TEST(a_speculator_that_loses_prompts_is_ejected_and_they_go_on);
    TEST(the_only_group_is_probed_immediately_when_it_attaches_again);
    TEST(a_node_ten_times_slower_than_its_peers_is_drained_until_it_recovers);
    TEST(the_last_node_and_half_of_a_pool_stay);
    TEST(nodes_with_other_limits_are_no_peers);
    TEST(passes_that_cannot_be_true_teach_nothing);
    TEST(the_time_limit_of_a_score_starts_at_dispatch_and_grows_with_the_prompt);
    TEST(a_score_that_times_out_without_progress_ejects_the_speculator);
    TEST(a_prompt_that_would_wait_too_long_for_a_speculator_is_not_speculated);
}
