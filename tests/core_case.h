// SPDX-License-Identifier: Apache-2.0
// A fixture that gives each test a new core: FIXTURE(setup, teardown).
#pragma once

#include "tests/core_fixture.h"

static struct fixture f;

static inline void setup(void)
{
    fixture_init(&f);
    fixture_start(&f);
}

static void teardown(void)
{
    fixture_stop(&f);
}

// Starts the core again, with the options as the test has changed them.
static inline void restart(void)
{
    struct core_options options = f.options;
    fixture_stop(&f);
    fixture_init(&f);
    f.options = options;
    fixture_start(&f);
}

static inline struct fake_node *attach_worker(const char *id)
{
    struct node_hello hello = fixture_hello(NODE_WORKER, id);
    return fixture_attach(&f, &hello);
}

static inline struct fake_node *attach_speculator(const char *id)
{
    struct node_hello hello = fixture_hello(NODE_SPECULATOR, id);
    return fixture_attach(&f, &hello);
}

// Attaches a worker group with a wrong clock. According to its reports, its longest pass takes more microseconds than
// 64 bits hold.
static inline struct fake_node *worker_with_wrong_clock(void)
{
    static const struct pass_cost passes[] = {{1, 1, 17000000, false},
                                              {1, 100, 1700000000, false},
                                              {1, 200, 3400000000, false},
                                              {250, 250, 4250000000, false}};
    struct node_hello hello = fixture_hello(NODE_WORKER, "w");
    hello.context_tokens = hello.token_budget = 1 << 20;
    struct fake_node *w = fixture_attach(&f, &hello);
    for (int i = 0; i < 100; i++)
        core_passed(f.c, w->node, &passes[i % 4], f.now_us);
    return w;
}

static inline void finish(struct fake_node *node, struct client *client)
{
    fake_node_step(&f, node, client, 0, 1, FINISH_REASON_STOP);
}

// Submits a request that asks for speculation.
static inline struct client *speculate(int n_tokens, int max_tokens)
{
    struct client *client = fixture_request(&f, n_tokens, max_tokens);
    client->r->spec.prefill.mode = PREFILL_ON;
    fixture_submit(&f, client);
    fixture_advance(&f, 0);
    return client;
}

static inline void ck_ended(const struct client *client, enum finish_reason reason, enum status status)
{
    ck_assert_msg(client->ends == 1, "not ended");
    ck_assert_msg(client->reason == reason, "ended with %s: %s", finish_reason_name(client->reason), client->message);
    ck_assert_msg(client->status == status, "ended with %s: %s", status_name(client->status), client->message);
}

static inline void ck_counts_up(const struct client *client, int n)
{
    ck_assert_int_eq(client->n_tokens, n);
    for (int i = 0; i < n; i++)
        ck_assert_int_eq(client->tokens[i], i);
}
