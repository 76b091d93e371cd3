// SPDX-License-Identifier: Apache-2.0
#include "cli/chat_commands.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

// --- the conversation

void chat_add(struct request_spec *spec, const char *role, char *content)
{
    spec->messages = mem_resize(spec->messages, (size_t)spec->n_messages + 1, sizeof *spec->messages);
    spec->messages[spec->n_messages++] = (struct request_message){mem_string(role), content, strlen(content)};
}

void chat_remove_last(struct request_spec *spec)
{
    struct request_message *last = &spec->messages[--spec->n_messages];
    free(last->role);
    free(last->content);
}

static bool has_system(const struct request_spec *spec)
{
    return spec->n_messages && strcmp(spec->messages[0].role, "system") == 0;
}

void chat_set_system(struct request_spec *spec, const char *text)
{
    size_t others = (size_t)(spec->n_messages - has_system(spec));
    if (has_system(spec)) {
        free(spec->messages[0].role);
        free(spec->messages[0].content);
        memmove(spec->messages, spec->messages + 1, others * sizeof *spec->messages);
        spec->n_messages--;
    }
    if (!text || !*text) return;
    chat_add(spec, "system", mem_string(text));
    struct request_message system = spec->messages[others];
    memmove(spec->messages + 1, spec->messages, others * sizeof *spec->messages);
    spec->messages[0] = system;
}

// --- the commands

struct chat_call {
    struct request_spec *spec;
    const char *argument; // the rest of the line, trimmed
    char *question;
    bool leave;
};

static enum status call_reset(struct chat_call *c)
{
    while (c->spec->n_messages > has_system(c->spec))
        chat_remove_last(c->spec);
    return STATUS_OK;
}

static enum status call_system(struct chat_call *c)
{
    chat_set_system(c->spec, c->argument);
    return STATUS_OK;
}

static enum status call_keep(struct chat_call *c)
{
    char *end;
    double rate = strtod(c->argument, &end);
    bool all = strcmp(c->argument, "all") == 0;
    if (!all && (end == c->argument || *end || !(rate > 0 && rate <= 1)))
        return status_fail(STATUS_INVALID, "/keep %s: must be a share over 0 and at most 1, such as 0.3, or all",
                           c->argument);
    c->spec->prefill_mode_given = true;
    c->spec->prefill.mode = all ? PREFILL_OFF : PREFILL_ON;
    if (all) return STATUS_OK;
    c->spec->prefill.keep_rate = rate;
    c->spec->prefill_given |= generation_field_bit(prefill_fields, "keep_rate");
    return STATUS_OK;
}

static enum status call_file(struct chat_call *c)
{
    size_t size;
    if (!*c->argument) return status_fail(STATUS_INVALID, "/file: the path of a text must follow");
    TRY(read_whole_file(c->argument, &c->question, &size));
    if (size && strlen(c->question) == size) return STATUS_OK;
    free(c->question);
    c->question = NULL;
    return status_fail(STATUS_INVALID, "%s: must be a text of at least one character, without NUL", c->argument);
}

static enum status call_quit(struct chat_call *c)
{
    c->leave = true;
    return STATUS_OK;
}

static enum status call_help(struct chat_call *c);

static const struct chat_row {
    const char *name, *argument, *help;
    enum status (*run)(struct chat_call *c);
} rows[] = {
    {"help", "", "lists these commands", call_help},
    {"reset", "", "forgets the conversation; the system prompt stays", call_reset},
    {"system", "TEXT", "sets the system prompt; without TEXT there is none", call_system},
    {"keep", "RATE", "share of the prompt's tokens to keep, such as 0.3, or all", call_keep},
    {"file", "PATH", "sends the text of a file", call_file},
    {"quit", "", "leaves, as Ctrl-D does", call_quit},
};
enum { N_ROWS = sizeof rows / sizeof *rows };

static enum status call_help(struct chat_call *c)
{
    (void)c;
    for (int i = 0; i < N_ROWS; i++)
        printf("/%-6s %-5s %s\n", rows[i].name, rows[i].argument, rows[i].help);
    printf("//            sends a line that starts with a slash: //etc is sent as /etc\n");
    return STATUS_OK;
}

static const struct chat_row *row_find(const char *name, size_t length)
{
    for (int i = 0; i < N_ROWS; i++)
        if (strlen(rows[i].name) == length && memcmp(rows[i].name, name, length) == 0) return &rows[i];
    return NULL;
}

enum status chat_command(struct request_spec *spec, const char *line, char **question_p, bool *leave_p)
{
    const char *name = line + 1;
    size_t length = strcspn(name, " \t");
    const struct chat_row *row = row_find(name, length);
    if (!row)
        return status_fail(STATUS_INVALID,
                           "/%.*s is no command and was not sent: /help lists the commands; write // to send a line "
                           "that starts with a slash",
                           (int)(length < 40 ? length : 40), name);
    const char *argument = name + length + strspn(name + length, " \t");
    size_t left = strlen(argument);
    while (left && isspace((unsigned char)argument[left - 1]))
        left--;
    char *trimmed = mem_format("%.*s", (int)left, argument);
    struct chat_call call = {.spec = spec, .argument = trimmed};
    enum status status = row->run(&call);
    free(trimmed);
    *question_p = call.question;
    *leave_p = call.leave;
    return status;
}
