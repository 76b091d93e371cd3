// SPDX-License-Identifier: Apache-2.0
#include "router/batch/batch_table.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/log.h"
#include "lib/base/mem.h"

enum { RECORD_KEPT_S = 30 * 24 * 3600 };

char *batch_table_path(const struct batch_table *table, const char *id, const char *suffix)
{
    return mem_format("%s/%s%s", table->folder, id, suffix);
}

// --- opening

static void insert(struct batch_table *table, struct batch *b)
{
    MEM_GROW(table->list, table->n, table->capacity);
    int at = table->n++;
    for (; at > 0 && b->created_us < table->list[at - 1]->created_us; at--)
        table->list[at] = table->list[at - 1];
    table->list[at] = b;
}

static void load_entry(struct batch_table *table, const char *name)
{
    char id[BATCH_ID_ROOM];
    const char *dot = strchr(name, '.');
    if (!dot || (size_t)(dot - name) >= sizeof id) return;
    snprintf(id, sizeof id, "%.*s", (int)(dot - name), name);
    char *path = mem_format("%s/%s", table->folder, name), *record = batch_table_path(table, id, ".json");
    struct batch *b;
    if (!batch_id_valid(BATCH_ID_PREFIX, id)) {
        // not a file of a batch
    } else if (strcmp(dot, ".json") == 0) {
        if (batch_load(path, &b) == STATUS_OK)
            insert(table, b);
        else
            log_event(LOG_ERROR, "batch_refused", LOG_FIELD("batch", id), LOG_REASON);
    } else if (access(record, F_OK) != 0 || strncmp(dot, ".json.", 6) == 0) {
        unlink(path); // of a batch that was being created or deleted, or a temporary record
    }
    free(path);
    free(record);
}

enum status batch_table_open(struct batch_table *table, const char *folder)
{
    struct dirent **names;
    *table = (struct batch_table){.folder = mem_format("%s/batches", folder)};
    pthread_mutex_init(&table->lock, NULL);
    bool made = mkdir(table->folder, 0700) == 0 || errno == EEXIST;
    int n = made ? scandir(table->folder, &names, NULL, NULL) : -1;
    if (n < 0) {
        enum status status = status_fail(STATUS_INVALID, "--batch-dir %s: %s", table->folder, strerror(errno));
        batch_table_close(table);
        return status;
    }
    for (int i = 0; i < n; i++) {
        load_entry(table, names[i]->d_name);
        free(names[i]);
    }
    free(names);
    return STATUS_OK;
}

void batch_table_close(struct batch_table *table)
{
    if (!table->folder) return;
    for (int i = 0; i < table->n; i++)
        batch_free(table->list[i]);
    pthread_mutex_destroy(&table->lock);
    free(table->list);
    free(table->folder);
    *table = (struct batch_table){.n = 0};
}

// --- any thread

// The caller holds the lock, or is the thread of the batches.
static int find_index(const struct batch_table *table, const char *tenant, const char *id)
{
    for (int i = 0; i < table->n; i++)
        if (strcmp(table->list[i]->id, id) == 0) return strcmp(table->list[i]->tenant, tenant) == 0 ? i : -1;
    return -1;
}

static enum status no_batch(const char *id)
{
    return status_fail(STATUS_NOT_FOUND, "there is no batch '%.64s'", id);
}

enum status batch_table_get(struct batch_table *table, const char *tenant, const char *id, json_t **object_p)
{
    pthread_mutex_lock(&table->lock);
    int at = find_index(table, tenant, id);
    if (at >= 0) *object_p = batch_to_json(table->list[at]);
    pthread_mutex_unlock(&table->lock);
    return at >= 0 ? STATUS_OK : no_batch(id);
}

enum status batch_table_list(struct batch_table *table, const char *tenant, const char *after, int limit,
                             json_t **list_p, bool *more_p)
{
    pthread_mutex_lock(&table->lock);
    int at = after ? find_index(table, tenant, after) : table->n;
    json_t *list = at >= 0 ? json_array() : NULL;
    *more_p = false;
    for (at--; at >= 0 && !*more_p; at--) {
        if (strcmp(table->list[at]->tenant, tenant) != 0) continue;
        if ((int)json_array_size(list) < limit)
            json_array_append_new(list, batch_to_json(table->list[at]));
        else
            *more_p = true;
    }
    pthread_mutex_unlock(&table->lock);
    *list_p = list;
    return list ? STATUS_OK : no_batch(after);
}

struct batch_counts batch_table_count(struct batch_table *table)
{
    struct batch_counts counts = {.batches = {0}};
    pthread_mutex_lock(&table->lock);
    for (int i = 0; i < table->n; i++)
        counts.batches[table->list[i]->state]++;
    pthread_mutex_unlock(&table->lock);
    return counts;
}

// --- the thread of the batches

void batch_table_add(struct batch_table *table, struct batch *b)
{
    pthread_mutex_lock(&table->lock);
    insert(table, b);
    pthread_mutex_unlock(&table->lock);
}

struct batch *batch_table_find(struct batch_table *table, const char *tenant, const char *id)
{
    int at = find_index(table, tenant, id);
    return at >= 0 ? table->list[at] : NULL;
}

int batch_table_count_tenant(struct batch_table *table, const char *tenant)
{
    int n = 0;
    for (int i = 0; i < table->n; i++)
        n += strcmp(table->list[i]->tenant, tenant) == 0;
    return n;
}

enum status batch_table_save(struct batch_table *table, const struct batch *b)
{
    char *path = batch_table_path(table, b->id, ".json");
    enum status status = batch_save(b, path);
    free(path);
    return status;
}

void batch_table_expire(struct batch_table *table, int64_t now_s)
{
    for (int i = table->n - 1; i >= 0; i--) {
        struct batch *b = table->list[i];
        if (!batch_is_final(b) || now_s - b->created_us / 1000000 < RECORD_KEPT_S) continue;
        char *path = batch_table_path(table, b->id, ".json");
        unlink(path);
        free(path);
        pthread_mutex_lock(&table->lock);
        memmove(table->list + i, table->list + i + 1, (size_t)(--table->n - i) * sizeof *table->list);
        pthread_mutex_unlock(&table->lock);
        batch_free(b);
    }
}
