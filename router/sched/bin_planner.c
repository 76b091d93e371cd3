// SPDX-License-Identifier: Apache-2.0
// bin_planner.h has the numbered rules.
#include "router/sched/bin_planner.h"

#include <limits.h>

#include "router/sched/node_choice.h"
#include "router/sched/node_index.h"
#include "router/sched/node_time.h"
#include "router/sched/prefix_tails.h"

// SCAN_MAX limits, per plan, the examined requests and tenant queues that add nothing to the bin. There are usually
// few: the indexes step over requests that need more rows, KV blocks or context than is left. There may be many if the
// node has a prefix cache, which might make any long prompt fit. So overdue requests use up at most half of the limit.
enum { SCAN_MAX = 2048, OVERDUE_SCAN_MAX = SCAN_MAX / 2 };

// Limit, per plan, of examined requests that can fit only because of the node's prefix cache.
enum { CACHED_SCAN_MAX = 32 };

// Limit of other nodes examined per request. The nodes that hold most of the request's prefix come first.
enum { ELSEWHERE_MAX = 16 };

// A bin being filled.
struct filling {
    const struct sched_view *view;
    const struct sched_node *node;
    struct waiting_set *set;           // set->picked is the bin so far
    struct bin_plan *plan;             // contains the sums over the bin so far
    int64_t pass_rows;                 // prompt rows that fit one pass; a long prompt has more
    bool takes_long;                   // true: a long prompt may be picked
    int64_t rows_left, bytes_left;     // rows left in the bin; bytes left in its message
    int slots_left;                    // free sequence slots of the node
    int64_t blocks_left;               // free KV blocks of the node
    int scans_left, cached_scans_left; // remaining scans of SCAN_MAX and of CACHED_SCAN_MAX
    bool is_closed;                    // true: the bin takes no further request
    const uint64_t *chain;             // [n_chain] chain that the next request should share, see chain_follow()
    int n_chain;
    bool chain_is_picked; // true: `chain` belongs to a picked request; false: to a request of an earlier bin
};

static int picked_count(const struct filling *f)
{
    return f->set->n_picked;
}

static int int_of(int64_t value)
{
    return value < INT_MAX ? (int)value : INT_MAX;
}

// Returns the largest need that a request of at most `rows` rows may have. If the node's block size is not
// PREFIX_BLOCK, KV blocks are rounded up, so that no request that fits is stepped over.
static struct request_need room_left(const struct filling *f, int64_t rows)
{
    return (struct request_need){.rows = int_of(rows),
                                 .blocks = int_of(sched_index_blocks(f->node, f->blocks_left)),
                                 .context = f->node->limits.context_tokens};
}

// Returns how many rows of the request the node has to compute: the rows that are neither in the node's cache nor in
// the bin.
static int rows_in_bin(const struct filling *f, const struct sched_request *r)
{
    int cached = sched_request_cached_blocks(r, f->node);
    int shared = picked_count(f) ? prefix_chain_common(r->prefix, r->n_prefix, f->chain, f->n_chain) : 0;
    return sched_request_rows_after(r, shared > cached ? shared : cached);
}

// Returns the KV blocks that the request needs in addition to the blocks that it shares with the node or the bin.
static int blocks_in_bin(const struct filling *f, const struct sched_request *r)
{
    int alone = sched_node_blocks_needed(f->node, r);
    if (!f->chain_is_picked) return alone;
    int shared = prefix_chain_common(r->prefix, r->n_prefix, f->chain, f->n_chain);
    int together = sched_node_blocks_after(f->node, r, shared);
    return together < alone ? together : alone;
}

// Returns the rows of the bin that the request uses. A long prompt shares its passes with the following bins and uses
// half of each pass.
static int64_t rows_taken(const struct filling *f, int64_t rows)
{
    return rows > f->pass_rows ? f->pass_rows / 2 : rows;
}

// Returns the time until the node finishes its work and `rows` rows of the request. While nodes are compared by rows,
// returns a number of rows instead.
static double finish_with(const struct sched_node *node, const struct sched_request *r, int64_t rows)
{
    if (!node->place.index->by_time) return (double)(node->account.bin_tokens + rows);
    return node_time_finish_us(node, rows, sched_request_rows(r) - rows);
}

// Returns true if another node with room would finish the request sooner, because that node's cache holds more of the
// request's prefix (rule 7).
static bool sooner_elsewhere(const struct filling *f, const struct sched_request *r, int64_t rows)
{
    if (r->overdue || !r->n_prefix) return false;
    const struct prefix_index *index = f->view->prefixes[f->node->role];
    if (sched_request_rows_after(r, prefix_index_most(index, r->prefix, r->n_prefix)) >= rows) return false;
    struct prefix_hit hits[ELSEWHERE_MAX];
    int n = prefix_index_lookup(index, r->prefix, r->n_prefix, hits, ELSEWHERE_MAX);
    for (int i = 0; i < n; i++) {
        const struct sched_node *other = hits[i].node;
        int64_t rows_there = sched_request_rows_after(r, hits[i].blocks);
        if (rows_there >= rows) return false; // the remaining hits have no fewer rows to compute
        if (other == f->node || finish_with(other, r, rows_there) >= finish_with(f->node, r, rows)) continue;
        if (node_has_room(f->view, other, r)) return true;
    }
    return false;
}

static bool bin_is_full(const struct filling *f)
{
    return f->is_closed || f->rows_left <= 0 || f->slots_left == 0 || f->scans_left <= 0;
}

static bool rows_fit(const struct filling *f, int64_t rows)
{
    if (rows > f->pass_rows && !f->takes_long) return false;
    return picked_count(f) == 0 || rows_taken(f, rows) <= f->rows_left;
}

static bool may_join(const struct filling *f, const struct sched_request *r)
{
    if (picked_count(f) && sched_request_message_bytes(r) > f->bytes_left) return false;
    return !r->runs_alone || (picked_count(f) == 0 && f->node->account.requests.count == 0);
}

static bool bin_fits(struct filling *f, const struct sched_request *r)
{
    int rows = rows_in_bin(f, r);
    f->plan->scan_cost++;
    if (rows_fit(f, rows) && may_join(f, r) && sched_node_can_hold(f->node, r) &&
        blocks_in_bin(f, r) <= f->blocks_left) {
        if (!sooner_elsewhere(f, r, rows)) return true;
        f->plan->elsewhere = true;
    }
    f->scans_left--;
    return false;
}

static void bin_pick(struct filling *f, struct sched_request *r)
{
    int rows = rows_in_bin(f, r);
    f->plan->rows += rows;
    f->plan->uncached_rows += sched_request_rows(r);
    f->plan->overdue |= r->overdue;
    f->bytes_left -= sched_request_message_bytes(r);
    f->rows_left -= rows_taken(f, rows);
    if (rows > f->pass_rows) f->takes_long = false;
    f->slots_left--;
    f->blocks_left -= blocks_in_bin(f, r);
    f->is_closed = r->runs_alone;
    waiting_set_pick(f->set, r);
}

// --- shared-prefix groups

// Sets the chain that the next request of the tenant queue should share. The first choice is the chain of the queue's
// last request in the bin. The second choice is the queue's tail on the node (prefix_tails.h), the third the chain of
// the bin's last request.
static void chain_follow(struct filling *f, const struct tenant_queue *queue)
{
    if (!f->node->prefixes) return;
    const struct sched_request *last = queue->last_picked;
    const struct prefix_tail *tail = last ? NULL : prefix_tails_find(f->node->tails, queue);
    if (!last && !tail && picked_count(f)) last = f->set->picked[picked_count(f) - 1];
    f->chain = last ? last->prefix : tail ? tail->chain : NULL;
    f->n_chain = last ? last->n_prefix : tail ? tail->n : 0;
    f->chain_is_picked = last;
}

// Returns true if sharing `blocks` blocks with the chain saves enough rows of the request `r`. If `other` would also
// share blocks with the chain, the number of its shared blocks is subtracted first.
static bool sharing_pays(const struct filling *f, const struct sched_request *r, int blocks,
                         const struct sched_request *other)
{
    if (other) blocks -= prefix_chain_common(other->prefix, other->n_prefix, f->chain, f->n_chain);
    return prefix_group_pays(sched_request_rows(r), blocks);
}

// Returns the request of the tenant queue that fits and shares most blocks with the chain, or NULL. If until_us is not
// 0, considers only overdue requests that are due by then.
static struct sched_request *sharing_next(struct filling *f, const struct tenant_queue *queue, int64_t until_us,
                                          int *blocks_p)
{
    struct prefix_walk walk;
    prefix_walk_start(&walk, &f->set->groups, queue, f->chain, f->n_chain);
    struct sched_request *r = prefix_walk_next(&walk);
    while (r && ((until_us && (!r->overdue || r->due_us > until_us)) || !bin_fits(f, r)))
        r = f->scans_left > 0 ? prefix_walk_next(&walk) : NULL;
    f->plan->scan_cost += (uint64_t)walk.scan_cost;
    if (!r) f->scans_left -= walk.scan_cost;
    *blocks_p = walk.blocks;
    return r;
}

// --- overdue requests (rule 4)

// Returns the request that replaces the overdue request `r` in the bin, or `r` itself. The replacement is of the same
// tenant queue and shares a prefix, so the overdue requests together finish sooner (rule 7). Its due time is bounded:
// otherwise a stream of requests with one prefix could delay other requests for ever. A request that has a deadline, or
// that comes back from a lost node, is not replaced.
static struct sched_request *in_place_of(struct filling *f, struct sched_request *r)
{
    int blocks = 0;
    if (r->spec->ttft_deadline_us != INT64_MAX || !r->due_us) return r;
    int64_t until_us = r->due_us + f->view->options.max_wait_us;
    struct sched_request *sharing = sharing_next(f, r->tenant_queue, until_us, &blocks);
    return sharing && sharing_pays(f, sharing, blocks, r) ? sharing : r;
}

static bool higher_priority_waits(const struct filling *f, const struct sched_request *r)
{
    struct request_need room = room_left(f, INT_MAX);
    for (int level = sched_priority_level(r->spec->priority) + 1; level < PRIORITY_LEVELS; level++)
        if (tenant_queues_next(&f->set->tenants, level, &room)) return true;
    return false;
}

// Returns the number of slots that overdue requests get if not all of them fit: half of the free slots. An odd slot
// alternates between the overdue requests and a second receiver. The second receiver is a priority above the priority
// of `first`, if one waits, else the next tenant (rule 6).
static int overdue_slots(struct filling *f, const struct sched_request *first)
{
    if (f->slots_left % 2 == 0) return f->slots_left / 2;
    enum odd_slot last = f->set->odd_slot;
    f->set->odd_slot_picked = last == ODD_TO_HIGHER_PRIORITY    ? ODD_TO_OVERDUE
                              : higher_priority_waits(f, first) ? ODD_TO_HIGHER_PRIORITY
                              : last == ODD_TO_OVERDUE          ? ODD_TO_TENANT
                                                                : ODD_TO_OVERDUE;
    return f->slots_left / 2 + (f->set->odd_slot_picked == ODD_TO_OVERDUE);
}

static void fill_overdue(struct filling *f)
{
    // Steps over long prompts while the node computes another long prompt.
    struct request_need room = room_left(f, f->takes_long || f->node->prefixes ? INT_MAX : f->pass_rows);
    struct sched_request *r = due_index_next(&f->set->due_next, NULL, &room);
    if (!r) return;
    bool all = f->set->overdue_work.rows <= (double)f->rows_left && f->set->overdue.count <= f->slots_left;
    int64_t rows_min = all ? 0 : f->rows_left - f->rows_left / 2;
    int slots_min = all ? 0 : f->slots_left - overdue_slots(f, r);
    int scans_min = f->scans_left - OVERDUE_SCAN_MAX;
    while (r && f->rows_left > rows_min && f->slots_left > slots_min && f->scans_left > scans_min && !bin_is_full(f)) {
        chain_follow(f, r->tenant_queue);
        struct sched_request *next = all ? r : in_place_of(f, r);
        if (next != r || bin_fits(f, r)) bin_pick(f, next);
        room = room_left(f, f->takes_long || f->node->prefixes ? INT_MAX : f->pass_rows);
        r = due_index_next(&f->set->due_next, r, &room);
    }
}

// --- the remaining requests (rules 5 to 8)

// Returns the longest request of the tenant queue that has more rows than `rows` but fits because of the node's prefix
// cache, or NULL.
static struct sched_request *longest_cached(struct filling *f, const struct tenant_queue *queue, int64_t rows)
{
    struct request_need room = room_left(f, INT_MAX);
    if (!f->node->prefixes) return NULL;
    struct sched_request *r = length_index_longest(&queue->packable, &room);
    for (; r && r->need.rows > rows && f->cached_scans_left > 0; f->cached_scans_left--) {
        if (bin_fits(f, r)) return r;
        r = length_index_next(&queue->packable, r, &room);
    }
    return NULL;
}

// Returns the most rows that a request may have to fit the bin if the node's prefix cache holds none of its rows.
static int64_t rows_max(const struct filling *f)
{
    bool first = picked_count(f) == 0;
    if (f->takes_long && (first || f->pass_rows / 2 <= f->rows_left)) return INT_MAX;
    return first ? f->pass_rows : f->rows_left;
}

// Returns the longest long prompt of the tenant queue that fits, or NULL.
static struct sched_request *longest_long(struct filling *f, const struct tenant_queue *queue)
{
    struct request_need room = room_left(f, rows_max(f));
    struct sched_request *r = length_index_longest(&queue->packable, &room);
    while (r && r->need.rows > f->pass_rows && !bin_fits(f, r))
        r = f->scans_left > 0 ? length_index_next(&queue->packable, r, &room) : NULL;
    return r && r->need.rows > f->pass_rows ? r : NULL;
}

// Returns the longest request of the tenant queue that fits and has at most `rows` rows, cached or not, or NULL.
static struct sched_request *longest_fitting(struct filling *f, const struct tenant_queue *queue, int64_t rows)
{
    struct request_need room = room_left(f, rows);
    struct sched_request *r = length_index_longest(&queue->packable, &room);
    while (r && !bin_fits(f, r))
        r = f->scans_left > 0 ? length_index_next(&queue->packable, r, &room) : NULL;
    return r;
}

// Returns the next request of the tenant queue, or NULL if none fits.
static struct sched_request *tenant_next(struct filling *f, const struct tenant_queue *queue)
{
    int blocks = 0;
    chain_follow(f, queue);
    struct sched_request *sharing = sharing_next(f, queue, 0, &blocks);
    struct request_need room = room_left(f, rows_max(f));
    if (sharing && sharing_pays(f, sharing, blocks, length_index_longest(&queue->packable, &room))) return sharing;
    struct sched_request *r = longest_long(f, queue);
    if (r) return r;
    int64_t rows = picked_count(f) ? f->rows_left : f->pass_rows;
    r = longest_cached(f, queue, rows);
    if (!r) r = longest_fitting(f, queue, rows);
    return r ? r : sharing;
}

static void fill_level(struct filling *f, int level)
{
    struct tenant_queue *aside = NULL;
    while (!bin_is_full(f)) {
        struct request_need room = room_left(f, f->node->prefixes ? INT_MAX : rows_max(f));
        struct tenant_queue *queue = tenant_queues_next(&f->set->tenants, level, &room);
        if (!queue) break;
        struct sched_request *r = tenant_next(f, queue);
        f->plan->scan_cost++;
        if (r) {
            bin_pick(f, r);
        } else {
            f->scans_left--;
            tenant_queue_set_aside(queue, &aside);
        }
    }
    tenant_queues_resume(aside);
}

// --- tenants that hold less than others (rule 4)

// Picks requests of the tenant that was served least, while it holds less of the worker groups than the tenant of the
// next overdue request.
static void fill_due_shares(struct filling *f)
{
    const struct request_need any = {INT_MAX, INT_MAX, INT_MAX};
    const double slot = sched_node_share(f->node, 0);
    while (!bin_is_full(f)) {
        struct request_need room = room_left(f, rows_max(f));
        const struct sched_request *overdue = due_index_next(&f->set->due_next, NULL, &any);
        const struct tenant_queue *other = overdue ? overdue->tenant_queue : NULL;
        struct tenant_queue *queue = other ? tenant_queues_next(&f->set->tenants, other->level, &room) : NULL;
        if (!queue || queue == other || other->slots == 0) return;
        if (!tenant_queue_holds_less(queue, (queue->n_picked + 1) * slot, other, 0)) return;
        struct sched_request *r = tenant_next(f, queue);
        if (!r) return;
        bin_pick(f, r);
        f->plan->overdue = true; // it precedes an overdue request, so the bin must be sent
    }
}

static void bin_fill(struct filling *f)
{
    if (f->set->role == NODE_WORKER) fill_due_shares(f);
    fill_overdue(f);
    for (int level = PRIORITY_LEVELS - 1; level >= 0 && !bin_is_full(f); level--)
        fill_level(f, level);
}

static struct filling filling_begin(const struct sched_view *view, const struct sched_node *node,
                                    struct waiting_set *set, struct bin_plan *plan)
{
    *plan = (struct bin_plan){.n = 0};
    set->odd_slot_picked = set->odd_slot;
    return (struct filling){.view = view,
                            .node = node,
                            .set = set,
                            .plan = plan,
                            .pass_rows = sched_node_pass_rows(node),
                            .takes_long = !node->account.long_prompts,
                            .rows_left = sched_node_bin_rows(node),
                            .bytes_left = BIN_BYTES_MAX,
                            .slots_left = node->limits.max_seqs - node->account.requests.count,
                            .blocks_left = node_blocks_for_others(view, node),
                            .scans_left = SCAN_MAX,
                            .cached_scans_left = CACHED_SCAN_MAX};
}

void plan_place(const struct sched_view *view, const struct sched_node *node, struct waiting_set *set,
                struct tenant_queue *queue, struct bin_plan *plan)
{
    struct filling f = filling_begin(view, node, set, plan);
    f.blocks_left = sched_node_blocks_left(node);
    struct sched_request *r = tenant_next(&f, queue);
    if (!r) return;
    bin_pick(&f, r);
    plan->requests = set->picked;
    plan->n = set->n_picked;
}

void plan_bin(const struct sched_view *view, const struct sched_node *node, struct waiting_set *set,
              struct bin_plan *plan)
{
    int64_t min_rows = node_min_bin_rows(view, node);
    struct filling f = filling_begin(view, node, set, plan);
    bool may_do = set->rows >= min_rows || set->overdue.count;
    if (may_do) bin_fill(&f);
    if (picked_count(&f) && (plan->overdue || plan->rows >= min_rows || f.slots_left == 0)) {
        plan->requests = set->picked;
        plan->n = set->n_picked;
        return;
    }
    waiting_set_roll_back(set);
    int64_t rows = may_do ? plan->rows : set->rows;
    plan->rows_missing = min_rows > rows ? min_rows - rows : 1;
}
