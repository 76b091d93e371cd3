// SPDX-License-Identifier: Apache-2.0
// Writes --help: a table of three columns (option, default with its unit, meaning) within HELP_WIDTH.
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/options.h"

enum { HELP_WIDTH = 100, HELP_DEFAULT_COLUMN = 33, HELP_TEXT_COLUMN = 51 };

// Writes `text` at `column` and returns the column after it. Starts a new line if the cell would touch the previous
// one.
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

char *option_name_format(const struct option *row)
{
    static const char *const placeholders[] = {"", "N", "X", "TEXT", "", "TEXT"};
    const char *value = row->type == OPTION_CHOICE ? row->choices : placeholders[row->type];
    if (row->minus_one) return mem_format("--%s N|%s", row->name, row->minus_one);
    if (row->placeholder) value = row->placeholder;
    return mem_format("--%s%s%s", row->name, *value ? " " : "", value);
}

char *option_text_format(const struct option *row, bool unit_shown)
{
    char limits[OPTION_LIMITS_BYTES], notes[256] = "";
    bool number = row->type == OPTION_INT || row->type == OPTION_REAL;
    const char *parts[] = {row->unit && !unit_shown ? row->unit : NULL,
                           number && option_limits_format(row, "..", limits) ? limits : NULL,
                           row->type == OPTION_LIST ? "repeatable" : NULL};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        size_t n = strlen(notes);
        if (parts[i]) snprintf(notes + n, sizeof notes - n, "%s%s", n ? ", " : "", parts[i]);
    }
    return *notes ? mem_format("%s (%s)", row->help, notes) : mem_string(row->help);
}

static void help_write_option(FILE *out, const struct option *row)
{
    const char *initial = row->default_text ? row->default_text : "";
    bool unit = row->unit && *initial && !row->minus_one;
    char *default_text = mem_format("%s%s%s", initial, unit ? " " : "", unit ? row->unit : "");
    char *name = option_name_format(row), *text = option_text_format(row, unit);
    help_write_row(out, name, default_text, text);
    free(text);
    free(name);
    free(default_text);
}

void options_help(const struct option *table, const char *usage, FILE *out)
{
    fprintf(out, "%s\n\n", usage);
    help_write_row(out, "Option", "Default", "Meaning (allowed range)");
    for (const struct option *row = table; row->name; row++) {
        if (row->name[0] == '-') {
            fprintf(out, "\n%s:\n", row->name + 1);
        } else {
            help_write_option(out, row);
        }
    }
    fprintf(out, "\nEvery program:\n");
    help_write_row(out, "--config FILE", "", "read options from lines of the form 'key = value'; flags override them");
    if (options_environment_used())
        help_write_row(out, OPTIONS_ENVIRONMENT_PREFIX "NAME", "",
                       "environment variable that sets --name (MAX_WAIT_MS: --max-wait-ms); flags override it, and it "
                       "overrides --config");
    help_write_row(out, "--help", "", "print this text");
    help_write_row(out, "--version", "", "print the version");
}
