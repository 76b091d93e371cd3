// SPDX-License-Identifier: Apache-2.0
// forepack chat: a conversation with a cluster. Each request contains the whole conversation.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/answer_summary.h"
#include "cli/commands.h"
#include "cli/remote.h"
#include "lib/base/mem.h"

static struct {
    struct remote remote;
    char *system;
} o;

// clang-format off
static const struct option options[] = {
    {.name = "-Chat"},
    REMOTE_OPTION_ROWS(o.remote),
    {.name = "system", .type = OPTION_STRING, .value = &o.system, .help = "system prompt"},
    REQUEST_OPTION_ROWS,
    {0},
};
// clang-format on

static void chat_print_text(void *user, const char *text, size_t size_bytes)
{
    fwrite(text, 1, size_bytes, stdout);
    fflush(stdout);
}

static void turn_add(struct request_spec *spec, const char *role, char *content)
{
    spec->messages = mem_resize(spec->messages, (size_t)spec->n_messages + 1, sizeof *spec->messages);
    spec->messages[spec->n_messages++] = (struct request_message){mem_string(role), content, strlen(content)};
}

static void turn_remove_last(struct request_spec *spec)
{
    struct request_message *last = &spec->messages[--spec->n_messages];
    free(last->role);
    free(last->content);
}

// Asks one question. The question and its answer are added to the conversation, unless the request fails.
static enum status turn_ask(struct request_spec *spec, char *question)
{
    struct answer answer;
    answer_init(&answer);
    turn_add(spec, "user", question);
    enum status status = remote_generate(&o.remote, 0, spec, chat_print_text, NULL, &answer, NULL);
    putchar('\n');
    if (status == STATUS_OK) {
        if (isatty(STDERR_FILENO)) answer_summary_print(answer.completion, stderr);
        turn_add(spec, "assistant", mem_string(answer.text ? answer.text : ""));
    } else {
        turn_remove_last(spec);
    }
    answer_free(&answer);
    return status;
}

int command_chat(int argc, char **argv)
{
    options_main(options,
                 "Usage: forepack chat [--server HOST:PORT] [options]\n"
                 "A conversation: each line of standard input is a question. Empty lines are ignored; Ctrl-D ends it.",
                 argc, argv, NULL);
    struct request_spec spec;
    enum status status = request_spec_from_flags(options, &spec);
    if (status == STATUS_OK && o.system) turn_add(&spec, "system", mem_string(o.system));
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
        status = turn_ask(&spec, mem_string(line));
        if (status != STATUS_OK && prompt) { // on a terminal the chat continues, a script ends
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
