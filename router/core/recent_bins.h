// SPDX-License-Identifier: Apache-2.0
// The latest bins of one pool, which show people how prompts are packed. No decision depends on them. One thread.
#pragma once

#include "router/core/node.h"
#include "router/core/request.h"

enum { RECENT_BINS = 8, RECENT_BIN_PROMPTS = 64 };

struct recent_prompt {
    int tokens; // tokens of the whole prompt
    int kept;   // kept tokens; 0: not scored yet
    int rows;   // rows to compute: without cached rows, with the tokens streamed before a replay
};

struct recent_bin {
    uint64_t id;
    int64_t sent_us;
    char node_id[128];
    int token_budget;                                 // most rows of a pass of the node
    int64_t rows;                                     // rows of the bin
    int n;                                            // number of prompts in the bin, which may exceed the array
    struct recent_prompt prompts[RECENT_BIN_PROMPTS]; // the first prompts of the bin
};

struct recent_bins {
    struct recent_bin bins[RECENT_BINS];
    uint64_t n; // number of bins ever added; bin i (counted from 0) is at i % RECENT_BINS
};

// Adds a bin. Call after the requests were placed on the node.
void recent_bins_add(struct recent_bins *recent, const struct core_node *node, uint64_t bin, int64_t rows,
                     struct request *const *requests, int n, int64_t now_us);
// Returns the i-th latest bin, or NULL if there are fewer bins. The latest bin has i = 0.
const struct recent_bin *recent_bins_get(const struct recent_bins *recent, int i);
