// SPDX-License-Identifier: Apache-2.0
// router/sched/bin_planner: prompts longer than a pass together with prompts that fit one. Times are counted in passes.
#include "router/core/core_state.h"
#include "tests/core_case.h"
#include "tests/pass_group.h"
#include "tests/suite.h"

enum { LONG = 14000, SHORT = 64, BUDGET = 2048 };

static struct pass_group group;

static bool prefix_cache; // of the nodes

static struct fake_node *attach(enum node_role role, const char *id)
{
    struct node_hello hello = fixture_hello(role, id);
    hello.prefix_cache = prefix_cache;
    hello.context_tokens = 1 << 17;
    hello.token_budget = BUDGET;
    hello.kv_blocks = 1 << 14;
    hello.max_seqs = 256;
    return fixture_attach(&f, &hello);
}

static void start_group(void)
{
    group = (struct pass_group){.f = &f, .node = attach(NODE_WORKER, "w"), .token_budget = BUDGET};
}

// Returns the number of passes until the request has its first token.
static int passes_until_token(const struct client *client)
{
    int from = group.passes;
    while (!client->n_tokens) {
        ck_assert_int_lt(group.passes - from, 100);
        pass_group_run(&group);
    }
    return group.passes - from;
}

START_TEST(short_prompts_have_their_first_token_two_passes_after_two_long_ones)
{
    start_group();
    struct client *first = fixture_put(&f, NULL, LONG, 0), *second = fixture_put(&f, NULL, LONG, 0), *later[5];
    fixture_advance(&f, 0);
    pass_group_run(&group);
    for (int i = 0; i < 5; i++)
        later[i] = fixture_send(&f, SHORT, 4);
    for (int i = 0; i < 5; i++)
        ck_assert_int_le(passes_until_token(later[i]), 2);
    ck_assert(!first->n_tokens);
    ck_assert(!second->n_tokens);
    ck_assert_int_le(passes_until_token(first), 8); // 14,000 rows are seven passes
    ck_assert_int_le(passes_until_token(second), 8);
}
END_TEST

// However many overdue long prompts wait, a plan has room for short ones. With a prefix cache each long prompt might be
// short enough, so a plan examines them one by one.
START_TEST(a_crowd_of_overdue_long_prompts_does_not_delay_short_ones)
{
    prefix_cache = _i;
    f.options.max_queue_requests = 10000;
    f.options.max_queue_tokens = INT64_MAX / 2;
    restart();
    start_group();
    for (int i = 0; i < 5000; i++)
        fixture_put_with_head(&f, prefix_cache ? LONG / 3 : 0, 1, LONG, NULL);
    fixture_advance(&f, 0);
    for (int round = 0; round < 20; round++) {
        fixture_advance(&f, SECOND / 4);
        ck_assert_int_le(passes_until_token(fixture_send(&f, SHORT, 4)), 2);
    }
    ck_assert_int_gt(f.c->waiting[NODE_WORKER].overdue.count, 4900);
}
END_TEST

START_TEST(a_group_computes_one_long_prompt_at_a_time)
{
    start_group();
    struct client *all[3];
    for (int i = 0; i < 3; i++)
        all[i] = fixture_put(&f, NULL, LONG, 0);
    fixture_advance(&f, 0);
    ck_assert_ptr_nonnull(all[0]->r->account.node);
    ck_assert_ptr_null(all[1]->r->account.node);
    ck_assert_ptr_null(all[2]->r->account.node);
    passes_until_token(all[0]);
    ck_assert_ptr_nonnull(all[1]->r->account.node);
    ck_assert_ptr_null(all[2]->r->account.node);
    struct fake_node *other = attach(NODE_WORKER, "other"); // another group takes the next one
    ck_assert(fake_node_has(other, all[2]));
}
END_TEST

START_TEST(short_prompts_reach_a_speculator_that_reads_long_ones)
{
    attach(NODE_WORKER, "w");
    struct fake_node *s = attach(NODE_SPECULATOR, "s");
    struct client *all[4];
    for (int i = 0; i < 4; i++) {
        all[i] = fixture_request(&f, i < 2 ? LONG : SHORT, 4);
        all[i]->r->spec.prefill.mode = PREFILL_ON;
        fixture_submit(&f, all[i]);
        fixture_advance(&f, 0);
    }
    ck_assert(fake_node_has(s, all[0]));
    ck_assert_ptr_null(all[1]->r->account.node);
    ck_assert(fake_node_has(s, all[2]));
    ck_assert_ptr_null(all[3]->r->account.node); // the third is alone in a bin
    fake_node_score(&f, s, all[2], 0, 9);
    ck_assert(fake_node_has(s, all[3]));
    ck_assert_ptr_null(all[1]->r->account.node);
    fake_node_score(&f, s, all[0], 0, 9);
    ck_assert(fake_node_has(s, all[1]));
}
END_TEST

// A full bin fits one pass together with the rows of the sequences that decode, and with half a pass of a long prompt.
START_TEST(a_bin_leaves_the_rows_of_decodes_and_half_a_pass_for_a_long_prompt)
{
    start_group();
    struct client *decoding[40];
    for (int i = 0; i < 40; i++) {
        decoding[i] = fixture_request(&f, 10, 30);
        decoding[i]->r->spec.prefill.mode = PREFILL_OFF;
        fixture_submit(&f, decoding[i]);
    }
    fixture_advance(&f, 0);
    for (int i = 0; i < 40; i++)
        passes_until_token(decoding[i]);
    for (int i = 0; i < 62; i++)
        fixture_put(&f, NULL, 50, 0);
    fixture_advance(&f, 0);
    ck_assert_int_eq(group.node->bins, 3);
    ck_assert_int_eq(group.node->last_bin_rows, 1100); // of 3,100 rows 2,000 in the bin before: 40 of 2,048 rows decode
    while (f.c->ledger.running)
        pass_group_run(&group);
    fixture_put(&f, NULL, LONG, 1);
    fixture_advance(&f, 0);
    for (int i = 0; i < 100; i++)
        fixture_put(&f, NULL, 50, 0);
    fixture_advance(&f, 0);
    ck_assert_int_eq(group.node->last_bin_rows, 1000);
}
END_TEST

SUITE("long_prompts")
{
    FIXTURE(setup, teardown);
    TEST(short_prompts_have_their_first_token_two_passes_after_two_long_ones);
    LOOP(a_crowd_of_overdue_long_prompts_does_not_delay_short_ones, 0, 2);
    TEST(a_group_computes_one_long_prompt_at_a_time);
    TEST(short_prompts_reach_a_speculator_that_reads_long_ones);
    TEST(a_bin_leaves_the_rows_of_decodes_and_half_a_pass_for_a_long_prompt);
}
