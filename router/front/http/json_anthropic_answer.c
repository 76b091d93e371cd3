// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/json_anthropic_answer.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "router/front/http/json_translate.h"

// --- the message

static void head_add(struct bytes *out, const struct anthropic_answer *a)
{
    JSON_ADD(out, "{\"id\":");
    json_add_string(out, a->id);
    JSON_ADD(out, ",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
    json_add_string(out, a->model);
}

// Adds the usage. Anthropic's input_tokens do not include prompt tokens that were found in a prefix cache.
static void usage_add(struct bytes *out, int prompt_tokens, int cached_tokens, int output_tokens)
{
    JSON_ADD(out, ",\"usage\":{\"input_tokens\":");
    json_add_integer(out, prompt_tokens - cached_tokens);
    JSON_ADD(out, ",\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":");
    json_add_integer(out, cached_tokens);
    JSON_ADD(out, ",\"output_tokens\":");
    json_add_integer(out, output_tokens);
    JSON_ADD(out, "}");
}

static void end_usage_add(struct bytes *out, const struct request_usage *usage)
{
    usage_add(out, usage->prompt_tokens, usage->cached_tokens, usage->completion_tokens);
}

static const char *stop_reason_name(const struct anthropic_end *end)
{
    if (end->reason == FINISH_REASON_LENGTH) return "max_tokens";
    return end->stop ? "stop_sequence" : end->calls ? "tool_use" : "end_turn";
}

static void stop_add(struct bytes *out, const struct anthropic_end *end)
{
    JSON_ADD(out, "\"stop_reason\":");
    json_add_string(out, stop_reason_name(end));
    JSON_ADD(out, ",\"stop_sequence\":");
    json_add_string(out, end->stop);
}

static void text_block_add(struct bytes *out, const char *type, const char *text, size_t n)
{
    json_add_comma(out);
    JSON_ADD(out, "{\"type\":");
    json_add_string(out, type);
    JSON_ADD(out, ",");
    json_add_string(out, type);
    JSON_ADD(out, ":");
    json_add_text(out, text, n);
    json_add(out, strcmp(type, "thinking") == 0 ? ",\"signature\":\"\"}" : "}");
}

// Closes the open lists and objects of the first `n` bytes of a text. Returns the text if it is JSON, or NULL.
static char *closed_value(const struct bytes *text, size_t n, const struct bytes *open)
{
    struct bytes closed = {0};
    bytes_add(&closed, text->data, n);
    for (size_t i = open->n; i-- > 0;)
        bytes_add(&closed, &open->data[i], 1);
    json_t *value = json_loadb(closed.data, closed.n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    bool is_json = value != NULL;
    json_decref(value);
    bytes_add(&closed, "", 1);
    if (!is_json) bytes_free(&closed);
    return is_json ? closed.data : NULL;
}

// Returns true if the text ends with a number, or with a part of one.
static bool ends_in_number(const struct bytes *text)
{
    size_t from = text->n;
    while (from && text->data[from - 1] && strchr("+-.0123456789Ee", text->data[from - 1]))
        from--;
    return from < text->n && strchr("-0123456789", text->data[from]); // the last letter of `true` is no number
}

// Returns the text as JSON: leaves out a value that was cut, and closes the open lists and objects. A number at the end
// of an open list or object counts as cut, because further digits may be missing. Returns NULL if no such text exists.
static char *complete_members(const struct bytes *text)
{
    struct bytes open = {0}; // closing brackets of the open lists and objects
    size_t complete = 0;     // the text before this position needs only the brackets
    bool quoted = false, in_value = false;
    for (size_t i = 0; i < text->n; i++) {
        char c = text->data[i];
        if (quoted) {
            if (c == '\\') i++;
            if (c == '"') quoted = false;
            if (c == '"' && in_value) complete = i + 1;
            continue;
        }
        if (c == '"') quoted = true;
        if (c == '{' || c == '[') bytes_add(&open, c == '{' ? "}" : "]", 1);
        if ((c == '}' || c == ']') && open.n) open.n--;
        if (c == ',') complete = i;
        if (strchr("{}[]", c)) complete = i + 1;
        if (strchr("{[,:", c)) in_value = c == ':' || (open.n && open.data[open.n - 1] == ']');
    }
    const bool whole = text->n && !(open.n && ends_in_number(text));
    char *value = whole ? closed_value(text, text->n, &open) : NULL;
    if (!value && complete) value = closed_value(text, complete, &open);
    bytes_free(&open);
    return value;
}

// Adds the block of a call. Its `input` is an object unless the model wrote another value.
static void call_block_add(struct bytes *out, const struct chat_call *call)
{
    char *input = complete_members(&call->arguments);
    json_add_comma(out);
    JSON_ADD(out, "{\"type\":\"tool_use\",\"id\":");
    json_add_string(out, call->id);
    JSON_ADD(out, ",\"name\":");
    json_add_text(out, call->name.data, call->name.n);
    JSON_ADD(out, ",\"input\":");
    json_add(out, input ? input : "{}");
    JSON_ADD(out, "}");
    free(input);
}

void anthropic_add_message(struct bytes *out, const struct anthropic_answer *a, const struct bytes *text,
                           const struct chat_answer *chat, const struct anthropic_end *end)
{
    int n_calls = chat ? chat->n_calls : 0;
    size_t at = 0;
    head_add(out, a);
    JSON_ADD(out, ",\"content\":[");
    if (chat && chat->reasoning.n) text_block_add(out, "thinking", chat->reasoning.data, chat->reasoning.n);
    for (int i = 0; i < n_calls; at = chat->calls[i++].text_at) {
        if (chat->calls[i].text_at > at) text_block_add(out, "text", text->data + at, chat->calls[i].text_at - at);
        call_block_add(out, &chat->calls[i]);
    }
    if (text->n > at || !(n_calls || (chat && chat->reasoning.n)))
        text_block_add(out, "text", text->n ? text->data + at : "", text->n - at);
    JSON_ADD(out, "],");
    stop_add(out, end);
    end_usage_add(out, end->usage);
    json_add_explanation(out, end->explanation);
    JSON_ADD(out, "}");
}

// --- events

void anthropic_add_begin(struct bytes *out, const struct anthropic_answer *a, int prompt_tokens)
{
    json_event_begin(out, "message_start");
    JSON_ADD(out, ",\"message\":");
    head_add(out, a);
    JSON_ADD(out, ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null");
    usage_add(out, prompt_tokens, 0, 0);
    JSON_ADD(out, "}");
    json_event_end(out);
    json_event_begin(out, "ping");
    json_event_end(out);
}

static void index_add(struct bytes *out, const struct anthropic_blocks *blocks)
{
    JSON_ADD(out, ",\"index\":");
    json_add_integer(out, blocks->n - 1);
}

static void block_end(struct bytes *out, struct anthropic_blocks *blocks)
{
    if (!blocks->open) return;
    json_event_begin(out, "content_block_stop");
    index_add(out, blocks);
    json_event_end(out);
    blocks->open = false;
}

// Begins a block. `call` and `name` [n] are used if the block is a call.
static void block_begin(struct bytes *out, struct anthropic_blocks *blocks, enum output_kind kind,
                        const struct chat_call *call, const char *name, size_t n)
{
    block_end(out, blocks);
    *blocks = (struct anthropic_blocks){blocks->n + 1, kind, true};
    json_event_begin(out, "content_block_start");
    index_add(out, blocks);
    if (kind == OUTPUT_CALL) {
        JSON_ADD(out, ",\"content_block\":{\"type\":\"tool_use\",\"id\":");
        json_add_string(out, call->id);
        JSON_ADD(out, ",\"name\":");
        json_add_text(out, name, n);
        JSON_ADD(out, ",\"input\":{}}");
    } else if (kind == OUTPUT_REASONING) {
        JSON_ADD(out, ",\"content_block\":{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}");
    } else {
        JSON_ADD(out, ",\"content_block\":{\"type\":\"text\",\"text\":\"\"}");
    }
    json_event_end(out);
}

void anthropic_add_part(struct bytes *out, struct anthropic_blocks *blocks, enum output_kind kind,
                        const struct chat_call *call, const char *text, size_t n)
{
    static const char *const deltas[] = {[OUTPUT_REASONING] = "thinking_delta\",\"thinking\":",
                                         [OUTPUT_CONTENT] = "text_delta\",\"text\":",
                                         [OUTPUT_ARGUMENTS] = "input_json_delta\",\"partial_json\":"};
    if (!n) return;
    bool goes_on = blocks->open && (kind == blocks->kind || kind == OUTPUT_ARGUMENTS);
    if (kind == OUTPUT_CALL || !goes_on) block_begin(out, blocks, kind, call, text, n);
    if (kind == OUTPUT_CALL) return;
    json_event_begin(out, "content_block_delta");
    index_add(out, blocks);
    JSON_ADD(out, ",\"delta\":{\"type\":\"");
    json_add(out, deltas[kind]);
    json_add_text(out, text, n);
    JSON_ADD(out, "}");
    json_event_end(out);
}

void anthropic_add_end(struct bytes *out, struct anthropic_blocks *blocks, const struct anthropic_end *end)
{
    if (!blocks->n) block_begin(out, blocks, OUTPUT_CONTENT, NULL, "", 0);
    block_end(out, blocks);
    json_event_begin(out, "message_delta");
    JSON_ADD(out, ",\"delta\":{");
    stop_add(out, end);
    JSON_ADD(out, "}");
    end_usage_add(out, end->usage);
    json_add_explanation(out, end->explanation);
    json_event_end(out);
    json_event_begin(out, "message_stop");
    json_event_end(out);
}

// --- errors

static const char *error_type(enum status status)
{
    switch (status) {
    case STATUS_NOT_FOUND: return "not_found_error";
    case STATUS_UNAUTHENTICATED: return "authentication_error";
    case STATUS_DENIED: return "permission_error";
    case STATUS_EXHAUSTED:
    case STATUS_KEY_LIMIT: return "rate_limit_error";
    case STATUS_UNAVAILABLE: return "overloaded_error";
    case STATUS_DEADLINE: return "timeout_error";
    case STATUS_CANCELLED:
    case STATUS_INTERNAL: return "api_error";
    default: return "invalid_request_error";
    }
}

static const char *http_error_type(int http_status)
{
    switch (http_status) {
    case 404: return "not_found_error";
    case 408: return "timeout_error";
    case 413: return "request_too_large";
    case 503: return "overloaded_error";
    default: return http_status < 500 ? "invalid_request_error" : "api_error";
    }
}

static void error_members_add(struct bytes *out, const char *type, const char *message)
{
    JSON_ADD(out, ",\"error\":{\"type\":");
    json_add_string(out, type);
    JSON_ADD(out, ",\"message\":");
    json_add_string(out, message);
    JSON_ADD(out, "}");
}

void anthropic_add_error_event(struct bytes *out, enum status status, const char *message)
{
    json_event_begin(out, "error");
    error_members_add(out, error_type(status), message);
    json_event_end(out);
}

void anthropic_add_error(struct bytes *out, enum status status, const char *message)
{
    JSON_ADD(out, "{\"type\":\"error\"");
    error_members_add(out, error_type(status), message);
    JSON_ADD(out, "}");
}

void anthropic_add_http_error(struct bytes *out, int http_status, const char *message)
{
    JSON_ADD(out, "{\"type\":\"error\"");
    error_members_add(out, http_error_type(http_status), message);
    JSON_ADD(out, "}");
}
