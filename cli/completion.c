// SPDX-License-Identifier: Apache-2.0
// forepack completion: prints a script that completes commands, options and their values in a shell. The words come
// from the programs, which list their commands and options with the hidden flag --list.
//
// The script has one line per word, "CONTEXT:WORD" or "CONTEXT:--option VALUE". The context is the program and the
// commands so far, such as "forepack bench".
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/completion/scripts.h"
#include "cli/request.h"
#include "lib/base/mem.h"
#include "lib/base/options.h"
#include "lib/base/program_path.h"

static const struct option options[] = {{0}};

enum { COMMANDS_MAX = 2 }; // as in "forepack bench engine"

struct context {
    const char *program; // name of the program
    char *path;
    char *commands[COMMANDS_MAX];
    int n;
};

// Executes the program with --list, in the forked child.
static _Noreturn void list_exec(const struct context *c, int out)
{
    char *argv[COMMANDS_MAX + 3] = {c->path}; // ends with NULL
    memcpy(argv + 1, c->commands, (size_t)c->n * sizeof *argv);
    argv[1 + c->n] = "--list";
    dup2(out, STDOUT_FILENO);
    execv(c->path, argv);
    fprintf(stderr, "%s: %s\n", c->path, strerror(errno));
    _exit(1);
}

// Starts the program with --list. Its output can be read from *out_p.
static enum status list_open(const struct context *c, pid_t *pid_p, FILE **out_p)
{
    int ends[2];
    fflush(NULL);
    if (pipe2(ends, O_CLOEXEC) != 0) return status_fail(STATUS_INTERNAL, "pipe: %s", strerror(errno));
    *pid_p = fork();
    if (*pid_p == 0) list_exec(c, ends[1]);
    close(ends[1]);
    *out_p = *pid_p > 0 ? fdopen(ends[0], "r") : NULL;
    if (*out_p) return STATUS_OK;
    close(ends[0]);
    return status_fail(STATUS_INTERNAL, "%s: %s", c->path, strerror(errno));
}

// Returns the words that the program lists in this context. The caller frees them.
static enum status list_read(const struct context *c, char **text_p)
{
    pid_t pid = 0;
    FILE *out;
    size_t capacity = 0;
    int ended;
    TRY(list_open(c, &pid, &out));
    *text_p = NULL;
    bool whole = getdelim(text_p, &capacity, 0, out) > 0;
    fclose(out);
    if (waitpid(pid, &ended, 0) == pid && ended == 0 && whole) return STATUS_OK;
    free(*text_p);
    return status_fail(STATUS_INTERNAL, "%s --list failed", c->path);
}

// Prints the words of the context, and of each command in it.
static enum status words_print(const struct context *c)
{
    char *text, *rest;
    TRY(list_read(c, &text));
    enum status status = STATUS_OK;
    for (char *word = strtok_r(text, "\n", &rest); word && status == STATUS_OK; word = strtok_r(NULL, "\n", &rest)) {
        printf("%s", c->program);
        for (int i = 0; i < c->n; i++)
            printf(" %s", c->commands[i]);
        printf(":%s\n", word);
        if (word[0] == '-' || c->n == COMMANDS_MAX) continue;
        struct context inner = *c;
        inner.commands[inner.n++] = word;
        status = words_print(&inner);
    }
    free(text);
    return status;
}

static enum status programs_print(void)
{
    static const char *const programs[] = {"forepack",     "forepack-bench",      "forepack-router",
                                           "forepack-sim", "forepack-speculator", "forepack-worker"};
    enum status status = STATUS_OK;
    for (size_t i = 0; i < sizeof programs / sizeof *programs && status == STATUS_OK; i++) {
        struct context context = {.program = programs[i], .path = program_path(programs[i])};
        // a package may contain only some of the programs
        if (access(context.path, X_OK) == 0) status = words_print(&context);
        free(context.path);
    }
    return status;
}

static enum status script_print(const char *shell)
{
    const struct {
        const char *shell, *assignment;
        const unsigned char *script;
        size_t size;
    } scripts[] = {{"bash", "_forepack_words='", completion_bash, completion_bash_size},
                   {"zsh", "_forepack_words='", completion_zsh, completion_zsh_size},
                   {"fish", "set -g _forepack_words '", completion_fish, completion_fish_size}};
    for (size_t i = 0; i < sizeof scripts / sizeof *scripts; i++) {
        if (strcmp(shell, scripts[i].shell) != 0) continue;
        // Print the words after the first line, because zsh needs it first.
        size_t first = strcspn((const char *)scripts[i].script, "\n") + 1;
        fwrite(scripts[i].script, 1, first, stdout);
        printf("%s\n", scripts[i].assignment);
        TRY(programs_print());
        printf("'\n");
        fwrite(scripts[i].script + first, 1, scripts[i].size - first, stdout);
        return STATUS_OK;
    }
    return status_fail(STATUS_INVALID, "shell '%s': must be bash, zsh or fish", shell);
}

int command_completion(int argc, char **argv)
{
    char **rest = mem_alloc_array((size_t)argc, sizeof *rest);
    int n = options_main(
        options,
        "Usage: forepack completion SHELL\n"
        "Prints a script that completes commands, options and their values in bash, zsh or fish. Packages "
        "install it; else:\n"
        "    source <(forepack completion bash)    # zsh: after compinit; fish: forepack completion fish | source",
        argc, argv, rest);
    enum status status =
        n == 1 ? script_print(rest[0]) : status_fail(STATUS_INVALID, "give one shell: bash, zsh or fish");
    free(rest);
    return status == STATUS_OK ? 0 : report_failure(status);
}
