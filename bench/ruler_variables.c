// SPDX-License-Identifier: Apache-2.0
// RULER's variable tracking: a variable gets a value, four others get it from one another, and the question asks for
// all five. A short worked example comes first.
#include "bench/ruler_draft.h"

enum { VARIABLES = 5, NAME_BYTES = 6, EXAMPLE_UNITS = 4 };

static void make_names(struct random_source *r, char names[VARIABLES][NAME_BYTES])
{
    for (int v = 0; v < VARIABLES; v++) {
        names[v][0] = (char)('A' + v); // no two names are equal
        for (int i = 1; i < NAME_BYTES - 1; i++)
            names[v][i] = (char)('A' + random_below(r, 26));
        names[v][NAME_BYTES - 1] = 0;
    }
}

static void write_assignment(FILE *out, char names[VARIABLES][NAME_BYTES], const int *order, int v, int value)
{
    if (v)
        fprintf(out, "VAR %s = VAR %s\n", names[order[v]], names[order[v - 1]]);
    else
        fprintf(out, "VAR %s = %d\n", names[order[v]], value);
}

// Writes a text of `units` lines with the assignments in order, and the question. Returns the value.
static int write_chain(struct ruler_draft *d, int units, char names[VARIABLES][NAME_BYTES], int *order)
{
    struct random_source *r = &d->random;
    const int value = 10000 + random_below(r, 90000);
    int written = 0;
    make_names(r, names);
    for (int v = 0; v < VARIABLES; v++) { // shuffles the names
        int j = random_below(r, v + 1);
        order[v] = order[j];
        order[j] = v;
    }
    fputs("The text below assigns values to variables. Remember the chain of assignments.\n\n", d->out);
    for (int unit = 0; unit <= units; unit++) {
        // Each place is as likely: the share of assignments left over places left.
        while (written < VARIABLES && random_below(r, units - unit + VARIABLES - written) < VARIABLES - written)
            write_assignment(d->out, names, order, written++, value);
        if (unit < units)
            fputs("The wind is low. The road is long. A boat comes in, and a boat goes out. It is evening again.\n",
                  d->out);
    }
    fprintf(d->out, "\nQuestion: Which variables have the value %d in the text above? Name all of them.\n", value);
    return value;
}

static const char prefix_form[] = "Answer: %d variables of the text have the value %d:";

void ruler_write_variables(struct ruler_draft *d)
{
    char names[VARIABLES][NAME_BYTES], prefix[128];
    int order[VARIABLES];
    int value = write_chain(d, EXAMPLE_UNITS, names, order);
    fprintf(d->out, prefix_form, VARIABLES, value);
    for (int v = 0; v < VARIABLES; v++)
        fprintf(d->out, "%s %s", v ? "," : "", names[order[v]]);
    fputs("\n\n", d->out);
    value = write_chain(d, d->units, names, order);
    for (int v = 0; v < VARIABLES; v++)
        ruler_add_answer(d, names[order[v]]);
    snprintf(prefix, sizeof prefix, prefix_form, VARIABLES, value);
    ruler_write_prefix(d, prefix);
}
