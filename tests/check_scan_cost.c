// SPDX-License-Identifier: Apache-2.0
// router/core_bins: what it takes to find out who goes next, counted in looks at requests that wait. It must not grow
// with the queue, however often groups without room are asked, and whatever the queue holds that does not fit.
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "router/core/core_state.h"
#include "tests/core_fixture.h"

enum { GROUPS = 8, WAITING = 50000, TENANTS = 5000, ROUNDS = 100 };

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

// Goes to the group that was attached last, and has its first token.
static struct client *start(int group, int n_tokens, int max_tokens)
{
    struct client *client = fixture_send(&f, n_tokens, max_tokens);
    ck_assert(fake_node_has(groups[group], client));
    fake_node_step(&f, groups[group], client, 0, 1, -1);
    return client;
}

// Of 13 to 28 blocks each, that begin with 32 tokens like all of fixture_send.
static void put_crowd(bool head, bool tenants)
{
    for (int i = 0; i < WAITING; i++) {
        char *tenant = tenants ? mem_format("tenant-%d", i % TENANTS) : NULL;
        fixture_put_with_head(&f, head ? 32 : 0, -1, 200 + i % 241, tenant);
        free(tenant);
    }
    fixture_advance(&f, 0);
}

// Each group has ten of 60 blocks left and all that waits needs more: urgent or not, with a head in common or not, of
// one tenant or of thousands.
START_TEST(groups_without_room_do_not_look_again)
{
    bool urgent = _i & 1, head = _i & 2, tenants = _i & 4;
    struct client *large[GROUPS], *small[GROUPS];
    for (int i = 0; i < GROUPS; i++) {
        attach(i, 60, head);
        large[i] = start(i, 700, 120); // 46 blocks
        small[i] = start(i, 20, 4);    // two
        start(i, 20, 4);
    }
    put_crowd(head, tenants);
    if (urgent) fixture_advance(&f, SECOND);
    ck_assert(f.c->waiting[NODE_WORKER].overdue.count == (urgent ? WAITING : 0));
    // More room, but still too little, is a reason to look once: at each tenant, and for one of the urgent.
    uint64_t shares = tenants ? TENANTS : 1, from = totals().scan_cost;
    for (int i = 0; i < GROUPS; i++)
        fake_node_step(&f, groups[i], small[i], 1, 1, FINISH_REASON_STOP);
    uint64_t ends = totals().scan_cost - from;
    // A token is none.
    from = totals().scan_cost;
    for (int round = 1; round <= ROUNDS; round++) {
        for (int i = 0; i < GROUPS; i++)
            fake_node_step(&f, groups[i], large[i], round, 1, -1);
    }
    uint64_t steps = totals().scan_cost - from;
    // Who comes last and fits is found, and each group asked for it once.
    from = totals().scan_cost;
    struct client *fits = fixture_send(&f, 60, 4);
    uint64_t arrival = totals().scan_cost - from;
    printf("looks of %d groups without room%s%s%s: %llu in %d steps, %llu in %d ends, %llu for one that fits\n", GROUPS,
           urgent ? ", urgent" : "", head ? ", head" : "", tenants ? ", tenants" : "", (unsigned long long)steps,
           ROUNDS * GROUPS, (unsigned long long)ends, GROUPS, (unsigned long long)arrival);
    fflush(stdout);
    ck_assert_uint_eq(steps, 0);
    ck_assert_uint_le(ends, GROUPS * 2 * shares);
    ck_assert(fits->r->account.node);
    ck_assert_uint_le(arrival, GROUPS * 4 * (shares + 1));
    ck_assert_int_eq(waiting_set_count(&f.c->waiting[NODE_WORKER]), WAITING);
}
END_TEST

static struct client *client_of(uint64_t number) // fixture_find goes through all of the crowd
{
    return request_table_find(&f.c->table, number)->sink.user;
}

// All prompts have a head in common, that is less than a quarter of each: they are no kin that would be worth looking
// for, and finding that out costs little. Two groups have room for about six requests.
START_TEST(a_short_head_in_common_costs_little)
{
    bool urgent = _i & 1;
    for (int i = 0; i < 2; i++)
        attach(i, 150, true);
    put_crowd(true, false);
    if (urgent) fixture_advance(&f, SECOND);
    struct bin_totals from = totals();
    for (int step = 0; step < 4 * ROUNDS; step++) {
        struct fake_node *node = groups[step % 2];
        for (int i = 0; i < node->n_requests; i++) {
            struct client *client = client_of(node->requests[i]);
            if (client->r->account.bin) fake_node_step(&f, node, client, 0, 1, -1);
        }
        fake_node_step(&f, node, client_of(node->requests[0]), 1, 1, FINISH_REASON_STOP);
    }
    uint64_t looks = totals().scan_cost - from.scan_cost, items = totals().items - from.items;
    printf("looks with a short head in common%s: %llu for %llu requests\n", urgent ? ", urgent" : "",
           (unsigned long long)looks, (unsigned long long)items);
    fflush(stdout);
    ck_assert_uint_ge(items, 3 * ROUNDS);
    ck_assert_uint_le(looks, 20 * items);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("core_looks");
    TCase *tcase = tcase_create("core_looks");
    tcase_set_timeout(tcase, 120);
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_loop_test(tcase, groups_without_room_do_not_look_again, 0, 6);
    tcase_add_loop_test(tcase, a_short_head_in_common_costs_little, 0, 2);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
