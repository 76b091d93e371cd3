// SPDX-License-Identifier: Apache-2.0
// router/sched/estimate against speculator/scorer: the predicted time of a score equals the scorer's time, and `auto`
// speculates if the first token really comes sooner. A core and a scorer share one clock. The main model's passes take
// the time of a 70B model on four GPUs.
#include <math.h>
#include <stdlib.h>

#include "lib/base/mem.h"
#include "router/core/core_state.h"
#include "router/sched/estimate.h"
#include "tests/core_case.h"
#include "tests/suite.h"
#include "tests/virtual_scorer.h"

enum { LONG = 120000, TAKEN_MAX = 256 };

static const struct pass_time main_model = {20000, 75, 0.008};

static struct fake_node *w, *s;
static uint64_t taken[TAKEN_MAX]; // by the scorer
static int n_taken;

static void teach(struct fake_node *node, const struct pass_time *t)
{
    for (int i = 0; i < 400; i++) {
        int64_t rows = 1 << i % 14, cached = i % 5 * 8000, pairs = rows * cached + rows * (rows + 1) / 2;
        double us = pass_time_us(t, 1, (double)rows, (double)pairs);
        core_passed(f.c, node->node, &(struct pass_cost){rows, pairs, (int64_t)us, false}, f.now_us);
    }
}

static struct fake_node *attach(enum node_role role, const char *id, const struct pass_time *t)
{
    struct node_hello hello = fixture_hello(role, id);
    hello.context_tokens = VIRTUAL_CONTEXT;
    hello.token_budget = VIRTUAL_BUDGET;
    hello.kv_blocks = VIRTUAL_KV_BLOCKS;
    hello.max_seqs = VIRTUAL_SEQS;
    struct fake_node *node = fixture_attach(&f, &hello);
    teach(node, t);
    return node;
}

static void start(void)
{
    fixture_init(&f);
    f.options.max_queue_tokens = 100000000;
    f.options.score_timeout_us = 1000 * (int64_t)SECOND;
    fixture_start(&f);
    virtual_now_us = f.now_us;
    virtual_scorer_start();
    n_taken = 0;
    w = attach(NODE_WORKER, "w", &main_model);
    s = attach(NODE_SPECULATOR, "s", &virtual_scorer_time);
    fixture_advance(&f, 0);
}

static void stop(void)
{
    virtual_scorer_stop();
    teardown();
}

static bool is_taken(uint64_t number)
{
    for (int i = 0; i < n_taken; i++)
        if (taken[i] == number) return true;
    return false;
}

static void take_bins(void)
{
    for (int i = 0; i < s->n_requests; i++) {
        if (is_taken(s->requests[i])) continue;
        const struct request *r = fixture_find(&f, s->requests[i])->r;
        ck_assert_int_lt(n_taken, TAKEN_MAX);
        taken[n_taken++] = r->number;
        virtual_scorer_add(r->number, r->spec.tokens, r->spec.n_tokens, &r->spec.prefill);
    }
}

static void step(void)
{
    take_bins();
    const struct virtual_pass *pass = virtual_scorer_step();
    struct token_range kept = {0, 31};
    for (int i = 0; i < pass->n_answered; i++) {
        fake_node_forget(s, pass->answered[i]);
        struct score_result result = {.request = pass->answered[i], .kept = &kept, .n_kept = 1};
        core_scored(f.c, s->node, &result, virtual_now_us);
    }
    core_passed(f.c, s->node, &(struct pass_cost){pass->rows, pass->pairs, pass->us, false}, virtual_now_us);
    fixture_advance(&f, virtual_now_us - f.now_us);
}

static struct client *send(int n_tokens, enum prefill_mode mode)
{
    struct client *client = fixture_request(&f, n_tokens, 4);
    client->r->spec.prefill.mode = mode;
    fixture_submit(&f, client);
    return client;
}

static void tick(void)
{
    fixture_advance(&f, 0);
}

// The work that the speculator has before the prompt of the test.
enum load { IDLE, BIN, BINS, LONG_PROMPT, LONG_PROMPT_AND_BINS, LOADS };

static void load_speculator(enum load load)
{
    int bins = load == BIN ? 1 : load == BINS || load == LONG_PROMPT_AND_BINS ? 2 : 0;
    if (load == LONG_PROMPT || load == LONG_PROMPT_AND_BINS) {
        send(LONG, PREFILL_ON);
        tick();
        step();
        step();
    }
    for (int i = 0; i < 8 * bins; i++)
        send(1024, PREFILL_ON);
    if (bins) tick();
}

static double scored_us(struct client *client)
{
    int64_t begun_us = f.now_us;
    while (client->r->state == REQUEST_SCORING)
        step();
    return (double)(f.now_us - begun_us);
}

static const int lengths[] = {500, 1000, 2000, 4000, 8000, 16000, 32000};
enum { LENGTHS = sizeof lengths / sizeof *lengths };

START_TEST(a_score_takes_the_predicted_time)
{
    int n_tokens = lengths[_i % LENGTHS];
    enum load load = (enum load)(_i / LENGTHS);
    load_speculator(load);
    struct client *client = send(n_tokens, PREFILL_ON);
    tick();
    if (!client->r->account.node) return; // bins go first
    double predicted_us = estimate_score_us(&f.c->view, &s->node->sched, &client->r->sched), us = scored_us(client);
    ck_assert_double_gt(predicted_us, 0.65 * us);
    ck_assert_double_lt(predicted_us, 1.6 * us);
}
END_TEST

// Returns the time to prefill n tokens without other work.
static double prefill_us(double n)
{
    return pass_time_us(&main_model, ceil(n / VIRTUAL_BUDGET), n, n * (n + 1) / 2);
}

START_TEST(auto_speculates_where_the_first_token_comes_sooner)
{
    int n_tokens = lengths[_i % LENGTHS];
    enum load load = (enum load)(_i / LENGTHS);
    load_speculator(load);
    struct client *client = send(n_tokens, PREFILL_AUTO);
    bool speculated = client->r->state == REQUEST_SCORING;
    if (!speculated) {
        ck_assert_int_eq(client->r->skip, SKIP_COST);
        core_cancel(f.c, client->number, f.now_us);
        client = send(n_tokens, PREFILL_ON);
    }
    tick();
    int chunks = (n_tokens + 31) / 32, kept = 32 * (int)ceil(0.3 * chunks) + 16;
    double gain_us = 0.9 * prefill_us(n_tokens) - scored_us(client) - prefill_us(kept);
    if (fabs(gain_us) < 0.2 * prefill_us(n_tokens)) return; // within the accuracy of the estimates
    ck_assert_msg(speculated == (gain_us > 0), "load %d, %d tokens: %.0f ms are won", load, n_tokens, gain_us / 1e3);
}
END_TEST

SUITE("score_estimate")
{
    TIMEOUT(60);
    FIXTURE(start, stop);
    LOOP(a_score_takes_the_predicted_time, 0, LENGTHS * LOADS);
    LOOP(auto_speculates_where_the_first_token_comes_sooner, 0, LENGTHS * LOADS);
}
