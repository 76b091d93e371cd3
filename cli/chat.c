// SPDX-License-Identifier: Apache-2.0
// forepack chat: several turns with a cluster; the whole conversation goes with each request.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "cli/commands.h"
#include "cli/remote.h"

static struct {
    char *server, *system;
} o;

// clang-format off
static const struct option options[] = {
    {.name = "-Chat"},
    {.name = "server", .type = OPTION_STRING, .value = &o.server, .default_text = SERVER_DEFAULT,
     .help = "host:port of the router"},
    {.name = "system", .type = OPTION_STRING, .value = &o.system, .help = "system prompt"},
    REQUEST_OPTION_ROWS,
    {0},
};
// clang-format on

static void print_text(void *user, const char *text, size_t size_bytes)
{
    fwrite(text, 1, size_bytes, stdout);
    fflush(stdout);
}

static void add_turn(struct request_spec *spec, const char *role, char *content)
{
    spec->messages = mem_resize(spec->messages, (size_t)spec->n_messages + 1, sizeof *spec->messages);
    spec->messages[spec->n_messages++] = (struct request_message){mem_string(role), content};
}

static void drop_last_turn(struct request_spec *spec)
{
    struct request_message *last = &spec->messages[--spec->n_messages];
    free(last->role);
    free(last->content);
}

// One question and its answer. A failed turn leaves the conversation as it was.
static enum status ask(struct request_spec *spec, char *question)
{
    struct answer answer;
    answer_init(&answer);
    add_turn(spec, "user", question);
    enum status status = remote_generate(o.server, 0, spec, print_text, NULL, &answer, NULL);
    putchar('\n');
    if (status == STATUS_OK) {
        if (isatty(STDERR_FILENO)) answer_print_summary(&answer);
        add_turn(spec, "assistant", mem_string(answer.text ? answer.text : ""));
    } else {
        drop_last_turn(spec);
    }
    answer_free(&answer);
    return status;
}

int command_chat(int argc, char **argv)
{
    options_main(options,
                 "Usage: forepack chat [--server H:P] [options]\n"
                 "One line of standard input is one turn; an empty line is skipped, end of input ends the chat.",
                 argc, argv, NULL);
    struct request_spec spec;
    enum status status = request_spec_from_flags(options, &spec);
    if (status == STATUS_OK && o.system) add_turn(&spec, "system", mem_string(o.system));
    bool prompt = isatty(STDIN_FILENO);
    char *line = NULL;
    size_t capacity = 0;
    rpc_init();
    while (status == STATUS_OK) {
        if (prompt) {
            printf("> ");
            fflush(stdout);
        }
        ssize_t length = getline(&line, &capacity, stdin);
        if (length < 0) break;
        line[strcspn(line, "\r\n")] = 0;
        if (!*line) continue;
        status = ask(&spec, mem_string(line));
        if (status != STATUS_OK && prompt) { // a person goes on, a script ends
            fprintf(stderr, "%s\n", status_message());
            status = STATUS_OK;
        }
    }
    rpc_shutdown();
    int code = status == STATUS_OK ? 0 : report_failure(status);
    free(line);
    request_spec_free(&spec);
    options_free(options);
    return code;
}
