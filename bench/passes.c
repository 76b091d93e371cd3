// SPDX-License-Identifier: Apache-2.0
// See passes.h.
#include "bench/passes.h"

#include <assert.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/kv_pool.h"

struct passes {
    struct engine *engine;
    struct passes_limits limits;
    struct work_model work;
    int32_t *tokens; // [context] every sequence's
    int blocks_each; // KV blocks of one sequence
    struct ragged_batch batch;
    int32_t *token, *position, *row_start, *kv_len, *block_table, *logit_row; // its arrays
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
    passes_set_entries(p, 1);
    return p;
}

void passes_free(struct passes *p)
{
    if (!p) return;
    free(p->tokens);
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
    p->blocks_each = kv_blocks_for(entries);
}

// ---- one pass ----

static void start(struct passes *p)
{
    p->batch = (struct ragged_batch){.token = p->token,
                                     .position = p->position,
                                     .row_start = p->row_start,
                                     .kv_len = p->kv_len,
                                     .block_table = p->block_table,
                                     .max_blocks = p->blocks_each,
                                     .logit_row = p->logit_row,
                                     .probe_window = 1};
}

// `rows` rows of a sequence after `cached` entries.
static void add(struct passes *p, int seq, int cached, int rows, bool want_logits)
{
    struct ragged_batch *b = &p->batch;
    int s = b->n_seqs++;
    assert(s < p->limits.seqs && b->n_rows + rows <= p->limits.rows && cached + rows <= p->limits.context);
    assert(kv_blocks_for(cached + rows) <= p->blocks_each && (seq + 1) * p->blocks_each <= p->limits.kv_blocks);
    p->kv_len[s] = cached;
    p->row_start[s] = b->n_rows;
    for (int i = 0; i < p->blocks_each; i++)
        p->block_table[(size_t)s * (size_t)p->blocks_each + (size_t)i] = seq * p->blocks_each + i;
    for (int r = 0; r < rows; r++, b->n_rows++) {
        p->token[b->n_rows] = p->tokens[cached + r];
        p->position[b->n_rows] = cached + r;
    }
    p->row_start[s + 1] = b->n_rows;
    if (want_logits) p->logit_row[b->n_logit_rows++] = b->n_rows - 1;
}

static enum status run(struct passes *p, struct work *work_p)
{
    struct forward_result result;
    if (work_p) {
        struct work work = work_of(&p->work, &p->batch);
        work_add(work_p, &work);
    }
    return engine_forward(p->engine, &p->batch, &result);
}

// ---- runs of passes ----

enum status passes_prefill(struct passes *p, int first, int n, int tokens, struct work *work_p, double *seconds_p)
{
    int64_t from_us = clock_now_us();
    int seq = first, done = 0;
    while (seq < first + n) {
        start(p);
        while (seq < first + n && p->batch.n_rows < p->limits.rows) {
            int room = p->limits.rows - p->batch.n_rows, left = tokens - done, rows = left < room ? left : room;
            add(p, seq, done, rows, rows == left);
            done = rows == left ? 0 : done + rows;
            seq += rows == left;
        }
        enum status status = run(p, work_p);
        if (status != STATUS_OK) return status;
    }
    if (seconds_p) *seconds_p += (double)(clock_now_us() - from_us) / 1e6;
    return STATUS_OK;
}

enum status passes_decode(struct passes *p, int n, int context, int steps, struct work *work_p, double *seconds_p)
{
    int64_t from_us = clock_now_us();
    for (int step = 0; step < steps; step++) {
        start(p);
        for (int seq = 0; seq < n; seq++)
            add(p, seq, context + step, 1, true);
        enum status status = run(p, work_p);
        if (status != STATUS_OK) return status;
    }
    if (seconds_p) *seconds_p += (double)(clock_now_us() - from_us) / 1e6;
    return STATUS_OK;
}
