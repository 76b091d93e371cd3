// SPDX-License-Identifier: Apache-2.0
// Choices of one prompt share its score: a speculator reads the prompt once, even if some choices end, and each choice
// has the kept tokens that it would have alone.
#include "lib/base/mem.h"
#include "router/core/core_state.h"
#include "tests/core_case.h"
#include "tests/suite.h"

enum { PROMPT = 100, KEEP_FIRST = 10, KEEP_LAST = 39, KEPT = 30, CHOICES = 4 };

static struct fake_node *w, *s;
static struct client *choices[CHOICES];

static struct fake_node *attach(enum node_role role, const char *id)
{
    struct node_hello hello = fixture_hello(role, id);
    return fixture_attach(&f, &hello);
}

// Selections are not held, because choices share a score without them.
static void setup_nodes(void)
{
    setup();
    w = attach(NODE_WORKER, "w");
    s = attach(NODE_SPECULATOR, "s");
}

static struct client *choice(enum prefill_mode mode, int answer)
{
    struct client *client = fixture_request(&f, PROMPT, 4);
    for (int i = 0; i < PROMPT; i++)
        client->r->spec.tokens[i] = 3 + i;
    client->r->spec.prefill.mode = mode;
    client->r->score_with = answer ? choices[0]->number : 0;
    return client;
}

static void submit_choices(enum prefill_mode mode)
{
    for (int i = 0; i < CHOICES; i++) {
        choices[i] = choice(mode, i);
        fixture_submit(&f, choices[i]);
    }
    fixture_advance(&f, 0);
}

static void check_shared(const struct client *client)
{
    // The KV blocks that it may share are those of its kept tokens.
    ck_assert_int_le(client->r->sched.n_prefix, KEPT / PREFIX_BLOCK);
    finish(w, (struct client *)client);
    ck_assert_int_eq(client->usage.kept_tokens, KEPT);
    ck_assert_int_eq(client->n_kept, 1);
    ck_assert_int_eq(client->kept[0].first, KEEP_FIRST);
    ck_assert_int_eq(client->kept[0].last, KEEP_LAST);
    ck_assert_int_eq(client->usage.scored_tokens, PROMPT);
}

START_TEST(a_prompt_is_scored_once_for_all_its_choices)
{
    submit_choices(PREFILL_ON);
    ck_assert_int_eq(s->n_requests, 1);
    fake_node_score(&f, s, choices[0], KEEP_FIRST, KEEP_LAST);
    for (int i = 0; i < CHOICES; i++) {
        check_shared(choices[i]);
        ck_assert_int_eq(choices[i]->usage.score_cached_tokens, i ? PROMPT : 0);
    }
    ck_assert_int_eq(s->n_requests, 0);
}
END_TEST

// Otherwise the answer of one client would depend on another client.
START_TEST(requests_of_other_exchanges_have_their_own_score)
{
    submit_choices(PREFILL_ON);
    struct client *other = choice(PREFILL_ON, 0);
    fixture_submit(&f, other);
    fixture_advance(&f, 0);
    fake_node_score(&f, s, choices[0], KEEP_FIRST, KEEP_LAST);
    for (int i = 0; i < CHOICES; i++)
        check_shared(choices[i]);
    ck_assert(fake_node_has(s, other));
    fake_node_score(&f, s, other, 0, 4);
    finish(w, other);
    ck_assert_int_eq(other->usage.kept_tokens, 5);
}
END_TEST

// _i is the choice that is cancelled: the choice on the speculator (0) or another one.
START_TEST(the_others_continue_when_one_is_cancelled)
{
    submit_choices(PREFILL_ON);
    ck_assert(core_cancel(f.c, choices[_i]->number, f.now_us));
    fixture_advance(&f, 0);
    ck_assert_int_eq(choices[_i]->ends, 1);
    ck_assert_int_eq(s->n_requests, 1);
    fake_node_score(&f, s, choices[_i == 0], KEEP_FIRST, KEEP_LAST);
    for (int i = 0; i < CHOICES; i++)
        if (i != _i) check_shared(choices[i]);
}
END_TEST

START_TEST(all_are_cancelled_in_any_order)
{
    submit_choices(PREFILL_ON);
    for (int i = 0; i < CHOICES; i++)
        ck_assert(core_cancel(f.c, choices[(i + _i) % CHOICES]->number, f.now_us));
    fixture_advance(&f, 0);
    ck_assert_int_eq(s->n_requests, 0);
}
END_TEST

START_TEST(all_keep_their_whole_prompt_when_the_speculator_is_lost)
{
    submit_choices(PREFILL_ON);
    fixture_detach(&f, s);
    for (int i = 0; i < CHOICES; i++) {
        finish(w, choices[i]);
        ck_assert_int_eq(choices[i]->skip, SKIP_LOST);
        ck_assert_int_eq(choices[i]->usage.kept_tokens, PROMPT);
    }
}
END_TEST

START_TEST(all_end_when_a_score_is_required_and_there_is_none)
{
    submit_choices(PREFILL_REQUIRED);
    fixture_detach(&f, s);
    for (int i = 0; i < CHOICES; i++) {
        ck_assert_int_eq(choices[i]->ends, 1);
        ck_assert_int_eq(choices[i]->status, STATUS_UNAVAILABLE);
    }
}
END_TEST

// teardown() checks that all end. The first choice is on the speculator.
START_TEST(all_end_with_the_router)
{
    submit_choices(PREFILL_ON);
    ck_assert_int_eq(s->n_requests, 1);
}
END_TEST

// A choice that arrives when the score is known is scored separately, because selections are not held here.
START_TEST(a_score_that_has_been_answered_is_not_shared)
{
    choices[0] = choice(PREFILL_ON, 0);
    fixture_submit(&f, choices[0]);
    fixture_advance(&f, 0);
    fake_node_score(&f, s, choices[0], KEEP_FIRST, KEEP_LAST);
    struct client *late = choice(PREFILL_ON, 1);
    fixture_submit(&f, late);
    fixture_advance(&f, 0);
    ck_assert(fake_node_has(s, late));
    check_shared(choices[0]);
    fake_node_score(&f, s, late, KEEP_FIRST, KEEP_LAST);
    check_shared(late);
}
END_TEST

SUITE("score_sharing")
{
    FIXTURE(setup_nodes, teardown);
    TEST(a_prompt_is_scored_once_for_all_its_choices);
    TEST(requests_of_other_exchanges_have_their_own_score);
    LOOP(the_others_continue_when_one_is_cancelled, 0, CHOICES);
    LOOP(all_are_cancelled_in_any_order, 0, CHOICES);
    TEST(all_keep_their_whole_prompt_when_the_speculator_is_lost);
    TEST(all_end_when_a_score_is_required_and_there_is_none);
    TEST(all_end_with_the_router);
    TEST(a_score_that_has_been_answered_is_not_shared);
}
