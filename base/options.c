// SPDX-License-Identifier: Apache-2.0
// See options.h. Parsing happens once, at start, in the main thread.
#include "base/options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/version.h"

// Which rows were set by file or flag, for the tables parsed so far (a program has one or two).
static const struct option *given_rows[256];
static int n_given;

static void mark_given(const struct option *row)
{
    for (int i = 0; i < n_given; i++) {
        if (given_rows[i] == row) return;
    }
    if (n_given < (int)(sizeof given_rows / sizeof given_rows[0])) given_rows[n_given++] = row;
}

static const struct option *find(const struct option *table, const char *name, size_t length)
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

static enum status refuse(const struct option *row, const char *text)
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
    if (!has_limits(row))
        return status_fail(STATUS_INVALID, "--%s '%s': must be %s%s%s", row->name, text, kind, space, unit);
    return status_fail(STATUS_INVALID, "--%s '%s': must be %s from %g to %g%s%s", row->name, text, kind, row->min,
                       row->max, space, unit);
}

static bool is_choice(const char *choices, const char *text)
{
    size_t length = strlen(text);
    for (const char *at = choices; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL) {
        if (length && strncmp(at, text, length) == 0 && (at[length] == '|' || !at[length])) return true;
    }
    return false;
}

static enum status set(const struct option *row, const char *text)
{
    char *end = NULL;
    errno = 0;
    switch (row->type) {
    case OPTION_BOOL:
        if (!is_choice("true|false|yes|no|on|off|1|0", text)) return refuse(row, text);
        *(bool *)row->value = is_choice("true|yes|on|1", text);
        break;
    case OPTION_INT: {
        int64_t value = strtoll(text, &end, 10);
        if (end == text || *end || errno) return refuse(row, text);
        if (has_limits(row) && ((double)value < row->min || (double)value > row->max)) return refuse(row, text);
        *(int64_t *)row->value = value;
        break;
    }
    case OPTION_REAL: {
        double value = strtod(text, &end);
        if (end == text || *end || errno || !isfinite(value)) return refuse(row, text);
        if (has_limits(row) && (value < row->min || value > row->max)) return refuse(row, text);
        *(double *)row->value = value;
        break;
    }
    case OPTION_CHOICE:
        if (!is_choice(row->choices, text)) return refuse(row, text);
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

static enum status set_given(const struct option *row, const char *text)
{
    enum status status = set(row, text);
    if (status == STATUS_OK) mark_given(row);
    return status;
}

static char *trim(char *text)
{
    while (isspace((unsigned char)*text))
        text++;
    char *end = text + strlen(text);
    while (end > text && isspace((unsigned char)end[-1]))
        *--end = 0;
    return text;
}

static enum status read_file(const struct option *table, const char *path)
{
    FILE *file = fopen(path, "r");
    if (!file) return status_fail(STATUS_INVALID, "--config %s: %s", path, strerror(errno));
    enum status status = STATUS_OK;
    char *line = NULL;
    size_t size = 0;
    for (int number = 1; status == STATUS_OK && getline(&line, &size, file) >= 0; number++) {
        char *key = trim(line);
        if (!*key || *key == '#') continue;
        char *value = strchr(key, '=');
        if (!value) {
            status = status_fail(STATUS_INVALID, "%s:%d: expected 'key = value'", path, number);
            break;
        }
        *value++ = 0;
        key = trim(key);
        const struct option *row = find(table, key, strlen(key));
        status =
            row ? set_given(row, trim(value)) : status_fail(STATUS_INVALID, "unknown key '%s' (--help lists all)", key);
        if (status != STATUS_OK) status_context(status, "%s:%d", path, number);
    }
    if (status == STATUS_OK && ferror(file))
        status = status_fail(STATUS_INVALID, "--config %s: %s", path, strerror(errno));
    free(line);
    fclose(file);
    return status;
}

// Takes the flag at argv[*i]; moves *i over its value.
static enum status take_flag(const struct option *table, int argc, char **argv, int *i)
{
    const char *name = argv[*i] + 2;
    const char *equals = strchr(name, '=');
    size_t length = equals ? (size_t)(equals - name) : strlen(name);
    const struct option *row = find(table, name, length);
    if (!row && !equals && strncmp(name, "no-", 3) == 0) {
        row = find(table, name + 3, length - 3);
        if (row && row->type == OPTION_BOOL) return set_given(row, "false");
        row = NULL;
    }
    if (!row) return status_fail(STATUS_INVALID, "unknown flag --%.*s (--help lists all)", (int)length, name);
    if (equals) return set_given(row, equals + 1);
    if (row->type == OPTION_BOOL) return set_given(row, "true");
    if (*i + 1 >= argc) return status_fail(STATUS_INVALID, "--%s: a value must follow", row->name);
    return set_given(row, argv[++*i]);
}

enum status options_parse(const struct option *table, int argc, char **argv, char **rest, int *n_rest_p)
{
    enum status status = STATUS_OK;
    for (const struct option *row = table; row->name; row++) {
        if (row->name[0] != '-' && row->default_text) status = set(row, row->default_text);
        if (status != STATUS_OK) return status;
    }
    for (int i = 1; i < argc; i++) { // the file first, wherever it is named: flags override it
        if (strcmp(argv[i], "--") == 0) break;
        if (strcmp(argv[i], "--config") == 0) {
            if (i + 1 >= argc) return status_fail(STATUS_INVALID, "--config: a file name must follow");
            status = read_file(table, argv[i + 1]);
        } else if (strncmp(argv[i], "--config=", 9) == 0) {
            status = read_file(table, argv[i] + 9);
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
            status = take_flag(table, argc, argv, &i);
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
    const struct option *row = find(table, name, strlen(name));
    for (int i = 0; i < n_given; i++) {
        if (given_rows[i] == row) return true;
    }
    return false;
}

static const char *const type_names[] = {"", " N", " X", " TEXT", "", " TEXT"};

void options_help(const struct option *table, const char *usage, FILE *out)
{
    fprintf(out, "%s\n", usage);
    for (const struct option *row = table; row->name; row++) {
        if (row->name[0] == '-') {
            fprintf(out, "\n%s:\n", row->name + 1);
            continue;
        }
        char left[96];
        if (row->type == OPTION_CHOICE) {
            snprintf(left, sizeof left, "--%s %s", row->name, row->choices);
        } else {
            snprintf(left, sizeof left, "--%s%s", row->name, type_names[row->type]);
        }
        fprintf(out, "  %-30s %s", left, row->help);
        if (row->unit) fprintf(out, " [%s]", row->unit);
        if (row->type != OPTION_CHOICE && has_limits(row)) fprintf(out, " (%g to %g)", row->min, row->max);
        if (row->type == OPTION_LIST) fprintf(out, " (may be repeated)");
        if (row->default_text && row->default_text[0]) fprintf(out, " (default %s)", row->default_text);
        fputc('\n', out);
    }
    fprintf(out, "\nAlways:\n");
    fprintf(out, "  %-30s %s\n", "--config FILE",
            "read 'key = value' lines (keys are the names above); flags override it");
    fprintf(out, "  %-30s %s\n", "--help", "this text");
    fprintf(out, "  %-30s %s\n", "--version", "the version");
}

int options_main(const struct option *table, const char *usage, int argc, char **argv, char **rest)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            options_help(table, usage, stdout);
            exit(0);
        }
        if (strcmp(argv[i], "--man") == 0) {
            options_man(table, usage, stdout);
            exit(0);
        }
        if (strcmp(argv[i], "--version") == 0) {
            printf("%s %s\n", program_invocation_short_name, FOREPACK_VERSION);
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
