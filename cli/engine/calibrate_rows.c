// SPDX-License-Identifier: Apache-2.0
#include "cli/engine/calibrate_rows.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/text/chat.h"

enum { CHAT_TOKENS_MAX = 1 << 24 }; // no model has a longer context

struct reader {
    const char *model_dir;
    const struct tokenizer *tokenizer;
    struct chat_template *chat; // NULL until a row has messages
    int pinned_turn_tokens;
    struct calibrate_rows *rows;
};

static int group_of(struct calibrate_rows *rows, const char *name)
{
    for (int g = 0; g < rows->n_groups; g++)
        if (strcmp(rows->groups[g], name) == 0) return g;
    rows->groups = mem_resize(rows->groups, (size_t)rows->n_groups + 1, sizeof *rows->groups);
    rows->groups[rows->n_groups] = mem_string(name);
    return rows->n_groups++;
}

// --- the prompt

static enum status prompt_read(const struct reader *reader, const json_t *prompt, struct calibrate_row *row)
{
    if (!json_is_string(prompt)) return status_fail(STATUS_INVALID, "prompt: must be a string");
    return tokenizer_encode(reader->tokenizer, json_string_value(prompt), json_string_length(prompt),
                            TOKENIZER_ADD_SPECIAL, &row->tokens, &row->n);
}

static enum status token_ids_read(const struct reader *reader, const json_t *ids, struct calibrate_row *row)
{
    if (!json_is_array(ids)) return status_fail(STATUS_INVALID, "token_ids: must be a list");
    row->n = (int)json_array_size(ids);
    row->tokens = mem_alloc_array((size_t)row->n + 1, sizeof *row->tokens);
    for (int i = 0; i < row->n; i++) {
        json_int_t id = json_integer_value(json_array_get(ids, (size_t)i));
        if (!json_is_integer(json_array_get(ids, (size_t)i)) || id < 0 || id >= tokenizer_vocab_size(reader->tokenizer))
            return status_fail(STATUS_INVALID, "token_ids[%d]: must be the id of a token of the model", i);
        row->tokens[i] = (int32_t)id;
    }
    return STATUS_OK;
}

static enum status messages_read(struct reader *reader, const json_t *messages, struct calibrate_row *row)
{
    struct chat_prompt prompt;
    const struct chat_conversation conversation = {.messages = messages};
    if (!reader->chat) TRY(chat_template_open(reader->model_dir, NULL, &reader->chat));
    TRY(chat_render(reader->chat, reader->tokenizer, &conversation, CHAT_TOKENS_MAX, reader->pinned_turn_tokens,
                    &prompt));
    row->tokens = mem_copy(prompt.ids, (size_t)prompt.n_ids * sizeof *prompt.ids);
    row->n = prompt.n_ids;
    row->pinned = mem_copy(prompt.pinned, (size_t)prompt.n_pinned * sizeof *prompt.pinned);
    row->n_pinned = prompt.n_pinned;
    chat_prompt_fini(&prompt);
    return STATUS_OK;
}

static enum status tokens_read(struct reader *reader, const json_t *object, struct calibrate_row *row)
{
    const json_t *prompt = json_object_get(object, "prompt"), *ids = json_object_get(object, "token_ids"),
                 *messages = json_object_get(object, "messages");
    if (messages && (prompt || ids))
        return status_fail(STATUS_INVALID, "messages: not allowed together with prompt or token_ids");
    if (messages) TRY(messages_read(reader, messages, row));
    if (ids) TRY(token_ids_read(reader, ids, row)); // token ids of the prompt; its text may be given too
    if (prompt && !ids) TRY(prompt_read(reader, prompt, row));
    if (!messages && !ids && !prompt) return status_fail(STATUS_INVALID, "must have a prompt, token_ids or messages");
    return row->n ? STATUS_OK : status_fail(STATUS_INVALID, "the prompt is empty");
}

// --- the file

static void row_free(struct calibrate_row *row)
{
    free(row->tokens);
    free(row->pinned);
    free(row->answer);
}

static enum status row_read(struct reader *reader, const json_t *object)
{
    struct calibrate_rows *rows = reader->rows;
    struct calibrate_row row = {.n = 0};
    const json_t *answer = json_object_get(object, "answer"), *task = json_object_get(object, "task");
    if (answer && !json_is_string(answer)) return status_fail(STATUS_INVALID, "answer: must be a string");
    if (task && !json_is_string(task)) return status_fail(STATUS_INVALID, "task: must be a string");
    enum status status = tokens_read(reader, object, &row);
    if (status != STATUS_OK) {
        row_free(&row);
        return status;
    }
    if (answer) row.answer = mem_string(json_string_value(answer));
    row.group = group_of(rows, task ? json_string_value(task) : "all");
    MEM_GROW(rows->rows, rows->n, rows->capacity);
    rows->rows[rows->n++] = row;
    return STATUS_OK;
}

static enum status line_read(struct reader *reader, const char *line)
{
    json_error_t error;
    json_t *object = json_loads(line, JSON_REJECT_DUPLICATES, &error);
    enum status status = json_is_object(object) ? row_read(reader, object)
                         : object               ? status_fail(STATUS_INVALID, "must be a JSON object")
                                                : status_fail(STATUS_INVALID, "not valid JSON: %s", error.text);
    json_decref(object);
    return status;
}

static enum status lines_read(struct reader *reader, FILE *file, const char *path)
{
    enum status status = STATUS_OK;
    char *line = NULL;
    size_t size = 0;
    for (int number = 1; status == STATUS_OK && getline(&line, &size, file) > 0; number++) {
        if (line[strspn(line, " \t\r\n")]) status = line_read(reader, line);
        if (status != STATUS_OK) status_context(status, "%s: line %d", path, number);
    }
    free(line);
    if (status != STATUS_OK) return STATUS_INVALID;
    return ferror(file) ? status_fail(STATUS_INVALID, "%s: %s", path, strerror(errno)) : STATUS_OK;
}

enum status calibrate_rows_read(const char *path, const char *model_dir, const struct tokenizer *tokenizer,
                                int pinned_turn_tokens, struct calibrate_rows *rows)
{
    struct reader reader = {
        .model_dir = model_dir, .tokenizer = tokenizer, .pinned_turn_tokens = pinned_turn_tokens, .rows = rows};
    FILE *file = fopen(path, "r");
    if (!file) return status_fail(STATUS_INVALID, "%s: %s", path, strerror(errno));
    enum status status = lines_read(&reader, file, path);
    chat_template_free(reader.chat);
    fclose(file);
    if (status != STATUS_OK || rows->n) return status;
    return status_fail(STATUS_INVALID, "%s: must have at least one row", path);
}

void calibrate_rows_fini(struct calibrate_rows *rows)
{
    for (int i = 0; i < rows->n; i++)
        row_free(&rows->rows[i]);
    for (int g = 0; g < rows->n_groups; g++)
        free(rows->groups[g]);
    free(rows->groups);
    free(rows->rows);
}
