// SPDX-License-Identifier: Apache-2.0
// router/sched/bin_planner and core/dispatch: which requests are in the next bin, which node gets it, and when it
// waits.
#include <stdlib.h>
#include <string.h>

#include "bench/pack_offline.h"
#include "lib/base/mem.h"
#include "router/core/core_state.h"
#include "tests/core_case.h"
#include "tests/suite.h"

static struct fake_node *worker(const char *id, int token_budget)
{
    struct node_hello hello = fixture_hello(NODE_WORKER, id);
    hello.token_budget = token_budget;
    return fixture_attach(&f, &hello);
}

static struct client *put(int n_tokens, int priority)
{
    return fixture_put(&f, NULL, n_tokens, priority);
}

START_TEST(an_idle_node_gets_any_bin_and_a_busy_one_only_large_ones)
{
    struct fake_node *w = worker("w", 512);
    struct client *first = fixture_send(&f, 1, 4);
    ck_assert(fake_node_has(w, first));
    ck_assert_int_eq(w->bins, 1);
    struct client *a = fixture_send(&f, 200, 4), *b = fixture_send(&f, 55, 4);
    ck_assert_ptr_null(a->r->account.node);
    ck_assert_ptr_null(b->r->account.node);
    ck_assert_int_eq(w->bins, 1); // under half of 512
    struct client *c = fixture_send(&f, 1, 4);
    ck_assert(fake_node_has(w, a));
    ck_assert(fake_node_has(w, b));
    ck_assert(fake_node_has(w, c));
    ck_assert_int_eq(w->bins, 2);
    ck_assert_int_eq(w->last_bin_items, 3);
    fixture_send(&f, 512, 4);
    ck_assert_int_eq(w->bins, 2); // bins_ahead
    fake_node_step(&f, w, first, 0, 1, -1);
    ck_assert_int_eq(w->bins, 3); // the first token settles its bin, though the request goes on
    ck_assert(fake_node_has(w, first));
}
END_TEST

static void restart_with_policy(enum bin_policy policy, int batch_requests)
{
    f.options.policy = policy;
    f.options.batch_requests = batch_requests;
    restart();
}

START_TEST(policy_none_dispatches_one_request_per_bin_by_arrival)
{
    restart_with_policy(BIN_NONE, 0);
    struct fake_node *w = worker("w", 512);
    struct client *a = put(10, 0), *b = put(500, 0), *c = put(20, 0);
    fixture_advance(&f, 0);
    ck_assert_int_eq(w->bins, 2);
    ck_assert_int_eq(w->last_bin_items, 1); // bins_ahead; 20 rows are not half a bin
    ck_assert(fake_node_has(w, a));
    ck_assert(fake_node_has(w, b));
    ck_assert_ptr_null(c->r->account.node);
    finish(w, a);
    ck_assert(fake_node_has(w, c));
    ck_assert_int_eq(w->bins, 3);
}
END_TEST

START_TEST(policy_batch_packs_arrival_batches_apart)
{
    restart_with_policy(BIN_BATCH, 3);
    struct fake_node *w = worker("w", 512);
    // Packed as one set they would fill bins of 512; the first batch alone makes bins of 400 + 100 and 300.
    struct client *a = put(400, 0), *b = put(300, 0), *c = put(100, 0), *d = put(212, 0), *e = put(112, 0);
    fixture_advance(&f, 0);
    ck_assert(fake_node_has(w, a));
    ck_assert(fake_node_has(w, c));
    ck_assert(fake_node_has(w, b));
    ck_assert_int_eq(w->bins, 2);
    ck_assert_int_eq(w->last_bin_rows, 300);
    ck_assert_ptr_null(d->r->account.node);
    finish(w, b); // the next batch is the requests that wait now
    ck_assert(fake_node_has(w, d));
    ck_assert(fake_node_has(w, e));
    ck_assert_int_eq(w->last_bin_items, 2);
    struct client *g = put(10, 0); // arrived after that batch, so it is in a separate one
    finish(w, a);
    finish(w, c);
    ck_assert(fake_node_has(w, g));
    ck_assert_int_eq(w->last_bin_items, 1);
}
END_TEST

START_TEST(a_bin_is_outstanding_until_its_last_request_has_a_token_or_an_end)
{
    f.options.bins_ahead = 1;
    restart();
    struct fake_node *w = worker("w", 512);
    struct client *a = put(100, 0), *b = put(100, 0), *c = put(100, 0);
    fixture_advance(&f, 0);
    ck_assert_int_eq(w->last_bin_items, 3);
    struct client *next = fixture_send(&f, 512, 4);
    fake_node_step(&f, w, a, 0, 1, -1);
    finish(w, b);
    ck_assert(!next->r->account.node);
    core_cancel(f.c, c->number, f.now_us);
    fixture_advance(&f, 0);
    ck_assert(fake_node_has(w, next));
}
END_TEST

// The same holds with a prefix cache, while no two prompts share a prefix.
START_TEST(bin_after_bin_the_whole_queue_is_packed_first_fit_decreasing)
{
    struct node_hello hello = fixture_hello(NODE_WORKER, "w");
    hello.prefix_cache = _i;
    struct fake_node *w = fixture_attach(&f, &hello);
    struct client *running[2] = {fixture_put_with_head(&f, 0, 0, 512, NULL),
                                 fixture_put_with_head(&f, 0, 0, 512, NULL)};
    fixture_advance(&f, 0);
    int32_t length[60], bin_of[60];
    struct client *queue[60];
    uint32_t random = 12345;
    for (int i = 0; i < 60; i++) {
        random = random * 1664525u + 1013904223u;
        length[i] = 20 + (int32_t)((random >> 16) % 400);
        queue[i] = fixture_put_with_head(&f, 0, 0, length[i], NULL);
    }
    for (int left = 60; left;) {
        pack_items(length, left, 512, PACK_FIRST_FIT, bin_of);
        int most = 0;
        for (int i = 0; i < left; i++)
            most += bin_of[i] == 0 ? length[i] : 0;
        if (most < 256) break; // the last few rows wait for an idle node
        int bins = w->bins;
        fake_node_step(&f, w, running[0], 0, 1, FINISH_REASON_STOP);
        ck_assert_int_eq(w->bins, bins + 1);
        ck_assert_int_eq(w->last_bin_rows, most);
        // Ends all requests of the last bin but one, except one request that is kept for the next round.
        running[0] = running[1];
        int handed = 0, kept = 0;
        struct client *last = NULL;
        for (int i = 0; i < left; i++) {
            if (fake_node_has(w, queue[i])) {
                if (last) finish(w, last);
                last = queue[i];
                handed++;
            } else {
                length[kept] = length[i];
                queue[kept++] = queue[i];
            }
        }
        ck_assert_int_eq(handed, w->last_bin_items);
        running[1] = last;
        left = kept;
    }
}
END_TEST

START_TEST(a_long_prompt_takes_half_of_its_bin_and_of_those_that_follow)
{
    struct fake_node *w = worker("w", 512);
    struct client *small = put(200, 0), *huge = put(2000, 0), *beyond = put(100, 0);
    fixture_advance(&f, 0);
    ck_assert(fake_node_has(w, huge));
    ck_assert(fake_node_has(w, small));
    ck_assert_int_eq(w->last_bin_rows, 2200);
    ck_assert_int_eq(w->bins, 1);
    ck_assert_ptr_null(beyond->r->account.node);
    struct core_status status = fixture_status(&f);
    ck_assert(status.prefill_bins.capacity_tokens == 2200);
    core_status_fini(&status);
    struct client *again = put(600, 0), *mate = put(200, 0);
    fixture_advance(&f, SECOND);
    ck_assert(fake_node_has(w, beyond));
    ck_assert_ptr_null(again->r->account.node); // overdue, but the other one goes on
    ck_assert_ptr_null(mate->r->account.node);
    ck_assert_int_eq(w->last_bin_rows, 100);
    finish(w, small);
    finish(w, beyond);
    finish(w, huge);
    ck_assert(fake_node_has(w, again));
    ck_assert(fake_node_has(w, mate));
}
END_TEST

START_TEST(priority_goes_before_a_full_bin)
{
    struct fake_node *w = worker("w", 512);
    struct client *a = fixture_send(&f, 512, 4);
    fixture_send(&f, 512, 4);
    put(512, 0);
    struct client *important = put(300, 5), *companion = put(212, 0), *lesser = put(400, 4);
    finish(w, a);
    ck_assert(fake_node_has(w, important));
    ck_assert(fake_node_has(w, companion));
    ck_assert_ptr_null(lesser->r->account.node);
    ck_assert_int_eq(w->last_bin_rows, 512);
}
END_TEST

START_TEST(overdue_requests_go_first_oldest_first_then_priority_then_length)
{
    struct fake_node *w = worker("w", 512);
    struct client *a = fixture_send(&f, 512, 4), *b = fixture_send(&f, 512, 4);
    struct client *oldest = put(100, -3);
    fixture_advance(&f, 10);
    struct client *second = put(450, 9); // does not fit with the oldest
    fixture_advance(&f, 10);
    struct client *third = put(101, 0);
    fixture_advance(&f, SECOND - 1);
    struct client *prior = put(50, 1), *longer = put(200, 0), *filler = put(60, 0), *shorter = put(10, 0);
    ck_assert_int_eq(core_next_deadline_us(f.c), f.now_us + 1);
    fixture_advance(&f, 1);
    finish(w, a);
    ck_assert_int_eq(w->last_bin_items, 5);
    ck_assert_int_eq(w->last_bin_rows, 100 + 101 + 50 + 200 + 60);
    uint64_t *in = &w->requests[w->n_requests - 5];
    ck_assert_uint_eq(in[0], oldest->number);
    ck_assert_uint_eq(in[1], third->number);
    ck_assert_uint_eq(in[2], prior->number);
    ck_assert_uint_eq(in[3], longer->number);
    ck_assert_uint_eq(in[4], filler->number);
    finish(w, b);
    ck_assert(fake_node_has(w, second));
    ck_assert(fake_node_has(w, shorter)); // and now the next bin
}
END_TEST

START_TEST(becoming_overdue_ends_the_wait_for_a_fuller_bin)
{
    struct fake_node *w = worker("w", 512);
    fixture_send(&f, 10, 4);
    struct client *alone = fixture_send(&f, 10, 4);
    ck_assert(!alone->r->account.node);
    ck_assert_int_eq(core_next_deadline_us(f.c), f.now_us + SECOND);
    fixture_advance(&f, SECOND - 1);
    ck_assert(!alone->r->account.node);
    fixture_advance(&f, 1);
    ck_assert(fake_node_has(w, alone));
}
END_TEST

// Requests that fill a bin exactly arrive without end. A request that fits badly is packed into the next bin once it is
// overdue.
START_TEST(no_stream_delays_an_overdue_request_by_more_than_a_bin)
{
    struct fake_node *w = worker("w", 512);
    struct client *on[2] = {fixture_send(&f, 512, 4), fixture_send(&f, 512, 4)};
    struct client *awkward = fixture_send(&f, 300, 4), *stream[2] = {put(512, 3), put(200, 3)};
    int bins = 0;
    while (!awkward->r->account.node) {
        bool overdue = awkward->r->sched.overdue;
        fixture_advance(&f, 30000);
        overdue |= awkward->r->sched.overdue;
        struct client *perfect = put(512, 3); // of higher priority, and fills the bin
        int before = w->bins;
        finish(w, on[0]);
        ck_assert_int_eq(w->bins, before + 1);
        ck_assert_msg(!overdue || awkward->r->account.node, "overdue, yet not in the next bin");
        on[0] = on[1];
        on[1] = stream[0];
        if (!awkward->r->account.node) ck_assert(fake_node_has(w, on[1]));
        stream[0] = perfect;
        bins++;
    }
    ck_assert_int_gt(bins, 30); // it had to wait until it was overdue
    ck_assert_int_ge(f.now_us - awkward->r->spec.arrived_us, SECOND);
    ck_assert_int_eq(w->last_bin_rows, 500);
    ck_assert_ptr_nonnull(stream[1]->r->account.node); // the rest of its bin is filled
}
END_TEST

// More requests are overdue than a bin holds. They get half of each bin, so high priorities do not wait for all of
// them.
START_TEST(overdue_requests_beyond_a_bin_leave_half_of_it_to_priority)
{
    struct fake_node *w = worker("w", 512);
    struct client *on[2] = {fixture_send(&f, 512, 4), fixture_send(&f, 512, 4)}, *low[40];
    for (int i = 0; i < 40; i++)
        low[i] = put(64, -1);
    fixture_advance(&f, SECOND);
    struct client *high[2] = {put(128, 5), put(120, 5)};
    finish(w, on[0]);
    ck_assert(fake_node_has(w, high[0]));
    ck_assert(fake_node_has(w, high[1]));
    for (int i = 0; i < 4; i++)
        ck_assert(fake_node_has(w, low[i]));
    ck_assert_int_eq(w->last_bin_items, 6);
    ck_assert_ptr_null(low[4]->r->account.node);
    finish(w, on[1]); // no other request waits for the other half
    for (int i = 4; i < 12; i++)
        ck_assert(fake_node_has(w, low[i]));
}
END_TEST

// A stream of high-priority requests fills every bin to the last row. Sometimes a low-priority request arrives whose
// length fits badly. None of them waits longer than max_wait and one bin.
START_TEST(no_stream_starves_low_priorities)
{
    struct fake_node *w = worker("w", 512);
    fixture_send(&f, 512, 4);
    fixture_send(&f, 512, 4);
    put(400, 8);
    put(112, 8);
    struct client *low = NULL;
    int n_low = 0, n_late = 0;
    for (int round = 0; round < 1000; round++) {
        if (round % 50 == 7) {
            if (low) {
                ck_assert(low->ends == 1);
                ck_assert_int_le(low->timing.pack_wait_us, SECOND + 50000); // a bin takes 50 ms here
                n_late += low->timing.pack_wait_us >= SECOND;
            }
            low = put(1 + (round * 37) % 500, -8);
            n_low++;
        }
        if (round % 50 != 40) { // the room
            put(400, 8);
            put(112, 8);
        }
        fake_node_finish_oldest_bin(&f, w);
        fixture_advance(&f, 50000);
    }
    ck_assert_int_eq(n_low, 20);
    ck_assert_int_ge(n_late, 3); // the stream kept them waiting until then
}
END_TEST

// Answers the speculator's oldest bin, keeping all tokens.
static void score_oldest_bin(struct fake_node *s)
{
    struct client *in[64];
    if (!s->n_requests) return;
    const struct core_bin *bin = fixture_find(&f, s->requests[0])->r->account.bin;
    int n = 0;
    for (int i = 0; i < s->n_requests; i++) {
        struct client *client = fixture_find(&f, s->requests[i]);
        if (client->r->account.bin == bin) in[n++] = client;
    }
    for (int i = 0; i < n; i++)
        fake_node_score(&f, s, in[i], 0, in[i]->r->spec.n_tokens - 1);
}

static struct client *put_speculated(const char *tenant, int n_tokens, int priority, int64_t deadline_us,
                                     enum prefill_mode mode, bool score_only)
{
    struct client *client = fixture_request(&f, n_tokens, 4);
    struct request *r = client->r;
    r->spec.tenant = mem_string(tenant);
    r->spec.priority = priority;
    r->spec.prefill.mode = mode;
    r->spec.score_only = score_only;
    if (deadline_us) r->spec.ttft_deadline_us = f.now_us + deadline_us;
    fixture_submit(&f, client);
    return client;
}

// One stream of high-priority requests fills every bin of the speculator, another every bin of the worker group. A
// low-priority request that needs both pools waits at most max_wait in all and one bin of each pool. A third stream, of
// another tenant, has deadlines.
START_TEST(no_stream_starves_requests_that_wait_for_both_pools)
{
    struct fake_node *w = worker("w", 512);
    struct fake_node *s = attach_speculator("s");
    struct client *low = NULL;
    int n_low = 0, n_late = 0;
    for (int round = 0; round < 1000; round++) {
        if (round % 50 == 7) {
            if (low) {
                ck_assert_int_eq(low->ends, 1);
                ck_assert_int_gt(low->usage.scored_tokens, 0);
                int64_t waited_us = low->timing.queue_us + low->timing.pack_wait_us;
                ck_assert_int_le(waited_us, SECOND + 2 * 50000); // a bin takes 50 ms here
                n_late += waited_us >= SECOND;
            }
            low = put_speculated("low", 1 + (round * 37) % 500, -8, 0, PREFILL_ON, false);
            n_low++;
        }
        if (round % 50 != 40 && round % 50 != 41) { // in the other rounds there is room
            put_speculated("high", 400, 8, 0, PREFILL_ON, true);
            put_speculated("high", 88, 8, 0, PREFILL_ON, true);
            put_speculated("high", 400, 8, 0, PREFILL_OFF, false);
            put_speculated("high", 64, 8, 0, PREFILL_OFF, false);
        }
        put_speculated("timely", 24, -8, 1200000, PREFILL_ON, false);
        put_speculated("timely", 24, -8, 500000, PREFILL_OFF, false);
        score_oldest_bin(s);
        if (w->n_requests) fake_node_finish_oldest_bin(&f, w);
        fixture_advance(&f, 50000);
    }
    ck_assert_int_eq(n_low, 20);
    ck_assert_int_ge(n_late, 3); // the streams kept them waiting until then
    struct core_status status = fixture_status(&f);
    ck_assert_uint_eq(status.totals.failed, 0); // every deadline was met
    core_status_fini(&status);
}
END_TEST

static int rows_of(const struct fake_node *w, struct client *const *clients, int n)
{
    int rows = 0;
    for (int i = 0; i < n; i++)
        rows += clients[i]->r && clients[i]->r->account.node == w->node ? clients[i]->r->spec.n_tokens : 0;
    return rows;
}

START_TEST(tenants_of_one_priority_share_by_tokens)
{
    fixture_stop(&f);
    fixture_init(&f);
    struct tenant_weight weights[] = {{"double", 2}};
    f.options.tenant_weights = weights;
    f.options.n_tenant_weights = 1;
    f.options.max_wait_us = 1000 * (int64_t)SECOND;
    f.options.bins_ahead = 8;
    fixture_start(&f);
    // One tenant sends many short requests. The others later send a few requests of any length.
    struct node_hello hello = fixture_hello(NODE_WORKER, "small");
    hello.max_seqs = 1;
    fixture_attach(&f, &hello);
    fixture_send(&f, 10, 4);
    struct client *flood[200], *few[20], *twice[90];
    for (int i = 0; i < 200; i++)
        flood[i] = fixture_put(&f, "flood", 20 + i % 7, 0);
    for (int i = 0; i < 20; i++)
        few[i] = fixture_put(&f, "few", 60 + i, 0);
    for (int i = 0; i < 90; i++)
        twice[i] = fixture_put(&f, "double", 30 + i % 5, 0);
    hello = fixture_hello(NODE_WORKER, "w");
    hello.max_seqs = 1000;
    struct fake_node *w = fixture_attach(&f, &hello); // eight bins: 4096 rows of about 9000
    int a = rows_of(w, flood, 200), b = rows_of(w, few, 20), d = rows_of(w, twice, 90);
    ck_assert_msg(abs(a + b + d - 4096) < 80, "%d + %d + %d", a, b, d);
    ck_assert_msg(abs(a - b) < 120, "%d, %d", a, b);
    ck_assert_msg(abs(d - 2 * b) < 240, "%d, %d for the double", b, d);
}
END_TEST

START_TEST(a_tenant_gets_no_credit_for_time_without_requests)
{
    struct fake_node *w = worker("w", 512);
    struct client *on[2] = {fixture_put(&f, "steady", 512, 0), NULL};
    fixture_advance(&f, 0);
    on[1] = fixture_put(&f, "steady", 512, 0);
    fixture_advance(&f, 0);
    for (int i = 0; i < 20; i++) { // served alone all the time
        struct client *next = fixture_put(&f, "steady", 512, 0);
        finish(w, on[0]);
        ck_assert(fake_node_has(w, next));
        on[0] = on[1];
        on[1] = next;
    }
    struct client *steady[8], *new[8];
    for (int i = 0; i < 8; i++) {
        steady[i] = fixture_put(&f, "steady", 256, 0);
        new[i] = fixture_put(&f, "new", 256, 0);
    }
    finish(w, on[0]);
    finish(w, on[1]);
    ck_assert_int_eq(rows_of(w, steady, 8), 512);
    ck_assert_int_eq(rows_of(w, new, 8), 512); // not all bins to the new one
}
END_TEST

START_TEST(a_group_is_not_given_more_than_its_kv_blocks_and_sequences)
{
    struct node_hello hello = fixture_hello(NODE_WORKER, "w");
    hello.kv_blocks = 20;
    hello.max_seqs = 5;
    struct fake_node *w = fixture_attach(&f, &hello);
    struct client *all[4];
    for (int i = 0; i < 4; i++)
        all[i] = put(96, 0); // six blocks and one for a token or four: seven each
    fixture_advance(&f, 0);
    ck_assert_int_eq(w->n_requests, 2);
    fake_node_step(&f, w, all[0], 0, 1, -1);
    fake_node_step(&f, w, all[1], 0, 1, -1);
    ck_assert_int_eq(w->n_requests, 2); // no outstanding bin, but full
    fake_node_step(&f, w, all[0], 1, 1, FINISH_REASON_STOP);
    ck_assert_int_eq(w->n_requests, 2);
    ck_assert(fake_node_has(w, all[2]));
    core_cancel(f.c, all[1]->number, f.now_us);
    core_cancel(f.c, all[2]->number, f.now_us);
    core_cancel(f.c, all[3]->number, f.now_us);
    for (int i = 0; i < 9; i++)
        put(10, 0);
    fixture_advance(&f, 0);
    ck_assert_int_eq(w->n_requests, 5);
}
END_TEST

START_TEST(growing_sequences_take_kv_blocks)
{
    struct node_hello hello = fixture_hello(NODE_WORKER, "w");
    hello.kv_blocks = 20;
    struct fake_node *w = fixture_attach(&f, &hello);
    struct client *growing = fixture_request(&f, 16, 120); // expected: 1 + 2 of at most 9 blocks
    growing->r->spec.prefill.mode = PREFILL_OFF;
    fixture_submit(&f, growing);
    fixture_advance(&f, 0);
    fake_node_step(&f, w, growing, 0, 100, -1); // now 8 + 1
    struct client *big = put(190, 0);           // 12 + 1
    fixture_advance(&f, 0);
    ck_assert(!big->r->account.node);
    fake_node_step(&f, w, growing, 100, 1, FINISH_REASON_STOP);
    ck_assert(fake_node_has(w, big));
}
END_TEST

START_TEST(small_requests_do_not_take_the_blocks_a_large_overdue_one_waits_for)
{
    struct node_hello hello = fixture_hello(NODE_WORKER, "w");
    hello.kv_blocks = 40;
    struct fake_node *w = fixture_attach(&f, &hello);
    struct client *small[4];
    for (int i = 0; i < 4; i++) {
        small[i] = put(140, 0); // ten blocks
        fixture_advance(&f, 0);
        fake_node_step(&f, w, small[i], 0, 1, -1);
    }
    ck_assert_int_eq(w->n_requests, 4);
    struct client *large = fixture_send(&f, 470, 4); // 31 of the 40
    struct client *next = fixture_send(&f, 140, 4);
    fake_node_step(&f, w, small[0], 1, 1, FINISH_REASON_STOP);
    ck_assert(fake_node_has(w, next)); // not overdue yet: others go on
    fake_node_step(&f, w, next, 0, 1, -1);
    fixture_advance(&f, SECOND);
    struct client *late = fixture_send(&f, 140, 4);
    fake_node_step(&f, w, small[1], 1, 1, FINISH_REASON_STOP);
    fake_node_step(&f, w, small[2], 1, 1, FINISH_REASON_STOP);
    // The group has 40 blocks. It keeps 30 for the late request and lends nine.
    struct client *later = fixture_send(&f, 140, 4);
    fake_node_step(&f, w, late, 0, 1, -1);
    fake_node_step(&f, w, small[3], 1, 1, FINISH_REASON_STOP);
    ck_assert(fake_node_has(w, late));
    ck_assert_ptr_null(later->r->account.node);
    ck_assert_ptr_null(large->r->account.node);
    // Other groups are not reserved for the late request.
    hello = fixture_hello(NODE_WORKER, "x");
    hello.kv_blocks = 35;
    struct fake_node *x = fixture_attach(&f, &hello);
    ck_assert(fake_node_has(x, large)); // it fits here immediately
    ck_assert(fake_node_has(w, later));
}
END_TEST

START_TEST(only_one_group_is_reserved_for_a_starved_request)
{
    struct node_hello hello = fixture_hello(NODE_WORKER, "w");
    hello.kv_blocks = 40;
    struct fake_node *nodes[2];
    nodes[0] = fixture_attach(&f, &hello);
    strcpy(hello.node_id, "x");
    nodes[1] = fixture_attach(&f, &hello);
    struct client *on[2];
    for (int i = 0; i < 2; i++) {
        on[i] = fixture_send(&f, 300, 4);
        fake_node_step(&f, on[i]->r->account.node == nodes[0]->node ? nodes[0] : nodes[1], on[i], 0, 1, -1);
    }
    ck_assert(on[0]->r->account.node != on[1]->r->account.node);
    struct client *large = fixture_send(&f, 470, 4);
    fixture_advance(&f, SECOND);
    const struct sched_node *reserved = f.c->view.reservation.node;
    int n_lent = 0, n_other = 0;
    for (int i = 0; i < 20; i++) {
        struct client *small = fixture_send(&f, 20, 4); // two blocks
        if (!small->r->account.node) continue;
        bool lent = &small->r->account.node->sched == reserved;
        n_lent += lent;
        n_other += !lent;
        fake_node_step(&f, small->r->account.node == nodes[0]->node ? nodes[0] : nodes[1], small, 0, 1, -1);
    }
    ck_assert_int_eq(n_lent, 5);   // of 40 - 30 blocks
    ck_assert_int_eq(n_other, 10); // of the 21 blocks that the other group has left
    for (int i = 0; i < 2; i++) {  // the reserved group has room though the five go on
        struct fake_node *node = on[i]->r->account.node == nodes[0]->node ? nodes[0] : nodes[1];
        if (&on[i]->r->account.node->sched != reserved) continue;
        fake_node_step(&f, node, on[i], 1, 1, FINISH_REASON_STOP);
        ck_assert(fake_node_has(node, large));
    }
}
END_TEST

START_TEST(a_reservation_stays_with_its_group)
{
    struct node_hello hello = fixture_hello(NODE_WORKER, "w");
    hello.kv_blocks = 40;
    struct fake_node *w = fixture_attach(&f, &hello);
    struct client *on_w[2] = {fixture_send(&f, 230, 4), NULL};
    fake_node_step(&f, w, on_w[0], 0, 1, -1);
    on_w[1] = fixture_send(&f, 230, 4); // 32 of 40
    fake_node_step(&f, w, on_w[1], 0, 1, -1);
    strcpy(hello.node_id, "x");
    struct fake_node *x = fixture_attach(&f, &hello);
    struct client *on_x = fixture_send(&f, 400, 4); // 26 of 40
    fake_node_step(&f, x, on_x, 0, 1, -1);
    struct client *large = fixture_send(&f, 470, 4);
    fixture_advance(&f, SECOND); // x, the emptiest, is reserved for it
    fake_node_step(&f, w, on_w[0], 1, 1, FINISH_REASON_STOP);
    struct client *small = fixture_send(&f, 10, 4); // w is the emptiest now
    ck_assert_ptr_null(large->r->account.node);
    ck_assert_ptr_nonnull(small->r->account.node);
    fake_node_step(&f, x, on_x, 1, 1, FINISH_REASON_STOP);
    ck_assert(fake_node_has(x, large));
}
END_TEST

START_TEST(the_node_with_least_work_is_next)
{
    struct fake_node *a = worker("a", 512), *b = worker("b", 512), *c = worker("c", 512);
    struct client *requests[6];
    for (int i = 0; i < 6; i++)
        requests[i] = put(512 - 50 * i, 0);
    fixture_advance(&f, 0);
    // 512, 462 and 412 rows to the three, then the rest to those with least work: 412, 462, 512.
    ck_assert_int_eq(a->bins, 2);
    ck_assert_int_eq(b->bins, 2);
    ck_assert_int_eq(c->bins, 2);
    ck_assert_ptr_eq(requests[2]->r->account.node, requests[3]->r->account.node);
    ck_assert_ptr_eq(requests[1]->r->account.node, requests[4]->r->account.node);
    ck_assert_ptr_eq(requests[0]->r->account.node, requests[5]->r->account.node);
}
END_TEST

START_TEST(a_request_waits_for_a_node_that_can_hold_it)
{
    struct fake_node *w = worker("w", 512);
    struct node_hello hello = fixture_hello(NODE_WORKER, "long");
    hello.context_tokens = 8192;
    struct fake_node *big = fixture_attach(&f, &hello);
    struct client *a = put(6000, 0), *c = put(6000, 0), *small = put(500, 0);
    fixture_advance(&f, 0);
    ck_assert(fake_node_has(big, a));
    ck_assert_ptr_null(c->r->account.node);
    ck_assert_ptr_nonnull(small->r->account.node);
    ck_assert(fake_node_has(w, small));
    struct client *thin = fixture_send(&f, 10, 4); // much work waits, but none of it for w, which is busy
    ck_assert(fake_node_has(big, thin));
    ck_assert_int_eq(w->bins, 1);
    fixture_detach(&f, big); // no node can hold these requests any more: they fail after the time of grace
    fixture_advance(&f, 5 * SECOND - 1);
    ck_assert_int_eq(c->ends, 0);
    fixture_advance(&f, 1);
    ck_assert_int_eq(a->status, STATUS_UNAVAILABLE);
    ck_assert_int_eq(c->status, STATUS_UNAVAILABLE);
    ck_assert_int_eq(small->ends, 0);
}
END_TEST

START_TEST(whole_prompts_are_packed_for_speculators)
{
    worker("w", 512);
    struct fake_node *s = attach_speculator("s");
    struct client *all[4];
    int lengths[] = {300, 212, 256, 255};
    for (int i = 0; i < 4; i++) {
        all[i] = fixture_request(&f, lengths[i], 4);
        all[i]->r->spec.prefill.mode = PREFILL_ON;
        fixture_submit(&f, all[i]);
    }
    fixture_advance(&f, 0);
    ck_assert_int_eq(s->bins, 2);
    ck_assert_int_eq(s->n_requests, 4);
    struct core_status status = fixture_status(&f);
    ck_assert_uint_eq(status.score_bins.bins, 2);
    ck_assert_uint_eq(status.score_bins.tokens, 1023);
    ck_assert_uint_eq(status.score_bins.items, 4);
    ck_assert_uint_eq(status.score_bins.capacity_tokens, 1024);
    ck_assert_uint_eq(status.prefill_bins.bins, 0);
    core_status_fini(&status);
}
END_TEST

SUITE("core_bins")
{
    FIXTURE(setup, teardown);
    TEST(an_idle_node_gets_any_bin_and_a_busy_one_only_large_ones);
    TEST(policy_none_dispatches_one_request_per_bin_by_arrival);
    TEST(policy_batch_packs_arrival_batches_apart);
    TEST(a_bin_is_outstanding_until_its_last_request_has_a_token_or_an_end);
    LOOP(bin_after_bin_the_whole_queue_is_packed_first_fit_decreasing, 0, 2);
    TEST(a_long_prompt_takes_half_of_its_bin_and_of_those_that_follow);
    TEST(priority_goes_before_a_full_bin);
    TEST(overdue_requests_go_first_oldest_first_then_priority_then_length);
    TEST(becoming_overdue_ends_the_wait_for_a_fuller_bin);
    TEST(no_stream_delays_an_overdue_request_by_more_than_a_bin);
    TEST(overdue_requests_beyond_a_bin_leave_half_of_it_to_priority);
    TEST(no_stream_starves_low_priorities);
    TEST(no_stream_starves_requests_that_wait_for_both_pools);
    TEST(tenants_of_one_priority_share_by_tokens);
    TEST(a_tenant_gets_no_credit_for_time_without_requests);
    TEST(a_group_is_not_given_more_than_its_kv_blocks_and_sequences);
    TEST(growing_sequences_take_kv_blocks);
    TEST(small_requests_do_not_take_the_blocks_a_large_overdue_one_waits_for);
    TEST(only_one_group_is_reserved_for_a_starved_request);
    TEST(a_reservation_stays_with_its_group);
    TEST(the_node_with_least_work_is_next);
    TEST(a_request_waits_for_a_node_that_can_hold_it);
    TEST(whole_prompts_are_packed_for_speculators);
}
