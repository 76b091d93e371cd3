// SPDX-License-Identifier: Apache-2.0
// forepack debug: what a report of a fault needs.
#include "cli/debug.h"

#include "cli/commands.h"
#include "cli/program.h"

int command_debug(int argc, char **argv)
{
    static const struct program_command commands[] = {
        {"bundle", debug_bundle, "write versions, settings, status, metrics, slow requests and logs to one file"},
        {"request", debug_request, "print the lines of one request in the logs of all processes, by time"},
    };
    static const struct program program = {
        .name = "forepack",
        .invoked = "forepack debug",
        .noun = "command",
        .argument = "COMMAND",
        .commands = commands,
        .n_commands = sizeof commands / sizeof commands[0],
    };
    return program_main(&program, argc, argv);
}
