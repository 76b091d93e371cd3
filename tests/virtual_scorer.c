// SPDX-License-Identifier: Apache-2.0
#include "tests/virtual_scorer.h"

#include <check.h>
#include <stdlib.h>
#include <time.h>

#include "lib/base/mem.h"
#include "speculator/scorer.h"

enum { VOCAB = 1000 };

const struct pass_time virtual_scorer_time = {8000, 27, 0.002};
int64_t virtual_now_us = 1000000;

static const struct model_config config = {.n_layers = 32,
                                           .hidden = 4096,
                                           .intermediate = 14336,
                                           .n_heads = 32,
                                           .n_kv_heads = 8,
                                           .head_size = 128,
                                           .vocab_size = VOCAB,
                                           .bos_id = -1};
static struct scorer *scorer;
static struct virtual_pass last;
static float logits[VIRTUAL_SEQS * VOCAB], *importance;

int clock_gettime(clockid_t id, struct timespec *time)
{
    *time = (struct timespec){virtual_now_us / 1000000, virtual_now_us % 1000000 * 1000};
    return 0;
}

double pass_time_us(const struct pass_time *t, double passes, double rows, double pairs)
{
    return t->fixed_us * passes + t->row_us * rows + t->pair_us * pairs;
}

static enum status fake_forward(void *context, const struct ragged_batch *batch, struct forward_result *result)
{
    last.rows = batch->n_rows;
    last.pairs = ragged_attention_pairs(batch);
    last.us = (int64_t)pass_time_us(&virtual_scorer_time, 1, batch->n_rows, (double)last.pairs);
    virtual_now_us += last.us;
    *result = (struct forward_result){.logits = logits, .importance = importance};
    return STATUS_OK;
}

static void take_result(void *context, const struct score_result *result)
{
    ck_assert_msg(!result->error, "%s", result->error);
    last.answered[last.n_answered++] = result->request;
}

void virtual_scorer_start(void)
{
    struct scorer_model model = {.config = &config,
                                 .token_budget = VIRTUAL_BUDGET,
                                 .max_seqs = VIRTUAL_SEQS,
                                 .context_tokens = VIRTUAL_CONTEXT,
                                 .kv_blocks = VIRTUAL_KV_BLOCKS,
                                 .forward = fake_forward};
    importance = mem_alloc_array(VIRTUAL_CONTEXT + VIRTUAL_SEQS * VIRTUAL_BUDGET, sizeof *importance);
    scorer = scorer_create(&model, take_result, NULL);
}

void virtual_scorer_stop(void)
{
    scorer_free(scorer);
    free(importance);
}

void virtual_scorer_add(uint64_t request, const int32_t *tokens, int n, const struct prefill *prefill)
{
    scorer_add(scorer, &(struct score_item){.request = request, .tokens = tokens, .n = n, .prefill = *prefill});
}

const struct virtual_pass *virtual_scorer_step(void)
{
    last = (struct virtual_pass){.rows = 0};
    ck_assert_int_eq(scorer_step(scorer), STATUS_OK);
    return &last;
}
