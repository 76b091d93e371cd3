// SPDX-License-Identifier: Apache-2.0
// router/core: requests whose worker groups are lost. A request that makes its groups fail ends at most three. Queued
// and new requests both wait for a group to come back.
#include <string.h>

#include "router/core/core_state.h"
#include "tests/core_case.h"
#include "tests/suite.h"

enum { GROUPS = 6, OTHERS = 19 };

static struct fake_node *attach(int number)
{
    struct node_hello hello = fixture_hello(NODE_WORKER, "group-0");
    hello.node_id[6] = (char)('0' + number);
    return fixture_attach(&f, &hello);
}

// Ends the requests of the group until it has the request `poison`.
static void serve(struct fake_node *node, const struct client *poison)
{
    while (node->n_requests && !fake_node_has(node, poison))
        fake_node_step(&f, node, fixture_find(&f, node->requests[0]), 0, 1, FINISH_REASON_STOP);
}

// A group that runs the request dies immediately. No other request fails, however often its group died.
START_TEST(a_request_that_ends_its_groups_ends_three_at_most)
{
    struct fake_node *groups[GROUPS];
    struct client *poison = NULL, *others[OTHERS];
    groups[0] = attach(0);
    for (int i = 0; i < OTHERS; i++) {
        if (i == 7) poison = fixture_put(&f, NULL, 20, 0);
        others[i] = fixture_put(&f, NULL, 20, 0);
    }
    fixture_advance(&f, 0);
    for (int i = 1; i < GROUPS; i++)
        groups[i] = attach(i);
    int lost = 0;
    for (int round = 0; round < 100 && !core_idle(f.c); round++) {
        for (int i = 0; i < GROUPS; i++) {
            if (!groups[i]->node) continue;
            if (!poison->ends && fake_node_has(groups[i], poison)) {
                fixture_detach(&f, groups[i]);
                lost++;
            } else {
                serve(groups[i], poison);
            }
        }
        fixture_advance(&f, SECOND / 10);
    }
    ck_assert_int_le(lost, 3);
    ck_assert_msg(strstr(poison->message, "alone"), "%d: %s", poison->ends, poison->message);
    ck_assert_int_eq(poison->status, STATUS_INTERNAL); // clients would repeat the request after UNAVAILABLE
    for (int i = 0; i < OTHERS; i++) {
        ck_assert_msg(others[i]->ends == 1, "%d: %d ends", i, others[i]->ends);
        ck_assert_msg(others[i]->status == STATUS_OK, "%d: %s", i, others[i]->message);
    }
}
END_TEST

// Before a group runs a suspected request alone, it finishes its other requests and gets no new ones.
START_TEST(a_suspected_request_gets_a_busy_group_to_itself)
{
    struct fake_node *first = attach(0);
    struct client *suspect = fixture_send(&f, 20, 4);
    fixture_detach(&f, first);
    struct fake_node *second = attach(1);
    ck_assert(fake_node_has(second, suspect));
    struct fake_node *third = attach(2);
    struct client *running = fixture_send(&f, 20, 4);
    ck_assert(fake_node_has(third, running));
    fixture_detach(&f, second);
    struct client *later = fixture_send(&f, 20, 4);
    ck_assert_ptr_null(suspect->r->account.node);
    ck_assert_ptr_null(later->r->account.node);
    fake_node_step(&f, third, running, 0, 1, FINISH_REASON_STOP);
    ck_assert(fake_node_has(third, suspect));
    ck_assert_ptr_null(later->r->account.node);
    fake_node_step(&f, third, suspect, 0, 1, -1); // a token: it is not what ended the groups
    ck_assert(fake_node_has(third, later));
    ck_assert(fake_node_has(third, suspect));
}
END_TEST

START_TEST(queued_and_new_requests_wait_for_a_group_to_come_back)
{
    ck_assert_int_eq(fixture_send(&f, 10, 4)->status, STATUS_UNAVAILABLE); // no group has ever been here
    struct fake_node *group = attach(0);
    struct client *queued = fixture_send(&f, 10, 4);
    fixture_detach(&f, group);
    fixture_advance(&f, 4 * SECOND);
    struct client *late = fixture_send(&f, 10, 4), *longer = fixture_send(&f, 10000, 4);
    ck_assert(!queued->ends);
    ck_assert(!late->ends);
    ck_assert(longer->ends);
    ck_assert_int_eq(longer->status, STATUS_UNAVAILABLE); // it would not fit the group that was lost
    fixture_advance(&f, SECOND - 1);
    ck_assert(!queued->ends);
    ck_assert(!late->ends);
    fixture_advance(&f, 1);
    ck_assert_int_eq(queued->status, STATUS_UNAVAILABLE);
    ck_assert_int_eq(late->status, STATUS_UNAVAILABLE);
    ck_assert_int_eq(fixture_send(&f, 10, 4)->status, STATUS_UNAVAILABLE);
    group = attach(1);
    fixture_detach(&f, group);
    late = fixture_send(&f, 10, 4);
    group = attach(2);
    ck_assert(fake_node_has(group, late));
}
END_TEST

START_TEST(a_new_request_waits_for_the_larger_group_that_was_lost)
{
    attach(0);
    struct node_hello hello = fixture_hello(NODE_WORKER, "large");
    hello.context_tokens = 20000;
    struct fake_node *large = fixture_attach(&f, &hello);
    struct client *queued = fixture_send(&f, 6000, 4);
    fixture_detach(&f, large);
    struct client *late = fixture_send(&f, 6000, 4), *longer = fixture_send(&f, 30000, 4);
    ck_assert(!queued->ends);
    ck_assert(!late->ends);
    ck_assert_int_eq(longer->status, STATUS_OUT_OF_RANGE);
    fixture_advance(&f, 5 * SECOND);
    ck_assert_int_eq(queued->status, STATUS_UNAVAILABLE);
    ck_assert_int_eq(late->status, STATUS_UNAVAILABLE);
    ck_assert_int_eq(fixture_send(&f, 6000, 4)->status, STATUS_OUT_OF_RANGE);
}
END_TEST

SUITE("lost_groups")
{
    FIXTURE(setup, teardown);
    TEST(a_request_that_ends_its_groups_ends_three_at_most);
    TEST(a_suspected_request_gets_a_busy_group_to_itself);
    TEST(queued_and_new_requests_wait_for_a_group_to_come_back);
    TEST(a_new_request_waits_for_the_larger_group_that_was_lost);
}
