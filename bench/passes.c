// SPDX-License-Identifier: Apache-2.0
#include "bench/passes.h"

#include <stdlib.h>

#include "engine/batch_builder.h"
#include "engine/block_manager.h"
#include "lib/base/clock.h"
#include "lib/base/invariant.h"
#include "lib/base/mem.h"

struct passes {
    struct engine *engine;
    struct passes_limits limits;
    struct work_model work;
    int32_t *tokens;         // [context] the tokens of every sequence
    int32_t *block_numbers;  // [kv_blocks] 0, 1, 2, ...: a sequence has consecutive KV blocks
    int blocks_per_sequence; // KV blocks
    bool samples;            // the backend samples tokens; otherwise its logits are read
    struct batch_builder builder;
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
    p->tokens = mem_alloc_array((size_t)limits->context, sizeof *p->tokens);
    passes_tokens(p->tokens, limits->context, model_get_config(engine_model(engine))->vocab_size);
    p->block_numbers = mem_alloc_array((size_t)limits->kv_blocks, sizeof *p->block_numbers);
    for (int i = 0; i < limits->kv_blocks; i++)
        p->block_numbers[i] = i;
    p->samples = model_samples(engine_model(engine));
    const struct batch_limits batch = {.rows = limits->rows,
                                       .seqs = limits->seqs,
                                       .seq_blocks = kv_blocks_for(limits->context),
                                       .logit_rows = limits->seqs};
    batch_builder_init(&p->builder, &batch);
    passes_set_entries(p, 1);
    return p;
}

void passes_free(struct passes *p)
{
    if (!p) return;
    free(p->tokens);
    free(p->block_numbers);
    batch_builder_fini(&p->builder);
    free(p);
}

void passes_set_entries(struct passes *p, int entries)
{
    INVARIANT(entries <= p->limits.context, "%d entries, the context has %d", entries, p->limits.context);
    p->blocks_per_sequence = kv_blocks_for(entries);
}

// ---- one pass ----

// Adds `rows` rows of a sequence with `cached` KV entries and `n_blocks` KV blocks from `first_block` on. The first `n`
// rows have `tokens`, the rest are padding with token 0. Returns the number of the first row.
static int passes_add_rows(struct passes *p, const int32_t *tokens, int n, int first_block, int n_blocks, int cached,
                           int rows)
{
    INVARIANT(cached + rows <= n_blocks * KV_BLOCK_TOKENS && first_block + n_blocks <= p->limits.kv_blocks,
              "%d entries in %d blocks from %d of %d", cached + rows, n_blocks, first_block, p->limits.kv_blocks);
    int first = p->builder.batch.n_rows;
    batch_builder_add_sequence(&p->builder, p->block_numbers + first_block, n_blocks, cached);
    for (int r = 0; r < rows; r++)
        batch_builder_add_row(&p->builder, r < n ? tokens[r] : 0, cached + r);
    return first;
}

// Asks for a sampled token if the backend can sample, else for logits, like a worker.
static void passes_want_token(struct passes *p, int row)
{
    const struct row_sampling greedy = batch_greedy();
    if (p->samples)
        batch_builder_want_token(&p->builder, row, &greedy);
    else
        batch_builder_want_logits(&p->builder, row);
}

static void passes_add_sequence(struct passes *p, int seq, int cached, int rows, bool want_token)
{
    int n_blocks = p->blocks_per_sequence;
    int first = passes_add_rows(p, p->tokens + cached, rows, seq * n_blocks, n_blocks, cached, rows);
    if (want_token) passes_want_token(p, first + rows - 1);
}

static enum status passes_run_batch(struct passes *p, struct work *work_p, struct forward_result *result)
{
    const struct ragged_batch *batch = batch_builder_finish(&p->builder);
    if (work_p) {
        struct work work = work_of(&p->work, batch);
        work_add(work_p, &work);
    }
    return engine_forward(p->engine, batch, result);
}

// ---- runs of passes ----

enum status passes_prefill(struct passes *p, int first, int n, int tokens, struct work *work_p, double *seconds_p)
{
    struct forward_result result;
    int64_t from_us = clock_now_us();
    int seq = first, done = 0;
    while (seq < first + n) {
        batch_builder_reset(&p->builder);
        while (seq < first + n && p->builder.batch.n_rows < p->limits.rows) {
            int room = p->limits.rows - p->builder.batch.n_rows, left = tokens - done, rows = left < room ? left : room;
            passes_add_sequence(p, seq, done, rows, rows == left);
            done = rows == left ? 0 : done + rows;
            seq += rows == left;
        }
        TRY(passes_run_batch(p, work_p, &result));
    }
    if (seconds_p) *seconds_p += (double)(clock_now_us() - from_us) / 1e6;
    return STATUS_OK;
}

enum status passes_continue(struct passes *p, int seq, int cached, int tokens, struct work *work_p, double *seconds_p)
{
    struct forward_result result;
    int64_t from_us = clock_now_us();
    batch_builder_reset(&p->builder);
    passes_add_sequence(p, seq, cached, tokens, true);
    TRY(passes_run_batch(p, work_p, &result));
    if (seconds_p) *seconds_p += (double)(clock_now_us() - from_us) / 1e6;
    return STATUS_OK;
}

enum status passes_decode(struct passes *p, int n, int context, int steps, struct work *work_p, double *seconds_p)
{
    struct forward_result result;
    int64_t from_us = clock_now_us();
    for (int step = 0; step < steps; step++) {
        batch_builder_reset(&p->builder);
        for (int seq = 0; seq < n; seq++)
            passes_add_sequence(p, seq, context + step, 1, true);
        TRY(passes_run_batch(p, work_p, &result));
    }
    if (seconds_p) *seconds_p += (double)(clock_now_us() - from_us) / 1e6;
    return STATUS_OK;
}

enum status passes_prompts(struct passes *p, const struct passes_prompt *prompts, int n, int *block_p,
                           struct work *work_p, struct forward_result *result)
{
    batch_builder_reset(&p->builder);
    for (int i = 0; i < n; i++) {
        const struct passes_prompt *prompt = &prompts[i];
        int n_blocks = kv_blocks_for(prompt->rows);
        int first = passes_add_rows(p, prompt->tokens, prompt->n, *block_p, n_blocks, 0, prompt->rows);
        passes_want_token(p, first + prompt->n - 1);
        *block_p += n_blocks;
    }
    return passes_run_batch(p, work_p, result);
}
