// SPDX-License-Identifier: Apache-2.0
#include "router/batch/batch_usage.h"

#include <stdlib.h>

#include "lib/base/mem.h"

void batch_usage_fini(struct batch_usage *usage)
{
    free(usage->model);
    usage->model = NULL;
}

static int64_t number(const json_t *object, const char *name)
{
    return json_integer_value(json_object_get(object, name));
}

static void note_model(struct batch_usage *usage, const json_t *model)
{
    if (!usage->model && json_is_string(model)) usage->model = mem_string(json_string_value(model));
}

// Adds a usage. Chats and completions name the members prompt_... and completion_..., responses input_... and
// output_...
static void add_usage(struct batch_usage *usage, const json_t *more)
{
    usage->input += number(more, "prompt_tokens") + number(more, "input_tokens");
    usage->output += number(more, "completion_tokens") + number(more, "output_tokens");
    usage->cached += number(json_object_get(more, "prompt_tokens_details"), "cached_tokens") +
                     number(json_object_get(more, "input_tokens_details"), "cached_tokens");
    usage->reasoning += number(json_object_get(more, "completion_tokens_details"), "reasoning_tokens") +
                        number(json_object_get(more, "output_tokens_details"), "reasoning_tokens");
}

void batch_usage_add(struct batch_usage *usage, const char *line, size_t size)
{
    json_t *row = json_loadb(line, size, JSON_ALLOW_NUL, NULL);
    const json_t *body = json_object_get(json_object_get(row, "response"), "body");
    add_usage(usage, json_object_get(body, "usage"));
    note_model(usage, json_object_get(body, "model"));
    json_decref(row);
}

void batch_usage_to_json(const struct batch_usage *usage, json_t *batch)
{
    json_object_set_new(batch, "usage",
                        json_pack("{sI, s{sI}, sI, s{sI}, sI}", "input_tokens", (json_int_t)usage->input,
                                  "input_tokens_details", "cached_tokens", (json_int_t)usage->cached, "output_tokens",
                                  (json_int_t)usage->output, "output_tokens_details", "reasoning_tokens",
                                  (json_int_t)usage->reasoning, "total_tokens",
                                  (json_int_t)(usage->input + usage->output)));
    if (usage->model) json_object_set_new(batch, "model", json_string(usage->model));
}

void batch_usage_from_json(const json_t *batch, struct batch_usage *usage)
{
    *usage = (struct batch_usage){0};
    add_usage(usage, json_object_get(batch, "usage"));
    note_model(usage, json_object_get(batch, "model"));
}
