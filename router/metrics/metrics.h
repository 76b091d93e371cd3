// SPDX-License-Identifier: Apache-2.0
// The router's metrics for Prometheus. table.c lists every metric, exposition.c writes the text. The `core` part of a
// snapshot is taken on the core's thread. Any thread may take the other parts and write the text.
#pragma once

#include "lib/base/certificate_time.h"
#include "lib/base/peer_budget.h"
#include "lib/http/http.h"
#include "lib/tracing/record.h"
#include "router/core/core_metrics.h"

struct process_metrics {   // this process; 0 for values that the system does not provide
    double cpu_s, start_s; // CPU time; time of the start, in seconds since 1970
    double resident_bytes, virtual_bytes, open_fds, max_fds;
};
void process_metrics_read(struct process_metrics *process); // any thread

enum { METRICS_BATCH_STATES = 8 };
struct batch_metrics { // zeros without --batch-dir
    int64_t files, bytes, in_flight;
    int64_t batches[METRICS_BATCH_STATES]; // by enum batch_state
    uint64_t completed, failed, retried;   // requests
};

struct metrics_snapshot {
    struct core_metrics core;
    struct process_metrics process;
    const char *model_name;         // borrowed
    uint64_t refused[STATUS_COUNT]; // requests refused before the core saw them
    struct compression_counts {
        uint64_t requests, tokens_before, tokens_after;
    } compressed;
    int64_t event_backlog;      // events waiting for the core's thread
    int64_t tokenise_waiting;   // messages waiting to be tokenised
    uint64_t log_lines_dropped; // by this process
    struct peer_budget peers[PEER_CLASSES];
    uint64_t connections_delayed; // times that a gRPC connection waited before it could open more calls
    struct http_server_status http;
    struct batch_metrics batch;
    struct trace_counts trace; // zeros if requests are not traced
    int expected_nodes[NODE_ROLES];
    const struct certificate_time *certificates; // [n_certificates] borrowed
    int n_certificates;
};

enum metrics_format {
    METRICS_TEXT,       // Prometheus text format 0.0.4
    METRICS_OPENMETRICS // OpenMetrics 1.0
};
// Returns the format that a client accepts. `accept` is the value of its Accept header, or NULL if it sent none.
enum metrics_format metrics_format_for(const char *accept);
const char *metrics_content_type(enum metrics_format format);

// Returns the text, never NULL. The caller frees it.
char *metrics_write(const struct metrics_snapshot *snapshot, enum metrics_format format, size_t *size_p);
