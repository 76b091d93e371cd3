// SPDX-License-Identifier: Apache-2.0
// Late binding: whenever a node has room, one bin is filled from the whole queue and handed out; the rest stays
// packable with what comes later (dataset-level prepacking, arXiv 2404.09529, turned online).
//
// - The longest that fits goes in, then the longest that fits into what is left: bin after bin that is first-fit
//   decreasing over the whole queue, at a cost in proportion to the bin alone (the queue is kept in order of length).
//   Where the node would run out of sequences before it runs out of rows, the longest and the shortest take turns.
// - Urgent requests come first, the earliest due before all: the whole bin is theirs while one bin holds all of them,
//   so packing and priorities delay nobody by more than a bin once its time has come. When more are urgent than a bin
//   holds, half of it is: then there is not room for all, and the other half still goes by priority.
// - The rest of the bin goes by priority; among equals the tenant that was served least is next (core_queue.c).
// - A node with nothing outstanding gets a bin at once: work is never held back from an idle node. A node that is busy
//   gets its next bins (up to bins_ahead) only when they are large enough to be worth a pass (core_estimate.c), or
//   somebody in them is urgent: so that it need not wait between passes, and bins have time to fill.
// - What a node's prefix cache is likely to hold does not count against the bin's capacity, and a request waits for the
//   node that holds more of it than others, as long as it has less to compute before and with it than they.
// - A request over the capacity of a bin has one of its own; the node computes it in chunks.
// - The policies `none` and `batch` (core.h) narrow what is packed to one request, or to one arrival batch.
#include "router/core_state.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"

// So many requests (or tenants) that do not fit are looked at for one bin, then it is left as it is: a queue full of
// what this node cannot hold must not cost the time of looking through it again and again. An idle node for which
// nothing was found so has all of the queue looked through, now and then.
enum {
    MISFITS_MAX = 2048,
    ELSEWHERE = 16,   // looks that finding out about another node's cache counts as
    LONGER_MAX = 256, // requests that would fit only with what is cached of them: so many are looked at
    SEARCH_US = 100000,
};

#define SCARCE 2.0 // times the rows of a bin

// A bin being filled for one node.
struct filling {
    const struct core *core;
    const struct core_node *node;
    struct request **requests;
    int n, capacity;
    int64_t rows, room;
    int64_t whole;  // rows, had the node no prefix cache
    double mean;    // that they should have for each request; 0: does not matter
    int slots;      // sequences the node can still take
    int64_t blocks; // KV blocks it can still take
    int misfits;    // that may still be looked at
    int longer;     // likewise
    bool urgent;    // has one
};

static int64_t blocks_left(const struct core_node *node)
{
    return node->hello.role == NODE_WORKER ? node->hello.kv_blocks - node->kv_blocks : INT64_MAX;
}

static int blocks_of(const struct request *r, const struct core_node *node)
{
    return node->hello.role == NODE_WORKER ? core_request_blocks(r, node) : 0;
}

// When the node would be done with what it has and a request of which it has to compute so many rows.
static double done_at(const struct core *c, const struct core_node *node, const struct request *r, int64_t rows)
{
    if (!c->pools[node->hello.role].timed) return (double)(node->bin_tokens + rows);
    return core_node_finish_us(node, rows, core_request_rows(r) - rows);
}

// Another node will be done with the request sooner, since it need not compute all of it.
static bool better_elsewhere(const struct core *c, const struct core_node *node, const struct request *r)
{
    if (r->urgent) return false;
    int64_t rows = core_request_rows_on(r, node);
    for (const struct core_node *other = c->nodes; other; other = other->next) {
        if (other == node || other->hello.role != node->hello.role || !other->prefixes) continue;
        int64_t there = core_request_rows_on(r, other);
        if (there >= rows || done_at(c, other, r, there) >= done_at(c, node, r, rows)) continue;
        bool reserved = other->hello.role == NODE_WORKER && c->starved && c->reserved == other;
        bool room = other->requests.count < other->hello.max_seqs && blocks_of(r, other) <= blocks_left(other);
        if (room && !reserved && core_node_can_hold(other, r)) return true;
    }
    return false;
}

static bool is_full(const struct filling *f)
{
    return f->room <= 0 || f->slots == 0 || f->misfits <= 0;
}

static bool fits(struct filling *f, const struct request *r)
{
    // Over the capacity: only alone.
    bool room = f->n == 0 || core_request_rows_on(r, f->node) <= f->room;
    if (room && core_node_can_hold(f->node, r) && blocks_of(r, f->node) <= f->blocks) {
        if (!better_elsewhere(f->core, f->node, r)) return true;
        f->misfits -= ELSEWHERE;
    }
    f->misfits--;
    return false;
}

static void take(struct filling *f, struct request *r)
{
    int rows = core_request_rows_on(r, f->node);
    MEM_GROW(f->requests, f->n, f->capacity);
    f->requests[f->n++] = r;
    f->rows += rows;
    f->whole += core_request_rows(r);
    f->room -= rows;
    f->slots--;
    f->blocks -= blocks_of(r, f->node);
    f->urgent |= r->urgent;
    if (f->misfits > MISFITS_MAX) f->misfits = MISFITS_MAX; // found: no need to look through all of it again
    core_queue_pick(r);
}

static void fill_urgent(const struct core_pool *pool, struct filling *f)
{
    int64_t share = pool->urgent_work.rows <= (double)f->room ? f->room : f->room / 2;
    for (struct request *r = pool->urgent.first; r && f->rows < share && !is_full(f); r = r->next)
        if (fits(f, r)) take(f, r);
}

// The longest of the tenant's that is over the room, but for what the node's prefix cache holds of it; NULL: none.
static struct request *longest_cached(struct filling *f, const struct core_share *share)
{
    struct request *r = f->node->prefixes && f->n ? length_index_longest(&share->waiting, INT_MAX) : NULL;
    for (; r && core_request_rows(r) > f->room && f->longer > 0; f->longer--) {
        if (core_request_rows_on(r, f->node) <= f->room && fits(f, r)) return r;
        r = length_index_next(&share->waiting, r);
    }
    return NULL;
}

// The tenant's request that is next: the longest that fits, or the shortest where the bin is to keep to a mean. NULL:
// none fits.
static struct request *next_fitting(struct filling *f, const struct core_share *share)
{
    struct request *r =
        (double)f->whole > f->mean * f->n && f->mean > 0 ? length_index_shortest(&share->waiting) : NULL;
    if (r && fits(f, r)) return r;
    r = longest_cached(f, share);
    if (r) return r;
    int64_t rows = f->n ? f->room : INT_MAX;
    if (f->node->hello.role == NODE_WORKER) {
        int64_t entries = f->blocks * f->node->hello.block_tokens;
        if (entries < rows) rows = entries;
    }
    r = length_index_longest(&share->waiting, rows);
    while (r && !fits(f, r))
        r = f->misfits > 0 ? length_index_next(&share->waiting, r) : NULL;
    return r;
}

static void fill_level(struct core_level *level, struct filling *f)
{
    struct core_share *aside = NULL;
    while (level->n && !is_full(f)) {
        struct core_share *share = level->heap[0];
        struct request *r = next_fitting(f, share);
        if (r) {
            take(f, r);
        } else {
            f->misfits--;
            core_share_leave(share);
            share->aside = aside;
            aside = share;
        }
    }
    for (; aside; aside = aside->aside)
        core_share_enter(aside);
}

static void fill(const struct core *c, struct core_pool *pool, struct filling *f)
{
    core_queue_open(c, pool);
    fill_urgent(pool, f);
    for (int level = PRIORITY_LEVELS - 1; level >= 0 && !is_full(f); level--)
        fill_level(&pool->levels[level], f);
}

static void hand_over(struct core *c, struct core_pool *pool, struct core_node *node, const struct filling *f,
                      int64_t now_us)
{
    int64_t capacity = node->hello.token_budget > f->rows ? node->hello.token_budget : f->rows;
    struct core_bin *bin = mem_alloc(sizeof *bin);
    bin->id = ++c->last_bin;
    node->bins++;
    for (int i = 0; i < f->n; i++)
        core_request_place(c, f->requests[i], node, bin, now_us);
    node->bins_out++;
    pool->computed += ((double)f->rows / (double)f->whole - pool->computed) / 8;
    pool->totals.bins++;
    pool->totals.items += (uint64_t)f->n;
    pool->totals.tokens += (uint64_t)f->rows;
    pool->totals.capacity_tokens += (uint64_t)capacity;
    log_debug("bin_out bin=%llu node=%s items=%d tokens=%lld capacity=%lld urgent=%s left=%d",
              (unsigned long long)bin->id, node->hello.node_id, f->n, (long long)f->rows, (long long)capacity,
              f->urgent ? "yes" : "no", core_pool_waiting(pool));
    void (*send)(void *, uint64_t, struct request *const *, int) =
        pool->role == NODE_WORKER ? c->ops.send_prefill_bin : c->ops.send_score_bin;
    send(node->link, bin->id, f->requests, f->n);
    for (int i = 0; i < f->n; i++)
        core_request_handed(f->requests[i], now_us);
}

// Sequences, too, are a resource that bins share: each of a bin's holds one for as long as it stays. Where a bin's
// share of them, filled with requests of the mean length, is hardly more than the bin takes, the longest alone would
// leave short ones that can never fill a bin any more: the bin then keeps to the mean of what waits.
static double mean_to_keep(const struct core_pool *pool, const struct core_node *node)
{
    double mean = (double)pool->tokens / core_pool_waiting(pool), slots = node->hello.max_seqs / fmax(node->stay, 1);
    return mean * slots < SCARCE * node->hello.token_budget ? mean : 0;
}

// Hands one bin to the node, if there is one that should not wait.
static bool hand_out_bin(struct core *c, struct core_pool *pool, struct core_node *node, int64_t now_us)
{
    // Waiting makes a bin fuller only where it may be filled with what comes later.
    int64_t enough = node->bins && c->options.policy == BIN_DATASET ? core_node_enough_rows(c, node) : 1;
    if (pool->tokens < enough && !pool->urgent.count) return false;
    struct filling f = {.core = c,
                        .node = node,
                        .room = node->hello.token_budget,
                        .mean = mean_to_keep(pool, node),
                        .slots = node->hello.max_seqs - node->requests.count,
                        .blocks = blocks_left(node),
                        .misfits = MISFITS_MAX,
                        .longer = LONGER_MAX};
    fill(c, pool, &f);
    if (!f.n && f.misfits <= 0 && !node->bins && now_us - node->searched_us >= SEARCH_US) {
        node->searched_us = now_us;
        f.misfits = INT_MAX;
        fill(c, pool, &f);
    }
    bool worth = f.n && (f.urgent || f.rows >= enough || f.slots == 0);
    if (worth) {
        hand_over(c, pool, node, &f, now_us);
    } else {
        while (f.n)
            core_queue_put_back(f.requests[--f.n]);
    }
    free(f.requests);
    return worth;
}

// See `starved` in core_state.h. A choice once made is kept: running after the group that is emptiest just now could
// go on for ever.
static void reserve(struct core *c)
{
    struct request *r = c->pools[NODE_WORKER].urgent.first;
    while (r && !core_pool_can_hold(c, NODE_WORKER, r))
        r = r->next;
    if (!r) {
        c->starved = NULL;
        return;
    }
    struct core_node *emptiest = NULL;
    for (struct core_node *node = c->nodes; node; node = node->next) {
        if (node->hello.role != NODE_WORKER || !core_node_can_hold(node, r)) continue;
        if (core_request_blocks(r, node) <= blocks_left(node)) {
            c->starved = NULL;
            return;
        }
        if (!emptiest || blocks_left(node) > blocks_left(emptiest)) emptiest = node;
    }
    if (c->starved == r) return;
    c->starved = r;
    c->reserved = emptiest;
}

// Of the nodes that have room and have not yet wanted nothing in this round, the one that would be done first with what
// it has and a prompt of usual length; by tokens while costs are not known.
static struct core_node *next_node(const struct core *c, const struct core_pool *pool)
{
    enum node_role role = pool->role;
    struct core_node *best = NULL;
    double best_finish = 0;
    int64_t usual = pool->tokens / core_pool_waiting(pool);
    for (struct core_node *node = c->nodes; node; node = node->next) {
        if (node->hello.role != role || node->draining || node->passed) continue;
        if (node->bins >= c->options.bins_ahead || node->requests.count >= node->hello.max_seqs) continue;
        if (role == NODE_WORKER && c->starved && c->reserved == node) continue;
        double finish = pool->timed ? core_node_finish_us(node, usual, 0) : (double)node->bin_tokens;
        if (!best || finish < best_finish || (finish <= best_finish && node->requests.count < best->requests.count)) {
            best = node;
            best_finish = finish;
        }
    }
    return best;
}

void core_hand_out(struct core *c, int64_t now_us)
{
    for (enum node_role role = NODE_SPECULATOR; role <= NODE_WORKER; role++) {
        struct core_pool *pool = &c->pools[role];
        for (struct core_node *node = c->nodes; node; node = node->next)
            node->passed = false;
        int waiting = core_pool_waiting(pool);
        pool->timed = waiting && core_costs_known(c, role, pool->tokens / waiting);
        while (core_pool_waiting(pool)) {
            if (role == NODE_WORKER) reserve(c);
            struct core_node *node = next_node(c, pool);
            if (!node) break;
            node->passed = !hand_out_bin(c, pool, node, now_us);
        }
    }
}
