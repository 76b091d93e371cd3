// SPDX-License-Identifier: Apache-2.0
// engine/node with several routers: numbers of requests, results, loads and costs by link, a router that ends, two
// addresses of one router, dead addresses, an address in a file; and the form of --router.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/link_messages.h"
#include "engine/node.h"
#include "engine/router_list.h"
#include "tests/suite.h"
#include "tests/test_router.h"

typedef Forepack__Cluster__V1__NodeMessage node_message;

enum { BOUND_MS = 300000 };

static struct test_router routers[2];

static void setup(void)
{
    node_block_signals();
    rpc_init();
    for (int i = 0; i < 2; i++) {
        test_router_open(&routers[i], 0);
        routers[i].instance = 11 + (uint64_t)i;
    }
}

static void teardown(void)
{
    for (int i = 0; i < 2; i++)
        test_router_close(&routers[i]);
    rpc_shutdown();
}

static struct node *open_node(const char *addresses)
{
    Forepack__Cluster__V1__Hello hello = FOREPACK__CLUSTER__V1__HELLO__INIT;
    hello.node_id = "a";
    hello.role = FOREPACK__CLUSTER__V1__ROLE__ROLE_SPECULATOR;
    struct node *node;
    enum status status =
        node_start(&(struct node_router){.address = addresses}, &hello, &(struct node_callbacks){0}, &node);
    ck_assert_msg(status == STATUS_OK, "%s", status_message());
    return node;
}

// Starts a node with both routers and a dead address. Returns when both links are attached. Link i is that of router i.
static struct node *open_node_with_both(void)
{
    char addresses[128];
    snprintf(addresses, sizeof addresses, "127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:1", routers[0].port, routers[1].port);
    struct node *node = open_node(addresses);
    unsigned seen = 0;
    while (seen != 3) {
        struct node_event event;
        node_next(node, BOUND_MS, &event);
        ck_assert_int_eq(event.kind, NODE_ATTACHED);
        seen |= 1u << event.link;
    }
    return node;
}

static struct node_event next_event(struct node *node)
{
    struct node_event event;
    node_next(node, BOUND_MS, &event);
    return event;
}

static void send_request(struct test_router *router, uint64_t bin, uint64_t request)
{
    Forepack__Cluster__V1__ScoreItem item = FOREPACK__CLUSTER__V1__SCORE_ITEM__INIT, *items[] = {&item};
    item.request = request;
    test_router_send_bin(router, bin, items, 1);
}

// Receives a bin with one prompt, which has this number within the node.
static void expect_request(struct node *node, int link, uint64_t request)
{
    struct node_event event = next_event(node);
    ck_assert_int_eq(event.kind, NODE_MESSAGE);
    ck_assert_int_eq(event.link, link);
    ck_assert_uint_eq(event.message->score_bin->items[0]->request, request);
    node_event_free(&event);
}

// Sends the results of a pass with these requests.
static void send_results(struct node *node, const uint64_t *requests, size_t n)
{
    Forepack__Cluster__V1__ScoreResult items[4], *results[4];
    Forepack__Cluster__V1__ScoreResults scored = FOREPACK__CLUSTER__V1__SCORE_RESULTS__INIT;
    for (size_t i = 0; i < n; i++) {
        items[i] = (Forepack__Cluster__V1__ScoreResult)FOREPACK__CLUSTER__V1__SCORE_RESULT__INIT;
        items[i].request = requests[i];
        results[i] = &items[i];
    }
    scored.results = results;
    scored.n_results = n;
    scored.pass_us = 1000;
    node_message message = FOREPACK__CLUSTER__V1__NODE_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_SCORED;
    message.scored = &scored;
    node_send(node, &message);
}

START_TEST(each_router_gets_its_results_and_load_and_all_costs)
{
    struct node *node = open_node_with_both();
    send_request(&routers[0], 5, 7); // both routers use the number 7
    expect_request(node, 0, 7);
    send_request(&routers[1], 9, 7);
    expect_request(node, 1, link_id_make(1, 7));
    struct link_load links[NODE_LINKS_MAX] = {{2, 1}, {3, 0}};
    node_set_load(node, &(struct node_load){.running = 5, .waiting = 1, .links = links});
    test_router_await(&routers[0], &routers[0].load_last_bin, 5);
    test_router_await(&routers[1], &routers[1].load_last_bin, 9);
    ck_assert_int_eq(test_router_count(&routers[0], &routers[0].load_running), 2);
    ck_assert_int_eq(test_router_count(&routers[1], &routers[1].load_running), 3);
    send_results(node, (const uint64_t[]){link_id_make(1, 7)}, 1);
    test_router_await(&routers[0], &routers[0].passes, 1); // the cost alone
    test_router_await(&routers[1], &routers[1].results, 1);
    ck_assert_int_eq(test_router_count(&routers[0], &routers[0].results), 0);
    send_results(node, (const uint64_t[]){8, link_id_make(1, 9), 10}, 3);
    test_router_await(&routers[0], &routers[0].results, 2);
    test_router_await(&routers[1], &routers[1].results, 2);
    ck_assert_ptr_nonnull(test_router_result(&routers[0], 10));
    ck_assert_ptr_nonnull(test_router_result(&routers[1], 9));
    ck_assert_int_eq(test_router_count(&routers[1], &routers[1].passes), 2);
    node_stop(node);
}
END_TEST

START_TEST(a_router_that_ends_leaves_the_work_of_the_other)
{
    struct node *node = open_node_with_both();
    send_request(&routers[0], 1, 1);
    expect_request(node, 0, 1);
    send_request(&routers[0], 2, 2); // stays in the mailbox when the other router ends
    test_router_await_more(&routers[0], &routers[0].heartbeats, 2);
    test_router_close(&routers[1]);
    struct node_event event;
    bool left = false, worked = false;
    while (!left || !worked) {
        event = next_event(node);
        left |= event.kind == NODE_DETACHED && event.link == 1;
        worked |= event.kind == NODE_MESSAGE && event.link == 0;
        ck_assert_int_ne(event.kind, NODE_NOTHING);
        node_event_free(&event);
    }
    send_results(node, (const uint64_t[]){1, link_id_make(1, 5), 2}, 3); // one result belongs to no router
    test_router_await(&routers[0], &routers[0].results, 2);
    test_router_open(&routers[1], routers[1].port);
    event = next_event(node);
    ck_assert_int_eq(event.kind, NODE_ATTACHED);
    ck_assert_int_eq(event.link, 1);
    node_stop(node);
}
END_TEST

START_TEST(a_drain_is_said_to_all_routers)
{
    struct node *node = open_node_with_both();
    Forepack__Cluster__V1__Drain drain = FOREPACK__CLUSTER__V1__DRAIN__INIT;
    Forepack__Cluster__V1__RouterMessage message = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_DRAIN;
    message.drain = &drain;
    test_router_send(&routers[1], &message);
    ck_assert_int_eq(next_event(node).kind, NODE_DRAIN);
    test_router_await(&routers[0], &routers[0].drainings, 1);
    test_router_await(&routers[1], &routers[1].drainings, 1);
    node_stop(node);
}
END_TEST

// Both links may say Hello at once; then the second replaces the first, which is refused when it attaches again.
START_TEST(two_addresses_of_one_router_attach_once)
{
    char addresses[128];
    snprintf(addresses, sizeof addresses, "127.0.0.1:%d,[::ffff:127.0.0.1]:%d", routers[0].port, routers[0].port);
    struct node *node = open_node(addresses);
    ck_assert_int_eq(next_event(node).kind, NODE_ATTACHED);
    for (int n = 0; !test_router_count(&routers[0], &routers[0].duplicates); n++) {
        // The test's router does not replace the first of two streams, so it ends the second one.
        struct node_event event;
        node_next(node, 20, &event);
        if (event.kind == NODE_ATTACHED) test_router_send_bytes(&routers[0], "\xff", 1);
        ck_assert_int_lt(n, BOUND_MS / 20);
    }
    node_stop(node);
}
END_TEST

START_TEST(a_number_with_bits_of_the_link_ends_the_stream)
{
    struct node *node = open_node_with_both();
    send_request(&routers[0], 1, link_id_make(1, 3));
    struct node_event event = next_event(node);
    ck_assert_int_eq(event.kind, NODE_DETACHED);
    ck_assert_int_eq(event.link, 0);
    node_stop(node);
}
END_TEST

// --- files

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

static void write_port(const char *path, int port)
{
    char text[32];
    snprintf(text, sizeof text, "127.0.0.1:%d\n", port);
    write_text(path, text);
}

START_TEST(a_node_follows_the_address_in_a_file)
{
    char folder[] = "/tmp/check_node_links-XXXXXX", path[64], address[80];
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/router", folder);
    snprintf(address, sizeof address, "file:%s", path);
    struct node *node = open_node(address); // there is no file yet
    write_port(path, routers[0].port);
    ck_assert_int_eq(next_event(node).kind, NODE_ATTACHED);
    test_router_close(&routers[0]);
    ck_assert_int_eq(next_event(node).kind, NODE_DETACHED);
    ck_assert_int_eq(unlink(path), 0); // the node still knows the earlier address
    test_router_open(&routers[0], routers[0].port);
    ck_assert_int_eq(next_event(node).kind, NODE_ATTACHED);
    write_port(path, routers[1].port); // the router moves; its earlier stream may go on
    ck_assert_int_eq(next_event(node).kind, NODE_ATTACHED);
    test_router_await(&routers[1], &routers[1].hellos, 1);
    node_stop(node);

    struct router_list list;
    struct router_addresses addresses;
    ck_assert_int_eq(router_list_parse(address, &list), STATUS_OK);
    static const char *const wrong[] = {"", "127.0.0.1:1 more", "127.0.0.1", "127.0.0.1:70000", "dns:a:1,b:2:x"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        write_text(path, wrong[i]);
        ck_assert_int_eq(router_list_check_files(&list), STATUS_INVALID);
        ck_assert_ptr_nonnull(strstr(status_message(), "must have one line"));
        ck_assert(!router_list_look_up(&list, &addresses));
        ck_assert_int_eq(addresses.n, 0);
    }
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(router_list_check_files(&list), STATUS_OK);
    ck_assert_int_eq(rmdir(folder), 0);
    ck_assert_int_eq(router_list_check_files(&list), STATUS_NOT_FOUND);
}
END_TEST

// --- steps of worker groups

START_TEST(the_part_of_a_step_counts_the_rows_of_other_routers)
{
    Forepack__Cluster__V1__SequenceResult items[3], *results[3];
    static const uint64_t requests[] = {4, 1ull << LINK_ID_SHIFT | 4, 2ull << LINK_ID_SHIFT | 6};
    for (int i = 0; i < 3; i++) {
        items[i] = (Forepack__Cluster__V1__SequenceResult)FOREPACK__CLUSTER__V1__SEQUENCE_RESULT__INIT;
        items[i].request = requests[i];
        items[i].draft_tokens = (uint32_t)i;
        results[i] = &items[i];
    }
    Forepack__Cluster__V1__StepResults step = FOREPACK__CLUSTER__V1__STEP_RESULTS__INIT;
    step.results = results;
    step.n_results = 3;
    step.rows = 20;
    step.step_us = 7;
    node_message message = FOREPACK__CLUSTER__V1__NODE_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_STEP;
    message.step = &step;
    struct link_part part;
    static const uint32_t others[] = {5, 4, 3, 6};
    for (int link = 0; link < 4; link++) {
        ck_assert(link_part_make(link, &message, &part));
        ck_assert_uint_eq(part.step.n_results, link < 3);
        ck_assert_uint_eq(part.step.other_rows, others[link]);
        ck_assert_uint_eq(part.step.rows, 20);
        if (link < 3) ck_assert_uint_eq(part.step.results[0]->request, link_id_number(requests[link]));
        link_part_free(&part);
    }
    step.step_us = 0; // a refusal, which concerns one router
    ck_assert(!link_part_make(3, &message, &part));
    link_part_free(&part);
}
END_TEST

// --- the option

START_TEST(lists_of_routers)
{
    struct router_list list;
    ck_assert_int_eq(router_list_parse("a:1,dns:b.c:2,[::1]:3", &list), STATUS_OK);
    ck_assert_int_eq(list.n, 3);
    ck_assert_str_eq(list.entries[1].address, "b.c:2");
    ck_assert_int_eq(list.entries[1].kind, ROUTER_NAME);
    ck_assert_int_eq(list.entries[2].kind, ROUTER_ADDRESS);
    ck_assert(list.changes);
    ck_assert(!list.has_files);
    static const char *const wrong[][2] = {{"", "must be HOST:PORT"},      {"a", "'a'"},
                                           {"a:1,", "must be HOST:PORT"},  {"a:1,b:70000", "'b:70000'"},
                                           {"a:1,a:1", "given twice"},     {"dns:a", "'a'"},
                                           {"file:", "must be HOST:PORT"}, {"file:/a,file:/a", "given twice"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ck_assert_int_eq(router_list_parse(wrong[i][0], &list), STATUS_INVALID);
        ck_assert_ptr_nonnull(strstr(status_message(), wrong[i][1]));
    }
}
END_TEST

START_TEST(a_name_has_all_its_addresses)
{
    struct router_list list;
    struct router_addresses addresses;
    ck_assert_int_eq(router_list_parse("h:1,dns:localhost:50052", &list), STATUS_OK);
    ck_assert(router_list_look_up(&list, &addresses));
    ck_assert_int_ge(addresses.n, 2);
    ck_assert_str_eq(addresses.items[0].address, "h:1");
    ck_assert_str_eq(addresses.items[0].server_name, "");
    ck_assert_str_eq(addresses.items[1].server_name, "localhost");
    bool found = false;
    for (int i = 1; i < addresses.n; i++)
        found |= strcmp(addresses.items[i].address, "127.0.0.1:50052") == 0 ||
                 strcmp(addresses.items[i].address, "[::1]:50052") == 0;
    ck_assert(found);
    ck_assert_int_eq(router_list_parse("h:1,dns:nowhere.invalid:2", &list), STATUS_OK);
    ck_assert(!router_list_look_up(&list, &addresses));
    ck_assert_ptr_nonnull(strstr(status_message(), "nowhere.invalid"));
    ck_assert_int_eq(addresses.n, 1); // the others are used
}
END_TEST

SUITE("node_links")
{
    TCASE("links");
    TIMEOUT(60);
    FIXTURE(setup, teardown);
    TEST(each_router_gets_its_results_and_load_and_all_costs);
    TEST(a_router_that_ends_leaves_the_work_of_the_other);
    TEST(a_drain_is_said_to_all_routers);
    TEST(two_addresses_of_one_router_attach_once);
    TEST(a_number_with_bits_of_the_link_ends_the_stream);
    TEST(a_node_follows_the_address_in_a_file);

    TCASE("messages");
    TEST(the_part_of_a_step_counts_the_rows_of_other_routers);
    TEST(lists_of_routers);
    TEST(a_name_has_all_its_addresses);
}
