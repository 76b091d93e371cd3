// SPDX-License-Identifier: Apache-2.0
// router/sched/bin_planner: a bin fits the largest message a node takes, also when a prefix cache holds most of its
// rows.
#include <string.h>

#include "router/core/core_state.h"
#include "tests/core_case.h"

enum { PROMPT = 1 << 19, N = 40, MESSAGE_BYTES = 64 << 20, TOKEN_BYTES = 5 };

static void start(void)
{
    fixture_init(&f);
    f.options.max_queue_tokens = INT64_C(1) << 40;
    fixture_start(&f);
}

static struct client *put(int n_tokens, enum prefill_mode mode)
{
    struct client *client = fixture_request(&f, n_tokens, 4);
    for (int i = 0; i < n_tokens; i++)
        client->r->spec.tokens[i] = i % VOCAB;
    client->r->spec.prefill.mode = mode;
    client->r->spec.sampling.repetition_penalty = 2; // the penalty counts pruned tokens: they travel too
    fixture_submit(&f, client);
    return client;
}

START_TEST(a_bin_of_shared_prompts_fits_a_message)
{
    enum node_role role = _i ? NODE_WORKER : NODE_SPECULATOR;
    struct node_hello hello = fixture_hello(role, "node"), worker = fixture_hello(NODE_WORKER, "worker");
    hello.context_tokens = worker.context_tokens = 2 * PROMPT;
    hello.token_budget = 2 * PROMPT;
    hello.kv_blocks = N * (PROMPT / 16 + 64);
    hello.prefix_cache = true;
    struct fake_node *node = fixture_attach(&f, &hello);
    if (role == NODE_SPECULATOR) fixture_attach(&f, &worker);
    for (int i = 0; i < N; i++)
        put(PROMPT, _i ? PREFILL_OFF : PREFILL_ON);
    fixture_advance(&f, 0);
    ck_assert_int_ge(node->bins, 1);
    ck_assert_int_ge(node->last_bin_items, 2);
    int64_t numbers = (int64_t)node->last_bin_rows * (_i ? 2 : 1);
    ck_assert_int_le(TOKEN_BYTES * numbers, MESSAGE_BYTES);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("bin_message");
    TCase *all = tcase_create("all");
    tcase_add_checked_fixture(all, start, teardown);
    tcase_add_loop_test(all, a_bin_of_shared_prompts_fits_a_message, 0, 2);
    tcase_set_timeout(all, 60);
    suite_add_tcase(suite, all);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
