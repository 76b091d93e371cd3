// SPDX-License-Identifier: Apache-2.0
// Finds the core's requests by number and by the client's id, and keeps their timers. A look-up takes O(1), because the
// table is a hash table. Setting a timer takes O(log n), because the timers are a heap. Neither the table nor the
// timers own the requests. One thread.
#pragma once

#include <stddef.h>

#include "lib/base/hash.h"
#include "router/core/request.h"

struct request_table {
    struct request **by_number, **by_id;
    size_t buckets; // number of buckets of each array; a power of two
    int count;
    struct hash_key hash_key;
};
void request_table_init(struct request_table *table, const struct hash_key *key);
void request_table_fini(struct request_table *table);
void request_table_add(struct request_table *table, struct request *r);
void request_table_remove(struct request_table *table, struct request *r);
struct request *request_table_find(const struct request_table *table, uint64_t number); // NULL: there is none
// Finds the request with this id among the requests of the owner. Owner 0 means all owners. Returns NULL if there is
// none.
struct request *request_table_find_id(const struct request_table *table, const char *id, uint64_t owner);

struct request_timers {
    struct request **heap;
    int count, capacity;
};
void request_timers_fini(struct request_timers *timers);
void request_timers_set(struct request_timers *timers, struct request *r, int64_t at_us); // INT64_MAX: clears it
// Returns the request with the earliest timer, the oldest one among equal times. Returns NULL if no timer is set.
struct request *request_timers_first(const struct request_timers *timers);
