// SPDX-License-Identifier: Apache-2.0
#include "router/front/reading.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"

enum { BUCKETS = 4096 };

struct reading_table {
    struct hash_key hash_key;
    pthread_mutex_t mutex; // guards the lists, those of clients included
    struct reading *buckets[BUCKETS];
};

struct reading_table *reading_table_create(void)
{
    struct reading_table *table = mem_alloc(sizeof *table);
    table->hash_key = hash_key_random();
    pthread_mutex_init(&table->mutex, NULL);
    return table;
}

void reading_table_free(struct reading_table *table)
{
    if (!table) return;
    pthread_mutex_destroy(&table->mutex);
    free(table);
}

static struct reading **bucket_of(struct reading_table *table, const char *id)
{
    return &table->buckets[hash_text(&table->hash_key, id) % BUCKETS];
}

struct reading *reading_begin(struct reading_table *table, struct client *client, struct reading **list, const char *id,
                              uint64_t owner)
{
    struct reading *r = mem_alloc(sizeof *r), **bucket = bucket_of(table, id);
    r->client = client;
    r->id = mem_string(id);
    r->owner = owner;
    pthread_mutex_lock(&table->mutex);
    r->bucket_next = *bucket;
    r->client_next = *list;
    if (*bucket) (*bucket)->bucket_previous = r;
    if (*list) (*list)->client_previous = r;
    *bucket = *list = r;
    pthread_mutex_unlock(&table->mutex);
    return r;
}

void reading_end(struct reading_table *table, struct reading **list, struct reading *r)
{
    pthread_mutex_lock(&table->mutex);
    *(r->bucket_previous ? &r->bucket_previous->bucket_next : bucket_of(table, r->id)) = r->bucket_next;
    if (r->bucket_next) r->bucket_next->bucket_previous = r->bucket_previous;
    *(r->client_previous ? &r->client_previous->client_next : list) = r->client_next;
    if (r->client_next) r->client_next->client_previous = r->client_previous;
    pthread_mutex_unlock(&table->mutex);
    free(r->id);
    free(r);
}

// New messages are added at the start of a list, and only this thread ends messages: a walk needs the lock only for its
// start.
static struct reading *first_of(struct reading_table *table, struct reading *const *list)
{
    pthread_mutex_lock(&table->mutex);
    struct reading *first = *list;
    pthread_mutex_unlock(&table->mutex);
    return first;
}

bool reading_any(struct reading_table *table, struct reading *const *list)
{
    return first_of(table, list);
}

bool reading_abort(struct reading_table *table, struct intake_pool *pool, const char *id, uint64_t owner)
{
    bool found = false;
    if (!*id) return false;
    for (struct reading *r = first_of(table, bucket_of(table, id)); r; r = r->bucket_next) {
        if (strcmp(r->id, id) != 0 || (owner && r->owner != owner)) continue;
        found = true;
        atomic_store(&r->aborted, true);
        intake_pool_cancel(pool, &r->waiting);
    }
    return found;
}

void reading_drop(struct reading_table *table, struct intake_pool *pool, struct reading *const *list)
{
    for (struct reading *r = first_of(table, list); r; r = r->client_next)
        intake_pool_cancel(pool, &r->waiting);
}
