// SPDX-License-Identifier: Apache-2.0
#include "router/front/request/reading.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/hash.h"
#include "lib/base/mem.h"

enum { BUCKETS = 4096 };

// The messages of one owner with one request id that no abort has found yet: at least one. A client may send an id in
// any number of messages, and others may look for that id, so a look-up costs a visit for each group and not for each
// message.
struct reading_group {
    struct reading_group *next; // in its bucket
    struct reading *first;
};

struct reading_table {
    struct hash_key hash_key;
    pthread_mutex_t mutex; // guards the groups and the lists, those of clients included
    struct reading_group *buckets[BUCKETS];
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

// --- groups; the caller holds the mutex

// The link to the group of this id and owner, or of any owner if `any`; to NULL: there is none.
static struct reading_group **group_find(struct reading_table *table, const char *id, uint64_t owner, bool any)
{
    struct reading_group **link = &table->buckets[hash_text(&table->hash_key, id) % BUCKETS];
    while (*link && (strcmp((*link)->first->id, id) != 0 || (!any && (*link)->first->owner != owner)))
        link = &(*link)->next;
    return link;
}

static struct reading *group_take(struct reading_group **link)
{
    struct reading_group *group = *link;
    struct reading *first = group->first;
    *link = group->next;
    free(group);
    return first;
}

static void group_add(struct reading_table *table, struct reading *r)
{
    struct reading_group **link = group_find(table, r->id, r->owner, false);
    if (!*link) *link = mem_alloc(sizeof **link);
    r->group = *link;
    r->group_next = r->group->first;
    if (r->group_next) r->group_next->group_previous = r;
    r->group->first = r;
}

static void group_remove(struct reading_table *table, struct reading *r)
{
    if (!r->group_previous && !r->group_next) {
        group_take(group_find(table, r->id, r->owner, false));
        return;
    }
    *(r->group_previous ? &r->group_previous->group_next : &r->group->first) = r->group_next;
    if (r->group_next) r->group_next->group_previous = r->group_previous;
}

// --- messages

struct reading *reading_begin(struct reading_table *table, struct client *client, struct reading **list, const char *id,
                              uint64_t owner)
{
    struct reading *r = mem_alloc(sizeof *r);
    r->client = client;
    r->id = mem_string(id);
    r->owner = owner;
    pthread_mutex_lock(&table->mutex);
    if (*id) group_add(table, r);
    r->client_next = *list;
    if (*list) (*list)->client_previous = r;
    *list = r;
    pthread_mutex_unlock(&table->mutex);
    return r;
}

void reading_end(struct reading_table *table, struct reading **list, struct reading *r)
{
    pthread_mutex_lock(&table->mutex);
    if (r->group) group_remove(table, r);
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

// Takes a group with this id out of the table and returns its messages, linked by group_next; NULL: there is none.
static struct reading *reading_take(struct reading_table *table, const char *id, uint64_t owner)
{
    struct reading *first = NULL;
    pthread_mutex_lock(&table->mutex);
    struct reading_group **link = group_find(table, id, owner, !owner);
    if (*link) first = group_take(link);
    for (struct reading *r = first; r; r = r->group_next)
        r->group = NULL;
    pthread_mutex_unlock(&table->mutex);
    return first;
}

bool reading_abort(struct reading_table *table, struct intake_pool *pool, const char *id, uint64_t owner)
{
    bool found = false;
    for (struct reading *r; (r = reading_take(table, id, owner)); found = true) {
        for (; r; r = r->group_next) {
            atomic_store(&r->aborted, true);
            intake_pool_cancel(pool, &r->waiting);
        }
    }
    return found;
}

void reading_drop(struct reading_table *table, struct intake_pool *pool, struct reading *const *list)
{
    for (struct reading *r = first_of(table, list); r; r = r->client_next)
        intake_pool_cancel(pool, &r->waiting);
}
