// SPDX-License-Identifier: Apache-2.0
#include "bench/passes.h"

#include <assert.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/block_manager.h"

struct passes {
    struct engine *engine;
    struct passes_limits limits;
    struct work_model work;
    int32_t *tokens;         // [context] the tokens of every sequence
    int blocks_per_sequence; // KV blocks
    struct ragged_batch batch;
    struct row_sampling *draw; // [seqs] greedy sampling parameters; NULL if the model returns logits instead of tokens
    int32_t *token, *position, *row_start, *kv_len, *block_table, *logit_row; // the arrays of `batch`
};

void passes_tokens(int32_t *tokens, int n, int vocab_size)
{
    uint64_t state = 1;
    for (int i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        tokens[i] = (int32_t)((state >> 33) % (uint64_t)vocab_size);
    }
}

struct passes *passes_create(struct engine *engine, const struct passes_limits *limits, const struct work_model *work)
{
    struct passes *p = mem_alloc(sizeof *p);
    *p = (struct passes){.engine = engine, .limits = *limits, .work = *work};
    size_t rows = (size_t)limits->rows, seqs = (size_t)limits->seqs;
    p->tokens = mem_alloc_array((size_t)limits->context, sizeof *p->tokens);
    passes_tokens(p->tokens, limits->context, model_get_config(engine_model(engine))->vocab_size);
    p->token = mem_alloc_array(rows, sizeof *p->token);
    p->position = mem_alloc_array(rows, sizeof *p->position);
    p->logit_row = mem_alloc_array(rows, sizeof *p->logit_row);
    p->row_start = mem_alloc_array(seqs + 1, sizeof *p->row_start);
    p->kv_len = mem_alloc_array(seqs, sizeof *p->kv_len);
    p->block_table = mem_alloc_array(seqs * (size_t)kv_blocks_for(limits->context), sizeof *p->block_table);
    if (model_samples(engine_model(engine))) p->draw = mem_alloc_array(seqs, sizeof *p->draw);
    for (size_t i = 0; p->draw && i < seqs; i++)
        p->draw[i].top_p = 1;
    passes_set_entries(p, 1);
    return p;
}

void passes_free(struct passes *p)
{
    if (!p) return;
    free(p->tokens);
    free(p->draw);
    free(p->token);
    free(p->position);
    free(p->logit_row);
    free(p->row_start);
    free(p->kv_len);
    free(p->block_table);
    free(p);
}

void passes_set_entries(struct passes *p, int entries)
{
    assert(entries <= p->limits.context);
    p->blocks_per_sequence = kv_blocks_for(entries);
}

// ---- one pass ----

static void passes_start_batch(struct passes *p, int max_blocks)
{
    p->batch = (struct ragged_batch){.token = p->token,
                                     .position = p->position,
                                     .row_start = p->row_start,
                                     .kv_len = p->kv_len,
                                     .block_table = p->block_table,
                                     .max_blocks = max_blocks,
                                     .logit_row = p->logit_row,
                                     .smoothing_window = 1};
}

// Adds `rows` rows of a sequence that has `cached` KV entries, in KV blocks from `first_block` on. The first `n` rows
// get `tokens`, the others are padding with token 0. Returns the number of the first row.
static int passes_add_rows(struct passes *p, const int32_t *tokens, int n, int first_block, int cached, int rows)
{
    struct ragged_batch *b = &p->batch;
    int s = b->n_seqs++, first = b->n_rows, blocks = kv_blocks_for(cached + rows);
    assert(s < p->limits.seqs && first + rows <= p->limits.rows && cached + rows <= p->limits.context);
    assert(blocks <= b->max_blocks && first_block + blocks <= p->limits.kv_blocks);
    p->kv_len[s] = cached;
    p->row_start[s] = first;
    for (int i = 0; i < blocks; i++)
        p->block_table[(size_t)s * (size_t)b->max_blocks + (size_t)i] = first_block + i;
    for (int r = 0; r < rows; r++, b->n_rows++) {
        p->token[b->n_rows] = r < n ? tokens[r] : 0;
        p->position[b->n_rows] = cached + r;
    }
    p->row_start[s + 1] = b->n_rows;
    return first;
}

static void passes_add_sequence(struct passes *p, int seq, int cached, int rows, bool want_logits)
{
    int first = passes_add_rows(p, p->tokens + cached, rows, seq * p->blocks_per_sequence, cached, rows);
    if (want_logits) p->logit_row[p->batch.n_logit_rows++] = first + rows - 1;
}

// Like a worker, asks for sampled tokens if the model can sample, else for logits.
static enum status passes_run_batch(struct passes *p, struct work *work_p, struct forward_result *result)
{
    p->batch.sampling = p->batch.n_logit_rows ? p->draw : NULL;
    p->batch.tokens_only = p->batch.sampling != NULL;
    if (work_p) {
        struct work work = work_of(&p->work, &p->batch);
        work_add(work_p, &work);
    }
    return engine_forward(p->engine, &p->batch, result);
}

// ---- runs of passes ----

enum status passes_prefill(struct passes *p, int first, int n, int tokens, struct work *work_p, double *seconds_p)
{
    struct forward_result result;
    int64_t from_us = clock_now_us();
    int seq = first, done = 0;
    while (seq < first + n) {
        passes_start_batch(p, p->blocks_per_sequence);
        while (seq < first + n && p->batch.n_rows < p->limits.rows) {
            int room = p->limits.rows - p->batch.n_rows, left = tokens - done, rows = left < room ? left : room;
            passes_add_sequence(p, seq, done, rows, rows == left);
            done = rows == left ? 0 : done + rows;
            seq += rows == left;
        }
        enum status status = passes_run_batch(p, work_p, &result);
        if (status != STATUS_OK) return status;
    }
    if (seconds_p) *seconds_p += (double)(clock_now_us() - from_us) / 1e6;
    return STATUS_OK;
}

enum status passes_decode(struct passes *p, int n, int context, int steps, struct work *work_p, double *seconds_p)
{
    struct forward_result result;
    int64_t from_us = clock_now_us();
    for (int step = 0; step < steps; step++) {
        passes_start_batch(p, p->blocks_per_sequence);
        for (int seq = 0; seq < n; seq++)
            passes_add_sequence(p, seq, context + step, 1, true);
        enum status status = passes_run_batch(p, work_p, &result);
        if (status != STATUS_OK) return status;
    }
    if (seconds_p) *seconds_p += (double)(clock_now_us() - from_us) / 1e6;
    return STATUS_OK;
}

enum status passes_prompts(struct passes *p, const struct passes_prompt *prompts, int n, int *block_p,
                           struct work *work_p, struct forward_result *result)
{
    int rows_max = 0;
    for (int i = 0; i < n; i++)
        if (prompts[i].rows > rows_max) rows_max = prompts[i].rows;
    passes_start_batch(p, kv_blocks_for(rows_max));
    for (int i = 0; i < n; i++) {
        int first = passes_add_rows(p, prompts[i].tokens, prompts[i].n, *block_p, 0, prompts[i].rows);
        p->logit_row[p->batch.n_logit_rows++] = first + prompts[i].n - 1;
        *block_p += kv_blocks_for(prompts[i].rows);
    }
    return passes_run_batch(p, work_p, result);
}
