// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/http_generation.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "router/front/http/http_explain.h"
#include "router/front/http/http_generation_collector.h"
#include "router/front/http/http_generation_reader.h"
#include "router/front/http/http_generation_streamer.h"
#include "router/front/http/http_usage.h"

// --- the end

static int echo_count(const struct http_generation *g)
{
    return g->echoes ? g->n_choices / g->n : 0;
}

static void choice_fini(struct http_choice *choice)
{
    chat_answer_free(choice->chat);
    bytes_free(&choice->text);
    for (int i = 0; i < HTTP_LOGPROB_LISTS; i++)
        bytes_free(&choice->logprobs[i]);
    bytes_free(&choice->prompt_logprobs);
    bytes_free(&choice->token_ids);
    bytes_free(&choice->kept);
}

// Frees the output that the answer has collected so far. May be called again.
static void generation_drop_output(struct http_generation *g)
{
    whole_answer_free(g->streams->whole, &g->collected_bytes);
    for (int i = 0; i < echo_count(g); i++)
        bytes_free(&g->echoes[i]);
    free(g->echoes);
    g->echoes = NULL;
    for (int i = 0; i < g->n_choices; i++)
        choice_fini(&g->choices[i]);
    free(g->choices);
    g->choices = NULL;
    g->n_choices = 0;
    bytes_free(&g->explanation);
}

// Ends the generation and frees its output. If the client does not read, only the queued bytes of the answer stay in
// memory.
static void generation_end(struct http_generation *g)
{
    g->ended = true;
    if (g->stream) http_streamer_remove(g);
    generation_drop_output(g);
}

static void generation_fail(struct http_generation *g, enum status status, const char *message)
{
    if (g->begun) {
        http_streamer_fail(g, status, message);
    } else {
        http_fail(g->x, status, message);
    }
    generation_end(g);
}

// --- events of the core

// Counts the memory of the echoes against the limit of whole answers, because a request may wait for a long time.
static void generation_submitted(struct client *client)
{
    struct http_generation *g = (struct http_generation *)client;
    size_t echo_bytes = 0;
    g->sent_us = clock_now_us();
    if (g->stream) http_streamer_add(g);
    for (int i = 0; i < echo_count(g); i++)
        echo_bytes += g->echoes[i].n;
    if (!whole_answer_grow(g->streams->whole, &g->collected_bytes, echo_bytes))
        generation_fail(g, STATUS_EXHAUSTED, status_message());
}

static void generation_chunk(struct answer *a, const struct answer_chunk *chunk)
{
    struct http_generation *g = (struct http_generation *)a->client;
    if (g->ended) return;
    struct http_choice *choice = &g->choices[a->index];
    if (g->stream) {
        http_usage_update(g, choice, a->request, a->n_tokens);
        http_streamer_chunk(g, choice, chunk, a);
    } else if (!http_collector_add(g, choice, chunk)) {
        generation_fail(g, STATUS_EXHAUSTED, status_message());
    }
}

// Passes tokens that the client has through the formatter, so that it continues after them.
static void generation_resumed(struct answer *a, const struct answer_chunk *chunk)
{
    struct http_generation *g = (struct http_generation *)a->client;
    if (g->ended || !g->stream) return;
    struct answer_chunk tokens = *chunk;
    struct token_logprob *logprobs = NULL; // the formatter also counts the tokens by their log-probabilities
    if (!tokens.logprobs && a->request->spec.sampling.logprobs >= 0) {
        tokens.logprobs = logprobs = mem_alloc_array((size_t)chunk->n, sizeof *logprobs);
        for (int i = 0; i < chunk->n; i++)
            logprobs[i].token = chunk->tokens[i];
    }
    http_streamer_resume(g, &g->choices[a->index], &tokens);
    free(logprobs);
}

static void kept_add(struct http_choice *choice, const struct request *r)
{
    struct token_range *sorted;
    int n = request_sort_kept(r, &sorted);
    json_add_ranges(&choice->kept, sorted, n);
    free(sorted);
}

static void explanation_add(struct http_generation *g, const struct request *r)
{
    struct principal *p = g->client.principal;
    http_explain_add(r, !p || principal_is_operator(p), &g->explanation);
}

static void generation_done(struct answer *a, const struct request *r, enum finish_reason reason, enum status status,
                            const char *message)
{
    struct http_generation *g = (struct http_generation *)a->client;
    if (g->ended) return;
    if (reason == FINISH_REASON_ERROR || reason == FINISH_REASON_CANCELLED) {
        generation_fail(g, status, message);
        return;
    }
    struct http_choice *choice = &g->choices[a->index];
    struct answer_chunk rest = answer_rest(a);
    http_usage_update(g, choice, r, r->usage.completion_tokens);
    choice->reason = reason;
    choice->stop = a->stop;
    if (g->return_kept && r->kept) kept_add(choice, r);
    if (r->spec.explain && choice->index == 0) explanation_add(g, r);
    bool is_last = --g->n_left == 0;
    if (g->stream) {
        http_streamer_finish(g, choice, &rest, is_last);
    } else {
        http_collector_add(g, choice, &rest); // ignores the result, because the answer ends here
        http_collector_finish(g, choice);
        if (is_last) http_collector_answer(g);
    }
    if (is_last) generation_end(g);
}

static void generation_free(struct client *client)
{
    struct http_generation *g = (struct http_generation *)client;
    if (g->stream && !g->ended) http_streamer_remove(g);
    generation_drop_output(g);
    if (g->data.free) g->data.free(g->data.value);
    principal_unref(client->principal);
    http_unref(g->x);
    free(g);
}

static const struct client_ops generation_ops = {.submitted = generation_submitted,
                                                 .chunk = generation_chunk,
                                                 .resumed = generation_resumed,
                                                 .done = generation_done,
                                                 .free = generation_free};

// --- the start

void http_generation_start(struct http_exchange *x, const struct front *front, struct http_streams *streams,
                           const struct http_api *api)
{
    if (!http_admit(x)) return;
    struct http_call *call = http_user(x);
    struct http_generation *g = mem_alloc(sizeof *g);
    g->prefill_reason = "";
    http_ref(x);
    g->x = x;
    g->api = api;
    g->streams = streams;
    g->created_s = (int64_t)time(NULL);
    g->client.ops = &generation_ops;
    g->client.front = front;
    g->client.principal = principal_ref(call->principal);
    g->client.background = call->background;
    snprintf(g->id, sizeof g->id, "%s-%016llx", api->id_prefix, (unsigned long long)call->number);
    http_trace_open(x, &g->client);
    call->client = &g->client;
    struct parsed_message *parsed = client_message_begin(&g->client, g->id);
    enum status status = http_message_read(front, x, &parsed->waiting, http_generation_read, parsed);
    if (status != STATUS_OK) http_generation_refuse(parsed, NULL, status, 0, clock_now_us());
}
