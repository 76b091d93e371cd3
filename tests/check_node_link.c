// SPDX-License-Identifier: Apache-2.0
// router/front/node_link: which strings, capacities and times of a Hello the router accepts, and late messages.
#include <stdio.h>
#include <string.h>

#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/version.h"
#include "lib/messages/unpack.h"
#include "router/core/core_state.h"
#include "router/front/nodes/message_window.h"
#include "router/front/nodes/node_link.h"
#include "tests/suite.h"
#include "tests/test_data.h"

enum { VOCAB = 500, NOW_US = 1000000 };

static struct {
    struct core *core;
    struct node_link link;
    bool refused, finished;
    char reason[200];
} f;

static void link_send(struct node_link *link, const Forepack__Cluster__V1__RouterMessage *m)
{
    f.refused = m->kind_case == FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_REFUSED;
    snprintf(f.reason, sizeof f.reason, "%s", f.refused ? m->refused->reason : "");
}

static void link_finish(struct node_link *link, enum status status, const char *reason)
{
    f.finished = true;
}

static const char *link_peer(const struct node_link *link)
{
    return "test";
}

static const struct node_link_ops link_ops = {.send = link_send, .finish = link_finish, .peer = link_peer};

static void ready_changed(void *user, bool ready)
{
}

static void setup(void)
{
    log_setup("test", LOG_ERROR);
    const struct core_options options = {
        .worker_grace_us = 1000000, .heartbeat_us = 1000000, .tokenizer_fingerprint = 77, .vocab_size = VOCAB};
    struct core_ops ops = {.ready_changed = ready_changed};
    node_link_core_ops(&ops);
    f.core = core_create(&options, &ops);
    f.link = (struct node_link){.ops = &link_ops, .heartbeat_ms = 1000};
}

static void teardown(void)
{
    node_link_closed(&f.link, f.core, NOW_US);
    core_free(f.core);
}

static Forepack__Cluster__V1__Hello make_hello(void)
{
    Forepack__Cluster__V1__Hello m = FOREPACK__CLUSTER__V1__HELLO__INIT;
    m.protocol = CLUSTER_PROTOCOL_VERSION;
    m.role = FOREPACK__CLUSTER__V1__ROLE__ROLE_WORKER;
    m.node_id = m.host = m.version = m.backend = m.dtype = m.kv_dtype = "text";
    m.instance = m.model_fingerprint = m.ranks = 1;
    m.tokenizer_fingerprint = 77;
    m.vocab_size = VOCAB;
    m.context_tokens = m.token_budget = 256;
    m.block_tokens = 16;
    m.kv_blocks = 64;
    m.max_seqs = 8;
    return m;
}

static void say_hello(Forepack__Cluster__V1__Hello *hello)
{
    Forepack__Cluster__V1__NodeMessage m = FOREPACK__CLUSTER__V1__NODE_MESSAGE__INIT;
    m.kind_case = FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_HELLO;
    m.hello = hello;
    f.link.ended = false; // every Hello begins a stream
    node_link_handle(&f.link, f.core, &m, NOW_US);
}

START_TEST(a_control_character_in_a_string_is_refused)
{
    static char *const texts[] = {"a\x1b[2J",
                                  "a\nb",
                                  "\x7f",
                                  "\xc2\x9b"
                                  "2J",
                                  "\xe2\x80\xae"
                                  "a",
                                  "\xe2\x81\xa6"
                                  "a"};
    Forepack__Cluster__V1__Hello hello = make_hello();
    char **const fields[] = {&hello.node_id, &hello.host,  &hello.version,
                             &hello.backend, &hello.dtype, &hello.kv_dtype};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        *fields[i] = texts[_i];
        f.refused = f.finished = false;
        say_hello(&hello);
        ck_assert_msg(f.refused, "field %zu", i);
        ck_assert_msg(f.finished, "field %zu", i);
        ck_assert_msg(!f.link.node, "field %zu", i);
        ck_assert_msg(strstr(f.reason, "without control characters") != NULL, "%s", f.reason);
        *fields[i] = "text";
    }
}
END_TEST

START_TEST(a_name_may_have_any_letters)
{
    Forepack__Cluster__V1__Hello hello = make_hello();
    hello.node_id = "Knoten-\xc3\xa4";
    hello.host = "\xe6\x9c\xba \xf0\x9f\x98\x80";
    say_hello(&hello);
    ck_assert_msg(!f.refused, "%s", f.reason);
    ck_assert_ptr_nonnull(f.link.node);
}
END_TEST

// A capacity of a Hello as a node may send it. On the wire it has 64 bits, of which the router reads 32.
static const struct {
    uint64_t value;
    bool accepted;
} capacities[] = {
    {0, false}, {(uint64_t)-1, false}, {UINT64_C(1) << 63, false}, {INT32_MAX, false}, {INT32_MAX / 2, true}, {2, true},
};

START_TEST(an_absurd_capacity_is_refused_by_name)
{
    Forepack__Cluster__V1__Hello hello = make_hello();
    const struct {
        const char *name;
        uint32_t *field;
    } fields[] = {{"ranks", &hello.ranks},
                  {"context_tokens", &hello.context_tokens},
                  {"max_seqs", &hello.max_seqs},
                  {"kv_blocks", &hello.kv_blocks},
                  {"block_tokens", &hello.block_tokens},
                  {"token_budget", &hello.token_budget}};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        uint32_t before = *fields[i].field;
        *fields[i].field = (uint32_t)capacities[_i].value;
        bool accepted = capacities[_i].accepted && (i < 5 || capacities[_i].value <= 1 << 20);
        f.refused = false;
        say_hello(&hello);
        ck_assert_msg(f.refused == !accepted, "%s: %s", fields[i].name, f.reason);
        ck_assert_msg(accepted || strstr(f.reason, fields[i].name), "%s: %s", fields[i].name, f.reason);
        ck_assert_msg(accepted || strstr(f.reason, "must be from 1 to "), "%s: %s", fields[i].name, f.reason);
        *fields[i].field = before;
        node_link_closed(&f.link, f.core, NOW_US);
        f.link.greeted = false;
    }
}
END_TEST

// Stages of a Hello with 8 ranks.
static const struct {
    Forepack__Cluster__V1__Role role;
    uint32_t stages;
    int read;         // 0: refused
    const char *part; // of the reason
} stages[] = {
    {FOREPACK__CLUSTER__V1__ROLE__ROLE_WORKER, 0, 1, NULL},
    {FOREPACK__CLUSTER__V1__ROLE__ROLE_WORKER, 2, 2, NULL},
    {FOREPACK__CLUSTER__V1__ROLE__ROLE_WORKER, 8, 8, NULL},
    {FOREPACK__CLUSTER__V1__ROLE__ROLE_WORKER, 3, 0, "stages 3: must divide its 8 ranks"},
    {FOREPACK__CLUSTER__V1__ROLE__ROLE_WORKER, 16, 0, "stages 16: must divide its 8 ranks"},
    {FOREPACK__CLUSTER__V1__ROLE__ROLE_WORKER, 129, 0, "stages 129: must be from 1 to 128"},
    {FOREPACK__CLUSTER__V1__ROLE__ROLE_WORKER, UINT32_MAX, 0, "must be from 1 to 128"},
    {FOREPACK__CLUSTER__V1__ROLE__ROLE_SPECULATOR, 1, 1, NULL},
    {FOREPACK__CLUSTER__V1__ROLE__ROLE_SPECULATOR, 2, 0, "a speculator has one"},
};

START_TEST(stages_divide_the_ranks_of_a_worker_group)
{
    Forepack__Cluster__V1__Hello hello = make_hello();
    hello.ranks = 8;
    hello.role = stages[_i].role;
    hello.stages = stages[_i].stages;
    say_hello(&hello);
    ck_assert_msg(f.refused == !stages[_i].read, "%s", f.reason);
    if (f.refused)
        ck_assert_msg(strstr(f.reason, stages[_i].part) != NULL, "%s", f.reason);
    else
        ck_assert_int_eq(f.link.node->hello.stages, stages[_i].read);
}
END_TEST

// A latency below the time in a stage, such as 0 from older nodes, is no measurement.
START_TEST(the_latency_of_measured_passes_is_summed)
{
    Forepack__Cluster__V1__MeasuredPass passes[3], *list[] = {&passes[0], &passes[1], &passes[2]};
    const uint32_t latencies[] = {0, 4000, UINT32_MAX};
    Forepack__Cluster__V1__Hello hello = make_hello();
    for (int i = 0; i < 3; i++) {
        forepack__cluster__v1__measured_pass__init(&passes[i]);
        passes[i].rows = 64;
        passes[i].pairs = 64 * 65 / 2;
        passes[i].us = 1000;
        passes[i].latency_us = latencies[i];
    }
    hello.measured = list;
    hello.n_measured = 3;
    say_hello(&hello);
    ck_assert(!f.refused);
    ck_assert_int_eq(f.link.node->hello.stage_us, 2000);
    ck_assert_int_eq(f.link.node->hello.latency_us, 4000 + INT64_C(0xffffffff));
}
END_TEST

// Measured passes that no node can have computed are left out. The node is accepted with the others.
START_TEST(impossible_measured_passes_are_left_out)
{
    Forepack__Cluster__V1__MeasuredPass passes[] = {FOREPACK__CLUSTER__V1__MEASURED_PASS__INIT,
                                                    FOREPACK__CLUSTER__V1__MEASURED_PASS__INIT,
                                                    FOREPACK__CLUSTER__V1__MEASURED_PASS__INIT};
    Forepack__Cluster__V1__MeasuredPass *list[] = {&passes[0], &passes[1], &passes[2]};
    passes[1].rows = UINT32_MAX;
    passes[1].pairs = UINT64_MAX;
    passes[1].us = UINT32_MAX;
    passes[2].rows = 64;
    passes[2].pairs = 64 * 65 / 2;
    passes[2].us = 1000;
    Forepack__Cluster__V1__Hello hello = make_hello();
    hello.measured = list;
    hello.n_measured = 3;
    say_hello(&hello);
    ck_assert(!f.refused);
    double us = cost_pass_us(&f.link.node->sched.cost, 1, 64, 64 * 65 / 2);
    ck_assert_double_ge(us, 900);
    ck_assert_double_le(us, 1100);
}
END_TEST

static void report_loading(struct node_link *link)
{
    Forepack__Cluster__V1__Loading loading = FOREPACK__CLUSTER__V1__LOADING__INIT;
    loading.protocol = CLUSTER_PROTOCOL_VERSION;
    loading.role = FOREPACK__CLUSTER__V1__ROLE__ROLE_WORKER;
    loading.node_id = loading.host = loading.version = "text";
    loading.instance = loading.ranks = 1;
    Forepack__Cluster__V1__NodeMessage m = FOREPACK__CLUSTER__V1__NODE_MESSAGE__INIT;
    m.kind_case = FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_LOADING;
    m.loading = &loading;
    node_link_handle(link, f.core, &m, NOW_US);
}

START_TEST(versions_of_the_protocol_from_the_release_before_on_are_accepted)
{
    Forepack__Cluster__V1__Hello hello = make_hello();
    hello.protocol = CLUSTER_PROTOCOL_OLDEST;
    say_hello(&hello);
    ck_assert_msg(!f.refused, "%s", f.reason);
    teardown();
    setup();

    hello.protocol = CLUSTER_PROTOCOL_OLDEST - 1;
    say_hello(&hello);
    ck_assert(f.refused);
    ck_assert_msg(strstr(f.reason, "upgrade the node") != NULL, "%s", f.reason);
    hello.protocol = CLUSTER_PROTOCOL_VERSION + 1;
    say_hello(&hello);
    ck_assert(f.refused);
    ck_assert_msg(strstr(f.reason, "upgrade the router first") != NULL, "%s", f.reason);
}
END_TEST

// Bytes that a node of version 0.1.0 sent. When CLUSTER_PROTOCOL_OLDEST exceeds 3, the router refuses them.
START_TEST(the_hello_of_release_0_1_0_is_understood)
{
    char *path = repository_data("release-0.1.0/messages/forepack.cluster.v1.NodeMessage-hello.pb");
    uint8_t bytes[1024];
    FILE *file = fopen(path, "rb");
    ck_assert_msg(file != NULL, "%s", path);
    size_t size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    free(path);
    Forepack__Cluster__V1__NodeMessage *m =
        proto_unpack(&forepack__cluster__v1__node_message__descriptor, bytes, size, sizeof bytes * 64, NULL);
    ck_assert_msg(m != NULL, "%s", status_message());
    node_link_handle(&f.link, f.core, m, NOW_US);
    ck_assert_int_eq(f.refused, CLUSTER_PROTOCOL_OLDEST > 3);
    if (!f.refused) ck_assert_str_eq(f.link.node->hello.node_id, "worker-a");
    forepack__cluster__v1__node_message__free_unpacked(m, NULL);
}
END_TEST

// The first stream has broken, and a report of it still arrives after the process reports on a second stream.
START_TEST(a_late_message_of_an_ended_stream_is_ignored)
{
    struct node_link second = {.ops = &link_ops, .heartbeat_ms = 1000};
    report_loading(&f.link);
    ck_assert_msg(!f.refused, "%s", f.reason);
    ck_assert_ptr_nonnull(f.link.loading);
    report_loading(&second);
    ck_assert(f.finished);
    ck_assert_ptr_nonnull(second.loading);
    f.finished = false;
    report_loading(&f.link);
    ck_assert(!f.finished);
    ck_assert_ptr_null(f.link.loading);
    ck_assert_ptr_nonnull(second.loading);
    node_link_closed(&second, f.core, NOW_US);
}
END_TEST

START_TEST(a_node_may_send_100000_messages_in_5_seconds)
{
    const int64_t begun_us = 10 * NOW_US;
    struct message_window window = {0};
    for (int i = 0; i < 100000; i++)
        ck_assert_int_eq(message_window_add(&window, begun_us + i), STATUS_OK);
    ck_assert_int_eq(message_window_add(&window, begun_us + 5000000), STATUS_EXHAUSTED);
    ck_assert_str_eq(status_message(), "the node sent over 100000 messages in 5 s");
    ck_assert_int_eq(message_window_add(&window, begun_us + 5000001), STATUS_OK);
}
END_TEST

SUITE("node_link")
{
    FIXTURE(setup, teardown);
    LOOP(a_control_character_in_a_string_is_refused, 0, 6);
    TEST(a_name_may_have_any_letters);
    EACH(an_absurd_capacity_is_refused_by_name, capacities);
    EACH(stages_divide_the_ranks_of_a_worker_group, stages);
    TEST(the_latency_of_measured_passes_is_summed);
    TEST(impossible_measured_passes_are_left_out);
    TEST(versions_of_the_protocol_from_the_release_before_on_are_accepted);
    TEST(the_hello_of_release_0_1_0_is_understood);
    TEST(a_late_message_of_an_ended_stream_is_ignored);
    TEST(a_node_may_send_100000_messages_in_5_seconds);
}
