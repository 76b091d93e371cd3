// SPDX-License-Identifier: Apache-2.0
// router/front/node_link: which strings of a Hello the router accepts.
#include <stdio.h>
#include <string.h>

#include "lib/base/log.h"
#include "lib/base/version.h"
#include "router/front/nodes/node_link.h"
#include "tests/suite.h"

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

SUITE("node_link")
{
    FIXTURE(setup, teardown);
    LOOP(a_control_character_in_a_string_is_refused, 0, 6);
    TEST(a_name_may_have_any_letters);
}
