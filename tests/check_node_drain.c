// SPDX-License-Identifier: Apache-2.0
// engine/node: the router's Drain. The node is a separate process because signals end it.
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/node.h"
#include "tests/suite.h"
#include "tests/test_router.h"

enum { BOUND_MS = 300000 };

// The process of a node: drains when it is told to, and ends once it may finish its work.
static _Noreturn void node_process(int port, int finish)
{
    char address[32], byte;
    snprintf(address, sizeof address, "127.0.0.1:%d", port);
    Forepack__Cluster__V1__Hello hello = FOREPACK__CLUSTER__V1__HELLO__INIT;
    hello.node_id = "a";
    hello.role = FOREPACK__CLUSTER__V1__ROLE__ROLE_WORKER;
    node_block_signals();
    rpc_init();
    struct node *node;
    if (node_start(&(struct node_router){.address = address}, &hello, &(struct node_callbacks){0}, &node) != STATUS_OK)
        _exit(9);
    struct node_event event;
    do
        node_next(node, BOUND_MS, &event);
    while (event.kind == NODE_ATTACHED);
    if (event.kind != NODE_DRAIN) _exit(8);
    if (read(finish, &byte, 1) != 1) _exit(7);
    node_next(node, 0, &event);
    if (event.kind != NODE_NOTHING) _exit(6); // the second request is no second event
    node_stop(node);
    rpc_shutdown();
    _exit(0);
}

static struct {
    struct test_router router;
    pid_t child;
    int finish[2];
} c;

static void setup(void)
{
    // The port is chosen before the fork, since gRPC must not run in a process that forks.
    int port[2];
    ck_assert_int_eq(pipe(port), 0);
    ck_assert_int_eq(pipe(c.finish), 0);
    c.child = fork();
    if (c.child == 0) {
        int number;
        if (read(port[0], &number, sizeof number) != sizeof number) _exit(9);
        node_process(number, c.finish[0]);
    }
    rpc_init();
    test_router_open(&c.router, 0);
    ck_assert_int_eq(write(port[1], &c.router.port, sizeof c.router.port), sizeof c.router.port);
    test_router_await(&c.router, &c.router.heartbeats, 1);
}

static void send_drain(void)
{
    Forepack__Cluster__V1__Drain drain = FOREPACK__CLUSTER__V1__DRAIN__INIT;
    Forepack__Cluster__V1__RouterMessage message = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_DRAIN;
    message.drain = &drain;
    test_router_send(&c.router, &message);
}

static void expect_end(int code)
{
    int wait_status;
    ck_assert_int_eq(write(c.finish[1], "f", 1), 1);
    ck_assert_int_eq(waitpid(c.child, &wait_status, 0), c.child);
    ck_assert(WIFEXITED(wait_status));
    ck_assert_int_eq(WEXITSTATUS(wait_status), code);
    test_router_close(&c.router);
    rpc_shutdown();
}

START_TEST(the_router_drains_a_node_once)
{
    send_drain();
    test_router_await(&c.router, &c.router.drainings, 1);
    send_drain();
    test_router_await_more(&c.router, &c.router.heartbeats, 2); // the node continues to work
    expect_end(0);
    ck_assert_int_eq(test_router_count(&c.router, &c.router.hellos), 1);
}
END_TEST

START_TEST(a_first_signal_during_a_drain_does_not_end_the_process)
{
    send_drain();
    test_router_await(&c.router, &c.router.drainings, 1);
    kill(c.child, SIGTERM);
    test_router_await_more(&c.router, &c.router.heartbeats, 2);
    expect_end(0);
}
END_TEST

START_TEST(a_second_signal_ends_it)
{
    send_drain();
    test_router_await(&c.router, &c.router.drainings, 1);
    kill(c.child, SIGTERM);
    test_router_await_more(&c.router, &c.router.heartbeats, 2);
    kill(c.child, SIGTERM);
    test_router_await(&c.router, &c.router.closes, 1);
    expect_end(1);
}
END_TEST

SUITE("node_drain")
{
    TIMEOUT(60);
    FIXTURE(setup, NULL);
    TEST(the_router_drains_a_node_once);
    TEST(a_first_signal_during_a_drain_does_not_end_the_process);
    TEST(a_second_signal_ends_it);
}
