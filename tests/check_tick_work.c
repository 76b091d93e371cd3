// SPDX-License-Identifier: Apache-2.0
// router/core: the work of one tick is bounded, however much becomes due at the same time and however many nodes are
// idle. The next ticks do the rest, in the same order.
#include <stdio.h>

#include "router/core/core_state.h"
#include "tests/core_fixture.h"
#include "tests/suite.h"

enum { WAITING = 5000, GROUPS = 60, TIMERS_MAX = 256, WORK_MAX = 2048, SCANS_MAX = 2048 };

static struct fixture f;

static void setup(void)
{
    fixture_init(&f);
    f.options.max_queue_requests = WAITING;
    f.options.max_queue_tokens = INT64_MAX / 2;
    fixture_start(&f);
}

static void teardown(void)
{
    fixture_stop(&f);
}

static struct fake_node *attach(int group, int max_seqs)
{
    struct node_hello hello = fixture_hello(NODE_WORKER, "");
    snprintf(hello.node_id, sizeof hello.node_id, "group-%d", group);
    hello.token_budget = 2048;
    hello.max_seqs = max_seqs;
    hello.kv_blocks = 1 << 20;
    return fixture_attach(&f, &hello);
}

static int overdue_count(void)
{
    return f.c->waiting[NODE_WORKER].overdue.count;
}

static uint64_t work_done(void)
{
    const struct bin_totals *bins = &f.c->ledger.bins[NODE_WORKER];
    return bins->items + bins->scan_cost + f.c->nodes[NODE_WORKER].plans;
}

static bool is_due(void)
{
    return core_next_deadline_us(f.c) <= f.now_us;
}

// Occupies the only slot, so that nothing is dispatched.
static struct client *fill_group(void)
{
    attach(0, 1);
    struct client *running = fixture_send(&f, 10, 4);
    for (int i = 0; i < WAITING; i++)
        fixture_put(&f, NULL, 10 + i % 7, 0);
    do
        fixture_advance(&f, 0);
    while (is_due());
    return running;
}

START_TEST(nodes_without_room_are_searched_in_several_ticks)
{
    attach(0, 1);
    fixture_send(&f, 10, 4);
    for (int i = 0; i < WAITING; i++)
        fixture_put(&f, NULL, 10 + i % 7, 0);
    const uint64_t *searches = &f.c->nodes[NODE_WORKER].request_searches;
    int ticks = 0;
    do {
        uint64_t before = *searches;
        core_tick(f.c, f.now_us);
        ck_assert_uint_le(*searches - before, WORK_MAX);
        ticks++;
    } while (is_due());
    ck_assert_int_gt(ticks, 1);
    ck_assert_uint_ge(*searches, WAITING);
}
END_TEST

START_TEST(a_queue_that_becomes_overdue_together_is_marked_in_parts_oldest_first)
{
    fill_group();
    f.now_us += f.options.max_wait_us;
    uint64_t first = 0;
    for (int before = 0; before < WAITING; before = overdue_count()) {
        core_tick(f.c, f.now_us);
        ck_assert_int_gt(overdue_count(), before);
        ck_assert_int_le(overdue_count(), before + TIMERS_MAX);
        ck_assert(is_due() == (overdue_count() < WAITING));
        const struct sched_request *head = f.c->waiting[NODE_WORKER].overdue.first;
        if (!first) first = head->number;
        ck_assert_uint_eq(head->number, first);
        for (const struct sched_request *r = head; r->next; r = r->next)
            ck_cheap(r->number < r->next->number);
        const struct sched_request *rest = f.c->waiting[NODE_WORKER].queue.first;
        ck_assert(!rest || rest->number > f.c->waiting[NODE_WORKER].overdue.last->number);
    }
}
END_TEST

START_TEST(an_event_between_two_ticks_is_served_from_the_requests_due_first)
{
    struct client *running = fill_group();
    f.now_us += f.options.max_wait_us;
    core_tick(f.c, f.now_us);
    uint64_t oldest = f.c->waiting[NODE_WORKER].overdue.first->number;
    core_cancel(f.c, running->number, f.now_us);
    core_tick(f.c, f.now_us);
    ck_assert(is_due());
    ck_assert(fake_node_has(f.nodes[0], fixture_find(&f, oldest)));
}
END_TEST

START_TEST(deadlines_that_pass_together_end_requests_in_parts)
{
    attach(0, 1);
    fixture_send(&f, 10, 4);
    for (int i = 0; i < WAITING; i++) {
        struct client *client = fixture_request(&f, 10, 4);
        client->r->spec.prefill.mode = PREFILL_OFF;
        client->r->spec.ttft_deadline_us = f.now_us + SECOND;
        fixture_submit(&f, client);
    }
    f.now_us += SECOND;
    for (int before = 0; before < WAITING; before = f.ended) {
        core_tick(f.c, f.now_us);
        ck_assert_int_gt(f.ended, before);
        ck_assert_int_le(f.ended, before + TIMERS_MAX);
    }
    ck_assert(!is_due());
}
END_TEST

START_TEST(idle_nodes_get_bins_in_several_ticks)
{
    for (int i = 0; i < GROUPS; i++)
        attach(i, 256);
    for (int i = 0; i < WAITING; i++)
        fixture_put(&f, NULL, 10 + i % 7, 0);
    int ticks = 0;
    do {
        uint64_t before = work_done();
        core_tick(f.c, f.now_us);
        ck_assert_uint_le(work_done() - before, WORK_MAX + SCANS_MAX);
        ticks++;
    } while (is_due());
    ck_assert_int_gt(ticks, 1);
    ck_assert_int_eq(f.c->waiting[NODE_WORKER].queue.count, 0);
}
END_TEST

SUITE("tick_work")
{
    FIXTURE(setup, teardown);
    TEST(nodes_without_room_are_searched_in_several_ticks);
    TEST(a_queue_that_becomes_overdue_together_is_marked_in_parts_oldest_first);
    TEST(an_event_between_two_ticks_is_served_from_the_requests_due_first);
    TEST(deadlines_that_pass_together_end_requests_in_parts);
    TEST(idle_nodes_get_bins_in_several_ticks);
}
