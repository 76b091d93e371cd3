// SPDX-License-Identifier: Apache-2.0
// The main program that all programs with subcommands share. It runs a command from a table, prints the help, and fails
// if standard output could not be written.
#pragma once

struct program_command {
    const char *name;
    int (*run)(int argc, char **argv); // argv[0] is the command's name; returns the exit code
    const char *help;
};

struct program {
    const char *name;     // for --version and the log
    const char *invoked;  // as users type it, for the help: "forepack", "forepack bench"
    const char *noun;     // noun for an entry of the table: "command", "measurement"
    const char *argument; // placeholder of an entry in the usage line: "COMMAND", "WHAT"
    const struct program_command *commands;
    int n_commands;
};

// Runs the command named by argv[1] and returns the exit code of the process. Also answers --help and --version. If
// argv[1] is missing or unknown, prints the commands and returns 2. The hidden flag --list prints the commands and
// flags, one per line, for `forepack completion`.
int program_main(const struct program *program, int argc, char **argv);
