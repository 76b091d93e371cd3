// SPDX-License-Identifier: Apache-2.0
#include "cli/program.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/log.h"
#include "lib/base/version.h"

static void program_help(const struct program *program, FILE *out)
{
    fprintf(out, "Usage: %s %s [options]\n\n%c%ss:\n", program->invoked, program->argument, toupper(program->noun[0]),
            program->noun + 1);
    int width = 0;
    for (int i = 0; i < program->n_commands; i++) {
        int length = (int)strlen(program->commands[i].name);
        if (length > width) width = length;
    }
    for (int i = 0; i < program->n_commands; i++)
        fprintf(out, "  %-*s  %s\n", width, program->commands[i].name, program->commands[i].help);
    fprintf(out, "\n'%s %s --help' lists the options of a %s. '%s --version' prints the version.\n", program->invoked,
            program->argument, program->noun, program->invoked);
}

static void program_list(const struct program *program)
{
    for (int i = 0; i < program->n_commands; i++)
        printf("%s\n", program->commands[i].name);
    printf("--help\n--version\n");
}

// Opens the standard streams that are closed. Otherwise the next socket would get the number of a closed stream, and
// would be read or written as that stream. Reads and writes of the descriptors opened here fail, as on a closed stream.
static void program_reserve_standard_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0)
            open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY); // gets the lowest free number, which is fd
    }
}

// Handles SIGPIPE: the reader of a standard stream is gone. If standard output has lost its reader, as in `forepack
// generate | head`, ends the process quietly. If only standard error has lost its reader, the command continues.
static void program_on_sigpipe(int number)
{
    struct pollfd out = {.fd = STDOUT_FILENO};
    if (poll(&out, 1, 0) <= 0 || !(out.revents & POLLERR)) return;
    signal(number, SIG_DFL);
    raise(number); // ends the process when this handler returns
}

// Returns an error exit code if the output of a command could not be written, else `code`.
static int program_finish_output(int code)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout)) return code;
    fprintf(stderr, "standard output: %s\n", errno ? strerror(errno) : "could not be written");
    return code ? code : 1;
}

int program_main(const struct program *program, int argc, char **argv)
{
    program_reserve_standard_streams();
    signal(SIGPIPE, program_on_sigpipe);
    log_setup(program->name, LOG_WARN);
    if (argc < 2) {
        program_help(program, stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0) {
        program_help(program, stdout);
        return program_finish_output(0);
    }
    if (strcmp(argv[1], "--list") == 0) {
        program_list(program);
        return program_finish_output(0);
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("%s %s (commit %s)\n", program->name, FOREPACK_VERSION, build_commit());
        return program_finish_output(0);
    }
    for (int i = 0; i < program->n_commands; i++) {
        const struct program_command *command = &program->commands[i];
        if (strcmp(argv[1], command->name) == 0) return program_finish_output(command->run(argc - 1, argv + 1));
    }
    fprintf(stderr, "unknown %s '%s': must be one of", program->noun, argv[1]);
    for (int i = 0; i < program->n_commands; i++)
        fprintf(stderr, "%s %s", i ? "," : "", program->commands[i].name);
    fprintf(stderr, "\n");
    return 2;
}
