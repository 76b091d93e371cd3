// SPDX-License-Identifier: Apache-2.0
// engine/node: a node's link to a router, which the test builds from lib/net/rpc.h alone. It covers Hello, work and
// results, a router that restarts, refuses, sends malformed messages or stops while work runs, drain by signal, and a
// node that dies.
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/node.h"
#include "engine/start_signals.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/version.h"
#include "tests/suite.h"
#include "tests/test_router.h"

typedef Forepack__Cluster__V1__NodeMessage node_message;

enum { BOUND_MS = 300000 };

// --- the node

static struct test_router router;

// Starts a node with this Hello, whose router has a port.
static struct node *start_node(int port, Forepack__Cluster__V1__Hello hello, struct node_callbacks callbacks)
{
    char address[32];
    snprintf(address, sizeof address, "127.0.0.1:%d", port);
    struct node *node;
    enum status status = node_start(&(struct node_router){.address = address}, &hello, &callbacks, &node);
    ck_assert_msg(status == STATUS_OK, "%s", status_message());
    return node;
}

static struct node *open_node(int port, const char *id)
{
    Forepack__Cluster__V1__Hello hello = FOREPACK__CLUSTER__V1__HELLO__INIT;
    hello.node_id = (char *)id;
    hello.role = FOREPACK__CLUSTER__V1__ROLE__ROLE_SPECULATOR;
    hello.vocab_size = 512;
    return start_node(port, hello, (struct node_callbacks){0});
}

// A node with a GPU, which gets into trouble.
struct node_gpu_state {
    Forepack__Cluster__V1__Gpu gpu, *list[1];
    atomic_int celsius;
    atomic_bool trouble;
};

static struct gpu_list read_gpus(void *arg)
{
    struct node_gpu_state *state = arg;
    state->gpu = (Forepack__Cluster__V1__Gpu)FOREPACK__CLUSTER__V1__GPU__INIT;
    state->gpu.temperature_given_case = FOREPACK__CLUSTER__V1__GPU__TEMPERATURE_GIVEN_TEMPERATURE_CELSIUS;
    state->gpu.temperature_celsius = (uint32_t)state->celsius;
    state->list[0] = &state->gpu;
    return (struct gpu_list){state->list, 1, state->trouble ? "rank 0: the GPU is lost" : NULL};
}

static struct node *open_node_with_gpu(int port, struct node_gpu_state *state)
{
    Forepack__Cluster__V1__Hello hello = FOREPACK__CLUSTER__V1__HELLO__INIT;
    hello.node_id = "gpu";
    hello.role = FOREPACK__CLUSTER__V1__ROLE__ROLE_WORKER;
    return start_node(port, hello, (struct node_callbacks){.gpus = read_gpus, .arg = state});
}

// Returns the next event, which must be of this kind.
static struct node_event expect_event(struct node *node, enum node_event_kind kind)
{
    struct node_event event;
    node_next(node, BOUND_MS, &event);
    ck_assert_int_eq(event.kind, kind);
    return event;
}

static void expect_work(struct node *node, uint64_t bin_id)
{
    struct node_event event = expect_event(node, NODE_MESSAGE);
    ck_assert_int_eq(event.message->kind_case, FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_SCORE_BIN);
    ck_assert_uint_eq(event.message->score_bin->bin_id, bin_id);
    node_event_free(&event);
}

static void send_result(struct node *node, uint64_t request)
{
    Forepack__Cluster__V1__ScoreResult result = FOREPACK__CLUSTER__V1__SCORE_RESULT__INIT, *results[] = {&result};
    Forepack__Cluster__V1__ScoreResults scored = FOREPACK__CLUSTER__V1__SCORE_RESULTS__INIT;
    result.request = request;
    scored.results = results;
    scored.n_results = 1;
    node_message message = FOREPACK__CLUSTER__V1__NODE_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_SCORED;
    message.scored = &scored;
    node_send(node, &message);
}

static void setup(void)
{
    node_block_signals();
    rpc_init();
    test_router_open(&router, 0);
}

static void teardown(void)
{
    test_router_close(&router);
    rpc_shutdown();
}

START_TEST(hello_work_results_and_heartbeats)
{
    struct node *node = open_node(router.port, "");
    struct node_event event;
    node_next(node, 0, &event); // does not wait
    ck_assert(event.kind == NODE_NOTHING || event.kind == NODE_ATTACHED);
    if (event.kind == NODE_NOTHING) expect_event(node, NODE_ATTACHED);
    ck_assert_int_eq(test_router_count(&router, &router.hellos), 1);
    const Forepack__Cluster__V1__Hello *hello = router.hello->hello;
    ck_assert_uint_eq(hello->vocab_size, 512);
    char host[65] = "", id[128];
    gethostname(host, sizeof host - 1);
    snprintf(id, sizeof id, "speculator-%s-%08x", host, (unsigned)(hello->instance >> 32));
    ck_assert_str_eq(hello->node_id, id);
    ck_assert_uint_ne(hello->instance, 0);
    ck_assert_uint_eq(hello->protocol, CLUSTER_PROTOCOL_VERSION);
    for (uint64_t i = 0; i < 100; i++)
        test_router_send_bin(&router, i, NULL, 0);
    for (uint64_t i = 0; i < 100; i++) {
        expect_work(node, i);
        send_result(node, 1000 + i);
    }
    test_router_await(&router, &router.results, 100);
    for (uint64_t i = 0; i < 100; i++)
        ck_assert_ptr_nonnull(test_router_result(&router, 1000 + i));
    node_set_load(node, &(struct node_load){.kv_blocks_free = 7, .running = 3, .waiting = 1});
    test_router_await_more(&router, &router.heartbeats, 3);
    test_router_await(&router, &router.load_running, 3); // earlier heartbeats may still be on their way
    test_router_await(&router, &router.load_last_bin, 99);
    send_result(node, 5); // queued messages arrive before the node leaves
    node_stop(node);
    test_router_await(&router, &router.half_closes, 1);
    ck_assert_int_eq(test_router_count(&router, &router.results), 101);
}
END_TEST

START_TEST(a_gpu_in_trouble_drains_the_node_once)
{
    struct node_gpu_state state = {.celsius = 40};
    struct node *node = open_node_with_gpu(router.port, &state);
    expect_event(node, NODE_ATTACHED);
    state.celsius = 55;
    test_router_await(&router, &router.load_gpu_celsius, 55);
    ck_assert_int_eq(test_router_count(&router, &router.load_gpus), 1);
    ck_assert_int_eq(test_router_count(&router, &router.drainings), 0);
    ck_assert_ptr_null(node_trouble(node));
    state.trouble = true;
    expect_event(node, NODE_DRAIN);
    test_router_await(&router, &router.drainings, 1);
    ck_assert_str_eq(router.drain_reason, "rank 0: the GPU is lost");
    ck_assert_str_eq(node_trouble(node), "rank 0: the GPU is lost");
    test_router_await_more(&router, &router.heartbeats, 2); // the node continues to work
    ck_assert_int_eq(test_router_count(&router, &router.drainings), 1);
    struct node_event event;
    node_next(node, 0, &event);
    ck_assert_int_eq(event.kind, NODE_NOTHING);
    node_stop(node);
}
END_TEST

// Its process must end with 0, although the GPU gets into trouble later.
START_TEST(a_node_that_was_told_to_drain_has_no_trouble)
{
    struct node_gpu_state state = {.celsius = 40};
    struct node *node = open_node_with_gpu(router.port, &state);
    expect_event(node, NODE_ATTACHED);
    kill(getpid(), SIGTERM);
    expect_event(node, NODE_DRAIN);
    state.trouble = true;
    test_router_await_more(&router, &router.heartbeats, 2);
    ck_assert_ptr_null(node_trouble(node));
    ck_assert_str_eq(router.drain_reason, "");
    node_stop(node);
}
END_TEST

START_TEST(a_node_attaches_to_a_restarted_router)
{
    struct node *node = open_node(router.port, "a");
    expect_event(node, NODE_ATTACHED);
    test_router_send_bin(&router, 1, NULL, 0);
    expect_work(node, 1);
    node_set_load(node, &(struct node_load){.kv_blocks_free = 7, .running = 1});
    test_router_await(&router, &router.load_last_bin, 1);
    test_router_send_bin(&router, 2, NULL,
                         0); // still in the mailbox when the router stops: the working thread never gets it
    test_router_await_more(&router, &router.heartbeats, 2);
    test_router_close(&router);
    test_router_open(&router, router.port);
    test_router_await(&router, &router.heartbeats,
                      2); // so the node is attached, but its working thread has not received NODE_ATTACHED
    node_set_load(node, &(struct node_load){.kv_blocks_free = 7});
    test_router_await_more(&router, &router.heartbeats, 2);
    ck_assert_int_eq(test_router_count(&router, &router.load_last_bin), 0); // not a bin of this router
    send_result(node, 1); // belongs to the old stream: must not reach the new router
    expect_event(node, NODE_DETACHED);
    send_result(node, 1); // also belongs to the old stream
    expect_event(node, NODE_ATTACHED);
    send_result(node, 2);
    test_router_await(&router, &router.results, 1);
    ck_assert_ptr_nonnull(test_router_result(&router, 2));
    ck_assert_str_eq(router.hello->hello->node_id, "a");
    test_router_send_bin(&router, 3, NULL, 0);
    expect_work(node, 3);
    node_stop(node);
    ck_assert_int_eq(test_router_count(&router, &router.results), 1);
}
END_TEST

START_TEST(a_wake_ends_one_wait_after_all_events)
{
    struct node *node = open_node(router.port, "sleeper");
    expect_event(node, NODE_ATTACHED);
    struct node_event event;
    node_wake(node);
    node_next(node, -1, &event); // otherwise it waits for ever
    ck_assert_int_eq(event.kind, NODE_NOTHING);
    node_wake(node);
    kill(getpid(), SIGTERM);
    while (node_next(node, 0, &event), event.kind == NODE_NOTHING)
        node_wake(node);
    ck_assert_int_eq(event.kind, NODE_DRAIN);
    node_next(node, -1, &event);
    ck_assert_int_eq(event.kind, NODE_NOTHING);
    node_stop(node);
}
END_TEST

START_TEST(a_node_may_start_before_its_router)
{
    test_router_close(&router); // its port is free now
    struct node *node = open_node(router.port, "late");
    node_stop(node); // does not hang
    node = open_node(router.port, "early");
    struct node_event event;
    node_next(node, 300, &event);
    ck_assert_int_eq(event.kind, NODE_NOTHING);
    test_router_open(&router, router.port);
    expect_event(node, NODE_ATTACHED);
    node_stop(node);
}
END_TEST

// A node without --node-id keeps the id that it has drawn. Two nodes of one host and process have different ids.
START_TEST(default_ids_are_unique_and_stay_the_same)
{
    struct test_router second;
    test_router_open(&second, 0);
    struct node *a = open_node(router.port, ""), *b = open_node(second.port, "");
    expect_event(a, NODE_ATTACHED);
    expect_event(b, NODE_ATTACHED);
    test_router_await(&router, &router.hellos, 1);
    test_router_await(&second, &second.hellos, 1);
    char *id = mem_string(router.hello->hello->node_id);
    uint64_t instance = router.hello->hello->instance;
    ck_assert_str_ne(id, second.hello->hello->node_id);
    test_router_send_bytes(&router, "\xff", 1); // a malformed message: it attaches again
    expect_event(a, NODE_DETACHED);
    expect_event(a, NODE_ATTACHED);
    test_router_await(&router, &router.hellos, 2);
    ck_assert_str_eq(router.hello->hello->node_id, id);
    ck_assert_uint_eq(router.hello->hello->instance, instance);
    free(id);
    node_stop(a);
    node_stop(b);
    test_router_close(&second);
}
END_TEST

START_TEST(a_refused_node_attaches_once_it_is_welcome)
{
    router.refuse = "tokenizer differs";
    struct node *node = open_node(router.port, "b");
    test_router_await(&router, &router.hellos, 3);
    pthread_mutex_lock(&router.mutex);
    router.refuse = NULL;
    pthread_mutex_unlock(&router.mutex);
    expect_event(node, NODE_ATTACHED);
    node_stop(node);
}
END_TEST

static atomic_int checks;

static void count_check(void *arg)
{
    checks++;
}

static uint64_t fixed_progress(void *arg)
{
    return 7;
}

// A node does not try to attach before the working thread has run the check.
START_TEST(a_node_checks_itself_before_every_attempt_to_attach)
{
    Forepack__Cluster__V1__Hello hello = FOREPACK__CLUSTER__V1__HELLO__INIT;
    const struct node_callbacks callbacks = {.check = count_check, .progress = fixed_progress};
    struct node *node = start_node(router.port, hello, callbacks);
    for (int stream = 1; stream <= 3; stream++) {
        usleep(stream == 1 ? 50000 : 0); // enough time to attach too early
        ck_assert_int_eq(checks, stream - 1);
        ck_assert_int_eq(test_router_count(&router, &router.hellos), stream - 1);
        expect_event(node, NODE_ATTACHED);
        ck_assert_int_eq(checks, stream);
        test_router_await(&router, &router.load_progress, 7);
        ck_assert_int_eq(test_router_count(&router, &router.hellos), stream);
        test_router_send_bytes(&router, "\xff", 1);
        expect_event(node, NODE_DETACHED);
    }
    node_stop(node); // although the check has not run
}
END_TEST

START_TEST(a_malformed_message_ends_the_stream_and_the_node_attaches_again)
{
    router.nonsense = true;
    struct node *node = open_node(router.port, "c");
    expect_event(node, NODE_ATTACHED); // the second time
    ck_assert_int_eq(test_router_count(&router, &router.hellos), 2);
    test_router_send_bytes(&router, "\xff", 1);
    expect_event(node, NODE_DETACHED);
    expect_event(node, NODE_ATTACHED);
    ck_assert_int_eq(test_router_count(&router, &router.hellos), 3);
    node_stop(node);
}
END_TEST

// --- signals: the node runs in a child process, whose exit code is its report

static void wait_child(pid_t child, int expected_code)
{
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status), "signal %d", WTERMSIG(status));
    ck_assert_int_eq(WEXITSTATUS(status), expected_code);
}

// The process of a node that works on one bin until the test lets it finish. gRPC starts here, after the fork.
static void node_process(int port, int may_finish)
{
    node_block_signals();
    struct node *node = open_node(port, "child");
    expect_event(node, NODE_ATTACHED);
    expect_work(node, 1);
    send_result(node, 0); // tells the test that it is working
    expect_event(node, NODE_DRAIN);
    char byte;
    if (read(may_finish, &byte, 1) != 1) _exit(3);
    send_result(node, 1);
    node_stop(node);
    _exit(0);
}

// The router runs in the test's process. That process must fork before it starts gRPC, so a pipe sends the port.
static pid_t fork_node(int finish[2])
{
    int ports[2];
    ck_assert_int_eq(pipe(ports), 0);
    ck_assert_int_eq(pipe(finish), 0);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (!child) {
        int port;
        if (read(ports[0], &port, sizeof port) != sizeof port) _exit(3);
        node_process(port, finish[0]);
    }
    rpc_init();
    test_router_open(&router, 0);
    ck_assert_int_eq(write(ports[1], &router.port, sizeof router.port), sizeof router.port);
    test_router_await(&router, &router.hellos, 1);
    test_router_send_bin(&router, 1, NULL, 0);
    test_router_await(&router, &router.results, 1);
    return child;
}

static void router_leave(void)
{
    test_router_close(&router);
    rpc_shutdown();
}

START_TEST(a_signal_drains)
{
    static const int signals[] = {SIGTERM, SIGINT, SIGUSR1};
    int finish[2];
    pid_t child = fork_node(finish);
    kill(child, signals[_i]);
    test_router_await(&router, &router.drainings, 1);
    ck_assert_int_eq(test_router_count(&router, &router.results), 1);
    test_router_await_more(&router, &router.heartbeats, 2); // the node is still alive
    ck_assert_int_eq(write(finish[1], "f", 1), 1);
    wait_child(child, 0);
    test_router_await(&router, &router.results, 2); // its work is done
    router_leave();
}
END_TEST

START_TEST(a_second_signal_quits)
{
    int finish[2];
    pid_t child = fork_node(finish);
    kill(child, SIGTERM);
    test_router_await(&router, &router.drainings, 1);
    kill(child, SIGTERM);
    wait_child(child, 1);
    test_router_await(&router, &router.closes, 1);
    ck_assert_int_eq(test_router_count(&router, &router.results), 1);
    router_leave();
}
END_TEST

// Sends a signal to this process and waits until it is handled.
static void signal_self(int signal)
{
    sigset_t pending;
    kill(getpid(), signal);
    do {
        sched_yield();
        sigpending(&pending);
    } while (sigismember(&pending, signal));
}

static void starting_process(bool twice)
{
    node_block_signals();
    start_signals_watch();
    signal_self(SIGTERM);
    if (twice) signal_self(SIGTERM);
    struct node *node = open_node(1, "child"); // no router: the signal alone ends the wait
    expect_event(node, NODE_DRAIN);
    node_stop(node);
    _exit(0);
}

START_TEST(a_signal_to_a_starting_node_drains_it_and_a_second_one_quits)
{
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (!child) starting_process(_i == 1);
    wait_child(child, _i);
}
END_TEST

START_TEST(a_killed_node_is_seen)
{
    int finish[2];
    pid_t child = fork_node(finish);
    kill(child, SIGKILL);
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
    test_router_await(&router, &router.closes, 1);
    router_leave();
}
END_TEST

START_TEST(bad_addresses_are_refused)
{
    struct node *node;
    Forepack__Cluster__V1__Hello hello = FOREPACK__CLUSTER__V1__HELLO__INIT;
    ck_assert_int_ne(
        node_start(&(struct node_router){.address = "nowhere"}, &hello, &(struct node_callbacks){0}, &node), STATUS_OK);
    ck_assert_ptr_nonnull(strstr(status_message(), "nowhere"));
}
END_TEST

SUITE("node")
{
    TCASE("link");
    TIMEOUT(60);
    FIXTURE(setup, teardown);
    TEST(hello_work_results_and_heartbeats);
    TEST(a_gpu_in_trouble_drains_the_node_once);
    TEST(a_node_that_was_told_to_drain_has_no_trouble);
    TEST(a_node_attaches_to_a_restarted_router);
    TEST(a_wake_ends_one_wait_after_all_events);
    TEST(a_node_may_start_before_its_router);
    TEST(default_ids_are_unique_and_stay_the_same);
    TEST(a_refused_node_attaches_once_it_is_welcome);
    TEST(a_node_checks_itself_before_every_attempt_to_attach);
    TEST(a_malformed_message_ends_the_stream_and_the_node_attaches_again);
    TEST(bad_addresses_are_refused);

    TCASE("signals");
    TIMEOUT(60);
    LOOP(a_signal_drains, 0, 3);
    TEST(a_second_signal_quits);
    LOOP(a_signal_to_a_starting_node_drains_it_and_a_second_one_quits, 0, 2);
    TEST(a_killed_node_is_seen);
}
