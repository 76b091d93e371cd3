// SPDX-License-Identifier: Apache-2.0
#include "sim/oracle_shadow.h"

#include <stdlib.h>

#include "lib/base/mem.h"
#include "router/core/core_state.h"
#include "sim/answers.h"
#include "sim/oracle_waiting.h"
#include "sim/router.h"

// An answer whose shadow has not been measured.
struct answer {
    uint64_t number; // of the request
    bool is_compared, first, whole, taints;
    int tokens;
    struct answer *next;
};

struct oracle_shadow {
    struct answer *answers;
    struct shadow_totals totals;    // after the last event
    struct agreement_counts counts; // of all tenants
    int n;                          // shadows
};

struct oracle_shadow *oracle_shadow_create(void)
{
    return mem_alloc(sizeof(struct oracle_shadow));
}

static void answers_free(struct oracle_shadow *oracle)
{
    for (struct answer *a = oracle->answers, *next; a; a = next) {
        next = a->next;
        free(a);
    }
    oracle->answers = NULL;
}

void oracle_shadow_free(struct oracle_shadow *oracle)
{
    answers_free(oracle);
    free(oracle);
}

void oracle_shadow_started(struct oracle_shadow *oracle)
{
    answers_free(oracle);
    *oracle = (struct oracle_shadow){.answers = NULL};
}

void oracle_shadow_answered(struct world *w, const struct request *r)
{
    if (!w->scenario->options.shadow) return;
    const struct answer_rule rule = answer_rule_of(&w->scenario->options, false);
    struct answer *a = mem_alloc(sizeof *a);
    uint64_t entry = ANSWER_START;
    *a = (struct answer){.number = r->number,
                         .is_compared = r->spec.sampling.temperature == 0,
                         .whole = true,
                         .tokens = r->usage.completion_tokens,
                         .next = w->shadow->answers};
    for (int i = 0; i < r->spec.n_tokens; i++)
        entry = answer_entry(entry, r->spec.tokens[i], i);
    for (int i = 0; i < a->tokens; i++) {
        bool agrees = answer_token(entry, -1, &rule) == r->output[i];
        if (i == 0) a->first = agrees;
        a->whole &= agrees;
        entry = answer_entry(entry, r->output[i], r->spec.n_tokens + i);
    }
    if (r->ended_by_token) a->whole &= answer_token(entry, -1, &rule) == TOKEN_EOS;
    w->shadow->answers = a;
}

static struct answer **answer_find(struct oracle_shadow *oracle, uint64_t number)
{
    struct answer **at = &oracle->answers;
    while (*at && (*at)->number != number)
        at = &(*at)->next;
    return at;
}

void oracle_shadow_taint(struct world *w, const struct core *c, int node)
{
    for (const struct shadow *s = c->shadows.first; s; s = s->next) {
        const struct core_node *on = s->running ? s->running->account.node : NULL;
        struct answer *a = *answer_find(w->shadow, s->number);
        if (a && on && sim_router_node_of(on->link) == node) a->taints = true;
    }
}

// Checks a shadow on a worker group.
static void running_check(struct world *w, const struct core *c, const struct shadow *s)
{
    const struct request *r = s->running;
    const struct core_node *node = r->account.node;
    HOLDS(r->shadow == s && request_table_find(&c->table, r->number) == r && !r->id);
    HOLDS(node && node->hello.role == NODE_WORKER && node->sched.account.requests.count == 1);
    HOLDS(r->usage.kept_tokens == r->spec.n_tokens && r->spec.n_tokens == s->n_tokens);
    HOLDS(!r->sched.tenant_queue && !r->sched.run && s->tries <= SHADOW_TRIES);
}

static uint64_t sum_of(const uint64_t *counts, int n)
{
    uint64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += counts[i];
    return sum;
}

static struct agreement_counts counts_of(const struct core *c)
{
    struct agreement_counts sum = {0};
    for (int i = 0; i < c->shadows.agreement.n_tenants; i++) {
        const struct agreement_counts *of = &c->shadows.agreement.tenants[i].counts;
        sum.scored += of->scored;
        sum.compared += of->compared;
        sum.first += of->first;
        sum.whole += of->whole;
        sum.tokens += of->tokens;
        sum.surprise += of->surprise;
    }
    return sum;
}

static bool has_shadow(const struct core *c, uint64_t number)
{
    const struct shadow *s = c->shadows.first;
    while (s && s->number != number)
        s = s->next;
    return s;
}

// Compares what was counted since the last event with one of the answers whose shadow has ended.
static bool is_counted(const struct oracle_shadow *oracle, const struct answer *a, const struct agreement_counts *now)
{
    const struct agreement_counts *before = &oracle->counts;
    bool certain = now->surprise == before->surprise;
    uint64_t compared = a->is_compared;
    return now->compared - before->compared == compared && now->tokens - before->tokens == (uint64_t)a->tokens &&
           (a->taints || (now->first - before->first == (compared & a->first) &&
                          now->whole - before->whole == (compared & a->whole) && (certain || !a->whole)));
}

// Checks the result of the shadow that was measured in this event. An event has the results of one node, which runs one
// shadow at most.
static void measured_check(struct world *w, const struct core *c, const struct agreement_counts *now)
{
    struct oracle_shadow *oracle = w->shadow;
    bool found = false;
    HOLDS(c->shadows.totals.measured == oracle->totals.measured + 1 && now->scored == oracle->counts.scored + 1);
    for (const struct answer *a = oracle->answers; a; a = a->next)
        found |= !has_shadow(c, a->number) && is_counted(oracle, a, now);
    HOLDS(found);
}

static void drops_check(struct world *w, const struct core *c)
{
    const struct scenario_options *o = &w->scenario->options;
    const uint64_t *now = c->shadows.totals.dropped, *before = w->shadow->totals.dropped;
    HOLDS(now[SHADOW_FULL] == before[SHADOW_FULL] || c->shadows.n >= SHADOW_PENDING_MAX ||
          c->shadows.tokens > SHADOW_TOKENS_MAX / 2);
    HOLDS(now[SHADOW_RATE] == before[SHADOW_RATE] || c->shadows.n_in_second == o->shadow_per_s);
    HOLDS(now[SHADOW_DRAINED] == before[SHADOW_DRAINED] || sim_router_drains(w->router));
}

void oracle_shadow_check(struct world *w, const struct core *c)
{
    struct oracle_shadow *oracle = w->shadow;
    if (!w->scenario->options.shadow || !c) return;
    const struct shadows *shadows = &c->shadows;
    const struct shadow_totals *t = &shadows->totals;
    const struct agreement_counts counts = counts_of(c);
    int n = 0, running = 0;
    int64_t tokens = 0;
    for (const struct shadow *s = shadows->first; s; s = s->next, n++) {
        HOLDS(*answer_find(oracle, s->number)); // the request has ended
        if (s->running) running_check(w, c, s);
        running += s->running != NULL;
        tokens += s->n_tokens;
    }
    HOLDS(n == shadows->n && running == shadows->n_running && tokens == shadows->tokens);
    HOLDS(n <= SHADOW_PENDING_MAX && tokens <= SHADOW_TOKENS_MAX);
    HOLDS(t->chosen == sum_of(t->skipped, SHADOW_SKIPS) + sum_of(t->dropped, SHADOW_DROPS) + t->measured + (uint64_t)n);
    if (t->measured != oracle->totals.measured) measured_check(w, c, &counts);
    drops_check(w, c);
    oracle->totals = *t;
    oracle->counts = counts;
    for (struct answer **at = &oracle->answers; *at;) {
        struct answer *a = *at;
        if (has_shadow(c, a->number)) {
            at = &a->next;
        } else {
            *at = a->next;
            free(a);
        }
    }
}

void oracle_shadow_check_tick(struct world *w, const struct core *c)
{
    int idle = 0;
    for (const struct core_node *node = core_first_node(c); node; node = core_node_next(node))
        idle += node->hello.role == NODE_WORKER && !node->sched.draining && !node->sched.account.requests.count;
    HOLDS(!c->shadows.n_running || waiting_set_count(&c->waiting[NODE_WORKER]) <= idle);
    for (const struct shadow *s = c->shadows.first; s; s = s->next)
        HOLDS(s->running || s->expires_us > w->now_us);
    HOLDS(!c->shadows.n || !sim_router_drains(w->router));
}
