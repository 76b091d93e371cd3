// SPDX-License-Identifier: Apache-2.0
// What a request costs the router's core thread: its real state machine (router/core/core.h) with a queue that is there
// at once, and worker groups that are simulated, so that nothing else takes time. Networking and tokenising are not in
// it.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum { DISPATCH_BLOCK_TOKENS = 16 };

struct dispatch_options {
    const int32_t *length; // [n] prompt tokens of each request
    int n;
    int token_budget, max_seqs; // of a worker group
    int kv_blocks;              // likewise, of DISPATCH_BLOCK_TOKENS; 0: more than it can use
    bool prefix_cache;          // likewise
    int workers;
    int shared_head; // tokens that all prompts begin with; shorter prompts are nothing else
    int64_t max_wait_us;
    int output_tokens; // each request gets, one a step
    double seconds;    // stops when it took so long
    // NULL, or told after a step of every group, outside of what is measured, how many requests have ended.
    void (*stepped)(void *user, int ended);
    void *user;
};

struct dispatch_result {                 // CPU time
    int requests;                        // that ended; all, unless time was up
    double submit_us;                    // to take a request in
    double hand_out_ms, hand_out_ms_max; // to hand out a bin out of the queue: mean and most
    double token_us;                     // to pass one token on
    double request_us;                   // everything, for each request that ended
    double looks;                        // at requests in the queue, for each one that was handed out
    int64_t bins;
    double fill; // tokens in bins over their capacity
};

// STATUS_INVALID when a group has too few KV blocks for the longest request, STATUS_INTERNAL when a request ended in
// another way than it should.
enum status dispatch_run(const struct dispatch_options *options, struct dispatch_result *result_p);
