// SPDX-License-Identifier: Apache-2.0
// Which nodes the core lets attach, and how many: equal ids, and nodes that compute differently.
#include <stdio.h>
#include <string.h>

#include "tests/core_case.h"
#include "tests/suite.h"

// Attaches, or returns the refusal in status_message().
static enum status try_attach(const struct node_hello *hello, struct core_node **node_p)
{
    static struct fake_node link;
    return core_attach(f.c, hello, &link, f.now_us, node_p);
}

static void refused(const struct node_hello *hello, enum status status, const char *part)
{
    struct core_node *node;
    ck_assert_int_eq(try_attach(hello, &node), status);
    ck_assert_msg(strstr(status_message(), part) != NULL, "%s", status_message());
}

START_TEST(another_process_with_the_id_of_an_attached_node_is_refused)
{
    struct node_hello hello = fixture_hello(NODE_WORKER, "w"), other = hello;
    hello.instance = 11;
    other.instance = 12;
    snprintf(other.host, sizeof other.host, "elsewhere");
    struct fake_node *first = fixture_attach(&f, &hello);
    for (int i = 0; i < 3; i++) {
        refused(&other, STATUS_EXISTS, "w on host elsewhere: another process, on host here, is attached with this id");
        ck_assert(!first->lost);
    }
    fixture_detach(&f, first);
    struct fake_node *second = fixture_attach(&f, &other);
    ck_assert_ptr_nonnull(second->node);
}
END_TEST

START_TEST(the_same_process_replaces_its_lost_connection)
{
    struct node_hello hello = fixture_hello(NODE_WORKER, "w");
    hello.instance = 11;
    struct fake_node *first = fixture_attach(&f, &hello), *second = fixture_attach(&f, &hello);
    ck_assert(first->lost);
    ck_assert(!second->lost);
}
END_TEST

// A node whose connection dies without notice keeps its id until three heartbeats are missing.
START_TEST(an_id_is_free_once_its_node_is_silent)
{
    struct node_hello hello = fixture_hello(NODE_WORKER, "w"), again = hello;
    hello.instance = 11;
    again.instance = 12; // started again
    struct fake_node *first = fixture_attach(&f, &hello);
    refused(&again, STATUS_EXISTS, "was heard 0.0 s ago");
    fixture_advance(&f, 4 * f.options.heartbeat_us);
    ck_assert(first->lost);
    fixture_attach(&f, &again);
}
END_TEST

static const struct {
    const char *backend, *dtype, *kv_dtype;
} others[] = {{"cuda", "bf16", "bf16"}, {"cpu", "int8", "bf16"}, {"cpu", "bf16", "int8"}};

static struct node_hello hello_that_computes(const char *id, const char *backend, const char *dtype,
                                             const char *kv_dtype)
{
    struct node_hello hello = fixture_hello(NODE_WORKER, id);
    snprintf(hello.backend, sizeof hello.backend, "%s", backend);
    snprintf(hello.dtype, sizeof hello.dtype, "%s", dtype);
    snprintf(hello.kv_dtype, sizeof hello.kv_dtype, "%s", kv_dtype);
    return hello;
}

START_TEST(nodes_of_a_role_compute_alike)
{
    f.options.mixed_numerics = _i >= 3;
    restart();
    struct node_hello first = hello_that_computes("a", "cpu", "bf16", "bf16");
    struct node_hello second =
        hello_that_computes("b", others[_i % 3].backend, others[_i % 3].dtype, others[_i % 3].kv_dtype);
    fixture_attach(&f, &first);
    if (_i < 3) {
        refused(&second, STATUS_INVALID, "--mixed-numerics");
    } else {
        fixture_attach(&f, &second);
    }
    second.role = NODE_SPECULATOR; // of another role
    snprintf(second.node_id, sizeof second.node_id, "c");
    fixture_attach(&f, &second);
}
END_TEST

// Each attach examines all nodes, so their number needs a bound.
START_TEST(the_number_of_nodes_is_bounded)
{
    enum { MOST = 4096 };
    static struct fake_node link;
    struct core_node *first = NULL;
    struct node_hello hello = fixture_hello(NODE_SPECULATOR, "n");
    for (int i = 0; i < MOST; i++) {
        hello.role = i % 2 ? NODE_WORKER : NODE_SPECULATOR;
        snprintf(hello.node_id, sizeof hello.node_id, "n%d", i);
        ck_assert_int_eq(core_attach(f.c, &hello, &link, f.now_us, &link.node), STATUS_OK);
        if (i == 0) first = link.node;
    }
    struct core_node *node;
    ck_assert_int_eq(try_attach(&hello, &node), STATUS_OK); // the same process: it replaces its lost connection
    ck_assert(link.lost);
    snprintf(hello.node_id, sizeof hello.node_id, "another");
    refused(&hello, STATUS_EXHAUSTED, "worker another: 4096 nodes are attached");
    core_detach(f.c, first, "its stream ended", f.now_us);
    ck_assert_int_eq(try_attach(&hello, &node), STATUS_OK);
}
END_TEST

static struct node_loading report_of(const char *id, uint64_t instance, int percent)
{
    struct node_loading report = {.role = NODE_WORKER, .ranks = 2, .instance = instance, .percent = percent};
    snprintf(report.node_id, sizeof report.node_id, "%s", id);
    snprintf(report.host, sizeof report.host, "there");
    return report;
}

static void loads(struct fake_node *link, const char *id, uint64_t instance, int percent, struct loading_node **node_p)
{
    const struct node_loading report = report_of(id, instance, percent);
    ck_assert_msg(core_loading(f.c, &report, link, f.now_us, node_p) == STATUS_OK, "%s", status_message());
}

static void load_refused(const struct node_loading *report, void *link, struct loading_node *node, enum status status,
                         const char *part)
{
    ck_assert_int_eq(core_loading(f.c, report, link, f.now_us, &node), status);
    ck_assert_msg(strstr(status_message(), part) != NULL, "%s", status_message());
}

static int percent_shown(int n)
{
    struct core_status status = fixture_status(&f);
    ck_assert_int_eq(status.n_loading, n);
    const int percent = n ? status.loading[0].report.percent : 0;
    core_status_fini(&status);
    return percent;
}

START_TEST(a_node_that_loads_is_shown_and_takes_no_requests)
{
    static struct fake_node link;
    link = (struct fake_node){0};
    struct loading_node *node = NULL;
    loads(&link, "w", 7, 0, &node);
    loads(&link, "w", 7, 43, &node);
    ck_assert_int_eq(percent_shown(1), 43);
    ck_assert(!f.ready);
    struct client *early = fixture_send(&f, 10, 4);
    ck_ended(early, FINISH_REASON_ERROR, STATUS_UNAVAILABLE);
    ck_assert_msg(strstr(early->message, "one loads its weights (43 % done)"), "%s", early->message);
    struct node_hello hello = fixture_hello(NODE_WORKER, "w");
    hello.instance = 7;
    ck_assert_int_eq(core_attach(f.c, &hello, &link, f.now_us, &link.node), STATUS_OK); // on the same stream
    ck_assert_int_eq(percent_shown(0), 0);
    ck_assert(f.ready);
}
END_TEST

START_TEST(a_node_that_loads_attaches_over_another_stream_or_disappears)
{
    static struct fake_node link, other;
    link = other = (struct fake_node){0};
    struct loading_node *node = NULL;
    link.node = other.node = (struct core_node *)&link; // the fixture's node_lost() wants one
    loads(&link, "w", 7, 10, &node);
    struct node_hello hello = fixture_hello(NODE_WORKER, "w");
    hello.instance = 7;
    fixture_attach(&f, &hello);
    ck_assert(link.lost); // its own stream has ended
    node = NULL;
    loads(&other, "x", 8, 10, &node);
    fixture_advance(&f, 3 * f.options.heartbeat_us - 1);
    ck_assert_int_eq(percent_shown(1), 10);
    fixture_advance(&f, 1);
    ck_assert(other.lost);
    ck_assert_int_eq(percent_shown(0), 0);
}
END_TEST

START_TEST(wrong_reports_are_refused)
{
    static struct fake_node link, other;
    struct loading_node *node = NULL;
    loads(&link, "w", 7, 10, &node);
    struct node_loading report = report_of("w", 8, 10);
    load_refused(&report, &other, NULL, STATUS_EXISTS, "a process on host there has this id");
    report = report_of("x", 7, 10);
    load_refused(&report, &link, node, STATUS_INVALID, "its stream is that of node w");
    report = report_of("y", 9, 101);
    load_refused(&report, &other, NULL, STATUS_INVALID, "percent 101: must be from 0 to 100");
    report = report_of("y", 9, 1);
    report.ranks = 0;
    load_refused(&report, &other, NULL, STATUS_INVALID, "ranks 0: must be 1 or more");
    report = report_of("", 9, 1);
    load_refused(&report, &other, NULL, STATUS_INVALID, "node_id is empty");
    attach_worker("z");
    report = report_of("z", 9, 1);
    load_refused(&report, &other, NULL, STATUS_EXISTS, "a process on host here has this id");
    core_loading_end(f.c, node, "its stream ended");
    ck_assert_int_eq(percent_shown(0), 0);
}
END_TEST

START_TEST(a_drained_router_releases_its_nodes)
{
    struct fake_node *node = attach_worker("w");
    core_drain(f.c);
    ck_assert(core_idle(f.c));
    core_release_nodes(f.c, f.now_us);
    ck_assert(node->lost);
}
END_TEST

SUITE("attach")
{
    FIXTURE(setup, teardown);
    TEST(another_process_with_the_id_of_an_attached_node_is_refused);
    TEST(the_same_process_replaces_its_lost_connection);
    TEST(an_id_is_free_once_its_node_is_silent);
    LOOP(nodes_of_a_role_compute_alike, 0, 6);
    TEST(the_number_of_nodes_is_bounded);
    TEST(a_node_that_loads_is_shown_and_takes_no_requests);
    TEST(a_node_that_loads_attaches_over_another_stream_or_disappears);
    TEST(wrong_reports_are_refused);
    TEST(a_drained_router_releases_its_nodes);
}
