// SPDX-License-Identifier: Apache-2.0
// The legal transitions of a request, and the memory that it owns.
#include "router/core/request.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "router/core/request_stages.h"

static const char *const state_names[REQUEST_STATE_COUNT] = {
    [REQUEST_RECEIVED] = "received",   [REQUEST_TOKENISED] = "tokenised", [REQUEST_SCORING] = "scoring",
    [REQUEST_READY] = "ready",         [REQUEST_PACKED] = "packed",       [REQUEST_PREFILL] = "prefill",
    [REQUEST_DECODE] = "decode",       [REQUEST_DONE] = "done",           [REQUEST_FAILED] = "failed",
    [REQUEST_CANCELLED] = "cancelled",
};

static const char *const skip_names[SKIP_COUNT] = {
    [SKIP_NONE] = "none",
    [SKIP_OFF] = "off",
    [SKIP_KEEP_ALL] = "keep_all",
    [SKIP_SHORT] = "short",
    [SKIP_COST] = "cost",
    [SKIP_NO_NODE] = "no_node",
    [SKIP_UNCALIBRATED] = "uncalibrated",
    [SKIP_UNSURE] = "unsure",
    [SKIP_FALLBACK] = "fallback",
    [SKIP_TOO_LONG] = "too_long",
    [SKIP_TIMEOUT] = "timeout",
    [SKIP_LOST] = "lost",
};

const char *request_state_name(enum request_state state)
{
    return (unsigned)state < REQUEST_STATE_COUNT ? state_names[state] : "unknown";
}

const char *request_rate_reason(const struct request *r)
{
    if (!r->kept) return "";
    if (r->skip) return skip_reason_name(r->skip);
    return r->rate_reason == RATE_QUALITY ? "quality" : "fixed";
}

void request_limit_format(const struct request *r, char text[REQUEST_LIMIT_ROOM])
{
    char rule[PRUNE_RULE_ROOM];
    prune_rule_format(&r->spec.limited_by, rule);
    snprintf(text, REQUEST_LIMIT_ROOM, "%s%s%s", rule, r->spec.drafts_limited ? ",drafts-off" : "",
             r->skip == SKIP_FALLBACK ? ",shadow-fallback" : "");
    if (*text == ',') memmove(text, text + 1, strlen(text));
}

const char *skip_reason_name(enum skip_reason reason)
{
    return (unsigned)reason < SKIP_COUNT ? skip_names[reason] : "unknown";
}

const char *request_refusal_reason(enum status status, const char *sentence)
{
    switch (status) {
    case STATUS_INVALID: return "invalid";
    case STATUS_UNSUPPORTED: return "unsupported";
    case STATUS_NOT_FOUND: return "not found";
    case STATUS_DATA:
        return "the chat template refused it"; // the template wrote the sentence, and may have quoted a message
    default: return sentence;
    }
}

const char *finish_reason_name(enum finish_reason reason)
{
    switch (reason) {
    case FINISH_REASON_STOP: return "stop";
    case FINISH_REASON_LENGTH: return "length";
    case FINISH_REASON_CANCELLED: return "cancelled";
    case FINISH_REASON_ERROR: return "error";
    }
    return "unknown";
}

struct request *request_create(void)
{
    static atomic_uint_fast64_t last_number; // relaxed: numbers only have to be unique
    struct request *r = mem_alloc(sizeof *r);
    r->number = atomic_fetch_add_explicit(&last_number, 1, memory_order_relaxed) + 1;
    r->spec.ttft_deadline_us = INT64_MAX;
    sampling_defaults(&r->spec.sampling);
    prefill_defaults(&r->spec.prefill);
    r->sched.number = r->number;
    r->sched.spec = &r->spec;
    r->sched.usage = &r->usage;
    r->sched.timing = &r->timing;
    r->links.timer_index = -1;
    return r;
}

void request_free(struct request *r)
{
    if (!r) return;
    assert(!r->drafting.node && !r->sharing.scored && !r->sharing.first && !r->sched.list && !r->account.node &&
           !r->account.bin && !r->sched.tenant_queue && r->links.timer_index < 0);
    free(r->id);
    free(r->spec.tokens);
    free(r->spec.pinned);
    prompt_turns_free(r->spec.turns, r->spec.n_turns);
    logit_bias_free(&r->spec.sampling.logit_bias);
    grammar_spec_free(&r->spec.sampling.grammar);
    free(r->spec.tenant);
    free(r->spec.cache_salt);
    free(r->kept);
    conversation_free(r->conversation);
    free(r->importance);
    free(r->draft);
    free(r->sched.prefix);
    free(r->sched.frozen.prefix);
    free(r->output);
    request_stages_free(r->stages);
    free(r);
}

bool request_is_drafted(const struct request *r)
{
    return r->spec.prefill.drafts == DRAFTS_AUTO && !r->spec.score_only && r->spec.sampling.max_tokens > 1;
}

void request_copy_spec(const struct request *from, struct request *to)
{
    const struct request_spec *spec = &from->spec;
    to->spec = *spec;
    to->spec.tokens = mem_copy(spec->tokens, (size_t)spec->n_tokens * sizeof *spec->tokens);
    to->spec.pinned = mem_copy(spec->pinned, (size_t)spec->n_pinned * sizeof *spec->pinned);
    to->spec.turns = prompt_turns_copy(spec->turns, spec->n_turns);
    to->spec.sampling.logit_bias = logit_bias_copy(&spec->sampling.logit_bias);
    to->spec.sampling.grammar = grammar_spec_copy(&spec->sampling.grammar);
    to->spec.tenant = mem_string(spec->tenant);
    to->spec.cache_salt = mem_string(spec->cache_salt);
}

int64_t request_queue_tokens(const struct request *r)
{
    const struct request_spec *spec = &r->spec;
    size_t token_bytes = sizeof *spec->tokens, bytes = spec->sampling.grammar.text_bytes + spec->held_bytes;
    for (int t = 0; t < spec->n_turns; t++)
        bytes += (size_t)spec->turns[t].n_pinned * sizeof *spec->turns[t].pinned;
    return spec->n_tokens + r->resume.n + (int64_t)((bytes + token_bytes - 1) / token_bytes);
}

struct score_prompt request_score_prompt(const struct request *r)
{
    const struct request_spec *spec = &r->spec;
    int n = r->conversation ? r->conversation->turn : 0;
    struct score_prompt prompt = {spec->n_tokens, spec->pinned, spec->n_pinned, 0, 0};
    if (n > 0) {
        prompt.before = spec->turns[n - 1].end;
        prompt.fresh = spec->turns[n - 1].answer_end;
    }
    if (r->conversation && n < spec->n_turns) {
        prompt.n_tokens = spec->turns[n].end;
        prompt.pinned = spec->turns[n].pinned;
        prompt.n_pinned = spec->turns[n].n_pinned;
    }
    return prompt;
}

bool request_pins_rows(const struct request *r)
{
    const struct prefill *prefill = &r->spec.prefill;
    return r->conversation && r->conversation->turn && prefill->quality == 0 &&
           prefill_chunk_tokens(prefill) == CHUNK_TOKENS_AUTO;
}

int request_budget_tokens(const struct request *r)
{
    if (!request_pins_rows(r)) return 0;
    const struct prompt_turn *first = r->spec.turns;
    const struct score_prompt prompt = request_score_prompt(r);
    int recall = r->conversation->turn == 1 && prompt_turn_is_shared(first) ? prompt_shared_recall(first->end) : 0;
    return prompt.n_tokens - prompt.fresh + recall;
}

int request_kept_tokens(const struct request *r)
{
    int n = 0;
    for (int k = 0; k < r->n_kept_ranges; k++)
        n += r->kept[k].last - r->kept[k].first + 1;
    return n;
}

void request_keep_all(struct request *r, enum skip_reason reason)
{
    r->skip = reason;
    r->keep_rate = 1;
    r->kept = mem_alloc(sizeof *r->kept);
    r->kept[0] = (struct token_range){0, r->spec.n_tokens - 1};
    r->n_kept_ranges = 1;
}

static int range_compare(const void *left, const void *right)
{
    const struct token_range *a = left, *b = right;
    return (a->first > b->first) - (a->first < b->first);
}

int request_sort_kept(const struct request *r, struct token_range **sorted_p)
{
    struct token_range *sorted = mem_copy(r->kept, (size_t)r->n_kept_ranges * sizeof *sorted);
    int n = 0;
    qsort(sorted, (size_t)r->n_kept_ranges, sizeof *sorted, range_compare);
    for (int k = 0; k < r->n_kept_ranges; k++) {
        if (n && sorted[n - 1].last + 1 == sorted[k].first)
            sorted[n - 1].last = sorted[k].last;
        else
            sorted[n++] = sorted[k];
    }
    *sorted_p = sorted;
    return n;
}

const char *request_deadline_name(const struct request *r)
{
    return r->spec.deadline_of_call ? "the call's deadline" : "ttft_deadline_ms";
}

#define TO(state)  (1u << REQUEST_##state)
#define TO_BAD_END (TO(FAILED) | TO(CANCELLED))

static const unsigned followers[REQUEST_STATE_COUNT] = {
    [REQUEST_RECEIVED] = TO(TOKENISED) | TO_BAD_END,
    [REQUEST_TOKENISED] = TO(SCORING) | TO(READY) | TO_BAD_END,
    [REQUEST_SCORING] = TO(READY) | TO_BAD_END,
    [REQUEST_READY] = TO(PACKED) | TO(DONE) | TO_BAD_END, // DONE: score only
    [REQUEST_PACKED] = TO(PREFILL) | TO(READY) | TO_BAD_END,
    [REQUEST_PREFILL] = TO(DECODE) | TO(READY) | TO(DONE) | TO_BAD_END,
    [REQUEST_DECODE] = TO(READY) | TO(DONE) | TO_BAD_END,
};

bool request_may_follow(enum request_state from, enum request_state to)
{
    if ((unsigned)from >= REQUEST_STATE_COUNT || (unsigned)to >= REQUEST_STATE_COUNT) return false;
    return (followers[from] >> to) & 1;
}

void request_set_state(struct request *r, enum request_state state)
{
    if (!request_may_follow(r->state, state)) {
        log_event(LOG_ERROR, "request_state_illegal", LOG_REQUEST(r->number),
                  LOG_FIELD("from", request_state_name(r->state)), LOG_FIELD("to", request_state_name(state)));
        assert(!"illegal request state");
    }
    r->state = state;
}
