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
