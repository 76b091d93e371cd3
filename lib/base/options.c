// SPDX-License-Identifier: Apache-2.0
// Parses options and logs the settings line. options_help.c writes --help, and options_reload.c reads the --config file
// again.
#include "lib/base/options.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/version.h"

// Rows that a file, a variable or a flag has set, in any of the tables parsed so far (a program has one or two).
struct row_set {
    const struct option *rows[256];
    int n;
};
static struct row_set given, given_by_variable, given_by_flag;
static const char **config_files; // [n_config_files] values of --config in their order; borrowed
static int n_config_files;

static bool rows_have(const struct row_set *set, const struct option *row)
{
    for (int i = 0; i < set->n; i++) {
        if (set->rows[i] == row) return true;
    }
    return false;
}

static void rows_add(struct row_set *set, const struct option *row)
{
    int room = (int)(sizeof set->rows / sizeof set->rows[0]);
    if (!rows_have(set, row) && set->n < room) set->rows[set->n++] = row;
}

static const struct option *option_find(const struct option *table, const char *name, size_t length)
{
    for (const struct option *row = table; row->name; row++) {
        if (row->name[0] != '-' && strlen(row->name) == length && strncmp(row->name, name, length) == 0) return row;
    }
    return NULL;
}

static bool has_limits(const struct option *row)
{
    return row->min != 0 || row->max != 0;
}

bool option_limits_format(const struct option *row, const char *between, char text[OPTION_LIMITS_BYTES])
{
    const char *format = row->type == OPTION_INT ? "%.0f%s%.0f" : "%g%s%g";
    snprintf(text, OPTION_LIMITS_BYTES, format, row->min, between, row->max);
    return has_limits(row);
}

static enum status option_refuse(const struct option *row, const char *text)
{
    const char *unit = row->unit ? row->unit : "";
    const char *space = row->unit ? " " : "";
    switch (row->type) {
    case OPTION_BOOL: return status_fail(STATUS_INVALID, "--%s '%s': must be true or false", row->name, text);
    case OPTION_CHOICE:
        return status_fail(STATUS_INVALID, "--%s '%s': must be one of %s", row->name, text, row->choices);
    default: break;
    }
    const char *word = row->minus_one ? row->minus_one : "", * or = row->minus_one ? " or " : "";
    const char *kind = row->type == OPTION_INT ? "a whole number" : "a number";
    char limits[OPTION_LIMITS_BYTES];
    bool limited = option_limits_format(row, " to ", limits);
    return status_fail(STATUS_INVALID, "--%s '%s': must be %s%s%s%s%s%s%s", row->name, text, word, or, kind,
                       limited ? " from " : "", limited ? limits : "", space, unit);
}

static bool choice_listed(const char *choices, const char *text)
{
    size_t length = strlen(text);
    for (const char *at = choices; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL) {
        if (length && strncmp(at, text, length) == 0 && (at[length] == '|' || !at[length])) return true;
    }
    return false;
}

static enum status option_set(const struct option *row, const char *text)
{
    char *end = NULL;
    errno = 0;
    switch (row->type) {
    case OPTION_BOOL:
        if (!choice_listed("true|false|yes|no|on|off|1|0", text)) return option_refuse(row, text);
        *(bool *)row->value = choice_listed("true|yes|on|1", text);
        break;
    case OPTION_INT: {
        if (row->minus_one && strcmp(text, row->minus_one) == 0) {
            *(int64_t *)row->value = -1;
            break;
        }
        int64_t value = strtoll(text, &end, 10);
        if (end == text || *end || errno) return option_refuse(row, text);
        if (has_limits(row) && ((double)value < row->min || (double)value > row->max)) return option_refuse(row, text);
        *(int64_t *)row->value = value;
        break;
    }
    case OPTION_REAL: {
        double value = strtod(text, &end);
        if (end == text || *end || errno || !isfinite(value)) return option_refuse(row, text);
        if (has_limits(row) && (value < row->min || value > row->max)) return option_refuse(row, text);
        *(double *)row->value = value;
        break;
    }
    case OPTION_CHOICE:
        if (!choice_listed(row->choices, text)) return option_refuse(row, text);
        // fall through
    case OPTION_STRING:
        free(*(char **)row->value);
        *(char **)row->value = mem_string(text);
        break;
    case OPTION_LIST: {
        struct option_list *list = row->value;
        list->items = mem_resize(list->items, (size_t)list->count + 1, sizeof *list->items);
        list->items[list->count++] = mem_string(text);
        break;
    }
    }
    return STATUS_OK;
}

static void list_clear(struct option_list *list)
{
    while (list->count)
        free(list->items[--list->count]);
}

static enum status option_set_given(const struct option *row, const char *text)
{
    enum status status = option_set(row, text);
    if (status == STATUS_OK) rows_add(&given, row);
    return status;
}

// Sets an option by a flag or a variable. The first item of a list replaces the items that have lower precedence.
static enum status option_set_over(struct row_set *set, const struct option *row, const char *text)
{
    if (row->type == OPTION_LIST && !rows_have(set, row)) list_clear(row->value);
    enum status status = option_set_given(row, text);
    if (status == STATUS_OK) rows_add(set, row);
    return status;
}

static enum status option_set_by_variable(const struct option *row, const char *text)
{
    return option_set_over(&given_by_variable, row, text);
}

static enum status option_set_by_flag(const struct option *row, const char *text)
{
    return option_set_over(&given_by_flag, row, text);
}

static char *text_trim(char *text)
{
    while (isspace((unsigned char)*text))
        text++;
    char *end = text + strlen(text);
    while (end > text && isspace((unsigned char)end[-1]))
        *--end = 0;
    return text;
}

static enum status options_read_file(const struct option *table, const char *path, option_set_fn *set)
{
    FILE *file = fopen(path, "r");
    if (!file) return status_fail(STATUS_INVALID, "--config %s: %s", path, strerror(errno));
    enum status status = STATUS_OK;
    char *line = NULL;
    size_t size = 0;
    for (int number = 1; status == STATUS_OK && getline(&line, &size, file) >= 0; number++) {
        char *key = text_trim(line);
        if (!*key || *key == '#') continue;
        char *value = strchr(key, '=');
        if (!value) {
            status = status_fail(STATUS_INVALID, "%s:%d: expected 'key = value'", path, number);
            break;
        }
        *value++ = 0;
        key = text_trim(key);
        const struct option *row = option_find(table, key, strlen(key));
        status =
            row ? set(row, text_trim(value)) : status_fail(STATUS_INVALID, "unknown key '%s' (--help lists all)", key);
        if (status != STATUS_OK) status_context(status, "%s:%d", path, number);
    }
    if (status == STATUS_OK && ferror(file))
        status = status_fail(STATUS_INVALID, "--config %s: %s", path, strerror(errno));
    free(line);
    fclose(file);
    return status;
}

// Parses the flag at argv[*i] and advances *i over its value.
static enum status option_parse_flag(const struct option *table, int argc, char **argv, int *i)
{
    const char *name = argv[*i] + 2;
    const char *equals = strchr(name, '=');
    size_t length = equals ? (size_t)(equals - name) : strlen(name);
    const struct option *row = option_find(table, name, length);
    if (!row && !equals && strncmp(name, "no-", 3) == 0) {
        row = option_find(table, name + 3, length - 3);
        if (row && row->type == OPTION_BOOL) return option_set_by_flag(row, "false");
        row = NULL;
    }
    if (!row) return status_fail(STATUS_INVALID, "unknown flag --%.*s (--help lists all)", (int)length, name);
    if (equals) return option_set_by_flag(row, equals + 1);
    if (row->type == OPTION_BOOL) return option_set_by_flag(row, "true");
    if (*i + 1 >= argc) return status_fail(STATUS_INVALID, "--%s: a value must follow", row->name);
    return option_set_by_flag(row, argv[++*i]);
}

static enum status options_set_defaults(const struct option *table)
{
    for (const struct option *row = table; row->name; row++) {
        if (row->name[0] != '-' && row->default_text) TRY(option_set(row, row->default_text));
    }
    return STATUS_OK;
}

static enum status config_files_list(int argc, char **argv)
{
    static int capacity;
    n_config_files = 0;
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        bool follows = strcmp(argv[i], "--config") == 0;
        if (!follows && strncmp(argv[i], "--config=", 9) != 0) continue;
        if (follows && i + 1 == argc) return status_fail(STATUS_INVALID, "--config: a file name must follow");
        MEM_GROW(config_files, n_config_files, capacity);
        config_files[n_config_files++] = follows ? argv[++i] : argv[i] + 9;
    }
    if (!n_config_files && options_environment_config()) {
        MEM_GROW(config_files, n_config_files, capacity);
        config_files[n_config_files++] = options_environment_config();
    }
    return STATUS_OK;
}

static enum status config_files_read(const struct option *table, option_set_fn *set)
{
    for (int i = 0; i < n_config_files; i++)
        TRY(options_read_file(table, config_files[i], set));
    return STATUS_OK;
}

enum status options_parse(const struct option *table, int argc, char **argv, char **rest, int *n_rest_p)
{
    enum status status = STATUS_OK;
    TRY(options_set_defaults(table));
    TRY(config_files_list(argc, argv));
    TRY(config_files_read(table, option_set_given)); // from the lowest precedence to the highest
    TRY(options_environment_read(table, option_set_by_variable));
    int n_rest = 0;
    bool flags = true;
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        if (flags && strcmp(arg, "--") == 0) {
            flags = false;
        } else if (flags && strcmp(arg, "--config") == 0) {
            i++;
        } else if (flags && strncmp(arg, "--config=", 9) == 0) {
            continue;
        } else if (flags && strncmp(arg, "--", 2) == 0) {
            status = option_parse_flag(table, argc, argv, &i);
            if (status != STATUS_OK) return status;
        } else if (flags && arg[0] == '-' && arg[1]) {
            return status_fail(STATUS_INVALID, "unknown flag %s (--help lists all; '--' ends the flags)", arg);
        } else if (rest) {
            rest[n_rest++] = argv[i];
        } else {
            return status_fail(STATUS_INVALID, "unexpected argument '%s' (--help shows the usage)", arg);
        }
    }
    if (n_rest_p) *n_rest_p = n_rest;
    return STATUS_OK;
}

bool options_given(const struct option *table, const char *name)
{
    return rows_have(&given, option_find(table, name, strlen(name)));
}

// --- for options_reload.c

bool options_override_given(const struct option *row)
{
    return rows_have(&given_by_flag, row) || rows_have(&given_by_variable, row);
}

bool options_have_config(void)
{
    return n_config_files > 0;
}

enum status options_read_again(const struct option *table)
{
    TRY(options_set_defaults(table));
    return config_files_read(table, option_set);
}

// --- the settings line of the log

// Returns the texts of a list, separated by commas. The caller frees it.
static char *list_join(const struct option_list *list)
{
    char *joined = mem_string("");
    for (int i = 0; i < list->count; i++) {
        char *longer = mem_format("%s%s%s", joined, i ? "," : "", list->items[i]);
        free(joined);
        joined = longer;
    }
    return joined;
}

static bool is_word(const struct option *row)
{
    return row->minus_one && *(const int64_t *)row->value == -1;
}

char *option_value_format(const struct option *row)
{
    const void *value = row->value;
    switch (row->type) {
    case OPTION_BOOL: return mem_string(*(const bool *)value ? "true" : "false");
    case OPTION_INT: return is_word(row) ? mem_string(row->minus_one) : mem_format("%" PRId64, *(const int64_t *)value);
    case OPTION_REAL: return mem_format("%.9g", *(const double *)value);
    case OPTION_LIST: return list_join(value);
    default: return mem_string(*(char *const *)value ? *(char *const *)value : "");
    }
}

// Returns the log field of an option. *joined_p receives the text of a list, which the field borrows; free it after
// logging.
static struct log_field option_field(const struct option *row, char **joined_p)
{
    switch (row->type) {
    case OPTION_BOOL: return LOG_FIELD(row->name, *(bool *)row->value);
    case OPTION_INT:
        if (is_word(row)) return LOG_FIELD(row->name, row->minus_one);
        return LOG_FIELD(row->name, *(int64_t *)row->value);
    case OPTION_REAL: return LOG_FIELD(row->name, *(double *)row->value);
    case OPTION_LIST: return LOG_FIELD(row->name, (const char *)(*joined_p = list_join(row->value)));
    default: return LOG_FIELD(row->name, (const char *)*(char **)row->value);
    }
}

void options_log(const struct option *table)
{
    size_t n_rows = 0, n_fields = 0;
    while (table[n_rows].name)
        n_rows++;
    struct log_field *fields = mem_alloc_array(n_rows + 2, sizeof *fields);
    fields[n_fields++] = LOG_FIELD("version", FOREPACK_VERSION);
    fields[n_fields++] = LOG_FIELD("commit", build_commit());
    char **joined = mem_alloc_array(n_rows, sizeof *joined);
    for (size_t i = 0; i < n_rows; i++) {
        if (table[i].name[0] != '-') fields[n_fields++] = option_field(&table[i], &joined[i]);
    }
    log_write(LOG_INFO, "settings", fields, n_fields);
    for (size_t i = 0; i < n_rows; i++)
        free(joined[i]);
    free(joined);
    free(fields);
}

char *options_format(const struct option *table)
{
    char *text = mem_string("");
    for (const struct option *row = table; row->name; row++) {
        if (row->name[0] == '-') continue;
        char *value = option_value_format(row), *longer = mem_format("%s%s = %s\n", text, row->name, value);
        free(value);
        free(text);
        text = longer;
    }
    return text;
}

void options_free(const struct option *table)
{
    for (const struct option *row = table; row->name; row++) {
        if (row->name[0] == '-') continue;
        if (row->type == OPTION_STRING || row->type == OPTION_CHOICE) {
            free(*(char **)row->value);
            *(char **)row->value = NULL;
        } else if (row->type == OPTION_LIST) {
            struct option_list *list = row->value;
            list_clear(list);
            free(list->items);
            list->items = NULL;
        }
    }
}
