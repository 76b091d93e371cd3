// SPDX-License-Identifier: Apache-2.0
// router/core/drafting: a speculator that holds a prompt is sent the new tokens of the answer. Its guesses at tokens
// that are still to come go to the worker group. Impossible guesses, and guesses beyond a bound, are dropped. Lost
// nodes, ends and cancels leave no state. A busy group has no advances.
#include <limits.h>

#include "router/core/core_state.h"
#include "tests/core_fixture.h"
#include "tests/suite.h"

enum { PROMPT = 64, OUTPUT = 40 };

static struct fixture f;
static struct fake_node *speculator, *worker;

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
    speculator = attach(NODE_SPECULATOR, "speculator");
    worker = attach(NODE_WORKER, "worker");
    core_draft_length(worker->node, 3);
}

static void stop(void)
{
    fixture_stop(&f);
}

static struct client *put(enum prefill_mode mode, enum draft_mode drafts)
{
    struct client *client = fixture_request(&f, PROMPT, OUTPUT);
    client->r->spec.prefill.mode = mode;
    client->r->spec.prefill.drafts = drafts;
    fixture_submit(&f, client);
    fixture_advance(&f, 0);
    return client;
}

// A request whose prompt the speculator holds.
static struct client *put_held(void)
{
    struct client *client = put(PREFILL_ON, DRAFTS_AUTO);
    fake_node_score(&f, speculator, client, 0, 40);
    return client;
}

// Sends a step of n tokens that count up from `first`.
static void step(struct client *client, int first, int n)
{
    fake_node_step(&f, worker, client, first, n, -1);
}

static void draft(const struct fake_node *node, const struct client *client, int from, int first, int n)
{
    int32_t tokens[NODE_DRAFT_MAX + 1];
    for (int i = 0; i < n && i <= NODE_DRAFT_MAX; i++)
        tokens[i] = first + i;
    core_drafts(f.c, node->node, &(struct node_draft){client->number, from, tokens, n, false}, 1, f.now_us);
}

static void ck_advance(const struct fake_node *node, const struct client *client, int from, int n, bool with_prompt)
{
    ck_assert_uint_eq(node->last_advance.request, client->number);
    ck_assert_int_eq(node->last_advance.from, from);
    ck_assert_int_eq(node->last_advance.n, n);
    ck_assert(node->last_advance.with_prompt == with_prompt);
}

START_TEST(new_tokens_go_to_the_speculator_and_guesses_to_the_group)
{
    struct client *client = put_held();
    step(client, 100, 2);
    ck_advance(speculator, client, 0, 2, false);
    ck_assert_int_eq(speculator->last_advance.ahead, 8);
    draft(speculator, client, 2, 102, 5);
    ck_assert_int_eq(worker->last_draft.from, 2);
    ck_assert_int_eq(worker->last_draft.n, 5);
    ck_assert_int_eq(worker->draft_tokens[4], 106);
    step(client, 102, 3);
    ck_advance(speculator, client, 2, 3, false);
    draft(speculator, client, 2, 102, 5); // late: three of them are known
    ck_assert_int_eq(worker->last_draft.from, 5);
    ck_assert_int_eq(worker->last_draft.n, 2);
    ck_assert_int_eq(worker->draft_tokens[0], 105);
    draft(speculator, client, 2, 102, 3); // later
    draft(speculator, client, 2, 103, 9); // wrong
    ck_assert_int_eq(worker->drafts, 2);
    ck_assert_int_eq(speculator->advances, 2);
}
END_TEST

START_TEST(advances_of_a_tick_are_one_message)
{
    struct client *clients[3];
    struct sequence_result results[3];
    static const int32_t tokens[] = {7, 8};
    for (int i = 0; i < 3; i++)
        clients[i] = put_held();
    for (int i = 0; i < 3; i++)
        step(clients[i], 100, 1);
    int before = speculator->advance_messages;
    for (int i = 0; i < 3; i++)
        results[i] = (struct sequence_result){.request = clients[i]->number, .tokens = tokens, .n_tokens = 2};
    core_step(f.c, worker->node, results, 3, f.now_us);
    fixture_advance(&f, 0);
    ck_assert_int_eq(speculator->advances, 6);
    ck_assert_int_eq(speculator->advance_messages, before + 1);
}
END_TEST

START_TEST(a_busy_group_has_no_advances)
{
    struct client *client = put_held();
    core_draft_length(worker->node, 0);
    step(client, 100, 2);
    step(client, 102, 2);
    ck_assert_int_eq(speculator->advances, 0);
    core_draft_length(worker->node, INT_MAX);
    step(client, 104, 1);
    ck_advance(speculator, client, 0, 5, false);
}
END_TEST

START_TEST(the_prompt_is_released_with_the_end)
{
    struct client *ended = put_held(), *cancelled = put_held(), *stopped = put_held();
    step(ended, 100, 1);
    fake_node_step(&f, worker, ended, 101, 1, FINISH_REASON_STOP);
    ck_assert_int_eq(speculator->releases, 1);
    ck_assert(core_cancel(f.c, cancelled->number, f.now_us));
    ck_assert_int_eq(speculator->releases, 2);
    stopped->stop_after = 2;
    step(stopped, 100, 2);
    ck_assert_int_eq(speculator->releases, 3);
    ck_assert_int_eq(speculator->node->n_drafted, 0);
    draft(speculator, ended, 1, 5, 2);
    ck_assert_int_eq(worker->drafts, 0);
}
END_TEST

START_TEST(guesses_that_cannot_be_are_left_out)
{
    struct fake_node *other = attach(NODE_SPECULATOR, "other");
    struct client *client = put(PREFILL_ON, DRAFTS_AUTO);
    struct fake_node *mine = fake_node_has(other, client) ? other : speculator;
    fake_node_score(&f, mine, client, 0, 40);
    draft(mine, client, 0, 5, 2); // before the group has any of its tokens: valid, and not late
    ck_assert_int_eq(worker->drafts, 1);
    step(client, 100, 2);
    draft(mine, client, 3, 5, 2); // after tokens that were not sent
    draft(mine, client, -1, 5, 2);
    draft(mine, client, 2, 5, 0);
    draft(mine, client, 2, 5, NODE_DRAFT_MAX + 1);
    draft(mine, client, 2, VOCAB - 1, 2);
    draft(mine, client, 2, -1, 2);
    draft(mine == other ? speculator : other, client, 2, 5, 2);
    draft(worker, client, 2, 5, 2);
    client->number += 1000;
    draft(mine, client, 2, 5, 2);
    client->number -= 1000;
    ck_assert_int_eq(worker->drafts, 1);
    ck_assert_int_eq(client->n_tokens, 2);
}
END_TEST

// A drafter sends only a few drafts for an advance, because a worker group handles all messages before it computes the
// next pass.
START_TEST(drafts_are_bounded_until_the_answer_advances)
{
    enum { FLOOD = 100, PASSED = 16 };
    struct client *client = put_held(), *other = put_held();
    step(client, 100, 2);
    step(other, 100, 2);
    for (int i = 0; i < FLOOD; i++)
        draft(speculator, client, 2, 102, 3);
    ck_assert_int_eq(worker->drafts, PASSED);
    draft(speculator, other, 2, 102, 3);
    ck_assert_int_eq(worker->drafts, PASSED + 1);
    step(client, 102, 1);
    static const int32_t tokens[] = {103, 104};
    struct node_draft drafts[FLOOD];
    for (int i = 0; i < FLOOD; i++)
        drafts[i] = (struct node_draft){client->number, 3, tokens, 2, false};
    core_drafts(f.c, speculator->node, drafts, FLOOD, f.now_us); // in one message
    ck_assert_int_eq(worker->drafts, 2 * PASSED + 1);
}
END_TEST

START_TEST(losing_the_speculator_only_stops_drafts)
{
    struct client *client = put_held(), *other = put_held();
    step(client, 100, 1);
    fixture_detach(&f, speculator);
    step(client, 101, 1);
    fake_node_step(&f, worker, client, 102, 1, FINISH_REASON_STOP);
    fake_node_step(&f, worker, other, 103, 1, FINISH_REASON_STOP);
    ck_assert_int_eq(client->n_tokens, 3);
}
END_TEST

START_TEST(a_replay_still_gets_drafts)
{
    struct client *client = put_held();
    step(client, 100, 2);
    struct fake_node *next = attach(NODE_WORKER, "next");
    fixture_detach(&f, worker);
    draft(speculator, client, 2, 102, 3); // already on its new group, which has sent no token
    ck_assert_int_eq(next->drafts, 1);
    core_draft_length(next->node, 2);
    fake_node_step(&f, next, client, 102, 1, -1);
    ck_advance(speculator, client, 2, 1, false);
}
END_TEST

START_TEST(an_idle_speculator_reads_a_prompt_that_was_not_scored)
{
    struct client *busy = put(PREFILL_ON, DRAFTS_AUTO), *late = put(PREFILL_OFF, DRAFTS_AUTO);
    step(late, 100, 1); // the speculator has a prompt to score
    fake_node_score(&f, speculator, busy, 0, 40);
    step(late, 101, 1);
    ck_assert_int_eq(speculator->advances, 0);
    step(busy, 100, 1);
    ck_assert_int_eq(speculator->advances, 1);
    struct client *client = put(PREFILL_OFF, DRAFTS_AUTO), *off = put(PREFILL_OFF, DRAFTS_OFF);
    step(off, 100, 1);
    ck_assert_int_eq(speculator->advances, 1);
    step(client, 100, 1);
    ck_advance(speculator, client, 0, 1, true);
    step(client, 101, 1);
    ck_advance(speculator, client, 1, 1, false);
    core_drafts(f.c, speculator->node, &(struct node_draft){.request = client->number, .released = true}, 1, f.now_us);
    step(client, 102, 1);
    ck_assert_int_eq(speculator->advances, 3);
}
END_TEST

// A node refuses messages of over 64 MiB.
START_TEST(long_prompts_come_in_separate_messages)
{
    enum { LONG = 600000 };
    struct client *clients[3];
    struct sequence_result results[3];
    static const int32_t token = 7;
    struct node_hello hello = fixture_hello(NODE_WORKER, "long-worker");
    hello.context_tokens = 1 << 20;
    hello.kv_blocks = 1 << 18;
    struct fake_node *group = fixture_attach(&f, &hello);
    hello = fixture_hello(NODE_SPECULATOR, "long-speculator");
    hello.context_tokens = 1 << 20;
    hello.kv_blocks = 1 << 18;
    struct fake_node *reader = fixture_attach(&f, &hello);
    for (int i = 0; i < 3; i++) {
        clients[i] = fixture_request(&f, LONG, OUTPUT);
        clients[i]->r->spec.prefill.mode = PREFILL_OFF;
        fixture_submit(&f, clients[i]);
        fixture_advance(&f, 0);
        ck_assert(fake_node_has(group, clients[i]));
        fake_node_step(&f, group, clients[i], token, 1, -1); // it would not verify drafts yet
        results[i] = (struct sequence_result){.request = clients[i]->number, .tokens = &token, .n_tokens = 1};
    }
    core_draft_length(group->node, 3);
    core_step(f.c, group->node, results, 3, f.now_us);
    fixture_advance(&f, 0);
    ck_assert_int_eq(reader->advances, 3);
    ck_assert_int_eq(reader->advance_messages, 3);
}
END_TEST

SUITE("core drafting")
{
    FIXTURE(start, stop);
    TEST(new_tokens_go_to_the_speculator_and_guesses_to_the_group);
    TEST(advances_of_a_tick_are_one_message);
    TEST(long_prompts_come_in_separate_messages);
    TEST(a_busy_group_has_no_advances);
    TEST(the_prompt_is_released_with_the_end);
    TEST(guesses_that_cannot_be_are_left_out);
    TEST(drafts_are_bounded_until_the_answer_advances);
    TEST(losing_the_speculator_only_stops_drafts);
    TEST(a_replay_still_gets_drafts);
    TEST(an_idle_speculator_reads_a_prompt_that_was_not_scored);
}
