// SPDX-License-Identifier: Apache-2.0
// Reads the --config files again, into a copy of the table with its own storage: a file that has an error changes
// nothing.
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/options.h"

union option_value {
    bool boolean;
    int64_t integer;
    double real;
    char *text;
    struct option_list list;
};

struct copy { // copy of a table
    struct option *rows;
    union option_value *values;
    size_t n;
};

static void copy_init(struct copy *copy, const struct option *table)
{
    while (table[copy->n].name)
        copy->n++;
    copy->rows = mem_alloc_array(copy->n + 1, sizeof *copy->rows);
    copy->values = mem_alloc_array(copy->n + 1, sizeof *copy->values);
    for (size_t i = 0; i < copy->n; i++) {
        copy->rows[i] = table[i];
        copy->rows[i].value = &copy->values[i];
    }
}

static void copy_fini(struct copy *copy)
{
    options_free(copy->rows);
    free(copy->values);
    free(copy->rows);
}

static size_t value_size(enum option_type type)
{
    switch (type) {
    case OPTION_BOOL: return sizeof(bool);
    case OPTION_INT: return sizeof(int64_t);
    case OPTION_REAL: return sizeof(double);
    case OPTION_LIST: return sizeof(struct option_list);
    default: return sizeof(char *);
    }
}

// Exchanges the values, so that the copy frees the old one.
static void values_swap(const struct option *a, const struct option *b)
{
    union option_value value;
    size_t size = value_size(a->type);
    memcpy(&value, a->value, size);
    memcpy(a->value, b->value, size);
    memcpy(b->value, &value, size);
}

static void row_compare(const struct option *row, const struct option *now)
{
    char *before = option_value_format(row), *after = option_value_format(now);
    if (strcmp(before, after) != 0 && row->live) {
        log_event(LOG_INFO, "option_changed", LOG_FIELD("option", row->name), LOG_FIELD("old", before),
                  LOG_FIELD("new", after));
        values_swap(row, now);
    } else if (strcmp(before, after) != 0) {
        log_event(LOG_WARN, "option_not_changed", LOG_FIELD("option", row->name), LOG_FIELD("old", before),
                  LOG_FIELD("new", after), LOG_FIELD("effect", "restart the program to apply it"));
    }
    free(after);
    free(before);
}

enum status options_reload(const struct option *table)
{
    if (!options_have_config()) return STATUS_OK;
    struct copy copy = {0};
    copy_init(&copy, table);
    enum status status = options_read_again(copy.rows);
    for (size_t i = 0; status == STATUS_OK && i < copy.n; i++) {
        if (table[i].name[0] != '-' && !options_override_given(&table[i])) row_compare(&table[i], &copy.rows[i]);
    }
    copy_fini(&copy);
    return status;
}
