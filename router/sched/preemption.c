// SPDX-License-Identifier: Apache-2.0
#include "router/sched/preemption.h"

#include <limits.h>
#include <string.h>

// Limits of one search: tenant queues of a priority, requests of a queue for each node, and running requests examined.
enum { QUEUES_MAX = 8, REQUESTS_MAX = 4, SCAN_MAX = 8192 };

// --- what is allowed

static int class_of(const struct tenant_queue *queue)
{
    int priority = queue->level - PRIORITY_MAX;
    return (priority > 0) - (priority < 0);
}

static int tokens_since_placed(const struct sched_request *running)
{
    return running->usage->completion_tokens - running->placed_tokens;
}

// Returns true unless the running request waited until it was overdue and has few new tokens since then. A higher class
// would otherwise delay its first token a second time.
static bool has_had_turn(const struct sched_request *running)
{
    return !running->was_overdue || tokens_since_placed(running) >= PREEMPT_TOKENS;
}

// Returns true if a request of `queue` that takes the share `more` of a group may take the place of `running`, which is
// on a worker group. Requests of the same tenant queue that leave as well take the share `less`.
static bool is_fair(const struct tenant_queue *queue, double more, const struct sched_request *running, double less)
{
    const struct tenant_queue *other = running->tenant_queue;
    if (class_of(queue) > class_of(other) && has_had_turn(running)) return true;
    if (queue->level < other->level || strcmp(queue->tenant, other->tenant) == 0) return false;
    bool holds_less = tenant_queue_holds_less(queue, more, other, less + running->share);
    if (queue->slots == 0 && holds_less) return true;
    if (queue->level == other->level && queue->served > other->served) return false;
    return holds_less || (queue->slots == 0 && tokens_since_placed(running) >= PREEMPT_TOKENS);
}

// Returns true if the running request has computed enough new tokens since its last preemption.
static bool is_due(const struct sched_request *running)
{
    enum { DOUBLINGS_MAX = 20, ROWS_PER_TOKEN = 16 };
    int n = running->usage->preemptions;
    if (running->runs_alone || !running->tenant_queue) return false; // a shadow has no tenant, and leaves by itself
    if (n == 0) return true;
    int64_t tokens = (int64_t)PREEMPT_TOKENS << (n <= DOUBLINGS_MAX ? n - 1 : DOUBLINGS_MAX);
    int64_t of_rows = sched_request_rows(running) / ROWS_PER_TOKEN;
    return tokens_since_placed(running) >= (tokens > of_rows ? tokens : of_rows);
}

// Returns true if the reservation is for a request of a tenant that holds more, after `queue` gets the share `more`.
static bool overrules(const struct reservation *reservation, const struct tenant_queue *queue, double more)
{
    const struct tenant_queue *other = reservation->request->tenant_queue;
    return other != queue && other->level <= queue->level && tenant_queue_holds_less(queue, more, other, 0);
}

// Returns the smallest share of a worker group that a request takes.
static double least_share(const struct sched_view *view)
{
    double least = 1;
    for (const struct sched_node *node = view->nodes; node; node = node->next)
        if (node->role == NODE_WORKER && sched_node_share(node, 0) < least) least = sched_node_share(node, 0);
    return least;
}

// Returns true if is_fair() may hold for some running request of `other`. A search is in vain otherwise.
static bool may_be_fair(const struct tenant_queue *queue, double least, const struct tenant_queue *other)
{
    if (class_of(queue) > class_of(other)) return true;
    if (queue == other || queue->level < other->level) return false;
    bool holds_less = tenant_queue_holds_less(queue, least, other, 0);
    bool is_next = queue->level > other->level || queue->served <= other->served;
    return queue->slots == 0 ? holds_less || is_next : holds_less && is_next;
}

// Returns true if a search for the queue may find something: a request to preempt, or a reservation to overrule.
static bool may_preempt(const struct sched_view *view, const struct tenant_queue *queue, double least,
                        struct preemption *preemption)
{
    if (view->reservation.node && overrules(&view->reservation, queue, least)) return true;
    for (const struct tenant_queue *other = queue->owner->holders; other; other = other->holder_next) {
        preemption->scan_cost++;
        preemption->holders_scanned++;
        if (may_be_fair(queue, least, other)) return true;
    }
    return false;
}

// Returns true if a search for a place has examined enough requests. Queues that find no place do not use up what
// others may examine.
static bool has_searched(const struct preemption *preemption)
{
    return preemption->scan_cost - preemption->holders_scanned >= SCAN_MAX;
}

// --- the requests that leave a node

// A search on one node.
struct search {
    const struct sched_view *view;
    const struct sched_node *node;
    struct tenant_queue *queue;
    struct preemption *found; // for this node
    int64_t rows;             // rows to compute again
};

static int64_t blocks_freed(const struct sched_node *node, const struct sched_request *r)
{
    int shared = sched_node_shares_blocks(node) ? prefix_record_held_alone(node->prefixes, r->run) : 0;
    return r->own_blocks + shared;
}

static bool leaves(const struct preemption *found, const struct sched_request *r)
{
    for (int i = 0; i < found->n_leaving; i++)
        if (found->leaving[i] == r) return true;
    return false;
}

// Returns the share of a group that requests of the queue give up.
static double share_leaving(const struct preemption *found, const struct tenant_queue *queue)
{
    double share = 0;
    for (int i = 0; i < found->n_leaving; i++)
        share += found->leaving[i]->tenant_queue == queue ? found->leaving[i]->share : 0;
    return share;
}

// Returns true if `a` should leave before `b`: the lower priority, then the tenant that holds more, then the request
// with fewer rows to compute again, then the younger request.
static bool leaves_before(const struct preemption *found, const struct sched_request *a, const struct sched_request *b)
{
    const struct tenant_queue *of_a = a->tenant_queue, *of_b = b->tenant_queue;
    if (of_a->level != of_b->level) return of_a->level < of_b->level;
    double held_a = (of_a->held - share_leaving(found, of_a)) / of_a->weight;
    double held_b = (of_b->held - share_leaving(found, of_b)) / of_b->weight;
    if (of_a != of_b && (held_a < held_b || held_a > held_b)) return held_a > held_b;
    int rows_a = sched_request_rows(a), rows_b = sched_request_rows(b);
    return rows_a != rows_b ? rows_a < rows_b : a->number > b->number;
}

// Returns the next request that may leave the node for a request with the share `more`, or NULL. Prefers a request that
// frees the missing blocks alone, else the request that frees most.
static struct sched_request *next_leaving(const struct search *s, double more, int64_t missing)
{
    struct sched_request *next = NULL;
    int64_t most = -1;
    for (struct sched_request *r = s->node->account.requests.first; r; r = r->next) {
        s->found->scan_cost++;
        if (leaves(s->found, r) || !is_due(r)) continue;
        if (!is_fair(s->queue, more, r, share_leaving(s->found, r->tenant_queue))) continue;
        int64_t freed = blocks_freed(s->node, r);
        if (freed > missing) freed = missing;
        if (freed < most || (freed == most && !leaves_before(s->found, r, next))) continue;
        most = freed;
        next = r;
    }
    return next;
}

// Returns true if the node has a place for the request but is reserved for a request of a tenant that holds more.
static bool only_reserved(const struct search *s, double more)
{
    return s->view->reservation.node == s->node && overrules(&s->view->reservation, s->queue, more);
}

// Chooses the requests that leave the node for `r`. Returns false if no allowed choice makes room.
static bool make_room(struct search *s, const struct sched_request *r)
{
    const struct sched_node *node = s->node;
    int needed = sched_node_blocks_needed(node, r), slots = node->limits.max_seqs - node->account.requests.count;
    int64_t blocks = sched_node_blocks_left(node);
    double more = sched_node_share(node, sched_request_kv_blocks(r, node->limits.block_tokens));
    s->found->n_leaving = 0;
    s->rows = 0;
    while (slots < 1 || blocks < needed) {
        int64_t missing = needed > blocks ? needed - blocks : 0;
        bool goes_on = s->found->n_leaving < PREEMPT_MAX && !has_searched(s->found);
        struct sched_request *next = goes_on ? next_leaving(s, more, missing) : NULL;
        if (!next) return false;
        s->found->leaving[s->found->n_leaving++] = next;
        s->rows += sched_request_rows(next);
        slots++;
        blocks += blocks_freed(node, next);
    }
    return s->found->n_leaving || only_reserved(s, more);
}

static bool may_ask(const struct sched_view *view, const struct sched_node *node)
{
    return node->role == NODE_WORKER && !node->draining && node->account.running_alone == 0 &&
           node->account.bins < sched_node_bins_ahead(view, node);
}

// Tries the longest requests of the queue that the empty node could compute.
static bool search_node(struct search *s)
{
    const struct sched_node *node = s->node;
    int64_t blocks = sched_index_blocks(node, node->limits.kv_blocks);
    const struct request_need room = {
        .rows = node->account.long_prompts ? (int)sched_node_pass_rows(node) : INT_MAX,
        .blocks = (int)(blocks < INT_MAX ? blocks : INT_MAX),
        .context = node->limits.context_tokens,
    };
    struct sched_request *r = length_index_longest(&s->queue->packable, &room);
    for (int i = 0; r && i < REQUESTS_MAX; i++) {
        if (!r->runs_alone && sched_node_can_hold(node, r) && make_room(s, r)) return true;
        r = length_index_next(&s->queue->packable, r, &room);
    }
    return false;
}

// Chooses the node with the fewest rows to compute again.
static void search_nodes(const struct sched_view *view, struct tenant_queue *queue, struct preemption *best)
{
    struct preemption found = {.queue = queue, .scan_cost = best->scan_cost, .holders_scanned = best->holders_scanned};
    int64_t rows = INT64_MAX;
    for (const struct sched_node *node = view->nodes; node && !has_searched(&found); node = node->next) {
        struct search s = {.view = view, .node = node, .queue = queue, .found = &found};
        if (!may_ask(view, node) || !search_node(&s) || s.rows >= rows) continue;
        found.node = node;
        rows = s.rows;
        *best = found;
    }
    best->scan_cost = found.scan_cost;
}

void preemption_choose(const struct sched_view *view, struct waiting_set *set, struct preemption *preemption)
{
    const struct request_need any = {INT_MAX, INT_MAX, INT_MAX};
    *preemption = (struct preemption){.node = NULL};
    if (set->tenants.n < 2 || set->policy != BIN_DATASET) return;
    const double least = least_share(view);
    for (int level = PRIORITY_LEVELS - 1; level >= 0 && !preemption->node; level--) {
        struct tenant_queue *aside = NULL, *queue;
        for (int i = 0; i < QUEUES_MAX && !preemption->node; i++) {
            if (!(queue = tenant_queues_next(&set->tenants, level, &any))) break;
            preemption->scan_cost++;
            if (may_preempt(view, queue, least, preemption)) search_nodes(view, queue, preemption);
            tenant_queue_set_aside(queue, &aside);
        }
        tenant_queues_resume(aside);
    }
}
