// SPDX-License-Identifier: Apache-2.0
// KV blocks that requests of a worker group share are charged once, both to the node in the ledger and in plans.
#include <stdio.h>
#include <string.h>

#include "router/core/core_state.h"
#include "tests/core_case.h"
#include "tests/suite.h"

enum { DOCUMENT = 8192, QUESTION = 64, QUESTIONS = 64, TWO_DOCUMENTS = 2 * (DOCUMENT + QUESTION + 16) / PREFIX_BLOCK };

static struct fake_node *caching_worker(const char *id, int kv_blocks, bool prefix_cache)
{
    struct node_hello hello = fixture_hello(NODE_WORKER, id);
    hello.prefix_cache = prefix_cache;
    hello.context_tokens = 16384;
    hello.token_budget = 2048;
    hello.kv_blocks = kv_blocks;
    return fixture_attach(&f, &hello);
}

static const struct node_account *account(const struct fake_node *node)
{
    return &node->node->sched.account;
}

static void first_token(struct fake_node *node, struct client *client)
{
    if (client->r->account.node == node->node && client->r->account.bin) fake_node_step(&f, node, client, 0, 1, -1);
}

static struct client *ask(int document, int question, const char *tenant)
{
    return fixture_put_with_head(&f, DOCUMENT, document, DOCUMENT + question, tenant);
}

// The questions arrive together, or one after another while the first run, overdue or not.
START_TEST(all_questions_on_one_document_run_together)
{
    bool one_by_one = _i & 1, overdue = _i & 2;
    struct fake_node *w = caching_worker("w", TWO_DOCUMENTS, true);
    struct client *busy[2], *all[QUESTIONS];
    for (int i = 0; overdue && i < 2; i++)
        busy[i] = fixture_put(&f, NULL, 2000 + i, 0);
    fixture_advance(&f, 0);
    for (int i = 0; i < QUESTIONS; i++) {
        all[i] = ask(0, QUESTION - i % 5, NULL);
        if (one_by_one) fixture_advance(&f, 0);
    }
    if (overdue) {
        fixture_advance(&f, SECOND);
        finish(w, busy[0]);
        finish(w, busy[1]);
    }
    fixture_advance(&f, 0);
    for (int round = 0; round < QUESTIONS; round++)
        for (int i = 0; i < QUESTIONS; i++)
            first_token(w, all[i]);
    ck_assert_int_eq(account(w)->requests.count, QUESTIONS);
    ck_assert_int_le(account(w)->kv_blocks, TWO_DOCUMENTS);
    // The document, and the tail and output of each: four blocks for the tail, one for the output.
    ck_assert_int_le(account(w)->kv_blocks, DOCUMENT / PREFIX_BLOCK + QUESTIONS * (QUESTION / PREFIX_BLOCK + 2));
    ck_assert_int_ge(account(w)->context_blocks, QUESTIONS * (DOCUMENT / PREFIX_BLOCK + 3));
    for (int i = 0; i < QUESTIONS; i++)
        finish(w, all[i]);
    ck_assert_int_eq(account(w)->kv_blocks, 0);
    ck_assert_int_eq(account(w)->context_blocks, 0);
}
END_TEST

START_TEST(without_a_prefix_cache_each_question_is_charged_its_document)
{
    struct fake_node *w = caching_worker("w", TWO_DOCUMENTS, false);
    struct client *all[QUESTIONS];
    for (int i = 0; i < QUESTIONS; i++)
        all[i] = ask(0, QUESTION, NULL);
    fixture_advance(&f, 0);
    for (int i = 0; i < QUESTIONS; i++)
        first_token(w, all[i]);
    ck_assert_int_eq(account(w)->requests.count, 2);
    ck_assert_int_le(account(w)->kv_blocks, TWO_DOCUMENTS);
}
END_TEST

// The group may evict all blocks that no sequence uses. So a document that was read before is charged its blocks again.
START_TEST(cached_blocks_that_no_request_uses_are_charged)
{
    struct fake_node *w = caching_worker("w", TWO_DOCUMENTS, true);
    struct client *first = ask(0, QUESTION, NULL);
    fixture_advance(&f, 0);
    int64_t alone = account(w)->kv_blocks;
    ck_assert_int_ge(alone, (DOCUMENT + QUESTION) / PREFIX_BLOCK);
    finish(w, first);
    ck_assert_int_eq(account(w)->kv_blocks, 0);
    struct client *again = ask(0, QUESTION, NULL);
    fixture_advance(&f, 0);
    ck_assert_int_eq(account(w)->kv_blocks, alone);
    ck_assert_int_lt(account(w)->bin_tokens, 100); // though it need not be computed
    struct client *second = ask(1, QUESTION, NULL), *third = ask(2, QUESTION, NULL);
    fixture_advance(&f, 0);
    first_token(w, again);
    first_token(w, second);
    ck_assert(fake_node_has(w, second));
    ck_assert(!fake_node_has(w, third));
    finish(w, again);
    ck_assert(fake_node_has(w, third));
    finish(w, second);
    finish(w, third);
}
END_TEST

// The first question ends, then the group is lost. The remaining questions keep the document, and a replay charges it
// to the new group.
START_TEST(the_document_stays_charged_until_its_last_question_has_ended)
{
    struct fake_node *w = caching_worker("w", TWO_DOCUMENTS, true);
    struct client *all[3];
    for (int i = 0; i < 3; i++)
        all[i] = ask(0, QUESTION, NULL);
    fixture_advance(&f, 0);
    for (int i = 0; i < 3; i++)
        first_token(w, all[i]);
    ck_assert_int_eq(account(w)->requests.count, 3);
    int64_t three = account(w)->kv_blocks;
    finish(w, all[0]);
    int64_t own = three - account(w)->kv_blocks;
    ck_assert_int_gt(own, 0);
    ck_assert_int_le(own, QUESTION / PREFIX_BLOCK + 2);
    struct fake_node *v = caching_worker("v", TWO_DOCUMENTS, true);
    fixture_detach(&f, w);
    ck_assert(fake_node_has(v, all[1]));
    ck_assert(fake_node_has(v, all[2]));
    ck_assert_int_eq(account(v)->kv_blocks, three - own);
    finish(v, all[1]);
    ck_assert_int_eq(account(v)->kv_blocks, three - 2 * own);
    core_cancel(f.c, all[2]->number, f.now_us);
    ck_assert_int_eq(account(v)->kv_blocks, 0);
}
END_TEST

SUITE("shared_kv")
{
    FIXTURE(setup, teardown);
    LOOP(all_questions_on_one_document_run_together, 0, 4);
    TEST(without_a_prefix_cache_each_question_is_charged_its_document);
    TEST(cached_blocks_that_no_request_uses_are_charged);
    TEST(the_document_stays_charged_until_its_last_question_has_ended);
}
