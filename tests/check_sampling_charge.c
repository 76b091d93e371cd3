// SPDX-License-Identifier: Apache-2.0
// router/core: tokens that the host of a worker group samples are charged to the tenant that asks for them. While two
// tenants wait, the tokens that each receives follow the charge.
#include <stdlib.h>

#include "lib/base/mem.h"
#include "tests/core_fixture.h"
#include "tests/suite.h"

enum { PROMPT = 16, OUTPUT = 32, VOCABULARY = 131072 }; // 8 rows for a token sampled on the host

static struct fixture f;
static struct fake_node *worker;

static void start(void)
{
    fixture_init(&f);
    f.options.vocab_size = VOCABULARY;
    f.options.max_wait_us = 1000 * (int64_t)SECOND;
    fixture_start(&f);
    struct node_hello hello = fixture_hello(NODE_WORKER, "w");
    hello.vocab_size = VOCABULARY;
    hello.max_seqs = 16; // a tenant that waits has at least one of them, whatever it was charged
    worker = fixture_attach(&f, &hello);
}

static void put(const char *tenant, void (*change)(struct sampling *))
{
    struct client *client = fixture_request(&f, PROMPT, OUTPUT);
    client->r->spec.prefill.mode = PREFILL_OFF;
    client->r->spec.tenant = mem_string(tenant);
    if (change) change(&client->r->spec.sampling);
    fixture_submit(&f, client);
}

// Generates one token for each request on the worker. Returns how many were for the tenant "asks".
static int run_pass(int *all)
{
    uint64_t numbers[64];
    int n = worker->n_requests, asks = 0;
    for (int i = 0; i < n; i++)
        numbers[i] = worker->requests[i];
    for (int i = 0; i < n; i++) {
        struct client *client = fixture_find(&f, numbers[i]);
        asks += client->r->spec.tenant[0] == 'a';
        fake_node_step(&f, worker, client, 1, 1, client->n_tokens + 1 == OUTPUT ? FINISH_REASON_LENGTH : -1);
    }
    *all += n;
    return asks;
}

// Applies `change` to the requests of the tenant "asks". Checks that this tenant receives `percent` of the tokens that
// are generated while requests of both tenants wait.
static void check_share(void (*change)(struct sampling *), int percent)
{
    start();
    for (int i = 0; i < 150; i++) {
        put("asks", change);
        put("plain", NULL);
    }
    fixture_advance(&f, 0);
    int asks = 0, all = 0;
    for (int pass = 0; pass < 250; pass++)
        asks += run_pass(&all);
    ck_assert_msg(abs(100 * asks - percent * all) < 5 * all, "%d of %d tokens", asks, all);
    fixture_stop(&f);
}

static void list_logprobs(struct sampling *s)
{
    s->logprobs = 20;
}

static void penalise(struct sampling *s)
{
    s->frequency_penalty = 0.5;
}

static void bias(struct sampling *s)
{
    ck_assert_int_eq(logit_bias_add(&s->logit_bias, 5, 1), STATUS_OK);
}

static void mask_ends_of_half(struct sampling *s)
{
    s->min_tokens = OUTPUT / 2;
}

static void raise_temperature(struct sampling *s)
{
    s->temperature = 2;
    s->top_k = 40;
}

// A request that the host does not sample counts 16 + 32 x 2 = 80 rows. A request whose tokens the host samples counts
// 16 + 32 x 10 = 336, and 208 if the host samples half of them.
START_TEST(tokens_follow_the_charge)
{
    check_share(list_logprobs, 100 * 80 / (80 + 336));
    check_share(penalise, 100 * 80 / (80 + 336));
    check_share(bias, 100 * 80 / (80 + 336));
    check_share(mask_ends_of_half, 100 * 80 / (80 + 208));
}
END_TEST

START_TEST(tokens_that_the_backend_can_sample_cost_the_same)
{
    check_share(raise_temperature, 50);
}
END_TEST

// In the limits of an API key, a token that the host samples counts 131072 / 32768 tokens more.
START_TEST(generated_tokens_count_by_their_charge)
{
    start();
    put("asks", penalise);
    put("plain", NULL);
    fixture_advance(&f, 0);
    int all = 0;
    run_pass(&all);
    run_pass(&all);
    ck_assert_int_eq(all, 4);
    for (int i = 0; i < worker->n_requests; i++) {
        const struct request *r = fixture_find(&f, worker->requests[i])->r;
        ck_assert_double_eq(r->account.output_tokens, r->spec.tenant[0] == 'a' ? 2 * (1 + 4) : 2);
    }
    fixture_stop(&f);
}
END_TEST

SUITE("sampling charge")
{
    TEST(tokens_follow_the_charge);
    TEST(tokens_that_the_backend_can_sample_cost_the_same);
    TEST(generated_tokens_count_by_their_charge);
}
