// SPDX-License-Identifier: Apache-2.0
#include "sim/oracle_waiting.h"

#include <math.h>

#include "router/sched/node_choice.h"
#include "sim/oracle_estimate.h"
#include "sim/oracle_view.h"

// --- indexes

static void check_tree(struct world *w, const struct waiting_set *set, const struct tenant_queue *queue,
                       const struct sched_request *r, int *n_p)
{
    if (!r || w->failed) return;
    const struct sched_request *lower = r->lower[BY_LENGTH], *higher = r->higher[BY_LENGTH];
    int blocks = r->need.blocks;
    if (lower && lower->subtree_min[BY_LENGTH].blocks < blocks) blocks = lower->subtree_min[BY_LENGTH].blocks;
    if (higher && higher->subtree_min[BY_LENGTH].blocks < blocks) blocks = higher->subtree_min[BY_LENGTH].blocks;
    HOLDS(r->packable && r->tenant_queue == queue && r->need.rows == sched_request_rows(r));
    int whole = set->role == NODE_WORKER ? sched_request_kv_blocks(r, PREFIX_BLOCK) : 0;
    int shareable = set->role == NODE_WORKER ? sched_request_shareable_blocks(r, r->n_prefix) : 0;
    HOLDS(r->need.blocks <= whole && r->need.blocks >= whole - shareable);
    HOLDS(r->subtree_min[BY_LENGTH].blocks == blocks);
    HOLDS(!lower || lower->need.rows <= r->need.rows);
    HOLDS(!higher || higher->need.rows >= r->need.rows);
    ++*n_p;
    check_tree(w, set, queue, lower, n_p);
    check_tree(w, set, queue, higher, n_p);
}

// Checks that the nearest request in a shared-prefix group is the request itself.
static void check_group(struct world *w, const struct waiting_set *set, const struct sched_request *r)
{
    struct prefix_walk walk;
    if (!r->packable || !prefix_group_pays(r->need.rows, r->n_prefix)) return;
    prefix_walk_start(&walk, &set->groups, r->tenant_queue, r->prefix, r->n_prefix);
    for (const struct sched_request *other; (other = prefix_walk_next(&walk)) != r && !w->failed;)
        HOLDS(other && walk.blocks == r->n_prefix && other->tenant_queue == r->tenant_queue && other->packable);
}

// Checks that a walk from the request's prefix finds every request of its tenant queue for which sharing pays.
static void check_walk(struct world *w, const struct waiting_set *set, const struct sched_request *r)
{
    const struct request_list *lists[] = {&set->queue, &set->overdue};
    struct prefix_walk walk;
    int found = 0, there = 0;
    if (!r->packable || !r->n_prefix) return;
    prefix_walk_start(&walk, &set->groups, r->tenant_queue, r->prefix, r->n_prefix);
    while (prefix_walk_next(&walk))
        found++;
    for (int k = 0; k < 2; k++) {
        for (const struct sched_request *s = lists[k]->first; s; s = s->next) {
            int common = prefix_chain_common(s->prefix, s->n_prefix, r->prefix, r->n_prefix);
            there +=
                s->packable && s->tenant_queue == r->tenant_queue && common && prefix_group_pays(s->need.rows, common);
        }
    }
    HOLDS(found == there || walk.scan_cost >= PREFIX_SCAN_MAX);
}

// Compares the prefix index over all nodes with the record of each node, for the request's prefix.
static void check_prefix_index(struct world *w, const struct core *c, enum node_role role,
                               const struct sched_request *r)
{
    enum { HITS = 32 };
    const struct prefix_index *index = c->view.prefixes[role];
    struct prefix_hit hits[HITS];
    int most = 0, held = 0, n_holding = 0, n = prefix_index_lookup(index, r->prefix, r->n_prefix, hits, HITS);
    for (const struct sched_node *node = c->view.nodes; node; node = node->next) {
        if (node->role != role || !node->prefixes) continue;
        int here = prefix_record_match(node->prefixes, r->prefix, r->n_prefix);
        int held_here = prefix_record_held(node->prefixes, r->prefix, r->n_prefix);
        most = here > most ? here : most;
        held = held_here > held ? held_here : held;
        n_holding += here > 0;
        for (int i = 0; i < n; i++)
            HOLDS(hits[i].node != node || hits[i].blocks == here);
    }
    HOLDS(prefix_index_most(index, r->prefix, r->n_prefix) == most);
    HOLDS(prefix_index_held(index, r->prefix, r->n_prefix) == held);
    HOLDS(n == n_holding && (n == 0 || hits[0].blocks == most));
    for (int i = 1; i < n; i++)
        HOLDS(hits[i].blocks <= hits[i - 1].blocks);
}

static void check_due_order(struct world *w, const struct waiting_set *set)
{
    const struct request_need all = {INT32_MAX, INT32_MAX, INT32_MAX};
    const struct sched_request *next = NULL;
    for (const struct sched_request *r = set->overdue.first; r; r = r->next) {
        next = due_index_next(&set->due_next, next, &all);
        HOLDS(next == r);
    }
    HOLDS(!due_index_next(&set->due_next, next, &all));
}

// Checks the work that is due between two times, in whole slots. Checks nothing if requests are due more than DUE_SLOTS
// slots apart: such slots share a place.
static void check_due_work(struct world *w, const struct waiting_set *set, int64_t from_us, int64_t to_us)
{
    int64_t slot_us = set->due_slot_us, first = from_us / slot_us, last = to_us / slot_us;
    double rows = 0, pairs = 0;
    for (const struct sched_request *r = set->queue.first; r; r = r->next) {
        int64_t slot = r->due_us / slot_us;
        if (slot < first || slot >= first + DUE_SLOTS) return;
        if (slot > last) continue;
        rows += sched_request_rows(r);
        pairs += cost_pairs(sched_request_rows(r), 0);
    }
    struct cost_work sum = waiting_set_due_between(set, from_us, to_us);
    HOLDS(sum.rows == rows && fabs(sum.pairs - pairs) <= 1e-6 * (pairs + 1));
}

static void check_tenants(struct world *w, const struct core *c, const struct waiting_set *set)
{
    const struct tenant_queues *tenants = &set->tenants;
    int queues = 0, packable = 0, refs = 0;
    for (size_t b = 0; b < tenants->n_buckets; b++) {
        for (const struct tenant_queue *queue = tenants->buckets[b]; queue; queue = queue->next, queues++) {
            int n = 0;
            check_tree(w, set, queue, queue->packable.root, &n);
            HOLDS(n == queue->packable.count && queue->refs > 0 && queue->served > -1e-6);
            HOLDS(queue->in_level == (n > 0));
            HOLDS(!n || !queue->lower || queue->lower->served <= queue->served);
            HOLDS(!n || !queue->higher || queue->higher->served >= queue->served);
            packable += n;
            refs += queue->refs;
        }
    }
    for (size_t b = 0; b < c->table.buckets; b++)
        for (const struct request *r = c->table.by_number[b]; r; r = r->links.number_next)
            refs -= r->sched.tenant_queue && r->sched.tenant_queue->owner == tenants;
    HOLDS(queues == tenants->n && packable == set->n_packable && refs == 0);
}

static void check_sums(struct world *w, const struct waiting_set *set, int64_t rows, int64_t overdue_rows)
{
    struct cost_work by_level = {0, 0}, by_time = {0, 0};
    for (int level = 0; level < PRIORITY_LEVELS; level++) {
        by_level.rows += set->level_work[level].rows;
        by_level.pairs += set->level_work[level].pairs;
    }
    for (int slot = 0; slot < DUE_SLOTS; slot++) {
        by_time.rows += set->due_work[slot].rows;
        by_time.pairs += set->due_work[slot].pairs;
    }
    HOLDS((int64_t)by_level.rows == rows && (int64_t)by_time.rows == rows);
    HOLDS((int64_t)by_level.pairs == (int64_t)by_time.pairs && by_time.pairs >= by_time.rows);
    HOLDS((int64_t)set->overdue_work.rows == overdue_rows);
}

static bool some_node_holds(const struct core *c, enum node_role role, const struct sched_request *r)
{
    for (const struct sched_node *node = c->view.nodes; node; node = node->next)
        if (node->role == role && sched_node_can_hold(node, r)) return true;
    return false;
}

// --- the set

void oracle_waiting(struct world *w, const struct core *c, const struct waiting_set *set, int *n_p)
{
    int n = 0;
    int64_t rows = 0, overdue_rows = 0;
    const struct request_list *lists[] = {&set->queue, &set->overdue};
    for (int k = 0; k < 2; k++) {
        for (const struct sched_request *s = lists[k]->first; s; s = s->next, n++) {
            const struct request *r = request_of(s);
            HOLDS(r->state == (set->role == NODE_WORKER ? REQUEST_READY : REQUEST_SCORING));
            HOLDS(!r->account.node && !r->account.bin && s->list == lists[k]);
            HOLDS(set->role == NODE_WORKER || sched_pool_can_hold(&c->view, NODE_SPECULATOR, s));
            HOLDS(s->overdue == (k == 1));
            HOLDS(!s->overdue || !s->prev || s->prev->due_us <= s->due_us);
            rows += sched_request_rows(s);
            if (s->overdue) overdue_rows += sched_request_rows(s);
            HOLDS(sched_pool_can_hold(&c->view, set->role, s) == some_node_holds(c, set->role, s));
            for (const struct sched_node *node = n % 4 ? NULL : c->view.nodes; node; node = node->next)
                oracle_view(w, node, s);
            check_group(w, set, s);
            check_prefix_index(w, c, set->role, s);
            if (n % 16 == 0) check_walk(w, set, s);
            if (n % 16 == 0) oracle_estimate(w, c, s);
        }
    }
    HOLDS(n == waiting_set_count(set) && rows == set->rows && set->n_picked == 0);
    HOLDS(w->scenario->options.policy != BIN_DATASET || set->n_packable == n);
    check_sums(w, set, rows - overdue_rows, overdue_rows);
    check_due_order(w, set);
    for (int k = 0; k < 4; k++)
        check_due_work(w, set, w->now_us, w->now_us + (set->due_slot_us * DUE_SLOTS >> 2 * k));
    check_tenants(w, c, set);
    *n_p += n;
}

// --- work conservation

static bool some_cache(const struct core *c)
{
    for (const struct sched_node *node = c->view.nodes; node; node = node->next)
        if (node->prefixes) return true;
    return false;
}

// Returns true if another node with room has more of the request's prefix: the request may wait for that node.
static bool waits_for_cache(const struct core *c, const struct sched_node *node, const struct sched_request *r)
{
    int rows = sched_request_rows_on(r, node);
    for (const struct sched_node *other = c->view.nodes; other; other = other->next)
        if (other->role == node->role && node_has_room(&c->view, other, r) && sched_request_rows_on(r, other) < rows)
            return true;
    return false;
}

bool oracle_node_is_passed_over(const struct core *c, const struct sched_node *node)
{
    const struct waiting_set *set = &c->waiting[node->role];
    const struct request_list *lists[] = {&set->overdue, &set->queue};
    if (c->view.reservation.node == node || node->account.requests.count || node->account.long_prompts) return false;
    for (int k = 0; k < 2; k++)
        for (const struct sched_request *r = lists[k]->first; r; r = r->next)
            if (r->packable && !r->runs_alone && node_has_room(&c->view, node, r) && !waits_for_cache(c, node, r))
                return true;
    return false;
}

void oracle_waiting_with_room(struct world *w, const struct core *c)
{
    bool caches = some_cache(c);
    for (const struct sched_node *node = c->view.nodes; node; node = node->next) {
        const struct waiting_set *set = &c->waiting[node->role];
        if (c->view.reservation.node == node || node->draining || c->in_round[node->role]) continue;
        if (node->account.bins >= c->options.bins_ahead + node->limits.more_stages ||
            node->account.requests.count >= node->limits.max_seqs)
            continue;
        const struct request_list *lists[] = {&set->overdue, &set->queue};
        for (int k = 0; k < (node->account.bins || caches ? 1 : 2); k++) {
            for (const struct sched_request *r = lists[k]->first; r; r = r->next) {
                bool second_long = node->account.long_prompts && r->need.rows > sched_node_pass_rows(node);
                HOLDS(!r->packable || second_long || r->runs_alone || !node_has_room(&c->view, node, r));
            }
        }
    }
}
