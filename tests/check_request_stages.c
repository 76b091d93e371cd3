// SPDX-License-Identifier: Apache-2.0
// core/request_stages: the node, the bin and the obstacle that a request met in each pool, and the predicted times of a
// request whose mode needs none.
#include "router/core/request_stages.h"
#include "tests/core_case.h"
#include "tests/suite.h"

static struct fake_node *node(enum node_role role, const char *id, int token_budget, int kv_blocks)
{
    struct node_hello hello = fixture_hello(role, id);
    hello.token_budget = token_budget;
    hello.kv_blocks = kv_blocks;
    return fixture_attach(&f, &hello);
}

// Submits a request without a tick, so that several requests are packed together.
static const struct request *put(int n_tokens, enum prefill_mode mode, bool explain)
{
    struct client *client = fixture_request(&f, n_tokens, 4);
    client->r->spec.prefill.mode = mode;
    client->r->spec.explain = explain;
    fixture_submit(&f, client);
    return client->r;
}

static const struct request_stage *stage(const struct request *r, enum node_role role)
{
    ck_assert_ptr_nonnull(r->stages);
    return &r->stages[role];
}

static const struct request_stage *on_worker(const struct request *r)
{
    return stage(r, NODE_WORKER);
}

START_TEST(a_bin_counts_all_its_requests)
{
    node(NODE_WORKER, "w", 512, 1024);
    const struct request *a = put(100, PREFILL_OFF, true), *b = put(50, PREFILL_OFF, true);
    put(7, PREFILL_OFF, false);
    fixture_advance(&f, 0);
    ck_assert_str_eq(on_worker(a)->node_id, "w");
    ck_assert_int_eq(on_worker(a)->bin_requests, 3);
    ck_assert_int_eq(on_worker(a)->bin_rows, 157);
    ck_assert_int_eq(on_worker(a)->token_budget, 512);
    ck_assert_int_eq(on_worker(a)->wait, STAGE_WAIT_NONE);
    ck_assert_int_eq(on_worker(b)->wait, STAGE_WAIT_QUEUE);
    ck_assert_int_eq(on_worker(b)->waiting, 1);
    ck_assert_ptr_null(stage(a, NODE_SPECULATOR)->node_id);
}
END_TEST

START_TEST(a_speculator_and_a_worker_group_are_named)
{
    struct fake_node *s = node(NODE_SPECULATOR, "s", 512, 1024);
    node(NODE_WORKER, "w", 512, 1024);
    struct client *client = fixture_request(&f, 100, 4);
    client->r->spec.prefill.mode = PREFILL_ON;
    client->r->spec.explain = true;
    fixture_submit(&f, client);
    fixture_advance(&f, 0);
    fake_node_score(&f, s, client, 0, 29);
    ck_assert_str_eq(stage(client->r, NODE_SPECULATOR)->node_id, "s");
    ck_assert_int_eq(stage(client->r, NODE_SPECULATOR)->bin_rows, 100);
    ck_assert_str_eq(on_worker(client->r)->node_id, "w");
    ck_assert_int_eq(on_worker(client->r)->bin_rows, 30);
}
END_TEST

START_TEST(an_obstacle_is_the_smallest_of_all_nodes)
{
    node(NODE_WORKER, "large", 512, 1024);
    put(8, PREFILL_OFF, false);
    fixture_advance(&f, 0);
    const struct request *busy = put(10, PREFILL_OFF, true), *queue = put(1, PREFILL_OFF, true);
    fixture_advance(&f, 0);
    ck_assert_int_eq(on_worker(busy)->wait, STAGE_WAIT_BUSY);
    ck_assert_ptr_null(on_worker(busy)->node_id);
    ck_assert_int_eq(on_worker(queue)->wait, STAGE_WAIT_BUSY); // a wait that the queue does not cause
    ck_assert_int_eq(on_worker(queue)->waiting, 1);
    node(NODE_WORKER, "small", 512, 8); // 128 tokens
    fixture_advance(&f, 0);
    ck_assert_str_eq(on_worker(busy)->node_id, "small");
    node(NODE_WORKER, "other", 512, 8);
    const struct request *none = put(10, PREFILL_OFF, true);
    fixture_advance(&f, 0);
    ck_assert_int_eq(on_worker(none)->wait, STAGE_WAIT_NONE);
    const struct request *long_prompt = put(200, PREFILL_OFF, true);
    ck_assert_int_eq(on_worker(long_prompt)->wait, STAGE_WAIT_BUSY); // the small ones cannot hold it
}
END_TEST

START_TEST(no_node_is_an_obstacle)
{
    struct fake_node *w = node(NODE_WORKER, "w", 512, 1024);
    fixture_detach(&f, w);
    const struct request *r = put(10, PREFILL_OFF, true);
    fixture_advance(&f, 0);
    ck_assert_int_eq(on_worker(r)->wait, STAGE_WAIT_NO_NODE);
    ck_assert_ptr_null(on_worker(r)->node_id);
}
END_TEST

START_TEST(blocks_and_outstanding_bins_are_obstacles)
{
    node(NODE_WORKER, "w", 512, 40);
    put(500, PREFILL_OFF, false); // 32 blocks
    fixture_advance(&f, 0);
    const struct request *blocks = put(300, PREFILL_OFF, true);
    ck_assert_int_eq(on_worker(blocks)->wait, STAGE_WAIT_BLOCKS);
    node(NODE_WORKER, "x", 64, 1024);
    for (int i = 0; i < 4; i++) { // both nodes get all their outstanding bins
        put(64, PREFILL_OFF, false);
        fixture_advance(&f, 0);
    }
    const struct request *room = put(300, PREFILL_OFF, true);
    ck_assert_int_eq(on_worker(room)->wait, STAGE_WAIT_ROOM);
}
END_TEST

START_TEST(nothing_is_recorded_for_other_requests)
{
    node(NODE_WORKER, "w", 512, 1024);
    const struct request *r = put(10, PREFILL_OFF, false);
    fixture_advance(&f, 0);
    ck_assert_ptr_null(r->stages);
    ck_assert_double_eq(r->predicted.whole_us, 0);
}
END_TEST

START_TEST(the_time_of_the_whole_prompt_is_predicted_in_every_mode)
{
    struct fake_node *w = node(NODE_WORKER, "w", 512, 1024);
    for (int i = 0; i < 200; i++) { // 1 ms, and 10 us for each row
        int rows = 1 << i % 10;
        int64_t pairs = (int64_t)rows * (rows + 1) / 2 + i % 3 * 200 * rows;
        core_passed(f.c, w->node, &(struct pass_cost){rows, pairs, 1000 + 10 * rows, false}, f.now_us);
    }
    fixture_advance(&f, 0);
    const struct request *off = put(100, PREFILL_OFF, true), *silent = put(100, PREFILL_OFF, false);
    ck_assert_double_eq_tol(off->predicted.whole_us, 2000, 100);
    ck_assert_double_eq(off->predicted.pruned_us, 0); // no speculator is attached
    ck_assert_double_eq(silent->predicted.whole_us, 0);
}
END_TEST

SUITE("request_stages")
{
    FIXTURE(setup, teardown);
    TEST(a_bin_counts_all_its_requests);
    TEST(a_speculator_and_a_worker_group_are_named);
    TEST(an_obstacle_is_the_smallest_of_all_nodes);
    TEST(no_node_is_an_obstacle);
    TEST(blocks_and_outstanding_bins_are_obstacles);
    TEST(nothing_is_recorded_for_other_requests);
    TEST(the_time_of_the_whole_prompt_is_predicted_in_every_mode);
}
