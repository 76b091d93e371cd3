// SPDX-License-Identifier: Apache-2.0
// Prefix caches: equal prompts with different salts share no block, neither in the cache of a node nor in the router's
// record of it.
#include <stdlib.h>

#include "engine/prefix_cache.h"
#include "tests/core_fixture.h"
#include "tests/suite.h"

enum { PROMPT = 64, CACHED = PROMPT / KV_BLOCK_TOKENS - 1 };

static struct prefix_rows rows_with(uint64_t salt)
{
    static int32_t tokens[PROMPT];
    for (int i = 0; i < PROMPT; i++)
        tokens[i] = 3 + i;
    return (struct prefix_rows){.token = tokens, .n = PROMPT, .salt = salt};
}

START_TEST(a_node_shares_blocks_among_equal_salts_only)
{
    struct block_manager *manager = block_manager_create(16);
    struct prefix_rows mine = rows_with(7), same = rows_with(7), other = rows_with(8), none = rows_with(0);
    int32_t blocks[PROMPT / KV_BLOCK_TOKENS];
    int n_published = 0;
    kv_chain chain = 0;
    ck_assert(block_manager_allocate(manager, PROMPT / KV_BLOCK_TOKENS, blocks));
    prefix_cache_publish(manager, &mine, PROMPT, blocks, &n_published, &chain);
    ck_assert_int_eq(n_published, PROMPT / KV_BLOCK_TOKENS);
    struct prefix_match match = {0};
    ck_assert_int_eq(prefix_cache_lookup(manager, &same, &match), CACHED);
    match = (struct prefix_match){0};
    ck_assert_int_eq(prefix_cache_lookup(manager, &other, &match), 0);
    ck_assert_int_eq(prefix_cache_lookup(manager, &none, &match), 0);
    ck_assert(prefix_cache_worth_waiting(&same, 0, &mine, 0));
    ck_assert(!prefix_cache_worth_waiting(&other, 0, &mine, 0));
    block_manager_release(manager, blocks, PROMPT / KV_BLOCK_TOKENS);
    block_manager_free(manager);
}
END_TEST

static struct fixture f;

// Sends the prompt with this salt to the worker. Returns the rows that the router expects the worker to compute.
static int rows_expected(struct fake_node *worker, uint64_t salt)
{
    struct client *client = fixture_request(&f, PROMPT, 1);
    for (int i = 0; i < PROMPT; i++)
        client->r->spec.tokens[i] = 3 + i;
    client->r->spec.prefill.mode = PREFILL_OFF;
    client->r->spec.prefix_salt = salt;
    fixture_submit(&f, client);
    fixture_advance(&f, 1);
    int rows = client->r->account.rows;
    fake_node_step(&f, worker, client, 1, 1, FINISH_REASON_LENGTH);
    return rows;
}

START_TEST(the_router_expects_blocks_to_be_shared_among_equal_salts_only)
{
    fixture_init(&f);
    fixture_start(&f);
    struct node_hello hello = fixture_hello(NODE_WORKER, "w");
    hello.prefix_cache = true;
    struct fake_node *worker = fixture_attach(&f, &hello);
    ck_assert_int_eq(rows_expected(worker, 7), PROMPT);
    ck_assert_int_eq(rows_expected(worker, 8), PROMPT);
    ck_assert_int_eq(rows_expected(worker, 7), PROMPT - CACHED * KV_BLOCK_TOKENS);
    ck_assert_int_eq(rows_expected(worker, 8), PROMPT - CACHED * KV_BLOCK_TOKENS);
    ck_assert_int_eq(rows_expected(worker, 0), PROMPT);
    fixture_stop(&f);
}
END_TEST

SUITE("prefix_salt")
{
    TEST(a_node_shares_blocks_among_equal_salts_only);
    TEST(the_router_expects_blocks_to_be_shared_among_equal_salts_only);
}
