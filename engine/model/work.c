// SPDX-License-Identifier: Apache-2.0
#include "engine/model/work.h"

struct work_model work_model_of(const struct model_config *c, double weight_bytes, double entry_bytes)
{
    double hidden = c->hidden, q = (double)c->n_heads * c->head_size, kv = (double)c->n_kv_heads * c->head_size;
    double attention = hidden * (q + 2 * kv) + q * hidden,
           mlp = layer_mlp_matrices(&c->layer) * hidden * c->intermediate;
    return (struct work_model){.layer_weights = c->n_layers * (attention + mlp),
                               .head_weights = hidden * c->vocab_size,
                               .attention_flop = c->n_layers * 4 * q,
                               .weight_bytes = weight_bytes,
                               .entry_bytes = entry_bytes};
}

struct work work_of(const struct work_model *m, const struct ragged_batch *batch)
{
    double pairs = (double)ragged_attention_pairs(batch), cached_entries = 0;
    for (int s = 0; s < batch->n_seqs; s++)
        cached_entries += batch->kv_len[s];
    double weights = m->layer_weights + (batch->n_logit_rows ? m->head_weights : 0);
    double multiply_adds = m->layer_weights * batch->n_rows + m->head_weights * batch->n_logit_rows;
    return (struct work){.linear_gflop = 2 * multiply_adds / 1e9,
                         .attention_gflop = pairs * m->attention_flop / 1e9,
                         .gbytes = (weights * m->weight_bytes + cached_entries * m->entry_bytes) / 1e9};
}

void work_add(struct work *sum, const struct work *more)
{
    sum->linear_gflop += more->linear_gflop;
    sum->attention_gflop += more->attention_gflop;
    sum->gbytes += more->gbytes;
}
