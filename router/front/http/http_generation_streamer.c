// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/http_generation_streamer.h"

#include "lib/base/clock.h"
#include "router/front/http/http_resume.h"
#include "router/front/http/http_sections.h"
#include "router/front/http/http_usage.h"

// --- sending

static struct bytes *scratch_of(struct http_generation *g)
{
    g->streams->scratch.n = 0;
    return &g->streams->scratch;
}

static void stream_send(struct http_generation *g, const struct bytes *events)
{
    g->sent_us = clock_now_us();
    http_stream_send(g->x, events->data, events->n);
}

// Appends the events that begin the choices, unless the client has them.
static void choices_begin(struct http_generation *g)
{
    if (g->choices_begun) return;
    g->choices_begun = true;
    for (int i = 0; g->api->begin && i < g->n_choices; i++)
        g->api->begin(g, &g->choices[i], &g->streams->scratch);
}

static void stream_begin(struct http_generation *g)
{
    if (g->begun) return;
    g->begun = true;
    if (g->prefill[0] && g->n_choices == g->n) http_usage_add_headers(g);
    if (g->api->headers) g->api->headers(g);
    http_add_header(g->x, "Cache-Control", "no-cache");
    http_add_header(g->x, "X-Accel-Buffering", "no");
    http_stream_begin(g->x, 200, "text/event-stream; charset=utf-8");
    choices_begin(g);
}

// --- the list of streams

void http_streamer_remove(struct http_generation *g)
{
    if (g->previous) {
        g->previous->next = g->next;
    } else if (g->streams->first == g) {
        g->streams->first = g->next;
    }
    if (g->next) g->next->previous = g->previous;
    g->previous = g->next = NULL;
}

void http_streamer_add(struct http_generation *g)
{
    g->next = g->streams->first;
    if (g->next) g->next->previous = g;
    g->streams->first = g;
}

void http_streams_ping(struct http_streams *streams, int64_t now_us)
{
    static const char ping[] = ": ping\n\n";
    for (struct http_generation *g = streams->first; g; g = g->next) {
        if (now_us - g->sent_us < streams->ping_after_us) continue;
        struct bytes *out = scratch_of(g);
        stream_begin(g);
        bytes_add(out, ping, sizeof ping - 1);
        stream_send(g, out);
    }
}

// --- events

static void part_stream(const struct http_sections *s, enum output_kind kind, struct chat_call *call, const char *text,
                        size_t n)
{
    s->g->api->part(s->g, s->choice, kind, call, text, n, s->out);
}

static void logprobs_stream(const struct http_sections *s, const struct answer_chunk *tokens)
{
    s->g->api->chunk(s->g, s->choice, tokens, s->out);
}

static struct http_sections sections_of(struct http_generation *g, struct http_choice *choice, struct bytes *out)
{
    return (struct http_sections){g, choice, out, part_stream, logprobs_stream};
}

// Returns true if the chunk needs an event: it has text, log-probabilities, or token ids that were asked for.
static bool has_content(const struct http_generation *g, const struct http_choice *choice,
                        const struct answer_chunk *chunk)
{
    return chunk->text_bytes || http_echo_left(g, choice).n || chunk->n_prompt_logprobs ||
           (chunk->n && (chunk->logprobs || g->return_token_ids));
}

// Adds the parts whose section is known after the chunk, and the log-probabilities and ids of the chunk's tokens.
static void sections_add(struct http_generation *g, struct http_choice *choice, const struct answer_chunk *chunk,
                         struct bytes *out)
{
    const struct http_sections sections = sections_of(g, choice, out);
    http_sections_push(&sections, chunk);
    struct answer_chunk tokens = *chunk;
    tokens.text_bytes = 0;
    if (http_sections_split_logprobs(g, chunk)) tokens.logprobs = NULL;
    if (has_content(g, choice, &tokens)) g->api->chunk(g, choice, &tokens, out);
}

static void chunk_add(struct http_generation *g, struct http_choice *choice, const struct answer_chunk *chunk,
                      struct bytes *out)
{
    if (!has_content(g, choice, chunk)) return;
    if (choice->chat) {
        sections_add(g, choice, chunk, out);
        return;
    }
    const struct bytes echo = http_echo_left(g, choice);
    choice->echoed = true;
    if (!echo.n) {
        g->api->chunk(g, choice, chunk, out);
        return;
    }
    struct bytes text = {0};
    bytes_add(&text, echo.data, echo.n);
    bytes_add(&text, chunk->text, chunk->text_bytes);
    struct answer_chunk whole = *chunk;
    whole.text = text.data;
    whole.text_bytes = text.n;
    g->api->chunk(g, choice, &whole, out);
    bytes_free(&text);
}

void http_streamer_chunk(struct http_generation *g, struct http_choice *choice, const struct answer_chunk *chunk,
                         const struct answer *a)
{
    struct bytes *out = scratch_of(g);
    stream_begin(g);
    chunk_add(g, choice, chunk, out);
    if (g->resumable) http_resume_add_id(a, out);
    stream_send(g, out);
}

void http_streamer_resume(struct http_generation *g, struct http_choice *choice, const struct answer_chunk *chunk)
{
    struct bytes *out = scratch_of(g);
    choices_begin(g);
    chunk_add(g, choice, chunk, out);
    out->n = 0;
}

void http_streamer_finish(struct http_generation *g, struct http_choice *choice, const struct answer_chunk *chunk,
                          bool is_last)
{
    struct bytes *out = scratch_of(g);
    stream_begin(g);
    chunk_add(g, choice, chunk, out);
    if (choice->chat) {
        const struct http_sections sections = sections_of(g, choice, out);
        http_sections_finish(&sections);
    }
    g->api->finish(g, choice, out);
    if (is_last && g->api->end) g->api->end(g, out);
    stream_send(g, out);
    if (is_last) http_stream_end(g->x);
}

void http_streamer_fail(struct http_generation *g, enum status status, const char *message)
{
    struct bytes *out = scratch_of(g);
    g->api->fail(g, status, message, out);
    stream_send(g, out);
    http_stream_end(g->x);
}
