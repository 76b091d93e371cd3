// SPDX-License-Identifier: Apache-2.0
// Where the core keeps its requests: lists they are linked into, a table that finds them by number and by the client's
// id, and a heap of their timers. All links live in the request, so nothing here can fail; O(1), the heap O(log n).
// None of these own the requests. One thread.
#pragma once

#include <stddef.h>

#include "router/core/request.h"

// A queue or the requests on a node. A request is in one list at most.
struct request_list {
    struct request *first, *last;
    int count;
};
void request_list_append(struct request_list *list, struct request *r);
void request_list_prepend(struct request_list *list, struct request *r);
void request_list_insert(struct request_list *list, struct request *r, struct request *after); // NULL: first
void request_list_remove(struct request *r); // from the list it is in, if any

struct request_table {
    struct request **by_number, **by_id;
    size_t buckets; // a power of two
    int count;
    uint64_t seed; // ids come from clients: nobody shall aim at one bucket
};
void request_table_init(struct request_table *table);
// Of a string that comes from clients, with the table's seed.
uint64_t request_table_hash(const struct request_table *table, const char *text);
void request_table_fini(struct request_table *table);
void request_table_add(struct request_table *table, struct request *r);
void request_table_remove(struct request_table *table, struct request *r);
struct request *request_table_find(const struct request_table *table, uint64_t number);   // NULL: not there
struct request *request_table_find_id(const struct request_table *table, const char *id); // NULL: not there

struct request_timers {
    struct request **heap;
    int count, capacity;
};
void request_timers_fini(struct request_timers *timers);
void request_timers_set(struct request_timers *timers, struct request *r, int64_t at_us); // INT64_MAX: none
struct request *request_timers_first(const struct request_timers *timers);                // NULL: none is set
