// SPDX-License-Identifier: Apache-2.0
// Lists the flags of a program for the completion of shells.
#include <stdlib.h>

#include "lib/base/options.h"

void options_list(const struct option *table, FILE *out)
{
    for (const struct option *row = table; row->name; row++) {
        if (row->name[0] == '-') continue;
        char *name = option_name_format(row);
        if (row->minus_one) // the word is the only value that a shell can complete
            fprintf(out, "--%s %s|\n", row->name, row->minus_one);
        else
            fprintf(out, "%s\n", name);
        free(name);
    }
    fputs("--config FILE\n--help\n--version\n", out);
}
