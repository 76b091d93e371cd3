// SPDX-License-Identifier: Apache-2.0
// POST /v1/chat/completions.
#include <string.h>

#include "lib/text/generation_json.h"
#include "router/front/http/http_messages.h"
#include "router/front/http/http_openai.h"
#include "router/front/http/http_tools.h"
#include "router/front/http/json_body.h"

enum { DEFAULT_TOKENS = 4096 };

// --- the body

static const struct json_unsupported unsupported[] = {
    {"functions", "[]", "it is deprecated: give tools"},
    {"function_call", "\"none\"", "it is deprecated: give tool_choice"},
    {"modalities", "[\"text\"]", NULL},
    {"audio", NULL, NULL},
    {"web_search_options", NULL, NULL},
    {"echo", "false", NULL},
    {"add_special_tokens", "false", "the chat template adds them"},
    {"chat_template", NULL, "start the router with --chat-template"},
    {"continue_final_message", "false", NULL},
    {0},
};

struct values {
    bool logprobs;
    const json_t *top_logprobs;
};

static const struct json_field fields[] = {
    {.name = "logprobs", .type = JSON_FIELD_BOOL, .offset = offsetof(struct values, logprobs)},
    {.name = "top_logprobs", .type = JSON_FIELD_ANY, .offset = offsetof(struct values, top_logprobs)},
    {0},
};

static enum status read_logprobs(const struct values *v, struct http_input *in)
{
    int n = 0;
    if (v->top_logprobs) TRY(json_read_int("top_logprobs", v->top_logprobs, &n));
    if (v->logprobs) return json_generation_set_logprobs(&in->fields, "top_logprobs", n);
    return n ? status_fail(STATUS_INVALID, "top_logprobs: only with logprobs true") : STATUS_OK;
}

static bool response_format_limits(const json_t *body)
{
    const char *type = json_string_value(json_object_get(json_object_get(body, "response_format"), "type"));
    return type && strcmp(type, "text") != 0;
}

static enum status chat_read(const json_t *body, struct http_input *in)
{
    struct values v = {0};
    TRY(json_unsupported_check(body, unsupported));
    TRY(json_generation_read(body, &in->fields));
    TRY(json_fields_read(body, fields, &v));
    TRY(read_logprobs(&v, in));
    in->prompts = http_input_alloc(in, 1, sizeof *in->prompts);
    in->n_prompts = 1;
    in->default_tokens = DEFAULT_TOKENS;
    const json_t *newer = json_object_get(body, "max_completion_tokens");
    if (newer && !json_is_null(newer)) in->max_tokens_name = "max_completion_tokens";
    in->formatted = response_format_limits(body);
    TRY(http_tools_read(body, in));
    TRY(http_messages_read(body, in, in->prompts));
    in->prompts->conversation->tools = in->tools;
    return STATUS_OK;
}

static bool chat_knows(const char *name)
{
    return json_tables_name(fields, unsupported, name) || json_generation_knows(name) || http_tools_knows(name) ||
           http_messages_knows(name);
}

// --- log probabilities: one list of objects

static void add_token(const struct http_generation *g, int32_t token, double logprob, struct bytes *out)
{
    const char *bytes;
    size_t n;
    tokenizer_piece(g->client.front->tokenizer, token, &bytes, &n);
    JSON_ADD(out, "{\"token\":");
    json_add_text(out, bytes, n);
    JSON_ADD(out, ",\"logprob\":");
    json_add_real(out, logprob);
    JSON_ADD(out, ",\"bytes\":[");
    for (size_t i = 0; i < n; i++) {
        if (i) JSON_ADD(out, ",");
        json_add_integer(out, (unsigned char)bytes[i]);
    }
    JSON_ADD(out, "]");
}

static void chat_add_logprobs(struct http_generation *g, struct http_choice *choice, const struct answer_chunk *chunk,
                              struct bytes lists[HTTP_LOGPROB_LISTS])
{
    for (int i = 0; i < chunk->n; i++) {
        const struct token_logprob *l = &chunk->logprobs[i];
        json_add_comma(lists);
        add_token(g, l->token, l->logprob, lists);
        JSON_ADD(lists, ",\"top_logprobs\":[");
        for (int t = 0; t < l->n_top; t++) {
            if (t) JSON_ADD(lists, ",");
            add_token(g, l->top_token[t], l->top_logprob[t], lists);
            JSON_ADD(lists, "}");
        }
        JSON_ADD(lists, "]}");
    }
}

static void add_logprobs_member(const struct bytes *list, struct bytes *out)
{
    JSON_ADD(out, ",\"logprobs\":{\"content\":[");
    bytes_add(out, list->data, list->n);
    JSON_ADD(out, "],\"refusal\":null}");
}

// --- events

static void event_begin(const struct http_generation *g, const struct http_choice *choice, struct bytes *out)
{
    openai_event_begin(g, out);
    JSON_ADD(out, "{\"index\":");
    json_add_integer(out, choice->index);
    JSON_ADD(out, ",\"delta\":{");
}

static void chat_begin(struct http_generation *g, struct http_choice *choice, struct bytes *out)
{
    event_begin(g, choice, out);
    JSON_ADD(out, "\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}");
    openai_event_end(g, out);
}

static void chat_chunk(struct http_generation *g, struct http_choice *choice, const struct answer_chunk *chunk,
                       struct bytes *out)
{
    event_begin(g, choice, out);
    JSON_ADD(out, "\"content\":");
    json_add_text(out, chunk->text, chunk->text_bytes);
    JSON_ADD(out, "}");
    if (chunk->logprobs) {
        struct bytes list[HTTP_LOGPROB_LISTS] = {{0}};
        chat_add_logprobs(g, choice, chunk, list);
        add_logprobs_member(list, out);
        bytes_free(list);
    } else {
        JSON_ADD(out, ",\"logprobs\":null");
    }
    openai_chunk_end(g, chunk, out);
}

static void call_begin(const struct http_choice *choice, struct bytes *out)
{
    JSON_ADD(out, "\"tool_calls\":[{\"index\":");
    json_add_integer(out, choice->chat->n_calls - 1);
}

static void chat_part(struct http_generation *g, struct http_choice *choice, enum output_kind kind,
                      const struct chat_call *call, const char *text, size_t n, struct bytes *out)
{
    event_begin(g, choice, out);
    switch (kind) {
    case OUTPUT_REASONING:
        JSON_ADD(out, "\"reasoning_content\":");
        json_add_text(out, text, n);
        break;
    case OUTPUT_CONTENT:
        JSON_ADD(out, "\"content\":");
        json_add_text(out, text, n);
        break;
    case OUTPUT_CALL:
        call_begin(choice, out);
        JSON_ADD(out, ",\"id\":");
        json_add_string(out, call->id);
        JSON_ADD(out, ",\"type\":\"function\",\"function\":{\"name\":");
        json_add_text(out, text, n);
        JSON_ADD(out, ",\"arguments\":\"\"}}]");
        break;
    case OUTPUT_ARGUMENTS:
        call_begin(choice, out);
        JSON_ADD(out, ",\"function\":{\"arguments\":");
        json_add_text(out, text, n);
        JSON_ADD(out, "}}]");
        break;
    }
    JSON_ADD(out, "},\"logprobs\":null,\"finish_reason\":null}");
    openai_event_end(g, out);
}

static void chat_finish(struct http_generation *g, struct http_choice *choice, struct bytes *out)
{
    event_begin(g, choice, out);
    JSON_ADD(out, "},\"logprobs\":null");
    openai_choice_end(g, choice, out);
    openai_event_end(g, out);
}

// --- the whole answer

static void message_add(const struct http_choice *choice, struct bytes *out)
{
    const struct chat_answer *chat = choice->chat;
    JSON_ADD(out, "{\"role\":\"assistant\",\"content\":");
    if (chat && !choice->text.n && chat->n_calls) {
        JSON_ADD(out, "null");
    } else {
        json_add_text(out, choice->text.data, choice->text.n);
    }
    if (chat && chat->reasoning.n) {
        JSON_ADD(out, ",\"reasoning_content\":");
        json_add_text(out, chat->reasoning.data, chat->reasoning.n);
    }
    if (chat && chat->n_calls) {
        JSON_ADD(out, ",\"tool_calls\":[");
        for (int i = 0; i < chat->n_calls; i++) {
            const struct chat_call *call = &chat->calls[i];
            json_add_comma(out);
            JSON_ADD(out, "{\"id\":");
            json_add_string(out, call->id);
            JSON_ADD(out, ",\"type\":\"function\",\"function\":{\"name\":");
            json_add_text(out, call->name.data, call->name.n);
            JSON_ADD(out, ",\"arguments\":");
            json_add_text(out, call->arguments.n ? call->arguments.data : "", call->arguments.n);
            JSON_ADD(out, "}}");
        }
        JSON_ADD(out, "]");
    }
    JSON_ADD(out, ",\"refusal\":null}");
}

static void chat_whole(struct http_generation *g, struct bytes *out)
{
    openai_begin(g, g->api->object, out);
    for (int i = 0; i < g->n_choices; i++) {
        const struct http_choice *choice = &g->choices[i];
        json_add_comma(out);
        JSON_ADD(out, "{\"index\":");
        json_add_integer(out, i);
        JSON_ADD(out, ",\"message\":");
        message_add(choice, out);
        if (choice->logprobs[0].n) {
            add_logprobs_member(choice->logprobs, out);
        } else {
            JSON_ADD(out, ",\"logprobs\":null");
        }
        openai_choice_end(g, choice, out);
    }
    openai_end(g, out);
    if (!g->prompt_logprobs) return;
    out->n--; // the brace that ends the answer
    openai_prompt_logprobs_member(g, g->choices, out);
    JSON_ADD(out, "}");
}

const struct http_api http_chat = {
    .method = "chat",
    .resumes = true,
    .id_prefix = "chatcmpl",
    .object = "chat.completion",
    .chunk_object = "chat.completion.chunk",
    .read = chat_read,
    .knows = chat_knows,
    .add_logprobs = chat_add_logprobs,
    .add_prompt_logprobs = openai_add_prompt_logprobs,
    .begin = chat_begin,
    .chunk = chat_chunk,
    .part = chat_part,
    .finish = chat_finish,
    .end = openai_stream_end,
    .fail = openai_stream_fail,
    .whole = chat_whole,
};
