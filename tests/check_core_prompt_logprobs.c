// SPDX-License-Identifier: Apache-2.0
// router/core: log-probabilities of the prompt reach the client in order and before the first token. Each comes once,
// even if the worker group is lost between two of them. Wrong ones are refused.
#include <stdlib.h>

#include "tests/core_fixture.h"
#include "tests/suite.h"

enum { PROMPT = 40, OUTPUT = 2 };

static struct fixture f;
static int received;

static void take_prompt_logprobs(void *user, const struct token_logprob *logprobs, int n)
{
    struct client *client = user;
    ck_assert_int_eq(client->n_tokens, 0);
    for (int i = 0; i < n; i++)
        ck_assert_int_eq(logprobs[i].token, client->r->spec.tokens[1 + received++]);
}

static struct client *put(void)
{
    struct client *client = fixture_request(&f, PROMPT, OUTPUT);
    for (int i = 0; i < PROMPT; i++)
        client->r->spec.tokens[i] = 3 + i;
    client->r->spec.prefill.mode = PREFILL_OFF;
    client->r->spec.sampling.prompt_logprobs = 0;
    client->r->sink.prompt_logprobs = take_prompt_logprobs;
    fixture_submit(&f, client);
    fixture_advance(&f, 0);
    return client;
}

// Sends a step with the log-probabilities of n prompt tokens from `from` on. The prompt starts with token `first`.
static void step(struct fake_node *node, struct client *client, int first, int from, int n, int n_tokens, bool ends)
{
    if (ends) fake_node_forget(node, client->number);
    static const int32_t tokens[] = {7};
    struct token_logprob logprobs[PROMPT + 1] = {{0}};
    for (int i = 0; i < n; i++)
        logprobs[i].token = first + from + i;
    struct sequence_result result = {.request = client->number,
                                     .tokens = tokens,
                                     .n_tokens = n_tokens,
                                     .prompt_logprobs = logprobs,
                                     .n_prompt_logprobs = n,
                                     .prompt_logprobs_from = from,
                                     .finished = ends,
                                     .reason = FINISH_REASON_STOP};
    core_step(f.c, node->node, &result, 1, f.now_us);
    fixture_advance(&f, 0);
}

static struct fake_node *attach(const char *id)
{
    struct node_hello hello = fixture_hello(NODE_WORKER, id);
    return fixture_attach(&f, &hello);
}

static void start(void)
{
    received = 0;
    fixture_init(&f);
    fixture_start(&f);
}

static void stop(void)
{
    fixture_stop(&f);
}

START_TEST(received_prompt_logprobs_are_not_asked_for_again)
{
    struct fake_node *first = attach("first");
    struct client *client = put();
    step(first, client, 3, 1, 10, 0, false);
    step(first, client, 3, 11, 5, 0, false);
    ck_assert_int_eq(received, 15);
    struct fake_node *second = attach("second");
    fixture_detach(&f, first);
    fixture_advance(&f, 0);
    ck_assert_int_eq(second->n_requests, 1);
    ck_assert_int_eq(client->r->n_prompt_logprobs, 15); // node_bins.c asks for the next ones
    step(second, client, 3, 16, PROMPT - 16, 1, false);
    ck_assert_int_eq(received, PROMPT - 1);
    ck_assert_int_eq(client->n_tokens, 1);
    step(second, client, 3, 0, 0, 1, true);
    ck_assert_int_eq(client->reason, FINISH_REASON_STOP);
}
END_TEST

START_TEST(wrong_prompt_logprobs_end_the_request)
{
    static const struct {
        int first, from, n, n_tokens;
        bool ends;
    } wrong[] = {
        {3, 2, 4, 0, false},          // a gap
        {4, 1, 4, 0, false},          // another prompt
        {3, 1, PROMPT, 0, false},     // more than the prompt has
        {3, 1, PROMPT - 2, 1, false}, // a token before the last one
        {3, 0, 0, 1, false},          // a token before the first one
        {3, 1, PROMPT - 2, 0, true},  // the end before the last one
    };
    struct fake_node *node = attach("worker");
    struct client *client = put();
    step(node, client, wrong[_i].first, wrong[_i].from, wrong[_i].n, wrong[_i].n_tokens, wrong[_i].ends);
    ck_assert_int_eq(client->reason, FINISH_REASON_ERROR);
    ck_assert_int_eq(client->status, STATUS_INTERNAL);
    ck_assert_int_eq(received, 0);
}
END_TEST

START_TEST(nothing_is_taken_from_a_prefix_cache)
{
    struct node_hello hello = fixture_hello(NODE_WORKER, "worker");
    hello.prefix_cache = true;
    struct fake_node *node = fixture_attach(&f, &hello);
    for (int round = 0; round < 2; round++) {
        struct client *client = put();
        ck_assert_int_eq(client->r->account.rows, PROMPT);
        received = 0;
        step(node, client, 3, 1, PROMPT - 1, 1, true);
    }
}
END_TEST

SUITE("core_prompt_logprobs")
{
    FIXTURE(start, stop);
    TEST(received_prompt_logprobs_are_not_asked_for_again);
    LOOP(wrong_prompt_logprobs_end_the_request, 0, 6);
    TEST(nothing_is_taken_from_a_prefix_cache);
}
