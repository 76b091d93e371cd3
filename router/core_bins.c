// SPDX-License-Identifier: Apache-2.0
// Late binding: whenever a node has room, the whole queue is packed anew and one bin of it is handed out; the rest
// stays packable with what comes later (dataset-level prepacking, arXiv 2404.09529, turned online).
//
// - A node with nothing outstanding gets the best bin there is at once: work is never held back from an idle node.
// - A node that is busy gets its next bins (up to bins_ahead) only when they are at least half full, or somebody in
//   them is overdue: so that it need not wait between passes, and bins have time to fill.
// - Overdue requests go first, the oldest of them before all; so packing delays nobody by more than a bin once its
//   time has come. They keep the queue's order, which is the order of arrival in it.
// - What a node's prefix cache is likely to hold does not count against the bin's capacity, and a request waits for the
//   node that holds more of it than others, as long as it has less to compute before and with it than they.
// - A request over the capacity of a bin has one of its own; the node computes it in chunks.
// - The policies `none` and `batch` (core.h) narrow what is packed to one request, or to one arrival batch.
#include "router/core_state.h"

#include <limits.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"
#include "router/pack.h"

struct candidate {
    struct request *r;
    int rows, blocks;
    int order; // in the queue
    int bin;   // of the packing
};

// A bin being filled for one node.
struct filling {
    struct request **requests;
    int n;
    int64_t rows, room;
    int slots;      // sequences the node can still take
    int64_t blocks; // KV blocks it can still take
    bool overdue;   // has one
};

static bool take(struct filling *f, const struct candidate *candidate)
{
    if (f->slots == 0 || candidate->blocks > f->blocks) return false;
    if (candidate->rows > f->room && f->n > 0) return false; // over the capacity: only alone
    f->requests[f->n++] = candidate->r;
    f->rows += candidate->rows;
    f->room -= candidate->rows;
    f->slots--;
    f->blocks -= candidate->blocks;
    f->overdue |= candidate->r->overdue;
    return true;
}

static int64_t blocks_left(const struct core_node *node)
{
    return node->hello.role == NODE_WORKER ? node->hello.kv_blocks - node->kv_blocks : INT64_MAX;
}

static int blocks_of(const struct request *r, const struct core_node *node)
{
    return node->hello.role == NODE_WORKER ? core_request_blocks(r, node) : 0;
}

// Another node will be done with the request sooner, since it need not compute all of it.
static bool better_elsewhere(const struct core *c, const struct core_node *node, const struct request *r)
{
    if (r->overdue) return false;
    int64_t rows = core_request_rows_on(r, node);
    for (const struct core_node *other = c->nodes; other; other = other->next) {
        if (other == node || other->hello.role != node->hello.role || !other->prefixes) continue;
        int64_t there = core_request_rows_on(r, other);
        if (there >= rows || other->bin_tokens + there >= node->bin_tokens + rows) continue;
        bool reserved = other->hello.role == NODE_WORKER && c->starved && c->reserved == other;
        bool room = other->requests.count < other->hello.max_seqs && blocks_of(r, other) <= blocks_left(other);
        if (room && !reserved && core_node_can_hold(other, r)) return true;
    }
    return false;
}

// The arrival batch of a request that is in none yet: it and those behind it.
static void open_batch(struct core *c, struct request *first)
{
    c->last_batch++;
    int n = 0;
    for (struct request *r = first; r && n < c->options.batch_requests; r = r->next) {
        if (r->batch) continue;
        r->batch = c->last_batch;
        n++;
    }
}

// The requests of the queue that the node can take now and the policy lets share a bin.
static int collect(struct core *c, const struct core_pool *pool, const struct core_node *node,
                   struct candidate *candidates)
{
    int n = 0, order = 0;
    for (struct request *r = pool->queue.first; r; r = r->next, order++) {
        if (!core_node_can_hold(node, r)) continue;
        struct candidate candidate = {r, core_request_rows_on(r, node), blocks_of(r, node), order, 0};
        if (candidate.blocks > blocks_left(node) || better_elsewhere(c, node, r)) continue;
        if (c->options.policy == BIN_BATCH) {
            if (n == 0 && !r->batch) open_batch(c, r);
            if (n > 0 && r->batch != candidates[0].r->batch) continue;
        }
        candidates[n++] = candidate;
        if (c->options.policy == BIN_NONE) break;
    }
    return n;
}

static int compare(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

static int by_priority_then_length(const void *left, const void *right)
{
    const struct candidate *a = left, *b = right;
    int by = compare(b->r->priority, a->r->priority);
    if (!by) by = compare(b->rows, a->rows);
    return by ? by : compare(a->order, b->order);
}

static int by_priority_then_order(const void *left, const void *right)
{
    const struct candidate *a = left, *b = right;
    int by = compare(b->r->priority, a->r->priority);
    return by ? by : compare(a->order, b->order);
}

// Somebody is overdue: they in their order, then the others by priority, the longest that fits first.
static void fill_overdue_first(struct candidate *candidates, int n, struct filling *f)
{
    int rest = 0;
    for (int i = 0; i < n && f->room > 0 && f->slots > 0; i++) {
        if (candidates[i].r->overdue) {
            take(f, &candidates[i]);
        } else {
            candidates[rest++] = candidates[i];
        }
    }
    if (f->room <= 0 || f->slots == 0) return;
    qsort(candidates, (size_t)rest, sizeof *candidates, by_priority_then_length);
    for (int i = 0; i < rest; i++)
        take(f, &candidates[i]);
}

// What decides between two bins of a packing: the highest priority in them, then their fill, then who came first.
struct bin_value {
    int32_t priority;
    int64_t rows;
    int order;
};

static bool better(const struct bin_value *a, const struct bin_value *b)
{
    if (a->priority != b->priority) return a->priority > b->priority;
    if (a->rows != b->rows) return a->rows > b->rows;
    return a->order < b->order;
}

// Packs all candidates; the best bin's come first in candidates[], by priority; returns how many those are.
static int pack_and_choose(struct candidate *candidates, int n, int capacity)
{
    int32_t *rows = mem_alloc_array((size_t)n, sizeof *rows), *bin_of = mem_alloc_array((size_t)n, sizeof *bin_of);
    for (int i = 0; i < n; i++) // one over the capacity fills a bin: as if it had just that length
        rows[i] = candidates[i].rows < capacity ? candidates[i].rows : capacity;
    int n_bins = pack_items(rows, n, capacity, PACK_BEST_FIT, bin_of);
    struct bin_value *values = mem_alloc_array((size_t)n_bins, sizeof *values);
    for (int b = 0; b < n_bins; b++)
        values[b] = (struct bin_value){INT32_MIN, 0, INT_MAX};
    for (int i = 0; i < n; i++) {
        struct bin_value *value = &values[bin_of[i]];
        if (candidates[i].r->priority > value->priority) value->priority = candidates[i].r->priority;
        if (candidates[i].order < value->order) value->order = candidates[i].order;
        value->rows += rows[i];
    }
    int best = 0, n_best = 0;
    for (int b = 1; b < n_bins; b++) {
        if (better(&values[b], &values[best])) best = b;
    }
    for (int i = 0; i < n; i++) {
        if (bin_of[i] == best) candidates[n_best++] = candidates[i];
    }
    free(values);
    free(bin_of);
    free(rows);
    qsort(candidates, (size_t)n_best, sizeof *candidates, by_priority_then_order);
    return n_best;
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
    pool->totals.bins++;
    pool->totals.items += (uint64_t)f->n;
    pool->totals.tokens += (uint64_t)f->rows;
    pool->totals.capacity_tokens += (uint64_t)capacity;
    log_debug("bin_out bin=%llu node=%s items=%d tokens=%lld capacity=%lld overdue=%s left=%d",
              (unsigned long long)bin->id, node->hello.node_id, f->n, (long long)f->rows, (long long)capacity,
              f->overdue ? "yes" : "no", pool->queue.count);
    void (*send)(void *, uint64_t, struct request *const *, int) =
        pool->role == NODE_WORKER ? c->ops.send_prefill_bin : c->ops.send_score_bin;
    send(node->link, bin->id, f->requests, f->n);
    for (int i = 0; i < f->n; i++)
        core_request_handed(f->requests[i], now_us);
}

// Hands one bin to the node, if there is one that should not wait.
static bool hand_out_bin(struct core *c, struct core_pool *pool, struct core_node *node, int64_t now_us)
{
    int capacity = node->hello.token_budget;
    // Waiting makes a bin fuller only where it may be filled with what comes later.
    int64_t enough = node->bins && c->options.policy == BIN_DATASET ? (capacity + 1) / 2 : 1;
    if (pool->tokens < enough && !pool->overdue) return false;
    struct filling f = {
        .room = capacity, .slots = node->hello.max_seqs - node->requests.count, .blocks = blocks_left(node)};
    struct candidate *candidates = mem_alloc_array((size_t)pool->queue.count, sizeof *candidates);
    int n = collect(c, pool, node, candidates);
    bool overdue = false;
    for (int i = 0; i < n && !overdue; i++)
        overdue = candidates[i].r->overdue;
    f.requests = mem_alloc_array((size_t)n, sizeof *f.requests);
    if (overdue) {
        fill_overdue_first(candidates, n, &f);
    } else if (n) {
        n = pack_and_choose(candidates, n, capacity);
        for (int i = 0; i < n; i++)
            take(&f, &candidates[i]);
    }
    bool worth = f.n && (f.overdue || f.rows >= enough || f.slots == 0);
    if (worth) hand_over(c, pool, node, &f, now_us);
    free(f.requests);
    free(candidates);
    return worth;
}

// See `starved` in core_state.h. A choice once made is kept: running after the group that is emptiest just now could
// go on for ever.
static void reserve(struct core *c)
{
    struct request *r = c->pools[NODE_WORKER].queue.first;
    while (r && r->overdue && !core_pool_can_hold(c, NODE_WORKER, r))
        r = r->next;
    if (!r || !r->overdue) {
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

// The node with the least to compute among those that have room and have not yet wanted nothing in this round.
static struct core_node *next_node(const struct core *c, enum node_role role)
{
    struct core_node *best = NULL;
    for (struct core_node *node = c->nodes; node; node = node->next) {
        if (node->hello.role != role || node->draining || node->passed) continue;
        if (node->bins >= c->options.bins_ahead || node->requests.count >= node->hello.max_seqs) continue;
        if (role == NODE_WORKER && c->starved && c->reserved == node) continue;
        if (!best || node->bin_tokens < best->bin_tokens ||
            (node->bin_tokens == best->bin_tokens && node->requests.count < best->requests.count)) {
            best = node;
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
        while (pool->queue.count) {
            if (role == NODE_WORKER) reserve(c);
            struct core_node *node = next_node(c, role);
            if (!node) break;
            node->passed = !hand_out_bin(c, pool, node, now_us);
        }
    }
}
