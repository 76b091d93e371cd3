// SPDX-License-Identifier: Apache-2.0
#include "sim/plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/arrivals.h"
#include "lib/base/mem.h"
#include "lib/base/number_list.h"
#include "lib/text/generation.h"

enum { REQUESTS_DEFAULT = 100, REQUESTS_MAX = 10000000, WARM_UP_TOKENS = 8, ATTACH_US = 1000000 };

// --- the load

static enum status load_check(const struct plan_options *o, double qps)
{
    if (o->trace && o->prompt_tokens) return status_fail(STATUS_INVALID, "give one of --trace and --prompt-tokens");
    if (!o->trace && !(qps > 0))
        return status_fail(STATUS_INVALID, "--prompt-tokens: give --qps too (only --trace has recorded arrival times)");
    if (!o->trace && !o->requests && qps * o->duration > REQUESTS_MAX)
        return status_fail(STATUS_INVALID, "--duration: at --qps %g these are %.4g requests, at most %d are simulated",
                           qps, qps * o->duration, REQUESTS_MAX);
    if (o->trace && o->shared_tokens)
        return status_fail(STATUS_INVALID, "--shared-prefix-tokens: a trace names its shared prefixes itself");
    if (o->shared_tokens % TRACE_BLOCK_TOKENS)
        return status_fail(STATUS_INVALID, "--shared-prefix-tokens %lld: must be a multiple of %d",
                           (long long)o->shared_tokens, TRACE_BLOCK_TOKENS);
    if (!o->shape) return status_fail(STATUS_INVALID, "--shape: give the config.json of the workers' model");
    if (o->speculators && !o->spec_shape)
        return status_fail(STATUS_INVALID, "--spec-shape: give the config.json of the speculators' model");
    return STATUS_OK;
}

// Makes up a trace of rows that cycle through the lengths and share the first blocks of their prompts.
static enum status trace_make_up(const struct plan *plan, struct trace *trace)
{
    const struct plan_options *o = plan->o;
    struct count_list lengths;
    TRY(count_list_parse("prompt-tokens", o->prompt_tokens, 1, 10000000, &lengths));
    int n = o->requests ? (int)o->requests : o->duration > 0 ? (int)ceil(plan->qps * o->duration) : REQUESTS_DEFAULT;
    for (int64_t block = 0; block < o->shared_tokens / TRACE_BLOCK_TOKENS; block++) {
        MEM_GROW(trace->blocks, trace->n_blocks, trace->blocks_capacity);
        trace->blocks[trace->n_blocks++] = block;
    }
    for (int i = 0; i < n; i++) {
        MEM_GROW(trace->rows, trace->n_rows, trace->rows_capacity);
        trace->rows[trace->n_rows++] = (struct trace_row){
            .prompt_tokens = lengths.count[i % lengths.n], .output_tokens = 1, .n_blocks = trace->n_blocks};
    }
    return STATUS_OK;
}

// Sets the arrival times of the rows by the rate. If there is no rate, scales the times of the trace.
static void trace_set_times(const struct plan *plan, struct trace *trace)
{
    const struct plan_options *o = plan->o;
    int64_t *at_us = mem_alloc_array((size_t)trace->n_rows, sizeof *at_us);
    bool constant = strcmp(o->arrivals, "constant") == 0;
    if (plan->qps > 0)
        arrivals_make(constant ? ARRIVALS_CONSTANT : ARRIVALS_POISSON, plan->qps, (uint64_t)o->load_seed, trace->n_rows,
                      at_us);
    for (int i = 0; i < trace->n_rows; i++)
        trace->rows[i].arrival_ms = plan->qps > 0 ? (double)at_us[i] / 1e3 : trace->rows[i].arrival_ms * o->time_scale;
    free(at_us);
}

static enum status load_make(struct plan *plan)
{
    const struct plan_options *o = plan->o;
    struct trace *trace = &plan->load.trace;
    plan->load.length_scale = o->trace ? o->length_scale : 1;
    plan->load.seed = (uint64_t)o->load_seed;
    enum status status = load_check(o, plan->qps);
    if (status == STATUS_OK && o->trace) status = trace_read(o->trace, trace);
    if (status != STATUS_OK) return status;
    if (!o->trace) TRY(trace_make_up(plan, trace));
    trace_set_times(plan, trace);
    plan->n_requests = trace->n_rows;
    if (o->requests && o->requests < plan->n_requests) plan->n_requests = (int)o->requests;
    while (o->duration > 0 && plan->n_requests > 1 && trace->rows[plan->n_requests - 1].arrival_ms > o->duration * 1e3)
        plan->n_requests--;
    return STATUS_OK;
}

// --- the scenario

static void scenario_set_options(const struct plan *plan, struct scenario *s)
{
    const struct plan_options *o = plan->o;
    s->load = &plan->load;
    s->options.noise_seed = o->load_seed; // runs with other prompts have other pass times
    s->options.delay_us = o->network_us;
    s->options.max_queue_requests = o->max_queue_requests;
    s->options.max_queue_tokens = o->max_queue_tokens;
    s->options.max_wait_ms = o->max_wait_ms;
    s->options.bins_ahead = o->bins_ahead;
    s->options.batch_requests = o->batch_requests;
    s->options.min_tokens = o->speculate_min_tokens;
    s->options.tail_tokens = o->tail_tokens;
    s->options.draft_acceptance = o->draft_acceptance > 0 ? llround(1e3 * o->draft_acceptance) : -1;
    s->options.score_timeout_ms = o->score_timeout_ms;
    s->options.policy = strcmp(o->policy, "none") == 0    ? BIN_NONE
                        : strcmp(o->policy, "batch") == 0 ? BIN_BATCH
                                                          : BIN_DATASET;
}

// Makes the request of a row as forepack bench serve does. Cuts what exceeds the context, first from the output.
static struct scenario_request request_of_row(struct plan *plan, const struct trace_row *row)
{
    const struct plan_options *o = plan->o;
    double context = (double)plan->node[NODE_WORKER].context, scale = plan->load.length_scale;
    double output = fmax(1, round(row->output_tokens * scale)), prompt = fmax(1, ceil(row->prompt_tokens * scale));
    if (o->max_tokens && (!o->trace || output > (double)o->max_tokens)) output = (double)o->max_tokens;
    double whole = output + prompt;
    output = fmin(output, context - 1);
    prompt = fmin(prompt, context - output);
    plan->n_clipped += output + prompt < whole;
    struct prefill prefill;
    prefill_defaults(&prefill);
    prefill.mode = o->speculators ? PREFILL_AUTO : PREFILL_OFF;
    if (o->prefill) prefill_mode_parse(o->prefill, &prefill.mode);
    return (struct scenario_request){.tokens = (int64_t)prompt,
                                     .max_tokens = (int64_t)output,
                                     .ignore_eos = 1,
                                     .mode = prefill.mode,
                                     .keep = llround(o->keep_rate * 1e3),
                                     .chunk = prefill.chunk_tokens};
}

// Returns a rough upper bound of the time that a request takes on an otherwise idle node.
static double alone_us(const struct scenario_node *node, const struct scenario_request *r)
{
    double rows = (double)r->tokens, steps = WARM_UP_TOKENS + 8;
    double passes = ceil(rows / fmax(1, (double)node->budget)) + steps;
    return passes * (double)node->fixed_us + (rows + steps) * (double)node->row_ns / 1e3 +
           (rows / 2 + steps) * rows * (double)node->pair_ps / 1e6;
}

// Adds the first rows as a warm-up, one after another, with other prompts.
static void add_warm_up(struct plan *plan, struct scenario *s)
{
    int n_clipped = plan->n_clipped, n_rows = plan->load.trace.n_rows;
    int64_t at_us = ATTACH_US;
    for (int i = 0; i < plan->o->warm_up; i++) {
        struct scenario_request r = request_of_row(plan, &plan->load.trace.rows[i % n_rows]);
        if (r.max_tokens > WARM_UP_TOKENS) r.max_tokens = WARM_UP_TOKENS;
        scenario_add_action(
            s, (struct action){.at_us = at_us, .kind = ACTION_REQUEST, .id = n_rows + 1 + i % n_rows, .request = r});
        at_us += (int64_t)(2 * (alone_us(&plan->node[0], &r) + alone_us(&plan->node[1], &r))) + ATTACH_US;
    }
    plan->begin_us = at_us;
    plan->n_clipped = n_clipped;
}

static void scenario_make(struct plan *plan, struct scenario *s)
{
    scenario_init(s);
    scenario_set_options(plan, s);
    for (int role = NODE_ROLES - 1; role >= 0; role--) {
        for (int i = 0; i < plan->nodes[role]; i++) {
            plan->node[role].id = i;
            scenario_add_node(s, plan->node[role]);
        }
    }
    add_warm_up(plan, s);
    for (int i = 0; i < plan->n_requests; i++) {
        const struct trace_row *row = &plan->load.trace.rows[i];
        scenario_add_action(s, (struct action){.at_us = plan->begin_us + llround(row->arrival_ms * 1e3),
                                               .kind = ACTION_REQUEST,
                                               .id = i + 1,
                                               .request = request_of_row(plan, row)});
    }
}

// --- the planner

static enum status plan_run(struct plan *plan, json_t **report_p)
{
    struct scenario s;
    scenario_make(plan, &s);
    enum status status = plan_measure(plan, &s, report_p);
    scenario_fini(&s);
    return status;
}

// Plans for one rate; 0: for the arrival times of the trace. *report_p is the report. The text goes to standard output.
static enum status plan_rate(const struct plan_options *options, double qps, bool json, json_t **report_p)
{
    struct plan plan = {.o = options, .qps = qps};
    enum status status = load_make(&plan);
    if (status == STATUS_OK) status = plan_nodes_make(&plan);
    if (status == STATUS_OK) status = plan_run(&plan, report_p);
    if (status == STATUS_OK && !json) plan_print(&plan, *report_p);
    trace_free(&plan.load.trace);
    return status;
}

int plan_main(const struct plan_options *options, bool json)
{
    double rates[NUMBER_LIST_MAX] = {0};
    int n = 1;
    json_t *reports = json_array();
    enum status status = options->qps ? real_list_parse("qps", options->qps, 1e-3, 1e6, rates, &n) : STATUS_OK;
    for (int i = 0; i < n && status == STATUS_OK; i++) {
        json_t *report = NULL;
        if (n > 1 && !json) printf("%s%g requests/s\n", i ? "\n" : "", rates[i]);
        status = plan_rate(options, rates[i], json, &report);
        if (status == STATUS_OK) json_array_append_new(reports, report);
    }
    if (status == STATUS_OK && json) {
        json_dumpf(n > 1 ? reports : json_array_get(reports, 0), stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
        putchar('\n');
    }
    json_decref(reports);
    if (status == STATUS_OK) return 0;
    fprintf(stderr, "forepack-sim: %s\n", status_message());
    return status == STATUS_INTERNAL ? 1 : 2;
}
