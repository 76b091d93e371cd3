// SPDX-License-Identifier: Apache-2.0
#include "router/core/agreement.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

#define ERROR_SHARE     0.05 // one-sided
#define RETURN_MARGIN   0.25 // part of the rest to 1 by which the lower bound must exceed the promise
#define BISECTION_STEPS 40
#define SMALLEST_PART   1e-18

// --- the bounds

// Returns the probability that exactly i of n agree if each agrees with probability p.
static double exactly(int i, int n, double p)
{
    return exp(lgamma(n + 1.0) - lgamma(i + 1.0) - lgamma(n - i + 1.0) + i * log(p) + (n - i) * log1p(-p));
}

// Returns the probability that at least k of n agree if each agrees with probability p, 0 < p < 1. Begins with the
// largest term, because others may be too small for a double, and leaves out terms that do not change the sum.
static double at_least(int k, int n, double p)
{
    int mode = (int)((n + 1) * p), begin = mode < k ? k : mode < n ? mode : n;
    double odds = p / (1 - p), largest = exactly(begin, n, p), sum = largest;
    double term = largest;
    for (int i = begin + 1; i <= n && term > SMALLEST_PART * sum; i++)
        sum += term *= (n - i + 1.0) / i * odds;
    term = largest;
    for (int i = begin; i > k && term > SMALLEST_PART * sum; i--)
        sum += term *= i / (n - i + 1.0) / odds;
    return sum;
}

double agreement_lower_bound(int agreed, int n)
{
    double low = 0, high = 1;
    if (agreed <= 0) return 0;
    for (int i = 0; i < BISECTION_STEPS; i++) {
        double middle = (low + high) / 2;
        *(at_least(agreed, n, middle) < ERROR_SHARE ? &low : &high) = middle;
    }
    return low;
}

double agreement_upper_bound(int agreed, int n)
{
    return 1 - agreement_lower_bound(n - agreed, n); // the share of the answers that differ has this lower bound
}

// If all of n agree, the lower bound is the n-th root of ERROR_SHARE.
int agreement_answers_needed(double promise)
{
    return promise < 1 ? (int)fmin(ceil(log(ERROR_SHARE) / log(promise)), INT_MAX) : INT_MAX;
}

static double return_bound(double promise)
{
    return promise + RETURN_MARGIN * (1 - promise);
}

bool agreement_can_show(double promise)
{
    return agreement_answers_needed(return_bound(promise)) <= AGREEMENT_WINDOW;
}

// --- a window

static void window_begin(struct agreement_window *w)
{
    w->next = w->state.n = w->state.n_first = w->state.n_whole = 0;
    w->state.lower = 0;
    w->state.upper = 1;
}

static void window_add(struct agreement_window *w, bool first, bool whole)
{
    struct agreement_state *state = &w->state;
    int i = w->next;
    bool is_full = state->n == AGREEMENT_WINDOW;
    state->n_first += first - (is_full && w->first[i]);
    state->n_whole += whole - (is_full && w->whole[i]);
    state->n += !is_full;
    w->first[i] = first;
    w->whole[i] = whole;
    w->next = (i + 1) % AGREEMENT_WINDOW;
}

// Returns true if the window has to change between pruning and the fallback.
static bool window_changes(const struct agreement_state *state)
{
    if (state->falls_back) return state->lower >= return_bound(state->promise);
    if (state->n >= agreement_answers_needed(state->promise)) return state->lower < state->promise;
    return state->n >= AGREEMENT_LEAST && state->upper < state->promise;
}

static void window_change(struct agreement_window *w, int agreed)
{
    w->state.falls_back = !w->state.falls_back;
    w->state.decided_agreed = agreed;
    w->state.decided_n = w->state.n;
    window_begin(w);
}

// --- the table

void agreement_table_fini(struct agreement_table *table)
{
    for (int i = 0; i < table->n_tenants; i++) {
        for (int k = 0; k < table->tenants[i].n_windows; k++)
            free(table->tenants[i].windows[k]);
        free(table->tenants[i].name);
    }
    table->n_tenants = 0;
}

// Returns the entry of the tenant, or the number of entries if it has none yet.
static int tenant_find(const struct agreement_table *table, const char *name)
{
    if (!strcmp(name, AGREEMENT_OTHERS)) name = "";
    int i = 0, n = table->n_tenants;
    while (i < n && strcmp(table->tenants[i].name, name) != 0)
        i++;
    return i == n && n > AGREEMENT_TENANTS ? AGREEMENT_TENANTS : i;
}

static struct agreement_tenant *tenant_of(struct agreement_table *table, const char *name)
{
    int i = tenant_find(table, name);
    bool is_named = strcmp(name, AGREEMENT_OTHERS) != 0;
    if (i == table->n_tenants) {
        const char *others = i < AGREEMENT_TENANTS ? "" : AGREEMENT_OTHERS;
        table->tenants[i].name = mem_string(i < AGREEMENT_TENANTS && is_named ? name : others);
        table->n_tenants++;
    }
    return &table->tenants[i];
}

static bool same_key(struct agreement_key a, struct agreement_key b)
{
    return a.quality == b.quality && (a.quality > 0 || a.keep_rate == b.keep_rate);
}

static struct agreement_window *window_find(const struct agreement_tenant *tenant, struct agreement_key key)
{
    for (int i = 0; i < tenant->n_windows; i++)
        if (same_key(tenant->windows[i]->state.key, key)) return tenant->windows[i];
    return NULL;
}

// Returns the place of a new window: the next free one, or that of the window not used for the longest time.
static struct agreement_window *window_place(struct agreement_tenant *tenant)
{
    if (tenant->n_windows < AGREEMENT_WINDOWS)
        return tenant->windows[tenant->n_windows++] = mem_alloc(sizeof(struct agreement_window));
    struct agreement_window *oldest = tenant->windows[0];
    for (int i = 1; i < AGREEMENT_WINDOWS; i++)
        if (tenant->windows[i]->used < oldest->used) oldest = tenant->windows[i];
    return oldest;
}

static struct agreement_window *window_of(const struct agreement_table *table, struct agreement_tenant *tenant,
                                          struct agreement_key key)
{
    struct agreement_window *window = window_find(tenant, key);
    if (window) return window;
    bool lower = key.quality > 0 && key.quality < table->promise;
    window = window_place(tenant);
    *window = (struct agreement_window){.state = {.key = key, .promise = lower ? key.quality : table->promise}};
    window_begin(window);
    return window;
}

const struct agreement_state *agreement_add(struct agreement_table *table, const char *name, struct agreement_key key,
                                            const struct agreement *agreement)
{
    struct agreement_tenant *tenant = tenant_of(table, name);
    struct agreement_counts *counts = &tenant->counts;
    counts->scored++;
    counts->tokens += (uint64_t)agreement->tokens;
    counts->surprise += agreement->surprise;
    if (!agreement->is_compared) return NULL;
    counts->compared++;
    counts->first += agreement->first;
    counts->whole += agreement->whole;
    struct agreement_window *window = window_of(table, tenant, key);
    struct agreement_state *state = &window->state;
    window->used = ++table->used;
    window_add(window, agreement->first, agreement->whole);
    int agreed = table->measure == AGREEMENT_FIRST_TOKEN ? state->n_first : state->n_whole;
    state->lower = agreement_lower_bound(agreed, state->n);
    state->upper = agreement_upper_bound(agreed, state->n);
    if (!table->measure || !window_changes(state)) return NULL;
    window_change(window, agreed);
    return state;
}

bool agreement_falls_back(const struct agreement_table *table, const char *tenant, struct agreement_key key)
{
    int i = tenant_find(table, tenant);
    const struct agreement_window *window = i < table->n_tenants ? window_find(&table->tenants[i], key) : NULL;
    return window && window->state.falls_back;
}
