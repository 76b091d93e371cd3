// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/json_unknown.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "lib/base/log.h"

enum { NAMES_MAX = 64, NAME_BYTES_MAX = 40 };

static struct {
    pthread_mutex_t mutex; // guards the fields below
    char names[NAMES_MAX][NAME_BYTES_MAX + 1];
    int n;
} logged = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static bool is_plain(const char *name)
{
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz_");
    return n >= 1 && n <= NAME_BYTES_MAX && !name[n];
}

// Returns true if the name is new and there is room for it.
static bool logged_add(const char *name)
{
    bool is_new = false;
    pthread_mutex_lock(&logged.mutex);
    int i = 0;
    while (i < logged.n && strcmp(logged.names[i], name) != 0)
        i++;
    if (i == logged.n && i < NAMES_MAX) {
        strcpy(logged.names[logged.n++], name); // is_plain() has checked the length
        is_new = true;
    }
    pthread_mutex_unlock(&logged.mutex);
    return is_new;
}

void json_unknown_log(const char *api, json_knows_fn *knows, const json_t *body)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)body, name, value)
    {
        if (!knows(name) && is_plain(name) && logged_add(name))
            log_event(LOG_INFO, "field_ignored", LOG_FIELD("api", api), LOG_FIELD("field", name));
    }
}
