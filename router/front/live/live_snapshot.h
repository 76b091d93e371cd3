// SPDX-License-Identifier: Apache-2.0
// Writes the data of the live page as JSON: a snapshot of the cluster, and the history of its rates over the last
// minutes. Fields have the names of `forepack status --json`. One thread.
#pragma once

#include "router/core/core_metrics.h"
#include "router/front/http/json_writer.h"

enum {
    LIVE_POINTS = 300,    // seconds of history
    LIVE_WINDOW = 5,      // seconds that rates and quantiles cover
    LIVE_NODES_MAX = 256, // limit of the nodes in a snapshot, to bound the bytes for each page
};

// One second of the history. Rates and quantiles cover the last LIVE_WINDOW seconds. TTFTs and kept_share are NAN if
// nothing was counted in that time.
struct live_point {
    int64_t unix_s;
    double ttft_p50_ms, ttft_p99_ms; // quantiles of TTFT, interpolated within a bucket of the histogram
    double prompt_tokens_per_s;      // prompt tokens dispatched to worker groups
    double output_tokens_per_s;
    double kept_share; // share of tokens that were kept, 0 to 1: mean over the prompts that speculators scored
    int waiting;       // waiting requests
};

// Counters of all worker groups together at one time.
struct live_counts {
    int64_t at_us;                  // the time
    uint64_t tokens_in, tokens_out; // prompt tokens dispatched; tokens generated
    struct histogram first_token;   // TTFT in us
    struct histogram kept;          // kept share of scored prompts
};

struct live_history {
    struct live_counts counts[LIVE_WINDOW + 1]; // ring: the counts of second i are at i % (LIVE_WINDOW + 1)
    struct live_point points[LIVE_POINTS];      // ring: the point of second i is at i % LIVE_POINTS
    uint64_t n;                                 // seconds added since the start
};

struct live_snapshot {
    const char *model_name;
    int64_t unix_s, now_us, uptime_s;
    struct core_metrics core;
    struct recent_bins bins[NODE_ROLES];
};

// Adds the counts and the point of one second. A history starts as zeros.
void live_history_add(struct live_history *history, const struct live_snapshot *snapshot);
// Returns the latest point; all zeros before the first one.
struct live_point live_history_last(const struct live_history *history);

// Writes {"fields":["unix_s",...],"points":[[...],...]}, the oldest point first.
void live_history_write(const struct live_history *history, struct bytes *out);
// Writes the snapshot as one JSON object. The object has lengths of prompts, but no text of clients.
void live_snapshot_write(const struct live_snapshot *snapshot, const struct live_point *point, struct bytes *out);
