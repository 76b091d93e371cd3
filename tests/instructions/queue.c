// SPDX-License-Identifier: Apache-2.0
// Measures the router's queue with 10,000 prompts: the arrival of each prompt, then the packing of all prompts into
// bins of worker groups that have room for them.
#include <stdio.h>

#include "lib/base/mem.h"
#include "lib/base/random.h"
#include "tests/core_fixture.h"
#include "tests/instructions/rows.h"

enum { PROMPTS = 10000, GROUPS = 4, LONGEST = 1000, TENANTS = 8 };

static struct fixture f;
static struct client *clients[PROMPTS];

static void groups_attach(void)
{
    for (int i = 0; i < GROUPS; i++) {
        struct node_hello hello = fixture_hello(NODE_WORKER, "");
        snprintf(hello.node_id, sizeof hello.node_id, "group-%d", i);
        hello.token_budget = 2048;
        hello.max_seqs = NODE_REQUESTS_MAX;
        hello.kv_blocks = 1 << 24;
        fixture_attach(&f, &hello);
    }
}

static void queue_open(void)
{
    fixture_init(&f);
    f.options.max_queue_requests = PROMPTS;
    f.options.max_queue_tokens = INT64_MAX / 2;
    f.options.bins_ahead = PROMPTS;
    fixture_start(&f);
    groups_attach();
    struct random_source random = random_stream(1, 1);
    for (int i = 0; i < PROMPTS; i++) {
        int n = 1 + (int)(random_next(&random) % LONGEST);
        clients[i] = fixture_request(&f, n, 4);
        struct request_spec *spec = &clients[i]->r->spec;
        spec->prefill.mode = PREFILL_OFF;
        char tenant[16];
        snprintf(tenant, sizeof tenant, "tenant-%d", i % TENANTS);
        spec->tenant = mem_string(tenant);
        for (int t = 0; t < n; t++)
            spec->tokens[t] = (int32_t)(random_next(&random) % VOCAB);
    }
}

static void queue_submit(void)
{
    for (int i = 0; i < PROMPTS; i++)
        fixture_submit(&f, clients[i]);
}

long row_queue_submit(void)
{
    queue_open();
    counting_begin();
    queue_submit();
    counting_end();
    return PROMPTS;
}

long row_queue_pack(void)
{
    queue_open();
    queue_submit();
    counting_begin();
    fixture_advance(&f, 0);
    counting_end();
    int packed = 0;
    for (int i = 0; i < GROUPS; i++)
        packed += f.nodes[i]->n_requests;
    ck_assert_int_eq(packed, PROMPTS);
    return PROMPTS;
}
