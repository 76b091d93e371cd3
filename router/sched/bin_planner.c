// SPDX-License-Identifier: Apache-2.0
// The rules stand in bin_planner.h, numbered.
#include "router/sched/bin_planner.h"

#include <limits.h>
#include <math.h>

#include "router/sched/estimate.h"
#include "router/sched/prefix_tails.h"

// The scan budget of one bin counts requests that were examined and do not fit: too long for the rows left or for the
// node's context, sooner finished elsewhere. Requests without KV blocks are stepped over by the indexes and cost
// nothing. Each request that is picked earns back the cost of a walk through its shared-prefix group.
enum {
    SCAN_BUDGET_MAX = 2048,
    ELSEWHERE_COST = 16,   // of comparing with the caches of other nodes
    LONGER_SCAN_MAX = 256, // requests that would fit only thanks to the prefix cache
    BACK_SCAN_MAX = 64,    // requests of the bin, to find the last one of the same tenant queue
    SCAN_ALL_US = 100000,
};

// Sequence slots are scarce if the slots of a bin, filled with requests of mean length, make fewer rows than this many
// token budgets.
#define SCARCE_BUDGETS 2.0

// Nodes take messages of up to 64 MiB. Rows that a prefix cache holds take no room in the bin, but in its message.
#define BIN_BYTES_MAX ((int64_t)60 << 20)

// A bin being filled.
struct filling {
    const struct dispatch_round *round;
    const struct sched_node *node;
    struct waiting_set *set;       // its picks are the bin so far
    struct bin_plan *plan;         // its sums
    int64_t rows_left, bytes_left; // bytes: of the message
    int slots_left;                // sequences
    int64_t blocks_left;           // KV blocks of the node
    double mean_rows;              // that the requests of the bin should have on average; 0: any
    int scan_budget, longer_budget;
    bool elsewhere;        // an eligible request is sooner finished by another node, for now
    const uint64_t *chain; // [n_chain] of the request before; of a picked request, or of the node's tails
    int n_chain;
};

static int picked_count(const struct filling *f)
{
    return f->set->n_picked;
}

// The KV blocks left in the unit of the indexes. For nodes with another block size the bound is rounded up, so that no
// request that fits is stepped over.
static int64_t index_blocks_left(const struct filling *f)
{
    int block_tokens = f->node->limits.block_tokens;
    if (f->node->role != NODE_WORKER || block_tokens == PREFIX_BLOCK) return f->blocks_left;
    return f->blocks_left * block_tokens / PREFIX_BLOCK + 2;
}

// Rows that the node has to compute: neither its cache nor the bin has them.
static int rows_in_bin(const struct filling *f, const struct sched_request *r)
{
    int cached = sched_request_cached_blocks(r, f->node);
    int shared = picked_count(f) ? prefix_chain_common(r->prefix, r->n_prefix, f->chain, f->n_chain) : 0;
    return sched_request_rows_after(r, shared > cached ? shared : cached);
}

// When the node finishes its work and the request, if it has to compute `rows` rows of the request.
static double finish_with(const struct filling *f, const struct sched_node *node, const struct sched_request *r,
                          int64_t rows)
{
    return dispatch_round_finish(f->round, node, rows, sched_request_rows(r) - rows);
}

static bool has_room(const struct sched_node *node, const struct sched_request *r)
{
    return node->account.requests.count < node->limits.max_seqs &&
           sched_node_blocks_needed(node, r) <= sched_node_blocks_left(node) && sched_node_can_hold(node, r);
}

// Rule 10: another node with room would finish the request sooner, since its cache holds more of it.
static bool sooner_elsewhere(const struct filling *f, const struct sched_request *r, int64_t rows)
{
    const struct sched_view *view = f->round->view;
    if (r->overdue) return false;
    for (const struct sched_node *other = view->nodes; other; other = other->next) {
        if (other == f->node || other->role != f->node->role || !other->prefixes) continue;
        int64_t rows_there = sched_request_rows_on(r, other);
        if (rows_there >= rows || finish_with(f, other, r, rows_there) >= finish_with(f, f->node, r, rows)) continue;
        if (view->reservation.node != other && has_room(other, r)) return true;
    }
    return false;
}

static bool bin_is_full(const struct filling *f)
{
    return f->rows_left <= 0 || f->slots_left == 0 || f->scan_budget <= 0;
}

static bool bin_fits(struct filling *f, const struct sched_request *r)
{
    int rows = rows_in_bin(f, r);
    bool alone = picked_count(f) == 0; // rule 11
    bool rows_fit = alone || (rows <= f->rows_left && sched_request_message_bytes(r) <= f->bytes_left);
    f->plan->scan_cost++;
    if (rows_fit && sched_node_can_hold(f->node, r) && sched_node_blocks_needed(f->node, r) <= f->blocks_left) {
        if (!sooner_elsewhere(f, r, rows)) return true;
        f->elsewhere = true;
        f->scan_budget -= ELSEWHERE_COST;
    }
    f->scan_budget--;
    return false;
}

static void bin_pick(struct filling *f, struct sched_request *r)
{
    int rows = rows_in_bin(f, r);
    f->plan->rows += rows;
    f->plan->uncached_rows += sched_request_rows(r);
    f->plan->overdue |= r->overdue;
    f->rows_left -= rows;
    f->bytes_left -= sched_request_message_bytes(r);
    f->slots_left--;
    f->blocks_left -= sched_node_blocks_needed(f->node, r);
    bool below = f->scan_budget < SCAN_BUDGET_MAX - PREFIX_SCAN_MAX;
    f->scan_budget = below ? f->scan_budget + PREFIX_SCAN_MAX : SCAN_BUDGET_MAX;
    waiting_set_pick(f->set, r);
}

// --- shared-prefix groups

// Sets the chain that the next request of the tenant queue should share: of its last request in the bin, else of where
// the node's bins left off with it, else of the last request in the bin.
static void chain_follow(struct filling *f, const struct tenant_queue *queue)
{
    if (!f->node->prefixes) return;
    struct sched_request *const *picked = f->set->picked;
    const struct prefix_tail *tail = prefix_tails_find(f->node->tails, queue);
    const struct sched_request *last = NULL;
    int n = picked_count(f);
    for (int i = n - 1; i >= 0 && i >= n - BACK_SCAN_MAX && !last; i--)
        if (picked[i]->tenant_queue == queue) last = picked[i];
    if (!last && !tail && n) last = picked[n - 1];
    f->chain = last ? last->prefix : tail ? tail->chain : NULL;
    f->n_chain = last ? last->n_prefix : tail ? tail->n : 0;
}

// Whether sharing `blocks` blocks with the chain saves enough rows of the request, and more than `other` would save.
static bool sharing_pays(const struct filling *f, const struct sched_request *r, int blocks,
                         const struct sched_request *other)
{
    if (other) blocks -= prefix_chain_common(other->prefix, other->n_prefix, f->chain, f->n_chain);
    return prefix_group_pays(sched_request_rows(r), blocks);
}

// The request of the tenant queue that fits and shares most with the chain. With `until_us`: only an overdue one that
// is due by then. NULL: none.
static struct sched_request *sharing_next(struct filling *f, const struct tenant_queue *queue, int64_t until_us,
                                          int *blocks_p)
{
    struct prefix_walk walk;
    prefix_walk_start(&walk, &f->set->groups, queue, f->chain, f->n_chain);
    struct sched_request *r = prefix_walk_next(&walk);
    while (r && ((until_us && (!r->overdue || r->due_us > until_us)) || !bin_fits(f, r)))
        r = f->scan_budget > 0 ? prefix_walk_next(&walk) : NULL;
    f->plan->scan_cost += (uint64_t)walk.scan_cost;
    if (!r) f->scan_budget -= walk.scan_cost;
    *blocks_p = walk.blocks;
    return r;
}

// --- overdue requests (rules 4 and 5)

// Rule 5. All requests of the tenant queue finish sooner for it. The bound on the due time keeps a stream of requests
// with one prefix from delaying others for ever; a request with a deadline, or back from a lost node, keeps its place.
static struct sched_request *in_place_of(struct filling *f, struct sched_request *r)
{
    int blocks = 0;
    if (r->spec->ttft_deadline_us != INT64_MAX || !r->due_us) return r;
    int64_t until_us = r->due_us + f->round->view->options.max_wait_us;
    struct sched_request *sharing = sharing_next(f, r->tenant_queue, until_us, &blocks);
    return sharing && sharing_pays(f, sharing, blocks, r) ? sharing : r;
}

static void fill_overdue(struct filling *f)
{
    bool all = f->set->overdue_work.rows <= (double)f->rows_left;
    int64_t rows_max = all ? f->rows_left : f->rows_left / 2;
    struct sched_request *r = NULL;
    while (f->plan->rows < rows_max && !bin_is_full(f) &&
           (r = due_index_next(&f->set->due_next, r, index_blocks_left(f)))) {
        chain_follow(f, r->tenant_queue);
        struct sched_request *next = all ? r : in_place_of(f, r);
        if (next != r || bin_fits(f, r)) bin_pick(f, next);
    }
}

// --- the others (rules 6 to 10)

// The longest request of the tenant queue that has more rows than are left but fits thanks to the node's prefix cache.
static struct sched_request *longest_cached(struct filling *f, const struct tenant_queue *queue)
{
    if (!f->node->prefixes || !picked_count(f)) return NULL;
    int64_t blocks = index_blocks_left(f);
    struct sched_request *r = length_index_longest(&queue->packable, INT_MAX, blocks);
    for (; r && sched_request_rows(r) > f->rows_left && f->longer_budget > 0;
         f->longer_budget--, f->plan->scan_cost++) {
        if (rows_in_bin(f, r) <= f->rows_left && bin_fits(f, r)) return r;
        r = length_index_next(&queue->packable, r, blocks);
    }
    return NULL;
}

// The next request of the tenant queue. NULL: none fits.
static struct sched_request *tenant_next(struct filling *f, const struct tenant_queue *queue)
{
    int blocks = 0;
    chain_follow(f, queue);
    struct sched_request *sharing = sharing_next(f, queue, 0, &blocks);
    int64_t blocks_left = index_blocks_left(f);
    int64_t rows_max = picked_count(f) ? f->rows_left : INT_MAX;
    struct sched_request *longest = length_index_longest(&queue->packable, rows_max, blocks_left);
    if (sharing && sharing_pays(f, sharing, blocks, longest)) return sharing;
    bool above_mean = f->mean_rows > 0 && (double)f->plan->uncached_rows > f->mean_rows * picked_count(f);
    struct sched_request *r = above_mean ? length_index_shortest(&queue->packable, blocks_left) : NULL;
    if (r && bin_fits(f, r)) return r;
    r = longest_cached(f, queue);
    if (r) return r;
    r = longest;
    while (r && !bin_fits(f, r))
        r = f->scan_budget > 0 ? length_index_next(&queue->packable, r, blocks_left) : NULL;
    return r ? r : sharing;
}

static void fill_level(struct filling *f, int level)
{
    struct tenant_queue *queue, *aside = NULL;
    while (!bin_is_full(f) && (queue = tenant_queues_next(&f->set->tenants, level))) {
        bool any = length_index_longest(&queue->packable, INT_MAX, index_blocks_left(f));
        struct sched_request *r = any ? tenant_next(f, queue) : NULL;
        f->plan->scan_cost++;
        if (r) {
            bin_pick(f, r);
        } else {
            if (any) f->scan_budget--;
            tenant_queue_set_aside(queue, &aside);
        }
    }
    tenant_queues_resume(aside);
}

static void bin_fill(struct filling *f)
{
    fill_overdue(f);
    for (int level = PRIORITY_LEVELS - 1; level >= 0 && !bin_is_full(f); level--)
        fill_level(f, level);
}

// A request holds its sequence slot for `residence_bins` bins. Slots are scarce if one bin's part of the slots, filled
// with requests of mean length, has few more rows than the bin: packing the longest first would then leave short
// requests that can never fill a bin. 0: slots are not scarce.
static double mean_rows_to_keep(const struct waiting_set *set, const struct sched_node *node)
{
    double mean_rows = (double)set->rows / waiting_set_count(set);
    double slots = node->limits.max_seqs / fmax(node->account.residence_bins, 1);
    return mean_rows * slots < SCARCE_BUDGETS * node->limits.token_budget ? mean_rows : 0;
}

static bool note_holds(const struct sched_node *node)
{
    const struct no_eligible_note *note = &node->no_eligible;
    return note->set && sched_node_blocks_left(node) <= note->blocks_left && node->account.bins >= note->bins;
}

bool plan_note_is_void(const struct sched_node *node, const struct sched_request *r)
{
    return sched_node_can_hold(node, r) && sched_node_blocks_needed(node, r) <= node->no_eligible.blocks_left;
}

void plan_bin(const struct dispatch_round *round, const struct sched_node *node, struct waiting_set *set,
              int64_t now_us, struct bin_plan *plan)
{
    const struct sched_view *view = round->view;
    *plan = (struct bin_plan){.no_eligible = node->no_eligible, .scanned_us = node->scanned_us};
    bool may_wait = node->account.bins && view->options.policy == BIN_DATASET; // rule 2
    int64_t min_rows = may_wait ? estimate_min_bin_rows(view, node) : 1;
    if (set->rows < min_rows && !set->overdue.count) return;
    if (note_holds(node)) return;
    struct filling f = {.round = round,
                        .node = node,
                        .set = set,
                        .plan = plan,
                        .rows_left = node->limits.token_budget,
                        .bytes_left = BIN_BYTES_MAX,
                        .slots_left = node->limits.max_seqs - node->account.requests.count,
                        .blocks_left = sched_node_blocks_left(node),
                        .mean_rows = mean_rows_to_keep(set, node),
                        .scan_budget = SCAN_BUDGET_MAX,
                        .longer_budget = LONGER_SCAN_MAX};
    bin_fill(&f);
    if (!picked_count(&f) && f.scan_budget <= 0 && !node->account.bins && now_us - node->scanned_us >= SCAN_ALL_US) {
        plan->scanned_us = now_us; // rule 12
        f.scan_budget = INT_MAX;
        bin_fill(&f);
    }
    if (picked_count(&f) && (plan->overdue || plan->rows >= min_rows || f.slots_left == 0)) {
        plan->requests = set->picked;
        plan->n = set->n_picked;
        plan->no_eligible.set = false;
        return;
    }
    waiting_set_roll_back(set);
    plan->no_eligible = (struct no_eligible_note){.set = f.scan_budget > 0 && !f.elsewhere,
                                                  .blocks_left = sched_node_blocks_left(node),
                                                  .bins = node->account.bins};
}
