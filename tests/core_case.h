// SPDX-License-Identifier: Apache-2.0
// A fixture that gives each test a new core: tcase_add_checked_fixture(tcase, setup, teardown).
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

static inline void finish(struct fake_node *node, struct client *client)
{
    fake_node_step(&f, node, client, 0, 1, FINISH_REASON_STOP);
}
