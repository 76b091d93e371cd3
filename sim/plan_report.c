// SPDX-License-Identifier: Apache-2.0
// The results of a plan's clients and nodes, as one JSON object with the names of forepack bench serve, and as text.
#include <stdio.h>

#include "bench/row.h"
#include "router/core/core.h"
#include "sim/client.h"
#include "sim/clock.h"
#include "sim/node.h"
#include "sim/plan.h"
#include "sim/router.h"
#include "sim/run.h"

// The work of the nodes of a role.
struct pool_work {
    int64_t busy_us, passes;
    struct bin_totals bins;
};

struct measured {
    const struct plan *plan;
    struct pool_work before[NODE_ROLES], after[NODE_ROLES]; // counts before and after the load
    struct samples ttft, itl, tpot, e2e, waiting;           // milliseconds
    double part_us[4];                                      // sums of the parts of the time to first token
    int64_t end_us;                                         // time of the last answer
    int64_t prompt_tokens, scored_tokens, kept_tokens, cached_tokens, output_tokens; // sums
    int64_t draft_tokens, draft_accepted_tokens;
    int complete;
    json_t *failures; // name -> count
};

static const char *const part_names[] = {"queue", "score", "pack_wait", "prefill"};
static const char *const pool_names[NODE_ROLES] = {"speculators", "worker groups"};

// --- watching the run

static void pools_read(const struct world *w, struct pool_work *pools)
{
    struct core_status status;
    core_get_status(sim_router_core(w->router), &status);
    for (int role = 0; role < NODE_ROLES; role++)
        pools[role] = (struct pool_work){.bins = role == NODE_WORKER ? status.prefill_bins : status.score_bins};
    core_status_fini(&status);
    for (int i = 0; i < w->scenario->n_nodes; i++) {
        struct pool_work *pool = &pools[w->scenario->nodes[i].role];
        pool->busy_us += sim_node_busy_us(w->nodes[i]);
        pool->passes += sim_node_passes(w->nodes[i]);
    }
}

static void load_begins(struct world *w, void *arg)
{
    struct measured *m = arg;
    pools_read(w, m->before);
    clients_watch_gaps(w, &m->itl);
}

static void add_failure(struct measured *m, enum status status)
{
    const char *name = status_name(status);
    json_int_t n = json_integer_value(json_object_get(m->failures, name));
    json_object_set_new(m->failures, name, json_integer(n + 1));
}

// Adds a client's result. Its times begin when the client sends the request, so they include the message to the router.
// They end at the core, so the time of the answer's message to the client is added. TPOT needs no such addition,
// because the first and the last token have the same delay.
static void add_result(struct measured *m, const struct client_result *r)
{
    double network_ms = (double)m->plan->o->network_us / 1e3;
    m->output_tokens += r->usage.completion_tokens;
    if (r->ended_us > m->end_us) m->end_us = r->ended_us;
    if (!r->done) {
        add_failure(m, r->status);
        return;
    }
    m->complete++;
    m->prompt_tokens += r->usage.prompt_tokens;
    m->scored_tokens += r->usage.scored_tokens;
    m->kept_tokens += r->usage.kept_tokens;
    m->cached_tokens += r->usage.cached_tokens;
    m->draft_tokens += r->usage.draft_tokens;
    m->draft_accepted_tokens += r->usage.draft_accepted_tokens;
    samples_add(&m->ttft, (double)(r->first_us - r->arrived_us) / 1e3 + network_ms);
    samples_add(&m->e2e, (double)(r->ended_us - r->arrived_us) / 1e3 + network_ms);
    if (r->usage.completion_tokens > 1)
        samples_add(&m->tpot, (double)(r->last_us - r->first_us) / 1e3 / (r->usage.completion_tokens - 1));
    const int64_t parts[] = {r->timing.queue_us, r->timing.score_us, r->timing.pack_wait_us, r->timing.prefill_us};
    for (int i = 0; i < 4; i++)
        m->part_us[i] += (double)parts[i];
    samples_add(&m->waiting, (double)(r->timing.queue_us + r->timing.pack_wait_us) / 1e3);
}

static void load_ended(struct world *w, void *arg)
{
    struct measured *m = arg;
    pools_read(w, m->after);
    int first = w->scenario->n_actions - m->plan->n_requests;
    for (int i = first; i < w->scenario->n_actions; i++) {
        struct client_result result = client_get_result(w, i);
        add_result(m, &result);
    }
}

// --- as JSON

static json_t *pool_json(const struct measured *m, int role, double seconds)
{
    const struct pool_work *before = &m->before[role], *after = &m->after[role];
    const struct scenario_node *node = &m->plan->node[role];
    double bins = (double)(after->bins.bins - before->bins.bins);
    double tokens = (double)(after->bins.tokens - before->bins.tokens);
    double capacity = (double)(after->bins.capacity_tokens - before->bins.capacity_tokens);
    double busy_s = (double)(after->busy_us - before->busy_us) / 1e6;
    return json_pack("{s:s,s:i,s:o,s:I,s:I,s:o,s:I,s:I,s:f,s:f,s:f}", "pool", pool_names[role], "nodes",
                     m->plan->nodes[role], "utilisation", bench_number(busy_s / seconds / m->plan->nodes[role]),
                     "passes", (json_int_t)(after->passes - before->passes), "bins", (json_int_t)bins, "fill_ratio",
                     bench_number(tokens / capacity), "token_budget", (json_int_t)node->budget, "kv_blocks",
                     (json_int_t)node->kv_blocks, "pass_fixed_us", (double)node->fixed_us, "pass_row_us",
                     (double)node->row_ns / 1e3, "pass_pair_us", (double)node->pair_ps / 1e6);
}

static json_t *pools_json(const struct measured *m, double seconds)
{
    json_t *pools = json_array();
    for (int role = NODE_ROLES - 1; role >= 0; role--)
        if (m->plan->nodes[role]) json_array_append_new(pools, pool_json(m, role, seconds));
    return pools;
}

static void add_tokens(json_t *row, const char *name, int64_t tokens)
{
    json_object_set_new(row, name, json_integer(tokens));
}

static json_t *report_make(struct measured *m)
{
    const struct plan *plan = m->plan;
    double seconds = (double)(m->end_us - SIM_START_US - plan->begin_us + plan->o->network_us) / 1e6, waited_us = 0;
    json_t *row = json_pack("{s:i,s:i,s:i,s:O,s:i,s:f}", "requests", plan->n_requests, "completed", m->complete,
                            "failed", plan->n_requests - m->complete, "failures", m->failures, "clipped",
                            plan->n_clipped, "seconds", seconds);
    json_object_set_new(row, "requests_per_s", bench_number(m->complete / seconds));
    json_object_set_new(row, "prompt_tokens_per_s", bench_number((double)m->prompt_tokens / seconds));
    json_object_set_new(row, "output_tokens_per_s", bench_number((double)m->output_tokens / seconds));
    add_tokens(row, "prompt_tokens", m->prompt_tokens);
    add_tokens(row, "scored_tokens", m->scored_tokens);
    add_tokens(row, "kept_tokens", m->kept_tokens);
    add_tokens(row, "cached_tokens", m->cached_tokens);
    add_tokens(row, "output_tokens", m->output_tokens);
    add_tokens(row, "draft_tokens", m->draft_tokens);
    add_tokens(row, "draft_accepted_tokens", m->draft_accepted_tokens);
    bench_row_add_quantiles(row, "ttft", &m->ttft);
    bench_row_add_quantiles(row, "itl", &m->itl);
    bench_row_add_quantiles(row, "tpot", &m->tpot);
    bench_row_add_quantiles(row, "e2e", &m->e2e);
    bench_row_add_quantiles(row, "waiting", &m->waiting);
    json_t *parts = json_object();
    for (int i = 0; i < 4; i++)
        json_object_set_new(parts, part_names[i], bench_number(m->part_us[i] / 1e3 / m->complete));
    json_object_set_new(row, "ttft_ms_parts", parts);
    waited_us = m->part_us[0] + m->part_us[2];
    json_object_set_new(row, "waiting_requests", bench_number(waited_us / 1e6 / seconds));
    json_object_set_new(row, "pools", pools_json(m, seconds));
    return row;
}

enum status plan_measure(const struct plan *plan, const struct scenario *scenario, json_t **report_p)
{
    struct measured m = {.plan = plan, .failures = json_object()};
    struct run_watch watch = {plan->begin_us, load_begins, load_ended, &m};
    struct run_result result = run_scenario(scenario, &watch);
    *report_p = result.failed ? NULL : report_make(&m);
    json_decref(m.failures);
    samples_free(&m.ttft);
    samples_free(&m.itl);
    samples_free(&m.tpot);
    samples_free(&m.e2e);
    samples_free(&m.waiting);
    return result.failed ? status_fail(STATUS_INTERNAL, "%s", result.violation) : STATUS_OK;
}

// --- as text

static void print_quantiles(const json_t *report, const char *title, const char *name)
{
    printf("%-16s", title);
    for (const char *const *q = (const char *const[]){"mean", "p50", "p90", "p99", "max", NULL}; *q; q++) {
        char key[32];
        snprintf(key, sizeof key, "%s_ms_%s", name, *q);
        printf(" %9.2f", bench_row_number(report, key));
    }
    printf("\n");
}

static void print_pool(const json_t *pool)
{
    printf("%-14s %6.0f %11.1f%% %9.0f %8.0f %6.1f%%   %.0f us + %.3g us per row + %.3g us per attention pair\n",
           json_string_value(json_object_get(pool, "pool")), bench_row_number(pool, "nodes"),
           100 * bench_row_number(pool, "utilisation"), bench_row_number(pool, "passes"),
           bench_row_number(pool, "bins"), 100 * bench_row_number(pool, "fill_ratio"),
           bench_row_number(pool, "pass_fixed_us"), bench_row_number(pool, "pass_row_us"),
           bench_row_number(pool, "pass_pair_us"));
}

void plan_print(const struct plan *plan, const json_t *report)
{
    const char *name;
    json_t *value;
    size_t i;
    printf("%-16s %9s %9s %9s %9s %9s\n", "ms", "mean", "p50", "p90", "p99", "max");
    print_quantiles(report, "TTFT", "ttft");
    print_quantiles(report, "ITL", "itl");
    print_quantiles(report, "TPOT", "tpot");
    print_quantiles(report, "end to end", "e2e");
    print_quantiles(report, "waiting", "waiting");
    printf("\n%d requests in %.1f s, %.0f failed: %.4g requests/s, %.4g prompt tokens/s, %.4g output tokens/s\n",
           plan->n_requests, bench_row_number(report, "seconds"), bench_row_number(report, "failed"),
           bench_row_number(report, "requests_per_s"), bench_row_number(report, "prompt_tokens_per_s"),
           bench_row_number(report, "output_tokens_per_s"));
    json_object_foreach(json_object_get(report, "failures"), name, value)
        printf("  %lld failed: %s\n", (long long)json_integer_value(value), name);
    if (plan->n_clipped)
        printf("%d requests were cut to the context of %lld tokens\n", plan->n_clipped,
               (long long)plan->node[NODE_WORKER].context);
    printf("%.3g requests wait on average\n", bench_row_number(report, "waiting_requests"));
    if (bench_row_number(report, "draft_tokens") > 0)
        printf("%.0f draft tokens were verified, %.0f of them accepted\n", bench_row_number(report, "draft_tokens"),
               bench_row_number(report, "draft_accepted_tokens"));
    printf("\n");
    printf("%-14s %6s %12s %9s %8s %7s   %s\n", "pool", "nodes", "utilisation", "passes", "bins", "fill", "a pass");
    json_array_foreach(json_object_get(report, "pools"), i, value) print_pool(value);
}
