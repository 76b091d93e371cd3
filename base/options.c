// SPDX-License-Identifier: Apache-2.0
// See options.h. Parsing happens once, at start, in the main thread.
#include "base/options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"

// Which rows were set by file or flag, for the tables parsed so far (a program has one or two).
static const struct option *given_rows[256];
static int n_given;

static void option_mark_given(const struct option *row)
{
    for (int i = 0; i < n_given; i++) {
        if (given_rows[i] == row) return;
    }
    if (n_given < (int)(sizeof given_rows / sizeof given_rows[0])) given_rows[n_given++] = row;
}

static const struct option *option_find(const struct option *table, const char *name, size_t length)
{
    for (const struct option *row = table; row->name; row++) {
        if (row->name[0] != '-' && strlen(row->name) == length && strncmp(row->name, name, length) == 0) return row;
    }
    return NULL;
}

enum { LIMITS_BYTES = 64 };

static bool has_limits(const struct option *row)
{
    return row->min != 0 || row->max != 0;
}

// "1 to 100000000"; false when the option has no limits. Whole numbers are never written with an exponent.
static bool limits_format(const struct option *row, char text[LIMITS_BYTES])
{
    const char *format = row->type == OPTION_INT ? "%.0f to %.0f" : "%g to %g";
    snprintf(text, LIMITS_BYTES, format, row->min, row->max);
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
    const char *kind = row->type == OPTION_INT ? "a whole number" : "a number";
    char limits[LIMITS_BYTES];
    bool limited = limits_format(row, limits);
    return status_fail(STATUS_INVALID, "--%s '%s': must be %s%s%s%s%s", row->name, text, kind, limited ? " from " : "",
                       limited ? limits : "", space, unit);
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

static enum status option_set_given(const struct option *row, const char *text)
{
    enum status status = option_set(row, text);
    if (status == STATUS_OK) option_mark_given(row);
    return status;
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

static enum status options_read_file(const struct option *table, const char *path)
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
        status = row ? option_set_given(row, text_trim(value))
                     : status_fail(STATUS_INVALID, "unknown key '%s' (--help lists all)", key);
        if (status != STATUS_OK) status_context(status, "%s:%d", path, number);
    }
    if (status == STATUS_OK && ferror(file))
        status = status_fail(STATUS_INVALID, "--config %s: %s", path, strerror(errno));
    free(line);
    fclose(file);
    return status;
}

// Takes the flag at argv[*i]; moves *i over its value.
static enum status option_parse_flag(const struct option *table, int argc, char **argv, int *i)
{
    const char *name = argv[*i] + 2;
    const char *equals = strchr(name, '=');
    size_t length = equals ? (size_t)(equals - name) : strlen(name);
    const struct option *row = option_find(table, name, length);
    if (!row && !equals && strncmp(name, "no-", 3) == 0) {
        row = option_find(table, name + 3, length - 3);
        if (row && row->type == OPTION_BOOL) return option_set_given(row, "false");
        row = NULL;
    }
    if (!row) return status_fail(STATUS_INVALID, "unknown flag --%.*s (--help lists all)", (int)length, name);
    if (equals) return option_set_given(row, equals + 1);
    if (row->type == OPTION_BOOL) return option_set_given(row, "true");
    if (*i + 1 >= argc) return status_fail(STATUS_INVALID, "--%s: a value must follow", row->name);
    return option_set_given(row, argv[++*i]);
}

enum status options_parse(const struct option *table, int argc, char **argv, char **rest, int *n_rest_p)
{
    enum status status = STATUS_OK;
    for (const struct option *row = table; row->name; row++) {
        if (row->name[0] != '-' && row->default_text) status = option_set(row, row->default_text);
        if (status != STATUS_OK) return status;
    }
    for (int i = 1; i < argc; i++) { // the file first, wherever it is named: flags override it
        if (strcmp(argv[i], "--") == 0) break;
        if (strcmp(argv[i], "--config") == 0) {
            if (i + 1 >= argc) return status_fail(STATUS_INVALID, "--config: a file name must follow");
            status = options_read_file(table, argv[i + 1]);
        } else if (strncmp(argv[i], "--config=", 9) == 0) {
            status = options_read_file(table, argv[i] + 9);
        }
        if (status != STATUS_OK) return status;
    }
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
    const struct option *row = option_find(table, name, strlen(name));
    for (int i = 0; i < n_given; i++) {
        if (given_rows[i] == row) return true;
    }
    return false;
}

// --- --help: a table of three columns within HELP_WIDTH

enum { HELP_WIDTH = 100, HELP_DEFAULT_COLUMN = 33, HELP_TEXT_COLUMN = 51 };

// Writes `text` at `column` and returns the column after it; a cell that would touch the previous one starts a new
// line.
static int help_write_cell(FILE *out, int at, int column, const char *text)
{
    if (at >= column) {
        fputc('\n', out);
        at = 0;
    }
    return fprintf(out, "%*s%s", column - at, "", text) + at;
}

// Writes `text` in lines from HELP_TEXT_COLUMN to HELP_WIDTH, broken at blanks.
static void help_write_text(FILE *out, int at, const char *text)
{
    const int width = HELP_WIDTH - HELP_TEXT_COLUMN;
    while (*text) {
        int length = (int)strlen(text), skip = 0;
        if (length > width) {
            for (length = width; length > 0 && text[length] != ' '; length--)
                continue;
            if (!length) length = (int)strcspn(text, " ");
            skip = text[length] == ' ';
        }
        char *line = mem_format("%.*s", length, text);
        at = help_write_cell(out, at, HELP_TEXT_COLUMN, line);
        free(line);
        text += length + skip;
    }
    fputc('\n', out);
}

static void help_write_row(FILE *out, const char *name, const char *default_text, const char *help)
{
    int at = help_write_cell(out, 0, 2, name);
    if (*default_text) at = help_write_cell(out, at, HELP_DEFAULT_COLUMN, default_text);
    help_write_text(out, at, help);
}

static void help_write_option(FILE *out, const struct option *row)
{
    static const char *const placeholders[] = {"", " N", " X", " TEXT", "", " TEXT"};
    bool choice = row->type == OPTION_CHOICE, number = row->type == OPTION_INT || row->type == OPTION_REAL;
    const char *initial = row->default_text ? row->default_text : number ? "0" : "";
    bool unit = row->unit && *initial;
    char *name = mem_format("--%s%s%s", row->name, choice ? " " : placeholders[row->type], choice ? row->choices : "");
    char *default_text = mem_format("%s%s%s", initial, unit ? " " : "", unit ? row->unit : "");
    char limits[LIMITS_BYTES];
    bool limited = number && limits_format(row, limits);
    char *help = mem_format("%s%s%s%s%s", row->help, limited ? " (" : "", limited ? limits : "", limited ? ")" : "",
                            row->type == OPTION_LIST ? " (repeatable)" : "");
    help_write_row(out, name, default_text, help);
    free(help);
    free(default_text);
    free(name);
}

void options_help(const struct option *table, const char *usage, FILE *out)
{
    fprintf(out, "%s\n\n", usage);
    help_write_row(out, "Option", "Default", "Meaning (allowed values)");
    for (const struct option *row = table; row->name; row++) {
        if (row->name[0] == '-') {
            fprintf(out, "\n%s:\n", row->name + 1);
        } else {
            help_write_option(out, row);
        }
    }
    fprintf(out, "\nEvery program:\n");
    help_write_row(out, "--config FILE", "", "read options from lines of the form 'key = value'; flags override them");
    help_write_row(out, "--help", "", "print this text");
    help_write_row(out, "--version", "", "print the version");
}

// --- the settings line of the log

// Texts of a list, separated by commas; free() it.
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

// `joined_p` receives the text of a list, which the field borrows; free() it after logging.
static struct log_field option_field(const struct option *row, char **joined_p)
{
    switch (row->type) {
    case OPTION_BOOL: return LOG_FIELD(row->name, *(bool *)row->value);
    case OPTION_INT: return LOG_FIELD(row->name, *(int64_t *)row->value);
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
    struct log_field *fields = mem_alloc_array(n_rows, sizeof *fields);
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

int options_main(const struct option *table, const char *usage, int argc, char **argv, char **rest)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            options_help(table, usage, stdout);
            exit(0);
        }
        if (strcmp(argv[i], "--version") == 0) {
            printf("forepack %s\n", FOREPACK_VERSION);
            exit(0);
        }
    }
    int n_rest = 0;
    if (options_parse(table, argc, argv, rest, &n_rest) != STATUS_OK) {
        fprintf(stderr, "%s\n", status_message());
        exit(2);
    }
    return n_rest;
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
            for (int i = 0; i < list->count; i++)
                free(list->items[i]);
            free(list->items);
            *list = (struct option_list){0};
        }
    }
}
