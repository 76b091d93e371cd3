// SPDX-License-Identifier: Apache-2.0
// router/core: what autoscalers see of a pool, in virtual time. The predicted time of its queue is compared with the
// time that the queue took, and busy time with the passes that nodes reported.
#include <math.h>
#include <stdlib.h>

#include "router/core/core_metrics.h"
#include "tests/core_case.h"
#include "tests/suite.h"

enum { FIXED_US = 1000, ROW_US = 100 };

static struct pool_metrics pool_of(enum node_role role)
{
    struct pool_metrics pools[NODE_ROLES];
    core_get_pools(f.c, f.now_us, pools);
    return pools[role];
}

static void pass(struct fake_node *node, int rows)
{
    const struct pass_cost cost = {rows, (int64_t)rows * (rows + 1) / 2, FIXED_US + ROW_US * rows, false};
    fixture_advance(&f, cost.us);
    core_passed(f.c, node->node, &cost, f.now_us);
    fixture_advance(&f, 0);
}

static struct fake_node *worker(const char *id, int max_seqs, bool known)
{
    struct node_hello hello = fixture_hello(NODE_WORKER, id);
    hello.max_seqs = max_seqs;
    struct fake_node *node = fixture_attach(&f, &hello);
    for (int i = 0; i < 200 && known; i++)
        pass(node, 1 << i % 10);
    return node;
}

static void put(int n, int n_tokens)
{
    for (int i = 0; i < n; i++)
        fixture_put(&f, NULL, n_tokens, 0);
    fixture_advance(&f, 0);
}

static void ck_near(double expected, double got, double share)
{
    ck_assert_msg(fabs(got - expected) <= share * expected, "expected %g, got %g", expected, got);
}

START_TEST(an_empty_queue_takes_no_time)
{
    ck_assert(pool_of(NODE_WORKER).queue_us == 0);
    ck_assert(pool_of(NODE_SPECULATOR).queue_us == 0);
    worker("w", 64, false);
    struct pool_metrics pool = pool_of(NODE_WORKER);
    ck_assert(pool.queue_us == 0);
    ck_assert_int_eq(pool.nodes, 1);
    ck_assert_int_eq(pool.waiting, 0);
    ck_assert_int_eq(pool.waiting_rows, 0);
}
END_TEST

START_TEST(while_no_node_takes_work_the_time_is_unknown)
{
    struct fake_node *w = worker("w", 1, true);
    put(10, 100);
    struct pool_metrics pool = pool_of(NODE_WORKER);
    ck_assert(isfinite(pool.queue_us));
    ck_assert_int_eq(pool.waiting, 9);
    ck_assert_int_eq(pool.waiting_rows, 900);
    ck_assert_int_eq(pool.running, 1);
    core_draining(f.c, w->node, "", f.now_us);
    pool = pool_of(NODE_WORKER);
    ck_assert(isinf(pool.queue_us));
    ck_assert_int_eq(pool.nodes, 0);
    ck_assert_int_eq(pool.waiting, 9);
}
END_TEST

// Two nodes compute prompts alone. The costs of passes predict the time before any request has waited.
START_TEST(a_queue_that_waits_for_prefill)
{
    struct fake_node *nodes[] = {worker("v", 64, true), worker("w", 64, true)};
    put(400, 100);
    double predicted_us = pool_of(NODE_WORKER).queue_us, work_us = pool_of(NODE_WORKER).work_us;
    ck_assert(predicted_us > 0);
    ck_assert(work_us >= predicted_us);
    int64_t start_us = f.now_us;
    while (pool_of(NODE_WORKER).waiting) {
        int64_t bin_us = FIXED_US + ROW_US * nodes[0]->last_bin_rows;
        fixture_advance(&f, bin_us); // both together
        for (int k = 0; k < 2; k++)
            if (nodes[k]->n_requests) fake_node_finish_oldest_bin(&f, nodes[k]);
    }
    ck_near((double)(f.now_us - start_us), predicted_us, 0.1);
}
END_TEST

// Serves a request every half second on a node with short passes. Only the measured speed shows how long a queue takes.
static void serve(struct fake_node *node, int n)
{
    for (int i = 0; i < n; i++) {
        fixture_advance(&f, SECOND / 2);
        fake_node_step(&f, node, fixture_find(&f, node->requests[0]), 0, 1, FINISH_REASON_STOP);
    }
}

START_TEST(a_queue_that_waits_for_running_answers)
{
    struct fake_node *w = worker("w", 4, true);
    put(204, 100);
    ck_assert_int_eq(pool_of(NODE_WORKER).waiting, 200);
    ck_assert_double_lt(pool_of(NODE_WORKER).queue_us, 5e6); // from costs alone: nothing is measured yet
    serve(w, 20);
    for (int waiting = 180; waiting > 20; waiting -= 40) {
        ck_assert_int_eq(pool_of(NODE_WORKER).waiting, waiting);
        ck_near(waiting * 0.5e6, pool_of(NODE_WORKER).queue_us, 0.1);
        serve(w, 40);
    }
    put(50, 300); // longer prompts: tokens count
    struct pool_metrics pool = pool_of(NODE_WORKER);
    ck_near((double)pool.waiting_rows / 100 * 0.5e6, pool.queue_us, 0.1);
}
END_TEST

START_TEST(a_speed_that_was_measured_long_ago_is_forgotten)
{
    struct fake_node *w = worker("w", 4, true);
    put(40, 100);
    serve(w, 40);
    ck_assert_int_eq(pool_of(NODE_WORKER).waiting, 0);
    ck_assert(pool_of(NODE_WORKER).queue_us == 0);
    put(14, 100);
    ck_near(10 * 0.5e6, pool_of(NODE_WORKER).queue_us, 0.1);
    serve(w, 14);
    fixture_advance(&f, 300 * SECOND);
    for (int i = 0; i < 200; i++) // its costs are known again
        pass(w, 1 << i % 10);
    put(14, 100);
    ck_assert_double_lt(pool_of(NODE_WORKER).queue_us, 1e6);
}
END_TEST

START_TEST(busy_time_is_that_of_passes_and_goes_on_when_nodes_leave)
{
    worker("w", 64, false);
    fixture_advance(&f, SECOND);
    struct pool_metrics before = pool_of(NODE_WORKER);
    ck_assert_uint_eq(before.busy_us, 0);
    ck_assert(before.attached_us == SECOND);
    ck_assert_uint_eq(pool_of(NODE_SPECULATOR).attached_us, 0);
    struct fake_node *v = worker("v", 64, false);
    for (int i = 0; i < 10; i++) {
        pass(v, 90); // 10 ms
        fixture_advance(&f, 30000);
    }
    struct pool_metrics now = pool_of(NODE_WORKER);
    ck_assert_uint_eq(now.busy_us, 100000);
    ck_assert(now.attached_us - before.attached_us == 2 * 400000); // an eighth of two nodes
    fixture_detach(&f, v);
    fixture_advance(&f, SECOND);
    struct pool_metrics later = pool_of(NODE_WORKER);
    ck_assert_uint_eq(later.busy_us, now.busy_us);
    ck_assert_uint_eq(later.attached_us, now.attached_us + SECOND);
    v = worker("v", 64, false);
    pass(v, 90);
    ck_assert_uint_eq(pool_of(NODE_WORKER).busy_us, now.busy_us + 10000);
}
END_TEST

START_TEST(no_node_is_busier_than_the_time_it_was_attached)
{
    struct fake_node *w = worker("w", 64, false);
    fixture_advance(&f, 5000);
    core_passed(f.c, w->node, &(struct pass_cost){1, 1, 60 * SECOND, false}, f.now_us);
    ck_assert_uint_eq(pool_of(NODE_WORKER).busy_us, 5000);
    fixture_advance(&f, 5000);
    core_passed(f.c, w->node, &(struct pass_cost){1, 1, 4000, false}, f.now_us);
    struct pool_metrics pool = pool_of(NODE_WORKER);
    ck_assert(pool.busy_us <= pool.attached_us);
}
END_TEST

SUITE("pool_measures")
{
    FIXTURE(setup, teardown);
    TEST(an_empty_queue_takes_no_time);
    TEST(while_no_node_takes_work_the_time_is_unknown);
    TEST(a_queue_that_waits_for_prefill);
    TEST(a_queue_that_waits_for_running_answers);
    TEST(a_speed_that_was_measured_long_ago_is_forgotten);
    TEST(busy_time_is_that_of_passes_and_goes_on_when_nodes_leave);
    TEST(no_node_is_busier_than_the_time_it_was_attached);
}
