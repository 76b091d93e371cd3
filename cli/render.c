// SPDX-License-Identifier: Apache-2.0
// forepack render: prints the prompt that a chat template makes of a conversation, without a cluster.
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/request.h"
#include "lib/text/chat.h"
#include "lib/text/json_file.h"

static struct {
    char *model, *template, *messages, *tools, *documents, *variables, *now;
    bool generation_prompt, json;
} o;

static const struct option render_options[] = {
    {.name = "model",
     .type = OPTION_STRING,
     .value = &o.model,
     .placeholder = "DIR",
     .help = "checkpoint whose chat template and special tokens are used"},
    {.name = "template",
     .type = OPTION_STRING,
     .value = &o.template,
     .placeholder = "FILE",
     .help = "file with the chat template to use instead of the template of --model"},
    {.name = "messages",
     .type = OPTION_STRING,
     .value = &o.messages,
     .placeholder = "FILE",
     .help = "JSON list of messages (required); -: standard input"},
    {.name = "tools", .type = OPTION_STRING, .value = &o.tools, .placeholder = "FILE", .help = "JSON list of tools"},
    {.name = "documents",
     .type = OPTION_STRING,
     .value = &o.documents,
     .placeholder = "FILE",
     .help = "JSON list of documents"},
    {.name = "variables",
     .type = OPTION_STRING,
     .value = &o.variables,
     .placeholder = "FILE",
     .help = "JSON object of further variables of the template (bos_token, enable_thinking, ...)"},
    {.name = "add-generation-prompt",
     .type = OPTION_BOOL,
     .value = &o.generation_prompt,
     .help = "end the prompt with the text that starts an answer"},
    {.name = "now",
     .type = OPTION_STRING,
     .value = &o.now,
     .placeholder = "ISO8601",
     .help = "time for strftime_now, such as 2026-01-31T12:00:00; default: local time"},
    {.name = "json", .type = OPTION_BOOL, .value = &o.json, .help = "print one JSON object: {\"prompt\":\"...\"}"},
    {0},
};

static enum status read_json(const char *option, const char *path, bool object, json_t **json_p)
{
    char *text;
    size_t n;
    json_error_t error;
    if (!path) return STATUS_OK;
    TRY(read_whole_file(path, &text, &n));
    *json_p = json_loadb(text, n, JSON_ALLOW_NUL, &error);
    free(text);
    if (!*json_p)
        return status_fail(STATUS_INVALID, "--%s %s: not valid JSON: %s (line %d)", option, path, error.text,
                           error.line);
    if (object ? !json_is_object(*json_p) : !json_is_array(*json_p))
        return status_fail(STATUS_INVALID, "--%s %s: %s: must be %s", option, path, json_type_name(*json_p),
                           object ? "an object" : "a list");
    return STATUS_OK;
}

// Reads YYYY-MM-DD, then optionally T or a blank and HH:MM or HH:MM:SS. Ignores a fraction or a time zone after the
// seconds, which strftime_now does not use.
static enum status read_time(struct tm *now)
{
    const char *end = strptime(o.now, "%Y-%m-%d", now);
    if (end && (*end == 'T' || *end == ' ')) {
        const char *minutes = strptime(end + 1, "%H:%M", now);
        end = minutes;
        if (minutes && *minutes == ':') end = strptime(minutes + 1, "%S", now);
        if (end) end += strcspn(end, "\n") * (*end == '.' || *end == 'Z' || *end == '+' || *end == '-');
    }
    if (end && !*end) return STATUS_OK;
    return status_fail(STATUS_INVALID, "--now '%s': must be a time such as 2026-01-31T12:00:00", o.now);
}

struct inputs {
    json_t *messages, *tools, *documents, *variables;
    struct tm now;
};

static enum status inputs_read(struct inputs *in)
{
    if (!o.model && !o.template) return status_fail(STATUS_INVALID, "--model or --template: one is required");
    if (!o.messages) return status_fail(STATUS_INVALID, "--messages: required, a file with a JSON list of messages");
    TRY(read_json("messages", o.messages, false, &in->messages));
    TRY(read_json("tools", o.tools, false, &in->tools));
    TRY(read_json("documents", o.documents, false, &in->documents));
    TRY(read_json("variables", o.variables, true, &in->variables));
    return o.now ? read_time(&in->now) : STATUS_OK;
}

static void inputs_free(struct inputs *in)
{
    json_decref(in->messages);
    json_decref(in->tools);
    json_decref(in->documents);
    json_decref(in->variables);
}

// Prints the prompt unchanged. Adds a newline on a terminal.
static void prompt_print(const char *text, size_t n)
{
    if (!o.json) {
        fwrite(text, 1, n, stdout);
        if (isatty(STDOUT_FILENO)) putchar('\n');
        return;
    }
    json_t *object = json_object();
    json_object_set_new(object, "prompt", json_stringn(text, n));
    json_dumpf(object, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(object);
}

int command_render(int argc, char **argv)
{
    options_main(render_options,
                 "Usage: forepack render (--model DIR | --template FILE) --messages FILE [options]\n"
                 "Prints the prompt that the chat template makes of a conversation. Exit code 1 and one sentence\n"
                 "if the template raises an error.",
                 argc, argv, NULL);
    struct inputs in = {0};
    struct chat_template *chat = NULL;
    char *text = NULL;
    size_t n = 0;
    enum status status = inputs_read(&in);
    if (status == STATUS_OK) status = chat_template_open(o.model, o.template, &chat);
    int code = 0;
    if (status == STATUS_OK) {
        const struct chat_conversation conversation = {.messages = in.messages,
                                                       .tools = in.tools,
                                                       .documents = in.documents,
                                                       .variables = in.variables,
                                                       .answered = !o.generation_prompt,
                                                       .now = o.now ? &in.now : NULL};
        status = chat_render_text(chat, &conversation, &text, &n);
    }
    if (status == STATUS_OK) {
        prompt_print(text, n);
    } else {
        code = report_failure(status);
        if (chat || status == STATUS_UNSUPPORTED) code = 1; // the template failed, not the command line
    }
    free(text);
    chat_template_free(chat);
    inputs_free(&in);
    options_free(render_options);
    return code;
}
