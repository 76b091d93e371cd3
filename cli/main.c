// SPDX-License-Identifier: Apache-2.0
// forepack: the command people type. This file only finds the subcommand.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/version.h"
#include "cli/commands.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} commands[] = {
    {"up", command_up, "run a whole local cluster; Ctrl-C drains it"},
    {"generate", command_generate, "one request, streamed to the terminal"},
    {"chat", command_chat, "several turns"},
    {"batch", command_batch, "many requests from a JSON Lines file; resumable"},
    {"score", command_score, "show which prompt tokens the speculator would keep"},
    {"status", command_status, "nodes, pools, queue and bins of a cluster"},
    {"tokenize", command_tokenize, "text to token ids, with a model directory"},
    {"detokenize", command_detokenize, "token ids to text, with a model directory"},
    {"plan", command_plan, "memory and cost of a model on GPUs, before there are any"},
    {"bench", command_bench, "measurements: engine, kernels, cluster under load, quality, packing, router"},
};

enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static void help(FILE *out)
{
    fprintf(out, "Usage: forepack COMMAND [options]\n\nCommands:\n");
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(out, "  %-12s %s\n", commands[i].name, commands[i].help);
    fprintf(out, "\n'forepack COMMAND --help' lists a command's options. 'forepack --version' prints the version.\n");
}

// A closed standard stream would give its number to a socket, which would then be read and written in its place. What
// fills it here fails as the closed one would.
static void fill_standard_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0) open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY); // the lowest free: fd
    }
}

// What was printed has arrived, or the command failed.
static int finish_output(int code)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout)) return code;
    fprintf(stderr, "standard output: %s\n", errno ? strerror(errno) : "could not be written");
    return code ? code : 1;
}

int main(int argc, char **argv)
{
    fill_standard_streams();
    log_setup("forepack", LOG_WARN);
    if (argc < 2) {
        help(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0) {
        help(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("forepack %s\n", FOREPACK_VERSION);
        return 0;
    }
    for (int i = 0; i < N_COMMANDS; i++) {
        if (strcmp(argv[1], commands[i].name) == 0) return finish_output(commands[i].run(argc - 1, argv + 1));
    }
    fprintf(stderr, "unknown command '%s': must be one of", argv[1]);
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(stderr, "%s %s", i ? "," : "", commands[i].name);
    fprintf(stderr, "\n");
    return 2;
}
