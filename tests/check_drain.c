// SPDX-License-Identifier: Apache-2.0
// router/core: an operator drains nodes.
#include <stdlib.h>
#include <string.h>

#include "tests/core_case.h"
#include "tests/suite.h"

static struct fake_node *attach(enum node_role role, const char *id, uint64_t instance)
{
    struct node_hello hello = fixture_hello(role, id);
    hello.instance = instance;
    return fixture_attach(&f, &hello);
}

static struct node_drain drain(const char *id, uint64_t instance)
{
    struct node_drain result;
    enum status status = core_drain_node(f.c, id, instance, f.now_us, &result);
    ck_assert_msg(status == STATUS_OK, "%s", status_message());
    fixture_advance(&f, 0);
    return result;
}

static void drain_is_refused(const char *id, uint64_t instance, const char *message)
{
    struct node_drain result;
    ck_assert_int_eq(core_drain_node(f.c, id, instance, f.now_us, &result), STATUS_NOT_FOUND);
    ck_assert_str_eq(status_message(), message);
}

START_TEST(a_drained_node_finishes_its_requests_and_gets_no_more)
{
    struct fake_node *a = attach(NODE_WORKER, "a", 1);
    struct client *old = fixture_send(&f, 10, 1);
    ck_assert_int_eq(a->n_requests, 1);
    struct fake_node *b = attach(NODE_WORKER, "b", 2);
    struct node_drain first = drain("a", 0);
    ck_assert_uint_eq(first.instance, 1);
    ck_assert_int_eq(first.role, NODE_WORKER);
    ck_assert_int_eq(first.running, 1);
    ck_assert_int_eq(first.others, 1);
    ck_assert(!first.was_draining);
    ck_assert_int_eq(a->drains, 1);
    ck_assert_int_eq(b->drains, 0);
    ck_assert(f.ready);
    for (int i = 0; i < 8; i++)
        fixture_send(&f, 10, 1);
    ck_assert_int_eq(a->n_requests, 1);
    ck_assert_int_ge(b->n_requests, 1); // the rest waits for b
    struct node_drain again = drain("a", 1);
    ck_assert(again.was_draining);
    ck_assert_int_eq(again.running, 1);
    ck_assert_int_eq(a->drains, 1);
    finish(a, old);
    ck_assert_int_eq(old->ends, 1);
    ck_assert_int_eq(old->status, STATUS_OK);
    ck_assert_int_eq(drain("a", 1).running, 0);
    fixture_detach(&f, a);
    drain_is_refused("a", 1, "no node a is attached: attached are: b");
    struct node_drain last = drain("b", 0);
    ck_assert_int_eq(last.others, 0);
    ck_assert(!f.ready);
}
END_TEST

START_TEST(another_process_with_the_same_id_is_not_drained)
{
    struct fake_node *a = attach(NODE_WORKER, "a", 1);
    drain("a", 0);
    fixture_detach(&f, a);
    a = attach(NODE_WORKER, "a", 7);
    ck_assert_int_eq(a->drains, 0);
    ck_assert(f.ready);
    drain_is_refused("a", 1, "no node a is attached: attached are: a");
    ck_assert(f.ready);
}
END_TEST

START_TEST(a_process_that_lost_its_stream_is_told_again)
{
    struct fake_node *a = attach(NODE_WORKER, "a", 1);
    drain("a", 0);
    fixture_detach(&f, a);
    a = attach(NODE_WORKER, "a", 1);
    ck_assert_int_eq(a->drains, 1);
    ck_assert(!f.ready);
    ck_assert(drain("a", 1).was_draining);
    ck_assert_int_eq(a->drains, 1);
}
END_TEST

START_TEST(a_node_that_drains_by_a_signal_may_be_drained_too)
{
    struct fake_node *a = attach(NODE_SPECULATOR, "a", 1);
    core_draining(f.c, a->node, "", f.now_us);
    ck_assert(drain("a", 0).was_draining);
    struct core_status status;
    core_get_status(f.c, &status);
    ck_assert_str_eq(status.nodes[0].state, "draining");
    core_status_fini(&status);
}
END_TEST

START_TEST(an_unknown_node_is_refused_with_the_names_of_those_attached)
{
    drain_is_refused("a", 0, "no node a is attached: attached are: none");
    char id[8] = "n0";
    for (; id[1] <= '9'; id[1]++)
        attach(NODE_WORKER, id, (uint64_t)id[1]);
    drain_is_refused("", 0, "no node  is attached: attached are: n9, n8, n7, n6, n5, n4, n3, n2 and 2 more");
}
END_TEST

SUITE("drain")
{
    FIXTURE(setup, teardown);
    TEST(a_drained_node_finishes_its_requests_and_gets_no_more);
    TEST(another_process_with_the_same_id_is_not_drained);
    TEST(a_process_that_lost_its_stream_is_told_again);
    TEST(a_node_that_drains_by_a_signal_may_be_drained_too);
    TEST(an_unknown_node_is_refused_with_the_names_of_those_attached);
}
