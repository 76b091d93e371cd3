// SPDX-License-Identifier: Apache-2.0
#include "router/front/request/parsed_message.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/hash.h"
#include "lib/base/mem.h"

enum { BUCKETS = 4096 };

// The messages, one or more, that have the same owner and request id and are not aborted. A look-up visits groups, not
// messages, because clients may send any number of messages with one id.
struct message_group {
    struct message_group *next; // next group in the same bucket
    struct parsed_message *first;
};

struct parsed_message_table {
    struct hash_key hash_key;
    pthread_mutex_t mutex; // guards the groups, their lists, and the lists of clients
    struct message_group *buckets[BUCKETS];
};

struct parsed_message_table *parsed_message_table_create(void)
{
    struct parsed_message_table *table = mem_alloc(sizeof *table);
    table->hash_key = hash_key_random();
    pthread_mutex_init(&table->mutex, NULL);
    return table;
}

void parsed_message_table_free(struct parsed_message_table *table)
{
    if (!table) return;
    pthread_mutex_destroy(&table->mutex);
    free(table);
}

// --- groups; the caller holds the mutex

// Returns the link to the group of this id and owner; with `any`, of any owner. The link is NULL if there is no such
// group.
static struct message_group **group_find(struct parsed_message_table *table, const char *id, uint64_t owner, bool any)
{
    struct message_group **link = &table->buckets[hash_text(&table->hash_key, id) % BUCKETS];
    while (*link && (strcmp((*link)->first->id, id) != 0 || (!any && (*link)->first->owner != owner)))
        link = &(*link)->next;
    return link;
}

static struct parsed_message *group_unlink(struct message_group **link)
{
    struct message_group *group = *link;
    struct parsed_message *first = group->first;
    *link = group->next;
    free(group);
    return first;
}

static void group_add(struct parsed_message_table *table, struct parsed_message *m)
{
    struct message_group **link = group_find(table, m->id, m->owner, false);
    if (!*link) *link = mem_alloc(sizeof **link);
    m->group = *link;
    m->group_next = m->group->first;
    if (m->group_next) m->group_next->group_previous = m;
    m->group->first = m;
}

static void group_remove(struct parsed_message_table *table, struct parsed_message *m)
{
    if (!m->group_previous && !m->group_next) {
        group_unlink(group_find(table, m->id, m->owner, false));
        return;
    }
    *(m->group_previous ? &m->group_previous->group_next : &m->group->first) = m->group_next;
    if (m->group_next) m->group_next->group_previous = m->group_previous;
}

// --- messages

struct parsed_message *parsed_message_begin(struct parsed_message_table *table, struct client *client,
                                            struct parsed_message **list, const char *id, uint64_t owner)
{
    struct parsed_message *m = mem_alloc(sizeof *m);
    m->client = client;
    m->id = mem_string(id);
    m->owner = owner;
    pthread_mutex_lock(&table->mutex);
    if (*id) group_add(table, m);
    m->client_next = *list;
    if (*list) (*list)->client_previous = m;
    *list = m;
    pthread_mutex_unlock(&table->mutex);
    return m;
}

void parsed_message_end(struct parsed_message_table *table, struct parsed_message **list, struct parsed_message *m)
{
    pthread_mutex_lock(&table->mutex);
    if (m->group) group_remove(table, m);
    *(m->client_previous ? &m->client_previous->client_next : list) = m->client_next;
    if (m->client_next) m->client_next->client_previous = m->client_previous;
    pthread_mutex_unlock(&table->mutex);
    free(m->id);
    free(m);
}

// Returns the first message of a list. New messages are added at the start of a list, and only the core's thread
// ends messages. So a walk needs the lock only for its start.
static struct parsed_message *first_of(struct parsed_message_table *table, struct parsed_message *const *list)
{
    pthread_mutex_lock(&table->mutex);
    struct parsed_message *first = *list;
    pthread_mutex_unlock(&table->mutex);
    return first;
}

bool parsed_message_any(struct parsed_message_table *table, struct parsed_message *const *list)
{
    return first_of(table, list);
}

// Removes a group with this id from the table. Returns its messages, linked by group_next, or NULL.
static struct parsed_message *table_remove_group(struct parsed_message_table *table, const char *id, uint64_t owner)
{
    struct parsed_message *first = NULL;
    pthread_mutex_lock(&table->mutex);
    struct message_group **link = group_find(table, id, owner, !owner);
    if (*link) first = group_unlink(link);
    for (struct parsed_message *m = first; m; m = m->group_next)
        m->group = NULL;
    pthread_mutex_unlock(&table->mutex);
    return first;
}

bool parsed_message_abort(struct parsed_message_table *table, struct intake_pool *pool, const char *id, uint64_t owner)
{
    bool found = false;
    for (struct parsed_message *m; (m = table_remove_group(table, id, owner)); found = true) {
        for (; m; m = m->group_next) {
            atomic_store(&m->aborted, true);
            intake_pool_cancel(pool, &m->waiting);
        }
    }
    return found;
}

void parsed_message_drop(struct parsed_message_table *table, struct intake_pool *pool,
                         struct parsed_message *const *list)
{
    for (struct parsed_message *m = first_of(table, list); m; m = m->client_next)
        intake_pool_cancel(pool, &m->waiting);
}
