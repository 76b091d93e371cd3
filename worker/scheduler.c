// SPDX-License-Identifier: Apache-2.0
// A step: compose a pass, run it, sample the next tokens, report them.
//
//     scheduler_add ──▶ queue ──start──▶ running ──finish──▶ reported, freed
//                         ▲                 │
//                         └─────preempt─────┘        cancel frees from either
//
// A sequence with a grammar joins the queue when it has its matcher. Until then, it is held.
#include <stdio.h>
#include <stdlib.h>

#include "lib/base/clock.h"
#include "lib/base/invariant.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/no_alloc.h"
#include "worker/scheduler_state.h"

enum { UNPACED_DRAFT = 8 };   // length of drafts with PACE_UNLIMITED
enum { WAITING_MAX = 65536 }; // the router has its own queue, so more waiting sequences are a fault

// ---- a step ----

static enum status run_pass(struct scheduler *s, struct scheduled_pass *pass, int *n_outputs_p, int64_t *sampling_us_p)
{
    const struct ragged_batch *batch = pass_compose(s, pass);
    INVARIANT(batch->n_rows > 0, "%d running and %d waiting sequences, but no rows", s->n_running, s->queue.n);
    struct forward_result result;
    TRY(engine_forward(s->engine, batch, &result));
    engine_sampling_begin(s->engine);
    *sampling_us_p = pass_sample_on_host(s, pass, &result);
    *n_outputs_p = pass_apply_results(s, pass, &result);
    engine_sampling_end(s->engine);
    return STATUS_OK;
}

// Learns from a pass that took `us`, including `sampling_us` for sampling on the host.
static void learn_times(struct scheduler *s, const struct scheduled_pass *pass, int64_t us, int64_t sampling_us)
{
    const struct ragged_batch *batch = &pass->builder.batch;
    const struct pace_rows *rows = &pass->budget.rows;
    bool has_prompts = rows->work > 0;
    int draft_rows = batch->n_rows - batch->n_seqs; // if the pass has no prompt rows
    if (!has_prompts) draft_pace_pass_end(&s->draft_pace, batch->n_seqs, draft_rows, s->n_new_tokens, us);
    pace_sampling_end(&s->pace, rows, sampling_us);
    if (has_prompts || !draft_rows) pace_pass_end(&s->pace, rows, us - sampling_us);
}

// Returns how many draft tokens per sequence the next passes would verify.
static int draft_length(const struct scheduler *s)
{
    int decodes = 0;
    for (int i = 0; i < s->n_running; i++)
        decodes += sequence_pending(s->running[i]) == 1 && !s->running[i]->is_paused;
    bool is_paced = s->limits.pace_us != PACE_UNLIMITED;
    return is_paced ? draft_pace_length(&s->draft_pace, decodes) : UNPACED_DRAFT;
}

enum status scheduler_step(struct scheduler *s)
{
    if (!scheduler_busy(s)) return STATUS_OK;
    int64_t begun_us = clock_now_us(), sampling_us = 0;
    int n_outputs = 0;
    no_alloc_begin("scheduler_step");
    enum status status = run_pass(s, &s->pass, &n_outputs, &sampling_us);
    no_alloc_end();
    if (status != STATUS_OK) return status;
    const struct ragged_batch *batch = &s->pass.builder.batch;
    struct step_report report = {.outputs = s->outputs,
                                 .n_outputs = n_outputs,
                                 .rows = batch->n_rows,
                                 .pairs = ragged_attention_pairs(batch),
                                 .step_us = clock_now_us() - begun_us};
    learn_times(s, &s->pass, report.step_us, sampling_us);
    report.draft_length = draft_length(s);
    s->report(s->arg, &report);
    return STATUS_OK;
}

// ---- sequences ----

// Returns the queue in which the sequence waits, or NULL.
static struct sequence_queue *waiting_find(struct scheduler *s, uint64_t id)
{
    if (sequence_queue_find(&s->queue, id)) return &s->queue;
    return sequence_queue_find(&s->held, id) ? &s->held : NULL;
}

enum status scheduler_add(struct scheduler *s, const struct sequence_request *request)
{
    int waiting = s->queue.n + s->held.n;
    if (waiting >= WAITING_MAX) {
        return status_fail(STATUS_EXHAUSTED, "%d sequences wait at this group: the limit is reached", waiting);
    }
    if (admission_find_running(s, request->id) >= 0 || waiting_find(s, request->id)) {
        return status_fail(STATUS_INVALID, "request %016llx is already at this group", (unsigned long long)request->id);
    }
    struct sequence_limits limits = {s->config->vocab_size, s->limits.context_tokens, s->limits.kv_blocks,
                                     &s->config->rope};
    struct sequence *q;
    TRY(sequence_create(request, &limits, &q));
    if (sequence_set_draft(q, 0, request->draft, request->n_draft, s->config) != STATUS_OK)
        log_event(LOG_WARN, "draft_refused", LOG_REQUEST(q->id), LOG_REASON);
    sequence_queue_push_back(q->sampling.grammar.kind == GRAMMAR_NONE ? &s->queue : &s->held, q);
    s->n_of_link[link_id_link(q->id) % NODE_LINKS_MAX]++;
    return STATUS_OK;
}

// Returns the sequence in any state, or NULL.
static struct sequence *scheduler_find(struct scheduler *s, uint64_t id)
{
    int running = admission_find_running(s, id);
    if (running >= 0) return s->running[running];
    struct sequence_queue *queue = waiting_find(s, id);
    return queue ? sequence_queue_find(queue, id) : NULL;
}

enum status scheduler_set_draft(struct scheduler *s, uint64_t id, int from, const int32_t *tokens, int n)
{
    struct sequence *q = scheduler_find(s, id);
    if (!q)
        return status_fail(STATUS_NOT_FOUND, "draft for request %016llx: it is not at this group",
                           (unsigned long long)id);
    if (q->n_draft && q->draft_from_lookup && draft_pace_prefers_lookup(&s->draft_pace)) return STATUS_OK;
    return sequence_set_draft(q, from, tokens, n, s->config);
}

void scheduler_set_matcher(struct scheduler *s, uint64_t id, struct grammar_matcher *matcher)
{
    struct sequence *q = sequence_queue_find(&s->held, id);
    INVARIANT(q, "no sequence %016llx waits for its matcher", (unsigned long long)id);
    sequence_set_matcher(q, matcher);
    sequence_queue_remove(&s->held, q);
    sequence_queue_push_back(&s->queue, q);
}

bool scheduler_cancel(struct scheduler *s, uint64_t id)
{
    int index = admission_find_running(s, id);
    struct sequence_queue *queue = index >= 0 ? NULL : waiting_find(s, id);
    if (index < 0 && !queue) return false;
    struct sequence *q = index >= 0 ? s->running[index] : sequence_queue_find(queue, id);
    log_event(LOG_DEBUG, "sequence_cancelled", LOG_REQUEST(id), LOG_FIELD("tokens", sequence_generated(q)));
    if (index >= 0) {
        admission_remove_running(s, index);
    } else {
        sequence_queue_remove(queue, q);
    }
    admission_free_sequence(s, q);
    return true;
}

static void queue_drop_link(struct scheduler *s, struct sequence_queue *queue, int link)
{
    for (struct sequence *q = queue->head, *next; q; q = next) {
        next = q->next;
        if (link_id_link(q->id) != link) continue;
        sequence_queue_remove(queue, q);
        admission_free_sequence(s, q);
    }
}

void scheduler_drop_link(struct scheduler *s, int link)
{
    for (int i = s->n_running - 1; i >= 0; i--) {
        struct sequence *q = s->running[i];
        if (link_id_link(q->id) != link) continue;
        admission_remove_running(s, i);
        admission_free_sequence(s, q);
    }
    queue_drop_link(s, &s->queue, link);
    queue_drop_link(s, &s->held, link);
}

bool scheduler_find_held(const struct scheduler *s, int link, uint64_t *id_p)
{
    const struct sequence *q = s->held.head;
    while (q && link_id_link(q->id) != link)
        q = q->next;
    if (q) *id_p = q->id;
    return q;
}

bool scheduler_busy(const struct scheduler *s)
{
    return s->n_running > 0 || s->queue.n > 0;
}

bool scheduler_holds(const struct scheduler *s)
{
    return s->held.n > 0;
}

struct scheduler_load scheduler_get_load(const struct scheduler *s)
{
    return (struct scheduler_load){s->n_running,     s->queue.n + s->held.n, block_manager_n_free(s->blocks),
                                   s->most_running,  s->preemptions,         s->prompt_rows,
                                   s->reused_rows,   s->host_sampled,        s->drafted,
                                   s->draft_accepted};
}

void scheduler_count_links(const struct scheduler *s, struct link_load *links)
{
    for (int i = 0; i < NODE_LINKS_MAX; i++)
        links[i] = (struct link_load){0, s->n_of_link[i]};
    for (int i = 0; i < s->n_running; i++) {
        struct link_load *load = &links[link_id_link(s->running[i]->id) % NODE_LINKS_MAX];
        load->running++;
        load->waiting--;
    }
}

// ---- the scheduler ----

static enum status check_limits(const struct scheduler_limits *limits, const struct model *model)
{
    if (limits->max_seqs < 1 || limits->max_seqs > limits->token_budget) {
        return status_fail(
            STATUS_INVALID,
            "max-num-seqs %d: must be 1 to max-num-batched-tokens (%d), because each running sequence needs a row",
            limits->max_seqs, limits->token_budget);
    }
    if (limits->kv_blocks < 1 || limits->kv_blocks > model_kv_blocks(model)) {
        return status_fail(STATUS_INVALID, "kv-blocks %d: must be 1 to the model's %d", limits->kv_blocks,
                           model_kv_blocks(model));
    }
    if (limits->max_seqs > model_max_logit_rows(model)) {
        return status_fail(STATUS_INVALID, "max-num-seqs %d: must be at most the model's logit rows (%d)",
                           limits->max_seqs, model_max_logit_rows(model));
    }
    if (limits->context_tokens < 2) {
        return status_fail(STATUS_INVALID, "context of %d tokens: must be 2 or more", limits->context_tokens);
    }
    return STATUS_OK;
}

static struct batch_limits batch_limits_of(const struct scheduler_limits *limits, int logit_rows)
{
    int blocks = kv_blocks_for(limits->context_tokens);
    return (struct batch_limits){.rows = limits->token_budget,
                                 .seqs = limits->max_seqs,
                                 .seq_blocks = blocks < limits->kv_blocks ? blocks : limits->kv_blocks,
                                 .logit_rows = logit_rows};
}

enum status scheduler_create(struct engine *engine, const struct scheduler_limits *limits, scheduler_report_fn *report,
                             void *arg, struct scheduler **scheduler_p)
{
    const struct model *model = engine_model(engine);
    TRY(check_limits(limits, model));
    struct scheduler *s = mem_alloc(sizeof *s);
    s->engine = engine;
    s->config = model_get_config(model);
    s->limits = *limits;
    s->report = report;
    s->arg = arg;
    s->blocks = block_manager_create(limits->kv_blocks);
    s->n_samplers = model_host_threads(model);
    s->samplers = mem_alloc_array((size_t)s->n_samplers, sizeof *s->samplers);
    for (int i = 0; i < s->n_samplers; i++)
        s->samplers[i] = sampler_create(s->config->vocab_size);
    s->backend_samples = model_samples(model);
    pace_init(&s->pace, s->config, limits->pace_us);
    draft_pace_init(&s->draft_pace);
    size_t logit_rows = (size_t)model_max_logit_rows(model);
    struct batch_limits batch_limits = batch_limits_of(limits, (int)logit_rows);
    scheduled_pass_init(&s->pass, &batch_limits);
    size_t seqs = (size_t)limits->max_seqs;
    s->running = mem_alloc_array(seqs, sizeof *s->running);
    s->outputs = mem_alloc_array(seqs, sizeof *s->outputs);
    s->new_tokens = mem_alloc_array(logit_rows, sizeof *s->new_tokens);
    *scheduler_p = s;
    return STATUS_OK;
}

static void clear_queue(struct scheduler *s, struct sequence_queue *queue)
{
    while (queue->head) {
        struct sequence *q = queue->head;
        sequence_queue_remove(queue, q);
        admission_free_sequence(s, q);
    }
}

void scheduler_free(struct scheduler *s)
{
    while (s->n_running)
        admission_free_sequence(s, s->running[--s->n_running]);
    clear_queue(s, &s->queue);
    clear_queue(s, &s->held);
    block_manager_free(s->blocks);
    for (int i = 0; i < s->n_samplers; i++)
        sampler_free(s->samplers[i]);
    free(s->samplers);
    scheduled_pass_fini(&s->pass);
    free(s->running);
    free(s->outputs);
    free(s->new_tokens);
    free(s);
}
