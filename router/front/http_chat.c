// SPDX-License-Identifier: Apache-2.0
// POST /v1/chat/completions.
#include "model/generation_json.h"
#include "router/front/http_messages.h"
#include "router/front/http_openai.h"
#include "router/front/json_body.h"

enum { DEFAULT_TOKENS = 4096 };

// --- the body

static const struct json_unsupported unsupported[] = {
    {"tools", "[]", NULL},
    {"tool_choice", "\"none\"", NULL},
    {"functions", "[]", NULL},
    {"function_call", "\"none\"", NULL},
    {"modalities", "[\"text\"]", NULL},
    {"audio", NULL, NULL},
    {"reasoning_effort", NULL, "give it in chat_template_kwargs if the template reads it"},
    {"verbosity", NULL, NULL},
    {"web_search_options", NULL, NULL},
    {"echo", "false", NULL},
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
    return http_messages_read(body, in, in->prompts);
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
    JSON_ADD(out, ",\"finish_reason\":null");
    openai_add_token_ids(g, chunk, out);
    JSON_ADD(out, "}");
    openai_event_end(g, out);
}

static void chat_finish(struct http_generation *g, struct http_choice *choice, struct bytes *out)
{
    event_begin(g, choice, out);
    JSON_ADD(out, "},\"logprobs\":null,\"finish_reason\":");
    json_add_string(out, finish_reason_name(choice->reason));
    openai_add_extras(g, choice, out);
    JSON_ADD(out, "}");
    openai_event_end(g, out);
}

// --- the whole answer

static void chat_whole(struct http_generation *g, struct bytes *out)
{
    openai_begin(g, g->api->object, out);
    for (int i = 0; i < g->n_choices; i++) {
        const struct http_choice *choice = &g->choices[i];
        json_add_comma(out);
        JSON_ADD(out, "{\"index\":");
        json_add_integer(out, i);
        JSON_ADD(out, ",\"message\":{\"role\":\"assistant\",\"content\":");
        json_add_text(out, choice->text.data, choice->text.n);
        JSON_ADD(out, ",\"refusal\":null}");
        if (choice->logprobs[0].n) {
            add_logprobs_member(choice->logprobs, out);
        } else {
            JSON_ADD(out, ",\"logprobs\":null");
        }
        JSON_ADD(out, ",\"finish_reason\":");
        json_add_string(out, finish_reason_name(choice->reason));
        openai_add_extras(g, choice, out);
        JSON_ADD(out, "}");
    }
    openai_end(g, out);
}

const struct http_api http_chat = {
    .method = "chat",
    .id_prefix = "chatcmpl",
    .object = "chat.completion",
    .chunk_object = "chat.completion.chunk",
    .read = chat_read,
    .add_logprobs = chat_add_logprobs,
    .begin = chat_begin,
    .chunk = chat_chunk,
    .finish = chat_finish,
    .end = openai_stream_end,
    .fail = openai_stream_fail,
    .whole = chat_whole,
};
