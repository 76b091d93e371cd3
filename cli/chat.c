// SPDX-License-Identifier: Apache-2.0
// forepack chat: a conversation with a cluster. Each request contains the whole conversation.
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/answer_summary.h"
#include "cli/chat_commands.h"
#include "cli/commands.h"
#include "cli/demo.h"
#include "cli/plain_text.h"
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

// Prints the summary of an answer, dimmed unless NO_COLOR is set.
static void summary_print(const struct answer *answer)
{
    const char *no_color = getenv("NO_COLOR");
    bool dim = !no_color || !*no_color;
    if (!isatty(STDERR_FILENO)) return;
    if (dim) fputs("\033[2m", stderr);
    answer_summary_print(answer->completion, stderr);
    if (dim) fputs("\033[0m", stderr);
}

// Asks one question. The question and its answer are added to the conversation, unless the request fails.
static enum status chat_ask(struct request_spec *spec, char *question)
{
    struct answer answer;
    answer_init(&answer);
    chat_add(spec, "user", question);
    enum status status = remote_generate(&o.remote, 0, spec, chat_print_text, NULL, &answer, NULL);
    putchar('\n');
    fflush(stdout); // so that the summary follows the answer
    if (status == STATUS_OK) {
        summary_print(&answer);
        chat_add(spec, "assistant", mem_string(answer.text ? answer.text : ""));
    } else {
        chat_remove_last(spec);
    }
    answer_free(&answer);
    return status;
}

static enum status chat_greet(void)
{
    Forepack__V1__GetModelInfoRequest request = FOREPACK__V1__GET_MODEL_INFO_REQUEST__INIT;
    ProtobufCMessage *answer;
    TRY(remote_call(&o.remote, "/forepack.v1.Inference/GetModelInfo", &request.base,
                    &forepack__v1__model_info__descriptor, &answer));
    const Forepack__V1__ModelInfo *info = (const void *)answer;
    printf("chat with the model ");
    plain_text_print(stdout, info->name, INT_MAX, 0);
    printf(" on %s; /help lists the commands, Ctrl-D leaves\n", o.remote.server);
    char *text = demo_has_fingerprint(info->model_fingerprint) ? demo_path("report.txt") : NULL;
    if (text)
        printf("The demo model only answers questions about texts like the following file. Try:\n/file %s\n", text);
    free(text);
    protobuf_c_message_free_unpacked(answer, NULL);
    return STATUS_OK;
}

// Handles one line of input: a command, or a question.
static enum status chat_handle(struct request_spec *spec, const char *line, bool *leave_p)
{
    char *question = NULL;
    if (line[0] != '/') {
        question = mem_string(line);
    } else if (line[1] == '/') {
        question = mem_string(line + 1);
    } else {
        TRY(chat_command(spec, line, &question, leave_p));
    }
    return question ? chat_ask(spec, question) : STATUS_OK;
}

static enum status chat_run(struct request_spec *spec)
{
    bool terminal = isatty(STDIN_FILENO), leave = false;
    char *line = NULL;
    size_t capacity = 0;
    enum status status = terminal ? chat_greet() : STATUS_OK;
    while (status == STATUS_OK && !leave) {
        if (terminal) printf("> ");
        fflush(stdout);
        if (getline(&line, &capacity, stdin) < 0) break;
        line[strcspn(line, "\r\n")] = 0;
        if (!*line) continue;
        status = chat_handle(spec, line, &leave);
        if (status != STATUS_OK && terminal) { // on a terminal the chat continues, otherwise it ends
            fprintf(stderr, "%s\n", status_message());
            status = STATUS_OK;
        }
    }
    free(line);
    return status;
}

int command_chat(int argc, char **argv)
{
    options_main(
        options,
        "Usage: forepack chat [--server HOST:PORT] [options]\n"
        "A conversation: each line of standard input is a question. Empty lines are ignored; Ctrl-D ends it.\n"
        "A line that starts with a slash is a command, and /help lists them: /reset, /system TEXT, /keep RATE, "
        "/file PATH,\n/quit. A line that starts with // is a question with one slash.\n"
        "If the router is lost after the first token, the answer goes on at the next address of --server; the command\n"
        "gives up after 30 s without a token.",
        argc, argv, NULL);
    struct request_spec spec;
    rpc_init();
    enum status status = request_spec_from_flags(options, &spec);
    if (status == STATUS_OK) {
        chat_set_system(&spec, o.system);
        status = chat_run(&spec);
    }
    rpc_shutdown();
    int code = status == STATUS_OK ? 0 : report_failure(status);
    request_spec_free(&spec);
    options_free(options);
    return code;
}
