// SPDX-License-Identifier: Apache-2.0
#include "cli/engine/sizing.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/ragged.h"
#include "lib/base/trace.h"

enum { REQUESTS_MIN = 400, REQUESTS_MAX = 4000, GROUPS_MAX = 1000 };
// Share of the computed capacity with which the search begins; queueing needs the rest.
static const double BEGIN_SHARE = 0.85;
static const double SPEC_SHARE = 0.7;
// A pass at the target of pacing must not exceed the limit on ITL, and passes vary a little.
static const double PASS_SHARE = 0.95;
static const double NETWORK_US = 400; // a message to the router and one to a node, as in forepack-sim

// ---- the load -------------------------------------------------------------------------------------------------------

static enum status load_of_trace(const struct plan_flags *f, double qps, struct sizing_load *load)
{
    struct trace trace = {0};
    TRY(trace_read(f->trace, &trace));
    const double seconds = trace.rows[trace.n_rows - 1].arrival_ms / 1e3;
    *load = (struct sizing_load){.qps = qps, .n_requests = trace.n_rows};
    for (int i = 0; i < trace.n_rows; i++) {
        const double output = trace.rows[i].output_tokens;
        const double prompt = trace.rows[i].prompt_tokens;
        load->prompt_tokens += prompt / trace.n_rows;
        load->longest_tokens = fmax(load->longest_tokens, prompt + output);
        load->output_tokens +=
            (f->output_tokens ? fmin(output, (double)f->output_tokens) : output) / (double)trace.n_rows;
    }
    load->rate = qps > 0 ? qps : seconds > 0 ? trace.n_rows / seconds : 0;
    trace_free(&trace);
    if (load->rate > 0) return STATUS_OK;
    return status_fail(STATUS_INVALID, "--trace %s: all requests arrive at once: give --qps", f->trace);
}

static enum status load_make_up(const struct plan_flags *f, double qps, struct sizing_load *load)
{
    struct count_list lengths;
    TRY(count_list_parse("prompt-tokens", f->prompt_tokens, 1, 10000000, &lengths));
    *load = (struct sizing_load){.qps = qps, .rate = qps, .output_tokens = (double)f->output_tokens};
    for (int i = 0; i < lengths.n; i++)
        load->prompt_tokens += lengths.count[i] / (double)lengths.n;
    for (int i = 0; i < lengths.n; i++)
        load->longest_tokens = fmax(load->longest_tokens, lengths.count[i] + load->output_tokens);
    return STATUS_OK;
}

// ---- a group and a speculator
// -----------------------------------------------------------------------------------------

// Returns the tokens of a prompt that the main model reads.
static double kept_tokens(const struct sizing *s, enum sizing_way way, double keep_rate)
{
    const double prompt = s->load.prompt_tokens;
    if (way == SIZING_ALL_KEPT) return prompt;
    const double tail = fmin((double)s->flags->tail_tokens, prompt / 4);
    return tail + keep_rate * (prompt - tail);
}

static struct capacity_load group_load(const struct sizing *s, enum sizing_way way, double keep_rate, double cached)
{
    return (struct capacity_load){.prompt_tokens = kept_tokens(s, way, keep_rate),
                                  .cached_tokens = cached,
                                  .output_tokens = s->load.output_tokens};
}

// Returns the tokens of a prompt that other prompts share, in whole blocks.
static double shared_tokens(const struct sizing *s, enum sizing_way way)
{
    return way == SIZING_ALL_KEPT ? fmin((double)s->flags->shared_tokens, s->load.prompt_tokens - 1) : 0;
}

static struct capacity_node group_node(const struct sizing *s, const struct sizing_cluster *c)
{
    return (struct capacity_node){.shape = plan_pass_shape(s->flags, &s->config, s->flags->dtype, c->tp, NULL, NULL),
                                  .max_seqs = (double)c->max_seqs,
                                  .kv_tokens = (double)c->kv_blocks * KV_BLOCK_TOKENS,
                                  .token_budget = (double)c->token_budget,
                                  .pass_us = (double)c->itl_target_ms * 1e3};
}

static struct capacity_node spec_node(const struct sizing *s, const struct sizing_cluster *c)
{
    return (struct capacity_node){
        .shape = plan_pass_shape(s->flags, &s->spec_config, s->flags->spec_dtype, c->spec_tp, NULL, NULL),
        .token_budget = (double)c->token_budget};
}

// Returns the time to the first token of one request on an idle cluster.
static double alone_ttft_s(const struct sizing *s, const struct sizing_cluster *c)
{
    const struct capacity_node group = group_node(s, c);
    const double cached = shared_tokens(s, c->way), kept = kept_tokens(s, c->way, s->flags->keep_rate);
    double us = capacity_prefill_us(&group, kept - cached, cached) + NETWORK_US;
    if (c->way == SIZING_PRUNED) {
        const struct capacity_node spec = spec_node(s, c);
        us += capacity_score_us(&spec, s->load.prompt_tokens) + NETWORK_US;
    }
    return us / 1e6;
}

static double alone_itl_s(const struct sizing *s, const struct sizing_cluster *c)
{
    const struct capacity_node group = group_node(s, c);
    return capacity_decode_us(&group, kept_tokens(s, c->way, s->flags->keep_rate) + s->load.output_tokens) / 1e6;
}

// ---- candidates
// -------------------------------------------------------------------------------------------------------

static enum status spec_fit(const struct sizing *s, struct sizing_cluster *c)
{
    const struct plan_node node = {s->flags->spec_shape, true, s->flags->spec_dtype, c->max_seqs, c->token_budget};
    for (int tp = s->flags->spec_tp ? (int)s->flags->spec_tp : 1; tp <= 8; tp *= 2) {
        struct plan_memory memory;
        TRY(plan_memory_of(s->flags, &node, tp, 1, &memory));
        c->spec_tp = tp;
        c->spec_kv_blocks = memory.kv_blocks;
        if ((double)memory.kv_blocks * KV_BLOCK_TOKENS >= s->load.prompt_tokens) return STATUS_OK;
        if (s->flags->spec_tp) break;
    }
    return status_fail(STATUS_INVALID, "--spec-shape %s: does not fit %d GPU%s", s->flags->spec_shape, c->spec_tp,
                       c->spec_tp > 1 ? "s" : "");
}

// Fills in memory and capacity of a candidate. Returns false if the model cannot be divided by tp or does not fit.
static bool candidate_fit(const struct sizing *s, struct sizing_cluster *c)
{
    const struct plan_flags *f = s->flags;
    const struct plan_node node = {f->model ? f->model : f->shape, !f->model, f->dtype, c->max_seqs, c->token_budget};
    struct plan_memory memory;
    if (plan_memory_of(f, &node, c->tp, 1, &memory) != STATUS_OK) return false;
    c->kv_blocks = memory.kv_blocks;
    if ((double)c->kv_blocks * KV_BLOCK_TOKENS < s->load.longest_tokens) return false;
    const struct capacity_node group = group_node(s, c);
    const struct capacity_load load = group_load(s, c->way, f->keep_rate, shared_tokens(s, c->way));
    c->capacity = capacity_of(&group, &load);
    return true;
}

static int speculators_for(const struct sizing *s, const struct sizing_cluster *c)
{
    if (c->way == SIZING_ALL_KEPT) return 0;
    const struct capacity_node spec = spec_node(s, c);
    const double busy = s->load.rate * capacity_score_us(&spec, s->load.prompt_tokens) / 1e6;
    return (int)fmax(1, ceil(busy / SPEC_SHARE));
}

static int64_t target_ms(const struct sizing *s)
{
    return s->limits.itl_p95_s > 0 ? (int64_t)fmax(1, floor(PASS_SHARE * s->limits.itl_p95_s * 1e3)) : 0;
}

// Lists the candidates of a way by tp.
static int candidates_make(const struct sizing *s, enum sizing_way way, struct sizing_cluster list[SIZING_TP_MAX],
                           enum status *status_p)
{
    const struct plan_flags *f = s->flags;
    int n = 0;
    *status_p = STATUS_OK;
    for (int i = 0; i < SIZING_TP_MAX - 1; i++) {
        struct sizing_cluster c = {.way = way,
                                   .tp = f->tp_given ? (int)f->tp : 1 << i,
                                   .max_seqs = f->seqs_given ? f->max_seqs : PLAN_SEQS_DEFAULT,
                                   .token_budget = f->budget_given ? f->token_budget : PLAN_BUDGET_DEFAULT,
                                   .itl_target_ms = target_ms(s)};
        if (way == SIZING_PRUNED) *status_p = spec_fit(s, &c);
        if (*status_p != STATUS_OK) return 0;
        if (candidate_fit(s, &c)) list[n++] = c;
        if (f->tp_given) break;
    }
    return n;
}

// ---- the search
// -------------------------------------------------------------------------------------------------------

// Returns a number of requests that takes several times the longest request, so that the cluster is in a steady state.
static int requests_of(const struct sizing *s, const struct sizing_cluster *c)
{
    const double request_s = s->load.output_tokens * fmax(s->limits.itl_p95_s, 2 * alone_itl_s(s, c));
    const double needed = 5 * s->load.rate * request_s;
    const int n = (int)fmin(fmax(REQUESTS_MIN, needed), REQUESTS_MAX);
    return s->load.n_requests && n > s->load.n_requests ? 0 : n;
}

// Simulates the cluster with a number of groups. Copies the failure of the smaller cluster if this one is held.
static enum status groups_try(const struct sizing *s, int requests, int groups, struct sizing_cluster *c)
{
    c->groups = groups;
    c->speculators = speculators_for(s, c);
    c->failure[0] = 0;
    enum status status = sizing_run(s, requests, c);
    // A queue at the speculators is no reason for more groups.
    for (int more = 0; status == STATUS_OK && !c->is_held && c->spec_utilisation > SPEC_SHARE && more < 8; more++) {
        c->speculators += 1 + c->speculators / 4;
        status = sizing_run(s, requests, c);
    }
    return status;
}

// Finds the smallest number of groups between `low`, which fails, and *held.
static enum status groups_narrow(const struct sizing *s, int requests, int low, struct sizing_cluster *held)
{
    while (held->groups - low > 1) {
        struct sizing_cluster c = *held;
        TRY(groups_try(s, requests, (low + held->groups) / 2, &c));
        if (c.is_held) {
            memcpy(c.failure, held->failure, sizeof c.failure);
            *held = c;
        } else {
            low = c.groups;
            memcpy(held->failure, c.failure, sizeof held->failure);
        }
    }
    return STATUS_OK;
}

// Searches the smallest number of groups of this tp. c->is_held is false if there is none below `gpus_max` GPUs.
static enum status groups_search(const struct sizing *s, int gpus_max, struct sizing_cluster *c)
{
    const int requests = requests_of(s, c);
    int low = 0, groups = (int)fmin(fmax(1, ceil(s->load.rate / (c->capacity.rate * BEGIN_SHARE))), GROUPS_MAX);
    char failure[sizeof c->failure] = "";
    for (;;) {
        TRY(groups_try(s, requests, groups, c));
        if (c->is_held) break;
        memcpy(failure, c->failure, sizeof failure);
        low = groups;
        if ((groups + 1) * c->tp >= gpus_max) return STATUS_OK;
        groups += 1 + groups / 4;
    }
    memcpy(c->failure, failure, sizeof failure);
    if (!low && groups > 1) {
        struct sizing_cluster less = *c;
        TRY(groups_try(s, requests, groups - 1, &less));
        if (!less.is_held) {
            memcpy(c->failure, less.failure, sizeof less.failure);
            return STATUS_OK;
        }
        *c = less;
    }
    return groups_narrow(s, requests, low, c);
}

static double least_gpus(const struct sizing *s, const struct sizing_cluster *c)
{
    return ceil(s->load.rate / c->capacity.rate) * c->tp;
}

// Sorts candidates that need the fewest GPUs to the front, because others then end early.
static void candidates_sort(const struct sizing *s, struct sizing_cluster *list, int n)
{
    for (int i = 1; i < n; i++) {
        for (int k = i; k > 0 && least_gpus(s, &list[k]) < least_gpus(s, &list[k - 1]); k--) {
            const struct sizing_cluster c = list[k];
            list[k] = list[k - 1];
            list[k - 1] = c;
        }
    }
}

// Finds the cluster with the fewest GPUs of a way. best->groups is 0 if no candidate keeps the limits.
static enum status way_search(const struct sizing *s, enum sizing_way way, struct sizing_cluster *best)
{
    struct sizing_cluster list[SIZING_TP_MAX];
    enum status status;
    const int n = candidates_make(s, way, list, &status);
    *best = (struct sizing_cluster){.way = way};
    candidates_sort(s, list, n);
    for (int i = 0; i < n && status == STATUS_OK; i++) {
        struct sizing_cluster *c = &list[i];
        if (s->limits.ttft_p95_s > 0 && alone_ttft_s(s, c) > s->limits.ttft_p95_s) continue;
        if (s->limits.itl_p95_s > 0 && alone_itl_s(s, c) > s->limits.itl_p95_s) continue;
        if (!(c->capacity.rate > 0)) continue;
        const double least = least_gpus(s, c) + speculators_for(s, c) * c->spec_tp;
        if (least > 8.0 * GROUPS_MAX || (best->groups && least >= sizing_gpus(best))) continue;
        status = groups_search(s, best->groups ? sizing_gpus(best) : 8 * (int)least + 64, c);
        if (status == STATUS_OK && c->is_held && (!best->groups || sizing_gpus(c) < sizing_gpus(best))) *best = *c;
    }
    return status;
}

static enum status ways_search(struct sizing *s)
{
    TRY(way_search(s, SIZING_ALL_KEPT, &s->best[SIZING_ALL_KEPT]));
    if (s->flags->spec_shape) TRY(way_search(s, SIZING_PRUNED, &s->best[SIZING_PRUNED]));
    const struct sizing_cluster *all = &s->best[SIZING_ALL_KEPT], *pruned = &s->best[SIZING_PRUNED];
    const bool prunes = pruned->groups && (!all->groups || sizing_gpus(pruned) < sizing_gpus(all));
    s->chosen = prunes ? SIZING_PRUNED : SIZING_ALL_KEPT;
    return STATUS_OK;
}

// ---- limits that no cluster keeps
// -------------------------------------------------------------------------------------

// Says why no cluster keeps the limits. One request alone has these times on the fastest group, which has `tp` GPUs.
static void reason_write(struct sizing *s, bool ttft_fails, bool itl_fails, double ttft_s, double itl_s, int tp)
{
    if (ttft_fails)
        snprintf(s->reason, sizeof s->reason,
                 "no number of GPUs keeps --ttft-p95 %g s: one request alone takes %.3g s on a group of %d",
                 s->limits.ttft_p95_s, ttft_s, tp);
    else if (itl_fails)
        snprintf(s->reason, sizeof s->reason,
                 "no number of GPUs keeps --itl-p95 %g s: a pass with one sequence takes %.3g s", s->limits.itl_p95_s,
                 itl_s);
    else
        snprintf(s->reason, sizeof s->reason,
                 "the limits hold for one request alone (TTFT %.3g s, ITL %.3g s), but not at this load", ttft_s,
                 itl_s);
}

// Finds the fastest candidate for one request, and relaxes the limits to what is possible.
static enum status limits_relax(struct sizing *s)
{
    double ttft_s = INFINITY, itl_s = INFINITY;
    struct sizing_cluster fastest = {.tp = 0};
    for (int way = 0; way < SIZING_WAYS; way++) {
        if (way == SIZING_PRUNED && !s->flags->spec_shape) break;
        struct sizing_cluster list[SIZING_TP_MAX];
        enum status status;
        const int n = candidates_make(s, (enum sizing_way)way, list, &status);
        if (status != STATUS_OK) return status;
        for (int i = 0; i < n; i++) {
            if (alone_ttft_s(s, &list[i]) < ttft_s) fastest = list[i];
            ttft_s = fmin(ttft_s, alone_ttft_s(s, &list[i]));
            itl_s = fmin(itl_s, alone_itl_s(s, &list[i]));
        }
    }
    if (!fastest.tp)
        return status_fail(STATUS_INVALID,
                           "the model with one request of %.0f tokens fits no group of up to 8 %s GPUs: use another "
                           "--gpu, --tp, --dtype or --kv-cache-dtype",
                           s->load.longest_tokens, s->flags->gpu);
    const bool is_first = !s->is_relaxed;
    s->is_relaxed = true;
    const bool ttft_fails = s->limits.ttft_p95_s > 0 && ttft_s > s->limits.ttft_p95_s;
    const bool itl_fails = s->limits.itl_p95_s > 0 && itl_s > s->limits.itl_p95_s;
    if (is_first) reason_write(s, ttft_fails, itl_fails, ttft_s, itl_s, fastest.tp);
    // Both limits grow if neither of them is impossible by itself.
    if (ttft_fails || !itl_fails) s->limits.ttft_p95_s = fmax(1.5 * ttft_s, 1.25 * s->limits.ttft_p95_s);
    if (itl_fails || !ttft_fails) s->limits.itl_p95_s = fmax(1.5 * itl_s, 1.25 * s->limits.itl_p95_s);
    return STATUS_OK;
}

// ---- what changes the result
// ------------------------------------------------------------------------------------------

static void effect_add(struct sizing *s, const struct capacity_node *group, enum sizing_way way, double keep_rate,
                       double cached, const char *text)
{
    const struct capacity_load load = group_load(s, way, keep_rate, cached);
    struct sizing_effect *effect = &s->effects[s->n_effects++];
    snprintf(effect->text, sizeof effect->text, "%s", text);
    effect->rate = capacity_of(group, &load).rate;
}

static void effects_compute(struct sizing *s)
{
    const struct sizing_cluster *chosen = &s->best[s->chosen];
    const struct capacity_node group = group_node(s, chosen);
    effect_add(s, &group, SIZING_ALL_KEPT, 1, 0, "all tokens, nothing cached");
    effect_add(s, &group, SIZING_ALL_KEPT, 1, s->load.prompt_tokens / 2, "half of the prompt cached");
    effect_add(s, &group, SIZING_PRUNED, 0.5, 0, "keep rate 0.5");
    effect_add(s, &group, SIZING_PRUNED, 0.3, 0, "keep rate 0.3");
    effect_add(s, &group, SIZING_PRUNED, 0.1, 0, "keep rate 0.1");
    struct capacity_node paced = group;
    paced.pass_us = 0;
    const struct capacity_load load = group_load(s, SIZING_ALL_KEPT, 1, 0);
    if (group.pass_us > 0)
        s->effects[s->n_effects++] =
            (struct sizing_effect){"all tokens, default pacing", capacity_of(&paced, &load).rate};
}

enum status sizing_make(const struct plan_flags *flags, double qps, struct sizing *s)
{
    *s = (struct sizing){.flags = flags, .limits = {flags->ttft_p95_s, flags->itl_p95_s}};
    TRY(model_config_read(flags->model ? flags->model : flags->shape, &s->config));
    if (flags->spec_shape) TRY(model_config_read(flags->spec_shape, &s->spec_config));
    TRY(flags->trace ? load_of_trace(flags, qps, &s->load) : load_make_up(flags, qps, &s->load));
    // Longer requests of a trace are cut, as forepack bench serve does.
    if (flags->trace) s->load.longest_tokens = fmin(s->load.longest_tokens, s->config.max_context);
    if (s->load.longest_tokens > s->config.max_context)
        return status_fail(STATUS_INVALID, "a request of %.0f tokens exceeds the model's context of %d%s",
                           s->load.longest_tokens, s->config.max_context, model_config_context_note(&s->config));
    TRY(ways_search(s));
    for (int i = 0; i < 12 && !s->best[s->chosen].groups; i++) {
        TRY(limits_relax(s));
        TRY(ways_search(s));
    }
    if (!s->best[s->chosen].groups) return status_fail(STATUS_INVALID, "%s", s->reason);
    effects_compute(s);
    return STATUS_OK;
}
