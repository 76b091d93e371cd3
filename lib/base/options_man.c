// SPDX-License-Identifier: Apache-2.0
// Writes a program's man page in roff, from the table and the usage text that --help prints.
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/options.h"
#include "lib/base/version.h"

static void roff_print(const char *text, size_t n, FILE *out)
{
    for (size_t i = 0; i < n; i++) {
        bool line_start = i == 0 || text[i - 1] == '\n';
        // The line must not become a request of roff.
        if (line_start && (text[i] == '.' || text[i] == '\'')) fputs("\\&", out);
        if (text[i] == '\\')
            fputs("\\e", out);
        else if (text[i] == '-')
            fputs("\\-", out);
        else
            fputc(text[i], out);
    }
}

static void roff_puts(const char *text, FILE *out)
{
    roff_print(text, strlen(text), out);
}

// Finds "forepack-up" in "forepack up [--main DIR]": joins the words up to the first word that is not a command.
static void page_name(const char *synopsis, char *name, size_t size_bytes)
{
    size_t n = strcspn(synopsis, "[(<\n"), length = 0;
    for (size_t i = 0; i < n && length + 1 < size_bytes; i++) {
        char c = synopsis[i];
        bool word_start = i > 0 && synopsis[i - 1] == ' ';
        if (word_start && !islower((unsigned char)c)) break;
        name[length++] = c == ' ' ? '-' : c;
    }
    while (length && name[length - 1] == '-')
        length--;
    name[length] = 0;
}

static void row_print(const struct option *row, FILE *out)
{
    char *name = option_name_format(row), *text = option_text_format(row, false);
    fputs(".TP\n.B ", out);
    roff_puts(name, out);
    fputc('\n', out);
    roff_puts(text, out);
    if (row->default_text && row->default_text[0]) {
        fputs(" (default ", out);
        for (const char *c = row->default_text; *c; c++) { // a long one may be broken after commas
            roff_print(c, 1, out);
            if (*c == ',') fputs("\\:", out);
        }
        fputc(')', out);
    }
    fputc('\n', out);
    free(text);
    free(name);
}

// Returns the length of the synopsis: the first line, and further lines that start with a blank.
static size_t synopsis_find_end(const char *synopsis)
{
    size_t n = strcspn(synopsis, "\n");
    while (synopsis[n] && synopsis[n + 1] == ' ')
        n += 1 + strcspn(synopsis + n + 1, "\n");
    return n;
}

// Writes lines as they are.
static void lines_print(const char *heading, const char *text, size_t n, FILE *out)
{
    fprintf(out, ".SH %s\n.nf\n", heading);
    roff_print(text, n, out);
    fputs("\n.fi\n", out);
}

void options_man(const struct option *table, const char *usage, FILE *out)
{
    static const char prefix[] = "Usage: ";
    const char *synopsis = strncmp(usage, prefix, sizeof prefix - 1) == 0 ? usage + sizeof prefix - 1 : usage;
    size_t synopsis_length = synopsis_find_end(synopsis);
    const char *description = synopsis + synopsis_length + strspn(synopsis + synopsis_length, "\n");
    char name[80];
    page_name(synopsis, name, sizeof name);

    fputs(".TH \"", out);
    for (const char *c = name; *c; c++)
        fputc(toupper((unsigned char)*c), out);
    fprintf(out, "\" 1 \"\" \"Forepack %s\" \"Forepack\"\n", FOREPACK_VERSION);
    fputs(".nh\n.ad l\n.SH NAME\n", out); // no hyphens, and no gaps between words, which long options would cause
    roff_puts(name, out);
    fputs(" \\- ", out);
    if (*description)
        roff_print(description, strcspn(description, ".\n"), out);
    else
        fputs("part of Forepack", out);
    fputc('\n', out);
    lines_print("SYNOPSIS", synopsis, synopsis_length, out);
    if (*description) lines_print("DESCRIPTION", description, strlen(description), out);
    fputs(".SH OPTIONS\n", out);
    for (const struct option *row = table; row->name; row++) {
        if (row->name[0] == '-') {
            fputs(".SS ", out);
            roff_puts(row->name + 1, out);
            fputc('\n', out);
        } else {
            row_print(row, out);
        }
    }
    if (options_environment_used())
        fputs(".SH ENVIRONMENT\n.TP\n.B " OPTIONS_ENVIRONMENT_PREFIX "NAME\nsets the option of this name: MAX_WAIT_MS "
              "sets \\-\\-max\\-wait\\-ms. Flags override it, and it overrides \\-\\-config.\n",
              out);
    fputs(".SH EXIT STATUS\n0: done. 1: failed. 2: wrong usage or configuration; one line names the option.\n", out);
}
