// SPDX-License-Identifier: Apache-2.0
// The table of messages that are being read, from arrival until they are submitted or refused. An abort finds them by
// request id; the end of a client finds them by the client.
//
// Threads: any thread may call reading_begin(); only the core's thread calls the other functions. So a message that the
// core's thread has found stays valid until that thread ends it.
#pragma once

#include <stdatomic.h>

#include "router/front/request/intake_pool.h"

struct client;
struct reading_group;
struct reading_table;

struct reading {
    struct client *client;
    struct intake_owner waiting; // its job while it waits in the intake pool
    atomic_bool aborted;         // written by the core's thread alone
    // The table's:
    char *id;
    uint64_t owner;
    struct reading_group *group; // those with the same id and owner; NULL: no id, or aborted
    struct reading *group_previous, *group_next, *client_previous, *client_next;
};

struct reading_table *reading_table_create(void);
void reading_table_free(struct reading_table *table); // the table is empty; NULL is allowed

// `list` is the list of the client's messages, guarded by the table. `id` is the request id (empty: no abort finds the
// message), `owner` as in struct request_spec.
struct reading *reading_begin(struct reading_table *table, struct client *client, struct reading **list, const char *id,
                              uint64_t owner);
void reading_end(struct reading_table *table, struct reading **list, struct reading *reading); // frees it
bool reading_any(struct reading_table *table, struct reading *const *list);

// Marks the messages with this request id (`owner` 0: of all owners) as aborted, and drops those that wait in the pool,
// so that they end now. False: there are none that have not been aborted before. It visits a message at most once, so
// that an id that comes again costs no more than an unknown one.
bool reading_abort(struct reading_table *table, struct intake_pool *pool, const char *id, uint64_t owner);
// Drops the messages of the list that wait in the pool.
void reading_drop(struct reading_table *table, struct intake_pool *pool, struct reading *const *list);
