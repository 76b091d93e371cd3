// SPDX-License-Identifier: Apache-2.0
// router/core: one tenant cannot fill the queue.
#include <string.h>

#include "lib/base/mem.h"
#include "tests/core_case.h"
#include "tests/suite.h"

static const struct tenant_weight weights[] = {{"gold", 2}, {"silver", 1}};

static void start(int percent, int n_weights)
{
    fixture_init(&f);
    f.options.max_queue_requests = 100;
    f.options.max_queue_tokens = 10000;
    f.options.tenant_queue_percent = percent;
    f.options.tenant_weights = weights;
    f.options.n_tenant_weights = n_weights;
    fixture_start(&f);
    struct node_hello hello = fixture_hello(NODE_WORKER, "worker-0");
    fixture_attach(&f, &hello);
}

// Submits requests of `n_tokens` until one is refused. Returns how many were accepted.
static int fill(const char *tenant, int n_tokens, const char *reason)
{
    for (int n = 0;; n++) {
        struct client *client = fixture_put(&f, tenant, n_tokens, 0); // no tick: all of them wait
        if (!client->ends) continue;
        ck_assert_int_eq(client->status, STATUS_EXHAUSTED);
        ck_assert_msg(strstr(client->message, reason) != NULL, "%s", client->message);
        return n;
    }
}

START_TEST(a_tenant_alone_fills_its_part_and_others_fill_the_rest)
{
    start(80, 0);
    ck_assert_int_eq(fill("greedy", 1, "the queue is full for this tenant: 80 of its requests"), 80);
    ck_assert_int_eq(fill("other", 1, "for this tenant: 16 of its requests"), 16);
    ck_assert_int_eq(fill(NULL, 1, "for this tenant: 3 of its requests"), 3);
    fixture_advance(&f, SECOND); // the node gets the waiting requests: there is room again
    ck_assert_int_gt(fill("greedy", 1, "for this tenant"), 0);
}
END_TEST

START_TEST(tokens_are_bounded_too)
{
    start(50, 0);
    ck_assert_int_eq(fill("greedy", 1000, "for this tenant: 5 of its requests with 5000 prompt tokens"), 5);
    ck_assert_int_eq(fill("other", 500, "for this tenant"), 5);
}
END_TEST

static struct client *put_with_grammar(int n_tokens, size_t text_bytes)
{
    struct client *client = fixture_request(&f, n_tokens, 4);
    char *text = mem_alloc(text_bytes + 1);
    memset(text, 'a', text_bytes);
    client->r->spec.sampling.grammar = grammar_spec_of(GRAMMAR_REGEX, text);
    client->r->spec.prefill.mode = PREFILL_OFF;
    fixture_submit(&f, client);
    return client;
}

static void check_waiting_tokens(int64_t expected)
{
    struct core_status status = fixture_status(&f);
    ck_assert_int_eq(status.waiting_tokens, expected);
    core_status_fini(&status);
}

START_TEST(four_bytes_of_a_grammar_count_as_a_token)
{
    start(0, 0);
    ck_assert_int_eq(put_with_grammar(10, 4 * 4990 - 3)->ends, 0);
    ck_assert_int_eq(put_with_grammar(10, 4 * 4980)->ends, 0);
    check_waiting_tokens(9990);
    struct client *third = put_with_grammar(10, 1);
    ck_assert_int_eq(third->status, STATUS_EXHAUSTED);
    ck_assert_str_eq(
        third->message,
        "the queue is full: prompts of 9990 tokens wait and this one has 11 (its resumed tokens count, and 4 bytes of "
        "its grammar, stop strings, texts to compress and turns' pinned ranges count as one); the limit for normal "
        "priority is 10000; try again later");
    ck_assert_int_eq(put_with_grammar(1, 40000)->status, STATUS_OUT_OF_RANGE);
    ck_assert_int_eq(put_with_grammar(9, 4)->ends, 0);
    fixture_advance(&f, SECOND); // the node gets the waiting requests
    check_waiting_tokens(0);
}
END_TEST

START_TEST(tenants_without_a_weight_share_one_part)
{
    start(50, 2);
    ck_assert_int_eq(fill("fresh-0", 1, "for this tenant"), 50);
    struct client *refused = fixture_put(&f, "fresh-1", 1, 0);
    ck_assert_int_eq(refused->status, STATUS_EXHAUSTED); // a new name does not help
    ck_assert_int_eq(fill("gold", 1, "for this tenant"), 25);
}
END_TEST

START_TEST(without_a_bound_one_tenant_fills_the_queue)
{
    start(0, 0);
    ck_assert_int_eq(fill("greedy", 1, "the queue is full: 100 requests wait"), 100);
}
END_TEST

SUITE("tenant queue share")
{
    FIXTURE(NULL, teardown);
    TEST(a_tenant_alone_fills_its_part_and_others_fill_the_rest);
    TEST(tokens_are_bounded_too);
    TEST(four_bytes_of_a_grammar_count_as_a_token);
    TEST(tenants_without_a_weight_share_one_part);
    TEST(without_a_bound_one_tenant_fills_the_queue);
}
