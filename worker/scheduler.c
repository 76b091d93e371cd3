// SPDX-License-Identifier: Apache-2.0
// See scheduler.h. A step: compose a pass, run it, sample the next tokens, report them.
//
//     scheduler_add ──▶ queue ──start──▶ running ──finish──▶ reported, freed
//                         ▲                 │
//                         └─────preempt─────┘        cancel frees from either
//
// A sequence with a grammar is held before the queue until it has its matcher.
#include <stdio.h>
#include <stdlib.h>

#include "lib/base/clock.h"
#include "lib/base/invariant.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/no_alloc.h"
#include "lib/base/utf8.h"
#include "worker/scheduler_state.h"

enum { UNPACED_DRAFT = 8 };   // length of drafts while their time does not matter
enum { WAITING_MAX = 65536 }; // the router holds back its queue, so more than this is a fault

const char *sequence_finish_name(enum sequence_finish finish)
{
    static const char *const names[] = {"none", "stop", "length", "error"};
    return names[finish];
}

// ---- results of a pass ----

struct host_sampling {
    struct scheduler *scheduler;
    const float *logits;
};

// The tokens that the sequence's grammar allows next. llguidance allocates.
static enum status sequence_mask(struct sequence *q)
{
    int suspended = no_alloc_suspend();
    enum status status = grammar_matcher_mask(q->matcher, q->mask);
    no_alloc_resume(suspended);
    return status == STATUS_OK ? STATUS_OK : STATUS_EXHAUSTED;
}

static const float *host_row_logits(const struct host_sampling *sampling, int row)
{
    return sampling->logits + (size_t)row * (size_t)sampling->scheduler->config->vocab_size;
}

// Tells the sequence's grammar that output token `index` is `token`, which its mask allowed. False: llguidance failed.
static bool sequence_match(struct sequence *q, int index, int32_t token)
{
    if (!q->matcher || q->n_matched > index) return true;
    int suspended = no_alloc_suspend();
    bool ok = grammar_matcher_accept(q->matcher, &token, 1) == STATUS_OK;
    no_alloc_resume(suspended);
    q->n_matched += ok;
    return ok;
}

// Whether output token `index`, which was matched, completes the grammar.
static bool sequence_is_matched(const struct sequence *q, int index)
{
    return q->matcher && q->n_matched == index + 1 && grammar_matcher_is_complete(q->matcher);
}

static enum status host_row_sample(const struct host_sampling *sampling, int row, int thread)
{
    const struct scheduler *s = sampling->scheduler;
    const struct host_row *r = &s->host_rows[row];
    struct sampler_context context = pass_sampler_context(s, r->sequence, r->drafted);
    if (r->sequence->matcher) TRY(sequence_mask(r->sequence));
    return sampler_sample_token(s->samplers[thread], host_row_logits(sampling, row), &context, &s->host_tokens[row]);
}

// Whether the token sampled at logit row `row` is the drafted one that the next row belongs to.
static bool host_row_is_accepted(const struct scheduler *s, int row)
{
    const struct host_row *r = &s->host_rows[row], *next = r + 1;
    struct sequence *q = r->sequence;
    int32_t token = s->host_tokens[row].token;
    if (r->status != STATUS_OK || row + 1 == s->n_host_rows || next->sequence != q) return false;
    int index = sequence_generated(q) + r->drafted;
    return q->tokens[q->n_tokens + r->drafted] == token && sequence_match(q, index, token) &&
           !sequence_is_matched(q, index);
}

// Samples the rows of a sequence one after the other, until one yields another token than the drafted one: the masks of
// a grammar depend on the tokens before.
static void host_rows_sample(const struct host_sampling *sampling, int row, int thread)
{
    const struct scheduler *s = sampling->scheduler;
    do
        s->host_rows[row].status = host_row_sample(sampling, row, thread);
    while (host_row_is_accepted(s, row++));
}

// Samples the rows of one sequence, or rates the prompt token that the row predicts; `thread` has a sampler to itself.
static void host_row_read(void *arg, int row, int thread)
{
    const struct host_sampling *sampling = arg;
    const struct scheduler *s = sampling->scheduler;
    const struct host_row *r = &s->host_rows[row];
    if (r->drafted) return; // sampled behind the row before
    if (r->prompt_token) {
        const struct sequence *q = r->sequence;
        sampler_rate_token(s->samplers[thread], host_row_logits(sampling, row), q->tokens[r->prompt_token],
                           q->sampling.prompt_logprobs, &s->host_tokens[row]);
    } else {
        host_rows_sample(sampling, row, thread);
    }
}

// Reads all rows whose logits were returned, before the sequences advance. Returns the time of the rows that pacing
// counts.
static int64_t sample_on_host(struct scheduler *s, const struct forward_result *result)
{
    int n = s->n_host_rows;
    if (n == 0) return 0;
    int64_t begun_us = clock_now_us();
    struct host_sampling sampling = {s, result->logits};
    model_run_on_host(engine_model(s->engine), host_row_read, &sampling, n);
    s->host_sampled += (uint64_t)n;
    return s->backend_samples ? clock_now_us() - begun_us : 0;
}

// The token of logit row `row`, sampled by the backend or by the host.
static enum status sequence_next_token(struct scheduler *s, const struct sampler_context *context,
                                       const struct forward_result *result, int row, struct sampled_token *token_p)
{
    if (!pass_is_sampled_by_backend(s, context)) {
        *token_p = s->host_tokens[row];
        if (s->host_rows[row].status == STATUS_EXHAUSTED)
            return status_fail(STATUS_INTERNAL, "structured output: llguidance exceeded a limit at token %d",
                               context->n_output);
        return s->host_rows[row].status == STATUS_OK ? STATUS_OK : sampler_fail_no_token();
    }
    *token_p = (struct sampled_token){.token = result->tokens[row]};
    return token_p->token < 0 ? sampler_fail_no_token() : STATUS_OK;
}

static void log_first_token(const struct sequence *q)
{
    log_event(LOG_DEBUG, "prefill_done", LOG_REQUEST(q->id), LOG_FIELD("tokens", q->n_kept),
              LOG_FIELD("cached", q->n_reused), LOG_FIELD("blocks", q->n_blocks),
              LOG_MS("ms", clock_now_us() - q->added_us));
}

static void log_finish(const struct sequence *q, enum sequence_finish finish)
{
    log_event(LOG_DEBUG, "sequence_done", LOG_REQUEST(q->id), LOG_FIELD("finish", sequence_finish_name(finish)),
              LOG_FIELD("tokens", sequence_generated(q)), LOG_MS("ms", clock_now_us() - q->added_us));
}

// Appends a new token. True: it is the next drafted one.
static bool sequence_append(struct sequence *q, int32_t token)
{
    bool is_drafted = q->n_draft > 0 && q->tokens[q->n_tokens] == token;
    q->n_draft = is_drafted ? q->n_draft - 1 : 0;
    q->tokens[q->n_tokens++] = token;
    return is_drafted;
}

// Samples the next token of a sequence from logit row `row`. SEQUENCE_GOES_ON, or how it has ended. *is_drafted_p: the
// token is the next drafted one.
static enum sequence_finish sequence_advance(struct scheduler *s, struct sequence *q,
                                             const struct forward_result *result, int row, struct sequence_output *out,
                                             bool *is_drafted_p)
{
    struct sampler_context context = pass_sampler_context(s, q, 0);
    struct sampled_token token;
    *is_drafted_p = false;
    if (sequence_next_token(s, &context, result, row, &token) != STATUS_OK) {
        utf8_format(out->error, sizeof out->error, "%s", status_message());
        return SEQUENCE_ERROR;
    }
    if (sampler_stops(&q->sampling, context.eos, context.n_eos, token.token)) return SEQUENCE_STOP;
    int index = sequence_generated(q);
    if (!sequence_match(q, index, token.token)) {
        snprintf(out->error, sizeof out->error, "structured output: llguidance exceeded a limit after token %d", index);
        return SEQUENCE_ERROR;
    }
    *is_drafted_p = sequence_append(q, token.token);
    s->new_tokens[s->n_new_tokens++] = token;
    out->n_tokens++;
    if (sequence_is_matched(q, index)) return SEQUENCE_STOP;
    return sequence_generated(q) < q->sampling.max_tokens ? SEQUENCE_GOES_ON : SEQUENCE_LENGTH;
}

static int running_find(const struct scheduler *s, uint64_t id)
{
    for (int i = 0; i < s->n_running; i++)
        if (s->running[i]->id == id) return i;
    return -1;
}

// The logit rows of the next sequence of a pass.
struct logit_rows {
    int read, sampled; // the first one that the host reads, and the first one that the backend has sampled
};

// Samples the token behind the last pending row, then those behind draft rows as long as the tokens are the drafted
// ones, whose KV entries count then.
static enum sequence_finish sequence_advance_all(struct scheduler *s, struct sequence *q,
                                                 const struct forward_result *result, const struct logit_rows *rows,
                                                 struct sequence_output *out)
{
    for (int i = 0;; i++) {
        int row = i < q->pass_host_rows ? rows->read + i : rows->sampled + i - q->pass_host_rows;
        bool is_drafted;
        enum sequence_finish finish = sequence_advance(s, q, result, row, out, &is_drafted);
        if (!is_drafted || i == q->pass_drafts) return finish; // the last token may equal a drafted one without a row
        out->draft_accepted++;
        q->n_cached++;
        if (finish != SEQUENCE_GOES_ON) return finish;
    }
}

static void sequence_finish_step(struct scheduler *s, struct sequence *q, const struct forward_result *result,
                                 const struct logit_rows *rows, struct sequence_output *out)
{
    out->cached_tokens = q->reported_reused ? 0 : q->n_reused;
    out->tokens = s->new_tokens + s->n_new_tokens;
    out->has_logprobs = q->sampling.logprobs >= 0;
    out->drafted = q->pass_drafts;
    out->finish = sequence_advance_all(s, q, result, rows, out);
    s->draft_accepted += (uint64_t)out->draft_accepted;
    draft_pace_verified(&s->draft_pace, q->draft_from_lookup, q->pass_drafts, out->draft_accepted);
    admission_shrink(s, q);
    admission_publish(s, q);
    if (!q->reported_reused) log_first_token(q);
    q->reported_reused = true;
    if (out->finish == SEQUENCE_GOES_ON) return;
    log_finish(q, out->finish);
    admission_remove_running(s, running_find(s, q->id));
    admission_free_sequence(s, q);
}

// Reports the log-probabilities of prompt tokens in the sequence's rows of the pass, from logit row `row` on.
static void sequence_report_prompt(const struct scheduler *s, struct sequence *q, int row, struct sequence_output *out)
{
    out->prompt_logprobs = s->host_tokens + row;
    out->n_prompt_logprobs = q->pass_logprobs;
    out->prompt_logprobs_from = q->next_logprob;
    q->next_logprob += q->pass_logprobs;
}

// Advances the sequences of the pass and frees those that have ended. The outputs are in the order of the sequences; of
// the logit rows those whose logits are read come first (batch_builder.h).
static int apply_results(struct scheduler *s, const struct forward_result *result)
{
    const struct ragged_batch *batch = &s->builder.batch;
    struct logit_rows rows = {0, batch->n_logit_rows - batch->n_unread_rows};
    int n_outputs = 0;
    s->n_new_tokens = 0;
    for (int i = 0; i < s->builder.batch.n_seqs; i++) {
        struct sequence *q = s->batched[i];
        q->n_cached += q->pass_rows;
        admission_publish(s, q);
        struct sequence_output *out = &s->outputs[n_outputs];
        *out = (struct sequence_output){.id = q->id};
        if (q->pass_logprobs) sequence_report_prompt(s, q, rows.read, out);
        rows.read += q->pass_logprobs;
        bool is_complete = sequence_pending(q) == 0; // its prompt
        n_outputs += is_complete || q->pass_logprobs;
        if (!is_complete) continue;
        struct logit_rows mine = rows;
        rows.read += q->pass_host_rows;
        rows.sampled += 1 + q->pass_drafts - q->pass_host_rows;
        sequence_finish_step(s, q, result, &mine, out);
    }
    return n_outputs;
}

// ---- a step ----

static enum status run_pass(struct scheduler *s, int *n_outputs_p, int64_t *sampling_us_p)
{
    const struct ragged_batch *batch = pass_compose(s);
    INVARIANT(batch->n_rows > 0, "%d running and %d waiting sequences, but no rows", s->n_running, s->queue.n);
    struct forward_result result;
    TRY(engine_forward(s->engine, batch, &result));
    engine_sampling_begin(s->engine);
    *sampling_us_p = sample_on_host(s, &result);
    *n_outputs_p = apply_results(s, &result);
    engine_sampling_end(s->engine);
    return STATUS_OK;
}

enum status scheduler_step(struct scheduler *s)
{
    if (!scheduler_busy(s)) return STATUS_OK;
    int64_t begun_us = clock_now_us(), sampling_us = 0;
    int n_outputs = 0;
    no_alloc_begin("scheduler_step");
    enum status status = run_pass(s, &n_outputs, &sampling_us);
    no_alloc_end();
    if (status != STATUS_OK) return status;
    const struct ragged_batch *batch = &s->builder.batch;
    struct step_report report = {.outputs = s->outputs,
                                 .n_outputs = n_outputs,
                                 .rows = batch->n_rows,
                                 .pairs = ragged_attention_pairs(batch),
                                 .step_us = clock_now_us() - begun_us};
    int draft_rows = batch->n_rows - batch->n_seqs; // without prompt rows
    if (s->pace.work == 0)
        draft_pace_pass_end(&s->draft_pace, batch->n_seqs, draft_rows, s->n_new_tokens, report.step_us);
    pace_sampling_end(&s->pace, sampling_us);
    if (s->pace.work > 0 || !draft_rows) pace_pass_end(&s->pace, report.step_us - sampling_us);
    report.draft_length = scheduler_draft_length(s);
    s->report(s->arg, &report);
    return STATUS_OK;
}

// ---- sequences ----

// Where the sequence waits; NULL: it does not.
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
    if (running_find(s, request->id) >= 0 || waiting_find(s, request->id)) {
        return status_fail(STATUS_INVALID, "request %016llx is already at this group", (unsigned long long)request->id);
    }
    struct sequence_limits limits = {s->config->vocab_size, s->limits.context_tokens, s->limits.kv_blocks};
    struct sequence *q;
    TRY(sequence_create(request, &limits, &q));
    if (sequence_set_draft(q, 0, request->draft, request->n_draft, s->config) != STATUS_OK)
        log_event(LOG_WARN, "draft_refused", LOG_REQUEST(q->id), LOG_REASON);
    sequence_queue_push_back(q->sampling.grammar.kind == GRAMMAR_NONE ? &s->queue : &s->held, q);
    return STATUS_OK;
}

// The sequence in any state; NULL: there is none.
static struct sequence *scheduler_find(struct scheduler *s, uint64_t id)
{
    int running = running_find(s, id);
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

int scheduler_draft_length(const struct scheduler *s)
{
    int decodes = 0;
    for (int i = 0; i < s->n_running; i++)
        decodes += sequence_pending(s->running[i]) == 1;
    bool is_paced = s->limits.pace_us != PACE_UNLIMITED;
    return is_paced ? draft_pace_length(&s->draft_pace, decodes) : UNPACED_DRAFT;
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
    int index = running_find(s, id);
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

static void clear_queue(struct scheduler *s, struct sequence_queue *queue)
{
    while (queue->head) {
        struct sequence *q = queue->head;
        sequence_queue_remove(queue, q);
        admission_free_sequence(s, q);
    }
}

void scheduler_clear(struct scheduler *s)
{
    while (s->n_running)
        admission_free_sequence(s, s->running[--s->n_running]);
    clear_queue(s, &s->queue);
    clear_queue(s, &s->held);
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

// ---- the scheduler ----

static enum status check_limits(const struct scheduler_limits *limits, const struct model *model)
{
    if (limits->max_seqs < 1 || limits->max_seqs > limits->token_budget) {
        return status_fail(
            STATUS_INVALID,
            "max-num-seqs %d: must be 1 to max-num-batched-tokens (%d), each running sequence needs a row",
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
    batch_builder_init(&s->builder, &batch_limits);
    size_t seqs = (size_t)limits->max_seqs;
    s->running = mem_alloc_array(seqs, sizeof *s->running);
    s->batched = mem_alloc_array(seqs, sizeof *s->batched);
    s->outputs = mem_alloc_array(seqs, sizeof *s->outputs);
    s->host_rows = mem_alloc_array(logit_rows, sizeof *s->host_rows);
    s->host_tokens = mem_alloc_array(logit_rows, sizeof *s->host_tokens);
    s->new_tokens = mem_alloc_array(logit_rows, sizeof *s->new_tokens);
    *scheduler_p = s;
    return STATUS_OK;
}

void scheduler_free(struct scheduler *s)
{
    scheduler_clear(s);
    block_manager_free(s->blocks);
    for (int i = 0; i < s->n_samplers; i++)
        sampler_free(s->samplers[i]);
    free(s->samplers);
    batch_builder_fini(&s->builder);
    free(s->running);
    free(s->batched);
    free(s->outputs);
    free(s->host_rows);
    free(s->host_tokens);
    free(s->new_tokens);
    free(s);
}
