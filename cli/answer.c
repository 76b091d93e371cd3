// SPDX-License-Identifier: Apache-2.0
#include "cli/answer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

void answer_init(struct answer *a)
{
    *a = (struct answer){.token_ids = json_array(), .logprobs = json_array(), .prompt_logprobs = json_array()};
}

void answer_free(struct answer *a)
{
    free(a->text);
    json_decref(a->token_ids);
    json_decref(a->logprobs);
    json_decref(a->prompt_logprobs);
    json_decref(a->completion);
    *a = (struct answer){0};
}

void answer_add_text(struct answer *a, const char *text, size_t size_bytes)
{
    a->text = mem_resize(a->text, a->text_bytes + size_bytes + 1, 1);
    if (size_bytes) memcpy(a->text + a->text_bytes, text, size_bytes);
    a->text_bytes += size_bytes;
    a->text[a->text_bytes] = 0;
}

// Returns milliseconds rounded to microseconds, the resolution of the clock.
static json_t *milliseconds(double ms)
{
    return json_real(round(ms * 1000) / 1000);
}

void answer_add_logprob(struct answer *a, const struct answer_logprob *logprob)
{
    json_t *list = logprob->rank ? a->prompt_logprobs : a->logprobs;
    json_t *object =
        json_pack("{s:i,s:f,s:o}", "token_id", logprob->token, "logprob", logprob->logprob, "top", logprob->top);
    if (logprob->rank) json_object_set_new(object, "rank", json_integer(logprob->rank));
    if (logprob->rank && !json_array_size(list)) json_array_append_new(list, json_null()); // null for the first token
    json_array_append_new(list, object);
}

static void logprob_add(struct answer *a, const Forepack__V1__TokenLogprob *m)
{
    json_t *top = json_array();
    for (size_t i = 0; i < m->n_top; i++)
        json_array_append_new(top, json_pack("[I,f]", (json_int_t)m->top[i]->token_id, (double)m->top[i]->logprob));
    answer_add_logprob(a, &(struct answer_logprob){(int32_t)m->token_id, (int)m->rank, (double)m->logprob, top});
}

static json_t *timing_json(const Forepack__V1__Timing *t)
{
    json_t *object = json_pack("{s:o,s:o,s:o,s:o,s:o,s:o}", "queue_ms", milliseconds(t->queue_ms), "score_ms",
                               milliseconds(t->score_ms), "pack_wait_ms", milliseconds(t->pack_wait_ms), "prefill_ms",
                               milliseconds(t->prefill_ms), "ttft_ms", milliseconds(t->ttft_ms), "total_ms",
                               milliseconds(t->total_ms));
    if (t->predicted_whole_ms > 0)
        json_object_set_new(object, "predicted_whole_ms", milliseconds(t->predicted_whole_ms));
    if (t->predicted_pruned_ms > 0)
        json_object_set_new(object, "predicted_pruned_ms", milliseconds(t->predicted_pruned_ms));
    return object;
}

static json_t *stage_json(const Forepack__V1__Stage *m)
{
    return json_pack("{s:s,s:I,s:I,s:I,s:s,s:I}", "node_id", m->node_id, "bin_requests", (json_int_t)m->bin_requests,
                     "bin_rows", (json_int_t)m->bin_rows, "token_budget", (json_int_t)m->token_budget, "wait", m->wait,
                     "waiting", (json_int_t)m->waiting);
}

static json_t *stages_json(const Forepack__V1__Stages *m)
{
    json_t *object = json_pack("{s:s,s:b}", "mode", m->mode, "limited", m->limited);
    if (m->quality > 0)
        json_object_set_new(object, "quality", json_real(m->quality));
    else
        json_object_set_new(object, "keep_rate", json_real(m->keep_rate));
    if (m->score) json_object_set_new(object, "score", stage_json(m->score));
    if (m->prefill) json_object_set_new(object, "prefill", stage_json(m->prefill));
    return object;
}

static json_t *completion_json(const Forepack__V1__Completion *m)
{
    json_t *object = json_pack("{s:s}", "finish_reason", m->finish_reason);
    if (*m->prefill) json_object_set_new(object, "prefill", json_string(m->prefill));
    if (*m->prefill_reason) {
        json_object_set_new(object, "keep_rate", json_real(m->keep_rate));
        json_object_set_new(object, "prefill_reason", json_string(m->prefill_reason));
    }
    if (*m->prefill_limit) json_object_set_new(object, "prefill_limit", json_string(m->prefill_limit));
    if (m->usage) {
        const Forepack__V1__Usage *u = m->usage;
        json_object_set_new(object, "usage",
                            json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "prompt_tokens",
                                      (json_int_t)u->prompt_tokens, "scored_tokens", (json_int_t)u->scored_tokens,
                                      "score_cached_tokens", (json_int_t)u->score_cached_tokens, "kept_tokens",
                                      (json_int_t)u->kept_tokens, "cached_tokens", (json_int_t)u->cached_tokens,
                                      "completion_tokens", (json_int_t)u->completion_tokens, "replays",
                                      (json_int_t)u->replays, "draft_tokens", (json_int_t)u->draft_tokens,
                                      "draft_accepted_tokens", (json_int_t)u->draft_accepted_tokens, "frozen_tokens",
                                      (json_int_t)u->frozen_tokens, "recalled_tokens", (json_int_t)u->recalled_tokens));
    }
    if (m->timing) json_object_set_new(object, "timing", timing_json(m->timing));
    if (m->stages) json_object_set_new(object, "stages", stages_json(m->stages));
    if (m->n_kept) {
        json_t *kept = json_array();
        for (size_t i = 0; i < m->n_kept; i++)
            json_array_append_new(kept,
                                  json_pack("[I,I]", (json_int_t)m->kept[i]->first, (json_int_t)m->kept[i]->last));
        json_object_set_new(object, "kept", kept);
    }
    if (m->error) {
        json_object_set_new(object, "error",
                            json_pack("{s:I,s:s}", "code", (json_int_t)m->error->code, "message", m->error->message));
    }
    return object;
}

// Adds the text of a chunk, less the bytes that came already before the stream broke.
static void chunk_add_text(struct answer *a, const Forepack__V1__Chunk *chunk)
{
    size_t again = chunk->text.len < a->text_again_bytes ? chunk->text.len : a->text_again_bytes;
    a->text_again_bytes -= again;
    answer_add_text(a, (const char *)chunk->text.data + again, chunk->text.len - again);
    if (chunk->n_token_ids) a->text_sent_bytes = a->text_bytes;
}

bool answer_add_response(struct answer *a, const Forepack__V1__GenerateResponse *response)
{
    if (response->kind_case == FOREPACK__V1__GENERATE_RESPONSE__KIND_CHUNK) {
        const Forepack__V1__Chunk *chunk = response->chunk;
        chunk_add_text(a, chunk);
        if (chunk->mark) a->mark = chunk->mark;
        for (size_t i = 0; i < chunk->n_token_ids; i++)
            json_array_append_new(a->token_ids, json_integer(chunk->token_ids[i]));
        for (size_t i = 0; i < chunk->n_logprobs; i++)
            logprob_add(a, chunk->logprobs[i]);
        for (size_t i = 0; i < chunk->n_prompt_logprobs; i++)
            logprob_add(a, chunk->prompt_logprobs[i]);
        return false;
    }
    if (response->kind_case != FOREPACK__V1__GENERATE_RESPONSE__KIND_COMPLETION) return false;
    json_decref(a->completion);
    a->completion = completion_json(response->completion);
    a->error_code = response->completion->error ? (int)response->completion->error->code : 0;
    return true;
}

json_t *answer_json(const struct answer *a, const char *id)
{
    json_t *object = json_object();
    json_object_set_new(object, "id", id ? json_string(id) : json_null());
    json_object_set_new(object, "text", json_stringn(a->text ? a->text : "", a->text_bytes));
    json_object_set(object, "token_ids", a->token_ids);
    if (a->completion) json_object_update(object, a->completion);
    json_object_set_new(object, "resumed", json_integer(a->resumed));
    if (json_array_size(a->logprobs)) json_object_set(object, "logprobs", a->logprobs);
    if (json_array_size(a->prompt_logprobs)) json_object_set(object, "prompt_logprobs", a->prompt_logprobs);
    return object;
}

bool answer_reason_is_failure(const char *finish_reason)
{
    return !finish_reason || strcmp(finish_reason, "error") == 0 || strcmp(finish_reason, "cancelled") == 0;
}

const char *answer_error(const struct answer *a)
{
    return json_string_value(json_object_get(json_object_get(a->completion, "error"), "message"));
}
