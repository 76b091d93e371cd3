// SPDX-License-Identifier: Apache-2.0
#include "worker/pass_builder.h"

#include <limits.h>
#include <stdlib.h>

#include "lib/base/mem.h"

void scheduled_pass_init(struct scheduled_pass *pass, const struct batch_limits *limits)
{
    size_t logit_rows = (size_t)limits->logit_rows;
    *pass = (struct scheduled_pass){.number = 0};
    batch_builder_init(&pass->builder, limits);
    pass->parts = mem_alloc_array((size_t)limits->seqs, sizeof *pass->parts);
    pass->host_rows = mem_alloc_array(logit_rows, sizeof *pass->host_rows);
    pass->host_tokens = mem_alloc_array(logit_rows, sizeof *pass->host_tokens);
}

void scheduled_pass_fini(struct scheduled_pass *pass)
{
    batch_builder_fini(&pass->builder);
    free(pass->parts);
    free(pass->host_rows);
    free(pass->host_tokens);
}

void pass_builder_begin(struct pass_builder *b, struct scheduled_pass *pass, const struct pass_limits *limits)
{
    batch_builder_reset(&pass->builder);
    pass->number = limits->number;
    pass->n_host_rows = pass->prompt_rows = pass->draft_rows = 0;
    *b = (struct pass_builder){.pass = pass,
                               .config = limits->config,
                               .backend_samples = limits->backend_samples,
                               .rows_max = limits->rows,
                               .logit_rows_left = limits->spare_logit_rows,
                               .host_rows_left = INT_MAX};
    pace_budget_init(&b->budget, limits->pace);
}

static int min_int(int a, int b)
{
    return a < b ? a : b;
}

int pass_builder_rows_left(const struct pass_builder *b)
{
    return b->rows_max - b->pass->builder.batch.n_rows;
}

int pass_builder_prompt_rows(const struct pass_builder *b, const struct sequence *q, int entries)
{
    int rows = min_int(q->n_tokens - entries, pass_builder_rows_left(b));
    if (!sequence_wants_prompt_logprobs(q)) return rows;
    int without_logits = q->next_logprob - 1 > entries ? q->next_logprob - 1 - entries : 0;
    return min_int(rows,
                   without_logits + 1 + min_int(b->logit_rows_left, b->host_rows_left ? b->host_rows_left - 1 : 0));
}

bool pass_builder_contains(const struct pass_builder *b, const struct sequence *q)
{
    return q->last_pass == b->pass->number;
}

static bool backend_samples(const struct pass_builder *b, const struct sampler_context *context)
{
    return b->backend_samples && sampler_backend_can_sample(context);
}

bool pass_builder_host_samples(const struct pass_builder *b, const struct sequence *q)
{
    struct sampler_context context = sequence_sampler_context(q, b->config, 0);
    return !backend_samples(b, &context);
}

// ---- rows ----

// Requests the logits of the row added last.
static void want_logits(struct pass_builder *b, struct host_row row)
{
    struct scheduled_pass *pass = b->pass;
    batch_builder_want_logits(&pass->builder, pass->builder.batch.n_rows - 1);
    pass->host_rows[pass->n_host_rows++] = row;
    if (b->host_rows_left) b->host_rows_left--;
    if (b->backend_samples) pace_budget_add_sampled(&b->budget);
}

// Samples the token that follows the next `drafted` draft tokens, from the row added last.
static void want_token(struct pass_builder *b, struct pass_part *part, int drafted)
{
    struct batch_builder *batch = &b->pass->builder;
    struct sequence *q = part->sequence;
    struct sampler_context context = sequence_sampler_context(q, b->config, drafted);
    if (backend_samples(b, &context)) {
        struct row_sampling sampling = sampler_row_sampling(&context);
        batch_builder_want_token(batch, batch->batch.n_rows - 1, &sampling);
    } else {
        want_logits(b, (struct host_row){.sequence = q, .drafted = drafted});
        part->host_rows++;
        q->host_pass = b->pass->number;
    }
}

// Requests the logits of the row of token i, which predict prompt token i + 1. Has no effect if token i + 1 is not a
// prompt token, or if its log-probability has been reported already.
static void want_prompt_logprob(struct pass_builder *b, struct pass_part *part, int i)
{
    struct sequence *q = part->sequence;
    if (i + 1 < q->next_logprob || i + 1 >= q->n_kept) return;
    want_logits(b, (struct host_row){.sequence = q, .prompt_token = i + 1});
    part->logprobs++;
}

static void add_row(struct pass_builder *b, const struct sequence *q, int i)
{
    batch_builder_add_row(&b->pass->builder, q->tokens[i], q->positions[i]);
}

static void add_draft(struct pass_builder *b, struct pass_part *part)
{
    const struct sequence *q = part->sequence;
    for (int i = 0; i < part->drafts; i++) {
        add_row(b, q, q->n_tokens + i);
        want_token(b, part, i + 1);
    }
    b->logit_rows_left -= part->drafts;
    b->pass->draft_rows += part->drafts;
}

static struct pass_part *add_part(struct pass_builder *b, struct sequence *q)
{
    struct scheduled_pass *pass = b->pass;
    struct pass_part *part = &pass->parts[pass->builder.batch.n_seqs];
    *part = (struct pass_part){.sequence = q};
    batch_builder_add_sequence(&pass->builder, q->blocks, q->n_blocks, q->n_cached);
    batch_builder_set_rope_length(&pass->builder, q->rope_length);
    q->last_pass = pass->number;
    return part;
}

void pass_builder_add_rows(struct pass_builder *b, struct sequence *q, int n, int drafts)
{
    if (n == 0) return;
    bool is_complete = n == sequence_pending(q);
    struct pass_part *part = add_part(b, q);
    part->rows = n;
    part->drafts = is_complete ? drafts : 0;
    int of_prompt = q->n_kept - q->n_cached;
    if (of_prompt > 0) b->pass->prompt_rows += min_int(n, of_prompt);
    for (int i = q->n_cached; i < q->n_cached + n; i++) {
        add_row(b, q, i);
        want_prompt_logprob(b, part, i);
    }
    if (is_complete) want_token(b, part, 0);
    if (part->logprobs) b->logit_rows_left -= part->logprobs - !is_complete;
    add_draft(b, part);
}

// ---- half of what is left ----

struct pass_builder pass_builder_half(const struct pass_builder *b)
{
    struct pass_builder half = *b;
    half.rows_max -= pass_builder_rows_left(b) / 2;
    half.budget = pace_budget_half(&b->budget);
    return half;
}

void pass_builder_merge(struct pass_builder *b, const struct pass_builder *half)
{
    int rows_max = b->rows_max;
    struct pace_budget budget = b->budget;
    pace_budget_merge(&budget, &half->budget);
    *b = *half;
    b->rows_max = rows_max;
    b->budget = budget;
}

const struct ragged_batch *pass_builder_finish(struct pass_builder *b)
{
    b->pass->budget = b->budget;
    return batch_builder_finish(&b->pass->builder);
}
