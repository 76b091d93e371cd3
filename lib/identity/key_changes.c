// SPDX-License-Identifier: Apache-2.0
#include "lib/identity/key_changes.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/identity/key_text.h"

struct counts {
    int added, removed, changed;
};

static int by_id(const void *a, const void *b)
{
    return strcmp((*(const struct api_key *const *)a)->id, (*(const struct api_key *const *)b)->id);
}

// Returns the line of a key without id and hash: tenant and settings. The caller frees it. NULL means no key.
static char *settings_format(const struct api_key *key)
{
    if (!key) return mem_string("");
    char *line = api_key_format(key), *hash = strchr(line, ' ') + 1;
    char *settings = mem_string(strchr(hash, ' ') + 1);
    free(line);
    return settings;
}

// Logs the change of one key. `old` is NULL for an added key, `new` for a removed key.
static void key_log(const struct api_key *old, const struct api_key *new, struct counts *counts)
{
    char *before = settings_format(old), *after = settings_format(new);
    bool replaced = old && new &&memcmp(old->hash, new->hash, KEY_HASH_BYTES) != 0;
    int *count = !old ? &counts->added : !new ? &counts->removed : &counts->changed;
    const char *event = !old ? "api_key_added" : !new ? "api_key_removed" : "api_key_changed";
    if (strcmp(before, after) != 0 || replaced) {
        ++*count;
        if (counts->added + counts->removed + counts->changed <= KEY_CHANGES_LOGGED)
            log_event(LOG_INFO, event, LOG_FIELD("key", old ? old->id : new->id), LOG_FIELD("old", before),
                      LOG_FIELD("new", after), LOG_FIELD("secret_replaced", replaced));
    }
    free(after);
    free(before);
}

void key_changes_log(const char *path, const struct api_key **before, size_t n_before, const struct api_key **after,
                     size_t n_after)
{
    struct counts counts = {0};
    if (n_before) qsort(before, n_before, sizeof *before, by_id);
    if (n_after) qsort(after, n_after, sizeof *after, by_id);
    for (size_t i = 0, k = 0; i < n_before || k < n_after;) {
        int order = i == n_before ? 1 : k == n_after ? -1 : strcmp(before[i]->id, after[k]->id);
        key_log(order <= 0 ? before[i] : NULL, order >= 0 ? after[k] : NULL, &counts);
        i += order <= 0;
        k += order >= 0;
    }
    log_event(LOG_INFO, "api_keys_changed", LOG_FIELD("file", path), LOG_FIELD("added", counts.added),
              LOG_FIELD("removed", counts.removed), LOG_FIELD("changed", counts.changed));
}
