// SPDX-License-Identifier: Apache-2.0
// router/sched/bin_planner: the order of requests if sequence slots, not rows, are scarce.
#include "router/core/core_state.h"
#include "tests/core_case.h"
#include "tests/suite.h"

// Requests of one tenant and class do not preempt each other, so the crowd has a priority above 0.
enum { SLOTS = 32, CROWD = 400, CROWD_PRIORITY = 1 };

static struct fake_node *w;

// All prompts share a cached prefix, so that rows are never scarce.
static struct client *put_cached(int priority)
{
    struct client *client = fixture_request(&f, 420, 4);
    client->r->spec.prefill.mode = PREFILL_OFF;
    client->r->spec.priority = priority;
    for (int i = 0; i < 420; i++)
        client->r->spec.tokens[i] = i < 400 ? 1 : 100 + (int)(client->number % 900);
    fixture_submit(&f, client);
    return client;
}

// Sends the first token of all requests that have none.
static void answer_new(void)
{
    for (int i = 0; i < w->n_requests; i++) {
        struct client *client = fixture_find(&f, w->requests[i]);
        if (!client->n_tokens) fake_node_step(&f, w, client, 0, 1, -1);
    }
}

static void start(void)
{
    struct node_hello hello = fixture_hello(NODE_WORKER, "w");
    hello.max_seqs = SLOTS;
    hello.kv_blocks = 4096;
    hello.prefix_cache = true;
    w = fixture_attach(&f, &hello);
    for (int i = 0; i < CROWD; i++)
        put_cached(CROWD_PRIORITY);
    for (int round = 0; round < 4; round++) { // all slots in use, no bin outstanding
        fixture_advance(&f, SECOND / 2);
        answer_new();
    }
    ck_assert_int_eq(w->n_requests, SLOTS);
    ck_assert_int_eq(f.c->waiting[NODE_WORKER].overdue.count, CROWD - SLOTS);
}

// Ends one sequence. Returns the request that gets its slot, after its first token.
static struct client *free_slot(void)
{
    fake_node_step(&f, w, fixture_find(&f, w->requests[0]), 1, 1, FINISH_REASON_LENGTH);
    ck_assert_int_eq(w->n_requests, SLOTS);
    struct client *next = fixture_find(&f, w->requests[SLOTS - 1]);
    fake_node_step(&f, w, next, 0, 1, -1);
    return next;
}

START_TEST(the_next_free_slot_goes_to_the_highest_priority)
{
    start();
    for (int i = 0; i < _i; i++)
        free_slot();
    struct client *high = put_cached(8);
    fixture_advance(&f, 0);
    ck_assert(free_slot() == high);
}
END_TEST

START_TEST(overdue_requests_get_every_other_slot_during_a_stream_of_higher_priority)
{
    start();
    int high = 0, oldest_first = 0;
    for (int i = 0; i < 40; i++) {
        put_cached(8);
        fixture_advance(&f, 0);
        const struct sched_request *oldest = f.c->waiting[NODE_WORKER].overdue.first;
        struct client *next = free_slot();
        high += next->r->spec.priority == 8;
        oldest_first += &next->r->sched == oldest;
    }
    ck_assert_int_eq(high, 20);
    ck_assert_int_eq(oldest_first, 20);
}
END_TEST

START_TEST(a_tenant_with_many_overdue_requests_leaves_slots_to_others)
{
    start();
    struct client *few[8];
    for (int i = 0; i < 8; i++)
        few[i] = fixture_put(&f, "few", 20, CROWD_PRIORITY);
    fixture_advance(&f, SECOND);
    for (int i = 0; i < 16; i++) {
        fake_node_step(&f, w, fixture_find(&f, w->requests[0]), 1, 1, FINISH_REASON_LENGTH);
        answer_new();
    }
    for (int i = 0; i < 8; i++)
        ck_assert(few[i]->n_tokens);
}
END_TEST

START_TEST(of_several_free_slots_half_go_to_overdue_requests)
{
    start();
    struct client *high[16];
    for (int i = 0; i < 16; i++)
        high[i] = put_cached(8);
    uint64_t ended[8];
    struct sequence_result results[8];
    int32_t token = 1;
    for (int i = 0; i < 8; i++) {
        ended[i] = w->requests[i];
        results[i] = (struct sequence_result){
            .request = ended[i], .tokens = &token, .n_tokens = 1, .finished = true, .reason = FINISH_REASON_LENGTH};
    }
    for (int i = 0; i < 8; i++)
        fake_node_forget(w, ended[i]);
    core_step(f.c, w->node, results, 8, f.now_us);
    fixture_advance(&f, 0);
    int n_high = 0;
    for (int i = 0; i < 16; i++)
        n_high += fake_node_has(w, high[i]);
    ck_assert_int_eq(w->last_bin_items, 8);
    ck_assert_int_eq(n_high, 4);
}
END_TEST

SUITE("scarce_slots")
{
    FIXTURE(setup, teardown);
    LOOP(the_next_free_slot_goes_to_the_highest_priority, 0, 3);
    TEST(overdue_requests_get_every_other_slot_during_a_stream_of_higher_priority);
    TEST(a_tenant_with_many_overdue_requests_leaves_slots_to_others);
    TEST(of_several_free_slots_half_go_to_overdue_requests);
}
