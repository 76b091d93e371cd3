// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/http_messages.h"

#include <string.h>

#include "router/front/http/json_body.h"
#include "router/front/http/json_images.h"
#include "router/front/http/json_variables.h"

static enum status refuse(size_t i, const char *what)
{
    return status_fail(STATUS_INVALID, "messages[%zu]: %s", i, what);
}

static enum status check_part(size_t i, const json_t *part)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    if (!type) return refuse(i, "each part of content must be an object with a type");
    if (strcmp(type, "text") != 0)
        return status_fail(STATUS_UNSUPPORTED,
                           "messages[%zu]: parts of type '%.64s' are not supported: send text parts%s", i, type,
                           json_image_remedy(type));
    return json_is_string(json_object_get(part, "text")) ? STATUS_OK : refuse(i, "the text of a part must be a string");
}

// Checks the content of a message, which may be missing only if the message has tool calls.
static enum status check_content(size_t i, const json_t *content, bool calls)
{
    if (json_is_string(content) || (calls && (!content || json_is_null(content)))) return STATUS_OK;
    if (!json_is_array(content)) return refuse(i, "content must be a string or a list of text parts");
    for (size_t p = 0; p < json_array_size(content); p++)
        TRY(check_part(i, json_array_get(content, p)));
    return STATUS_OK;
}

static enum status check_calls(size_t i, const json_t *calls)
{
    if (calls && !json_is_null(calls) && !json_is_array(calls)) return refuse(i, "tool_calls must be a list");
    for (size_t c = 0; c < json_array_size(calls); c++) {
        const json_t *function = json_object_get(json_array_get(calls, c), "function");
        if (!json_is_string(json_object_get(function, "name")) ||
            !json_is_string(json_object_get(function, "arguments")))
            return refuse(i, "each of tool_calls must have a function with name and arguments, both strings");
    }
    return STATUS_OK;
}

static enum status check_message(size_t i, json_t *message)
{
    if (!json_is_object(message)) return refuse(i, "must be an object with role and content");
    const char *role = json_string_value(json_object_get(message, "role"));
    if (!role) return refuse(i, "role must be a string");
    // "developer" is OpenAI's newer name of the role "system". Few templates know it.
    if (strcmp(role, "developer") == 0) json_object_set_new(message, "role", json_string("system"));
    const json_t *calls = json_object_get(message, "tool_calls");
    TRY(check_calls(i, calls));
    return check_content(i, json_object_get(message, "content"), json_array_size(calls));
}

struct values {
    const json_t *messages, *documents, *chat_template_kwargs;
    const char *reasoning_effort, *verbosity;
    bool add_generation_prompt;
};

#define FIELD(name_, type_)                                                                                            \
    {                                                                                                                  \
        .name = #name_, .type = JSON_FIELD_##type_, .offset = offsetof(struct values, name_)                           \
    }
static const struct json_field fields[] = {
    FIELD(messages, LIST),
    FIELD(documents, LIST),
    FIELD(chat_template_kwargs, OBJECT),
    FIELD(reasoning_effort, NAME),
    FIELD(verbosity, NAME),
    FIELD(add_generation_prompt, BOOL),
    {0},
};

// Adds the fields that are variables of the template. The client's own chat_template_kwargs take precedence.
static enum status read_variables(const struct values *v, struct http_input *in)
{
    const char *effort = v->reasoning_effort, *verbosity = v->verbosity;
    if (effort) TRY(json_variable_check("reasoning_effort", effort));
    if (verbosity) TRY(json_variable_check("verbosity", verbosity));
    in->variables = v->chat_template_kwargs ? json_copy((json_t *)v->chat_template_kwargs) : json_object();
    if (effort) json_variable_set(in->variables, "reasoning_effort", json_string(effort));
    if (effort && strcmp(effort, "none") == 0) json_variables_set_thinking(in->variables, false);
    if (verbosity) json_variable_set(in->variables, "verbosity", json_string(verbosity));
    return STATUS_OK;
}

bool http_messages_knows(const char *name)
{
    return json_tables_name(fields, NULL, name);
}

enum status http_messages_read(const json_t *body, struct http_input *in, struct http_prompt *prompt)
{
    struct values v = {.add_generation_prompt = true};
    TRY(json_fields_read(body, fields, &v));
    size_t n = json_array_size(v.messages);
    if (!n) return status_fail(STATUS_INVALID, "messages: at least one is required");
    for (size_t i = 0; i < n; i++)
        TRY(check_message(i, json_array_get(v.messages, i)));
    TRY(read_variables(&v, in));
    prompt->conversation = http_input_alloc(in, 1, sizeof *prompt->conversation);
    *prompt->conversation = (struct chat_conversation){.messages = v.messages,
                                                       .documents = v.documents,
                                                       .variables = in->variables,
                                                       .answered = !v.add_generation_prompt};
    return STATUS_OK;
}
