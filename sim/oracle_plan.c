// SPDX-License-Identifier: Apache-2.0
#include "sim/oracle_plan.h"

#include <limits.h>
#include <stdlib.h>

#include "lib/base/mem.h"
#include "router/sched/bin_planner.h"
#include "router/sched/node_choice.h"
#include "router/sched/node_index.h"
#include "router/sched/node_time.h"
#include "router/sched/prefix_chain.h"
#include "router/sched/prefix_tails.h"

// Limits of what is checked: a plan, the queue and the pool may not be larger. The router itself examines a limited
// number of requests and nodes per plan.
enum { SCANS_MAX = 500, NODES_MAX = 16, CACHED_MAX = 32 };

struct queue_model {
    const struct tenant_queue *queue;
    double served;
    const struct sched_request *last; // the last one in the bin
    bool is_aside;
};

struct model {
    const struct sched_view *view;
    const struct sched_node *node;
    const struct waiting_set *set;
    struct sched_request **waiting; // [n_waiting] packable requests; NULL: already in the bin
    int n_waiting;
    struct queue_model *queues; // [n_queues]
    int n_queues;
    struct sched_request **bin; // [n_bin]
    int n_bin;
    int64_t pass_rows, rows_left, blocks_left, bytes_left, rows, whole_rows;
    int slots_left, cached_left;
    bool takes_long, is_closed, has_overdue, waits_elsewhere;
    enum odd_slot odd_slot;
    const uint64_t *chain; // the chain that requests should share
    int n_chain;
    bool chain_is_here;
};

static bool watches;
static const char *problem;

void oracle_plan_watch(bool watch)
{
    watches = watch;
}

const char *oracle_plan_problem(void)
{
    const char *last = problem;
    problem = NULL;
    return last;
}

// --- what fits

static int shared_with_chain(const struct model *m, const struct sched_request *r)
{
    return prefix_chain_common(r->prefix, r->n_prefix, m->chain, m->n_chain);
}

static int64_t rows_of(const struct model *m, const struct sched_request *r)
{
    int blocks = sched_request_cached_blocks(r, m->node);
    if (m->n_bin && shared_with_chain(m, r) > blocks) blocks = shared_with_chain(m, r);
    return sched_request_rows_after(r, blocks);
}

static int64_t blocks_of(const struct model *m, const struct sched_request *r)
{
    int alone = sched_node_blocks_needed(m->node, r);
    int together = m->chain_is_here ? sched_node_blocks_after(m->node, r, shared_with_chain(m, r)) : alone;
    return together < alone ? together : alone;
}

static int64_t rows_taken(const struct model *m, int64_t rows)
{
    return rows <= m->pass_rows ? rows : m->pass_rows / 2;
}

static double end_on(const struct sched_node *node, const struct sched_request *r, int64_t rows)
{
    if (node->place.index->by_time) return node_time_finish_us(node, rows, sched_request_rows(r) - rows);
    return (double)(node->account.bin_tokens + rows);
}

// Returns true if another node with room has more of the prompt in its cache and would finish it sooner.
static bool is_sooner_elsewhere(const struct model *m, const struct sched_request *r, int64_t rows)
{
    for (const struct sched_node *other = m->view->nodes; other && !r->overdue && r->n_prefix; other = other->next) {
        if (other == m->node || other->role != m->node->role || !other->prefixes) continue;
        int64_t there = sched_request_rows_on(r, other);
        if (there < rows && end_on(other, r, there) < end_on(m->node, r, rows) && node_has_room(m->view, other, r))
            return true;
    }
    return false;
}

static bool fits(struct model *m, const struct sched_request *r)
{
    int64_t rows = rows_of(m, r);
    if (rows > m->pass_rows && !m->takes_long) return false;
    if (m->n_bin && (rows_taken(m, rows) > m->rows_left || sched_request_message_bytes(r) > m->bytes_left))
        return false;
    if (r->runs_alone && (m->n_bin || m->node->account.requests.count)) return false;
    if (!sched_node_can_hold(m->node, r) || blocks_of(m, r) > m->blocks_left) return false;
    bool elsewhere = is_sooner_elsewhere(m, r, rows);
    m->waits_elsewhere |= elsewhere;
    return !elsewhere;
}

static bool is_full(const struct model *m)
{
    return m->is_closed || m->rows_left <= 0 || !m->slots_left;
}

// Returns true if the request's needs are within what is left, apart from the node's cache.
static bool is_within(const struct model *m, const struct request_need *need, int64_t rows)
{
    return need->rows <= rows && need->blocks <= sched_index_blocks(m->node, m->blocks_left) &&
           need->context <= m->node->limits.context_tokens;
}

static struct queue_model *queue_of(struct model *m, const struct sched_request *r)
{
    int i = 0;
    while (m->queues[i].queue != r->tenant_queue)
        i++;
    return &m->queues[i];
}

static void pick(struct model *m, struct sched_request *r)
{
    struct queue_model *queue = queue_of(m, r);
    int64_t rows = rows_of(m, r);
    m->rows += rows;
    m->whole_rows += sched_request_rows(r);
    m->has_overdue |= r->overdue;
    m->rows_left -= rows_taken(m, rows);
    m->blocks_left -= blocks_of(m, r);
    m->bytes_left -= sched_request_message_bytes(r);
    m->takes_long &= rows <= m->pass_rows;
    m->slots_left--;
    m->is_closed = r->runs_alone;
    m->bin[m->n_bin++] = r;
    for (int i = 0; i < m->n_waiting; i++)
        if (m->waiting[i] == r) m->waiting[i] = NULL;
    queue->last = r;
    queue->served += (sched_request_rows(r) - r->free_rows) / queue->queue->weight;
}

// --- shared prefixes

// Sets the prefix chain to follow. It is the chain of the queue's last request in this bin, or else in an earlier bin
// of the node. Failing both, it is the chain of this bin's last request.
static void follow(struct model *m, const struct queue_model *queue)
{
    if (!m->node->prefixes) return;
    const struct sched_request *last = queue->last;
    const struct prefix_tail *tail = last ? NULL : prefix_tails_find(m->node->tails, queue->queue);
    if (!last && !tail && m->n_bin) last = m->bin[m->n_bin - 1];
    m->chain_is_here = last;
    m->chain = last ? last->prefix : tail ? tail->chain : NULL;
    m->n_chain = last ? last->n_prefix : tail ? tail->n : 0;
}

// Orders chains like words. Negative: a is first.
static int chain_compare(const uint64_t *a, int n, const uint64_t *b, int m)
{
    int common = prefix_chain_common(a, n, b, m);
    if (common < n && common < m) return a[common] < b[common] ? -1 : 1;
    return (n > m) - (n < m);
}

// Returns true if `a` is visited before `b`. The request that shares more blocks with the chain is first, then the
// request that sorts after the chain, then the request nearer to the chain.
static bool is_nearer(const struct model *m, const struct sched_request *a, const struct sched_request *b)
{
    int shared_a = shared_with_chain(m, a), shared_b = shared_with_chain(m, b);
    bool follows_a = chain_compare(a->prefix, a->n_prefix, m->chain, m->n_chain) >= 0;
    bool follows_b = chain_compare(b->prefix, b->n_prefix, m->chain, m->n_chain) >= 0;
    if (shared_a != shared_b) return shared_a > shared_b;
    if (follows_a != follows_b) return follows_a;
    int order = chain_compare(a->prefix, a->n_prefix, b->prefix, b->n_prefix);
    if (!order) order = a->number < b->number ? -1 : 1;
    return follows_a ? order < 0 : order > 0;
}

static bool pays(int64_t rows, int blocks)
{
    return rows <= (int64_t)PREFIX_PAYS_ROWS * PREFIX_BLOCK * blocks;
}

// Returns the request nearest to the chain for which sharing pays, after `after` (NULL: from the start).
static struct sched_request *next_sharing(const struct model *m, const struct queue_model *queue,
                                          const struct sched_request *after)
{
    struct sched_request *next = NULL;
    for (int i = 0; i < m->n_waiting; i++) {
        struct sched_request *r = m->waiting[i];
        if (!r || r->tenant_queue != queue->queue || !r->n_prefix) continue;
        int shared = shared_with_chain(m, r);
        if (!shared || !pays(r->need.rows, shared) || r == after || (after && !is_nearer(m, after, r))) continue;
        if (!next || is_nearer(m, r, next)) next = r;
    }
    return next;
}

// Returns the nearest request that fits. `until_us`: only overdue requests that are due by this time; 0: all.
static struct sched_request *sharing(struct model *m, const struct queue_model *queue, int64_t until_us)
{
    struct sched_request *r = NULL;
    do
        r = next_sharing(m, queue, r);
    while (r && ((until_us && (!r->overdue || r->due_us > until_us)) || !fits(m, r)));
    return r;
}

// Returns true if `r` saves clearly more than `other` would; `other` may be NULL.
static bool saves(const struct model *m, const struct sched_request *r, const struct sched_request *other)
{
    int blocks = shared_with_chain(m, r) - (other ? shared_with_chain(m, other) : 0);
    return pays(sched_request_rows(r), blocks);
}

// --- tenant queues

// Returns the queue of a priority level that was served least; among equals, the oldest queue. Skips a queue if the
// fewest rows, the fewest blocks and the shortest context of its requests do not all fit what is left.
static struct queue_model *next_queue(struct model *m, int level, int64_t rows)
{
    struct queue_model *next = NULL;
    for (int i = 0; i < m->n_queues; i++) {
        struct queue_model *queue = &m->queues[i];
        struct request_need least = {INT_MAX, INT_MAX, INT_MAX};
        bool waits = false;
        if (queue->queue->level != level || queue->is_aside) continue;
        for (int k = 0; k < m->n_waiting; k++) {
            if (!m->waiting[k] || m->waiting[k]->tenant_queue != queue->queue) continue;
            const struct request_need *need = &m->waiting[k]->need;
            least.rows = need->rows < least.rows ? need->rows : least.rows;
            least.blocks = need->blocks < least.blocks ? need->blocks : least.blocks;
            least.context = need->context < least.context ? need->context : least.context;
            waits = true;
        }
        if (!waits || !is_within(m, &least, rows)) continue;
        bool is_first = !next || queue->served < next->served ||
                        (queue->served <= next->served && queue->queue->number < next->queue->number);
        if (is_first) next = queue;
    }
    return next;
}

// --- overdue requests

static struct sched_request *next_overdue(const struct model *m, const struct sched_request *after)
{
    struct sched_request *next = NULL;
    int64_t rows = m->takes_long || m->node->prefixes ? INT_MAX : m->pass_rows;
    for (int i = 0; i < m->n_waiting; i++) {
        struct sched_request *r = m->waiting[i];
        if (!r || !r->overdue || !is_within(m, &r->need, rows)) continue;
        bool follows = !after || r->due_us > after->due_us || (r->due_us == after->due_us && r->number > after->number);
        bool is_first = !next || r->due_us < next->due_us || (r->due_us == next->due_us && r->number < next->number);
        if (follows && is_first) next = r;
    }
    return next;
}

// Returns an overdue request of the same queue that shares more with the bin and is due at most max_wait after `r`, or
// `r` itself. A request with a deadline is not replaced.
static struct sched_request *instead_of(struct model *m, struct sched_request *r)
{
    if (r->spec->ttft_deadline_us != INT64_MAX || r->due_us == 0) return r;
    struct sched_request *other = sharing(m, queue_of(m, r), r->due_us + m->view->options.max_wait_us);
    return other && saves(m, other, r) ? other : r;
}

static int level_of(const struct sched_request *r)
{
    return sched_priority_level(r->spec->priority);
}

static int overdue_slots(struct model *m, const struct sched_request *first)
{
    int half = m->slots_left / 2;
    bool is_higher = false;
    for (int level = level_of(first) + 1; level < PRIORITY_LEVELS; level++)
        is_higher |= next_queue(m, level, INT_MAX) != NULL;
    if (m->slots_left % 2 == 0) return half;
    if (m->set->odd_slot == ODD_TO_HIGHER_PRIORITY) {
        m->odd_slot = ODD_TO_OVERDUE;
    } else if (is_higher) {
        m->odd_slot = ODD_TO_HIGHER_PRIORITY;
    } else {
        m->odd_slot = m->set->odd_slot == ODD_TO_OVERDUE ? ODD_TO_TENANT : ODD_TO_OVERDUE;
    }
    return m->odd_slot == ODD_TO_OVERDUE ? half + 1 : half;
}

static void fill_overdue(struct model *m)
{
    struct sched_request *r = next_overdue(m, NULL);
    if (!r) return;
    int64_t overdue_rows = 0, rows_end = m->rows_left - m->rows_left / 2;
    for (const struct sched_request *o = m->set->overdue.first; o; o = o->next)
        overdue_rows += sched_request_rows(o);
    bool all = overdue_rows <= m->rows_left && m->set->overdue.count <= m->slots_left;
    int slots_end = all ? 0 : m->slots_left - overdue_slots(m, r);
    for (; r && m->rows_left > (all ? 0 : rows_end) && m->slots_left > slots_end && !is_full(m);
         r = next_overdue(m, r)) {
        follow(m, queue_of(m, r));
        struct sched_request *next = all ? r : instead_of(m, r);
        if (next != r || fits(m, r)) pick(m, next);
    }
}

// --- by priority and tenant

// Returns the longest request of the queue with at most `rows` rows; among equals, the oldest. Starts after the request
// `after` (NULL: from the first).
static struct sched_request *next_longest(const struct model *m, const struct queue_model *queue, int64_t rows,
                                          const struct sched_request *after)
{
    struct sched_request *next = NULL;
    for (int i = 0; i < m->n_waiting; i++) {
        struct sched_request *r = m->waiting[i];
        if (!r || r->tenant_queue != queue->queue || !is_within(m, &r->need, rows)) continue;
        if (after &&
            (r->need.rows > after->need.rows || (r->need.rows == after->need.rows && r->number <= after->number)))
            continue;
        if (!next || r->need.rows > next->need.rows || (r->need.rows == next->need.rows && r->number < next->number))
            next = r;
    }
    return next;
}

static int64_t rows_most(const struct model *m)
{
    if (m->takes_long && (!m->n_bin || m->pass_rows / 2 <= m->rows_left)) return INT_MAX;
    return m->n_bin ? m->rows_left : m->pass_rows;
}

// Returns a prompt longer than a pass, or else a prompt that fits only thanks to the node's cache, or else the longest
// prompt that fits.
static struct sched_request *longest(struct model *m, const struct queue_model *queue)
{
    int64_t rows = m->n_bin ? m->rows_left : m->pass_rows;
    struct sched_request *r = next_longest(m, queue, rows_most(m), NULL);
    for (; r && r->need.rows > m->pass_rows; r = next_longest(m, queue, rows_most(m), r))
        if (fits(m, r)) return r;
    r = m->node->prefixes ? next_longest(m, queue, INT_MAX, NULL) : NULL;
    for (; r && r->need.rows > rows && m->cached_left; r = next_longest(m, queue, INT_MAX, r), m->cached_left--)
        if (fits(m, r)) return r;
    for (r = next_longest(m, queue, rows, NULL); r && !fits(m, r);)
        r = next_longest(m, queue, rows, r);
    return r;
}

static struct sched_request *next_of(struct model *m, const struct queue_model *queue)
{
    follow(m, queue);
    struct sched_request *near = sharing(m, queue, 0);
    if (near && saves(m, near, next_longest(m, queue, rows_most(m), NULL))) return near;
    struct sched_request *r = longest(m, queue);
    return r ? r : near;
}

static void fill_level(struct model *m, int level)
{
    while (!is_full(m)) {
        int64_t rows = m->node->prefixes ? INT_MAX : rows_most(m);
        struct queue_model *queue = next_queue(m, level, rows);
        if (!queue) break;
        struct sched_request *r = next_of(m, queue);
        if (r) pick(m, r);
        queue->is_aside = !r;
    }
}

// --- tenants that hold less

static double held_after(const struct model *m, const struct tenant_queue *queue, int more)
{
    return (queue->held + more / (double)m->node->limits.max_seqs) / queue->weight;
}

// Picks requests of the tenant of the first overdue request's priority that was served least, while it would hold no
// more than the tenant of that request.
static void fill_due_shares(struct model *m)
{
    while (m->node->role == NODE_WORKER && !is_full(m)) {
        const struct sched_request *first = NULL;
        for (int i = 0; i < m->n_waiting; i++) {
            const struct sched_request *r = m->waiting[i];
            if (!r || !r->overdue) continue;
            if (!first || r->due_us < first->due_us || (r->due_us == first->due_us && r->number < first->number))
                first = r;
        }
        struct queue_model *queue = first ? next_queue(m, level_of(first), rows_most(m)) : NULL;
        if (!queue || queue->queue == first->tenant_queue || !first->tenant_queue->slots) return;
        int n = 1;
        for (int i = 0; i < m->n_bin; i++)
            n += m->bin[i]->tenant_queue == queue->queue;
        if (held_after(m, queue->queue, n) > held_after(m, first->tenant_queue, 0) + 1e-9) return;
        struct sched_request *r = next_of(m, queue);
        if (!r) return;
        pick(m, r);
        m->has_overdue = true;
    }
}

// --- a plan

static void read_set(struct model *m)
{
    const struct request_list *lists[] = {&m->set->overdue, &m->set->queue};
    size_t n = (size_t)waiting_set_count(m->set) + 1;
    m->waiting = mem_alloc_array(n, sizeof *m->waiting);
    m->bin = mem_alloc_array(n, sizeof *m->bin);
    m->queues = mem_alloc_array(n, sizeof *m->queues);
    for (int k = 0; k < 2; k++) {
        for (struct sched_request *r = lists[k]->first; r; r = r->next) {
            if (!r->packable) continue;
            m->waiting[m->n_waiting++] = r;
            int i = 0;
            while (i < m->n_queues && m->queues[i].queue != r->tenant_queue)
                i++;
            if (i < m->n_queues) continue;
            m->queues[m->n_queues++] =
                (struct queue_model){.queue = r->tenant_queue, .served = r->tenant_queue->served};
        }
    }
}

static void model_begin(struct model *m)
{
    const struct sched_node *node = m->node;
    read_set(m);
    m->pass_rows = sched_node_pass_rows(node);
    m->takes_long = node->account.long_prompts == 0;
    m->rows_left = sched_node_bin_rows(node);
    m->bytes_left = INT64_C(60) * 1024 * 1024;
    m->slots_left = node->limits.max_seqs - node->account.requests.count;
    m->blocks_left = node_blocks_for_others(m->view, node);
    m->cached_left = CACHED_MAX;
    m->odd_slot = m->set->odd_slot;
}

static void plan_model(struct model *m)
{
    model_begin(m);
    if (m->set->rows < node_min_bin_rows(m->view, m->node) && !m->set->overdue.count) return;
    fill_due_shares(m);
    fill_overdue(m);
    for (int level = PRIORITY_LEVELS - 1; level >= 0 && !is_full(m); level--)
        fill_level(m, level);
}

// Plans a bin with one request of the queue, without regard to a reservation.
static void place_model(struct model *m, const struct tenant_queue *queue)
{
    model_begin(m);
    m->blocks_left = sched_node_blocks_left(m->node);
    for (int i = 0; i < m->n_queues; i++) {
        struct sched_request *r = m->queues[i].queue == queue ? next_of(m, &m->queues[i]) : NULL;
        if (r) pick(m, r);
    }
}

static const char *compare_requests(const struct model *m, const struct bin_plan *plan)
{
    for (int i = 0; i < plan->n; i++)
        if (plan->requests[i] != m->bin[i]) return "the requests in a bin do not follow from the rules of admission";
    bool same = plan->rows == m->rows && plan->uncached_rows == m->whole_rows && plan->overdue == m->has_overdue &&
                m->set->odd_slot_picked == m->odd_slot;
    return same ? NULL : "the rows or the odd slot of a bin do not follow from its requests";
}

static const char *compare(const struct model *m, const struct bin_plan *plan)
{
    int64_t least = node_min_bin_rows(m->view, m->node);
    bool is_sent = m->n_bin && (m->has_overdue || m->rows >= least || !m->slots_left);
    int64_t waits = m->set->rows < least && !m->set->overdue.count ? m->set->rows : m->rows;
    if (plan->elsewhere != m->waits_elsewhere)
        return "the plan is wrong about a request that waits for a node with its prefix";
    if (plan->n != (is_sent ? m->n_bin : 0))
        return "the number of requests in a bin does not follow from the rules of admission";
    if (!plan->n)
        return plan->rows_missing == (least > waits ? least - waits : 1) ? NULL
                                                                         : "the rows missing for a bin are wrong";
    return compare_requests(m, plan);
}

static bool is_watched(const struct sched_view *view, const struct sched_node *node, const struct waiting_set *set)
{
    bool is_small = waiting_set_count(set) <= SCANS_MAX && view->pools[node->role].n_nodes <= NODES_MAX;
    return watches && is_small && !problem;
}

static void model_end(struct model *m)
{
    free(m->waiting);
    free(m->bin);
    free(m->queues);
}

void __real_plan_bin(const struct sched_view *view, const struct sched_node *node, struct waiting_set *set,
                     struct bin_plan *plan);
void __wrap_plan_bin(const struct sched_view *view, const struct sched_node *node, struct waiting_set *set,
                     struct bin_plan *plan);

void __wrap_plan_bin(const struct sched_view *view, const struct sched_node *node, struct waiting_set *set,
                     struct bin_plan *plan)
{
    struct model m = {.view = view, .node = node, .set = set};
    bool watched = is_watched(view, node, set);
    if (watched) plan_model(&m);
    __real_plan_bin(view, node, set, plan);
    if (watched && plan->scan_cost < SCANS_MAX) problem = compare(&m, plan);
    model_end(&m);
}

void __real_plan_place(const struct sched_view *view, const struct sched_node *node, struct waiting_set *set,
                       struct tenant_queue *queue, struct bin_plan *plan);
void __wrap_plan_place(const struct sched_view *view, const struct sched_node *node, struct waiting_set *set,
                       struct tenant_queue *queue, struct bin_plan *plan);

void __wrap_plan_place(const struct sched_view *view, const struct sched_node *node, struct waiting_set *set,
                       struct tenant_queue *queue, struct bin_plan *plan)
{
    struct model m = {.view = view, .node = node, .set = set};
    bool watched = is_watched(view, node, set);
    if (watched) place_model(&m, queue);
    __real_plan_place(view, node, set, queue, plan);
    if (watched && plan->n != m.n_bin)
        problem = "the request in the place of preempted ones does not follow from the rules";
    if (watched && !problem) problem = compare_requests(&m, plan);
    model_end(&m);
}
