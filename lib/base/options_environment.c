// SPDX-License-Identifier: Apache-2.0
// Reads options from environment variables: FOREPACK_OPT_MAX_WAIT_MS sets --max-wait-ms. Kubernetes sets variables such
// as FOREPACK_PORT in every pod if there is a Service named `forepack`. None of their names begins with this prefix.
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/options.h"

extern char **environ;

static bool environment_read; // options_use_environment() was called

static const char prefix[] = OPTIONS_ENVIRONMENT_PREFIX;

void options_use_environment(void)
{
    environment_read = true;
}

bool options_environment_used(void)
{
    return environment_read;
}

const char *options_environment_config(void)
{
    const char *path = environment_read ? getenv(OPTIONS_ENVIRONMENT_PREFIX "CONFIG") : NULL;
    return path && *path ? path : NULL;
}

// Returns the option's name for the variable "PREFIXMAX_WAIT_MS=...": "max-wait-ms". Returns NULL if the name has other
// characters than capital letters, digits and underscores. The caller frees it.
static char *option_name_of(const char *variable)
{
    const char *from = variable + sizeof prefix - 1;
    size_t n = strcspn(from, "=");
    char *name = mem_alloc(n + 1);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)from[i];
        if (!isupper(c) && !isdigit(c) && c != '_') {
            free(name);
            return NULL;
        }
        name[i] = c == '_' ? '-' : (char)tolower(c);
    }
    return name;
}

static const struct option *row_find(const struct option *table, const char *name)
{
    for (const struct option *row = table; row->name; row++) {
        if (row->name[0] != '-' && strcmp(row->name, name) == 0) return row;
    }
    return NULL;
}

// Sets the row from the variable's value. Each line of the value is one item of a list.
static enum status row_set(const struct option *row, const char *value, option_set_fn *set)
{
    if (row->type != OPTION_LIST) return set(row, value);
    enum status status = STATUS_OK;
    while (status == STATUS_OK && *value) {
        size_t n = strcspn(value, "\n");
        char *item = mem_format("%.*s", (int)n, value);
        if (n) status = set(row, item);
        free(item);
        value += n + (value[n] == '\n');
    }
    return status;
}

static enum status variable_read(const struct option *table, const char *variable, option_set_fn *set)
{
    char *name = option_name_of(variable);
    int length = (int)strcspn(variable, "=");
    const char *value = variable + length + (variable[length] == '=');
    const struct option *row = name ? row_find(table, name) : NULL;
    bool is_config = name && strcmp(name, "config") == 0;
    free(name);
    if (is_config) return STATUS_OK; // options_environment_config()
    if (!row)                        // the value may be a secret
        return status_fail(STATUS_INVALID,
                           "environment variable %.*s: this program has no such option (--help lists all)", length,
                           variable);
    enum status status = row_set(row, value, set);
    return status == STATUS_OK ? status : status_context(status, "environment variable %.*s", length, variable);
}

enum status options_environment_read(const struct option *table, option_set_fn *set)
{
    for (char **variable = environ; environment_read && *variable; variable++) {
        if (strncmp(*variable, prefix, sizeof prefix - 1) == 0) TRY(variable_read(table, *variable, set));
    }
    return STATUS_OK;
}
