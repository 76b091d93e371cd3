// SPDX-License-Identifier: Apache-2.0
// The requests that wait in front of a pool, in the orders that the filling of bins asks for (core_bins.c):
//
//   queue, urgent   all of them: first come first served, but the urgent ones apart, the earliest due first
//   levels          what may be packed, by priority; in it by tenant; of each tenant by length
//   kin             the same, of each tenant by how it begins
//   due_next        the urgent of it, again the earliest due first
//
// so that handing out a bin costs in proportion to the bin, not to the queue. Tenants of one priority share by tokens
// (virtual token counter, arXiv 2401.00588): the tenant that was served least goes next, one who comes back from
// having had nothing waiting starts where the others are, with no credit for the time away.
#include "router/core/state.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

int core_priority_level(int32_t priority)
{
    int most = PRIORITY_MAX;
    return most + (priority > most ? most : priority < -most ? -most : priority);
}

enum queue_class core_priority_class(int32_t priority)
{
    return priority < 0 ? QUEUE_LOW : priority > 0 ? QUEUE_HIGH : QUEUE_NORMAL;
}

struct core_pool *core_queue_of(struct core *c, const struct request *r)
{
    return &c->pools[r->state == REQUEST_SCORING ? NODE_SPECULATOR : NODE_WORKER];
}

int core_pool_waiting(const struct core_pool *pool)
{
    return pool->queue.count + pool->urgent.count;
}

// --- shares: one tenant's requests of one priority in one pool

static struct tenant_queue **bucket_of(struct core *c, struct core_pool *pool, const char *tenant)
{
    return &pool->shares[request_table_hash(&c->table, tenant) & (pool->buckets - 1)];
}

static void grow_shares(struct core *c, struct core_pool *pool)
{
    struct tenant_queue **old = pool->shares;
    size_t old_buckets = pool->buckets;
    pool->buckets = old_buckets ? 2 * old_buckets : 64;
    pool->shares = mem_alloc_array(pool->buckets, sizeof(struct tenant_queue *));
    for (size_t b = 0; b < old_buckets; b++) {
        for (struct tenant_queue *share = old[b], *next; share; share = next) {
            next = share->next;
            struct tenant_queue **bucket = bucket_of(c, pool, share->tenant);
            share->next = *bucket;
            *bucket = share;
        }
    }
    free(old);
}

static double weight_of(const struct core *c, const char *tenant)
{
    for (int i = 0; i < c->options.n_tenant_weights; i++) {
        if (strcmp(c->options.tenant_weights[i].tenant, tenant) == 0) return c->options.tenant_weights[i].weight;
    }
    return 1;
}

static struct tenant_queue *find_share(struct core *c, struct core_pool *pool, const struct request *r)
{
    const char *tenant = r->tenant ? r->tenant : "";
    int level = core_priority_level(r->priority);
    if ((size_t)pool->n_shares >= pool->buckets) grow_shares(c, pool);
    struct tenant_queue **bucket = bucket_of(c, pool, tenant);
    for (struct tenant_queue *share = *bucket; share; share = share->next) {
        if (share->level == level && strcmp(share->tenant, tenant) == 0) return share;
    }
    struct tenant_queue *share = mem_alloc(sizeof *share);
    *share = (struct tenant_queue){.pool = pool,
                                   .number = ++pool->last_share,
                                   .tenant = mem_string(tenant),
                                   .level = level,
                                   .weight = weight_of(c, tenant),
                                   .place = -1,
                                   .next = *bucket};
    *bucket = share;
    pool->n_shares++;
    return share;
}

void tenant_queue_release(struct core *c, struct request *r)
{
    struct tenant_queue *share = r->share;
    r->share = NULL;
    if (!share || --share->refs) return;
    assert(share->place < 0);
    struct tenant_queue **link = bucket_of(c, share->pool, share->tenant);
    while (*link != share)
        link = &(*link)->next;
    *link = share->next;
    share->pool->n_shares--;
    free(share->tenant);
    free(share);
}

// --- a level's heap of the shares that have something to pack, the one that was served least on top

static void put(struct core_level *level, struct tenant_queue *share, int place)
{
    level->heap[place] = share;
    share->place = place;
}

static void sift(struct core_level *level, struct tenant_queue *share)
{
    int place = share->place;
    while (place > 0 && level->heap[(place - 1) / 2]->served > share->served) {
        put(level, level->heap[(place - 1) / 2], place);
        place = (place - 1) / 2;
    }
    for (int child; (child = 2 * place + 1) < level->n; place = child) {
        if (child + 1 < level->n && level->heap[child + 1]->served < level->heap[child]->served) child++;
        if (level->heap[child]->served >= share->served) break;
        put(level, level->heap[child], place);
    }
    put(level, share, place);
}

void tenant_queue_enter(struct tenant_queue *share)
{
    struct core_level *level = &share->pool->levels[share->level];
    MEM_GROW(level->heap, level->n, level->capacity);
    share->place = level->n++;
    sift(level, share);
}

void tenant_queue_leave(struct tenant_queue *share)
{
    struct core_level *level = &share->pool->levels[share->level];
    struct tenant_queue *last = level->heap[--level->n];
    if (last != share) {
        last->place = share->place;
        sift(level, last);
    }
    share->place = -1;
}

void tenant_queue_charge(struct tenant_queue *share, double tokens)
{
    share->served += tokens / share->weight;
    if (share->place >= 0) sift(&share->pool->levels[share->level], share);
}

// --- what may be packed

static void index_add(struct request *r)
{
    struct tenant_queue *share = r->share;
    r->index_rows = core_request_rows(r);
    r->index_blocks = core_request_blocks(r, PREFIX_BLOCK);
    length_index_add(&share->waiting, r);
    prefix_groups_add(&share->pool->kin, r);
    if (r->urgent) due_index_add(&share->pool->due_next, r);
    r->indexed = true;
    share->pool->indexed++;
    if (share->place < 0) tenant_queue_enter(share);
}

static void index_remove(struct request *r)
{
    struct tenant_queue *share = r->share;
    length_index_remove(&share->waiting, r);
    prefix_groups_remove(&share->pool->kin, r);
    if (r->urgent) due_index_remove(&share->pool->due_next, r);
    r->indexed = false;
    share->pool->indexed--;
    if (share->waiting.count) return;
    if (share->place >= 0) tenant_queue_leave(share);
    struct core_level *level = &share->pool->levels[share->level];
    if (share->served > level->floor) level->floor = share->served;
}

// Nodes that had the KV blocks for it are filled again, though the last time was in vain.
static void tell_nodes(const struct core *c, const struct request *r)
{
    for (struct core_node *node = c->nodes; node; node = node->next) {
        if (!node->vain || node->hello.role != r->share->pool->role || !core_node_can_hold(node, r)) continue;
        if (core_node_blocks_of(node, r) <= node->vain_blocks) node->vain = false;
    }
}

static void make_packable(const struct core *c, struct request *r)
{
    struct tenant_queue *share = r->share;
    struct core_level *level = &share->pool->levels[share->level];
    if (!share->waiting.count) {
        double served = level->n ? level->heap[0]->served : level->floor;
        if (served > share->served) share->served = served;
    }
    index_add(r);
    tell_nodes(c, r);
}

void core_queue_pick(struct request *r)
{
    index_remove(r);
    tenant_queue_charge(r->share, core_request_rows(r));
}

void core_queue_put_back(struct request *r)
{
    tenant_queue_charge(r->share, -core_request_rows(r));
    index_add(r);
}

void core_queue_open(const struct core *c, struct core_pool *pool)
{
    if (c->options.policy == BIN_DATASET || pool->indexed) return;
    int n = c->options.policy == BIN_NONE ? 1 : c->options.batch_requests;
    for (struct request *r = pool->queue.first; r && n; r = r->next, n--)
        make_packable(c, r);
}

// --- how much waits

static struct cost_work *due_slot(struct core_pool *pool, int64_t due_us)
{
    return &pool->due[(uint64_t)due_us / (uint64_t)pool->due_slot_us % DUE_SLOTS];
}

struct cost_work core_pool_due_before(const struct core_pool *pool, int64_t now_us, int64_t due_us)
{
    struct cost_work sum = {0, 0};
    int64_t first = now_us / pool->due_slot_us, slots = due_us / pool->due_slot_us - first + 1;
    for (int64_t i = 0; i < slots && i < DUE_SLOTS; i++) {
        const struct cost_work *slot = &pool->due[(uint64_t)(first + i) % DUE_SLOTS];
        sum.rows += slot->rows;
        sum.pairs += slot->pairs;
    }
    return sum;
}

// Into the sums it belongs to (sign 1), or out of them (-1).
static void count(struct core_pool *pool, const struct request *r, int sign)
{
    int rows = core_request_rows(r);
    double pairs = cost_pairs(rows, 0);
    struct cost_work *levels = &pool->levels[core_priority_level(r->priority)].work;
    struct cost_work *sums[] = {r->urgent ? &pool->urgent_work : levels, due_slot(pool, r->due_us)};
    for (int i = 0; i < (r->urgent ? 1 : 2); i++) {
        sums[i]->rows += sign * rows;
        sums[i]->pairs += sign * pairs;
    }
    pool->tokens += (int64_t)sign * rows;
}

// --- coming and going

static void insert_urgent(struct core_pool *pool, struct request *r)
{
    request_list_insert(&pool->urgent, r, due_index_before(&pool->due_next, r));
}

void core_queue_make_urgent(struct core *c, struct request *r)
{
    struct core_pool *pool = core_queue_of(c, r);
    count(pool, r, -1);
    r->urgent = true;
    count(pool, r, 1);
    request_list_remove(r);
    insert_urgent(pool, r);
    if (r->indexed) due_index_add(&pool->due_next, r);
    tell_nodes(c, r);
}

void core_queue_add(struct core *c, struct request *r)
{
    struct core_pool *pool = core_queue_of(c, r);
    struct tenant_queue *share = find_share(c, pool, r);
    share->refs++;
    tenant_queue_release(c, r);
    r->share = share;
    bool returns = r->losses; // it was on a node already: ahead of everyone
    r->urgent = returns && c->options.policy == BIN_DATASET;
    if (r->urgent) r->due_us = 0;
    count(pool, r, 1);
    if (c->options.policy == BIN_DATASET) {
        if (r->urgent) {
            insert_urgent(pool, r);
        } else {
            request_list_append(&pool->queue, r);
        }
        make_packable(c, r);
    } else if (returns) {
        request_list_prepend(&pool->queue, r);
    } else {
        request_list_append(&pool->queue, r);
    }
}

void core_queue_remove(struct core *c, struct request *r)
{
    struct core_pool *pool = core_queue_of(c, r);
    if (r->indexed) index_remove(r);
    count(pool, r, -1);
    r->urgent = false;
    request_list_remove(r);
}

void core_queue_fini(struct core_pool *pool)
{
    assert(pool->n_shares == 0);
    for (int level = 0; level < PRIORITY_LEVELS; level++)
        free(pool->levels[level].heap);
    free(pool->shares);
}
