// SPDX-License-Identifier: Apache-2.0
// Ranks the tokens of prompts for `forepack bench prefill-quality` without scoring them: by position, at random, by
// words (quality_bm25.c), or by the surprise of the small model.
#include <stdlib.h>

#include "bench/commands/quality.h"
#include "bench/perplexity.h"
#include "engine/block_manager.h"
#include "lib/base/clock.h"
#include "lib/base/random.h"

enum { LOGIT_ROWS = 256 }; // rows of a pass that has logits for all of them

// The small model with logits for all rows of a pass.
static enum status surprise_open(struct quality *q)
{
    int longest = 0;
    for (int i = 0; i < q->lengths.n; i++)
        if (q->lengths.count[i] > longest) longest = q->lengths.count[i];
    const struct model_options model = {.dir = q->flags->spec,
                                        .backend = q->flags->backend,
                                        .dtype = q->flags->dtype,
                                        .threads = (int)q->flags->threads,
                                        .max_rows = LOGIT_ROWS,
                                        .max_seqs = 1,
                                        .max_logit_rows = LOGIT_ROWS,
                                        .max_context = longest,
                                        .n_kv_blocks = kv_blocks_for(longest)};
    TRY(comm_open_self(&q->comm));
    return engine_open(&model, q->comm, &q->surprise);
}

void quality_ranks_close(struct quality *q)
{
    if (q->surprise) engine_close(q->surprise);
    if (q->comm) q->comm->ops->close(q->comm);
    sentence_table_free(&q->sentences);
}

// LLMLingua's rule (arXiv 2310.05736): tokens that the small model predicts badly carry information.
static enum status rank_by_surprise(struct quality *q, struct model_pair_prompt *p)
{
    if (!q->surprise) TRY(surprise_open(q));
    const struct perplexity_limits limits = {.rows = LOGIT_ROWS, .window = p->n, .stride = p->n};
    struct perplexity sum = {.each = p->importance};
    p->importance[0] = 0; // nothing predicts the first token
    return perplexity_add(q->surprise, &limits, p->tokens, p->n, 1, &sum);
}

static void rank_by_position(struct quality *q, enum quality_policy policy, int64_t number, struct model_pair_prompt *p,
                             int ranked)
{
    struct random_source random = random_stream(~(uint64_t)q->flags->seed, (uint64_t)number);
    for (int t = 0; t < ranked; t++)
        p->importance[t] = policy == QUALITY_RANDOM  ? (float)random_unit(&random)
                           : policy == QUALITY_FIRST ? (float)(ranked - t)
                           : policy == QUALITY_LAST  ? (float)t
                                                     : (float)abs(2 * t - (ranked - 1));
}

enum status quality_rank(struct quality *q, enum quality_policy policy, int chunk_tokens, int64_t number,
                         struct model_pair_prompt *p)
{
    const int64_t from_us = clock_now_us();
    const int ranked = q->flags->paper_exact ? p->n : p->n - p->tail_tokens;
    if (policy == QUALITY_BM25)
        TRY(quality_rank_bm25(q, p, chunk_tokens));
    else if (policy == QUALITY_PERPLEXITY)
        TRY(rank_by_surprise(q, p));
    else
        rank_by_position(q, policy, number, p, ranked);
    // The tail window is kept anyway, so it gets the lowest rank and uses no budget. These policies therefore keep at
    // least as many tokens as the other policies.
    for (int t = ranked; t < p->n; t++)
        p->importance[t] = -1;
    p->score_us = clock_now_us() - from_us;
    return STATUS_OK;
}
