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
// - Requests that begin alike (kin, prefix_groups.h) follow each other, in the bin and from one bin of a node to its
// next,
//   until none of them waits: the node computes what they share once, however little its cache can hold besides. Kin go
//   before the longest if that spares a quarter of their rows; without shared beginnings nothing changes.
// - A request over the capacity of a bin has one of its own; the node computes it in chunks.
// - The policies `none` and `batch` (core.h) narrow what is packed to one request, or to one arrival batch.
#include "router/core/state.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"

// Requests that the node has no KV blocks for are stepped over (request_tree.h). Of others that do not fit (too long
// for what is left of the bin or for the node's context, sooner done elsewhere) and of tenants that have nothing else,
// so many are looked at for one bin, and a walk among kin more for each that is taken; then the bin is left as it is.
// An idle node for which nothing was found so has all of the queue looked through, now and then.
enum {
    SCAN_BUDGET_MAX = 2048,
    ELSEWHERE = 16,   // looks that finding out about another node's cache counts as
    LONGER_MAX = 256, // requests that would fit only with what is cached of them: so many are looked at
    BACK_MAX = 64,    // and of those in the bin, for the last of the same tenant
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
    int64_t whole;         // rows, had the node no prefix cache
    double mean;           // that they should have for each request; 0: does not matter
    int slots;             // sequences the node can still take
    int64_t blocks;        // KV blocks it can still take
    int misfits;           // that may still be looked at
    int longer;            // likewise
    uint64_t looks;        // taken
    bool urgent;           // has one
    bool elsewhere;        // one that fits is sooner done by another node, for now
    const uint64_t *chain; // [n_chain] whose kin are next, see prefix_index.h; of a request in the bin, or the node's
    int n_chain;
};

// The blocks left as the indexes count them. Where the node's are of another size, who hardly fits may be told in vain,
// but nobody who fits is stepped over.
static int64_t index_blocks(const struct filling *f)
{
    const struct node_hello *h = &f->node->hello;
    if (h->role != NODE_WORKER || h->block_tokens == PREFIX_BLOCK) return f->blocks;
    return f->blocks * h->block_tokens / PREFIX_BLOCK + 2;
}

// When the node would be done with what it has and a request of which it has to compute so many rows.
static double done_at(const struct core *c, const struct core_node *node, const struct request *r, int64_t rows)
{
    if (!c->pools[node->hello.role].timed) return (double)(node->bin_tokens + rows);
    return core_node_finish_us(node, rows, core_request_rows(r) - rows);
}

// Rows that the node has to compute of it: neither its cache holds them, nor does the bin have them already.
static int rows_in(const struct filling *f, const struct request *r)
{
    int known = core_request_known_blocks(r, f->node);
    int shared = f->n ? prefix_chain_common(r->prefix, r->n_prefix, f->chain, f->n_chain) : 0;
    return core_request_rows_after(r, shared > known ? shared : known);
}

// Another node will be done with the request sooner, since it need not compute all of it.
static bool better_elsewhere(const struct filling *f, const struct request *r, int64_t rows)
{
    if (r->urgent) return false;
    const struct core *c = f->core;
    const struct core_node *node = f->node;
    for (const struct core_node *other = c->nodes; other; other = other->next) {
        if (other == node || other->hello.role != node->hello.role || !other->prefixes) continue;
        int64_t there = core_request_rows_on(r, other);
        if (there >= rows || done_at(c, other, r, there) >= done_at(c, node, r, rows)) continue;
        bool reserved = other->hello.role == NODE_WORKER && c->starved && c->reserved == other;
        bool room = other->requests.count < other->hello.max_seqs &&
                    core_node_blocks_of(other, r) <= core_node_blocks_left(other);
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
    int rows = rows_in(f, r);
    bool room = f->n == 0 || rows <= f->room; // over the capacity: only alone
    f->looks++;
    if (room && core_node_can_hold(f->node, r) && core_node_blocks_of(f->node, r) <= f->blocks) {
        if (!better_elsewhere(f, r, rows)) return true;
        f->elsewhere = true;
        f->misfits -= ELSEWHERE;
    }
    f->misfits--;
    return false;
}

static void take(struct filling *f, struct request *r)
{
    int rows = rows_in(f, r);
    MEM_GROW(f->requests, f->n, f->capacity);
    f->requests[f->n++] = r;
    f->rows += rows;
    f->whole += core_request_rows(r);
    f->room -= rows;
    f->slots--;
    f->blocks -= core_node_blocks_of(f->node, r);
    f->urgent |= r->urgent;
    bool more = f->misfits < SCAN_BUDGET_MAX - PREFIX_SCAN_MAX; // else found: no need to look through all of it again
    f->misfits = more ? f->misfits + PREFIX_SCAN_MAX : SCAN_BUDGET_MAX;
    core_queue_pick(r);
}

static const struct prefix_tail *find_kin(const struct core_node *node, const struct tenant_queue *share)
{
    for (int i = 0; i < PREFIX_TAILS; i++)
        if (node->kin[i].bin && node->kin[i].share == share->number) return &node->kin[i];
    return NULL;
}

// Whose kin are next: those of the last of the tenant's in the bin, else of where the node's bins left off with it,
// else of the last of all.
static void follow(struct filling *f, const struct tenant_queue *share)
{
    if (!f->node->prefixes) return; // whose chain is none
    const struct request *last = NULL;
    const struct prefix_tail *kin = find_kin(f->node, share);
    for (int i = f->n - 1; i >= 0 && i >= f->n - BACK_MAX && !last; i--)
        if (f->requests[i]->share == share) last = f->requests[i];
    if (!last && !kin && f->n) last = f->requests[f->n - 1];
    f->chain = last ? last->prefix : kin ? kin->chain : NULL;
    f->n_chain = last ? last->n_prefix : kin ? kin->n : 0;
}

// So many blocks that the request has in common with what goes before it spare much of it; more than another would be
// spared.
static bool is_worth(const struct filling *f, const struct request *r, int blocks, const struct request *other)
{
    if (other) blocks -= prefix_chain_common(other->prefix, other->n_prefix, f->chain, f->n_chain);
    return prefix_group_pays(core_request_rows(r), blocks);
}

// The tenant's request that begins most like who was followed, of those that fit; with `until_us` only if it is urgent
// and due by then. NULL: none.
static struct request *next_kin(struct filling *f, const struct tenant_queue *share, int64_t until_us, int *blocks_p)
{
    struct prefix_walk walk;
    prefix_walk_start(&walk, &share->pool->kin, share, f->chain, f->n_chain);
    struct request *r = prefix_walk_next(&walk);
    while (r && ((until_us && (!r->urgent || r->due_us > until_us)) || !fits(f, r)))
        r = f->misfits > 0 ? prefix_walk_next(&walk) : NULL;
    f->looks += (uint64_t)walk.looks;
    if (!r) f->misfits -= walk.looks;
    *blocks_p = walk.blocks;
    return r;
}

// When more is urgent than the bin holds, kin may go in the place of a request of the same tenant and priority: all of
// those are done sooner for it. But only kin that are due within max_wait of it, so that it is not put off for ever,
// and not in the place of who has a deadline or comes back from a lost node.
static struct request *in_place_of(struct filling *f, struct request *r)
{
    int blocks = 0;
    if (r->ttft_deadline_us != INT64_MAX || !r->due_us) return r;
    struct request *kin = next_kin(f, r->share, r->due_us + f->core->options.max_wait_us, &blocks);
    return kin && is_worth(f, kin, blocks, r) ? kin : r;
}

static void fill_urgent(const struct core_pool *pool, struct filling *f)
{
    bool all = pool->urgent_work.rows <= (double)f->room;
    int64_t share = all ? f->room : f->room / 2;
    struct request *r = NULL;
    while (f->rows < share && !is_full(f) && (r = due_index_next(&pool->due_next, r, index_blocks(f)))) {
        follow(f, r->share);
        struct request *next = all ? r : in_place_of(f, r);
        if (next != r || fits(f, r)) take(f, next);
    }
}

// The longest of the tenant's that is over the room, but for what the node's prefix cache holds of it; NULL: none.
static struct request *longest_cached(struct filling *f, const struct tenant_queue *share)
{
    int64_t blocks = index_blocks(f);
    struct request *r = f->node->prefixes && f->n ? length_index_longest(&share->waiting, INT_MAX, blocks) : NULL;
    for (; r && core_request_rows(r) > f->room && f->longer > 0; f->longer--, f->looks++) {
        if (rows_in(f, r) <= f->room && fits(f, r)) return r;
        r = length_index_next(&share->waiting, r, blocks);
    }
    return NULL;
}

// The tenant's request that is next: kin, the shortest where the bin is to keep to a mean, or the longest that fits.
// NULL: none fits.
static struct request *next_fitting(struct filling *f, const struct tenant_queue *share)
{
    int blocks = 0;
    follow(f, share);
    struct request *kin = next_kin(f, share, 0, &blocks);
    int64_t left = index_blocks(f);
    struct request *longest = length_index_longest(&share->waiting, f->n ? f->room : INT_MAX, left);
    if (kin && is_worth(f, kin, blocks, longest)) return kin;
    struct request *r =
        (double)f->whole > f->mean * f->n && f->mean > 0 ? length_index_shortest(&share->waiting, left) : NULL;
    if (r && fits(f, r)) return r;
    r = longest_cached(f, share);
    if (r) return r;
    r = longest;
    while (r && !fits(f, r))
        r = f->misfits > 0 ? length_index_next(&share->waiting, r, left) : NULL;
    return r ? r : kin;
}

static void fill_level(struct core_level *level, struct filling *f)
{
    struct tenant_queue *aside = NULL;
    while (level->n && !is_full(f)) {
        struct tenant_queue *share = level->heap[0];
        bool any = length_index_longest(&share->waiting, INT_MAX, index_blocks(f));
        struct request *r = any ? next_fitting(f, share) : NULL;
        f->looks++;
        if (r) {
            take(f, r);
        } else {
            if (any) f->misfits--;
            tenant_queue_leave(share);
            share->aside = aside;
            aside = share;
        }
    }
    for (; aside; aside = aside->aside)
        tenant_queue_enter(aside);
}

static void fill(struct core_pool *pool, struct filling *f)
{
    fill_urgent(pool, f);
    for (int level = PRIORITY_LEVELS - 1; level >= 0 && !is_full(f); level--)
        fill_level(&pool->levels[level], f);
}

static void remember_kin(struct core_node *node, const struct request *r, uint64_t bin)
{
    struct prefix_tail *kin = &node->kin[0]; // its tenant's, else the one not used for longest
    for (int i = 0; i < PREFIX_TAILS && kin->share != r->share->number; i++)
        if (node->kin[i].share == r->share->number || node->kin[i].bin < kin->bin) kin = &node->kin[i];
    free(kin->chain);
    *kin = (struct prefix_tail){r->share->number, bin, mem_copy(r->prefix, (size_t)r->n_prefix * sizeof *r->prefix),
                                r->n_prefix};
}

// Where the node's bins leave off with each tenant: at the last whose kin wait.
static void leave_off(const struct core_pool *pool, struct core_node *node, struct filling *f, uint64_t bin)
{
    for (int i = f->n - 1; i >= 0 && node->prefixes; i--) {
        const struct request *r = f->requests[i];
        const struct prefix_tail *kin = find_kin(node, r->share);
        if (kin && kin->bin == bin) continue;
        struct prefix_walk walk;
        prefix_walk_start(&walk, &pool->kin, r->share, r->prefix, r->n_prefix);
        if (prefix_walk_next(&walk)) remember_kin(node, r, bin);
        f->looks += (uint64_t)walk.looks;
    }
}

void core_node_forget_kin(struct core_node *node)
{
    for (int i = 0; i < PREFIX_TAILS; i++)
        free(node->kin[i].chain);
}

static void hand_over(struct core *c, struct core_pool *pool, struct core_node *node, struct filling *f, int64_t now_us)
{
    int64_t capacity = node->hello.token_budget > f->rows ? node->hello.token_budget : f->rows;
    struct core_bin *bin = mem_alloc(sizeof *bin);
    bin->id = ++c->last_bin;
    node->bins++;
    leave_off(pool, node, f, bin->id);
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
    core_queue_open(c, pool);
    if (node->vain && core_node_blocks_left(node) <= node->vain_blocks && node->bins >= node->vain_bins) return false;
    struct filling f = {.core = c,
                        .node = node,
                        .room = node->hello.token_budget,
                        .mean = mean_to_keep(pool, node),
                        .slots = node->hello.max_seqs - node->requests.count,
                        .blocks = core_node_blocks_left(node),
                        .misfits = SCAN_BUDGET_MAX,
                        .longer = LONGER_MAX};
    fill(pool, &f);
    if (!f.n && f.misfits <= 0 && !node->bins && now_us - node->searched_us >= SEARCH_US) {
        node->searched_us = now_us;
        f.misfits = INT_MAX;
        fill(pool, &f);
    }
    bool worth = f.n && (f.urgent || f.rows >= enough || f.slots == 0);
    if (worth) {
        hand_over(c, pool, node, &f, now_us);
    } else {
        while (f.n)
            core_queue_put_back(f.requests[--f.n]);
        node->vain_blocks = core_node_blocks_left(node);
        node->vain_bins = node->bins;
    }
    node->vain = !worth && f.misfits > 0 && !f.elsewhere;
    pool->totals.looks += f.looks;
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
        if (core_node_blocks_of(node, r) <= core_node_blocks_left(node)) {
            c->starved = NULL;
            return;
        }
        if (!emptiest || core_node_blocks_left(node) > core_node_blocks_left(emptiest)) emptiest = node;
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
