// SPDX-License-Identifier: Apache-2.0
// Intrusive lists, a chained hash table with two keys, and a binary heap.
#include "router/core/request_table.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/mem.h"

// --- lists

static void insert(struct request_list *list, struct request *r, struct request *prev, struct request *next)
{
    assert(!r->list);
    r->list = list;
    r->prev = prev;
    r->next = next;
    *(prev ? &prev->next : &list->first) = r;
    *(next ? &next->prev : &list->last) = r;
    list->count++;
}

void request_list_append(struct request_list *list, struct request *r)
{
    insert(list, r, list->last, NULL);
}

void request_list_prepend(struct request_list *list, struct request *r)
{
    insert(list, r, NULL, list->first);
}

void request_list_insert(struct request_list *list, struct request *r, struct request *after)
{
    insert(list, r, after, after ? after->next : list->first);
}

void request_list_remove(struct request *r)
{
    struct request_list *list = r->list;
    if (!list) return;
    *(r->prev ? &r->prev->next : &list->first) = r->next;
    *(r->next ? &r->next->prev : &list->last) = r->prev;
    list->count--;
    r->list = NULL;
    r->prev = r->next = NULL;
}

// --- table

static uint64_t mix(uint64_t x) // the finaliser of MurmurHash3
{
    x = (x ^ (x >> 33)) * UINT64_C(0xff51afd7ed558ccd);
    x = (x ^ (x >> 33)) * UINT64_C(0xc4ceb9fe1a85ec53);
    return x ^ (x >> 33);
}

static struct request **number_bucket(const struct request_table *table, uint64_t number)
{
    return &table->by_number[mix(number) & (table->buckets - 1)];
}

uint64_t request_table_hash(const struct request_table *table, const char *text)
{
    uint64_t hash = table->seed;
    for (; *text; text++)
        hash = mix(hash ^ (unsigned char)*text);
    return hash;
}

static struct request **id_bucket(const struct request_table *table, const char *id)
{
    return &table->by_id[request_table_hash(table, id) & (table->buckets - 1)];
}

static void link_in(struct request_table *table, struct request *r)
{
    struct request **bucket = number_bucket(table, r->number);
    r->number_next = *bucket;
    *bucket = r;
    if (!r->id) return;
    bucket = id_bucket(table, r->id);
    r->id_next = *bucket;
    *bucket = r;
}

static void grow(struct request_table *table)
{
    struct request **old = table->by_number;
    size_t old_buckets = table->buckets;
    free(table->by_id);
    table->buckets *= 2;
    table->by_number = mem_alloc_array(table->buckets, sizeof *table->by_number);
    table->by_id = mem_alloc_array(table->buckets, sizeof *table->by_id);
    for (size_t b = 0; b < old_buckets; b++) {
        for (struct request *r = old[b], *next; r; r = next) {
            next = r->number_next;
            link_in(table, r);
        }
    }
    free(old);
}

void request_table_init(struct request_table *table)
{
    *table = (struct request_table){.buckets = 256};
    if (getrandom(&table->seed, sizeof table->seed, GRND_NONBLOCK) < 0) table->seed = (uintptr_t)table;
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
    if ((size_t)table->count == table->buckets) grow(table);
    link_in(table, r);
    table->count++;
}

void request_table_remove(struct request_table *table, struct request *r)
{
    struct request **link = number_bucket(table, r->number);
    while (*link != r)
        link = &(*link)->number_next;
    *link = r->number_next;
    if (r->id) {
        link = id_bucket(table, r->id);
        while (*link != r)
            link = &(*link)->id_next;
        *link = r->id_next;
    }
    r->number_next = r->id_next = NULL;
    table->count--;
}

struct request *request_table_find(const struct request_table *table, uint64_t number)
{
    struct request *r = *number_bucket(table, number);
    while (r && r->number != number)
        r = r->number_next;
    return r;
}

struct request *request_table_find_id(const struct request_table *table, const char *id)
{
    struct request *r = *id_bucket(table, id);
    while (r && strcmp(r->id, id) != 0)
        r = r->id_next;
    return r;
}

// --- timers

static void put(struct request_timers *timers, struct request *r, int index)
{
    timers->heap[index] = r;
    r->timer_index = index;
}

static void sift(struct request_timers *timers, struct request *r, int index)
{
    while (index > 0 && timers->heap[(index - 1) / 2]->timer_us > r->timer_us) {
        put(timers, timers->heap[(index - 1) / 2], index);
        index = (index - 1) / 2;
    }
    for (int child; (child = 2 * index + 1) < timers->count; index = child) {
        if (child + 1 < timers->count && timers->heap[child + 1]->timer_us < timers->heap[child]->timer_us) child++;
        if (timers->heap[child]->timer_us >= r->timer_us) break;
        put(timers, timers->heap[child], index);
    }
    put(timers, r, index);
}

void request_timers_fini(struct request_timers *timers)
{
    assert(timers->count == 0);
    free(timers->heap);
}

void request_timers_set(struct request_timers *timers, struct request *r, int64_t at_us)
{
    int index = r->timer_index;
    r->timer_us = at_us;
    if (at_us != INT64_MAX) {
        if (index < 0) {
            MEM_GROW(timers->heap, timers->count, timers->capacity);
            index = timers->count++;
        }
        sift(timers, r, index);
    } else if (index >= 0) {
        struct request *last = timers->heap[--timers->count];
        r->timer_index = -1;
        if (last != r) sift(timers, last, index);
    }
}

struct request *request_timers_first(const struct request_timers *timers)
{
    return timers->count ? timers->heap[0] : NULL;
}
