// SPDX-License-Identifier: Apache-2.0
// router/core: the speculator's draft stays with its request until the answer ends, also when a worker group is lost.
// If a draft is malformed, it is dropped and the score is used. Counts that no worker group can have are limited.
#include <limits.h>

#include "tests/core_fixture.h"
#include "tests/suite.h"

enum { PROMPT = 64, OUTPUT = 20 };

static struct fixture f;

static struct fake_node *attach(enum node_role role, const char *id)
{
    struct node_hello hello = fixture_hello(role, id);
    return fixture_attach(&f, &hello);
}

static void start(void)
{
    fixture_init(&f);
    f.options.selection_bytes = 0; // all prompts are the same
    fixture_start(&f);
}

static void stop(void)
{
    fixture_stop(&f);
}

static struct client *put(enum draft_mode drafts)
{
    struct client *client = fixture_request(&f, PROMPT, OUTPUT);
    client->r->spec.prefill.mode = PREFILL_ON;
    client->r->spec.prefill.drafts = drafts;
    fixture_submit(&f, client);
    fixture_advance(&f, 0);
    return client;
}

static void score(struct fake_node *node, struct client *client, const int32_t *draft, int n)
{
    const struct token_range kept[] = {{0, 9}, {50, 63}};
    struct score_result result = {.request = client->number, .kept = kept, .n_kept = 2, .draft = draft, .n_draft = n};
    fake_node_forget(node, client->number);
    core_scored(f.c, node->node, &result, f.now_us);
    fixture_advance(&f, 0);
    ck_assert_int_eq(client->r->usage.kept_tokens, 24); // for any draft
}

static void step(struct fake_node *node, struct client *client, int n, int drafted, int accepted)
{
    static const int32_t tokens[OUTPUT];
    struct sequence_result result = {.request = client->number,
                                     .tokens = tokens,
                                     .n_tokens = n,
                                     .draft_tokens = drafted,
                                     .draft_accepted_tokens = accepted};
    core_step(f.c, node->node, &result, 1, f.now_us);
    fixture_advance(&f, 0);
}

static void ck_usage(const struct request_usage *usage, int drafted, int accepted)
{
    ck_assert_int_eq(usage->draft_tokens, drafted);
    ck_assert_int_eq(usage->draft_accepted_tokens, accepted);
    struct core_status status = fixture_status(&f);
    ck_assert_uint_eq(status.totals.draft_tokens, (uint64_t)drafted);
    ck_assert_uint_eq(status.totals.draft_accepted_tokens, (uint64_t)accepted);
    core_status_fini(&status);
}

START_TEST(a_draft_goes_to_every_group_that_runs_the_request)
{
    static const int32_t draft[] = {5, 6, VOCAB - 1};
    struct fake_node *speculator = attach(NODE_SPECULATOR, "speculator"), *first = attach(NODE_WORKER, "first");
    struct client *client = put(DRAFTS_AUTO);
    score(speculator, client, draft, 3);
    ck_assert_int_eq(client->r->n_draft, 3);
    ck_assert_mem_eq(client->r->draft, draft, sizeof draft);
    ck_assert(fake_node_has(first, client));
    step(first, client, 3, 3, 2);
    struct fake_node *second = attach(NODE_WORKER, "second");
    fixture_detach(&f, first);
    fixture_advance(&f, 0);
    ck_assert(fake_node_has(second, client));
    ck_assert_int_eq(client->r->n_draft, 3);
    ck_usage(&client->r->usage, 3, 2);
}
END_TEST

START_TEST(a_wrong_draft_is_left_out)
{
    static const int32_t wrong[][2] = {{1, VOCAB}, {-1, 1}, {1, INT_MAX}};
    static const int32_t longer[LOOK_AHEAD_MAX + 1];
    struct fake_node *speculator = attach(NODE_SPECULATOR, "speculator");
    attach(NODE_WORKER, "worker");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct client *client = put(DRAFTS_AUTO);
        score(speculator, client, wrong[i], 2);
        ck_assert_int_eq(client->r->n_draft, 0);
    }
    struct client *client = put(DRAFTS_AUTO);
    score(speculator, client, longer, LOOK_AHEAD_MAX + 1);
    ck_assert_int_eq(client->r->n_draft, 0);
    client = put(DRAFTS_AUTO);
    score(speculator, client, longer, LOOK_AHEAD_MAX);
    ck_assert_int_eq(client->r->n_draft, LOOK_AHEAD_MAX);
    client = put(DRAFTS_OFF);
    score(speculator, client, longer, 2);
    ck_assert_int_eq(client->r->n_draft, 0);
}
END_TEST

START_TEST(counts_that_no_group_can_have_are_cut)
{
    static const int32_t draft[] = {5, 6, 7};
    struct fake_node *speculator = attach(NODE_SPECULATOR, "speculator"), *worker = attach(NODE_WORKER, "worker");
    struct client *client = put(DRAFTS_AUTO);
    score(speculator, client, draft, 3);
    step(worker, client, 2, INT_MAX, INT_MAX);
    ck_usage(&client->r->usage, OUTPUT, 2);
    step(worker, client, 1, -5, 4);
    ck_usage(&client->r->usage, OUTPUT, 2);
    step(worker, client, 3, 2, 3);
    ck_usage(&client->r->usage, OUTPUT + 2, 4);
}
END_TEST

START_TEST(tokens_after_a_stop_string_are_not_accepted)
{
    static const int32_t draft[] = {5, 6, 7, 8};
    struct fake_node *speculator = attach(NODE_SPECULATOR, "speculator"), *worker = attach(NODE_WORKER, "worker");
    struct client *client = put(DRAFTS_AUTO);
    client->stop_after = 4;
    score(speculator, client, draft, 4);
    step(worker, client, 2, 2, 1);
    step(worker, client, 5, 4, 4);
    ck_assert_int_eq(client->usage.completion_tokens, 4);
    ck_usage(&client->usage, 6, 3);
}
END_TEST

SUITE("core drafts")
{
    FIXTURE(start, stop);
    TEST(a_draft_goes_to_every_group_that_runs_the_request);
    TEST(a_wrong_draft_is_left_out);
    TEST(counts_that_no_group_can_have_are_cut);
    TEST(tokens_after_a_stop_string_are_not_accepted);
}
