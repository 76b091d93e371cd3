// SPDX-License-Identifier: Apache-2.0
// See scheduler.h.
//
//     add ──▶ queue ──begin──▶ running ──finish──▶ reported, freed
//               ▲                 │
//               └────preempt──────┘        cancel frees from either
#include "worker/scheduler.h"

#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/no_alloc.h"
#include "worker/pace.h"

enum { WAITING_MAX = 65536 }; // the router keeps its queue to itself: this many at a group is a fault somewhere

struct scheduler {
    struct engine *engine; // borrowed
    const struct model_config *config;
    struct scheduler_limits limits;
    scheduler_report_fn *report;
    void *arg;
    struct block_manager *pool;
    struct sampler *sampler;

    struct sequence *head, *tail; // the queue
    int n_waiting;
    struct sequence **running; // [max_seqs] in the order they were begun
    int n_running;
    uint64_t preemptions, prompt_rows, reused_rows;
    struct pace pace;

    // The pass being made.
    struct ragged_batch batch;
    int rows_most;                   // of it, for now
    int32_t *token, *position;       // [token_budget]
    int32_t *row_start;              // [max_seqs + 1]
    int32_t *kv_len, *logit_row;     // [max_seqs]
    struct row_sampling *draw;       // [max_seqs] of the logit rows
    bool samples;                    // the model draws tokens itself
    bool some_drawn, some_read;      // of the pass: rows whose token it draws, rows whose logits it hands out
    int32_t *block_table;            // [max_seqs][blocks of the longest sequence there can be]
    struct sequence **batched;       // [max_seqs] whose rows they are
    struct sequence_output *outputs; // [max_seqs]
};

// ---- queue and blocks ----

static void queue_push_back(struct scheduler *s, struct sequence *q)
{
    q->previous = s->tail;
    q->next = NULL;
    *(s->tail ? &s->tail->next : &s->head) = q;
    s->tail = q;
    s->n_waiting++;
}

static void queue_push_front(struct scheduler *s, struct sequence *q)
{
    q->previous = NULL;
    q->next = s->head;
    *(s->head ? &s->head->previous : &s->tail) = q;
    s->head = q;
    s->n_waiting++;
}

static void queue_remove(struct scheduler *s, struct sequence *q)
{
    *(q->previous ? &q->previous->next : &s->head) = q->next;
    *(q->next ? &q->next->previous : &s->tail) = q->previous;
    s->n_waiting--;
}

static void give_blocks(struct scheduler *s, struct sequence *q)
{
    block_manager_release(s->pool, q->blocks, q->n_blocks);
    q->n_blocks = q->n_published = 0;
    q->n_cached = 0;
    q->chain = 0;
    q->cut = false;
}

static bool take_blocks(struct scheduler *s, struct sequence *q, int entries)
{
    int more = kv_blocks_for(entries) - q->n_blocks;
    if (more <= 0) return true;
    if (!block_manager_allocate(s->pool, more, q->blocks + q->n_blocks)) return false;
    q->n_blocks += more;
    return true;
}

static void running_remove(struct scheduler *s, int index)
{
    s->n_running--;
    memmove(s->running + index, s->running + index + 1, (size_t)(s->n_running - index) * sizeof *s->running);
}

static void release(struct scheduler *s, struct sequence *q)
{
    give_blocks(s, q);
    sequence_free(q);
}

// ---- who takes part in a step ----

// Tokens that would have to be computed again: those in blocks that nobody else holds.
static int tokens_lost(const struct scheduler *s, const struct sequence *q)
{
    int shared = 0;
    while (shared < q->n_published && block_manager_refs(s->pool, q->blocks[shared]) > 1)
        shared++;
    return q->n_cached - shared * KV_BLOCK_TOKENS;
}

// The running sequence that loses fewest tokens, of equals the one begun last. One that loses none would give nothing.
static int choose_victim(const struct scheduler *s)
{
    int victim = 0, fewest = INT_MAX;
    for (int i = 0; i < s->n_running; i++) {
        int lost = tokens_lost(s, s->running[i]);
        if (lost == 0 || lost > fewest) continue;
        fewest = lost;
        victim = i;
    }
    return victim;
}

static void preempt(struct scheduler *s, int index)
{
    struct sequence *q = s->running[index];
    log_debug("preempted req=%llu cached=%d blocks=%d", (unsigned long long)q->id, q->n_cached, q->n_blocks);
    running_remove(s, index);
    give_blocks(s, q);
    queue_push_front(s, q);
    s->preemptions++;
}

// A block for every sequence that is about to grow into one. Before any row is laid out, since it may take sequences
// out of the step. Those that still prefill have all their blocks from the start.
static void grow_all(struct scheduler *s)
{
    for (int i = 0; i < s->n_running;) {
        struct sequence *q = s->running[i];
        if (take_blocks(s, q, q->n_cached + 1)) {
            i++;
            continue;
        }
        // Alone it always fits: sequence_create saw to that.
        assert(s->n_running > 1);
        int victim = choose_victim(s);
        preempt(s, victim);
        if (victim < i) i--;
    }
}

// Blocks that the sequence is expected to hold in the end: most texts end long before max_tokens.
static int expected_blocks(const struct sequence *q)
{
    int left = kv_blocks_for(q->sampling.max_tokens - sequence_generated(q)), most = sequence_blocks_most(q);
    int expected = kv_blocks_for(q->n_tokens) + (left + 3) / 4;
    return expected < most ? expected : most;
}

// Free blocks that the running ones are expected to grow into: at least the next one.
static int promised_blocks(const struct scheduler *s)
{
    int promised = 0;
    for (int i = 0; i < s->n_running; i++) {
        const struct sequence *q = s->running[i];
        int more = expected_blocks(q) - q->n_blocks;
        if (more < 1) more = q->n_blocks < sequence_blocks_most(q);
        promised += more;
    }
    return promised;
}

static int known_blocks(const struct scheduler *s, struct sequence *q)
{
    struct kv_text text = sequence_text(q);
    return kv_prefix_look(s->pool, &text, &q->known);
}

// Somebody is about to compute blocks that the sequence could then take from the prefix cache.
static bool waits_for_prefix(const struct scheduler *s, struct sequence *q)
{
    if (!s->limits.prefix_cache) return false;
    struct kv_text mine = sequence_text(q);
    int known = known_blocks(s, q);
    for (int i = 0; i < s->n_running; i++) {
        struct kv_text other = sequence_text(s->running[i]);
        if (kv_prefix_worth_waiting(&mine, known, &other, s->running[i]->n_published)) return true;
    }
    return false;
}

static void hold_prefix(struct scheduler *s, struct sequence *q)
{
    struct kv_text text = sequence_text(q);
    if (s->limits.prefix_cache) q->n_blocks = q->n_published = kv_prefix_take(s->pool, &text, q->blocks, &q->chain);
    q->n_cached = q->n_blocks * KV_BLOCK_TOKENS;
}

// Takes it from the queue to the running ones, if there is memory for it; see scheduler.h.
static bool begin(struct scheduler *s, struct sequence *q)
{
    if (s->n_running == s->limits.max_seqs) return false;
    hold_prefix(s, q); // before counting: what is held is not free
    if (expected_blocks(q) - q->n_blocks + promised_blocks(s) > block_manager_n_free(s->pool)) {
        give_blocks(s, q);
        return false;
    }
    bool taken = take_blocks(s, q, q->n_tokens);
    assert(taken);
    (void)taken;
    if (!q->begun) q->n_reused = q->n_cached < q->n_kept ? q->n_cached : q->n_kept;
    q->begun = true;
    s->reused_rows += (uint64_t)q->n_cached;
    queue_remove(s, q);
    s->running[s->n_running++] = q;
    return true;
}

// What the sequence has filled is there for others; of what two computed at the same time one copy stays.
static void publish(struct scheduler *s, struct sequence *q)
{
    struct kv_text text = sequence_text(q);
    if (s->limits.prefix_cache) kv_prefix_publish(s->pool, &text, q->n_cached, q->blocks, &q->n_published, &q->chain);
}

// ---- the batch ----

static int room(const struct scheduler *s)
{
    return s->rows_most - s->batch.n_rows;
}

// What the sequence's next token depends on beside its logits.
static struct sampler_context context_of(const struct scheduler *s, const struct sequence *q)
{
    return (struct sampler_context){
        .sampling = &q->sampling,
        .eos = s->config->eos_id,
        .n_eos = s->config->n_eos,
        .prompt = q->penalty_ids ? q->penalty_ids : q->tokens,
        .n_prompt = q->penalty_ids ? q->n_penalty_ids : q->n_kept,
        .output = q->tokens + q->n_kept,
        .n_output = sequence_generated(q),
    };
}

// Whether the model draws the sequence's token, where it can: a matter of the request alone, not of its company.
static bool is_drawn(const struct scheduler *s, const struct sampler_context *context)
{
    return s->samples && sampler_draws(context);
}

// The sequence's token is due: after row `row`.
static void add_logit_row(struct scheduler *s, const struct sequence *q, int row)
{
    struct sampler_context context = context_of(s, q);
    bool drawn = is_drawn(s, &context);
    *(drawn ? &s->some_drawn : &s->some_read) = true;
    s->draw[s->batch.n_logit_rows] = drawn ? sampler_row_sampling(&context) : (struct row_sampling){.top_p = 1};
    s->logit_row[s->batch.n_logit_rows++] = row;
}

// Lays out the sequence's next n rows.
static void add_rows(struct scheduler *s, struct sequence *q, int n)
{
    struct ragged_batch *b = &s->batch;
    q->step_rows = n;
    if (n == 0) return;
    int of_prompt = q->n_kept - q->n_cached;
    if (of_prompt > 0) s->prompt_rows += (uint64_t)(n < of_prompt ? n : of_prompt);
    s->row_start[b->n_seqs] = b->n_rows;
    s->kv_len[b->n_seqs] = q->n_cached;
    s->batched[b->n_seqs++] = q;
    for (int i = q->n_cached; i < q->n_cached + n; i++) {
        s->token[b->n_rows] = q->tokens[i];
        s->position[b->n_rows++] = q->positions[i];
    }
    if (n == sequence_pending(q)) add_logit_row(s, q, b->n_rows - 1);
    if (q->n_blocks > b->max_blocks) b->max_blocks = q->n_blocks;
}

// As many rows of a prompt as this pass has room for and nobody is kept waiting too long by.
static void add_prompt_rows(struct scheduler *s, struct sequence *q)
{
    int pending = sequence_pending(q), most = pending < room(s) ? pending : room(s);
    int n = pace_take(&s->pace, q->n_cached, most, most == pending && !q->cut);
    if (n > 0 && n < pending) q->cut = true;
    add_rows(s, q, n);
}

// The prompt that was begun first of those not finished; NULL: none.
static struct sequence *oldest_prompt(const struct scheduler *s)
{
    for (int i = 0; i < s->n_running; i++)
        if (sequence_pending(s->running[i]) > 1) return s->running[i];
    return NULL;
}

static bool fits_now(const struct scheduler *s, const struct sequence *q, int entries)
{
    int pending = q->n_tokens - entries;
    return pending <= room(s) && pace_allows(&s->pace, entries, pending, !q->cut);
}

// Begun if need be: the prompt with the fewest rows left, fewer than `longest`, of those without rows in this pass.
static struct sequence *begin_shortest(struct scheduler *s, const struct sequence *longest)
{
    int least = sequence_pending(longest);
    struct sequence *best = NULL, *waiting = NULL;
    for (int i = 0; i < s->n_running; i++) {
        struct sequence *q = s->running[i];
        if (sequence_pending(q) == 1 || q->step_rows > 0 || sequence_pending(q) >= least) continue;
        least = sequence_pending(q);
        best = q;
    }
    for (struct sequence *q = s->head; q; q = q->next) {
        if (sequence_pending(q) >= least || waits_for_prefix(s, q)) continue;
        least = sequence_pending(q);
        waiting = q;
    }
    return waiting && begin(s, waiting) ? waiting : best;
}

// In half of what this pass has for prompts, before one that it cannot finish: those that it can, then part of the
// shortest.
static void add_short_prompts(struct scheduler *s, const struct sequence *longest)
{
    if (fits_now(s, longest, longest->n_cached)) return;
    double withheld = pace_withhold_half(&s->pace);
    s->rows_most -= room(s) / 2;
    for (int i = 0; i < s->n_running; i++) {
        struct sequence *q = s->running[i];
        if (sequence_pending(q) > 1 && q != longest && fits_now(s, q, q->n_cached)) add_prompt_rows(s, q);
    }
    for (struct sequence *q = s->head, *next; q; q = next) {
        next = q->next;
        int known = s->limits.prefix_cache ? KV_BLOCK_TOKENS * known_blocks(s, q) : 0;
        if (!fits_now(s, q, known) || waits_for_prefix(s, q)) continue;
        if (!begin(s, q)) break;
        add_prompt_rows(s, q);
    }
    struct sequence *shortest = room(s) > 0 && pace_open(&s->pace, false) ? begin_shortest(s, longest) : NULL;
    if (shortest) add_prompt_rows(s, shortest);
    s->rows_most = s->limits.token_budget;
    pace_give_back(&s->pace, withheld);
}

// The queue in order, but for those who wait for a prefix.
static void begin_waiting(struct scheduler *s)
{
    for (struct sequence *q = s->head, *next; q && room(s) > 0; q = next) {
        next = q->next;
        if (!pace_open(&s->pace, q->n_tokens <= room(s)) || waits_for_prefix(s, q)) continue;
        if (!begin(s, q)) return;
        add_prompt_rows(s, q);
    }
}

// Rows of the table are as long as the longest sequence of this step, so that short ones travel in few bytes.
static void lay_out_blocks(struct scheduler *s)
{
    for (int i = 0; i < s->batch.n_seqs; i++) {
        const struct sequence *q = s->batched[i];
        int32_t *row = s->block_table + (size_t)i * (size_t)s->batch.max_blocks;
        memcpy(row, q->blocks, (size_t)q->n_blocks * sizeof *row);
        memset(row + q->n_blocks, 0, (size_t)(s->batch.max_blocks - q->n_blocks) * sizeof *row);
    }
}

static void make_batch(struct scheduler *s)
{
    s->batch = (struct ragged_batch){
        .token = s->token,
        .position = s->position,
        .row_start = s->row_start,
        .kv_len = s->kv_len,
        .block_table = s->block_table,
        .logit_row = s->logit_row,
        .smoothing_window = 1,
    };
    s->some_drawn = s->some_read = false;
    grow_all(s);
    s->rows_most = s->limits.token_budget;
    for (int i = 0; i < s->n_running; i++)
        s->running[i]->step_rows = 0;
    for (int i = 0; i < s->n_running; i++) // decodes first: a long prompt must not delay the next token of all others
        if (sequence_pending(s->running[i]) == 1) add_rows(s, s->running[i], 1);
    pace_begin(&s->pace, s->batch.n_rows);
    const struct sequence *oldest = oldest_prompt(s);
    if (oldest) add_short_prompts(s, oldest);
    for (int i = 0; i < s->n_running; i++) {
        struct sequence *q = s->running[i];
        if (sequence_pending(q) > 1 && q->step_rows == 0) add_prompt_rows(s, q);
    }
    begin_waiting(s);
    s->row_start[s->batch.n_seqs] = s->batch.n_rows;
    s->batch.sampling = s->some_drawn ? s->draw : NULL;
    s->batch.tokens_only = s->some_drawn && !s->some_read;
    lay_out_blocks(s);
}

// ---- what comes of it ----

// The token of logit row `row`, as drawn by the model or from the logits that it handed out.
static enum status choose_token(struct scheduler *s, const struct sampler_context *context,
                                const struct forward_result *result, int row, struct sampled_token *token_p)
{
    if (!is_drawn(s, context))
        return sampler_pick(s->sampler, result->logits + (size_t)row * (size_t)s->config->vocab_size, context, token_p);
    *token_p = (struct sampled_token){.token = result->tokens[row]};
    return token_p->token < 0 ? sampler_fail_none() : STATUS_OK;
}

// The next token of a sequence whose rows are all fed; tells whether the sequence has ended.
static bool take_token(struct scheduler *s, struct sequence *q, const struct forward_result *result, int row,
                       struct sequence_output *out)
{
    *out = (struct sequence_output){.id = q->id, .cached_tokens = q->told_reused ? 0 : q->n_reused};
    q->told_reused = true;
    struct sampler_context context = context_of(s, q);
    if (choose_token(s, &context, result, row, &out->token) != STATUS_OK) {
        out->finish = SEQUENCE_ERROR;
        snprintf(out->error, sizeof out->error, "%s", status_message());
        return true;
    }
    if (sampler_stops(&q->sampling, context.eos, context.n_eos, out->token.token)) {
        out->finish = SEQUENCE_STOP;
        return true;
    }
    out->has_token = true;
    out->has_logprob = q->sampling.logprobs >= 0;
    q->tokens[q->n_tokens++] = out->token.token;
    if (sequence_generated(q) < q->sampling.max_tokens) return false;
    out->finish = SEQUENCE_LENGTH;
    return true;
}

// Moves everybody on and frees who has ended; the outputs stand in the order of the logits.
static int take_results(struct scheduler *s, const struct forward_result *result)
{
    int n_outputs = 0;
    for (int i = 0; i < s->batch.n_seqs; i++) {
        struct sequence *q = s->batched[i];
        q->n_cached += q->step_rows;
        publish(s, q);
        if (sequence_pending(q) > 0) continue; // more of the prompt to come
        int row = n_outputs++;
        if (take_token(s, q, result, row, &s->outputs[row])) {
            int index = 0;
            while (s->running[index] != q)
                index++;
            running_remove(s, index);
            release(s, q);
        }
    }
    return n_outputs;
}

// ---- public ----

static enum status check_limits(const struct scheduler_limits *limits, const struct model *model)
{
    if (limits->max_seqs < 1 || limits->max_seqs > limits->token_budget) {
        return status_fail(
            STATUS_INVALID,
            "max-num-seqs %d: must be from 1 to max-num-batched-tokens (%d), a row for each that decodes",
            limits->max_seqs, limits->token_budget);
    }
    if (limits->kv_blocks < 1 || limits->kv_blocks > model_kv_blocks(model)) {
        return status_fail(STATUS_INVALID, "kv-blocks %d: must be from 1 to the model's %d", limits->kv_blocks,
                           model_kv_blocks(model));
    }
    if (limits->context_tokens < 2) {
        return status_fail(STATUS_INVALID, "a context of %d tokens: must be 2 or more", limits->context_tokens);
    }
    return STATUS_OK;
}

enum status scheduler_create(struct engine *engine, const struct scheduler_limits *limits, scheduler_report_fn *report,
                             void *arg, struct scheduler **scheduler_p)
{
    const struct model *model = engine_model(engine);
    enum status status = check_limits(limits, model);
    if (status != STATUS_OK) return status;
    struct scheduler *s = mem_alloc(sizeof *s);
    s->engine = engine;
    s->config = model_get_config(model);
    s->limits = *limits;
    s->report = report;
    s->arg = arg;
    s->pool = block_manager_create(limits->kv_blocks);
    s->sampler = sampler_create(s->config->vocab_size);
    pace_init(&s->pace, s->config, limits->pace_us);

    size_t rows = (size_t)limits->token_budget, seqs = (size_t)limits->max_seqs;
    int blocks = kv_blocks_for(limits->context_tokens);
    if (blocks > limits->kv_blocks) blocks = limits->kv_blocks;
    s->running = mem_alloc_array(seqs, sizeof *s->running);
    s->batched = mem_alloc_array(seqs, sizeof *s->batched);
    s->outputs = mem_alloc_array(seqs, sizeof *s->outputs);
    s->token = mem_alloc_array(rows, sizeof *s->token);
    s->position = mem_alloc_array(rows, sizeof *s->position);
    s->row_start = mem_alloc_array(seqs + 1, sizeof *s->row_start);
    s->kv_len = mem_alloc_array(seqs, sizeof *s->kv_len);
    s->logit_row = mem_alloc_array(seqs, sizeof *s->logit_row);
    s->draw = mem_alloc_array(seqs, sizeof *s->draw);
    s->samples = model_samples(model);
    s->block_table = mem_alloc_array(seqs * (size_t)blocks, sizeof *s->block_table);
    *scheduler_p = s;
    return STATUS_OK;
}

void scheduler_free(struct scheduler *s)
{
    scheduler_clear(s);
    block_manager_free(s->pool);
    sampler_free(s->sampler);
    free(s->running);
    free(s->batched);
    free(s->outputs);
    free(s->token);
    free(s->position);
    free(s->row_start);
    free(s->kv_len);
    free(s->logit_row);
    free(s->draw);
    free(s->block_table);
    free(s);
}

static struct sequence *find_waiting(const struct scheduler *s, uint64_t id)
{
    struct sequence *q = s->head;
    while (q && q->id != id)
        q = q->next;
    return q;
}

static int find_running(const struct scheduler *s, uint64_t id)
{
    for (int i = 0; i < s->n_running; i++)
        if (s->running[i]->id == id) return i;
    return -1;
}

enum status scheduler_add(struct scheduler *s, const struct sequence_request *request)
{
    if (s->n_waiting >= WAITING_MAX) {
        return status_fail(STATUS_EXHAUSTED, "%d sequences wait at this group already", s->n_waiting);
    }
    if (find_waiting(s, request->id) || find_running(s, request->id) >= 0) {
        return status_fail(STATUS_INVALID, "sequence %llu is here already", (unsigned long long)request->id);
    }
    struct sequence_limits limits = {s->config->vocab_size, s->limits.context_tokens, s->limits.kv_blocks};
    struct sequence *q;
    enum status status = sequence_create(request, &limits, &q);
    if (status == STATUS_OK) queue_push_back(s, q);
    return status;
}

bool scheduler_cancel(struct scheduler *s, uint64_t id)
{
    int index = find_running(s, id);
    struct sequence *q = index >= 0 ? s->running[index] : find_waiting(s, id);
    if (!q) return false;
    if (index >= 0) {
        running_remove(s, index);
    } else {
        queue_remove(s, q);
    }
    release(s, q);
    return true;
}

void scheduler_clear(struct scheduler *s)
{
    while (s->n_running)
        release(s, s->running[--s->n_running]);
    while (s->head) {
        struct sequence *q = s->head;
        queue_remove(s, q);
        release(s, q);
    }
}

bool scheduler_busy(const struct scheduler *s)
{
    return s->n_running > 0 || s->n_waiting > 0;
}

static enum status pass(struct scheduler *s, int *n_outputs_p)
{
    make_batch(s);
    assert(s->batch.n_rows > 0);
    struct forward_result result;
    enum status status = engine_forward(s->engine, &s->batch, &result);
    if (status == STATUS_OK) *n_outputs_p = take_results(s, &result);
    return status;
}

enum status scheduler_step(struct scheduler *s)
{
    if (!scheduler_busy(s)) return STATUS_OK;
    int64_t begun_us = clock_now_us();
    int n_outputs = 0;
    no_alloc_begin("scheduler_step");
    enum status status = pass(s, &n_outputs);
    no_alloc_end();
    if (status != STATUS_OK) return status;
    struct step_report report = {.outputs = s->outputs,
                                 .n_outputs = n_outputs,
                                 .rows = s->batch.n_rows,
                                 .pairs = ragged_attention_pairs(&s->batch),
                                 .step_us = clock_now_us() - begun_us};
    pace_end(&s->pace, report.step_us);
    s->report(s->arg, &report);
    return STATUS_OK;
}

struct scheduler_load scheduler_get_load(const struct scheduler *s)
{
    return (struct scheduler_load){s->n_running,   s->n_waiting,   block_manager_n_free(s->pool),
                                   s->preemptions, s->prompt_rows, s->reused_rows};
}
