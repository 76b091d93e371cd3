// SPDX-License-Identifier: Apache-2.0
// router/core: what the core decides is what it decided when the digests below were recorded. A long pseudo-random
// sequence of events is played to it for each seed; every bin (number, node, requests, order), cancel, lost node, token
// and end is folded into a digest, with the time at which it came. A change of the code that is meant to change no
// decision leaves all digests as they are; one that is meant to changes the constants, and its commit says why.
//
// DECISIONS_RECORD=1 prints the digests instead of comparing them.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "tests/core_fixture.h"

enum { SEEDS = 24, EVENTS = 6000, CLIENTS_MAX = 6000, SLOTS = 8, HEADS = 6 };

static const uint64_t recorded[SEEDS] = {
    0x93331cf08548b2a2, 0xde38167473a7cae0, 0x0503b970b812d77e, 0x2115d8e05c85c346, 0x226f8d4987ef5176,
    0x60b064dd47a7115a, 0xef224c38692f6172, 0x2ac0747df2bd86c3, 0x8212f24026f0fc4c, 0xf5fc8d0988ca7cf4,
    0x679f58be6e80a793, 0x2cb86a71ebbba8b9, 0x0e0b1e01bc99ea2c, 0x49e7ed5ee22445a1, 0x04609ce36347ba85,
    0x1777ea9f13b24bea, 0x4d5527c630380b9c, 0x4f19f66937816e9e, 0x5f05110ad7f545f2, 0x9c7504281b987b5c,
    0x500f8f57ca09072c, 0x5334092f15b6f02b, 0x3bef1061f123a860, 0xf8e974d1cd0fd15d,
};

// What differs from seed to seed.
struct scenario {
    int workers, speculators;
    int budget_min, budget_doublings; // token budgets
    int kv_blocks_min, kv_blocks_max;
    int max_seqs_min, max_seqs_max;
    int cache_percent; // of nodes with a prefix cache
    int tenants;
    int head_percent;     // of prompts that begin with a shared head
    int deadline_percent; // of requests with ttft_deadline_ms
    int tokens_max;       // of a usual prompt
    int submit_percent;   // of events
    int advance_us;       // at most, in one event
    int change_percent;   // of events, in tenths: attach, detach, drain
};

static struct fixture f;
static struct scenario s;
static struct client *clients[CLIENTS_MAX];
static int n_clients, max_tokens_of[CLIENTS_MAX];
static struct fake_node *slots[SLOTS];

static uint64_t random_state;
static int random_below(int n)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int)((random_state >> 33) % (uint64_t)n);
}

static bool one_in(int n)
{
    return random_below(n) == 0;
}

static bool percent(int n)
{
    return random_below(100) < n;
}

static int between(int least, int most)
{
    return least + random_below(most - least + 1);
}

static struct scenario scenario_of(int seed)
{
    struct scenario scenario = {.workers = 1 + seed % 4,
                                .speculators = 1 + seed / 4 % 3,
                                .budget_min = 64 << seed % 3,
                                .budget_doublings = 1 + seed % 3,
                                .kv_blocks_min = seed % 3 == 1 ? 30 : 60,
                                .kv_blocks_max = seed % 3 == 1   ? 80
                                                 : seed % 3 == 2 ? 200
                                                                 : 1200,
                                .max_seqs_min = seed % 5 == 4 ? 2 : 6,
                                .max_seqs_max = seed % 5 == 4 ? 5 : 60,
                                .cache_percent = seed % 4 == 3   ? 0
                                                 : seed % 4 == 2 ? 100
                                                                 : 60,
                                .tenants = seed % 4 == 3 ? 90 : 5,
                                .head_percent = seed % 4 == 0 ? 90 : 50,
                                .deadline_percent = seed % 2 ? 30 : 8,
                                .tokens_max = seed % 6 == 5 ? 900 : 250,
                                .submit_percent = (const int[]){5, 10, 16, 30}[seed % 7 % 4],
                                .advance_us = seed % 8 == 6 ? 60000 : 15000,
                                .change_percent = seed % 2 ? 8 : 3};
    return scenario;
}

static enum bin_policy policy_of(int seed)
{
    return seed < 16 ? BIN_DATASET : seed < 20 ? BIN_BATCH : BIN_NONE;
}

static struct client *some_client(void)
{
    int span = n_clients > 60 && !one_in(4) ? 60 : n_clients; // mostly one of the latest, which may still be running
    return n_clients ? clients[n_clients - 1 - random_below(span)] : NULL;
}

static struct client *client_of(uint64_t number)
{
    return clients[number - f.first_number];
}

static void submit(void)
{
    if (n_clients == CLIENTS_MAX) return;
    int n_tokens = one_in(25) ? between(1, 3000) : between(1, s.tokens_max), max_tokens = between(1, 14);
    struct client *client = fixture_request(&f, n_tokens, max_tokens);
    struct request *r = client->r;
    max_tokens_of[n_clients] = max_tokens;
    clients[n_clients++] = client;
    bool shares = percent(s.head_percent);
    int head = random_below(HEADS), head_tokens = shares ? 16 * (1 + head) * between(1, 3) : 0;
    for (int i = 0; i < n_tokens; i++)
        r->spec.tokens[i] = i < head_tokens ? 1 + head : between(20, VOCAB - 1);
    r->spec.prefill.mode = (enum prefill_mode)random_below(3);
    if (one_in(12)) r->spec.prefill.keep_rate = 1;
    if (one_in(6)) r->spec.prefill.keep_rate = 0.01 + 0.0625 * between(1, 15);
    if (one_in(6)) r->spec.prefill.chunk_tokens = random_below(40);
    if (one_in(9)) r->spec.prefill.paper_exact = true;
    if (one_in(8)) r->spec.prefill.look_ahead = between(1, 20);
    if (one_in(6) && n_tokens > 8) {
        r->spec.pinned = mem_alloc(sizeof *r->spec.pinned);
        r->spec.pinned[0] = (struct token_range){1, between(1, n_tokens - 2)};
        r->spec.n_pinned = 1;
    }
    if (one_in(4)) r->spec.priority = between(-12, 12);
    if (one_in(2)) r->spec.tenant = mem_format("tenant-%d", random_below(s.tenants));
    if (percent(s.deadline_percent)) r->spec.ttft_deadline_us = f.now_us + random_below(3 * SECOND);
    if (one_in(3)) r->id = mem_format("id-%d", random_below(400));
    if (one_in(8)) client->stop_after = between(1, 8);
    if (one_in(11)) {
        r->spec.score_only = true;
        r->spec.want_importance = one_in(2);
    }
    fixture_submit(&f, client);
}

// The state of the slots' nodes and their ids are those of the storm in check_core_storm.c.
static void attach(int slot)
{
    struct node_hello hello = fixture_hello(slot < s.workers ? NODE_WORKER : NODE_SPECULATOR, slots[slot]->id);
    hello.context_tokens = one_in(4) ? 8192 : 1500;
    hello.token_budget = s.budget_min << random_below(s.budget_doublings + 1);
    hello.kv_blocks = between(s.kv_blocks_min, s.kv_blocks_max);
    hello.max_seqs = between(s.max_seqs_min, s.max_seqs_max);
    hello.block_tokens = one_in(5) ? 32 : 16;
    hello.prefix_cache = percent(s.cache_percent);
    struct fake_node *old = slots[slot], *node = old->node ? mem_alloc(sizeof *node) : old;
    memcpy(node->id, old->id, sizeof node->id);
    node->lost = false;
    node->n_requests = 0;
    ck_cheap(core_attach(f.c, &hello, node, f.now_us, &node->node) == STATUS_OK);
    if (node == old) return;
    slots[slot] = node;
    free(old);
}

static void change_node(void)
{
    int slot = random_below(s.workers + s.speculators);
    struct fake_node *node = slots[slot];
    if (!node->node || one_in(3)) {
        attach(slot);
    } else if (one_in(3)) {
        core_draining(f.c, node->node, f.now_us);
    } else if (one_in(2)) {
        struct core_node *gone = node->node;
        node->node = NULL;
        node->n_requests = 0;
        core_detach(f.c, gone, "its stream ended", f.now_us);
    }
}

static bool is_worker(const struct fake_node *node)
{
    return node->id[0] == 'w';
}

// Slots differ in speed, and each keeps its own.
static void report_pass(const struct fake_node *node)
{
    int speed = 1 + node->id[1] % 3, rows = one_in(4) ? between(1, 600) : between(1, 40), cached = between(0, 300);
    int64_t pairs = (int64_t)rows * cached + (int64_t)rows * (rows + 1) / 2;
    int64_t us = (is_worker(node) ? 900 : 200) + (int64_t)rows * speed * (is_worker(node) ? 37 : 5) + pairs / 97;
    core_passed(f.c, node->node, &(struct pass_cost){rows, pairs, us + between(0, 20)}, f.now_us);
}

static void step_worker(struct fake_node *node)
{
    int n = between(1, 8);
    report_pass(node);
    for (int i = 0; i < n && node->n_requests; i++) {
        // Those handed to it first are answered first, more often than not.
        int at = random_below(one_in(3) || node->n_requests < 6 ? node->n_requests : 6);
        uint64_t number = node->requests[at];
        struct client *client = client_of(number);
        int left = max_tokens_of[number - f.first_number] - client->n_tokens,
            n_tokens = between(1, left < 3 ? left : 3);
        int32_t tokens[4];
        for (int t = 0; t < n_tokens; t++)
            tokens[t] = client->n_tokens + t;
        struct sequence_result result = {.request = number, .tokens = tokens, .n_tokens = n_tokens};
        result.finished = n_tokens == left || one_in(12);
        result.reason = n_tokens == left ? FINISH_REASON_LENGTH : FINISH_REASON_STOP;
        result.cached_tokens = one_in(5) ? 16 * random_below(8) : 0;
        if (one_in(150)) {
            result.finished = true;
            result.reason = FINISH_REASON_ERROR;
            result.error = "broken";
        }
        if (one_in(200)) tokens[0] = VOCAB;
        if (one_in(200)) result.n_tokens = 0;
        if (result.finished) fake_node_forget(node, number);
        core_step(f.c, node->node, &result, 1, f.now_us);
    }
}

static void step_speculator(struct fake_node *node)
{
    report_pass(node);
    uint64_t number = node->requests[random_below(node->n_requests < 4 ? node->n_requests : 4)];
    int n = client_of(number)->r->spec.n_tokens;
    float *importance = mem_alloc_array((size_t)n, sizeof *importance);
    int first = random_below(n);
    struct token_range kept[2] = {{first, first + random_below(n - first)}, {n - 1, n - 1}};
    struct score_result result = {.request = number,
                                  .kept = kept,
                                  .n_kept = kept[0].last < n - 1 ? 2 : 1,
                                  .importance = importance,
                                  .n_importance = n,
                                  .cached_tokens = one_in(5) ? 16 * random_below(8) : 0};
    if (one_in(40)) result.error = "broken";
    if (one_in(60)) kept[0].last += n;
    fake_node_forget(node, number);
    core_scored(f.c, node->node, &result, f.now_us);
    free(importance);
}

static void one_event(void)
{
    int kind = random_below(1000);
    struct fake_node *node = slots[random_below(s.workers + s.speculators)];
    if (kind < 10 * s.submit_percent) {
        for (int n = one_in(12) ? 25 : 1; n; n--)
            submit();
    } else if (kind < 10 * s.submit_percent + s.change_percent) {
        change_node();
    } else if (kind < 700) {
        if (node->node && node->n_requests) (is_worker(node) ? step_worker : step_speculator)(node);
    } else if (kind < 720) {
        struct client *client = some_client();
        if (client) core_cancel(f.c, client->number, f.now_us);
    } else if (kind < 725) {
        char *id = mem_format("id-%d", random_below(400));
        core_abort(f.c, id, 0, f.now_us);
        free(id);
    } else if (kind < 860) {
        f.now_us += one_in(400) ? 3 * SECOND : random_below(s.advance_us);
    } else if (node->node) {
        core_heartbeat(f.c, node->node, &(struct node_heartbeat){.kv_blocks_free = random_below(100)}, f.now_us);
    }
    if (one_in(3)) fixture_advance(&f, 0);
}

static void start(int seed)
{
    s = scenario_of(seed);
    fixture_init(&f);
    f.options.max_wait_us = seed % 2 ? SECOND / 3 : SECOND / 20;
    f.options.heartbeat_us = 2 * SECOND;
    f.options.queue_reserve_percent = 10;
    static const struct tenant_weight weight = {"tenant-3", 2};
    f.options.tenant_weights = &weight;
    f.options.n_tenant_weights = 1;
    f.options.max_queue_requests = 500;
    f.options.max_queue_tokens = 150000;
    f.options.bins_ahead = 1 + seed % 3;
    f.options.policy = policy_of(seed);
    f.options.batch_requests = 7;
    fixture_start(&f);
    random_state = 1000 + 77 * (uint64_t)seed;
    for (int slot = 0; slot < s.workers + s.speculators; slot++) {
        slots[slot] = mem_alloc(sizeof **slots);
        snprintf(slots[slot]->id, sizeof slots[slot]->id, "%c%d", slot < s.workers ? 'w' : 's', slot);
        attach(slot);
    }
}

START_TEST(decisions_are_those_that_were_recorded)
{
    start(_i);
    for (int event = 0; event < EVENTS; event++)
        one_event();
    uint64_t digest = fixture_digest(&f);
    struct core_status status = fixture_status(&f);
    const struct core_totals *t = &status.totals;
    printf("%2d: 0x%016llx requests %d done %d failed %d cancelled %d refused %d replays %d degraded %d bins %d+%d of "
           "%d, skipped",
           _i, (unsigned long long)digest, (int)t->requests, (int)t->done, (int)t->failed, (int)t->cancelled,
           (int)t->refused, (int)t->replays, (int)t->degraded, (int)status.score_bins.bins,
           (int)status.prefill_bins.bins, (int)(status.score_bins.items + status.prefill_bins.items));
    for (int k = 0; k < SKIP_COUNT; k++)
        printf(" %d", (int)t->skipped[k]);
    printf(", waiting %d\n", status.waiting);
    fflush(stdout);
    core_status_fini(&status);
    if (!getenv("DECISIONS_RECORD"))
        ck_assert_msg(digest == recorded[_i], "seed %d: digest 0x%016llx, recorded 0x%016llx", _i,
                      (unsigned long long)digest, (unsigned long long)recorded[_i]);
    fixture_advance(&f, 0);
    fixture_stop(&f);
    for (int slot = 0; slot < s.workers + s.speculators; slot++)
        free(slots[slot]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("decisions");
    TCase *tcase = tcase_create("decisions");
    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, decisions_are_those_that_were_recorded, 0, SEEDS);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
