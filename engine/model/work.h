// SPDX-License-Identifier: Apache-2.0
// The least work that a pass over a ragged batch requires, computed from the shape of the batch. Achieved rates are
// this work divided by the measured time. Norms, RoPE and softmax are not counted as work, but their time is measured.
#pragma once

#include "engine/model/model.h"

struct work {
    double linear_gflop;    // 10^9 FLOP: 2 * weights * rows; in the head only rows with logits
    double attention_gflop; // 10^9 FLOP of q k and p v: 4 * D * H per attention pair
    double gbytes;          // 10^9 bytes: every weight once, and the cached K and V of every sequence once
};

// Sizes of a model from which work_of() computes the work, summed over all ranks of a group.
struct work_model {
    double layer_weights; // weights in the matrices of all layers
    double head_weights;
    double attention_flop; // FLOP of one attention pair, in all layers
    double weight_bytes;   // bytes of one weight in the dtype of the computation
    double entry_bytes;    // bytes of one KV entry, in all layers
};

struct work_model work_model_of(const struct model_config *config, double weight_bytes, double entry_bytes);

struct work work_of(const struct work_model *model, const struct ragged_batch *batch);
void work_add(struct work *sum, const struct work *more);
static inline double work_gflop(const struct work *w)
{
    return w->linear_gflop + w->attention_gflop;
}
