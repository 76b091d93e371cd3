// SPDX-License-Identifier: Apache-2.0
// The time of a pass on a device, computed from the shape of the model and the work of the pass. The planner and the
// simulator use it. Weights and arithmetic count by their type, decode counts the K and V that it reads, and groups
// count their sums over ranks. Plain data: no allocation.
//
// Each gemm takes the longer of reading its weights and its arithmetic. The same holds for the attention of each
// sequence: reading its K and V, or the products of its rows with them.
//
// In a pipeline a pass occupies the stages one after another, and each stage computes another pass meanwhile. So the
// time of a pass is that of the stage that takes longest; its latency is the time of all stages and of the transfers.
#pragma once

#include "engine/model/device_rates.h"
#include "kernels/ragged.h"
#include "lib/text/config.h"

struct pass_options {
    int ranks;               // of a stage
    int stages;              // of the pipeline; 0 or 1: one stage
    const int *stage_layers; // [stages] from stages_divide(); NULL with one stage
    enum rate_type type;     // of weights; matrices that a quantised checkpoint excludes are bf16
    double kv_bytes;         // of one element of K and V: 2 or 1
    bool fp8_fast_accum;     // see --fp8-fast-accum
    int overlap_rows;        // passes of at least twice these rows sum while they compute; 0: never
};

// A model on a device: the data from which pass_cost_of() computes.
struct pass_shape {
    struct device_rates device;
    int layers, ranks, overlap_rows;
    int stages, longest_layers, last_layers; // layers of the longest stage before the last one, and of the last one
    double hidden;
    // Shares of one rank, if it had all layers.
    double layer_weights[RATE_TYPES], layer_bytes[RATE_TYPES]; // of all layers
    double head_weights, head_bytes;
    double entry_bytes; // of one KV entry in all layers
    double pair_flop;   // of one attention pair in all layers
    double attention_share;
    double arithmetic_share[RATE_TYPES];
};

// The work of a pass.
struct pass_work {
    double rows, logit_rows;
    double attention_us, kv_us; // time of the attention of all sequences; its part that is limited by reading
};

// Parts of the time of a pass. weights_us sums the gemms that reading weights limits, and arithmetic_us
// the gemms that arithmetic limits.
struct pass_parts {
    double weights_us, arithmetic_us, attention_us, sums_us, launch_us;
    double total_us;    // without the host's time between two passes; in a pipeline of the stage that takes longest
    double latency_us;  // of all stages, with the transfers between them
    double transfer_us; // of one transfer
};

// Finds the type of weights for a --dtype, "auto" included. Returns false if the text names none.
bool pass_type_parse(const char *dtype, const struct model_config *config, enum rate_type *type_p);

// Creates the model of a configuration. FP8 weights become bf16 on a device without FP8.
struct pass_shape pass_shape_of(const struct model_config *config, const struct device_rates *device,
                                const struct pass_options *options);

// Returns the most bytes that one rank reads in a pass with logits, without K and V.
double pass_shape_weight_bytes(const struct pass_shape *m);

// Adds `n` sequences of `rows` rows after `cached` KV entries each. Each has one logit row if `has_logits`.
void pass_work_add(struct pass_work *work, const struct pass_shape *m, double n, double rows, double cached,
                   bool has_logits);

struct pass_parts pass_cost_of(const struct pass_shape *m, const struct pass_work *work);

// Returns the share of time for which a stage waits, if all stages take the time of this decode pass and each sequence
// is in every P-th pass: a token goes back to the first stage before the next pass of its sequences begins.
double pass_decode_bubble(const struct pass_shape *m, const struct pass_parts *pass);

double pass_cost_batch_us(const struct pass_shape *m, const struct ragged_batch *batch);
