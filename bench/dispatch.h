// SPDX-License-Identifier: Apache-2.0
// Measures the CPU time of the router's core thread per request: the real core (router/core/core.h) with all requests
// waiting from the start, and simulated worker groups. Excludes networking and tokenising.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/status.h"

enum { DISPATCH_BLOCK_TOKENS = 16 };

struct dispatch_options {
    const int32_t *length; // [n] prompt tokens of each request
    int n;
    int token_budget, max_seqs; // limits of a worker group
    int kv_blocks;              // KV blocks of a group, DISPATCH_BLOCK_TOKENS tokens each; 0: more than it can use
    bool prefix_cache;          // groups have a prefix cache
    int workers;
    int shared_head; // number of first tokens that all prompts share; a shorter prompt has only shared tokens
    int64_t max_wait_us;
    int output_tokens; // tokens per request, one per step
    double seconds;    // CPU time after which the simulation stops
    // Called after each step of all groups, outside the measured time, with the number of ended requests. May be NULL.
    void (*stepped)(void *user, int ended);
    void *user;
};

struct dispatch_result {                 // CPU time
    int requests;                        // requests that ended: all requests, unless the time was up
    double submit_us;                    // mean time to submit a request
    double dispatch_ms, dispatch_ms_max; // mean and maximum time to plan and dispatch a bin
    double tick_ms_max;                  // the longest tick
    double token_us;                     // mean time to pass on one token
    double request_us;                   // whole CPU time per ended request
    double scan_cost;                    // waiting requests examined per dispatched request
    int64_t bins;
    double fill;        // tokens in bins over their capacity
    double nodes_asked; // plans made per bin
    double node_visits; // steps of searches among the nodes per bin
    double node_kb;     // memory of the core per node, after all requests have ended
};

// Returns STATUS_INVALID if a group has too few KV blocks for the longest request, STATUS_INTERNAL if a request failed.
enum status dispatch_run(const struct dispatch_options *options, struct dispatch_result *result_p);
