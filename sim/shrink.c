// SPDX-License-Identifier: Apache-2.0
#include "sim/shrink.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "sim/isolated.h"

struct shrink {
    struct scenario *s;
    struct run_result *result;
    int runs_left;
};

// Returns true if two violations differ in numbers only.
static bool violations_alike(const char *a, const char *b)
{
    for (;;) {
        while (isdigit((unsigned char)*a))
            a++;
        while (isdigit((unsigned char)*b))
            b++;
        if (*a != *b) return false;
        if (!*a) return true;
        a++;
        b++;
    }
}

// Returns true if the changed scenario still fails in the same way.
static bool still_fails(struct shrink *shrink)
{
    struct run_result result;
    if (shrink->runs_left-- <= 0) return false;
    isolated_run(shrink->s, true, &result);
    if (!result.failed || !violations_alike(result.violation, shrink->result->violation)) return false;
    *shrink->result = result;
    return true;
}

// --- actions

static bool drop_actions(struct shrink *shrink, int from, int n)
{
    struct scenario *s = shrink->s;
    struct action *all = s->actions;
    int n_all = s->n_actions;
    s->actions = mem_alloc_array((size_t)n_all, sizeof *all);
    s->n_actions = n_all - n;
    memcpy(s->actions, all, (size_t)from * sizeof *all);
    memcpy(s->actions + from, all + from + n, (size_t)(n_all - from - n) * sizeof *all);
    bool fails = still_fails(shrink);
    if (!fails) {
        free(s->actions);
        s->actions = all;
        s->n_actions = n_all;
        return false;
    }
    free(all);
    s->actions_capacity = n_all;
    return true;
}

static void shrink_actions(struct shrink *shrink)
{
    for (int n = shrink->s->n_actions / 2; n >= 1; n /= 2) {
        for (int from = 0; from < shrink->s->n_actions && shrink->runs_left > 0;) {
            int left = shrink->s->n_actions - from, piece = n < left ? n : left;
            if (!drop_actions(shrink, from, piece)) from += piece;
        }
    }
}

// --- values

// Sets *value to the first of `tries` with which the scenario still fails.
static void shrink_value(struct shrink *shrink, int64_t *value, const int64_t *tries, int n)
{
    int64_t before = *value;
    for (int i = 0; i < n; i++) {
        if (tries[i] == before) break;
        *value = tries[i];
        if (still_fails(shrink)) return;
    }
    *value = before;
}

static void shrink_to(struct shrink *shrink, int64_t *value, int64_t target)
{
    shrink_value(shrink, value, &target, 1);
}

static void shrink_request(struct shrink *shrink, struct scenario_request *r)
{
    int64_t *const optional[] = {&r->head,       &r->min_tokens,  &r->temperature, &r->ignore_eos, &r->reading,
                                 &r->stop_after, &r->tenant,      &r->priority,    &r->paper,      &r->pin_last,
                                 &r->importance, &r->deadline_us, &r->retries,     &r->score_only, &r->seed};
    for (size_t i = 0; i < sizeof optional / sizeof *optional; i++)
        shrink_to(shrink, optional[i], 0);
    shrink_to(shrink, &r->chunk, 0);
    const int64_t lengths[] = {1, 2, 8, 16, 64, 256};
    shrink_value(shrink, &r->max_tokens, lengths, 6);
    shrink_value(shrink, &r->tokens, lengths, 6);
}

static void shrink_times(struct shrink *shrink, struct action *action)
{
    const int64_t times[] = {0, 1000, 10000, 100000, 1000000};
    if (action->for_us) shrink_value(shrink, &action->for_us, times, 5);
}

static void shrink_options(struct shrink *shrink)
{
    struct scenario plain;
    scenario_init(&plain);
    struct scenario_options *o = &shrink->s->options;
    const size_t n = sizeof *o / sizeof(int64_t);
    for (size_t i = 0; i < n; i++)
        shrink_to(shrink, (int64_t *)o + i, ((int64_t *)&plain.options)[i]);
}

void scenario_shrink(struct scenario *s, struct run_result *result, int runs_max)
{
    struct shrink shrink = {s, result, runs_max};
    shrink_actions(&shrink);
    for (int i = 0; i < s->n_nodes; i++)
        shrink_to(&shrink, &s->nodes[i].up, 0);
    shrink_options(&shrink);
    for (int i = 0; i < s->n_actions; i++) {
        shrink_times(&shrink, &s->actions[i]);
        if (s->actions[i].kind == ACTION_REQUEST) shrink_request(&shrink, &s->actions[i].request);
    }
    shrink_actions(&shrink);
}
