// SPDX-License-Identifier: Apache-2.0
// What a pass over a ragged batch has to do at least, counted from its shape alone: the numerator of every "achieved"
// figure. Norms, RoPE and softmax are not counted; they cost time that counts against us.
#pragma once

#include "model/model.h"

struct work {
    double linear_gflop;    // 10^9: 2 * weights * rows; of the head only the rows whose logits are wanted
    double attention_gflop; // 10^9: q k and p v, 4 * D * H for each entry that a row attends to
    double gbytes;          // 10^9: every weight once, and the cached K and V of every sequence once
};

// Whole-group figures: of all ranks together.
struct work_model {
    double layer_weights; // of all layers' matrices
    double head_weights;
    double attention_flop; // of one row and one entry, all layers
    double weight_bytes;   // of one weight as computed with
    double entry_bytes;    // of one KV entry, all layers
};

struct work_model work_model_of(const struct model_config *config, double weight_bytes, double entry_bytes);

struct work work_of(const struct work_model *model, const struct ragged_batch *batch);
void work_add(struct work *sum, const struct work *more);
static inline double work_gflop(const struct work *w)
{
    return w->linear_gflop + w->attention_gflop;
}
