// SPDX-License-Identifier: Apache-2.0
#include "router/core/shadow.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "router/core/core_state.h"

enum { US_PER_SECOND = 1000000 };

const char *shadow_skip_name(enum shadow_skip skip)
{
    static const char *const names[SHADOW_SKIPS] = {"no_answer", "grammar", "changed", "choice", "context"};
    return names[skip];
}

const char *shadow_drop_name(enum shadow_drop drop)
{
    static const char *const names[SHADOW_DROPS] = {"rate", "full", "expired", "interrupted", "failed", "drained"};
    return names[drop];
}

void shadows_init(struct shadows *shadows, const struct shadow_options *options)
{
    *shadows = (struct shadows){.options = *options};
    shadows->agreement.measure = options->measure;
    shadows->agreement.promise = options->promise;
}

// --- which requests

// Returns a number from 0 to 1 that depends on the id only, so that the choice can be repeated.
static double number_of(const char *id)
{
    const struct hash_key key = {0, 0};
    return (double)(hash_text(&key, id) >> 11) / (double)(UINT64_C(1) << 53);
}

static bool is_chosen(const struct request *r, double share)
{
    return share > 0 && r->id && number_of(r->id) < share;
}

static struct agreement_key key_of(const struct request *r)
{
    return (struct agreement_key){r->spec.prefill.quality, r->spec.prefill.keep_rate};
}

static const char *tenant_of(const struct request *r)
{
    return r->spec.tenant ? r->spec.tenant : "";
}

bool shadow_falls_back(const struct core *c, const struct request *r)
{
    const struct shadow_options *o = &c->shadows.options;
    double probes = o->share < SHADOW_PROBE_SHARE ? o->share : SHADOW_PROBE_SHARE;
    if (!o->measure || r->spec.prefill.mode == PREFILL_REQUIRED || r->spec.score_only) return false;
    return agreement_falls_back(&c->shadows.agreement, tenant_of(r), key_of(r)) && !is_chosen(r, probes);
}

static bool is_pruned(const struct request *r)
{
    return r->skip == SKIP_NONE && !r->spec.score_only && r->usage.kept_tokens < r->spec.n_tokens;
}

static bool changes_likeliest(const struct sampling *s)
{
    return s->repetition_penalty != 1 || s->presence_penalty != 0 || s->frequency_penalty != 0 || s->logit_bias.n ||
           s->min_tokens;
}

// Returns why the request gets no shadow, or SHADOW_SKIPS if it can get one.
static enum shadow_skip skip_of(const struct core *c, const struct request *r)
{
    if (!r->usage.completion_tokens) return SHADOW_NO_ANSWER;
    if (r->spec.sampling.grammar.kind != GRAMMAR_NONE) return SHADOW_GRAMMAR;
    if (changes_likeliest(&r->spec.sampling)) return SHADOW_CHANGED;
    if (r->score_with) return SHADOW_CHOICE;
    if (r->spec.n_tokens + r->usage.completion_tokens >= sched_pool_context(&c->view, NODE_WORKER))
        return SHADOW_CONTEXT;
    return SHADOW_SKIPS;
}

// Returns why no further shadow can be made now, or SHADOW_DROPS if one can.
static enum shadow_drop drop_of(struct shadows *shadows, int n_tokens, int64_t now_us)
{
    int64_t second = now_us / US_PER_SECOND;
    if (shadows->second != second) shadows->n_in_second = 0;
    shadows->second = second;
    if (shadows->drains) return SHADOW_DRAINED;
    if (shadows->n_in_second >= shadows->options.per_s) return SHADOW_RATE;
    if (shadows->n >= SHADOW_PENDING_MAX || shadows->tokens + n_tokens > SHADOW_TOKENS_MAX) return SHADOW_FULL;
    shadows->n_in_second++;
    return SHADOW_DROPS;
}

// --- a shadow

static struct shadow *shadow_create(struct core *c, const struct request *r, int64_t now_us)
{
    struct shadow *s = mem_alloc(sizeof *s);
    int n_answer = r->usage.completion_tokens;
    *s = (struct shadow){.core = c,
                         .n_tokens = r->spec.n_tokens + n_answer,
                         .n_prompt = r->spec.n_tokens,
                         .salt = r->spec.prefix_salt,
                         .expires_us = now_us + SHADOW_WAIT_US,
                         .ends = r->ended_by_token,
                         .id = mem_string(r->id),
                         .tenant = mem_string(tenant_of(r)),
                         .number = r->number,
                         .kept_tokens = r->usage.kept_tokens,
                         .key = key_of(r),
                         .agreement = {.is_compared = r->spec.sampling.temperature == 0, .tokens = n_answer}};
    s->tokens = mem_alloc_array((size_t)s->n_tokens, sizeof *s->tokens);
    memcpy(s->tokens, r->spec.tokens, (size_t)s->n_prompt * sizeof *s->tokens);
    memcpy(s->tokens + s->n_prompt, r->output, (size_t)n_answer * sizeof *s->tokens);
    sampling_defaults(&s->sampling);
    s->sampling.max_tokens = 1;
    s->sampling.prompt_logprobs = 0;
    s->sampling.ignore_eos = r->spec.sampling.ignore_eos;
    s->sampling.n_stop_ids = r->spec.sampling.n_stop_ids;
    memcpy(s->sampling.stop_ids, r->spec.sampling.stop_ids, sizeof s->sampling.stop_ids);
    return s;
}

static void list_append(struct shadows *shadows, struct shadow *s)
{
    s->prev = shadows->last;
    *(s->prev ? &s->prev->next : &shadows->first) = s;
    shadows->last = s;
    shadows->n++;
    shadows->tokens += s->n_tokens;
}

static void shadow_free(struct shadows *shadows, struct shadow *s)
{
    *(s->prev ? &s->prev->next : &shadows->first) = s->next;
    *(s->next ? &s->next->prev : &shadows->last) = s->prev;
    shadows->n--;
    shadows->tokens -= s->n_tokens;
    free(s->tokens);
    free(s->id);
    free(s->tenant);
    free(s);
}

void shadow_drop(struct shadows *shadows, struct shadow *s, enum shadow_drop drop)
{
    shadows->totals.dropped[drop]++;
    log_event_limited(LOG_DEBUG, "shadow_dropped", LOG_REQUEST(s->number), LOG_FIELD("reason", shadow_drop_name(drop)));
    shadow_free(shadows, s);
}

void shadow_take(struct core *c, const struct request *r, int64_t now_us)
{
    struct shadows *shadows = &c->shadows;
    if (r->shadow || !is_pruned(r) || !is_chosen(r, shadows->options.share)) return;
    shadows->totals.chosen++;
    enum shadow_skip skip = skip_of(c, r);
    if (skip != SHADOW_SKIPS) {
        shadows->totals.skipped[skip]++;
        return;
    }
    enum shadow_drop drop = drop_of(shadows, r->spec.n_tokens + r->usage.completion_tokens, now_us);
    if (drop == SHADOW_DROPS)
        list_append(shadows, shadow_create(c, r, now_us));
    else
        shadows->totals.dropped[drop]++;
}

// --- the result

void shadow_worst_log(struct shadow_worst *worst)
{
    if (!worst->is_set) return;
    log_event(LOG_INFO, "shadow_disagreed", LOG_REQUEST(worst->number), LOG_FIELD("client_id", worst->id),
              LOG_FIELD("tokens", worst->prompt_tokens), LOG_FIELD("kept", worst->kept_tokens),
              LOG_FIELD("completion", worst->tokens), LOG_FIELD("agreed", worst->agreed),
              LOG_FIELD("logprob", -worst->surprise / worst->tokens));
    free(worst->id);
    *worst = (struct shadow_worst){.is_set = false};
}

// Notes the answer if its mean log-probability is the lowest since the last log line.
static void worst_note(struct shadow_worst *worst, const struct shadow *s, int64_t now_us)
{
    const struct agreement *a = &s->agreement;
    if (!a->is_compared || a->whole) return;
    if (worst->is_set && a->surprise / a->tokens <= worst->surprise / worst->tokens) return;
    int64_t since_us = worst->is_set ? worst->since_us : now_us;
    free(worst->id);
    *worst = (struct shadow_worst){true,           since_us,  s->number, mem_string(s->id), s->n_prompt,
                                   s->kept_tokens, a->tokens, a->agreed, a->surprise};
}

static void shadow_measured(struct shadows *shadows, struct shadow *s, int64_t now_us)
{
    shadows->totals.measured++;
    worst_note(&shadows->worst, s, now_us);
    const struct agreement_state *changed = agreement_add(&shadows->agreement, s->tenant, s->key, &s->agreement);
    if (changed)
        log_event(LOG_WARN, changed->falls_back ? "pruning_fell_back" : "pruning_resumed",
                  LOG_FIELD("tenant", s->tenant), LOG_FIELD("quality", changed->key.quality),
                  LOG_FIELD("keep_rate", changed->key.keep_rate), LOG_FIELD("compared", changed->decided_n),
                  LOG_FIELD("agreed", changed->decided_agreed), LOG_FIELD("promise", changed->promise));
    shadow_free(shadows, s);
}

static void on_prompt_logprobs(void *user, const struct token_logprob *logprobs, int n)
{
    struct shadow *s = user;
    struct agreement *a = &s->agreement;
    int first = s->running->n_prompt_logprobs - n + 1 - s->n_prompt; // index of the first of them in the answer
    for (int i = 0; i < n; i++) {
        s->is_invalid |= !isfinite(logprobs[i].logprob) || logprobs[i].logprob > 0 || logprobs[i].rank < 1;
        a->surprise -= logprobs[i].logprob;
        a->agreed += a->agreed == first + i && logprobs[i].rank == 1;
    }
}

static bool on_tokens(void *user, const int32_t *tokens, const struct token_logprob *logprobs, int n, int *n_used_p)
{
    return false;
}

static void on_done(void *user, const struct request *r, enum finish_reason reason, enum status status,
                    const char *message)
{
    struct shadow *s = user;
    struct shadows *shadows = &s->core->shadows;
    struct agreement *a = &s->agreement;
    s->running = NULL;
    shadows->n_running--;
    if (reason == FINISH_REASON_CANCELLED) {
        if (shadows->drains)
            shadow_drop(shadows, s, SHADOW_DRAINED);
        else if (s->tries >= SHADOW_TRIES)
            shadow_drop(shadows, s, SHADOW_INTERRUPTED);
    } else if (reason == FINISH_REASON_ERROR || s->is_invalid) {
        shadow_drop(shadows, s, SHADOW_FAILED);
    } else {
        a->first = a->agreed > 0;
        a->whole = a->agreed == a->tokens && (!s->ends || reason == FINISH_REASON_STOP);
        shadow_measured(shadows, s, r->account.charged_us);
    }
}

struct request_sink shadow_sink(struct shadow *s)
{
    return (struct request_sink){on_tokens, on_prompt_logprobs, on_done, s};
}

void shadows_drop_all(struct shadows *shadows)
{
    for (struct shadow *s = shadows->first, *next; s; s = next) {
        next = s->next;
        if (!s->running) shadow_drop(shadows, s, SHADOW_DRAINED);
    }
    shadow_worst_log(&shadows->worst);
}

void shadows_fini(struct shadows *shadows)
{
    shadows_drop_all(shadows);
    agreement_table_fini(&shadows->agreement);
}
