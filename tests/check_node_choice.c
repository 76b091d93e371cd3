// SPDX-License-Identifier: Apache-2.0
// router/sched/node_index: the node that gets the next bin is found without examining all nodes. The tests count the
// nodes that are asked and the steps of the searches.
#include <stdio.h>
#include <stdlib.h>

#include "lib/base/mem.h"
#include "router/core/core_state.h"
#include "tests/core_fixture.h"
#include "tests/suite.h"

enum { NODES = 1000, ROUNDS = 300, WAITING = 20000, SEARCH_STEPS = 30 };

static struct fixture f;
static struct fake_node *nodes[NODES];

static void setup_nodes(void)
{
    fixture_init(&f);
    f.options.max_queue_requests = 10 * WAITING;
    f.options.max_queue_tokens = INT64_MAX / 2;
    fixture_start(&f);
    for (int i = 0; i < NODES; i++) {
        struct node_hello hello = fixture_hello(NODE_WORKER, "");
        snprintf(hello.node_id, sizeof hello.node_id, "group-%d", i);
        nodes[i] = mem_alloc(sizeof *nodes[i]);
        snprintf(nodes[i]->id, sizeof nodes[i]->id, "group-%d", i);
        ck_assert_int_eq(core_attach(f.c, &hello, nodes[i], f.now_us, &nodes[i]->node), STATUS_OK);
    }
}

static void teardown_nodes(void)
{
    fixture_stop(&f);
    for (int i = 0; i < NODES; i++)
        free(nodes[i]);
}

static struct client *client_of(uint64_t number) // fixture_find walks all clients
{
    return request_table_find(&f.c->table, number)->sink.user;
}

static struct node_index counts(void)
{
    return f.c->nodes[NODE_WORKER];
}

static void give_each_node(int n_tokens)
{
    for (int i = 0; i < NODES; i++) {
        struct client *client = fixture_request(&f, n_tokens, 100);
        client->r->spec.prefill.mode = PREFILL_OFF;
        fixture_submit(&f, client);
    }
    fixture_advance(&f, 0);
}

// Each node has a sequence that decodes and an outstanding bin. One request waits, which is too small for another bin.
START_TEST(a_small_request_costs_no_visits_of_busy_nodes)
{
    give_each_node(300);
    struct client *decoding[NODES];
    for (int i = 0; i < NODES; i++) {
        ck_assert_int_eq(nodes[i]->n_requests, 1);
        decoding[i] = client_of(nodes[i]->requests[0]);
        fake_node_step(&f, nodes[i], decoding[i], 0, 1, -1);
    }
    give_each_node(300);
    struct client *small = fixture_send(&f, 20, 4);
    ck_assert(!small->r->account.node);
    struct node_index from = counts();
    for (int round = 1; round <= ROUNDS; round++)
        fake_node_step(&f, nodes[round], decoding[round], 1, 1, -1);
    struct node_index to = counts();
    printf("%d events beside a small request: %llu nodes asked, %llu search steps\n", ROUNDS,
           (unsigned long long)(to.plans - from.plans), (unsigned long long)(to.visits - from.visits));
    ck_assert_uint_eq(to.plans, from.plans);
    ck_assert_uint_le(to.visits - from.visits, 2 * ROUNDS);
    fixture_advance(&f, SECOND); // overdue, it goes to the first node that is asked
    ck_assert(small->r->account.node);
    ck_assert_uint_eq(counts().plans, from.plans + 1);
}
END_TEST

// No node has a free sequence slot, or room for another bin, for the waiting requests, overdue or not.
START_TEST(full_nodes_are_not_asked)
{
    for (int i = 0; i < 3; i++)
        give_each_node(400);
    fixture_advance(&f, _i * SECOND);
    ck_assert_int_eq(waiting_set_count(&f.c->waiting[NODE_WORKER]), NODES);
    struct node_index from = counts();
    for (int i = 0; i < ROUNDS; i++)
        fixture_send(&f, 20 + i, 4);
    struct node_index to = counts();
    ck_assert_uint_eq(to.plans, from.plans);
    ck_assert_uint_le(to.visits - from.visits, 20 * ROUNDS);
}
END_TEST

// All nodes have free slots, but none has the KV blocks that the overdue requests need.
START_TEST(nodes_without_kv_blocks_are_not_asked)
{
    enum { EACH = 5 };               // of 188 blocks; a node has 1,024
    for (int k = 0; k < EACH; k++) { // long prompts come one at a time
        give_each_node(3000);
        for (int i = 0; i < NODES; i++)
            fake_node_step(&f, nodes[i], client_of(nodes[i]->requests[k]), 0, 1, -1);
    }
    for (int i = 0; i < ROUNDS; i++)
        fixture_put(&f, NULL, 3000, 0);
    fixture_advance(&f, SECOND);
    ck_assert_int_eq(f.c->waiting[NODE_WORKER].overdue.count, ROUNDS);
    struct node_index from = counts();
    for (int i = 0; i < ROUNDS; i++)
        fake_node_step(&f, nodes[i], client_of(nodes[i]->requests[i % EACH]), 1, 1, -1);
    struct node_index to = counts();
    printf("%d events beside nodes without blocks: %llu nodes asked, %llu search steps\n", ROUNDS,
           (unsigned long long)(to.plans - from.plans), (unsigned long long)(to.visits - from.visits));
    ck_assert_uint_le(to.plans - from.plans, 4);
    ck_assert_uint_le(to.visits - from.visits, 20 * ROUNDS);
}
END_TEST

// Thousands of requests of any length are sent to a thousand nodes, with one plan and a short search per bin.
START_TEST(a_bin_costs_one_plan_and_a_short_search)
{
    uint32_t random = 7;
    for (int i = 0; i < WAITING; i++) {
        random = random * 1664525u + 1013904223u;
        fixture_put(&f, NULL, 1 + (int)((random >> 16) % 700), 0);
    }
    fixture_advance(&f, 0);
    for (int i = 0; waiting_set_count(&f.c->waiting[NODE_WORKER]); i = (i + 1) % NODES) {
        for (int k = nodes[i]->n_requests; k; k--) {
            struct client *client = client_of(nodes[i]->requests[0]);
            fake_node_step(&f, nodes[i], client, 0, 1, FINISH_REASON_STOP);
        }
    }
    uint64_t bins = f.c->ledger.bins[NODE_WORKER].bins, scan_cost = f.c->ledger.bins[NODE_WORKER].scan_cost;
    printf("%llu bins: %llu nodes asked, %llu search steps, scan cost %llu for %d requests\n", (unsigned long long)bins,
           (unsigned long long)counts().plans, (unsigned long long)counts().visits, (unsigned long long)scan_cost,
           (int)WAITING);
    ck_assert_uint_gt(bins, 10000);
    ck_assert_uint_le(counts().plans, 2 * bins);
    ck_assert_uint_le(counts().visits, SEARCH_STEPS * bins);
    ck_assert_uint_le(scan_cost, 4 * WAITING);
}
END_TEST

SUITE("node_choice")
{
    TIMEOUT(60);
    FIXTURE(setup_nodes, teardown_nodes);
    TEST(a_small_request_costs_no_visits_of_busy_nodes);
    LOOP(full_nodes_are_not_asked, 0, 2);
    TEST(nodes_without_kv_blocks_are_not_asked);
    TEST(a_bin_costs_one_plan_and_a_short_search);
}
