// SPDX-License-Identifier: Apache-2.0
// The load that a worker group or a speculator can carry, from the time of its passes in a steady state: each pass has
// the decode rows of all running sequences and the prompt rows that arrived since the last pass. Queueing is
// not counted, so the result is an upper limit. In a pipeline, each stage computes another pass at the same time, and
// the passes share the running sequences evenly.
#pragma once

#include "engine/model/pass_cost.h"

struct capacity_load {
    double prompt_tokens; // that a prompt keeps in the KV cache, without generated tokens
    double cached_tokens; // of these, restored from the prefix cache
    double output_tokens;
};

struct capacity_node {
    struct pass_shape shape;
    double max_seqs, kv_tokens, token_budget;
    double pass_us; // longest pass with decode and prompt rows; 0: twice the time of its decode rows
};

// The first limit that a growing rate reaches.
enum capacity_limit { CAPACITY_SEQUENCES, CAPACITY_KV, CAPACITY_BUDGET, CAPACITY_PASS, CAPACITY_LIMITS };
const char *capacity_limit_text(enum capacity_limit limit);

struct capacity {
    double rate; // requests/s
    enum capacity_limit limit;
    double sequences;        // that run at this rate
    double itl_us;           // time between two tokens of a sequence: of one pass in each stage
    double bubble;           // share of this time for which a stage waits
    struct pass_parts parts; // of a pass at this rate
};

struct capacity capacity_of(const struct capacity_node *node, const struct capacity_load *load);

// Returns the time of the whole prompt of one request on an idle node, in passes of at most the token budget. In a
// pipeline, passes follow each other through the stages.
double capacity_prefill_us(const struct capacity_node *node, double rows, double cached);
// Returns the time between two tokens of one sequence on an idle node.
double capacity_decode_us(const struct capacity_node *node, double entries);
// Returns the time that a speculator spends on a prompt: its rows, and its part of the look-ahead passes.
double capacity_score_us(const struct capacity_node *node, double rows);

// Returns the name of the part of a pass that takes longest.
const char *capacity_part_text(const struct pass_parts *parts);
