// SPDX-License-Identifier: Apache-2.0
// Prompts that are made to collide. The order and the index of shared prefixes are correct for any hashes. Prompts that
// collide under a mix without a key, which anyone can compute, do not collide under the router's hashes.
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "router/core/core_state.h"
#include "tests/core_case.h"
#include "tests/suite.h"

static uint64_t random_state = 1;
static uint32_t random_32(void)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(random_state >> 33);
}

// --- chains of any values

enum { REQUESTS = 300, BLOCKS_MAX = 9, STEPS = 40000 };

struct chained {
    struct sched_request r;
    uint64_t chain[BLOCKS_MAX];
};

// Makes a chain of two values, so that most chains have equal values after different ones.
static void chained_init(struct chained *chained, struct tenant_queue *queue, int number)
{
    chained->r = (struct sched_request){.number = (uint64_t)number,
                                        .prefix = chained->chain,
                                        .n_prefix = 1 + (int)(random_32() % BLOCKS_MAX),
                                        .tenant_queue = queue,
                                        .tree_weight = random_32(),
                                        .need.rows = 1};
    for (int i = 0; i < chained->r.n_prefix; i++)
        chained->chain[i] = 1 + random_32() % 2;
}

static int shared_blocks(const struct chained *a, const struct chained *b)
{
    int n = 0;
    while (n < a->r.n_prefix && n < b->r.n_prefix && a->chain[n] == b->chain[n])
        n++;
    return n;
}

START_TEST(the_order_of_prefixes_holds_for_any_hashes)
{
    static struct prefix_groups groups;
    static struct chained all[REQUESTS];
    static bool there[REQUESTS];
    struct tenant_queue queue = {.number = 1};
    for (int i = 0; i < REQUESTS; i++)
        chained_init(&all[i], &queue, i + 1);
    for (int step = 0; step < STEPS; step++) {
        int i = (int)(random_32() % REQUESTS);
        if (there[i]) {
            prefix_groups_remove(&groups, &all[i].r);
        } else {
            prefix_groups_add(&groups, &all[i].r);
        }
        there[i] = !there[i];
        int most = 0;
        for (int k = 0; k < REQUESTS; k++) {
            int shared = there[k] ? shared_blocks(&all[i], &all[k]) : 0;
            if (shared > most) most = shared;
        }
        struct prefix_walk walk;
        prefix_walk_start(&walk, &groups, &queue, all[i].chain, all[i].r.n_prefix);
        ck_assert(!prefix_walk_next(&walk) == !most);
        ck_assert_int_eq(most ? walk.blocks : 0, most);
    }
}
END_TEST

// Requests with such chains run on three nodes. Each node holds what its requests share, and nothing is left at the
// end.
START_TEST(the_index_of_prefixes_holds_for_any_hashes)
{
    enum { NODES = 3, HELD = 20 };
    static struct chained all[NODES][HELD];
    const struct prefix_run *runs[NODES][HELD] = {0};
    struct prefix_index *index = prefix_index_create();
    struct prefix_record *records[NODES];
    for (int i = 0; i < NODES; i++)
        records[i] = prefix_record_open(index, NULL, REQUESTS * BLOCKS_MAX);
    for (int step = 0; step < STEPS; step++) {
        int node = (int)(random_32() % NODES), i = (int)(random_32() % HELD), most = 0;
        struct chained *chained = &all[node][i];
        prefix_record_release(records[node], runs[node][i]);
        runs[node][i] = NULL;
        chained_init(chained, NULL, 1);
        for (int k = 0; k < HELD; k++) {
            int shared = runs[node][k] ? shared_blocks(chained, &all[node][k]) : 0;
            if (shared > most) most = shared;
        }
        ck_assert_int_eq(prefix_record_held(records[node], chained->chain, chained->r.n_prefix), most);
        runs[node][i] = prefix_record_hold(records[node], chained->chain, chained->r.n_prefix);
        ck_assert_int_eq(prefix_run_blocks(runs[node][i]), chained->r.n_prefix);
    }
    for (int node = 0; node < NODES; node++) {
        for (int i = 0; i < HELD; i++)
            prefix_record_release(records[node], runs[node][i]);
        ck_assert_int_eq(prefix_record_blocks_held(records[node]), 0);
        prefix_record_close(records[node]);
    }
    prefix_index_free(index);
}
END_TEST

// --- prompts whose blocks collide under the finaliser of splitmix64, chained without a key

static uint64_t mix(uint64_t state, int32_t token, int position)
{
    uint64_t x = state + UINT64_C(0x9e3779b97f4a7c15) + ((uint64_t)(uint32_t)token << 32 | (uint32_t)position);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

enum {
    TRIES = 1 << 18,
    PROMPT_BLOCKS = 7,
    PROMPT = PROMPT_BLOCKS * PREFIX_BLOCK,
    LAST = 3 * PREFIX_BLOCK - 1,
    BETWEEN = 4
};

struct attempt {
    uint64_t state; // before token LAST
    int number;
};

// All prompts have the same first block. The other tokens depend on the number.
static void prompt_fill(int32_t *tokens, int number)
{
    for (int i = 0; i < PROMPT; i++)
        tokens[i] = i < PREFIX_BLOCK || i >= LAST ? 1 : (int32_t)((unsigned)number >> i % 3 * 8 & 255);
}

static int by_low_half(const void *a, const void *b)
{
    uint32_t x = (uint32_t)((const struct attempt *)a)->state, y = (uint32_t)((const struct attempt *)b)->state;
    return x < y ? -1 : x > y;
}

// Makes two prompts with different second blocks whose mixed states are equal from the end of the third block on. If
// the low halves of the states before a token are equal, two tokens can compensate for the difference of the high
// halves.
static void colliding_prompts(int32_t *a, int32_t *b)
{
    struct attempt *attempts = mem_alloc_array(TRIES, sizeof *attempts);
    for (int t = 0; t < TRIES; t++) {
        prompt_fill(a, t);
        attempts[t].number = t;
        for (int i = 0; i < LAST; i++)
            attempts[t].state = mix(attempts[t].state, a[i], i);
    }
    qsort(attempts, TRIES, sizeof *attempts, by_low_half);
    int t = 1;
    while (t < TRIES && by_low_half(&attempts[t - 1], &attempts[t]) != 0)
        t++;
    ck_assert_int_lt(t, TRIES);
    prompt_fill(a, attempts[t - 1].number);
    prompt_fill(b, attempts[t].number);
    a[LAST] = 1;
    b[LAST] = (int32_t)(1 + (uint32_t)((attempts[t - 1].state - attempts[t].state) >> 32));
    ck_assert(mix(attempts[t - 1].state, a[LAST], LAST) == mix(attempts[t].state, b[LAST], LAST));
    free(attempts);
}

static struct client *send_prompt(const int32_t *tokens)
{
    struct client *client = fixture_request(&f, PROMPT, 4);
    client->r->spec.prefill.mode = PREFILL_OFF;
    memcpy(client->r->spec.tokens, tokens, PROMPT * sizeof *tokens);
    fixture_submit(&f, client);
    return client;
}

START_TEST(prompts_that_collide_without_a_key_wait_and_leave_like_others)
{
    struct node_hello hello = fixture_hello(NODE_WORKER, "w");
    hello.prefix_cache = true;
    fixture_attach(&f, &hello);
    fixture_put(&f, NULL, 512, 0);
    fixture_put(&f, NULL, 512, 0);
    fixture_advance(&f, 0); // the group is busy, the others wait
    int32_t a[PROMPT], b[PROMPT], other[PROMPT];
    colliding_prompts(a, b);
    ck_assert(memcmp(a, b, sizeof a) != 0);
    for (int round = 0; round < 500; round++) {
        struct client *clients[BETWEEN + 2];
        for (int i = 0; i < BETWEEN; i++) {
            prompt_fill(other, (int)(random_32() & 0xffffff));
            clients[i] = send_prompt(other);
        }
        clients[BETWEEN] = send_prompt(round % 2 ? a : b);
        clients[BETWEEN + 1] = send_prompt(round % 2 ? b : a);
        uint64_t *chains[2] = {clients[BETWEEN]->r->sched.prefix, clients[BETWEEN + 1]->r->sched.prefix};
        ck_assert(chains[0][0] == chains[1][0]);
        for (int i = 1; i < PROMPT_BLOCKS; i++)
            ck_assert(chains[0][i] != chains[1][i]);
        for (int n = BETWEEN + 2; n; n--) {
            int i = (int)(random_32() % (uint32_t)n);
            ck_assert(core_cancel(f.c, clients[i]->number, f.now_us));
            clients[i] = clients[n - 1];
        }
    }
}
END_TEST

SUITE("prefix_collision")
{
    FIXTURE(setup, teardown);
    TEST(the_order_of_prefixes_holds_for_any_hashes);
    TEST(the_index_of_prefixes_holds_for_any_hashes);
    TEST(prompts_that_collide_without_a_key_wait_and_leave_like_others);
}
