// SPDX-License-Identifier: Apache-2.0
// See chat.h. Renders a conversation and encodes the whole text in one call. The origins of its bytes decide where
// special tokens are recognised (only in text of the template), which tokens are pinned, and which tokens are answers.
#include "lib/text/chat.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/json_count.h"
#include "lib/base/mem.h"
#include "lib/text/chat_parts.h"
#include "lib/text/json_file.h"
#include "lib/text/unicode.h"

// ---- Rendering.

// Roles that templates put into special tokens ("<|user|>"). Any other role is a client's text.
static const char *const roles[] = {"system",  "developer",   "user",        "assistant", "tool",  "function",
                                    "ipython", "observation", "environment", "context",   "model", NULL};

static size_t json_bytes(const json_t *json)
{
    size_t bytes = 16, i;
    const char *key;
    json_t *item;
    if (json_is_string(json)) bytes += json_string_length(json);
    json_array_foreach((json_t *)json, i, item) bytes += json_bytes(item);
    json_object_foreach((json_t *)json, key, item) bytes += strlen(key) + json_bytes(item);
    return bytes;
}

// Returns limits that grow with the conversation, as stated in docs/security.md. A template that only prints the
// conversation stays below them: the templates of Qwen3, Llama 3.1 and Gemma 2 take 3 to 9 bytes of memory for each
// byte. Only conversations of tens of MiB (millions of tokens) may reach the memory limit, which does not grow beyond
// JINJA_LIMITS_DEFAULT.
static struct jinja_limits limits_for(const struct chat_conversation *c)
{
    size_t bytes = json_bytes(c->messages) + (c->tools ? json_bytes(c->tools) : 0) +
                   (c->documents ? json_bytes(c->documents) : 0) + (c->variables ? json_bytes(c->variables) : 0);
    struct jinja_limits limits = JINJA_LIMITS_DEFAULT;
    size_t memory_bytes = ((size_t)64 << 20) + 12 * bytes;
    limits.steps += 2 * bytes;
    limits.output_bytes = ((size_t)16 << 20) + 4 * bytes;
    if (memory_bytes < limits.memory_bytes) limits.memory_bytes = memory_bytes;
    return limits;
}

enum status chat_render_jinja(const struct chat_template *chat, const struct chat_conversation *c,
                              struct jinja_output *output_p)
{
    size_t n_special = json_object_size(chat->special_tokens),
           n_variables = c->variables ? json_object_size(c->variables) : 0;
    struct jinja_input *inputs = mem_alloc_array(n_special + n_variables + 4, sizeof *inputs);
    int n = 0, first_tag = (int)json_array_size(c->messages);
    const char *name;
    json_t *value;
    json_object_foreach(chat->special_tokens, name, value) inputs[n++] =
        (struct jinja_input){.name = name, .value = value, .tag = JINJA_TEMPLATE};
    json_object_foreach((json_t *)c->variables, name, value) inputs[n++] =
        (struct jinja_input){.name = name, .value = value, .tag = first_tag + CHAT_TAG_VARIABLES};
    inputs[n++] = (struct jinja_input){
        .name = "messages", .value = c->messages, .tag_elements = true, .plain_member = "role", .plain_words = roles};
    inputs[n++] = (struct jinja_input){.name = "tools", .value = c->tools, .tag = first_tag + CHAT_TAG_TOOLS};
    inputs[n++] =
        (struct jinja_input){.name = "documents", .value = c->documents, .tag = first_tag + CHAT_TAG_DOCUMENTS};
    inputs[n++] = (struct jinja_input){
        .name = "add_generation_prompt", .value = c->answered ? json_false() : json_true(), .tag = JINJA_TEMPLATE};
    time_t seconds = time(NULL);
    struct tm now;
    localtime_r(&seconds, &now);
    struct jinja_limits limits = limits_for(c);
    const struct jinja_template *jinja = c->tools && chat->jinja_tools ? chat->jinja_tools : chat->jinja;
    enum status status = jinja_render(jinja, inputs, n, c->now ? c->now : &now, &limits, output_p);
    if (status != STATUS_OK) status_context(status, "the chat template");
    free(inputs);
    return status;
}

enum status chat_render_text(const struct chat_template *chat, const struct chat_conversation *conversation,
                             char **text_p, size_t *text_bytes_p)
{
    struct jinja_output output;
    TRY(chat_render_jinja(chat, conversation, &output));
    free(output.spans);
    *text_p = output.text;
    *text_bytes_p = output.text_bytes;
    return STATUS_OK;
}

// ---- Checks and conversions of messages.

// Joins the texts of the parts by newlines. Returns NULL if a part is not a text; then the error message names the
// part.
static json_t *join_parts(const json_t *parts, size_t message)
{
    struct bytes joined = {0};
    size_t i;
    json_t *part;
    json_array_foreach((json_t *)parts, i, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *text = json_object_get(part, "text");
        if (!type || strcmp(type, "text") != 0 || !json_is_string(text)) {
            status_fail(STATUS_INVALID,
                        "messages[%zu].content[%zu]: must be {\"type\": \"text\", \"text\": ...}: only "
                        "text is supported",
                        message, i);
            bytes_free(&joined);
            return NULL;
        }
        if (i) bytes_add(&joined, "\n", 1);
        bytes_add(&joined, json_string_value(text), json_string_length(text));
    }
    json_t *string = json_stringn(joined.data ? joined.data : "", joined.n);
    bytes_free(&joined);
    return string;
}

// Removes members that say nothing. Templates test whether a member is there, and clients send null for all fields that
// a message may have.
static void drop_empty_members(json_t *message)
{
    const char *name;
    json_t *value;
    void *next;
    json_object_foreach_safe(message, next, name, value)
    {
        bool no_calls = strcmp(name, "tool_calls") == 0 && json_is_array(value) && !json_array_size(value);
        if (json_is_null(value) || no_calls) json_object_del(message, name);
    }
}

static enum status convert_content(const struct chat_template *chat, json_t *message, size_t i)
{
    json_t *content = json_object_get(message, "content");
    if (!content) {
        json_object_set_new(message, "content", json_string(""));
    } else if (json_is_array(content)) {
        json_t *joined = join_parts(content, i);
        if (!joined) return STATUS_INVALID;
        if (chat->prints_parts)
            json_decref(joined);
        else
            json_object_set_new(message, "content", joined);
    } else if (!json_is_string(content)) {
        return status_fail(STATUS_INVALID, "messages[%zu].content: %s: must be a string or a list of parts", i,
                           json_type_name(content));
    } else if (!chat->prints_strings) {
        json_t *parts = json_pack("[{s:s,s:O}]", "type", "text", "text", content);
        json_object_set_new(message, "content", parts);
    }
    return STATUS_OK;
}

static enum status convert_arguments(json_t *function, struct json_count *count)
{
    const json_t *arguments = json_object_get(function, "arguments");
    if (!json_is_string(arguments)) return STATUS_OK;
    const char *text = json_string_value(arguments);
    json_count_add(count, text, json_string_length(arguments));
    TRY(json_count_check(count, "messages: the arguments of all tool calls have"));
    json_t *object = json_loads(text, 0, NULL);
    if (json_is_object(object))
        json_object_set_new(function, "arguments", object);
    else
        json_decref(object);
    return STATUS_OK;
}

// Parses arguments that are JSON text. `count` accumulates over all messages.
static enum status convert_tool_calls(json_t *message, struct json_count *count)
{
    json_t *calls = json_object_get(message, "tool_calls"), *call;
    size_t i;
    if (!json_is_array(calls)) return STATUS_OK;
    calls = json_deep_copy(calls);
    json_object_set_new(message, "tool_calls", calls);
    json_array_foreach(calls, i, call) TRY(convert_arguments(json_object_get(call, "function"), count));
    return STATUS_OK;
}

// Copies the messages in the form that the template expects.
static enum status convert_messages(const struct chat_template *chat, const json_t *messages, json_t **converted_p)
{
    size_t i;
    json_t *message, *converted = json_array();
    enum status status = STATUS_OK;
    struct json_count count = {0};
    if (!json_is_array(messages) || !json_array_size(messages))
        status = status_fail(STATUS_INVALID, "messages: there must be at least one");
    for (i = 0; status == STATUS_OK && i < json_array_size(messages); i++) {
        message = json_array_get(messages, i);
        if (!json_is_object(message))
            status = status_fail(STATUS_INVALID, "messages[%zu]: %s: must be an object", i, json_type_name(message));
        else if (!json_string_length(json_object_get(message, "role")))
            status = status_fail(STATUS_INVALID, "messages[%zu].role: must be a string such as \"user\"", i);
        if (status != STATUS_OK) break;
        message = json_copy(message);
        json_array_append_new(converted, message);
        drop_empty_members(message);
        status = convert_tool_calls(message, &count);
        if (status == STATUS_OK) status = convert_content(chat, message, i);
    }
    if (status == STATUS_OK)
        *converted_p = converted;
    else
        json_decref(converted);
    return status;
}

// ---- Public.

static enum status encode(const struct tokenizer *tokenizer, const struct jinja_output *output, int max_ids,
                          size_t **starts_p, struct chat_prompt *prompt)
{
    struct text_range *inputs = mem_alloc_array((size_t)output->n_spans + 1, sizeof *inputs);
    int n = 0;
    for (int i = 0; i < output->n_spans; i++) {
        if (n && inputs[n - 1].end == output->spans[i].start)
            inputs[n - 1].end = output->spans[i].end;
        else
            inputs[n++] = (struct text_range){output->spans[i].start, output->spans[i].end};
    }
    enum status status =
        tokenizer_encode_untrusted(tokenizer, output->text, output->text_bytes, TOKENIZER_PARSE_SPECIAL, inputs, n,
                                   max_ids, &prompt->ids, starts_p, &prompt->n_ids);
    free(inputs);
    return status;
}

enum status chat_render(const struct chat_template *chat, const struct tokenizer *tokenizer,
                        const struct chat_conversation *conversation, int max_ids, int turn_tokens,
                        struct chat_prompt *prompt_p)
{
    struct chat_conversation converted = *conversation;
    struct jinja_output output;
    struct chat_prompt prompt = {0};
    json_t *messages;
    size_t *starts;
    TRY(convert_messages(chat, conversation->messages, &messages));
    converted.messages = messages;
    enum status status = chat_render_jinja(chat, &converted, &output);
    if (status != STATUS_OK) {
        json_decref(messages);
        return status;
    }
    status = encode(tokenizer, &output, max_ids, &starts, &prompt);
    if (status == STATUS_OK) {
        const struct chat_rendering rendering = {&output, messages, starts, prompt.n_ids};
        const struct chat_part whole = {(int)json_array_size(messages), output.n_spans, output.text_bytes,
                                        prompt.n_ids};
        prompt.n_pinned = chat_pinned(&rendering, &whole, turn_tokens, &prompt.pinned);
        if (conversation->wants_turns) prompt.n_turns = chat_turns(&rendering, turn_tokens, &prompt.turns);
        free(starts);
        prompt.text = output.text;
        prompt.text_bytes = output.text_bytes;
        *prompt_p = prompt;
    } else {
        free(output.text);
    }
    free(output.spans);
    json_decref(messages);
    return status;
}

void chat_prompt_fini(struct chat_prompt *prompt)
{
    free(prompt->text);
    free(prompt->ids);
    free(prompt->pinned);
    prompt_turns_free(prompt->turns, prompt->n_turns);
    *prompt = (struct chat_prompt){0};
}
