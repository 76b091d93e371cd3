// SPDX-License-Identifier: Apache-2.0
// How long things take, from what passes cost the nodes (cost.h): when a node is done with what it has, how long a
// request waits in front of a pool, whether speculation pays for it, and when it has to be on its way.
//
// - Ahead of a request is what the nodes have been handed and, of what waits, the less of what goes before it by
//   priority and what is due before it: bins are filled by both (core_bins.c). Nodes take what waits as they come free,
//   so that they fill up to one level, like vessels that are connected.
// - Every pass has a row for each sequence that decodes. That prompts wait for decodes longer than that, to keep them
//   from stalling, and for prompts that come later, is not in it: an estimate is low rather than high, and nobody is
//   refused for what may not happen.
// - A node whose costs are not known yet is taken to be like the cheapest of its pool whose are. Where no node's are,
//   nothing is estimated.
#include "router/core/state.h"

#include <math.h>

// Speculation has to spare at least this share of the prefill: what is estimated is not known to the percent.
#define MARGIN 0.1

// The pool's nodes that may be handed something, one after another: from NULL to NULL.
static const struct core_node *next_of(const struct core *c, enum node_role role, const struct core_node *node)
{
    for (node = node ? node->next : c->nodes; node; node = node->next) {
        if (node->hello.role == role && !node->draining) return node;
    }
    return NULL;
}

static bool knows(const struct core *c, const struct core_node *node, int64_t rows)
{
    return cost_knows(&node->cost, rows < node->hello.token_budget ? rows : node->hello.token_budget, c->now_us);
}

bool core_costs_known(const struct core *c, enum node_role role, int64_t rows)
{
    const struct core_node *node = next_of(c, role, NULL);
    if (!node) return false;
    for (; node; node = next_of(c, role, node)) {
        if (!knows(c, node, rows)) return false;
    }
    return true;
}

static double work_us(const struct core_node *node, const struct cost_model *cost, double rows, double pairs)
{
    if (rows <= 0) return 0;
    double passes = ceil(rows / node->hello.token_budget), decodes = node->requests.count - node->in_bins;
    if (decodes > 0) {
        double entries = (double)(node->kv_blocks * node->hello.block_tokens) / node->requests.count;
        rows += passes * decodes;
        pairs += passes * decodes * entries;
    }
    return fmax(1, cost_pass_us(cost, passes, rows, pairs));
}

static double busy_us(const struct core_node *node, const struct cost_model *cost)
{
    return work_us(node, cost, (double)node->bin_tokens, node->bin_pairs);
}

double core_node_finish_us(const struct core_node *node, int64_t rows, int64_t cached)
{
    double pairs = cost_pairs((double)rows, (double)cached);
    return work_us(node, &node->cost, (double)(node->bin_tokens + rows), node->bin_pairs + pairs);
}

int64_t core_node_enough_rows(const struct core *c, const struct core_node *node)
{
    int64_t half = ((int64_t)node->hello.token_budget + 1) / 2;
    if (!cost_knows(&node->cost, half, c->now_us)) return half;
    double rows = 7 * node->cost.fixed_us; // over the cost of a row: then seven eighths of the pass are for them
    return rows >= (double)half * node->cost.row_us ? half : 1 + (int64_t)(rows / node->cost.row_us);
}

// --- one request, in one pool

// What an estimate is of.
struct view {
    const struct core *c;
    enum node_role role;
    const struct request *r;
    int tokens;                      // that it will keep; 0: those that it has now count
    const struct cost_model *likely; // what nodes are taken to cost whose costs are not known; NULL: of none they are
};

static bool is_known(const struct view *v, const struct core_node *node)
{
    if (knows(v->c, node, v->tokens ? v->tokens : core_request_rows(v->r))) return true;
    return !v->tokens && node->prefixes && knows(v->c, node, core_request_rows_on(v->r, node));
}

static const struct cost_model *cost_of(const struct view *v, const struct core_node *node)
{
    return is_known(v, node) ? &node->cost : v->likely;
}

// The request's own time at the node.
static double own_us(const struct view *v, const struct core_node *node, const struct cost_model *cost)
{
    const struct request *r = v->r;
    int rows = v->tokens ? v->tokens : core_request_rows_on(r, node);
    int cached = v->tokens ? 0 : core_request_rows(r) - rows;
    double us = work_us(node, cost, rows, cost_pairs(rows, cached));
    if (v->role == NODE_WORKER) return us;
    double steps = r->prefill.look_ahead - 1; // a pass of one row each
    return us + cost_pass_us(cost, steps, steps, steps * (r->n_tokens + steps / 2));
}

static struct view view_of(const struct core *c, enum node_role role, const struct request *r, int tokens)
{
    struct view v = {c, role, r, tokens, NULL};
    double least = INFINITY, rows = tokens ? tokens : core_request_rows(r);
    for (const struct core_node *node = NULL; (node = next_of(c, role, node));) {
        double us = cost_pass_us(&node->cost, ceil(rows / node->hello.token_budget), rows, cost_pairs(rows, 0));
        if (us >= least || !is_known(&v, node)) continue;
        least = us;
        v.likely = &node->cost;
    }
    return v;
}

static double least_own_us(const struct view *v)
{
    double least = INFINITY;
    for (const struct core_node *node = NULL; v->likely && (node = next_of(v->c, v->role, node));)
        if (core_node_can_hold(node, v->r)) least = fmin(least, own_us(v, node, cost_of(v, node)));
    return least;
}

static double bin_us(const struct view *v)
{
    double most = 0;
    for (const struct core_node *node = NULL; (node = next_of(v->c, v->role, node));) {
        double rows = node->hello.token_budget;
        most = fmax(most, work_us(node, cost_of(v, node), rows, cost_pairs(rows, 0)));
    }
    return most;
}

// When it will have waited max_wait, in both queues together: what a speculator took is no waiting.
static int64_t overdue_us(const struct core *c, const struct request *r, int64_t now_us)
{
    int64_t left_us = c->options.max_wait_us - r->timing.queue_us - r->timing.pack_wait_us;
    return left_us > 0 ? now_us + left_us : now_us;
}

// When it should be handed out at the latest, if it takes `own_us` from then on.
static int64_t latest_us(const struct view *v, double own_us, int64_t now_us)
{
    const struct request *r = v->r;
    int64_t waited_us = overdue_us(v->c, r, now_us);
    if (r->ttft_deadline_us == INT64_MAX || r->usage.completion_tokens) return waited_us;
    int64_t left_us = r->ttft_deadline_us - now_us, due_us = now_us + left_us / 2; // not known: half is for it
    if (isfinite(own_us)) {
        if (own_us > (double)left_us) return waited_us; // too late: it does not go before those who are in time
        due_us = r->ttft_deadline_us - (int64_t)(own_us + bin_us(v));
    }
    return due_us < waited_us ? due_us : waited_us;
}

static int kept_tokens(const struct core *c, const struct request *r)
{
    const struct prefill *p = &r->prefill;
    int64_t chunk = p->chunk_tokens ? p->chunk_tokens : 1;
    int64_t chunks = (int64_t)ceil(p->keep_rate * (double)((r->n_tokens + chunk - 1) / chunk)), kept = chunk * chunks;
    if (!p->paper_exact) {
        kept += c->options.tail_tokens < r->n_tokens / 4 ? c->options.tail_tokens : r->n_tokens / 4;
        for (int k = 0; k < r->n_pinned; k++)
            kept += r->pinned[k].last - r->pinned[k].first + 1;
    }
    return kept < r->n_tokens ? (int)kept : r->n_tokens;
}

// --- in front of a pool

static struct cost_work sum(struct cost_work a, struct cost_work b)
{
    return (struct cost_work){a.rows + b.rows, a.pairs + b.pairs};
}

static struct cost_work less(struct cost_work a, struct cost_work b)
{
    return a.rows < b.rows ? a : b;
}

// What waits and goes before the request, that should be on its way at `due_us`.
static struct cost_work ahead_of(const struct core *c, const struct core_pool *pool, const struct request *r,
                                 int64_t due_us, int64_t now_us)
{
    bool ordered = c->options.policy == BIN_DATASET; // else first come, first served
    struct cost_work ahead = {0, 0};
    for (int level = ordered ? core_priority_level(r->priority) : 0; level < PRIORITY_LEVELS; level++)
        ahead = sum(ahead, pool->levels[level].work);
    if (ordered) {
        // The urgent that one bin does not hold leave half of it to priority.
        struct cost_work sooner = sum(pool->urgent_work, core_pool_due_before(pool, now_us, due_us));
        ahead = less(sum(ahead, less(pool->urgent_work, ahead)), sooner);
    }
    return (struct cost_work){pool->computed * ahead.rows, pool->computed * ahead.pairs};
}

// When the last of what waits will have been handed out: the level that the nodes fill up to.
static double level_us(const struct view *v, struct cost_work ahead)
{
    if (ahead.rows <= 0) return 0;
    for (double level = INFINITY;;) {
        double share = 1, rate = 0; // of all that waits: what is gone by time 0, if the nodes had begun with it; per us
        for (const struct core_node *node = NULL; (node = next_of(v->c, v->role, node));) {
            const struct cost_model *cost = cost_of(v, node);
            double busy = busy_us(node, cost), all_us = work_us(node, cost, ahead.rows, ahead.pairs);
            if (busy >= level) continue; // the others are done before it comes free
            share += busy / all_us;
            rate += 1 / all_us;
        }
        if (share / rate >= level) return level;
        level = share / rate;
    }
}

// At the pool's node that is done with the request first, which has `after_us` to go then. Infinite: not known.
static struct core_estimate estimate(const struct view *v, double after_us, int64_t now_us)
{
    struct core_estimate best = {INFINITY, INFINITY};
    double least_us = least_own_us(v) + after_us;
    if (!isfinite(least_us)) return best;
    struct cost_work ahead = ahead_of(v->c, &v->c->pools[v->role], v->r, latest_us(v, least_us, now_us), now_us);
    double level = level_us(v, ahead);
    for (const struct core_node *node = NULL; (node = next_of(v->c, v->role, node));) {
        if (!core_node_can_hold(node, v->r)) continue;
        const struct cost_model *cost = cost_of(v, node);
        struct core_estimate here = {fmax(level, busy_us(node, cost)), own_us(v, node, cost)};
        if (here.wait_us + here.own_us < best.wait_us + best.own_us) best = here;
    }
    return best;
}

// Up to the first token, by way of a speculator. What waits for worker groups now is handed out while it is scored.
static struct core_estimate by_speculator(const struct core *c, const struct request *r, int64_t now_us)
{
    struct view worker = view_of(c, NODE_WORKER, r, kept_tokens(c, r)), speculator = view_of(c, NODE_SPECULATOR, r, 0);
    struct core_estimate kept = estimate(&worker, 0, now_us);
    struct core_estimate scored = estimate(&speculator, kept.own_us, now_us);
    if (!isfinite(scored.own_us)) return scored;
    double ready_us = scored.wait_us + scored.own_us;
    return (struct core_estimate){fmax(ready_us, kept.wait_us) - scored.own_us, scored.own_us + kept.own_us};
}

bool core_first_token_estimate(const struct core *c, const struct request *r, bool speculated, int64_t now_us,
                               struct core_estimate *estimate_p)
{
    struct view whole = view_of(c, NODE_WORKER, r, 0);
    *estimate_p = speculated ? by_speculator(c, r, now_us) : estimate(&whole, 0, now_us);
    return isfinite(estimate_p->own_us);
}

static bool nobody_is_scored(const struct core *c)
{
    int n = core_pool_waiting(&c->pools[NODE_SPECULATOR]);
    for (const struct core_node *node = c->nodes; node; node = node->next)
        n += node->hello.role == NODE_SPECULATOR ? node->requests.count : 0;
    return n == 0;
}

// Not knowing ends by either decision: a prompt that a speculator reads teaches what speculators cost, and it is one at
// a time that is spent on that; any other one teaches what worker groups cost.
bool core_speculation_pays(const struct core *c, const struct request *r, int64_t now_us)
{
    struct core_estimate whole, pruned;
    struct view speculator = view_of(c, NODE_SPECULATOR, r, 0);
    if (!speculator.likely) return nobody_is_scored(c);
    if (!core_first_token_estimate(c, r, false, now_us, &whole)) return false;
    if (!core_first_token_estimate(c, r, true, now_us, &pruned)) return false;
    return pruned.wait_us + pruned.own_us + MARGIN * whole.own_us <= whole.wait_us + whole.own_us;
}

int64_t core_request_due_us(const struct core *c, const struct request *r, int64_t now_us)
{
    bool scoring = r->state == REQUEST_SCORING;
    if (r->ttft_deadline_us == INT64_MAX) return overdue_us(c, r, now_us); // most have none
    struct view v = view_of(c, scoring ? NODE_SPECULATOR : NODE_WORKER, r, 0);
    double us = least_own_us(&v);
    if (scoring && !r->score_only) {
        struct view worker = view_of(c, NODE_WORKER, r, kept_tokens(c, r));
        us += least_own_us(&worker);
    }
    return latest_us(&v, us, now_us);
}
