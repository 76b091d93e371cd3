// SPDX-License-Identifier: Apache-2.0
// A step of a simulated group starts the sequences of its oldest bin, returns a token for each running sequence, and
// reports the cost of that pass.
#include "bench/dispatch.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "lib/base/mem.h"
#include "router/core/core.h"

#define HOUR_US INT64_C(3600000000)

enum { BLOCKS_MAX = 1 << 24, STEP_US = 10000, PASS_US = 1000, ROW_US = 5, FINGERPRINT = 1, VOCABULARY = 32000 };

struct running {
    uint64_t request;
    int prompt_rows;
    int tokens; // generated so far
};

struct group {
    struct simulation *simulation;
    struct core_node *node;
    struct running *running; // all dispatched sequences; sequences from `started` on have had no step yet
    int n, capacity, started;
    int *bin_end, n_bins, bins_capacity; // ends of the bins without a step
    bool knows_head;                     // its prefix cache holds the shared head
    struct sequence_result *results;
    int results_capacity;
};

struct simulation {
    const struct dispatch_options *options;
    struct core *core;
    struct group *groups;
    int64_t now_us;
    int ended, failed;
    int64_t tokens, bins;
    double ticking;     // seconds of CPU time in all ticks
    double dispatching; // seconds of CPU time in the ticks that dispatched a bin
};

static int64_t heap_used_bytes(void)
{
    struct mallinfo2 info = mallinfo2();
    return (int64_t)(info.uordblks + info.hblkhd);
}

static double cpu_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

// ---- actions of the core ----

static void send_prefill_bin(void *link, uint64_t bin, struct request *const *requests, int n)
{
    struct group *g = link;
    g->simulation->bins++;
    for (int i = 0; i < n; i++) {
        MEM_GROW(g->running, g->n, g->capacity);
        g->running[g->n++] =
            (struct running){.request = requests[i]->number, .prompt_rows = requests[i]->spec.n_tokens};
    }
    MEM_GROW(g->bin_end, g->n_bins, g->bins_capacity);
    g->bin_end[g->n_bins++] = g->n;
}

static void send_score_bin(void *link, uint64_t bin, struct request *const *requests, int n)
{
}

static void send_cancel(void *link, const uint64_t *numbers, int n)
{
}

static void send_drain(void *link)
{
}

static void node_lost(void *link, const char *reason)
{
}

static void ready_changed(void *user, bool ready)
{
}

static bool sink_tokens(void *user, const int32_t *tokens, const struct token_logprob *logprobs, int n, int *n_used_p)
{
    struct simulation *s = user;
    s->tokens += n;
    *n_used_p = n;
    return false;
}

static void sink_done(void *user, const struct request *r, enum finish_reason reason, enum status status,
                      const char *message)
{
    struct simulation *s = user;
    s->ended++;
    s->failed += reason != FINISH_REASON_LENGTH && reason != FINISH_REASON_CANCELLED;
}

// ---- the load ----

// Makes the requests. No two prompts are equal after the shared head.
static struct request **make_requests(struct simulation *s)
{
    const struct dispatch_options *o = s->options;
    struct request **requests = mem_alloc_array((size_t)o->n, sizeof(struct request *));
    for (int i = 0; i < o->n; i++) {
        struct request *r = requests[i] = request_create();
        r->spec.n_tokens = o->length[i];
        r->spec.tokens = mem_alloc_array((size_t)r->spec.n_tokens, sizeof *r->spec.tokens);
        for (int t = 0; t < r->spec.n_tokens; t++)
            r->spec.tokens[t] = t < o->shared_head ? 1 : 2 + (int32_t)((t % 2 ? i / 30000 : i) % 30000);
        r->spec.sampling.max_tokens = o->output_tokens;
        r->spec.prefill.mode = PREFILL_OFF;
        r->spec.arrived_us = s->now_us;
        r->sink = (struct request_sink){.tokens = sink_tokens, .done = sink_done, .user = s};
        request_set_state(r, REQUEST_TOKENISED);
    }
    return requests;
}

static enum status attach_groups(struct simulation *s)
{
    const struct dispatch_options *o = s->options;
    int longest = 0;
    for (int i = 0; i < o->n; i++)
        if (o->length[i] > longest) longest = o->length[i];
    int64_t entries = (int64_t)longest + o->output_tokens, blocks = o->kv_blocks ? o->kv_blocks : BLOCKS_MAX;
    if (entries > blocks * DISPATCH_BLOCK_TOKENS)
        return status_fail(STATUS_INVALID,
                           "%lld KV blocks of %d tokens are too few for a prompt of %d tokens and %d of answer",
                           (long long)blocks, (int)DISPATCH_BLOCK_TOKENS, longest, o->output_tokens);
    for (int i = 0; i < o->workers; i++) {
        struct node_hello hello = {.role = NODE_WORKER,
                                   .ranks = 1,
                                   .stages = 1,
                                   .model_fingerprint = FINGERPRINT,
                                   .tokenizer_fingerprint = FINGERPRINT,
                                   .vocab_size = VOCABULARY,
                                   .context_tokens = 1 << 20,
                                   .token_budget = o->token_budget,
                                   .block_tokens = DISPATCH_BLOCK_TOKENS,
                                   .kv_blocks = (int)blocks,
                                   .max_seqs = o->max_seqs,
                                   .prefix_cache = o->prefix_cache};
        snprintf(hello.node_id, sizeof hello.node_id, "group-%d", i);
        s->groups[i].simulation = s;
        enum status status = core_attach(s->core, &hello, &s->groups[i], s->now_us, &s->groups[i].node);
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

// Returns the prompt rows to compute. After a group's first request, its prefix cache holds the shared head.
static int prompt_rows(const struct simulation *s, struct group *g, const struct running *r)
{
    int head = g->knows_head ? s->options->shared_head : 0, most = r->prompt_rows - 1;
    g->knows_head = s->options->prefix_cache;
    return r->prompt_rows - (head < most ? head : most);
}

// Runs one step of a group: its oldest bin starts, each sequence gets a token, and complete sequences end.
static void group_step(struct simulation *s, struct group *g)
{
    static const int32_t token = 5;
    if (g->n_bins) {
        g->started = g->bin_end[0];
        for (int b = 1; b < g->n_bins; b++)
            g->bin_end[b - 1] = g->bin_end[b];
        g->n_bins--;
    }
    if (g->results_capacity < g->started) {
        g->results_capacity = g->capacity;
        g->results = mem_resize(g->results, (size_t)g->results_capacity, sizeof *g->results);
    }
    int left = 0, n = g->started;
    int64_t rows = 0;
    for (int i = 0; i < n; i++) {
        struct running *r = &g->running[i];
        rows += r->tokens ? 1 : prompt_rows(s, g, r);
        bool last = ++r->tokens == s->options->output_tokens;
        g->results[i] = (struct sequence_result){
            .request = r->request, .tokens = &token, .n_tokens = 1, .finished = last, .reason = FINISH_REASON_LENGTH};
        if (!last) g->running[left++] = *r;
    }
    for (int i = n; i < g->n; i++)
        g->running[left + i - n] = g->running[i];
    for (int b = 0; b < g->n_bins; b++)
        g->bin_end[b] -= n - left;
    g->n -= n - left;
    g->started = left;
    core_step(s->core, g->node, g->results, n, s->now_us);
    core_passed(s->core, g->node, &(struct pass_cost){rows, rows * (rows + 1) / 2, PASS_US + ROW_US * rows, false},
                s->now_us);
}

static void count_bins(const struct simulation *s, struct dispatch_result *result)
{
    struct core_status status;
    core_get_status(s->core, &status);
    const struct bin_totals *bins = &status.prefill_bins;
    result->bins = (int64_t)bins->bins;
    if (bins->bins) {
        result->fill = (double)bins->tokens / (double)bins->capacity_tokens;
        result->scan_cost = (double)bins->scan_cost / (double)bins->items;
        result->nodes_asked = (double)bins->plans / (double)bins->bins;
        result->node_visits = (double)bins->node_visits / (double)bins->bins;
    }
    core_status_fini(&status);
}

static void tick(struct simulation *s, struct dispatch_result *result)
{
    int64_t bins = s->bins;
    double from = cpu_s();
    core_tick(s->core, s->now_us);
    double took = cpu_s() - from;
    s->ticking += took;
    if (took * 1e3 > result->tick_ms_max) result->tick_ms_max = took * 1e3;
    if (s->bins == bins) return;
    s->dispatching += took;
    double each_ms = took * 1e3 / (double)(s->bins - bins);
    if (each_ms > result->dispatch_ms_max) result->dispatch_ms_max = each_ms;
}

static void simulation_drive(struct simulation *s, struct dispatch_result *result)
{
    const struct dispatch_options *o = s->options;
    struct request **requests = make_requests(s); // as the router's I/O threads do
    double begin = cpu_s();
    for (int i = 0; i < o->n; i++)
        core_submit(s->core, requests[i], s->now_us);
    free(requests);
    result->submit_us = (cpu_s() - begin) * 1e6 / o->n;
    double answering = 0;
    while (s->ended < o->n && cpu_s() - begin < o->seconds) {
        for (int i = 0; i < o->workers; i++) {
            s->now_us += STEP_US;
            double from = cpu_s();
            group_step(s, &s->groups[i]);
            answering += cpu_s() - from;
            do {
                tick(s, result);
            } while (core_next_deadline_us(s->core) <= s->now_us);
        }
        if (o->stepped) o->stepped(o->user, s->ended);
    }
    count_bins(s, result);
    result->requests = s->ended;
    result->dispatch_ms = s->bins ? s->dispatching * 1e3 / (double)s->bins : 0;
    result->token_us = s->tokens ? answering * 1e6 / (double)s->tokens : 0;
    // Requests that still wait have cost only their submission.
    result->request_us = result->submit_us + (s->ended ? (answering + s->ticking) * 1e6 / s->ended : 0);
}

// Returns the part of a node's heap that belongs to the simulation, on average.
static double group_kb(const struct simulation *s)
{
    double bytes = 0;
    for (int i = 0; i < s->options->workers; i++) {
        const struct group *g = &s->groups[i];
        bytes += (double)g->capacity * sizeof *g->running + (double)g->bins_capacity * sizeof *g->bin_end +
                 (double)g->results_capacity * sizeof *g->results;
    }
    return bytes / 1e3 / s->options->workers;
}

enum status dispatch_run(const struct dispatch_options *options, struct dispatch_result *result_p)
{
    struct dispatch_result result = {.requests = 0};
    struct simulation s = {.options = options, .now_us = HOUR_US};
    const struct core_options core = {
        .max_queue_requests = options->n,
        .max_queue_tokens = INT64_MAX / 2,
        .max_wait_us = options->max_wait_us,
        .score_timeout_us = HOUR_US,
        .worker_grace_us = HOUR_US,
        .heartbeat_us = HOUR_US,
        .bins_ahead = 2,
        .tokenizer_fingerprint = FINGERPRINT,
        .vocab_size = VOCABULARY,
    };
    const struct core_ops ops = {.send_score_bin = send_score_bin,
                                 .send_prefill_bin = send_prefill_bin,
                                 .send_cancel = send_cancel,
                                 .send_drain = send_drain,
                                 .node_lost = node_lost,
                                 .ready_changed = ready_changed,
                                 .user = &s};
    s.groups = mem_alloc_array((size_t)options->workers, sizeof *s.groups);
    s.core = core_create(&core, &ops);
    int64_t heap_bytes = heap_used_bytes();
    enum status status = attach_groups(&s);
    result.node_kb = (double)(heap_used_bytes() - heap_bytes) / 1e3 / options->workers;
    if (status == STATUS_OK) simulation_drive(&s, &result);
    // When no requests are left, nodes hold only what they have learned: cost models and prefixes.
    if (status == STATUS_OK && s.ended == options->n)
        result.node_kb = (double)(heap_used_bytes() - heap_bytes) / 1e3 / options->workers - group_kb(&s);
    int failed = s.failed;
    core_free(s.core); // the remaining requests end as cancelled
    for (int i = 0; i < options->workers; i++) {
        free(s.groups[i].running);
        free(s.groups[i].bin_end);
        free(s.groups[i].results);
    }
    free(s.groups);
    if (status == STATUS_OK && failed)
        status = status_fail(STATUS_INTERNAL, "%d of %d requests failed in the router", failed, options->n);
    if (status == STATUS_OK) *result_p = result;
    return status;
}
