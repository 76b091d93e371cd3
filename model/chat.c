// SPDX-License-Identifier: Apache-2.0
// Renders a conversation and encodes the whole text at once. The origins of its bytes say where special tokens are
// recognised (only in text of the template) and which tokens are pinned.
#include "model/chat.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/chat_parts.h"
#include "model/json_file.h"
#include "model/unicode.h"

// ---- Rendering.

// Roles that templates put into special tokens ("<|user|>"). A role that is not among them is a client's text.
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

// Bounds that grow with the conversation: a template that only prints it never reaches them.
static struct jinja_limits limits_for(const struct chat_conversation *c)
{
    size_t bytes = json_bytes(c->messages) + (c->tools ? json_bytes(c->tools) : 0) +
                   (c->documents ? json_bytes(c->documents) : 0) + (c->variables ? json_bytes(c->variables) : 0);
    struct jinja_limits limits = JINJA_LIMITS_DEFAULT;
    limits.steps += 2 * bytes;
    limits.output_bytes = ((size_t)16 << 20) + 4 * bytes;
    limits.memory_bytes = ((size_t)64 << 20) + 12 * bytes;
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

// The texts of the parts, joined by newlines; NULL: a part is not a text. The sentence then names it.
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

static enum status convert_content(const struct chat_template *chat, json_t *message, size_t i)
{
    json_t *content = json_object_get(message, "content");
    if (!content) return STATUS_OK;
    if (json_is_null(content)) {
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

// Tool calls whose arguments are JSON text get them as an object.
static void convert_tool_calls(json_t *message)
{
    json_t *calls = json_object_get(message, "tool_calls"), *call;
    size_t i;
    if (!json_is_array(calls)) return;
    calls = json_deep_copy(calls);
    json_array_foreach(calls, i, call)
    {
        json_t *function = json_object_get(call, "function");
        const char *text = json_string_value(json_object_get(function, "arguments"));
        json_t *object = text ? json_loads(text, 0, NULL) : NULL;
        if (json_is_object(object))
            json_object_set_new(function, "arguments", object);
        else
            json_decref(object);
    }
    json_object_set_new(message, "tool_calls", calls);
}

// A copy of the messages as the template expects them.
static enum status convert_messages(const struct chat_template *chat, const json_t *messages, json_t **converted_p)
{
    size_t i;
    json_t *message, *converted = json_array();
    enum status status = STATUS_OK;
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
        convert_tool_calls(message);
        status = convert_content(chat, message, i);
    }
    if (status == STATUS_OK)
        *converted_p = converted;
    else
        json_decref(converted);
    return status;
}

// ---- Pinned ranges.

// The text of a rendering, by origin.
struct layout {
    const struct jinja_output *output;
    const json_t *messages;
    struct text_range *pinned;
    int n_pinned;
    struct text_range last_turn; // text of the last user message
    size_t first_turn;           // where the first message starts that is not an instruction
    size_t last_frame;           // end of the text before the last user message that comes from another message
};

static bool message_has_role(const json_t *messages, int i, const char *role)
{
    const char *own = json_string_value(json_object_get(json_array_get(messages, (size_t)i), "role"));
    return own && !strcmp(own, role);
}

static bool is_instruction(const struct layout *l, int tag)
{
    int n = (int)json_array_size(l->messages);
    if (tag >= n) return tag == n + CHAT_TAG_TOOLS;
    return message_has_role(l->messages, tag, "system") || message_has_role(l->messages, tag, "developer");
}

static bool is_turn(const struct layout *l, int tag)
{
    return tag < (int)json_array_size(l->messages) && !is_instruction(l, tag);
}

static int last_user_message(const json_t *messages)
{
    int i = (int)json_array_size(messages) - 1;
    while (i >= 0 && !message_has_role(messages, i, "user"))
        i--;
    return i;
}

static void find_turns(struct layout *l)
{
    int user = last_user_message(l->messages);
    l->first_turn = l->output->text_bytes;
    for (int i = l->output->n_spans; i-- > 0;)
        if (is_turn(l, l->output->spans[i].tag)) l->first_turn = l->output->spans[i].start;
    for (int i = 0; i < l->output->n_spans; i++) {
        const struct jinja_span *span = &l->output->spans[i];
        if (span->tag == user) {
            if (l->last_turn.start == l->last_turn.end) l->last_turn.start = span->start;
            l->last_turn.end = span->end;
        } else if (is_turn(l, span->tag) && l->last_turn.start == l->last_turn.end) {
            l->last_frame = span->end;
        }
    }
}

static void pin(struct layout *l, size_t start, size_t end)
{
    if (start >= end) return;
    if (l->n_pinned && l->pinned[l->n_pinned - 1].end == start)
        l->pinned[l->n_pinned - 1].end = end;
    else
        l->pinned[l->n_pinned++] = (struct text_range){start, end};
}

// Text [start, end) of the template.
static void pin_frame(struct layout *l, size_t start, size_t end)
{
    pin(l, start, end < l->first_turn ? end : l->first_turn);
    size_t from = start > l->first_turn ? start : l->first_turn;
    pin(l, from > l->last_frame ? from : l->last_frame, end);
}

static void find_pinned_text(struct layout *l)
{
    size_t at = 0;
    l->pinned = mem_alloc_array(3 * (size_t)l->output->n_spans + 3, sizeof *l->pinned);
    find_turns(l);
    for (int i = 0; i < l->output->n_spans; i++) {
        const struct jinja_span *span = &l->output->spans[i];
        pin_frame(l, at, span->start);
        if (is_instruction(l, span->tag)) pin(l, span->start, span->end);
        at = span->end;
    }
    pin_frame(l, at, l->output->text_bytes);
}

// The text of token i extends from starts[i] to the start of the next token.
static size_t token_end(const struct layout *l, const size_t *starts, const struct chat_prompt *prompt, int i)
{
    size_t end = i + 1 < prompt->n_ids ? starts[i + 1] : l->output->text_bytes;
    return end == starts[i] ? end + 1 : end; // several tokens share one character
}

// The tokens that contain a byte of the last user turn; {0, -1}: none.
static struct token_range last_turn_tokens(const struct layout *l, const size_t *starts,
                                           const struct chat_prompt *prompt)
{
    struct token_range turn = {0, -1};
    for (int i = 0; i < prompt->n_ids && starts[i] < l->last_turn.end; i++) {
        if (token_end(l, starts, prompt, i) <= l->last_turn.start) continue;
        if (turn.last < 0) turn.first = i;
        turn.last = i;
    }
    return turn;
}

static bool turn_pins_token(struct token_range turn, int turn_tokens, int i)
{
    if (i < turn.first || i > turn.last) return false;
    if (turn.last - turn.first < turn_tokens) return true;
    return i < turn.first + turn_tokens / 2 || i > turn.last - turn_tokens / 2;
}

// Collects the tokens that contain a pinned byte and the pinned tokens of the last user turn.
static void find_pinned_tokens(const struct layout *l, const size_t *starts, int turn_tokens,
                               struct chat_prompt *prompt)
{
    struct token_range *pinned = mem_alloc_array((size_t)l->n_pinned + 2, sizeof *pinned);
    struct token_range turn = last_turn_tokens(l, starts, prompt);
    int n = 0;
    for (int i = 0, range = 0; i < prompt->n_ids; i++) {
        while (range < l->n_pinned && l->pinned[range].end <= starts[i])
            range++;
        bool text_is_pinned = range < l->n_pinned && l->pinned[range].start < token_end(l, starts, prompt, i);
        if (!text_is_pinned && !turn_pins_token(turn, turn_tokens, i)) continue;
        if (n && pinned[n - 1].last == i - 1)
            pinned[n - 1].last++;
        else
            pinned[n++] = (struct token_range){i, i};
    }
    prompt->pinned = pinned;
    prompt->n_pinned = n;
}

// ---- Public.

static enum status encode(const struct tokenizer *tokenizer, const struct layout *l, int max_ids, size_t **starts_p,
                          struct chat_prompt *prompt)
{
    const struct jinja_output *output = l->output;
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
    struct layout layout = {.output = &output, .messages = messages};
    find_pinned_text(&layout);
    status = encode(tokenizer, &layout, max_ids, &starts, &prompt);
    if (status == STATUS_OK) {
        find_pinned_tokens(&layout, starts, turn_tokens, &prompt);
        free(starts);
        prompt.text = output.text;
        prompt.text_bytes = output.text_bytes;
        *prompt_p = prompt;
    } else {
        free(output.text);
    }
    free(output.spans);
    free(layout.pinned);
    json_decref(messages);
    return status;
}

void chat_prompt_fini(struct chat_prompt *prompt)
{
    free(prompt->text);
    free(prompt->ids);
    free(prompt->pinned);
    *prompt = (struct chat_prompt){0};
}
