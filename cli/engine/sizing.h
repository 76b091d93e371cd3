// SPDX-License-Identifier: Apache-2.0
// The smallest cluster that serves a load within limits on TTFT and ITL. capacity.h proposes clusters, and forepack-sim
// decides: it runs the router's and the nodes' schedulers on the load under virtual time.
#pragma once

#include <jansson.h>

#include "cli/engine/capacity.h"
#include "cli/engine/plan.h"

enum { SIZING_TP_MAX = 5 };
enum sizing_way { SIZING_ALL_KEPT, SIZING_PRUNED, SIZING_WAYS }; // without and with speculators

struct sizing_limits {
    double ttft_p95_s, itl_p95_s; // 0: no limit
};

struct sizing_load {
    double qps;                          // 0: the arrival times of the trace
    double rate;                         // mean requests/s
    double prompt_tokens, output_tokens; // means
    double longest_tokens;               // prompt and output of the longest request
    int n_requests;                      // of the trace; 0: made up
};

// A cluster, and what its clients see.
struct sizing_cluster {
    enum sizing_way way;
    int tp, groups, spec_tp, speculators;
    int64_t kv_blocks, spec_kv_blocks, max_seqs, token_budget, itl_target_ms;
    struct capacity capacity; // of one group
    double ttft_p95_s, itl_p95_s, ttft_p50_s, itl_p50_s, requests_per_s, utilisation, spec_utilisation;
    bool is_held;      // the limits are kept
    char failure[160]; // what a group less would exceed, or what this cluster exceeds; "": unknown
};

struct sizing {
    const struct plan_flags *flags;
    struct model_config config, spec_config;
    struct sizing_limits limits; // that were searched for
    bool is_relaxed;             // no cluster keeps the limits of the options
    char reason[256];            // why not
    struct sizing_load load;
    struct sizing_cluster best[SIZING_WAYS]; // groups is 0 if the way was not asked for
    enum sizing_way chosen;                  // the way with fewest GPUs
    // Highest rates of one group of the chosen tp by the computed capacity.
    struct sizing_effect {
        char text[48];
        double rate;
    } effects[8];
    int n_effects;
};

static inline int sizing_gpus(const struct sizing_cluster *c)
{
    return c->groups * c->tp + c->speculators * c->spec_tp;
}

// Sizes a cluster for one rate; 0: for the arrival times of the trace.
enum status sizing_make(const struct plan_flags *flags, double qps, struct sizing *sizing_p);

// Runs forepack-sim on the cluster and fills in what its clients see. `requests` of the load are simulated; 0: the
// whole trace.
enum status sizing_run(const struct sizing *s, int requests, struct sizing_cluster *cluster);

void sizing_print(const struct sizing *s);
json_t *sizing_json(const struct sizing *s);
