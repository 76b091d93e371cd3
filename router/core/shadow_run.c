// SPDX-License-Identifier: Apache-2.0
#include "router/core/shadow_run.h"

#include "lib/base/mem.h"
#include "router/core/dispatch.h"
#include "router/core/requests.h"

#define WORST_INTERVAL_US INT64_C(60000000) // between two log lines

// Makes the request of a shadow. Its log-probabilities begin with the first token of the answer.
static struct request *request_of_shadow(struct shadow *s, int64_t now_us)
{
    struct request *r = request_create();
    r->shadow = s;
    r->sink = shadow_sink(s);
    r->spec.tokens = mem_copy(s->tokens, (size_t)s->n_tokens * sizeof *s->tokens);
    r->spec.n_tokens = s->n_tokens;
    r->spec.sampling = s->sampling;
    r->spec.prefill.mode = PREFILL_OFF;
    r->spec.prefill.drafts = DRAFTS_OFF;
    r->spec.priority = -PRIORITY_MAX;
    r->spec.prefix_salt = s->salt;
    r->spec.arrived_us = r->account.charged_us = now_us;
    r->usage.prompt_tokens = s->n_tokens;
    r->n_prompt_logprobs = s->n_prompt - 1;
    request_keep_all(r, SKIP_OFF);
    return r;
}

static void shadow_send(struct core *c, struct shadow *s, struct core_node *node, int64_t now_us)
{
    s->tries++;
    s->agreement.agreed = 0;
    s->agreement.surprise = 0;
    s->is_invalid = false;
    struct request *r = s->running = request_of_shadow(s, now_us);
    c->shadows.n_running++;
    request_set_state(r, REQUEST_TOKENISED);
    core_request_admit(c, r, "");
    request_set_state(r, REQUEST_READY);
    ledger_ready(r);
    core_dispatch_alone(c, r, node, now_us);
}

static int64_t entries_of(const struct node_limits *limits)
{
    return (int64_t)limits->kv_blocks * limits->block_tokens;
}

static bool fits(const struct core_node *node, const struct shadow *s)
{
    const struct request_spec spec = {.n_tokens = s->n_tokens, .sampling = {.max_tokens = 1}};
    const struct request_usage usage = {.kept_tokens = s->n_tokens};
    const struct sched_request r = {.spec = &spec, .usage = &usage};
    return sched_node_can_hold(&node->sched, &r);
}

static bool is_idle(const struct core_node *node)
{
    return node->sched.role == NODE_WORKER && !node->sched.draining && !node->sched.account.requests.count;
}

// Counts the idle worker groups, each of which holds every request that the groups with shadows could hold.
static int spare_groups(const struct core *c)
{
    int n = 0, context = 0;
    int64_t entries = 0;
    for (const struct shadow *s = c->shadows.first; s; s = s->next) {
        const struct node_limits *limits = s->running ? &s->running->account.node->sched.limits : NULL;
        if (limits && limits->context_tokens > context) context = limits->context_tokens;
        if (limits && entries_of(limits) > entries) entries = entries_of(limits);
    }
    for (const struct core_node *node = core_first_node(c); node; node = core_node_next(node))
        n +=
            is_idle(node) && node->sched.limits.context_tokens >= context && entries_of(&node->sched.limits) >= entries;
    return n;
}

// Dispatches the oldest waiting shadow that an idle worker group can hold. Leaves as many groups idle as there are
// requests that wait or are scored.
static void shadow_dispatch(struct core *c, int64_t now_us)
{
    if (spare_groups(c) <= core_waiting_requests(c)) return;
    for (struct core_node *node = core_first_node(c); node; node = core_node_next(node)) {
        for (struct shadow *s = is_idle(node) ? c->shadows.first : NULL; s; s = s->next) {
            if (s->running || !fits(node, s)) continue;
            shadow_send(c, s, node, now_us);
            return;
        }
    }
}

// Cancels running shadows: all, or those whose worker group also runs a request. The router gives a request to such a
// group if it has a longer prefix of the prompt in its cache than idle groups have.
static void interrupt(struct core *c, bool all, int64_t now_us)
{
    for (struct shadow *s = c->shadows.first, *next; s; s = next) {
        next = s->next;
        if (s->running && (all || s->running->account.node->sched.account.requests.count > 1))
            core_request_finish(c, s->running, FINISH_REASON_CANCELLED, STATUS_CANCELLED, "a request has arrived", true,
                                now_us);
    }
}

void shadows_make_room(struct core *c, int arriving, int64_t now_us)
{
    if (!c->shadows.n_running) return;
    if (waiting_set_count(&c->waiting[NODE_WORKER]) + arriving > spare_groups(c)) interrupt(c, true, now_us);
}

void shadows_tick(struct core *c, bool may_dispatch, int64_t now_us)
{
    struct shadows *shadows = &c->shadows;
    if (c->draining) {
        shadows->drains = true;
        interrupt(c, true, now_us);
        shadows_drop_all(shadows);
    }
    if (shadows->n_running) interrupt(c, false, now_us);
    for (struct shadow *s = shadows->first, *next; s && s->expires_us <= now_us; s = next) { // in order of their ages
        next = s->next;
        if (!s->running) shadow_drop(shadows, s, SHADOW_EXPIRED);
    }
    if (shadows->worst.is_set && now_us - shadows->worst.since_us >= WORST_INTERVAL_US)
        shadow_worst_log(&shadows->worst);
    if (may_dispatch && shadows->n > shadows->n_running && !core_dispatch_is_pending(c)) shadow_dispatch(c, now_us);
}

int64_t shadows_next_us(const struct core *c)
{
    const struct shadow *s = c->shadows.first;
    while (s && s->running)
        s = s->next;
    int64_t worst_us = c->shadows.worst.is_set ? c->shadows.worst.since_us + WORST_INTERVAL_US : INT64_MAX;
    return s && s->expires_us < worst_us ? s->expires_us : worst_us;
}
