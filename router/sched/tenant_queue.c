// SPDX-License-Identifier: Apache-2.0
#include "router/sched/tenant_queue.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "router/sched/request_tree.h"

void tenant_queues_init(struct tenant_queues *queues, const struct hash_key *key, const struct tenant_weight *weights,
                        int n_weights)
{
    *queues = (struct tenant_queues){.weights = weights, .n_weights = n_weights, .hash_key = *key};
}

void tenant_queues_fini(struct tenant_queues *queues)
{
    assert(queues->n == 0);
    free(queues->buckets);
}

// --- the table

static struct tenant_queue **bucket_of(struct tenant_queues *queues, const char *tenant)
{
    return &queues->buckets[hash_text(&queues->hash_key, tenant) & (queues->n_buckets - 1)];
}

static void buckets_grow(struct tenant_queues *queues)
{
    struct tenant_queue **old = queues->buckets;
    size_t n_old = queues->n_buckets;
    queues->n_buckets = n_old ? 2 * n_old : 64;
    queues->buckets = mem_alloc_array(queues->n_buckets, sizeof(struct tenant_queue *));
    for (size_t b = 0; b < n_old; b++) {
        for (struct tenant_queue *queue = old[b], *next; queue; queue = next) {
            next = queue->next;
            struct tenant_queue **bucket = bucket_of(queues, queue->tenant);
            queue->next = *bucket;
            *bucket = queue;
        }
    }
    free(old);
}

static double weight_of(const struct tenant_queues *queues, const char *tenant)
{
    for (int i = 0; i < queues->n_weights; i++) {
        if (strcmp(queues->weights[i].tenant, tenant) == 0) return queues->weights[i].weight;
    }
    return 1;
}

struct tenant_queue *tenant_queue_acquire(struct tenant_queues *queues, const struct sched_request *r)
{
    const char *tenant = r->spec->tenant ? r->spec->tenant : "";
    int level = sched_priority_level(r->spec->priority);
    if ((size_t)queues->n >= queues->n_buckets) buckets_grow(queues);
    struct tenant_queue **bucket = bucket_of(queues, tenant);
    struct tenant_queue *queue = *bucket;
    while (queue && (queue->level != level || strcmp(queue->tenant, tenant) != 0))
        queue = queue->next;
    if (!queue) {
        queue = mem_alloc(sizeof *queue);
        uint64_t number = ++queues->last_number;
        *queue = (struct tenant_queue){.owner = queues,
                                       .number = number,
                                       .tree_weight = hash_number(&queues->hash_key, number),
                                       .tenant = mem_string(tenant),
                                       .level = level,
                                       .weight = weight_of(queues, tenant),
                                       .next = *bucket};
        *bucket = queue;
        queues->n++;
    }
    queue->refs++;
    return queue;
}

void tenant_queue_release(struct tenant_queue *queue)
{
    if (!queue || --queue->refs) return;
    assert(!queue->in_level && !queue->slots);
    struct tenant_queue **link = bucket_of(queue->owner, queue->tenant);
    while (*link != queue)
        link = &(*link)->next;
    *link = queue->next;
    queue->owner->n--;
    free(queue->tenant);
    free(queue);
}

// --- the tree of a level

static bool queue_is_before(const struct tenant_queue *a, const struct tenant_queue *b)
{
    if (a->served < b->served || a->served > b->served) return a->served < b->served;
    return a->number < b->number;
}

static struct tenant_queue *root_refresh(struct tenant_queue *root)
{
    root->subtree_min = root->packable.root->subtree_min[BY_LENGTH];
    if (root->lower) request_need_include(&root->subtree_min, &root->lower->subtree_min);
    if (root->higher) request_need_include(&root->subtree_min, &root->higher->subtree_min);
    return root;
}

static void tree_split(struct tenant_queue *tree, const struct tenant_queue *at, struct tenant_queue **low_p,
                       struct tenant_queue **high_p)
{
    if (!tree) {
        *low_p = *high_p = NULL;
    } else if (queue_is_before(tree, at)) {
        tree_split(tree->higher, at, &tree->higher, high_p);
        *low_p = root_refresh(tree);
    } else {
        tree_split(tree->lower, at, low_p, &tree->lower);
        *high_p = root_refresh(tree);
    }
}

static struct tenant_queue *tree_merge(struct tenant_queue *low, struct tenant_queue *high)
{
    if (!low || !high) return low ? low : high;
    if (low->tree_weight > high->tree_weight) {
        low->higher = tree_merge(low->higher, high);
        return root_refresh(low);
    }
    high->lower = tree_merge(low, high->lower);
    return root_refresh(high);
}

static struct tenant_queue *tree_add(struct tenant_queue *tree, struct tenant_queue *queue)
{
    if (tree && tree->tree_weight > queue->tree_weight) {
        struct tenant_queue **side = queue_is_before(tree, queue) ? &tree->higher : &tree->lower;
        *side = tree_add(*side, queue);
        return root_refresh(tree);
    }
    tree_split(tree, queue, &queue->lower, &queue->higher);
    return root_refresh(queue);
}

static struct tenant_queue *tree_remove(struct tenant_queue *tree, struct tenant_queue *queue)
{
    if (tree == queue) return tree_merge(queue->lower, queue->higher);
    struct tenant_queue **side = queue_is_before(tree, queue) ? &tree->higher : &tree->lower;
    *side = tree_remove(*side, queue);
    return root_refresh(tree);
}

// Returns the first queue with a request that needs at most `max`, or NULL.
static struct tenant_queue *tree_first(struct tenant_queue *tree, const struct request_need *max)
{
    if (!tree || !request_need_is_met(&tree->subtree_min, max)) return NULL;
    struct tenant_queue *lower = tree_first(tree->lower, max);
    if (lower) return lower;
    if (request_need_is_met(&tree->packable.root->subtree_min[BY_LENGTH], max)) return tree;
    return tree_first(tree->higher, max);
}

static struct tenant_level *level_of(const struct tenant_queue *queue)
{
    return &queue->owner->levels[queue->level];
}

static void level_enter(struct tenant_queue *queue)
{
    level_of(queue)->root = tree_add(level_of(queue)->root, queue);
    queue->in_level = true;
}

// Removes the queue from its level. Call it before the queue's keys or requests change.
static void level_leave(struct tenant_queue *queue)
{
    if (!queue->in_level) return;
    level_of(queue)->root = tree_remove(level_of(queue)->root, queue);
    queue->in_level = false;
}

void tenant_queue_charge(struct tenant_queue *queue, double tokens)
{
    bool in_level = queue->in_level;
    level_leave(queue);
    queue->served += tokens / queue->weight;
    if (in_level) level_enter(queue);
}

void tenant_queue_add_slots(struct tenant_queue *queue, int more)
{
    struct tenant_queue **first = &queue->owner->holders;
    bool was_holder = queue->slots > 0;
    queue->slots += more;
    if (was_holder == (queue->slots > 0)) return;
    if (!was_holder) {
        queue->holder_prev = NULL;
        queue->holder_next = *first;
        if (*first) (*first)->holder_prev = queue;
        *first = queue;
        return;
    }
    *(queue->holder_prev ? &queue->holder_prev->holder_next : first) = queue->holder_next;
    if (queue->holder_next) queue->holder_next->holder_prev = queue->holder_prev;
}

bool tenant_queue_holds_less(const struct tenant_queue *queue, double more, const struct tenant_queue *other,
                             double less)
{
    const double rounding = 1e-9;
    return (queue->held + more) / queue->weight <= (other->held - less) / other->weight + rounding;
}

void tenant_queue_catch_up(struct tenant_queue *queue)
{
    const struct tenant_level *level = level_of(queue);
    if (queue->packable.count) return;
    const struct tenant_queue *first = level->root;
    while (first && first->lower)
        first = first->lower;
    double served = first ? first->served : level->floor;
    if (served > queue->served) queue->served = served;
}

void tenant_queue_add(struct tenant_queue *queue, struct sched_request *r)
{
    level_leave(queue);
    length_index_add(&queue->packable, r);
    level_enter(queue);
}

void tenant_queue_remove(struct tenant_queue *queue, struct sched_request *r)
{
    bool in_level = queue->in_level;
    level_leave(queue);
    length_index_remove(&queue->packable, r);
    if (queue->packable.count) {
        if (in_level) level_enter(queue);
        return;
    }
    struct tenant_level *level = level_of(queue);
    if (queue->served > level->floor) level->floor = queue->served;
}

struct tenant_queue *tenant_queues_next(struct tenant_queues *queues, int level, const struct request_need *max)
{
    return tree_first(queues->levels[level].root, max);
}

void tenant_queue_set_aside(struct tenant_queue *queue, struct tenant_queue **aside)
{
    level_leave(queue);
    queue->aside = *aside;
    *aside = queue;
}

void tenant_queues_resume(struct tenant_queue *aside)
{
    for (; aside; aside = aside->aside)
        level_enter(aside);
}
