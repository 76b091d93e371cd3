// SPDX-License-Identifier: Apache-2.0
// router/sched/estimate: decisions by deadlines and the costs of nodes: which requests are speculated, refused or
// overdue, which node gets a bin, and how large the bin has to be. The tests invent costs and report passes that take
// as long.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "router/core/core_state.h"
#include "tests/core_case.h"
#include "tests/suite.h"

struct truth {
    double fixed_us, row_us, pair_us;
};

static double pass_us(const struct truth *t, int rows)
{
    return t->fixed_us + t->row_us * rows + t->pair_us * rows * (rows + 1) / 2;
}

// Reports passes of all sizes until the costs are known.
static void teach(struct fake_node *node, const struct truth *t)
{
    for (int i = 0; i < 200; i++) {
        int rows = 1 << i % 10, cached = i % 3 * 200;
        int64_t pairs = (int64_t)rows * cached + (int64_t)rows * (rows + 1) / 2;
        double us = t->fixed_us + t->row_us * rows + t->pair_us * (double)pairs;
        core_passed(f.c, node->node, &(struct pass_cost){rows, pairs, (int64_t)(us + 0.5), false}, f.now_us);
    }
    fixture_advance(&f, 0);
}

static struct fake_node *node_of(enum node_role role, const char *id, const struct truth *t)
{
    struct node_hello hello = fixture_hello(role, id);
    struct fake_node *node = fixture_attach(&f, &hello);
    if (t) teach(node, t);
    return node;
}

static struct client *submit(int n_tokens, enum prefill_mode mode, int64_t deadline_us)
{
    struct client *client = fixture_request(&f, n_tokens, 4);
    client->r->spec.prefill.mode = mode;
    if (deadline_us) client->r->spec.ttft_deadline_us = f.now_us + deadline_us;
    fixture_submit(&f, client);
    return client;
}

static struct client *send(int n_tokens, enum prefill_mode mode)
{
    struct client *client = submit(n_tokens, mode, 0);
    fixture_advance(&f, 0);
    return client;
}

static void cancel(struct client *client)
{
    core_cancel(f.c, client->number, f.now_us);
    fixture_advance(&f, 0);
}

static bool is_speculated(int n_tokens, double keep_rate)
{
    struct client *client = fixture_request(&f, n_tokens, 4);
    client->r->spec.prefill.keep_rate = keep_rate;
    fixture_submit(&f, client);
    bool speculated = client->r->state == REQUEST_SCORING;
    ck_assert(speculated || client->r->skip == SKIP_COST);
    core_cancel(f.c, client->number, f.now_us);
    return speculated;
}

static void ck_refused(const struct client *client, const char *word)
{
    ck_assert_int_eq(client->ends, 1);
    ck_assert_int_eq(client->status, STATUS_DEADLINE);
    ck_assert_msg(strstr(client->message, word), "\"%s\" does not say \"%s\"", client->message, word);
}

// --- whether speculation pays

static const struct {
    struct truth worker, speculator;
    bool some, all; // lengths from 64 on for which speculation pays at keep rate 0.3
} pairs_of_nodes[] = {
    {{1000, 100, 0}, {200, 10, 0}, true, false},      // a tenth of the cost a row: the longer ones
    {{1000, 100, 0}, {10, 1, 0}, true, true},         // a hundredth: all
    {{1000, 100, 0}, {1000, 100, 0}, false, false},   // as large as the main model: none
    {{1000, 20, 0.2}, {500, 20, 0.001}, true, false}, // saves attention only
};

static double pruned_us(const struct truth *w, const struct truth *s, int n) // at keep rate 0.3
{
    int kept = (int)ceil(0.3 * n) + 16, look_ahead = 7;
    double score = pass_us(s, n) + look_ahead * (s->fixed_us + s->row_us + s->pair_us * (n + 4));
    return score + pass_us(w, kept < n ? kept : n);
}

START_TEST(a_prompt_is_speculated_if_its_first_token_comes_sooner)
{
    const struct truth *w = &pairs_of_nodes[_i].worker, *s = &pairs_of_nodes[_i].speculator;
    node_of(NODE_WORKER, "w", w);
    node_of(NODE_SPECULATOR, "s", s);
    bool some = false, all = true;
    for (int n = 64; n <= 512; n += 7) { // one pass
        double gain = 0.9 * pass_us(w, n) - pruned_us(w, s, n);
        if (fabs(gain) < 0.02 * pass_us(w, n)) continue; // within the accuracy of the fit
        bool speculated = is_speculated(n, 0.3);
        ck_assert_msg(speculated == (gain > 0), "%d tokens: %g us are won", n, gain);
        some |= speculated;
        all &= speculated;
    }
    ck_assert_int_eq(some, pairs_of_nodes[_i].some);
    ck_assert_int_eq(all, pairs_of_nodes[_i].all);
    ck_assert(!is_speculated(512, 0.95)); // the saving is below the margin
    struct client *on = send(64, PREFILL_ON);
    ck_assert_int_eq(on->r->state, REQUEST_SCORING); // at any cost
    struct core_status status = fixture_status(&f);
    ck_assert_uint_gt(status.totals.skipped[SKIP_COST], 0);
    ck_assert_uint_eq(status.totals.degraded, 0);
    core_status_fini(&status);
}
END_TEST

// Attaches a node that has measured passes at its start.
static void attach_measured(enum node_role role, const struct truth *t)
{
    static const struct pass_cost passes[] = {
        {1, 1, 0, false}, {64, 64 * 960 + 64 * 65 / 2, 0, false}, {64, 64 * 65 / 2, 0, false}};
    struct node_hello hello = fixture_hello(role, role == NODE_WORKER ? "w" : "s");
    hello.n_measured = 3;
    for (int i = 0; i < 3; i++) {
        const struct pass_cost *p = &passes[i];
        hello.measured[i] = *p;
        hello.measured[i].us =
            (int64_t)(t->fixed_us + t->row_us * (double)p->rows + t->pair_us * (double)p->pairs + 0.5);
    }
    fixture_attach(&f, &hello);
}

// The demo models on two cores without AMX.
static const struct truth demo_main = {400, 50, 0.02}, demo_speculator = {150, 3, 0.006};

START_TEST(the_first_requests_of_a_new_cluster_are_predicted_and_pruned)
{
    f.options.min_tokens = 1;
    attach_measured(NODE_WORKER, &demo_main);
    attach_measured(NODE_SPECULATOR, &demo_speculator);
    struct core_status status = fixture_status(&f);
    for (int i = 0; i < status.n_nodes; i++)
        ck_assert_double_gt(status.nodes[i].pass_row_us, 0);
    core_status_fini(&status);
    for (int i = 0; i < 8; i++) {
        struct client *client = fixture_request(&f, 975 + i, 4);
        client->r->spec.prefill.mode = PREFILL_AUTO;
        client->r->spec.prefill.keep_rate = 0.3;
        fixture_submit(&f, client);
        ck_assert_int_eq(client->r->state, REQUEST_SCORING);
        ck_assert_double_gt(client->r->predicted.pruned_us, 0);
        ck_assert_double_lt(client->r->predicted.pruned_us, 0.75 * client->r->predicted.whole_us);
        cancel(client);
    }
}
END_TEST

START_TEST(the_first_request_of_a_new_cluster_is_kept_whole_if_that_is_faster)
{
    attach_measured(NODE_WORKER, &demo_speculator);
    attach_measured(NODE_SPECULATOR, &demo_main);
    struct client *client = submit(975, PREFILL_AUTO, 0);
    ck_assert_int_eq(client->r->skip, SKIP_COST);
    ck_assert_double_gt(client->r->predicted.pruned_us, client->r->predicted.whole_us);
}
END_TEST

START_TEST(measured_passes_that_no_node_can_have_teach_nothing)
{
    struct node_hello hello = fixture_hello(NODE_WORKER, "w");
    const struct pass_cost passes[] = {{0, 0, 5, false},  {8, 7, 5, false},    {513, 513 * 257, 5, false},
                                       {8, 36, 0, false}, {1, 5000, 5, false}, {1, INT64_MAX, 5, false}};
    memcpy(hello.measured, passes, sizeof passes);
    hello.n_measured = sizeof passes / sizeof *passes;
    struct fake_node *node = fixture_attach(&f, &hello);
    ck_assert_int_eq(node->node->sched.cost.passes, 0);
}
END_TEST

static const struct truth main_model = {1000, 100, 0}, small_model = {200, 10, 0};

static struct prefill_prediction predicted(enum prefill_mode mode)
{
    struct client *client = fixture_request(&f, 512, 4);
    client->r->spec.prefill.mode = mode;
    client->r->spec.prefill.keep_rate = 0.3;
    fixture_submit(&f, client);
    struct prefill_prediction times = client->r->predicted;
    cancel(client);
    return times;
}

static bool is_about(double us, double expected_us)
{
    return fabs(us - expected_us) < 0.02 * expected_us;
}

START_TEST(a_request_has_both_predicted_times_if_they_were_compared)
{
    node_of(NODE_WORKER, "w", &main_model);
    ck_assert_double_eq(predicted(PREFILL_AUTO).whole_us, 0); // no speculator
    struct fake_node *s = node_of(NODE_SPECULATOR, "s", NULL);
    ck_assert_double_eq(predicted(PREFILL_AUTO).whole_us, 0); // unknown costs
    teach(s, &main_model);
    ck_assert_double_eq(predicted(PREFILL_ON).whole_us, 0);
    ck_assert_double_eq(predicted(PREFILL_OFF).whole_us, 0);
    ck_assert(is_about(predicted(PREFILL_AUTO).whole_us, pass_us(&main_model, 512)));
    ck_assert(is_about(predicted(PREFILL_AUTO).pruned_us, pruned_us(&main_model, &main_model, 512)));
    ck_assert(!is_speculated(512, 0.3));
    for (int i = 0; i < 3; i++)
        teach(s, &small_model);
    ck_assert(is_about(predicted(PREFILL_AUTO).pruned_us, pruned_us(&main_model, &small_model, 512)));
    ck_assert(is_speculated(512, 0.3));
}
END_TEST

START_TEST(waiting_for_a_speculator_counts_and_so_does_waiting_for_a_worker_group)
{
    struct fake_node *w = node_of(NODE_WORKER, "w", &main_model), *s = node_of(NODE_SPECULATOR, "s", &small_model);
    ck_assert(is_speculated(256, 0.3)); // 4 ms + 12 ms before 27 ms
    struct client *scored[2] = {send(512, PREFILL_ON), send(512, PREFILL_ON)};
    ck_assert(fake_node_has(s, scored[0]));
    ck_assert(fake_node_has(s, scored[1]));
    ck_assert(!is_speculated(256, 0.3)); // the two take 11 ms
    struct client *prefilled = send(512, PREFILL_OFF);
    ck_assert(fake_node_has(w, prefilled));
    ck_assert(is_speculated(256, 0.3));   // it would wait 52 ms for the group in any case,
    ck_assert(!is_speculated(256, 0.95)); // and scoring meanwhile does not shorten that
    cancel(prefilled);
    struct client *waiting[2] = {send(512, PREFILL_OFF), send(512, PREFILL_OFF)};
    ck_assert(is_speculated(256, 0.3));
    cancel(waiting[0]);
    cancel(waiting[1]);
    ck_assert(!is_speculated(256, 0.3));
    cancel(scored[0]);
    cancel(scored[1]);
    ck_assert(is_speculated(256, 0.3));
}
END_TEST

START_TEST(a_group_without_blocks_for_the_whole_prompt_does_not_keep_it_whole)
{
    struct node_hello small = fixture_hello(NODE_WORKER, "small");
    small.kv_blocks = 16; // of 16 tokens: for 256 tokens
    teach(fixture_attach(&f, &small), &(struct truth){10, 1, 0});
    node_of(NODE_SPECULATOR, "s", &small_model);
    ck_assert(is_speculated(512, 0.3)); // otherwise it could not be served at all
    ck_assert(!is_speculated(200, 0.3));
    node_of(NODE_WORKER, "w", &main_model);
    ck_assert(is_speculated(512, 0.3)); // 10 ms before 52 ms: the fast group does not hold it whole
    ck_assert(!is_speculated(200, 0.3));
}
END_TEST

START_TEST(forgotten_costs_are_measured_again)
{
    struct fake_node *w = node_of(NODE_WORKER, "w", &main_model), *s = node_of(NODE_SPECULATOR, "s", &main_model);
    ck_assert(!is_speculated(512, 0.3));
    for (int minute = 0; minute < 9; minute++) {
        fixture_advance(&f, 60 * (int64_t)SECOND);
        core_passed(f.c, s->node, &(struct pass_cost){4, 10, 1400, false},
                    f.now_us); // keeps the costs of short prompts known
        teach(w, &main_model);
    }
    ck_assert(!is_speculated(512, 0.3));
    fixture_advance(&f, 61 * (int64_t)SECOND);
    ck_assert(is_speculated(512, 0.3)); // the costs of long prompts are forgotten
    teach(s, &small_model);             // it has become faster
    ck_assert(is_speculated(512, 0.3));
    for (int i = 0; i < 3; i++)
        teach(s, &main_model);
    ck_assert(!is_speculated(512, 0.3));
}
END_TEST

// --- while costs are not known

START_TEST(while_speculator_costs_are_unknown_one_prompt_at_a_time_is_scored)
{
    node_of(NODE_WORKER, "w", &main_model);
    struct fake_node *s = node_of(NODE_SPECULATOR, "s", NULL);
    struct client *first = send(512, PREFILL_AUTO), *second = send(512, PREFILL_AUTO), *on = send(512, PREFILL_ON);
    ck_assert(fake_node_has(s, first));
    ck_assert(fake_node_has(s, on));
    ck_assert_int_eq(second->r->state, REQUEST_PREFILL);
    ck_assert_int_eq(second->r->skip, SKIP_COST);
    cancel(first);
    ck_assert(!is_speculated(512, 0.3)); // the other one is still being scored
    fake_node_score(&f, s, on, 0, 99);
    ck_assert(is_speculated(512, 0.3));
    teach(s, &small_model);
    struct client *each[2] = {send(256, PREFILL_AUTO), send(256, PREFILL_AUTO)};
    ck_assert_int_eq(each[0]->r->state, REQUEST_SCORING);
    ck_assert_int_eq(each[1]->r->state, REQUEST_SCORING);
}
END_TEST

START_TEST(worker_costs_are_learned_from_whole_prompts)
{
    struct fake_node *w = node_of(NODE_WORKER, "w", NULL);
    node_of(NODE_SPECULATOR, "s", &small_model);
    ck_assert(!is_speculated(512, 0.3));
    teach(w, &main_model);
    ck_assert(is_speculated(512, 0.3));
}
END_TEST

START_TEST(a_node_without_known_costs_counts_as_the_cheapest_known_one)
{
    node_of(NODE_WORKER, "w", &main_model);
    struct fake_node *s = node_of(NODE_SPECULATOR, "s", &main_model), *new_worker = node_of(NODE_WORKER, "new-w", NULL);
    node_of(NODE_SPECULATOR, "new-s", NULL);
    ck_assert(!is_speculated(512, 0.3));
    for (int i = 0; i < 3; i++)
        teach(s, &small_model);
    ck_assert(is_speculated(512, 0.3));
    // Its cost is assumed to equal that of the other node: two nodes share the waiting work.
    ck_refused(submit(100, PREFILL_OFF, 10500), "about 11 ms (0 ms for requests ahead, 11 ms for this prompt)");
    struct client *on[4];
    for (int i = 0; i < 4; i++)
        on[i] = send(512, PREFILL_OFF);
    ck_assert_ptr_nonnull(on[3]->r->account.node);
    ck_assert_int_eq(new_worker->bins, 2);
    ck_refused(submit(100, PREFILL_OFF, 114000), "about 115 ms (104 ms for requests ahead, 11 ms for this prompt)");
    cancel(submit(100, PREFILL_OFF, 117000));
}
END_TEST

// Decodes on the same node keep its passes small.
START_TEST(a_length_is_known_from_prompts_computed_in_small_passes)
{
    struct fake_node *w = node_of(NODE_WORKER, "w", NULL);
    node_of(NODE_SPECULATOR, "s", &small_model);
    struct client *whole = send(100, PREFILL_OFF);
    for (int cached = 0; cached < 100; cached += 20) {
        struct pass_cost pass = {20, 20 * cached + 20 * 21 / 2, 3000, false};
        core_passed(f.c, w->node, &pass, f.now_us);
    }
    ck_assert(!is_speculated(400, 0.3));
    fake_node_step(&f, w, whole, 0, 1, -1);
    ck_assert(is_speculated(400, 0.3));
    ck_assert(!is_speculated(401, 0.3)); // more than four times the longest one seen
    fixture_advance(&f, 601 * (int64_t)SECOND);
    core_passed(f.c, w->node, &(struct pass_cost){20, 210, 3000, false}, f.now_us);
    ck_assert(!cost_knows(&w->node->sched.cost, 400, f.now_us));
}
END_TEST

// --- deadlines

START_TEST(a_deadline_that_has_passed_is_refused_immediately)
{
    node_of(NODE_WORKER, "w", NULL);
    ck_refused(submit(100, PREFILL_OFF, -1), "had passed");
    struct client *just_now = fixture_request(&f, 100, 4);
    just_now->r->spec.ttft_deadline_us = f.now_us;
    fixture_submit(&f, just_now);
    ck_refused(just_now, "had passed");
    ck_assert_int_eq(submit(100, PREFILL_OFF, 1)->ends, 0); // the time it needs is not known
    struct core_status status = fixture_status(&f);
    ck_assert_uint_eq(status.totals.refused, 2);
    ck_assert_int_eq(status.waiting, 1);
    core_status_fini(&status);
}
END_TEST

START_TEST(a_request_that_would_miss_its_deadline_is_refused)
{
    struct fake_node *w = node_of(NODE_WORKER, "w", &main_model);
    struct client *late = submit(100, PREFILL_OFF, 10500); // 11 ms
    ck_refused(late, "about 11 ms (0 ms for requests ahead, 11 ms for this prompt), and ttft_deadline_ms leaves 10");
    struct client *called = fixture_request(&f, 100, 4);
    called->r->spec.prefill.mode = PREFILL_OFF;
    called->r->spec.ttft_deadline_us = f.now_us + 10500;
    called->r->spec.deadline_of_call = true;
    fixture_submit(&f, called);
    ck_refused(called, "11 ms for this prompt), and the call's deadline leaves 10");
    struct client *in_time = submit(100, PREFILL_OFF, 11500);
    ck_assert_int_eq(in_time->ends, 0);
    cancel(in_time);
    // A request waits for two bins of 52 ms each.
    struct client *on[2] = {send(512, PREFILL_OFF), send(512, PREFILL_OFF)};
    ck_assert(fake_node_has(w, on[0]));
    ck_assert(fake_node_has(w, on[1]));
    ck_refused(submit(100, PREFILL_OFF, 114000), "about 115 ms (104 ms for requests ahead, 11 ms for this prompt)");
    cancel(submit(100, PREFILL_OFF, 117000));
    // Waiting requests without a deadline do not precede a request that is due sooner.
    struct client *waiting[2] = {send(512, PREFILL_OFF), send(512, PREFILL_OFF)};
    in_time = submit(100, PREFILL_OFF, 117000);
    ck_assert_int_eq(in_time->ends, 0);
    cancel(in_time);
    cancel(waiting[0]);
    cancel(waiting[1]);
    // Requests with an earlier deadline precede it, unless it has a higher priority.
    for (int i = 0; i < 2; i++) {
        waiting[i] = submit(512, PREFILL_OFF, 225000);
        ck_assert_int_eq(waiting[i]->ends, 0);
    }
    ck_refused(submit(100, PREFILL_OFF, 219000), "about 220 ms (209 ms for requests ahead");
    struct client *important = fixture_request(&f, 100, 4);
    important->r->spec.prefill.mode = PREFILL_OFF;
    important->r->spec.ttft_deadline_us = f.now_us + 219000;
    important->r->spec.priority = 1;
    fixture_submit(&f, important);
    ck_assert_int_eq(important->ends, 0);
    // Another group shares the waiting work.
    node_of(NODE_WORKER, "v", &main_model);
    ck_assert_int_eq(submit(100, PREFILL_OFF, 219000)->ends, 0);
}
END_TEST

START_TEST(a_speculated_request_is_refused_by_the_time_of_speculation)
{
    node_of(NODE_WORKER, "w", &main_model);
    node_of(NODE_SPECULATOR, "s", &small_model);
    // 512 tokens: scored in 6.8 ms, 170 kept: 18 ms; whole it would be 52 ms.
    ck_refused(submit(512, PREFILL_AUTO, 24300), "about 25 ms (0 ms for requests ahead, 25 ms for this prompt)");
    ck_assert_int_eq(submit(512, PREFILL_AUTO, 26000)->ends, 0);
    ck_refused(submit(512, PREFILL_OFF, 26000), "about 52 ms");
}
END_TEST

START_TEST(a_request_near_its_deadline_is_overdue)
{
    struct fake_node *w = node_of(NODE_WORKER, "w", &main_model);
    struct client *on[2] = {send(512, PREFILL_OFF), send(512, PREFILL_OFF)}, *filler = send(400, PREFILL_OFF);
    struct client *later = submit(100, PREFILL_OFF, 400000), *sooner = submit(200, PREFILL_OFF, 380000),
                  *never = submit(100, PREFILL_OFF, 5000000);
    // The deadline less the time of the request and the time of a bin.
    ck_assert_int_lt(llabs(later->r->sched.due_us - (f.now_us + 400000 - 11000 - 52200)), 1000);
    ck_assert_int_lt(llabs(sooner->r->sched.due_us - (f.now_us + 380000 - 21000 - 52200)), 1000);
    ck_assert_int_eq(never->r->sched.due_us, f.now_us + SECOND);
    fixture_advance(&f, 0);
    ck_assert_int_eq(core_next_deadline_us(f.c), sooner->r->sched.due_us);
    fixture_advance(&f, 330000);
    ck_assert(sooner->r->sched.overdue);
    ck_assert(!later->r->sched.overdue);
    ck_assert(!filler->r->sched.overdue);
    fixture_advance(&f, 10000);
    ck_assert(later->r->sched.overdue);
    ck_assert(!never->r->sched.overdue);
    ck_assert(!filler->r->sched.overdue);
    fake_node_step(&f, w, on[0], 0, 1, FINISH_REASON_STOP);
    ck_assert(fake_node_has(w, sooner));
    ck_assert(fake_node_has(w, later));
    ck_assert_ptr_null(filler->r->account.node);
    ck_assert_ptr_nonnull(on[1]->r->account.node);
}
END_TEST

START_TEST(among_overdue_requests_the_earliest_deadline_goes_first)
{
    struct fake_node *w = node_of(NODE_WORKER, "w", &main_model);
    struct client *on[2] = {send(512, PREFILL_OFF), send(512, PREFILL_OFF)};
    struct client *filler = send(512, PREFILL_OFF); // would be first by length
    struct client *last = submit(300, PREFILL_OFF, 320000), *first = submit(301, PREFILL_OFF, 300000),
                  *second = submit(302, PREFILL_OFF, 310000);
    fixture_advance(&f, 240000);
    ck_assert(first->r->sched.overdue);
    ck_assert(second->r->sched.overdue);
    ck_assert(last->r->sched.overdue);
    ck_assert(!filler->r->sched.overdue);
    struct client *order[] = {first, second, last}; // no two fit into a bin
    for (int i = 0; i < 3; i++) {
        fake_node_step(&f, w, i < 2 ? on[i] : order[0], 0, 1, FINISH_REASON_STOP);
        for (int k = 0; k < 3; k++)
            ck_assert_msg((order[k]->ends || order[k]->r->account.node) == (k <= i), "step %d, request %d", i, k);
    }
    ck_assert(!filler->r->account.node);
}
END_TEST

START_TEST(a_request_that_cannot_meet_its_deadline_goes_before_no_other)
{
    node_of(NODE_WORKER, "w", &main_model);
    struct fake_node *s = node_of(NODE_SPECULATOR, "s", &small_model);
    struct client *late = submit(512, PREFILL_ON, 60000), *in_time = submit(512, PREFILL_ON, 90000);
    fixture_advance(&f, 30000); // 7 ms were expected
    send(512, PREFILL_OFF);
    send(512, PREFILL_OFF);
    fake_node_score(&f, s, late, 0, 399); // 41 ms more
    fake_node_score(&f, s, in_time, 0, 399);
    ck_assert_int_eq(late->r->state, REQUEST_READY);
    ck_assert(!late->r->sched.overdue);
    ck_assert(in_time->r->sched.overdue);
    ck_assert_int_eq(late->r->sched.due_us, f.now_us + SECOND - late->r->timing.queue_us); // as without a deadline
}
END_TEST

START_TEST(while_costs_are_unknown_half_of_the_time_is_reserved_for_the_request)
{
    struct fake_node *w = node_of(NODE_WORKER, "w", NULL);
    send(512, PREFILL_OFF);
    struct client *client = submit(100, PREFILL_OFF, 300000);
    fixture_advance(&f, 149999);
    ck_assert(!client->r->sched.overdue);
    ck_assert_ptr_null(client->r->account.node);
    fixture_advance(&f, 1);
    ck_assert(fake_node_has(w, client));
}
END_TEST

START_TEST(expected_times_that_no_node_can_take_are_bounded)
{
    struct fake_node *w = worker_with_wrong_clock();
    const struct cost_model *cost = &w->node->sched.cost;
    double rows = w->node->hello.token_budget;
    ck_assert_double_gt(cost_pass_us(cost, 1, rows, cost_pairs(rows, 0)), 0x1p63);
    struct client *client = submit(1, PREFILL_OFF, (int64_t)400 * SECOND);
    ck_assert_int_ge(client->r->sched.due_us, 0);
    ck_assert_int_le(client->r->sched.due_us, f.now_us);
    fixture_advance(&f, SECOND);
    ck_assert(fake_node_has(w, client));
}
END_TEST

// --- which node, and how much

START_TEST(a_bin_goes_to_the_group_that_finishes_it_first)
{
    const struct truth fast = {100, 10, 0}, slow = {100, 100, 0};
    struct fake_node *a = node_of(NODE_WORKER, "a", &slow), *b = node_of(NODE_WORKER, "b", &fast);
    struct client *first = send(512, PREFILL_OFF); // 5 ms there, 51 ms here
    ck_assert(fake_node_has(b, first));
    struct client *second = send(300, PREFILL_OFF); // 8 ms after that one, 30 ms at the idle group
    ck_assert(fake_node_has(b, second));
    struct client *third = send(300, PREFILL_OFF); // bins_ahead is 2
    ck_assert(fake_node_has(a, third));
    // While the cost of one group is unknown, tokens decide: the idle group is first.
    cancel(second);
    cancel(third);
    struct fake_node *c = node_of(NODE_WORKER, "c", NULL);
    core_draining(f.c, a->node, "", f.now_us);
    struct client *fourth = send(300, PREFILL_OFF);
    ck_assert(fake_node_has(c, fourth));
}
END_TEST

// If decodes were ignored, the slightly faster group would get all requests.
START_TEST(decodes_make_a_group_slower)
{
    const struct truth faster = {1000, 100, 0}, slower = {1000, 103, 0};
    struct fake_node *a = node_of(NODE_WORKER, "a", &faster), *b = node_of(NODE_WORKER, "b", &slower);
    int n_a = 0;
    for (int i = 0; i < 20; i++) {
        struct client *client = send(100, PREFILL_OFF); // 11 ms or 11.3, and 0.1 for each decode
        struct fake_node *on = fake_node_has(a, client) ? a : b;
        fake_node_step(&f, on, client, 0, 1, -1);
        n_a += on == a;
    }
    ck_assert_int_ge(n_a, 11);
    ck_assert_int_le(n_a, 13);
    ck_assert_int_eq(a->n_requests + b->n_requests, 20);
}
END_TEST

START_TEST(a_request_does_not_wait_for_a_cached_prefix_that_saves_no_time)
{
    const struct truth fast = {100, 10, 0}, slow = {100, 100, 0};
    struct node_hello hello = fixture_hello(NODE_WORKER, "slow");
    hello.prefix_cache = true;
    struct fake_node *holder = fixture_attach(&f, &hello);
    struct client *first = send(450, PREFILL_OFF), *again = NULL;
    fake_node_step(&f, holder, first, 0, 1, FINISH_REASON_STOP);
    strcpy(hello.node_id, "fast");
    struct fake_node *other = fixture_attach(&f, &hello);
    again = send(450, PREFILL_OFF); // the same prompt: 2 rows are left to compute there
    ck_assert(fake_node_has(holder, again));
    fake_node_step(&f, holder, again, 0, 1, FINISH_REASON_STOP);
    teach(holder, &slow);
    teach(other, &fast);
    again = fixture_request(&f, 900, 4); // 452 rows at the holder: 45 ms; 900 at the other: 9 ms
    again->r->spec.prefill.mode = PREFILL_OFF;
    fixture_submit(&f, again);
    ck_assert_int_eq(sched_request_rows_on(&again->r->sched, &holder->node->sched), 900 - 448);
    fixture_advance(&f, 0);
    ck_assert(fake_node_has(other, again));
}
END_TEST

START_TEST(a_bin_is_large_enough_when_the_fixed_cost_is_an_eighth_of_its_pass)
{
    struct fake_node *w = node_of(NODE_WORKER, "w", &main_model); // 7 * 1000 / 100: 70 rows
    send(512, PREFILL_OFF);
    struct client *a = send(40, PREFILL_OFF), *b = send(25, PREFILL_OFF);
    ck_assert_ptr_null(a->r->account.node);
    ck_assert_ptr_null(b->r->account.node);
    struct client *c = send(10, PREFILL_OFF);
    ck_assert(fake_node_has(w, a));
    ck_assert(fake_node_has(w, b));
    ck_assert(fake_node_has(w, c));
    ck_assert_int_eq(w->bins, 2);
    ck_assert_int_eq(w->last_bin_items, 3);
}
END_TEST

START_TEST(a_costly_pass_waits_for_half_a_bin_at_most_and_not_on_an_idle_node)
{
    const struct truth dear = {100000, 100, 0};
    struct fake_node *w = node_of(NODE_WORKER, "w", &dear);
    struct client *idle = send(1, PREFILL_OFF);
    ck_assert(fake_node_has(w, idle));
    struct client *a = send(255, PREFILL_OFF);
    ck_assert(!a->r->account.node);
    struct client *b = send(1, PREFILL_OFF);
    ck_assert(fake_node_has(w, a));
    ck_assert(fake_node_has(w, b));
}
END_TEST

// The index knows the context that a request needs.
START_TEST(an_idle_node_gets_the_one_request_it_can_hold_among_many_it_cannot)
{
    f.options.max_queue_requests = 10000;
    restart();
    struct node_hello hello = fixture_hello(NODE_WORKER, "short");
    hello.context_tokens = 80;
    struct fake_node *little = fixture_attach(&f, &hello);
    struct fake_node *big = node_of(NODE_WORKER, "long", NULL);
    for (int i = 0; i < 5000; i++)
        submit(100, PREFILL_OFF, 0);
    fixture_advance(&f, 0);
    ck_assert_int_eq(big->bins, 2);
    ck_assert_int_eq(little->bins, 0);
    uint64_t scan_cost = f.c->ledger.bins[NODE_WORKER].scan_cost;
    struct client *first = send(20, PREFILL_OFF);
    ck_assert(fake_node_has(little, first));
    ck_assert_uint_le(f.c->ledger.bins[NODE_WORKER].scan_cost, scan_cost + 8);
}
END_TEST

SUITE("core_cost")
{
    FIXTURE(setup, teardown);
    EACH(a_prompt_is_speculated_if_its_first_token_comes_sooner, pairs_of_nodes);
    TEST(the_first_requests_of_a_new_cluster_are_predicted_and_pruned);
    TEST(the_first_request_of_a_new_cluster_is_kept_whole_if_that_is_faster);
    TEST(measured_passes_that_no_node_can_have_teach_nothing);
    TEST(a_request_has_both_predicted_times_if_they_were_compared);
    TEST(waiting_for_a_speculator_counts_and_so_does_waiting_for_a_worker_group);
    TEST(a_group_without_blocks_for_the_whole_prompt_does_not_keep_it_whole);
    TEST(forgotten_costs_are_measured_again);
    TEST(while_speculator_costs_are_unknown_one_prompt_at_a_time_is_scored);
    TEST(worker_costs_are_learned_from_whole_prompts);
    TEST(a_node_without_known_costs_counts_as_the_cheapest_known_one);
    TEST(a_length_is_known_from_prompts_computed_in_small_passes);
    TEST(a_deadline_that_has_passed_is_refused_immediately);
    TEST(a_request_that_would_miss_its_deadline_is_refused);
    TEST(a_speculated_request_is_refused_by_the_time_of_speculation);
    TEST(a_request_near_its_deadline_is_overdue);
    TEST(among_overdue_requests_the_earliest_deadline_goes_first);
    TEST(a_request_that_cannot_meet_its_deadline_goes_before_no_other);
    TEST(while_costs_are_unknown_half_of_the_time_is_reserved_for_the_request);
    TEST(expected_times_that_no_node_can_take_are_bounded);
    TEST(a_bin_goes_to_the_group_that_finishes_it_first);
    TEST(decodes_make_a_group_slower);
    TEST(a_request_does_not_wait_for_a_cached_prefix_that_saves_no_time);
    TEST(a_bin_is_large_enough_when_the_fixed_cost_is_an_eighth_of_its_pass);
    TEST(a_costly_pass_waits_for_half_a_bin_at_most_and_not_on_an_idle_node);
    TEST(an_idle_node_gets_the_one_request_it_can_hold_among_many_it_cannot);
}
