// SPDX-License-Identifier: Apache-2.0
#include "router/sched/waiting_set.h"

#include <assert.h>
#include <stdlib.h>

#include "lib/base/mem.h"

enum { MEAN_MEMORY = 256 }; // mean_rows forgets a request after about this many later requests

void waiting_set_init(struct waiting_set *set, enum node_role role, const struct sched_options *options,
                      const struct prefix_index *prefixes, const struct tenant_weight *weights, int n_weights)
{
    set->role = role;
    set->policy = options->policy;
    set->hash_key = options->hash_key;
    set->prefixes = prefixes;
    set->batch_requests = options->policy == BIN_NONE ? 1 : options->batch_requests;
    set->due_slot_us = options->max_wait_us / (DUE_SLOTS - 2) + 1;
    tenant_queues_init(&set->tenants, &options->hash_key, weights, n_weights);
}

void waiting_set_fini(struct waiting_set *set)
{
    assert(waiting_set_count(set) == 0);
    tenant_queues_fini(&set->tenants);
    free(set->picked);
}

int waiting_set_count(const struct waiting_set *set)
{
    return set->queue.count + set->overdue.count;
}

// --- the indexes of packable requests

// Returns the most prompt blocks that the request could share with another request. The request must not be in the
// groups yet.
static int shareable_blocks(const struct waiting_set *set, const struct sched_request *r)
{
    int waiting = prefix_groups_shared(&set->groups, r),
        held = prefix_index_held(set->prefixes, r->prefix, r->n_prefix);
    return sched_request_shareable_blocks(r, waiting > held ? waiting : held);
}

static void index_add(struct waiting_set *set, struct sched_request *r)
{
    int blocks = set->role == NODE_WORKER ? sched_request_kv_blocks(r, PREFIX_BLOCK) - shareable_blocks(set, r) : 0;
    r->need = (struct request_need){
        .rows = sched_request_rows(r), .blocks = blocks, .context = sched_request_context(r, set->role)};
    tenant_queue_add(r->tenant_queue, r);
    prefix_groups_add(&set->groups, r);
    if (r->overdue) due_index_add(&set->due_next, r);
    r->packable = true;
    set->n_packable++;
}

static void index_remove(struct waiting_set *set, struct sched_request *r)
{
    tenant_queue_remove(r->tenant_queue, r);
    prefix_groups_remove(&set->groups, r);
    if (r->overdue) due_index_remove(&set->due_next, r);
    r->packable = false;
    set->n_packable--;
}

static void unasked_add(struct waiting_set *set, struct sched_request *r)
{
    r->joined = ++set->joined;
    if (r->unasked_link) return;
    r->unasked_next = NULL;
    r->unasked_link = set->unasked ? set->unasked_end : &set->unasked;
    *r->unasked_link = r;
    set->unasked_end = &r->unasked_next;
}

void waiting_set_asked(struct waiting_set *set, struct sched_request *r)
{
    if (!r->unasked_link) return;
    *r->unasked_link = r->unasked_next;
    *(r->unasked_next ? &r->unasked_next->unasked_link : &set->unasked_end) = r->unasked_link;
    r->unasked_link = NULL;
}

static void make_packable(struct waiting_set *set, struct sched_request *r)
{
    tenant_queue_catch_up(r->tenant_queue);
    index_add(set, r);
    unasked_add(set, r);
}

void waiting_set_open_batch(struct waiting_set *set)
{
    if (set->policy == BIN_DATASET || set->n_packable) return;
    int n = 0;
    for (struct sched_request *r = set->queue.first; r && n < set->batch_requests; r = r->next, n++)
        make_packable(set, r);
}

// --- sums

static void work_add(struct cost_work *work, int sign, int rows)
{
    work->rows += sign * rows;
    work->pairs += sign * cost_pairs(rows, 0);
}

static void sums_add(struct waiting_set *set, const struct sched_request *r, int sign)
{
    int rows = sched_request_rows(r);
    set->rows += (int64_t)sign * rows;
    if (r->overdue) {
        work_add(&set->overdue_work, sign, rows);
        return;
    }
    work_add(&set->level_work[sched_priority_level(r->spec->priority)], sign, rows);
    work_add(&set->due_work[(uint64_t)r->due_us / (uint64_t)set->due_slot_us % DUE_SLOTS], sign, rows);
}

struct cost_work waiting_set_due_between(const struct waiting_set *set, int64_t from_us, int64_t due_us)
{
    struct cost_work sum = {0, 0};
    int64_t first = from_us / set->due_slot_us, slots = due_us / set->due_slot_us - first + 1;
    for (int64_t i = 0; i < slots && i < DUE_SLOTS; i++) {
        const struct cost_work *slot = &set->due_work[(uint64_t)(first + i) % DUE_SLOTS];
        sum.rows += slot->rows;
        sum.pairs += slot->pairs;
    }
    return sum;
}

// --- members

static void insert_overdue(struct waiting_set *set, struct sched_request *r)
{
    request_list_insert(&set->overdue, r, due_index_before(&set->due_next, r));
}

void waiting_set_mark_overdue(struct waiting_set *set, struct sched_request *r)
{
    sums_add(set, r, -1);
    r->overdue = true;
    sums_add(set, r, 1);
    request_list_remove(r);
    insert_overdue(set, r);
    if (!r->packable) return;
    due_index_add(&set->due_next, r);
    unasked_add(set, r);
}

void waiting_set_add(struct waiting_set *set, struct sched_request *r, int64_t due_us, bool returned)
{
    struct tenant_queue *queue = tenant_queue_acquire(&set->tenants, r);
    tenant_queue_release(r->tenant_queue);
    r->tenant_queue = queue;
    r->tree_weight = hash_number(&set->hash_key, r->number);
    r->overdue = returned && set->policy == BIN_DATASET;
    r->due_us = r->overdue ? 0 : due_us;
    sums_add(set, r, 1);
    set->mean_rows += (sched_request_rows(r) - set->mean_rows) / (set->mean_rows > 0 ? MEAN_MEMORY : 1);
    if (r->overdue) {
        insert_overdue(set, r);
    } else if (returned) {
        request_list_prepend(&set->queue, r);
    } else {
        request_list_append(&set->queue, r);
    }
    if (set->policy == BIN_DATASET) make_packable(set, r);
}

void waiting_set_remove(struct waiting_set *set, struct sched_request *r)
{
    if (r->packable) index_remove(set, r);
    sums_add(set, r, -1);
    r->overdue = false;
    waiting_set_asked(set, r);
    request_list_remove(r);
}

void waiting_set_release(struct sched_request *r)
{
    tenant_queue_release(r->tenant_queue);
    r->tenant_queue = NULL;
}

// --- the transaction

void waiting_set_pick(struct waiting_set *set, struct sched_request *r)
{
    r->tenant_queue->last_picked = r;
    r->tenant_queue->n_picked++;
    MEM_GROW(set->picked, set->n_picked, set->picked_capacity);
    set->picked[set->n_picked++] = r;
    index_remove(set, r);
    tenant_queue_charge(r->tenant_queue, sched_request_rows(r) - r->free_rows);
}

void waiting_set_commit(struct waiting_set *set)
{
    for (int i = 0; i < set->n_picked; i++) {
        set->picked[i]->tenant_queue->last_picked = NULL;
        set->picked[i]->tenant_queue->n_picked = 0;
        set->picked[i]->was_overdue = set->picked[i]->overdue;
        waiting_set_remove(set, set->picked[i]);
    }
    set->n_picked = 0;
    set->odd_slot = set->odd_slot_picked;
}

void waiting_set_roll_back(struct waiting_set *set)
{
    while (set->n_picked) {
        struct sched_request *r = set->picked[--set->n_picked];
        r->tenant_queue->last_picked = NULL;
        r->tenant_queue->n_picked = 0;
        tenant_queue_charge(r->tenant_queue, r->free_rows - sched_request_rows(r));
        index_add(set, r);
    }
}
