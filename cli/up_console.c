// SPDX-License-Identifier: Apache-2.0
#include "cli/up_console.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/demo.h"
#include "cli/up_arguments.h"
#include "lib/base/mem.h"

// --- the log file

static char *log_folder(void)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    if (state && state[0] == '/') return mem_format("%s/forepack", state);
    return home && home[0] == '/' ? mem_format("%s/.local/state/forepack", home) : NULL;
}

// Creates the folders of `path` that are missing, for this user only.
static void folders_create(const char *path)
{
    char *part = mem_string(path);
    for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(part, 0700);
        *slash = '/';
    }
    free(part);
}

enum status up_log_open(int *fd_p, char **path_p)
{
    char *folder = log_folder();
    if (!folder) return status_fail(STATUS_INVALID, "XDG_STATE_HOME and HOME: neither is an absolute path");
    char *path = mem_format("%s/up-%lld.log", folder, (long long)up_flags.port);
    free(folder);
    folders_create(path);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        enum status status = status_fail(STATUS_INVALID, "%s: %s", path, strerror(errno));
        free(path);
        return status;
    }
    *fd_p = fd;
    *path_p = path;
    return STATUS_OK;
}

// --- what is printed

static void print_nodes(void)
{
    printf("%lld worker group%s", (long long)up_flags.workers, up_flags.workers == 1 ? "" : "s");
    if (up_flags.tp > 1) printf(" of %lld ranks", (long long)up_flags.tp);
    printf(", %lld speculator%s", (long long)up_flags.speculators, up_flags.speculators == 1 ? "" : "s");
}

void up_print_starting(const char *log_path)
{
    printf("starting ");
    print_nodes();
    printf("; log: %s\n", log_path);
    fflush(stdout);
}

static void print_http(void)
{
    const char *scheme = up_flags.tls_cert ? "https" : "http";
    if (up_flags.http_port > 0)
        printf("  OpenAI API  %s://%s:%lld/v1\n"
               "  live page   %s://%s:%lld/\n",
               scheme, up_flags.host, (long long)up_flags.http_port, scheme, up_flags.host,
               (long long)up_flags.http_port);
    else if (up_flags.http_port == 0)
        printf("  OpenAI API  on a free port, which the log names (router_listening)\n");
}

// Prints a word of a command, quoted for a shell if necessary.
static void print_word(const char *word)
{
    bool plain = word[strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+:,@%")] == 0;
    if (plain) {
        fputs(word, stdout);
        return;
    }
    putchar('\'');
    for (; *word; word++)
        fputs(*word == '\'' ? "'\\''" : (char[]){*word, 0}, stdout);
    putchar('\'');
}

// Prints the options that a client needs to reach this cluster.
static void print_client_options(void)
{
    if (strcmp(up_flags.host, "127.0.0.1") != 0 || up_flags.port != 50051)
        printf(" --server %s:%lld", up_flags.host, (long long)up_flags.port);
    if (up_flags.tls_cert) printf(" --tls-ca FILE");
    if (up_flags.api_keys) printf(" --api-key-file FILE");
}

static void print_command_to_try(bool demo)
{
    char *text = demo ? demo_path("report.txt") : NULL;
    printf("try:  ");
    print_word(program_invocation_name);
    printf(text ? " generate" : " chat");
    print_client_options();
    if (text) {
        printf(" --prompt-file ");
        print_word(text);
        if (up_flags.speculators) printf(" --prefill on    # compare with: --prefill off");
    }
    putchar('\n');
    free(text);
}

void up_print_ready(bool demo)
{
    printf("ready: ");
    print_nodes();
    printf("\n  gRPC        %s:%lld\n", up_flags.host, (long long)up_flags.port);
    print_http();
    print_command_to_try(demo);
    printf("stop: Ctrl-C\n");
    fflush(stdout);
}

void up_print_stopping(void)
{
    printf("stopping when the running requests have ended; a second Ctrl-C ends them\n");
    fflush(stdout);
}
