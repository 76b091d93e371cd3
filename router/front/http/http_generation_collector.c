// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/http_generation_collector.h"

#include "router/front/http/http_sections.h"
#include "router/front/http/http_usage.h"

enum { SCRATCH_KEPT_BYTES = 1 << 20 }; // a larger buffer is freed after the answer

static void part_collect(const struct http_sections *s, enum output_kind kind, struct chat_call *call, const char *text,
                         size_t n)
{
    struct http_choice *choice = s->choice;
    struct bytes *const to[] = {[OUTPUT_REASONING] = &choice->chat->reasoning,
                                [OUTPUT_CONTENT] = &choice->text,
                                [OUTPUT_CALL] = call ? &call->name : NULL,
                                [OUTPUT_ARGUMENTS] = call ? &call->arguments : NULL};
    bytes_add(to[kind], text, n);
    if (kind == OUTPUT_CALL) {
        call->text_at = choice->text.n;
        call->logprobs_at = choice->logprobs[0].n;
    }
    if (kind != OUTPUT_CONTENT) choice->chat->collected += n + (kind == OUTPUT_CALL ? sizeof *call : 0);
}

static void logprobs_collect(const struct http_sections *s, const struct answer_chunk *tokens)
{
    s->g->api->add_logprobs(s->g, s->choice, tokens, s->choice->logprobs);
}

static struct http_sections sections_of(struct http_generation *g, struct http_choice *choice)
{
    return (struct http_sections){.g = g, .choice = choice, .part = part_collect, .logprobs = logprobs_collect};
}

static size_t collected_bytes(const struct http_generation *g, const struct http_choice *choice)
{
    // Each choice of a prompt repeats the prompt log-probabilities, which only the first choice collects.
    size_t n = choice->text.n + choice->token_ids.n + choice->prompt_logprobs.n * (size_t)g->n;
    if (choice->chat)
        n += choice->chat->collected + output_parser_held(choice->chat->parser) +
             (size_t)choice->chat->tokens.n * sizeof *choice->chat->tokens.waiting;
    for (int i = 0; i < HTTP_LOGPROB_LISTS; i++)
        n += choice->logprobs[i].n;
    return n;
}

bool http_collector_add(struct http_generation *g, struct http_choice *choice, const struct answer_chunk *chunk)
{
    const size_t before = collected_bytes(g, choice);
    const struct bytes echo = http_echo_left(g, choice);
    if (echo.n) bytes_add(&choice->text, echo.data, echo.n);
    choice->echoed = true;
    if (choice->chat) {
        const struct http_sections sections = sections_of(g, choice);
        http_sections_push(&sections, chunk);
    } else {
        bytes_add(&choice->text, chunk->text, chunk->text_bytes);
    }
    bool added = choice->chat && http_sections_split_logprobs(g, chunk);
    if ((chunk->logprobs || g->echo_logprobs) && !added) g->api->add_logprobs(g, choice, chunk, choice->logprobs);
    if (chunk->n_prompt_logprobs && g->prompt_logprobs) g->api->add_prompt_logprobs(g, choice, chunk);
    if (g->return_token_ids) json_add_ids(&choice->token_ids, chunk->tokens, chunk->n);
    return whole_answer_grow(g->streams->whole, &g->collected_bytes, collected_bytes(g, choice) - before);
}

void http_collector_finish(struct http_generation *g, struct http_choice *choice)
{
    if (!choice->chat) return;
    const struct http_sections sections = sections_of(g, choice);
    http_sections_finish(&sections);
}

void http_collector_answer(struct http_generation *g)
{
    struct bytes *out = &g->streams->scratch;
    out->n = 0;
    http_usage_add_headers(g);
    if (g->api->headers) g->api->headers(g);
    g->api->whole(g, out);
    http_answer(g->x, out);
    if (out->capacity > SCRATCH_KEPT_BYTES) bytes_free(out);
}
