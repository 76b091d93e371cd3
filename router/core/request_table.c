// SPDX-License-Identifier: Apache-2.0
// A chained hash table with two keys, and a binary heap.
#include "router/core/request_table.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/hash.h"
#include "lib/base/mem.h"

// --- table

static struct request **number_bucket(const struct request_table *table, uint64_t number)
{
    return &table->by_number[hash_number(&table->hash_key, number) & (table->buckets - 1)];
}

static struct request **id_bucket(const struct request_table *table, const char *id)
{
    return &table->by_id[hash_text(&table->hash_key, id) & (table->buckets - 1)];
}

static void table_link(struct request_table *table, struct request *r)
{
    struct request **bucket = number_bucket(table, r->number);
    r->links.number_next = *bucket;
    *bucket = r;
    if (!r->id) return;
    bucket = id_bucket(table, r->id);
    r->links.id_next = *bucket;
    *bucket = r;
}

static void table_grow(struct request_table *table)
{
    struct request **old = table->by_number;
    size_t old_buckets = table->buckets;
    free(table->by_id);
    table->buckets *= 2;
    table->by_number = mem_alloc_array(table->buckets, sizeof *table->by_number);
    table->by_id = mem_alloc_array(table->buckets, sizeof *table->by_id);
    for (size_t b = 0; b < old_buckets; b++) {
        for (struct request *r = old[b], *next; r; r = next) {
            next = r->links.number_next;
            table_link(table, r);
        }
    }
    free(old);
}

void request_table_init(struct request_table *table, const struct hash_key *key)
{
    *table = (struct request_table){.buckets = 256, .hash_key = *key};
    table->by_number = mem_alloc_array(table->buckets, sizeof *table->by_number);
    table->by_id = mem_alloc_array(table->buckets, sizeof *table->by_id);
}

void request_table_fini(struct request_table *table)
{
    assert(table->count == 0);
    free(table->by_number);
    free(table->by_id);
}

void request_table_add(struct request_table *table, struct request *r)
{
    if ((size_t)table->count == table->buckets) table_grow(table);
    table_link(table, r);
    table->count++;
}

void request_table_remove(struct request_table *table, struct request *r)
{
    struct request **link = number_bucket(table, r->number);
    while (*link != r)
        link = &(*link)->links.number_next;
    *link = r->links.number_next;
    if (r->id) {
        link = id_bucket(table, r->id);
        while (*link != r)
            link = &(*link)->links.id_next;
        *link = r->links.id_next;
    }
    table->count--;
}

struct request *request_table_find(const struct request_table *table, uint64_t number)
{
    struct request *r = *number_bucket(table, number);
    while (r && r->number != number)
        r = r->links.number_next;
    return r;
}

struct request *request_table_find_id(const struct request_table *table, const char *id, uint64_t owner)
{
    struct request *r = *id_bucket(table, id);
    while (r && (strcmp(r->id, id) != 0 || (owner && r->spec.owner != owner)))
        r = r->links.id_next;
    return r;
}

// --- timers

static void heap_place(struct request_timers *timers, struct request *r, int index)
{
    timers->heap[index] = r;
    r->links.timer_index = index;
}

// Returns true if the timer of `a` expires before the timer of `b`. At equal times, the timer of the older request is
// first.
static bool timer_is_before(const struct request *a, const struct request *b)
{
    if (a->links.timer_us != b->links.timer_us) return a->links.timer_us < b->links.timer_us;
    return a->number < b->number;
}

static void heap_sift(struct request_timers *timers, struct request *r, int index)
{
    while (index > 0 && timer_is_before(r, timers->heap[(index - 1) / 2])) {
        heap_place(timers, timers->heap[(index - 1) / 2], index);
        index = (index - 1) / 2;
    }
    for (int child; (child = 2 * index + 1) < timers->count; index = child) {
        if (child + 1 < timers->count && timer_is_before(timers->heap[child + 1], timers->heap[child])) child++;
        if (!timer_is_before(timers->heap[child], r)) break;
        heap_place(timers, timers->heap[child], index);
    }
    heap_place(timers, r, index);
}

void request_timers_fini(struct request_timers *timers)
{
    assert(timers->count == 0);
    free(timers->heap);
}

void request_timers_set(struct request_timers *timers, struct request *r, int64_t at_us)
{
    int index = r->links.timer_index;
    r->links.timer_us = at_us;
    if (at_us != INT64_MAX) {
        if (index < 0) {
            MEM_GROW(timers->heap, timers->count, timers->capacity);
            index = timers->count++;
        }
        heap_sift(timers, r, index);
    } else if (index >= 0) {
        struct request *last = timers->heap[--timers->count];
        r->links.timer_index = -1;
        if (last != r) heap_sift(timers, last, index);
    }
}

struct request *request_timers_first(const struct request_timers *timers)
{
    return timers->count ? timers->heap[0] : NULL;
}
