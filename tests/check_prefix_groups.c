// SPDX-License-Identifier: Apache-2.0
// router/sched/bin_planner and prefix_groups: requests with shared prefixes, and what nodes' caches hold of them.
#include <string.h>

#include "router/core/core_state.h"
#include "tests/core_case.h"
#include "tests/suite.h"

static struct fake_node *caching_worker(const char *id)
{
    struct node_hello hello = fixture_hello(NODE_WORKER, id);
    hello.prefix_cache = true;
    return fixture_attach(&f, &hello);
}

START_TEST(a_cached_prefix_does_not_count_and_attracts_requests_to_its_node)
{
    struct fake_node *w = caching_worker("w"), *v = caching_worker("v");
    struct client *first = fixture_put_with_head(&f, 400, 0, 450, NULL),
                  *other = fixture_put_with_head(&f, 400, 1, 450, NULL);
    fixture_advance(&f, 0); // one to each node
    struct fake_node *mine = fake_node_has(w, first) ? w : v, *others = mine == w ? v : w;
    ck_assert(fake_node_has(mine, first));
    ck_assert(fake_node_has(others, other));
    finish(mine, first);
    finish(others, other);
    // Ten of 450 rows, 400 of them cached on one node: 50 are left of each, so one bin of 512 on that node holds all.
    struct client *ten[10];
    for (int i = 0; i < 10; i++)
        ten[i] = fixture_put_with_head(&f, 400, 1, 450, NULL);
    fixture_advance(&f, 0);
    for (int i = 0; i < 10; i++)
        ck_assert(fake_node_has(others, ten[i]));
    ck_assert_int_eq(others->last_bin_items, 10);
    ck_assert_int_eq(others->node->sched.account.bin_tokens, 10 * 50);
    // That node has so much work that another node finishes the next request sooner, without its prefix.
    struct client *eleventh = fixture_put_with_head(&f, 400, 1, 440, NULL);
    fixture_advance(&f, 0);
    ck_assert(fake_node_has(mine, eleventh));
    ck_assert_int_eq(mine->node->sched.account.bin_tokens, 440);
    for (int i = 0; i < 10; i++)
        finish(others, ten[i]);
    finish(mine, eleventh);
    // A node that attaches again has an empty cache.
    fixture_detach(&f, others);
    others = caching_worker("again");
    struct client *last = fixture_put_with_head(&f, 400, 1, 450, NULL);
    fixture_advance(&f, 0);
    ck_assert(fake_node_has(mine, last)); // the eleventh was there
    finish(mine, last);
}
END_TEST

// Counts the rows that a group computes if its cache holds three shared prefixes and evicts the least recently used
// one.
struct head_cache {
    int heads[3], n; // the most recently used is the last
    int64_t rows;
};

static void compute(struct head_cache *cache, int head, int head_rows, int tail_rows)
{
    int at = 0, most = (int)(sizeof cache->heads / sizeof *cache->heads);
    while (at < cache->n && cache->heads[at] != head)
        at++;
    cache->rows += tail_rows + (at == cache->n ? head_rows : 0);
    if (at == most) at = 0; // evict the oldest
    if (at < cache->n) memmove(&cache->heads[at], &cache->heads[at + 1], (size_t)(--cache->n - at) * sizeof(int));
    cache->heads[cache->n++] = head;
}

// Prompts with eight different prefixes arrive alternately, and the group's cache holds three. Each prefix is computed
// once, whether the prompts are overdue or not, and with one tenant or two tenants with four prefixes each. The group
// computes 5,520 rows, the fewest possible. By length alone, without the order of shared prefixes, the same prompts
// took 10,320 to 13,120 rows; without a cache they take 40,720.
START_TEST(shared_prefixes_are_used_up_one_after_another)
{
    enum { HEADS = 8, EACH = 12, HEAD = 400, N = HEADS * EACH };
    bool overdue = _i & 1, tenants = _i & 2;
    struct node_hello hello = fixture_hello(NODE_WORKER, "w");
    hello.prefix_cache = true;
    hello.kv_blocks = 3 * (HEAD / 16) + 25;
    struct fake_node *w = fixture_attach(&f, &hello);
    struct client *all[N],
        *on[2] = {fixture_put_with_head(&f, 0, 0, 512, NULL), fixture_put_with_head(&f, 0, 0, 512, NULL)};
    fixture_advance(&f, 0);
    int tail[N];
    int64_t tails = 0;
    bool seen[N] = {false};
    for (int i = 0; i < N; i++) {
        tail[i] = 5 + i * 7 % 40;
        tails += tail[i];
        all[i] = fixture_put_with_head(&f, HEAD, i % HEADS, HEAD + tail[i], tenants && i % 2 ? "odd" : "even");
    }
    if (overdue) fixture_advance(&f, SECOND);
    ck_assert_int_eq(all[0]->r->sched.overdue, overdue);
    ck_assert_ptr_null(all[0]->r->account.node);
    struct head_cache cache = {.n = 0};
    finish(w, on[0]);
    finish(w, on[1]);
    for (int left = N; left; left--) {
        for (int i = 0; i < w->n_requests; i++) {
            for (int k = 0; k < N; k++) {
                if (all[k]->number != w->requests[i] || seen[k]) continue;
                compute(&cache, k % HEADS, HEAD, tail[k]);
                seen[k] = true;
            }
        }
        ck_assert_int_gt(w->n_requests, 0);
        finish(w, fixture_find(&f, w->requests[0]));
    }
    ck_assert_msg(cache.rows == HEADS * HEAD + tails, "%lld rows, %lld for %d heads and all tails",
                  (long long)cache.rows, (long long)(HEADS * HEAD + tails), HEADS);
}
END_TEST

// With room for all requests, bins are full of one shared-prefix group, and the next bin continues with that group.
START_TEST(a_shared_prefix_counts_once_in_a_bin_and_the_next_bin_continues_its_group)
{
    struct fake_node *w = caching_worker("w");
    enum { EACH = 24 };
    struct client *of[2][EACH];
    for (int i = 0; i < EACH; i++) {
        for (int head = 0; head < 2; head++)
            of[head][i] = fixture_put_with_head(&f, 400, head, 416 + i % 3, NULL);
    }
    fixture_advance(&f, 0);
    // The prefix and six tails of 16 to 18 rows, then tails alone; there is no room for the other prefix.
    int first = of[0][0]->r->account.node ? 0 : 1;
    ck_assert_int_eq(w->bins, 2);
    ck_assert_int_eq(w->n_requests, EACH);
    for (int i = 0; i < EACH; i++)
        ck_assert(fake_node_has(w, of[first][i]));
    ck_assert_int_eq(w->node->sched.account.bin_tokens, 400 + EACH * 17);
}
END_TEST

// Requests with one prefix arrive without end and faster than the group computes them. Only those that arrived within
// max_wait of a request of their tenant without that prefix precede it. They precede no request of another tenant.
START_TEST(a_shared_prefix_group_does_not_starve_others)
{
    enum { BIN_US = 50000, STREAM = 12, CROWD = 200 };
    struct fake_node *w = caching_worker("w");
    for (int i = 0; i < 2 * STREAM; i++) // more than two bins
        fixture_put_with_head(&f, 400, 0, 450, "sharing");
    fixture_advance(&f, 0);
    struct client *other = fixture_put_with_head(&f, 400, 1, 410, "sharing"),
                  *stranger = fixture_put(&f, "other", 410, -1);
    for (int i = 0; i < CROWD; i++)
        fixture_put_with_head(&f, 400, 0, 450, "sharing");
    int64_t from_us = f.now_us, other_us = 0, stranger_us = 0;
    while (!other_us || !stranger_us) {
        // The requests that may precede it take half of a bin, which holds at least five of them.
        ck_assert_int_le(f.now_us - from_us, SECOND + ((CROWD + SECOND / BIN_US * STREAM) / 5 + 2) * BIN_US);
        for (int i = 0; i < STREAM; i++)
            fixture_put_with_head(&f, 400, 0, 450, "sharing");
        fake_node_finish_oldest_bin(&f, w);
        fixture_advance(&f, BIN_US);
        if (!other_us && (other->ends || other->r->account.node)) other_us = f.now_us - from_us;
        if (!stranger_us && (stranger->ends || stranger->r->account.node)) stranger_us = f.now_us - from_us;
    }
    ck_assert_int_le(stranger_us, SECOND + 2 * BIN_US);
    ck_assert_int_gt(other_us, SECOND + 2 * BIN_US);
}
END_TEST

static void first_tokens(struct fake_node *node)
{
    for (int i = 0; i < node->n_requests; i++) {
        struct client *client = fixture_find(&f, node->requests[i]);
        if (client->r->account.bin) fake_node_step(&f, node, client, 0, 1, -1);
    }
}

// Requests with one prefix occupy nearly all KV blocks of two groups. When one of a group's four requests ends, another
// one takes its blocks, with most rows cached. Sometimes a request without that prefix arrives, of the same tenant or
// of lower priority, which needs half of the blocks or nearly all. It waits for max_wait. Then it waits until a group
// has served its four requests, and four more that take the blocks which it does not need.
START_TEST(with_few_kv_blocks_a_shared_prefix_group_delays_others_by_a_bin_at_most)
{
    enum { STEP_US = 10000, STEPS = 2000, EVERY = 150, SERVED_US = (2 * 4 * 2 + 1) * STEP_US };
    bool lesser = _i;
    struct node_hello hello = fixture_hello(NODE_WORKER, "w");
    hello.prefix_cache = true;
    hello.kv_blocks = 28; // 16 for the prefix, three for each of four requests
    struct fake_node *nodes[2] = {fixture_attach(&f, &hello), NULL};
    strcpy(hello.node_id, "x");
    nodes[1] = fixture_attach(&f, &hello);
    for (int i = 0; i < 48; i++)
        fixture_put_with_head(&f, 256, 0, 288, "sharing");
    fixture_advance(&f, 0);
    struct client *other = NULL;
    int n = 0, n_late = 0;
    for (int step = 0; step < STEPS; step++) {
        struct fake_node *node = nodes[step % 2];
        if (step % EVERY == 0) {
            if (other) {
                ck_assert_msg(other->ends, "number %d never went", n);
                ck_assert_msg(other->timing.pack_wait_us <= SECOND + SERVED_US, "number %d waited %lld us", n,
                              (long long)other->timing.pack_wait_us);
                n_late += other->timing.pack_wait_us >= SECOND;
            }
            int n_tokens = n++ % 2 ? 200 : 400;
            other =
                lesser ? fixture_put(&f, "lesser", n_tokens, -8) : fixture_put_with_head(&f, 0, 0, n_tokens, "sharing");
        }
        if (step % 50) fixture_put_with_head(&f, 256, 0, 288, "sharing");
        first_tokens(nodes[0]);
        first_tokens(nodes[1]);
        if (node->n_requests) fake_node_step(&f, node, fixture_find(&f, node->requests[0]), 1, 1, FINISH_REASON_STOP);
        fixture_advance(&f, STEP_US);
        ck_assert_int_ge(nodes[0]->node->sched.account.kv_blocks + nodes[1]->node->sched.account.kv_blocks, 28);
    }
    ck_assert_msg(n_late >= n / 2, "%d of %d", n_late, n); // the stream kept them waiting until then
}
END_TEST

START_TEST(a_pruned_prompt_is_no_prefix_of_a_whole_one)
{
    struct fake_node *w = caching_worker("w");
    struct fake_node *s = attach_speculator("s");
    struct client *pruned = fixture_request(&f, 300, 4);
    pruned->r->spec.prefill.mode = PREFILL_ON;
    pruned->r->spec.prefill.keep_rate = 0.5;
    fixture_submit(&f, pruned);
    fixture_advance(&f, 0);
    fake_node_score(&f, s, pruned, 100, 299);
    ck_assert(fake_node_has(w, pruned));
    ck_assert_int_eq(w->node->sched.account.bin_tokens, 200);
    struct client *whole = fixture_send(&f, 300, 4); // begins with the same tokens
    finish(w, pruned);
    ck_assert(fake_node_has(w, whole));
    ck_assert_int_eq(w->node->sched.account.bin_tokens, 300);
    finish(w, whole);
    struct client *again = fixture_send(&f, 300, 4);
    ck_assert_int_eq(w->node->sched.account.bin_tokens, 300 - 18 * 16);
    finish(w, again);
}
END_TEST

SUITE("prefix_tail")
{
    FIXTURE(setup, teardown);
    TEST(a_cached_prefix_does_not_count_and_attracts_requests_to_its_node);
    LOOP(shared_prefixes_are_used_up_one_after_another, 0, 4);
    TEST(a_shared_prefix_counts_once_in_a_bin_and_the_next_bin_continues_its_group);
    TEST(a_shared_prefix_group_does_not_starve_others);
    LOOP(with_few_kv_blocks_a_shared_prefix_group_delays_others_by_a_bin_at_most, 0, 2);
    TEST(a_pruned_prompt_is_no_prefix_of_a_whole_one);
}
