// SPDX-License-Identifier: Apache-2.0
// Handles the options for main(): --help, --man, --list and --version print and exit, and wrong options exit with 2.
// Prints the result of --check-config.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/log_writer.h"
#include "lib/base/options.h"
#include "lib/base/version.h"

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
        if (strcmp(argv[i], "--list") == 0) {
            options_list(table, stdout);
            exit(0);
        }
        if (strcmp(argv[i], "--version") == 0) {
            printf("%s %s (commit %s)\n", program_invocation_short_name, FOREPACK_VERSION, build_commit());
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

int options_check_report(const char *program, enum status status)
{
    if (status == STATUS_OK) {
        printf("%s: the configuration can be used\n", program);
        return 0;
    }
    log_flush(); // so that the message follows the log lines of its causes
    if (*status_message()) fprintf(stderr, "%s: %s\n", program, status_message());
    return 2;
}
