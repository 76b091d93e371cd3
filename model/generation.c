// SPDX-License-Identifier: Apache-2.0
#include "model/generation.h"

#include <math.h>

void sampling_defaults(struct sampling *s)
{
    *s = (struct sampling){.top_p = 1, .repetition_penalty = 1, .logprobs = -1};
}

void prefill_defaults(struct prefill *p)
{
    *p = (struct prefill){
        .mode = PREFILL_AUTO, .keep_rate = 0.3, .look_ahead = 8, .chunk_tokens = 32, .pool_window = 13};
}

// Written so that NaN fails every test.
enum status sampling_check(const struct sampling *s, int vocab_size)
{
    if (s->max_tokens < 0) return status_fail(STATUS_INVALID, "max_tokens %d: must be 1 or more", s->max_tokens);
    if (s->min_tokens < 0 || (s->max_tokens && s->min_tokens > s->max_tokens)) {
        return status_fail(STATUS_INVALID, "min_tokens %d: must be from 0 to max_tokens (%d)", s->min_tokens,
                           s->max_tokens);
    }
    if (!(s->temperature >= 0 && s->temperature <= 100)) {
        return status_fail(STATUS_INVALID, "temperature %g: must be from 0 (greedy) to 100", s->temperature);
    }
    if (s->top_k < 0) return status_fail(STATUS_INVALID, "top_k %d: must be 0 (off) or more", s->top_k);
    if (!(s->top_p > 0 && s->top_p <= 1)) {
        return status_fail(STATUS_INVALID, "top_p %g: must be over 0 and at most 1", s->top_p);
    }
    if (!(s->min_p >= 0 && s->min_p <= 1))
        return status_fail(STATUS_INVALID, "min_p %g: must be from 0 to 1", s->min_p);
    if (!(s->repetition_penalty > 0 && s->repetition_penalty <= 100)) {
        return status_fail(STATUS_INVALID, "repetition_penalty %g: must be over 0 and at most 100",
                           s->repetition_penalty);
    }
    if (!(fabs(s->presence_penalty) <= 2)) {
        return status_fail(STATUS_INVALID, "presence_penalty %g: must be from -2 to 2", s->presence_penalty);
    }
    if (!(fabs(s->frequency_penalty) <= 2)) {
        return status_fail(STATUS_INVALID, "frequency_penalty %g: must be from -2 to 2", s->frequency_penalty);
    }
    if (s->logprobs < -1 || s->logprobs > LOGPROBS_MAX) {
        return status_fail(STATUS_INVALID, "logprobs %d: must be from 0 to %d", s->logprobs, LOGPROBS_MAX);
    }
    if (s->n_stop_ids < 0 || s->n_stop_ids > STOP_IDS_MAX) {
        return status_fail(STATUS_INVALID, "stop_token_ids: %d given, at most %d are allowed", s->n_stop_ids,
                           STOP_IDS_MAX);
    }
    for (int i = 0; i < s->n_stop_ids; i++) {
        if (s->stop_ids[i] < 0 || s->stop_ids[i] >= vocab_size) {
            return status_fail(STATUS_INVALID, "stop_token_ids: %d is outside the vocabulary of %d tokens",
                               s->stop_ids[i], vocab_size);
        }
    }
    return STATUS_OK;
}

enum status prefill_check(const struct prefill *p)
{
    if (!(p->keep_rate > 0 && p->keep_rate <= 1)) {
        return status_fail(STATUS_INVALID, "keep_rate %g: must be over 0 and at most 1", p->keep_rate);
    }
    if (p->look_ahead < 1 || p->look_ahead > LOOK_AHEAD_MAX) {
        return status_fail(STATUS_INVALID, "look_ahead %d: must be from 1 to %d", p->look_ahead, LOOK_AHEAD_MAX);
    }
    if (p->chunk_tokens < 0 || p->chunk_tokens > 4096) {
        return status_fail(STATUS_INVALID, "chunk_tokens %d: must be from 0 (single tokens) to 4096", p->chunk_tokens);
    }
    if (p->pool_window < 1 || p->pool_window > 1023 || p->pool_window % 2 == 0) {
        return status_fail(STATUS_INVALID, "pool_window %d: must be odd, from 1 (none) to 1023", p->pool_window);
    }
    return STATUS_OK;
}

enum status sampling_resolve(struct sampling *s, int prompt_tokens, int context_tokens)
{
    int room = context_tokens - prompt_tokens;
    if (room < 1) {
        return status_fail(STATUS_OUT_OF_RANGE,
                           "the prompt has %d tokens, the context holds %d with at least one to generate: shorten it",
                           prompt_tokens, context_tokens);
    }
    if (s->max_tokens > room) {
        return status_fail(
            STATUS_OUT_OF_RANGE,
            "prompt (%d tokens) and max_tokens (%d) together exceed the context of %d: lower max_tokens to %d "
            "or shorten the prompt",
            prompt_tokens, s->max_tokens, context_tokens, room);
    }
    if (!s->max_tokens) s->max_tokens = room < 256 ? room : 256;
    if (s->min_tokens > s->max_tokens) {
        return status_fail(STATUS_INVALID, "min_tokens %d: must be from 0 to max_tokens (%d)", s->min_tokens,
                           s->max_tokens);
    }
    return STATUS_OK;
}

const char *prefill_mode_name(enum prefill_mode mode)
{
    static const char *const names[] = {"auto", "on", "off"};
    return names[mode];
}

int prefill_keep_budget(int n_chunks, double keep_rate)
{
    // A product like 0.07 * 100 is an ulp above the whole number that is meant.
    double chunks = ceil(n_chunks * keep_rate - 1e-9);
    if (chunks < 1) return 1;
    return chunks > n_chunks ? n_chunks : (int)chunks;
}

int prefill_tail_tokens(int tail_tokens, int prompt_tokens)
{
    return tail_tokens < prompt_tokens / 4 ? tail_tokens : prompt_tokens / 4;
}
