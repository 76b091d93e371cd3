// SPDX-License-Identifier: Apache-2.0
// One table row per option gives the command line, the --config file, --help and the dump of effective settings.
//
// A value comes from (later wins): the table's default, the --config file (`key = value` lines, `#` comments, keys
// are the flag names without dashes), the flags. Flags read `--name value`, `--name=value`; a bool needs no value
// (`--name`, `--no-name`). `--config FILE`, `--help` and `--version` are always there.
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

enum option_type {
    OPTION_BOOL,   // bool
    OPTION_INT,    // int64_t, min..max
    OPTION_REAL,   // double, min..max
    OPTION_STRING, // char *, owned by the options, NULL when unset
    OPTION_CHOICE, // char *, one of `choices` ("auto|on|off")
    OPTION_LIST,   // struct option_list, may be given several times
};

struct option_list {
    int count;
    char **items; // owned
};

struct option {
    const char *name; // "keep-rate"; a row with name NULL ends the table; "-heading" starts a section of --help
    enum option_type type;
    void *value;              // where it goes, of the type above
    const char *default_text; // NULL: unset (strings), 0, false
    double min, max;          // for INT and REAL, inclusive; both 0 means no limit
    const char *choices;      // for CHOICE
    const char *unit;         // shown in --help, may be NULL
    const char *help;
};

// Fills every value from defaults, file and flags. Arguments that are no flags are left in `rest` (array of argc
// pointers into argv, may be NULL when none are allowed; then one is an error). "-" is an argument, "--" ends flags.
// On failure status_message() names the key and what is allowed. Strings live until options_free().
enum status options_parse(const struct option *table, int argc, char **argv, char **rest, int *n_rest_p);

// True when the option was set by file or flag in the last options_parse() of this table.
bool options_given(const struct option *table, const char *name);

// For main(): parses, and on --help/--version prints and exits 0, on failure prints the sentence and exits 2.
// `usage` is the first line(s) of --help. Returns the number of rest arguments.
int options_main(const struct option *table, const char *usage, int argc, char **argv, char **rest);

void options_help(const struct option *table, const char *usage, FILE *out);

// Logs the effective value of every option as one line of the event `settings`. No option holds a secret: keys and
// tokens are read from files that options name.
void options_log(const struct option *table);

void options_free(const struct option *table);

#define FOREPACK_VERSION "0.1.0"
