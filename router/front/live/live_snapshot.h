// SPDX-License-Identifier: Apache-2.0
// Writes the data of the live page as JSON: a snapshot of the cluster, and the history of its rates over the last
// minutes. Fields have the names of `forepack status --json`. One thread.
#pragma once

#include "router/core/core_metrics.h"
#include "router/front/http/json_writer.h"

enum {
    LIVE_POINTS = 300,    // seconds of history
    LIVE_WINDOW = 5,      // seconds over which rates and quantiles are taken
    LIVE_NODES_MAX = 256, // nodes that a snapshot lists: it bounds the bytes for each page
};

// One second of the history. NAN: nothing was counted within the window.
struct live_point {
    int64_t unix_s;
    double ttft_p50_ms, ttft_p99_ms; // interpolated within a bucket of the histogram
    double prompt_tokens_per_s;      // prompt tokens dispatched to worker groups
    double output_tokens_per_s;
    double kept_share; // mean over the prompts that speculators scored
    int waiting;       // waiting requests
};

// Counters of all nodes together.
struct live_counts {
    int64_t at_us;
    uint64_t tokens_in, tokens_out;
    struct histogram first_token, kept;
};

struct live_history {
    struct live_counts counts[LIVE_WINDOW + 1]; // counts i are at i % (LIVE_WINDOW + 1)
    struct live_point points[LIVE_POINTS];      // point i is at i % LIVE_POINTS
    uint64_t n;                                 // number of both since the start
};

struct live_snapshot {
    const char *model_name;
    int64_t unix_s, now_us, uptime_s;
    struct core_metrics core;
    struct recent_bins bins[NODE_ROLES];
};

// Adds a second. A history starts as zeros.
void live_history_add(struct live_history *history, const struct live_snapshot *snapshot);
// Returns the latest point; all zeros before the first one.
struct live_point live_history_last(const struct live_history *history);

// Writes {"fields":["unix_s",...],"points":[[...],...]}, the oldest point first.
void live_history_write(const struct live_history *history, struct bytes *out);
// Writes one object. It has no texts of clients, only lengths of prompts.
void live_snapshot_write(const struct live_snapshot *snapshot, const struct live_point *point, struct bytes *out);
