// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/http_usage.h"

#include <limits.h>
#include <stdio.h>

#include "router/front/grpc/wire_response.h"

// Worker counts are untrusted: saturating add.
static void count_add(int *sum, int more)
{
    *sum = more < INT_MAX - *sum ? *sum + more : INT_MAX;
}

void http_usage_update(struct http_generation *g, struct http_choice *choice, const struct request *r, int n_tokens)
{
    struct request_usage now = r->usage, *before = &choice->counted, *sum = &g->usage;
    now.completion_tokens = n_tokens;
    if (choice->index == 0) {
        wire_prefill_format(r, g->prefill);
        request_limit_format(r, g->prefill_limit);
        g->keep_rate = r->keep_rate;
        g->prefill_reason = request_rate_reason(r);
        g->predicted = r->predicted;
    }
    int max_tokens = r->spec.sampling.max_tokens;
    if (max_tokens < g->asked_tokens && (!g->reduced_tokens || max_tokens < g->reduced_tokens))
        g->reduced_tokens = max_tokens;
    sum->completion_tokens += now.completion_tokens - before->completion_tokens;
    sum->replays += now.replays - before->replays;
    count_add(&sum->draft_tokens, now.draft_tokens - before->draft_tokens);
    count_add(&sum->draft_accepted_tokens, now.draft_accepted_tokens - before->draft_accepted_tokens);
    if (choice->index % g->n == 0) {
        sum->prompt_tokens += now.prompt_tokens - before->prompt_tokens;
        sum->scored_tokens += now.scored_tokens - before->scored_tokens;
        sum->score_cached_tokens += now.score_cached_tokens - before->score_cached_tokens;
        sum->kept_tokens += now.kept_tokens - before->kept_tokens;
        sum->cached_tokens += now.cached_tokens - before->cached_tokens;
        sum->frozen_tokens += now.frozen_tokens - before->frozen_tokens;
        sum->recalled_tokens += now.recalled_tokens - before->recalled_tokens;
    }
    *before = now;
}

void http_usage_add(const struct http_generation *g, struct bytes *out)
{
    const struct request_usage *u = &g->usage;
    char text[1024];
    snprintf(text, sizeof text,
             "{\"prompt_tokens\":%d,\"completion_tokens\":%d,\"total_tokens\":%d,"
             "\"prompt_tokens_details\":{\"cached_tokens\":%d},"
             "\"completion_tokens_details\":{\"accepted_prediction_tokens\":%d,\"rejected_prediction_tokens\":%d},"
             "\"scored_tokens\":%d,\"score_cached_tokens\":%d,\"kept_tokens\":%d,\"frozen_tokens\":%d,"
             "\"recalled_tokens\":%d,\"replays\":%d,\"prefill\":\"%s\","
             "\"keep_rate\":%.4g,\"prefill_reason\":\"%s\"",
             u->prompt_tokens, u->completion_tokens, u->prompt_tokens + u->completion_tokens, u->cached_tokens,
             u->draft_accepted_tokens, u->draft_tokens - u->draft_accepted_tokens, u->scored_tokens,
             u->score_cached_tokens, u->kept_tokens, u->frozen_tokens, u->recalled_tokens, u->replays, g->prefill,
             g->keep_rate, g->prefill_reason);
    json_add(out, text);
    if (g->predicted.whole_us > 0) {
        snprintf(text, sizeof text, ",\"predicted_whole_ms\":%.6g,\"predicted_pruned_ms\":%.6g",
                 g->predicted.whole_us / 1e3, g->predicted.pruned_us / 1e3);
        json_add(out, text);
    }
    if (*g->prefill_limit) {
        json_add(out, ",\"prefill_limit\":");
        json_add_string(out, g->prefill_limit);
    }
    if (g->reduced_tokens) {
        JSON_ADD(out, ",\"max_tokens\":");
        json_add_integer(out, g->reduced_tokens);
    }
    json_add(out, "}");
}

void http_usage_add_headers(const struct http_generation *g)
{
    char number[24];
    snprintf(number, sizeof number, "%d", g->usage.prompt_tokens);
    http_add_header(g->x, "x-forepack-prompt-tokens", number);
    snprintf(number, sizeof number, "%d", g->usage.kept_tokens);
    http_add_header(g->x, "x-forepack-kept-tokens", number);
    http_add_header(g->x, "x-forepack-prefill", g->prefill);
    snprintf(number, sizeof number, "%.4g", g->keep_rate);
    http_add_header(g->x, "x-forepack-keep-rate", number);
    http_add_header(g->x, "x-forepack-prefill-reason", g->prefill_reason);
    if (*g->prefill_limit) http_add_header(g->x, "x-forepack-prefill-limit", g->prefill_limit);
    if (!g->reduced_tokens) return;
    snprintf(number, sizeof number, "%d", g->reduced_tokens);
    http_add_header(g->x, "x-forepack-max-tokens", number);
}
