// SPDX-License-Identifier: Apache-2.0
// Command-line options. One table row per option defines the flag, the key in the --config file, the row of --help and
// the field of the `settings` line in the log.
//
// Flags override environment variables (only after options_use_environment()), these override the --config file, and
// the file overrides the defaults of the table. The file has lines `key = value` and `#` comments; a key is the flag
// name without dashes. Flags are `--name value` or `--name=value`; a bool is
// `--name` or `--no-name`. Every program also has `--config FILE`, `--help` and `--version`. Call the functions on the
// main thread, at the start of the program. Only options_reload() may be called later.
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "lib/base/status.h"

enum option_type {
    OPTION_BOOL,   // bool
    OPTION_INT,    // int64_t, min..max
    OPTION_REAL,   // double, min..max
    OPTION_STRING, // char *, owned by the options, NULL when unset
    OPTION_CHOICE, // char *, one of `choices` ("auto|on|off")
    OPTION_LIST,   // struct option_list, repeatable
};

struct option_list {
    int count;
    char **items; // owned
};

struct option {
    const char *name; // "keep-rate"; a row with name NULL ends the table; "-heading" starts a section of --help
    enum option_type type;
    void *value;              // variable that receives the value
    const char *default_text; // NULL: the value starts as NULL, 0 or false
    double min, max;          // INT and REAL: inclusive limits; both 0: no limits
    const char *choices;      // CHOICE: the allowed values
    const char *minus_one;    // INT: a word that stands for -1, such as "auto", outside the limits; may be NULL
    const char *placeholder;  // placeholder of the value in --help, such as "DIR"; NULL: N, X or TEXT
    bool live;                // options_reload() may change the value
    const char *unit;         // unit of the value, shown after the default; may be NULL
    const char *help;         // what the option sets, and its effect; --help adds limits and defaults
};

// Sets every value from defaults, file and flags. Arguments that are not flags go to `rest`, an array of argc pointers
// into argv. If `rest` is NULL, such arguments are an error. "-" is an argument, and "--" ends the flags. Returns
// INVALID; the error message names the key and the allowed values. Strings live until options_free().
enum status options_parse(const struct option *table, int argc, char **argv, char **rest, int *n_rest_p);

// Makes options_parse() read environment variables (options_environment.c). A variable with the prefix that names no
// option of the table is an error. Programs that run as services call it first. Commands of users do not call it,
// because they may run in the environment of a service.
#define OPTIONS_ENVIRONMENT_PREFIX "FOREPACK_OPT_"
void options_use_environment(void);

// Returns true if the --config file, an environment variable or a flag has set the option.
bool options_given(const struct option *table, const char *name);

// Reads the --config files of options_parse() again, if there were any (options_reload.c). Sets the values of live rows
// that differ and that neither a flag nor an environment variable has set, and logs each (`option_changed`). For other
// rows that differ, logs a hint that the change needs a restart. Returns INVALID and changes nothing if a file has an
// error. Call it on the thread that reads the live values.
enum status options_reload(const struct option *table);

// Parses the options of main(). Prints and exits with 0 on --help and --version; prints the error and exits with 2 on
// failure. `usage` is the text at the top of --help. Returns the number of arguments in `rest`.
int options_main(const struct option *table, const char *usage, int argc, char **argv, char **rest);

// Rows of a program that can check its configuration. `v` is a static bool.
// clang-format off
#define CHECK_CONFIG_ROWS(v)                                                                                           \
    {.name = "-Start"},                                                                                                \
    {.name = "check-config", .type = OPTION_BOOL, .value = &(v), .default_text = "false",                              \
     .help = "check options, configuration and the files that they name, and end with exit code 0 or 2: no port is "   \
             "opened and no weights are read"}
// clang-format on

// Prints the result of --check-config: a sentence on standard output, or the error message on standard error. Returns
// the exit code, 0 or 2. `program` is the program's name.
int options_check_report(const char *program, enum status status);

void options_help(const struct option *table, const char *usage, FILE *out);

// Writes the man page in roff (options_man.c). The build gets it from every program with the hidden flag --man.
void options_man(const struct option *table, const char *usage, FILE *out);

// Writes one line per flag, "--name" or "--name VALUE" (options_list.c). `forepack completion` gets it from every
// program with the hidden flag --list.
void options_list(const struct option *table, FILE *out);

// Logs the version and the effective value of every option as one line, the event `settings`, the first of a program.
// No option holds a secret: keys and tokens are read from files that options name.
void options_log(const struct option *table);

// Returns the effective values as lines "name = value", as a --config file has them. The caller frees the text.
char *options_format(const struct option *table);

void options_free(const struct option *table);

// Only for lib/base: formats limits as "1 to 100000000", where `between` is " to ". Returns false if the option has no
// limits. Whole numbers never have an exponent.
enum { OPTION_LIMITS_BYTES = 64 };
bool option_limits_format(const struct option *row, const char *between, char text[OPTION_LIMITS_BYTES]);

// Only for lib/base: format an option for --help and the man page. option_name_format() returns "--name VALUE".
// option_text_format() returns the help text. The unit (unless unit_shown), the allowed range and "repeatable" follow
// in parentheses. The caller frees both texts.
char *option_name_format(const struct option *row);
char *option_text_format(const struct option *row, bool unit_shown);

// Only for lib/base (options_environment.c). options_environment_read() sets the rows that variables name.
// options_environment_config() returns the value of the variable for --config, or NULL.
typedef enum status option_set_fn(const struct option *row, const char *text);
enum status options_environment_read(const struct option *table, option_set_fn *set);
const char *options_environment_config(void);
bool options_environment_used(void);

// Only for options_reload.c. option_value_format() returns the value as a --config file would state it; the caller
// frees it. options_override_given() returns true if a flag or an environment variable has set the row.
// options_have_config() returns true if there is a --config file. options_read_again() reads the defaults and all
// --config files into `table`, and does not change the results of options_given().
char *option_value_format(const struct option *row);
bool options_override_given(const struct option *row);
bool options_have_config(void);
enum status options_read_again(const struct option *table);
