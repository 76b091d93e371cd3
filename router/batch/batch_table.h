// SPDX-License-Identifier: Apache-2.0
// The table of the batches in the folder of --batch-dir, oldest first. The thread of the batches changes them, under
// the table's lock. Any thread may ask for a batch as the API shows it.
#pragma once

#include <pthread.h>

#include "router/batch/batch.h"

struct batch_table {
    char *folder; // DIR/batches
    pthread_mutex_t lock;
    struct batch **list; // [n] guarded by `lock`, as the batches are
    int n, capacity;
};

// Loads the records. A record that cannot be read is logged and left alone. Returns INVALID if the folder cannot be
// used.
enum status batch_table_open(struct batch_table *table, const char *folder);
void batch_table_close(struct batch_table *table);

char *batch_table_path(const struct batch_table *table, const char *id, const char *suffix); // the caller frees it

// --- any thread. NOT_FOUND if the tenant has no such batch. The caller owns the objects.
enum status batch_table_get(struct batch_table *table, const char *tenant, const char *id, json_t **object_p);
// Returns up to `limit` batches, newest first, as an array. `after` NULL: from the newest on.
enum status batch_table_list(struct batch_table *table, const char *tenant, const char *after, int limit,
                             json_t **list_p, bool *more_p);
struct batch_counts {
    int batches[BATCH_STATES];
};
struct batch_counts batch_table_count(struct batch_table *table);

// --- the thread of the batches
void batch_table_add(struct batch_table *table, struct batch *b);                              // takes ownership
struct batch *batch_table_find(struct batch_table *table, const char *tenant, const char *id); // NULL: none
int batch_table_count_tenant(struct batch_table *table, const char *tenant);
// Saves a record. The batch must not change meanwhile.
enum status batch_table_save(struct batch_table *table, const struct batch *b);
// Deletes the records of final batches that are older than 30 days.
void batch_table_expire(struct batch_table *table, int64_t now_s);
