// SPDX-License-Identifier: Apache-2.0
// router/sched/estimate: the nodes that an admission examines. Their number does not grow with the pool, and in a large
// pool the estimate from this sample equals the estimate from all nodes.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "lib/base/mem.h"
#include "router/core/core_state.h"
#include "router/sched/estimate.h"
#include "tests/core_case.h"
#include "tests/suite.h"

enum { SMALL = 64, LARGE = 1024, NODES_MAX = 2 * LARGE + 2, PROMPT = 512, VISITS_MAX = 640 };

static struct fake_node *links; // [NODES_MAX] of all nodes
static int n_links;

static void attach(enum node_role role, int number)
{
    struct node_hello hello = fixture_hello(role, "node");
    snprintf(hello.node_id, sizeof hello.node_id, "node-%d", number);
    struct fake_node *link = &links[n_links++];
    ck_assert_int_eq(core_attach(f.c, &hello, link, f.now_us, &link->node), STATUS_OK);
    for (int i = 0; i < 24; i++) { // 1 ms and 10 us a row
        int64_t rows = 64 << i % 4;
        core_passed(f.c, link->node, &(struct pass_cost){rows, rows * (rows + 1) / 2, 1000 + 10 * rows, false},
                    f.now_us);
    }
}

static struct client *request(enum prefill_mode mode, int64_t deadline_us)
{
    struct client *client = fixture_request(&f, PROMPT, 4);
    client->r->spec.prefill.mode = mode;
    if (deadline_us) client->r->spec.ttft_deadline_us = f.now_us + deadline_us;
    return client;
}

static void free_links(void)
{
    free(links);
    links = NULL;
    n_links = 0;
}

// Returns the estimate for one more request in a pool of n worker groups, each with some requests.
static struct estimate estimate_of_pool(int n, int requests_of_each)
{
    teardown();
    free_links();
    links = mem_alloc_array(NODES_MAX, sizeof *links);
    fixture_init(&f);
    f.options.max_queue_tokens = INT64_MAX / 2;
    f.options.max_queue_requests = 100 * LARGE;
    fixture_start(&f);
    for (int i = 0; i < n; i++)
        attach(NODE_WORKER, i);
    for (int i = 0; i < n * requests_of_each; i++)
        fixture_submit(&f, request(PREFILL_OFF, 0));
    fixture_advance(&f, 0);
    struct client *one = request(PREFILL_OFF, SECOND);
    struct estimate estimate;
    ck_assert(estimate_first_token(&f.c->view, &one->r->sched, false, f.now_us, &estimate));
    fixture_submit(&f, one);
    return estimate;
}

START_TEST(some_nodes_of_a_large_pool_stand_for_all)
{
    for (int requests = 0; requests <= 3; requests += 3) {
        struct estimate small = estimate_of_pool(SMALL, requests), large = estimate_of_pool(LARGE, requests);
        printf("%d requests of each node: wait %.0f us, %.0f us in the large pool\n", requests, small.wait_us,
               large.wait_us);
        ck_assert((small.wait_us > 0) == (requests > 0));
        ck_assert(fabs(large.wait_us - small.wait_us) <= 0.05 * small.wait_us);
        ck_assert(fabs(large.own_us - small.own_us) <= 0.01 * small.own_us);
    }
}
END_TEST

START_TEST(an_idle_node_of_a_large_pool_is_found)
{
    struct estimate busy = estimate_of_pool(LARGE, 1), idle;
    ck_assert(busy.wait_us > 0);
    for (int i = 0; i < 2; i++) { // the first one gets the request of the estimate
        attach(NODE_WORKER, LARGE + i);
        fixture_advance(&f, 0);
    }
    struct client *one = request(PREFILL_OFF, SECOND);
    ck_assert(estimate_first_token(&f.c->view, &one->r->sched, false, f.now_us, &idle));
    fixture_submit(&f, one);
    ck_assert(!(idle.wait_us > 0));
}
END_TEST

static uint64_t visits(void)
{
    return f.c->nodes[NODE_WORKER].estimate_visits + f.c->nodes[NODE_SPECULATOR].estimate_visits;
}

START_TEST(an_admission_looks_at_a_bounded_number_of_nodes)
{
    estimate_of_pool(LARGE, 3);
    for (int i = 0; i < LARGE; i++)
        attach(NODE_SPECULATOR, LARGE + i);
    fixture_advance(&f, 0);
    static const enum prefill_mode modes[] = {PREFILL_OFF, PREFILL_ON, PREFILL_AUTO};
    static const char *const names[] = {"off", "on", "auto"};
    for (int i = 0; i < 3; i++) {
        uint64_t before = visits();
        fixture_submit(&f, request(modes[i], SECOND));
        printf("%s with a deadline: %llu nodes looked at, of %d\n", names[i], (unsigned long long)(visits() - before),
               2 * LARGE);
        ck_assert_uint_gt(visits() - before, 0);
        ck_assert_uint_le(visits() - before, VISITS_MAX);
    }
}
END_TEST

SUITE("estimate_cost")
{
    TIMEOUT(60);
    FIXTURE(setup, teardown);
    TEST(some_nodes_of_a_large_pool_stand_for_all);
    TEST(an_idle_node_of_a_large_pool_is_found);
    TEST(an_admission_looks_at_a_bounded_number_of_nodes);
}
