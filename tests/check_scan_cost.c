// SPDX-License-Identifier: Apache-2.0
// router/sched/bin_planner: the scan cost, which is the number of waiting requests examined to fill bins. It must not
// grow with the waiting set, however often bins are planned for groups without room, and whatever requests do not fit.
#include <stdio.h>
#include <stdlib.h>

#include "lib/base/mem.h"
#include "router/core/core_state.h"
#include "tests/core_fixture.h"
#include "tests/suite.h"

enum { GROUPS = 8, WAITING = 50000, ROUNDS = 100, HEAD = 32 };

static struct fixture f;
static struct fake_node *groups[GROUPS];

static void setup(void)
{
    fixture_init(&f);
    f.options.max_queue_requests = 2 * WAITING;
    f.options.max_queue_tokens = INT64_MAX / 2;
    fixture_start(&f);
}

static void teardown(void)
{
    fixture_stop(&f);
}

static struct bin_totals totals(void)
{
    return f.c->ledger.bins[NODE_WORKER];
}

static void attach(int group, int kv_blocks, bool prefix_cache)
{
    struct node_hello hello = fixture_hello(NODE_WORKER, "group-0");
    hello.node_id[6] = (char)('0' + group);
    hello.token_budget = 2048;
    hello.kv_blocks = kv_blocks;
    hello.prefix_cache = prefix_cache;
    groups[group] = fixture_attach(&f, &hello);
}

// Sends a request to the group attached last, which generates its first token. Long prompts share only their first HEAD
// tokens.
static struct client *start(int group, int n_tokens, int max_tokens)
{
    struct client *client = fixture_request(&f, n_tokens, max_tokens);
    client->r->spec.prefill.mode = PREFILL_OFF;
    for (int i = n_tokens > HEAD ? HEAD : 0; i < n_tokens; i++)
        client->r->spec.tokens[i] = 1 + (int32_t)(client->number % (VOCAB - 1));
    fixture_submit(&f, client);
    fixture_advance(&f, 0);
    ck_assert(fake_node_has(groups[group], client));
    fake_node_step(&f, groups[group], client, 0, 1, -1);
    return client;
}

// Submits requests of 13 to 30 blocks each. With `head` they share two blocks with the long prompt that runs on each
// group.
static void submit_crowd(bool head)
{
    for (int i = 0; i < WAITING; i++) {
        fixture_put_with_head(&f, head ? HEAD : 0, -1, (head ? 232 : 200) + i % 241, NULL);
    }
    fixture_advance(&f, 0);
}

// Each group has 10 of 60 blocks left, and all waiting requests need more. They are overdue or not, with a shared
// prefix or not. They are of one tenant: others could take the place of running requests (preemption.h).
START_TEST(groups_without_room_cause_no_further_scan)
{
    bool overdue = _i & 1, head = _i & 2;
    struct client *large[GROUPS], *small[GROUPS];
    for (int i = 0; i < GROUPS; i++) {
        attach(i, 60, head);
        large[i] = start(i, 700, 120); // 46 blocks
        small[i] = start(i, 20, 4);    // two
        start(i, 20, 4);
    }
    submit_crowd(head);
    if (overdue) fixture_advance(&f, SECOND);
    ck_assert(f.c->waiting[NODE_WORKER].overdue.count == (overdue ? WAITING : 0));
    // More room that is still too little causes one scan, and one for an overdue request.
    uint64_t from = totals().scan_cost;
    for (int i = 0; i < GROUPS; i++)
        fake_node_step(&f, groups[i], small[i], 1, 1, FINISH_REASON_STOP);
    uint64_t ends = totals().scan_cost - from;
    // A token causes no scan.
    from = totals().scan_cost;
    for (int round = 1; round <= ROUNDS; round++) {
        for (int i = 0; i < GROUPS; i++)
            fake_node_step(&f, groups[i], large[i], round, 1, -1);
    }
    uint64_t steps = totals().scan_cost - from;
    // A request that fits is found on arrival, with one plan for each group.
    from = totals().scan_cost;
    struct client *fits = fixture_send(&f, 60, 4);
    uint64_t arrival = totals().scan_cost - from;
    printf("scan cost of %d groups without room%s%s: %llu in %d steps, %llu in %d ends, %llu for one that fits\n",
           GROUPS, overdue ? ", overdue" : "", head ? ", head" : "", (unsigned long long)steps, ROUNDS * GROUPS,
           (unsigned long long)ends, GROUPS, (unsigned long long)arrival);
    fflush(stdout);
    ck_assert_uint_eq(steps, 0);
    ck_assert_uint_le(ends, GROUPS * 2);
    ck_assert(fits->r->account.node);
    ck_assert_uint_le(arrival, GROUPS * 8);
    ck_assert_int_eq(waiting_set_count(&f.c->waiting[NODE_WORKER]), WAITING);
}
END_TEST

static struct client *client_of(uint64_t number) // fixture_find walks all clients
{
    return request_table_find(&f.c->table, number)->sink.user;
}

// All prompts share a prefix of less than a quarter of their rows. Grouping them saves too
// little, and the planner finds this at a low cost. Two groups have room for about six requests.
START_TEST(a_short_shared_prefix_costs_little)
{
    bool overdue = _i & 1;
    for (int i = 0; i < 2; i++)
        attach(i, 150, true);
    submit_crowd(true);
    if (overdue) fixture_advance(&f, SECOND);
    struct bin_totals from = totals();
    for (int step = 0; step < 4 * ROUNDS; step++) {
        struct fake_node *node = groups[step % 2];
        for (int i = 0; i < node->n_requests; i++) {
            struct client *client = client_of(node->requests[i]);
            if (client->r->account.bin) fake_node_step(&f, node, client, 0, 1, -1);
        }
        fake_node_step(&f, node, client_of(node->requests[0]), 1, 1, FINISH_REASON_STOP);
    }
    uint64_t cost = totals().scan_cost - from.scan_cost, items = totals().items - from.items;
    printf("scan cost with a short shared prefix%s: %llu for %llu requests\n", overdue ? ", overdue" : "",
           (unsigned long long)cost, (unsigned long long)items);
    fflush(stdout);
    ck_assert_uint_ge(items, 3 * ROUNDS);
    ck_assert_uint_le(cost, 20 * items);
}
END_TEST

// Puts requests of the tenants in turn, and dispatches as many as there are slots. All groups have HEAD slots.
static void share_slots(int tenants, int n)
{
    static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"};
    for (int i = 0; i < n; i++) {
        struct client *client = fixture_request(&f, 20, CLIENT_TOKENS_MAX);
        client->r->spec.prefill.mode = PREFILL_OFF;
        client->r->spec.tenant = mem_string(names[i % tenants]);
        fixture_submit(&f, client);
    }
    do
        fixture_advance(&f, 0);
    while (core_next_deadline_us(f.c) <= f.now_us);
}

// Returns the largest scan cost of a report with a token of each running request of a group.
static uint64_t most_of_passes(int first, int n)
{
    uint64_t most = 0;
    for (int pass = first; pass < first + n; pass++) {
        for (int i = 0; i < GROUPS; i++) {
            uint64_t from = totals().scan_cost;
            struct fake_node *node = groups[i];
            struct sequence_result results[HEAD];
            int32_t tokens[HEAD];
            for (int k = 0; k < node->n_requests; k++) {
                tokens[k] = client_of(node->requests[k])->n_tokens;
                results[k] =
                    (struct sequence_result){.request = node->requests[k], .tokens = &tokens[k], .n_tokens = 1};
            }
            core_step(f.c, node->node, results, node->n_requests, f.now_us);
            fixture_advance(&f, 1);
            if (totals().scan_cost - from > most) most = totals().scan_cost - from;
        }
    }
    return most;
}

// Tenants that hold equal shares take no places of each other, which is seen without a search of running requests. Of
// more tenants than slots, one may take a place after PREEMPT_TOKENS tokens. Then the search is bounded.
START_TEST(a_search_for_a_place_examines_few_running_requests)
{
    enum { FEW = 2, MANY = 12, PASSES = 60, SEARCH_MAX = 8192 };
    int tenants = _i ? MANY : FEW;
    for (int i = 0; i < GROUPS; i++) {
        struct node_hello hello = fixture_hello(NODE_WORKER, "group-0");
        hello.node_id[6] = (char)('0' + i);
        hello.max_seqs = _i ? 1 : HEAD;
        groups[i] = fixture_attach(&f, &hello);
    }
    share_slots(tenants, 4 * GROUPS * HEAD);
    uint64_t most = most_of_passes(0, PASSES);
    printf("scan cost of a pass while requests of %d tenants wait: at most %llu\n", tenants, (unsigned long long)most);
    fflush(stdout);
    ck_assert_uint_le(most, _i ? SEARCH_MAX : 4 * FEW);
}
END_TEST

SUITE("scan_cost")
{
    TIMEOUT(120);
    FIXTURE(setup, teardown);
    LOOP(groups_without_room_cause_no_further_scan, 0, 4);
    LOOP(a_short_shared_prefix_costs_little, 0, 2);
    LOOP(a_search_for_a_place_examines_few_running_requests, 0, 2);
}
