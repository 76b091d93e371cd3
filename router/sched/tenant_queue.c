// SPDX-License-Identifier: Apache-2.0
#include "router/sched/tenant_queue.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

void tenant_queues_init(struct tenant_queues *queues, const struct hash_key *key, const struct tenant_weight *weights,
                        int n_weights)
{
    *queues = (struct tenant_queues){.weights = weights, .n_weights = n_weights, .hash_key = *key};
}

void tenant_queues_fini(struct tenant_queues *queues)
{
    assert(queues->n == 0);
    for (int level = 0; level < PRIORITY_LEVELS; level++)
        free(queues->levels[level].heap);
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
        *queue = (struct tenant_queue){.owner = queues,
                                       .number = ++queues->last_number,
                                       .tenant = mem_string(tenant),
                                       .level = level,
                                       .weight = weight_of(queues, tenant),
                                       .place = -1,
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
    assert(queue->place < 0);
    struct tenant_queue **link = bucket_of(queue->owner, queue->tenant);
    while (*link != queue)
        link = &(*link)->next;
    *link = queue->next;
    queue->owner->n--;
    free(queue->tenant);
    free(queue);
}

// --- the heap of a level

static struct tenant_level *level_of(const struct tenant_queue *queue)
{
    return &queue->owner->levels[queue->level];
}

static void heap_place(struct tenant_level *level, struct tenant_queue *queue, int place)
{
    level->heap[place] = queue;
    queue->place = place;
}

static void heap_sift(struct tenant_level *level, struct tenant_queue *queue)
{
    int place = queue->place;
    while (place > 0 && level->heap[(place - 1) / 2]->served > queue->served) {
        heap_place(level, level->heap[(place - 1) / 2], place);
        place = (place - 1) / 2;
    }
    for (int child; (child = 2 * place + 1) < level->n; place = child) {
        if (child + 1 < level->n && level->heap[child + 1]->served < level->heap[child]->served) child++;
        if (level->heap[child]->served >= queue->served) break;
        heap_place(level, level->heap[child], place);
    }
    heap_place(level, queue, place);
}

static void heap_enter(struct tenant_queue *queue)
{
    struct tenant_level *level = level_of(queue);
    MEM_GROW(level->heap, level->n, level->capacity);
    queue->place = level->n++;
    heap_sift(level, queue);
}

static void heap_leave(struct tenant_queue *queue)
{
    struct tenant_level *level = level_of(queue);
    struct tenant_queue *last = level->heap[--level->n];
    if (last != queue) {
        last->place = queue->place;
        heap_sift(level, last);
    }
    queue->place = -1;
}

void tenant_queue_charge(struct tenant_queue *queue, double tokens)
{
    queue->served += tokens / queue->weight;
    if (queue->place >= 0) heap_sift(level_of(queue), queue);
}

void tenant_queue_catch_up(struct tenant_queue *queue)
{
    const struct tenant_level *level = level_of(queue);
    if (queue->packable.count) return;
    double served = level->n ? level->heap[0]->served : level->floor;
    if (served > queue->served) queue->served = served;
}

void tenant_queue_add(struct tenant_queue *queue, struct sched_request *r)
{
    length_index_add(&queue->packable, r);
    if (queue->place < 0) heap_enter(queue);
}

void tenant_queue_remove(struct tenant_queue *queue, struct sched_request *r)
{
    length_index_remove(&queue->packable, r);
    if (queue->packable.count) return;
    if (queue->place >= 0) heap_leave(queue);
    struct tenant_level *level = level_of(queue);
    if (queue->served > level->floor) level->floor = queue->served;
}

struct tenant_queue *tenant_queues_next(struct tenant_queues *queues, int level)
{
    return queues->levels[level].n ? queues->levels[level].heap[0] : NULL;
}

void tenant_queue_set_aside(struct tenant_queue *queue, struct tenant_queue **aside)
{
    heap_leave(queue);
    queue->aside = *aside;
    *aside = queue;
}

void tenant_queues_resume(struct tenant_queue *aside)
{
    for (; aside; aside = aside->aside)
        heap_enter(aside);
}
