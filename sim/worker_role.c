// SPDX-License-Identifier: Apache-2.0
// The worker group role, see role.h.
#include "sim/role.h"

#include <stdlib.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "sim/grammar.h"
#include "sim/oracle_group.h"
#include "sim/oracle_intake.h"
#include "sim/oracle_pace.h"
#include "sim/oracle_queue.h"
#include "sim/oracle_sequence.h"
#include "sim/pace_model.h"
#include "sim/pass_model.h"
#include "worker/service.h"

struct worker {
    struct service *service;
    struct pass_model pass;
    struct pace_watch pace;
    struct pace_model pace_model;
    struct draft_watch drafts;
    const struct engine *engine; // borrowed
    bool is_paced_by_rows;       // its passes take no time for sampling
    const char *problem;         // the problem of the last step
};

static void *worker_create(struct engine *engine, const struct scenario_node *plan, role_send_fn *send, void *node)
{
    struct scheduler_limits limits = {
        .token_budget = (int)plan->budget,
        .max_seqs = (int)plan->max_seqs,
        .context_tokens = (int)plan->context,
        .kv_blocks = (int)plan->kv_blocks,
        .prefix_cache = plan->prefix_cache,
        .pace_us = plan->itl_target_ms > 0   ? plan->itl_target_ms * 1000
                   : plan->itl_target_ms < 0 ? PACE_UNLIMITED
                                             : PACE_TWICE,
    };
    struct worker *worker = mem_alloc(sizeof *worker);
    worker->engine = engine;
    worker->is_paced_by_rows = !plan->sample_us;
    struct random_source random = random_stream((uint64_t)plan->kv_blocks, (uint64_t)plan->context);
    worker->problem = oracle_intake(&random, &limits, model_get_config(engine_model(engine))->vocab_size);
    if (!worker->problem) worker->problem = oracle_queue(&random);
    if (service_create(engine, &limits, send, node, &worker->service) != STATUS_OK) {
        free(worker);
        return NULL;
    }
    int vocab_size = model_get_config(engine_model(engine))->vocab_size;
    if (vocab_size <= SCENARIO_VOCAB_MAX) service_set_grammars(worker->service, sim_grammar_library(vocab_size), NULL);
    return worker;
}

static void worker_free(void *object)
{
    struct worker *worker = object;
    service_free(worker->service);
    pass_model_fini(&worker->pass);
    free(worker);
}

static void worker_handle(void *object, const Forepack__Cluster__V1__RouterMessage *message)
{
    service_handle(((struct worker *)object)->service, message);
}

static void worker_drop_all(void *object)
{
    service_drop_link(((struct worker *)object)->service, 0);
}

static bool worker_busy(const void *object)
{
    return service_busy(((const struct worker *)object)->service);
}

static const char *queue_check(const struct sequence_queue *queue)
{
    const struct sequence *previous = NULL;
    int n = 0;
    for (const struct sequence *q = queue->head; q; previous = q, q = q->next, n++)
        if (q->previous != previous) return "a waiting sequence is not linked to its predecessor";
    return queue->tail != previous || queue->n != n ? "the queue of waiting sequences lost some" : NULL;
}

// Returns what is wrong with the pass that took `us`, or NULL.
static const char *pass_check(struct worker *worker, int64_t us, bool is_predicted)
{
    const struct scheduler *s = service_scheduler(worker->service);
    const char *problem = NULL;
    if (worker->is_paced_by_rows && sim_engine_is_linear(worker->engine))
        problem = pace_watch_step(&worker->pace, s, worker->engine);
    if (!problem) problem = pace_model_step(&worker->pace_model, s, us, sim_engine_sampling_us(worker->engine));
    if (!problem && is_predicted) problem = pass_model_after(&worker->pass, s);
    return problem ? problem : draft_watch_step(&worker->drafts, s);
}

static enum status worker_step(void *object)
{
    struct worker *worker = object;
    const struct scheduler *s = service_scheduler(worker->service);
    uint64_t passes = s->n_passes;
    // Sequences that wait for their grammars may enter the queue during the step. Plans with the KV cache of a GPU have
    // no second opinion on each pass, which would read all blocks.
    bool is_predicted = s->held.n == 0 && sim_engine_is_linear(worker->engine);
    if (!worker->problem) worker->problem = oracle_group(s);
    if (is_predicted) pass_model_before(&worker->pass, s);
    int64_t begun_us = clock_now_us();
    enum status status = service_step(worker->service);
    bool has_run = status == STATUS_OK && s->n_passes > passes;
    if (has_run && !worker->problem) worker->problem = pass_check(worker, clock_now_us() - begun_us, is_predicted);
    if (!worker->problem) worker->problem = oracle_sequences(s);
    if (!worker->problem) worker->problem = queue_check(&s->queue);
    return status;
}

static struct role_load worker_load(const void *object)
{
    struct scheduler_load load = service_get_load(((const struct worker *)object)->service);
    return (struct role_load){.kv_blocks_free = load.kv_blocks_free, .running = load.running, .waiting = load.waiting};
}

// Checks that every block has one reference for each sequence that has it, and that all other blocks are free.
static const char *scheduler_check(const struct scheduler *s, int *refs)
{
    int referenced = 0;
    for (int i = 0; i < s->n_running; i++) {
        const struct sequence *q = s->running[i];
        if (q->n_cached > q->n_blocks * KV_BLOCK_TOKENS) return "a sequence has more entries than its blocks hold";
        if (q->n_cached >= q->n_tokens) return "a running sequence has no pending row";
        if (q->n_tokens > q->n_kept + q->sampling.max_tokens) return "a sequence is longer than max_tokens allow";
        for (int b = 0; b < q->n_blocks; b++)
            referenced += !refs[q->blocks[b]]++;
    }
    for (const struct sequence *q = s->queue.head; q; q = q->next)
        if (q->n_blocks) return "a waiting sequence holds KV blocks";
    for (int b = 0; b < s->limits.kv_blocks; b++)
        if (refs[b] != block_manager_refs(s->blocks, b))
            return "the references of a KV block differ from its sequences";
    if (block_manager_n_free(s->blocks) != s->limits.kv_blocks - referenced) return "KV blocks were lost";
    return s->n_running > s->limits.max_seqs ? "more sequences run than max_seqs" : NULL;
}

static const char *worker_check(const void *object)
{
    const struct worker *worker = object;
    if (worker->problem) return worker->problem;
    const struct scheduler *s = service_scheduler(worker->service);
    int *refs = mem_alloc_array((size_t)s->limits.kv_blocks, sizeof *refs);
    const char *problem = scheduler_check(s, refs);
    free(refs);
    return problem;
}

const struct role_ops worker_role = {worker_create, worker_free, worker_handle, worker_drop_all,
                                     worker_busy,   worker_step, worker_load,   worker_check};
