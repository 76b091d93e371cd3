// SPDX-License-Identifier: Apache-2.0
// Shared by the files of `forepack bench serve`: serve.c has the options and runs the levels, serve_workload.c makes
// the requests and their arrival times, serve_report.c turns results into rows, the table and the page. One thread.
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "bench/commands/bench.h"
#include "bench/commands/load_generator.h"
#include "cli/request_rows.h"
#include "lib/base/trace.h"

struct serve_flags {
    struct remote remote;
    char *prompts, *trace, *prompt_tokens, *qps, *arrivals, *concurrency, *report;
    int64_t requests, warm_up, load_seed, ttft_limit_ms;
    double duration, time_scale, length_scale, timeout, hold_share, hold_throughput;
    bool search, json;
};

// One load: an arrival rate, a number of concurrent requests, or a trace with its recorded arrival times.
struct serve_level {
    double qps;      // 0: not an arrival rate
    int concurrency; // 0: open loop
    bool replay;     // uses the recorded times of the trace
    int number;      // counts from 1, part of the seed of random tokens; 0: the warm-up
};

// Latencies of one level by percentile, for the plots.
enum { SERVE_CURVE_POINTS = 101 };
struct serve_curve {
    char *name;
    double ttft[SERVE_CURVE_POINTS], itl[SERVE_CURVE_POINTS];
};

struct serve {
    const struct serve_flags *flags;
    struct request_spec defaults;
    struct request_row *prompts; // NULL: prompts are random tokens
    int n_prompts;
    struct trace trace;
    struct count_list lengths; // lengths of random prompts without a trace
    int vocab_size, context_tokens;
    int clipped; // prompts or outputs cut to the context so far
    char run_name[20];
    double qps[NUMBER_LIST_MAX];
    int n_qps;
    struct count_list concurrency;
    struct serve_curve *curves; // [n_levels]
    int n_levels, curves_capacity;
    json_t *rows;
};

// ---- workload

char *serve_level_name(const struct serve_level *level); // caller frees
int serve_count_requests(const struct serve *s, const struct serve_level *level);
// Returns arrival times [n] in microseconds after the start, or NULL for a closed loop. The caller frees them.
int64_t *serve_schedule(const struct serve *s, const struct serve_level *level, int n);
// Returns the packed requests [n], with ids that start with `run`. The caller frees each request and the array.
struct rpc_bytes *serve_pack_requests(struct serve *s, const struct serve_level *level, int n, const char *run);

// ---- report

// Returns the reason why a request failed: "timeout" or the name of a gRPC code.
const char *serve_failure_name(const struct load_record *record);
void serve_print_heading(const struct serve *s);
// Adds and prints the row of a level and adds its curve. `cpu_s` is the CPU time of this process. Returns true if the
// level was held.
bool serve_add_level(struct serve *s, const struct serve_level *level, struct load_result *result, double cpu_s);
void serve_print_result(const struct serve *s);
struct report;
void serve_write_report(struct report *report, const struct serve *s);
