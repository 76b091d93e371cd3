// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/http_openai.h"

#include "router/front/http/http_usage.h"

void openai_begin(const struct http_generation *g, const char *object, struct bytes *out)
{
    JSON_ADD(out, "{\"id\":\"");
    json_add(out, g->id);
    JSON_ADD(out, "\",\"object\":\"");
    json_add(out, object);
    JSON_ADD(out, "\",\"created\":");
    json_add_integer(out, g->created_s);
    JSON_ADD(out, ",\"model\":");
    json_add_string(out, g->client.front->model_names[0]);
    JSON_ADD(out, ",\"choices\":[");
}

void openai_end(const struct http_generation *g, struct bytes *out)
{
    JSON_ADD(out, "],\"usage\":");
    http_usage_add(g, out);
    json_add_explanation(out, &g->explanation);
    JSON_ADD(out, "}");
}

void openai_event_begin(const struct http_generation *g, struct bytes *out)
{
    JSON_ADD(out, "data: ");
    openai_begin(g, g->api->chunk_object, out);
}

void openai_event_end(const struct http_generation *g, struct bytes *out)
{
    JSON_ADD(out, "]");
    if (g->include_usage) {
        JSON_ADD(out, ",\"usage\":");
        if (g->continuous_usage) {
            http_usage_add(g, out);
        } else {
            JSON_ADD(out, "null");
        }
    }
    JSON_ADD(out, "}\n\n");
}

void openai_stream_end(struct http_generation *g, struct bytes *out)
{
    if (g->include_usage || g->explanation.n) {
        JSON_ADD(out, "data: ");
        openai_begin(g, g->api->chunk_object, out);
        openai_end(g, out);
        JSON_ADD(out, "\n\n");
    }
    JSON_ADD(out, "data: [DONE]\n\n");
}

void openai_stream_fail(struct http_generation *g, enum status status, const char *message, struct bytes *out)
{
    JSON_ADD(out, "data: ");
    http_error_add(out, status, message);
    JSON_ADD(out, "\n\ndata: [DONE]\n\n");
}

static void add_token_ids(const struct http_generation *g, const struct answer_chunk *chunk, struct bytes *out)
{
    if (!g->return_token_ids) return;
    JSON_ADD(out, ",\"token_ids\":[");
    json_add_ids(out, chunk->tokens, chunk->n);
    JSON_ADD(out, "]");
}

static void add_list(const char *key, const struct bytes *list, struct bytes *out)
{
    json_add(out, key);
    bytes_add(out, list->data, list->n);
    JSON_ADD(out, "]");
}

static const char *finish_name(const struct http_choice *choice)
{
    bool calls = choice->chat && chat_answer_calls(choice->chat) && choice->reason == FINISH_REASON_STOP;
    return calls ? "tool_calls" : finish_reason_name(choice->reason);
}

// Also adds the members token_ids and kept if the request asks for them.
void openai_choice_end(const struct http_generation *g, const struct http_choice *choice, struct bytes *out)
{
    JSON_ADD(out, ",\"finish_reason\":");
    json_add_string(out, finish_name(choice));
    if (g->return_token_ids && !g->stream) add_list(",\"token_ids\":[", &choice->token_ids, out);
    if (g->return_kept) add_list(",\"kept\":[", &choice->kept, out);
    JSON_ADD(out, "}");
}

void openai_chunk_end(const struct http_generation *g, const struct answer_chunk *chunk, struct bytes *out)
{
    JSON_ADD(out, ",\"finish_reason\":null");
    add_token_ids(g, chunk, out);
    JSON_ADD(out, "}");
    openai_event_end(g, out);
}

// Adds "ID":{"logprob":...,"rank":...,"decoded_token":...}.
static void add_ranked(const struct http_generation *g, int32_t token, double logprob, int rank, struct bytes *out)
{
    JSON_ADD(out, "\"");
    json_add_integer(out, token);
    JSON_ADD(out, "\":{\"logprob\":");
    json_add_real(out, logprob);
    JSON_ADD(out, ",\"rank\":");
    json_add_integer(out, rank);
    JSON_ADD(out, ",\"decoded_token\":");
    openai_add_token(g, token, out);
    JSON_ADD(out, "}");
}

void openai_add_prompt_logprobs(struct http_generation *g, struct http_choice *choice, const struct answer_chunk *chunk)
{
    struct bytes *out = &choice->prompt_logprobs;
    if (!out->n) JSON_ADD(out, "null");
    for (int i = 0; i < chunk->n_prompt_logprobs; i++) {
        const struct token_logprob *l = &chunk->prompt_logprobs[i];
        JSON_ADD(out, ",{");
        add_ranked(g, l->token, l->logprob, l->rank, out);
        for (int t = 0; t < l->n_top; t++) {
            if (l->top_token[t] == l->token) continue;
            JSON_ADD(out, ",");
            add_ranked(g, l->top_token[t], l->top_logprob[t], t + 1, out);
        }
        JSON_ADD(out, "}");
    }
}

// The first choice of a prompt stores the prompt's log-probabilities for all choices of this prompt.
void openai_prompt_logprobs_member(const struct http_generation *g, const struct http_choice *choice, struct bytes *out)
{
    if (!g->prompt_logprobs) return;
    const struct bytes *list = &g->choices[choice->index - choice->index % g->n].prompt_logprobs;
    JSON_ADD(out, ",\"prompt_logprobs\":[");
    if (list->n) {
        bytes_add(out, list->data, list->n);
    } else {
        JSON_ADD(out, "null"); // a prompt of one token
    }
    JSON_ADD(out, "]");
}

void openai_add_token(const struct http_generation *g, int32_t token, struct bytes *out)
{
    const char *bytes;
    size_t n;
    tokenizer_piece(g->client.front->tokenizer, token, &bytes, &n);
    json_add_text(out, bytes, n);
}
