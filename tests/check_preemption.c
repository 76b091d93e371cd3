// SPDX-License-Identifier: Apache-2.0
// router/sched/preemption: a waiting request gets the place of running requests.
#include "lib/base/mem.h"
#include "router/core/core_state.h"
#include "router/sched/preemption.h"
#include "tests/core_case.h"
#include "tests/suite.h"

enum { SLOTS = 8, CROWD = 30, LONG = 100 };

static struct fake_node *w;

static struct client *put(const char *tenant, int n_tokens, int max_tokens, int priority)
{
    struct client *client = fixture_request(&f, n_tokens, max_tokens);
    client->r->spec.prefill.mode = PREFILL_OFF;
    client->r->spec.priority = priority;
    client->r->spec.tenant = tenant ? mem_string(tenant) : NULL;
    fixture_submit(&f, client);
    fixture_advance(&f, 0);
    return client;
}

// Answers every request of the node with its next token, as one pass does.
static void pass(void)
{
    int n = w->n_requests;
    struct client *running[NODE_REQUESTS_MAX];
    for (int i = 0; i < n; i++)
        running[i] = fixture_find(&f, w->requests[i]);
    for (int i = 0; i < n; i++) {
        struct client *client = running[i];
        if (!client->r || !fake_node_has(w, client)) continue;
        bool ends = client->n_tokens + 1 == client->r->spec.sampling.max_tokens;
        fake_node_step(&f, w, client, client->n_tokens, 1, ends ? FINISH_REASON_LENGTH : -1);
    }
    fixture_advance(&f, 10000);
}

static int running_of(const char *tenant)
{
    int n = 0;
    for (int i = 0; i < w->n_requests; i++)
        n += strcmp(fixture_find(&f, w->requests[i])->r->spec.tenant, tenant) == 0;
    return n;
}

static void start(int slots, int kv_blocks)
{
    struct node_hello hello = fixture_hello(NODE_WORKER, "w");
    hello.max_seqs = slots;
    hello.kv_blocks = kv_blocks;
    w = fixture_attach(&f, &hello);
}

// Tenant a fills the group with long answers, and more of them wait. Waits until those are overdue.
static void crowd(int n, int priority)
{
    for (int i = 0; i < n; i++)
        put("a", 20, LONG, priority);
    for (int i = 0; i < 10; i++)
        pass();
    fixture_advance(&f, 2 * SECOND);
}

START_TEST(another_tenant_has_its_first_token_in_the_next_pass)
{
    start(SLOTS, 1024);
    crowd(CROWD, 0);
    ck_assert_int_eq(w->n_requests, SLOTS);
    struct client *b = put("b", 50, 1, 0);
    ck_assert(fake_node_has(w, b));
    ck_assert_int_eq(w->n_requests, SLOTS);
    pass();
    ck_ended(b, FINISH_REASON_LENGTH, STATUS_OK);
}
END_TEST

START_TEST(preempted_answers_are_complete)
{
    start(SLOTS, 1024);
    crowd(CROWD, 0);
    for (int i = 0; i < 20; i++) {
        put("b", 50, 3, 0);
        pass();
    }
    for (int i = 0; i < CROWD * LONG; i++)
        pass();
    ck_assert_int_eq(f.ended, f.submitted);
    int preempted = 0;
    for (const struct client *client = f.clients; client; client = client->next) {
        ck_ended(client, FINISH_REASON_LENGTH, STATUS_OK);
        ck_counts_up(client, client->usage.completion_tokens);
        preempted += client->usage.preemptions > 0;
    }
    ck_assert_int_gt(preempted, 0);
}
END_TEST

// Whichever tenant comes later gets slots in proportion to its weight, and no more.
START_TEST(slots_are_shared_by_weight)
{
    static const struct tenant_weight weights[] = {{"b", 3}};
    f.options.tenant_weights = weights;
    f.options.n_tenant_weights = 1;
    restart();
    start(SLOTS, 1024);
    crowd(CROWD, 0);
    for (int i = 0; i < CROWD; i++)
        put("b", 1, LONG, 0);
    for (int i = 0; i < 20; i++)
        pass();
    ck_assert_int_eq(running_of("b"), 6);
    ck_assert_int_eq(running_of("a"), 2);
}
END_TEST

START_TEST(kv_blocks_are_shared_as_well)
{
    start(64, 64); // 8 blocks for each request
    for (int i = 0; i < CROWD; i++)
        put("a", 100, 20, 0);
    pass();
    int n = w->n_requests;
    ck_assert_int_lt(n, CROWD);
    struct client *b = put("b", 300, 1, 0); // 19 blocks
    ck_assert(fake_node_has(w, b));
    ck_assert_int_lt(running_of("a"), n);
    ck_assert_int_ge(running_of("a"), 3);
    struct client *large = put("c", 600, 1, 0); // more than its share
    ck_assert(!fake_node_has(w, large));
}
END_TEST

START_TEST(a_higher_class_preempts_a_lower_one_of_any_tenant)
{
    start(SLOTS, 1024);
    crowd(CROWD, _i);
    struct client *same_class = put("a", 20, 1, _i ? -1 : 0), *higher = put("a", 20, 1, _i + 1);
    ck_assert(!fake_node_has(w, same_class));
    ck_assert(fake_node_has(w, higher));
}
END_TEST

START_TEST(a_lower_priority_preempts_nothing)
{
    start(SLOTS, 1024);
    crowd(CROWD, 0);
    struct client *lower = put("b", 20, 1, -1);
    for (int i = 0; i < 3; i++)
        pass();
    ck_assert(!fake_node_has(w, lower));
}
END_TEST

// Two tenants with one slot take turns, which grow longer.
START_TEST(tenants_take_turns_with_one_slot)
{
    start(1, 1024);
    struct client *a = put("a", 20, LONG, 0), *b = put("b", 20, LONG, 0);
    int turns = 0, passes = 0;
    for (bool of_a = true; !a->ends || !b->ends; passes++) {
        pass();
        if (w->n_requests && fake_node_has(w, a) != of_a) {
            of_a = !of_a;
            turns++;
        }
    }
    ck_assert_int_eq(passes, 2 * LONG);
    ck_assert_int_ge(turns, 4);
    ck_assert_int_le(a->usage.preemptions + b->usage.preemptions, 8);
    ck_counts_up(a, LONG);
    ck_counts_up(b, LONG);
}
END_TEST

START_TEST(a_freed_slot_goes_to_the_tenant_that_holds_less)
{
    start(SLOTS, 1024);
    crowd(CROWD, 0);
    put("b", 20, LONG, 0);
    ck_assert_int_eq(running_of("b"), 1);
    pass();
    struct client *waits = put("b", 400, LONG, 0); // tenant b has been served more now, so it preempts nobody
    for (int i = 0; i < 3; i++)
        put("b", 400, LONG, 0);
    ck_assert_int_le(running_of("b"), 2);
    (void)waits;
    int before = running_of("b");
    while (!f.ended || running_of("b") == before)
        pass();
    ck_assert_int_gt(running_of("b"), before);
}
END_TEST

// The group had sent a token when the router took the request back. The token is computed again, and counts once.
START_TEST(results_that_crossed_the_cancel_do_not_count)
{
    start(1, 1024);
    struct client *a = put("a", 20, LONG, 0);
    for (int i = 0; i < PREEMPT_TOKENS; i++)
        pass();
    uint64_t bin = a->r->account.bin_id;
    struct client *b = put("b", 20, 2, 0);
    ck_assert(!fake_node_has(w, a));
    ck_assert(fake_node_has(w, b));
    const int32_t token = PREEMPT_TOKENS;
    const struct sequence_result late = {.request = a->number, .bin = bin, .tokens = &token, .n_tokens = 1};
    core_step(f.c, w->node, &late, 1, f.now_us);
    ck_assert_int_eq(a->n_tokens, PREEMPT_TOKENS);
    pass();
    pass();
    ck_ended(b, FINISH_REASON_LENGTH, STATUS_OK);
    ck_assert(fake_node_has(w, a));
    core_step(f.c, w->node, &late, 1, f.now_us);
    ck_assert_int_eq(a->n_tokens, PREEMPT_TOKENS);
    struct sequence_result again = late;
    again.bin = a->r->account.bin_id;
    core_step(f.c, w->node, &again, 1, f.now_us);
    ck_counts_up(a, PREEMPT_TOKENS + 1);
}
END_TEST

SUITE("preemption")
{
    FIXTURE(setup, teardown);
    TEST(another_tenant_has_its_first_token_in_the_next_pass);
    TEST(preempted_answers_are_complete);
    TEST(slots_are_shared_by_weight);
    TEST(kv_blocks_are_shared_as_well);
    LOOP(a_higher_class_preempts_a_lower_one_of_any_tenant, -1, 1);
    TEST(a_lower_priority_preempts_nothing);
    TEST(tenants_take_turns_with_one_slot);
    TEST(a_freed_slot_goes_to_the_tenant_that_holds_less);
    TEST(results_that_crossed_the_cancel_do_not_count);
}
