// SPDX-License-Identifier: Apache-2.0
#include "bench/perplexity.h"

#include <math.h>
#include <stdlib.h>

#include "engine/block_manager.h"
#include "lib/base/mem.h"

double perplexity_nats(const float *logits, int n, int32_t token)
{
    double largest = logits[0], sum = 0;
    for (int i = 1; i < n; i++)
        if ((double)logits[i] > largest) largest = logits[i];
    for (int i = 0; i < n; i++)
        sum += exp((double)logits[i] - largest);
    return largest + log(sum) - (double)logits[token];
}

// Arrays of a batch of one sequence.
struct perplexity_window {
    int32_t *position, *logit_row, *blocks;
};

// Runs one pass over the rows [first, first + rows) of a window `ids` [n]. Adds the tokens from `counted` on, each
// predicted by the row before it. `each` is NULL or [n], as in struct perplexity.
static enum status perplexity_add_chunk(struct engine *engine, const struct perplexity_window *w, const int32_t *ids,
                                        int n, int first, int rows, int counted, struct perplexity *sum, float *each)
{
    const int32_t row_start[2] = {0, rows}, cached = first;
    struct ragged_batch batch = {.n_rows = rows,
                                 .token = ids + first,
                                 .position = w->position + first,
                                 .n_seqs = 1,
                                 .row_start = row_start,
                                 .kv_len = &cached,
                                 .block_table = w->blocks,
                                 .max_blocks = kv_blocks_for(first + rows),
                                 .logit_row = w->logit_row,
                                 .smoothing_window = 1};
    int from = counted - 1 > first ? counted - 1 : first; // the row before the first counted token
    int end = first + rows < n ? first + rows : n - 1;    // the last token predicts no token of the window
    for (int i = from; i < end; i++)
        w->logit_row[batch.n_logit_rows++] = i - first;
    struct forward_result result;
    enum status status = engine_forward(engine, &batch, &result);
    int vocab = model_get_config(engine_model(engine))->vocab_size;
    for (int i = 0; i < batch.n_logit_rows && status == STATUS_OK; i++) {
        const double nats = perplexity_nats(result.logits + (size_t)i * (size_t)vocab, vocab, ids[from + i + 1]);
        sum->nats += nats;
        if (each) each[from + i + 1] = (float)nats;
        sum->tokens++;
    }
    return status;
}

enum status perplexity_add(struct engine *engine, const struct perplexity_limits *limits, const int32_t *ids, int n,
                           int first, struct perplexity *sum)
{
    size_t longest = (size_t)limits->window;
    struct perplexity_window w = {.position = mem_alloc_array(longest, sizeof *w.position),
                                  .logit_row = mem_alloc_array(longest, sizeof *w.logit_row),
                                  .blocks = mem_alloc_array((size_t)kv_blocks_for(limits->window), sizeof *w.blocks)};
    for (int i = 0; i < limits->window; i++)
        w.position[i] = i;
    for (int i = 0; i < kv_blocks_for(limits->window); i++)
        w.blocks[i] = i;
    enum status status = STATUS_OK;
    // `counted`: the first token that no window has counted yet.
    for (int start = 0, counted = first; counted < n && status == STATUS_OK; start += limits->stride) {
        int length = n - start < limits->window ? n - start : limits->window;
        if (start + length <= counted) continue;
        for (int at = 0; at < length && status == STATUS_OK; at += limits->rows) {
            int rows = length - at < limits->rows ? length - at : limits->rows;
            status = perplexity_add_chunk(engine, &w, ids + start, length, at, rows, counted - start, sum,
                                          sum->each ? sum->each + start : NULL);
        }
        counted = start + length;
    }
    free(w.position);
    free(w.logit_row);
    free(w.blocks);
    return status;
}
