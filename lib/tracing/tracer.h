// SPDX-License-Identifier: Apache-2.0
// Sends the records of requests to an OpenTelemetry collector, with OTLP over gRPC (opentelemetry.io/docs/specs/otlp).
//
// A record waits in a bounded queue for the tracer's own thread, which sends batches. A batch is sent as soon as it is
// full, or `batch_ms` after its first record. If the collector is down or busy, the thread tries again after 1, 2, 4...
// seconds, up to 30 seconds for a batch, and then drops the batch. When the queue is full, new records are dropped. So
// a collector never slows a request down, and uses a bounded amount of memory.
//
// Any thread, except for tracer_open() and tracer_close().
#pragma once

#include "lib/base/status.h"
#include "lib/net/rpc.h"
#include "lib/tracing/record.h"

struct tracer;

struct tracer_options {
    const char *endpoint;       // HOST:PORT of the collector
    const struct rpc_tls *tls;  // NULL for plain text
    const char *headers;        // lines "name: value" that each call carries, or NULL
    double sample;              // recorded share of the traces that begin here, 0 to 1
    const char *service_name;   // copied, like the next member
    const char *server_address; // address that clients connect to
    int64_t batch_ms;           // age at which a batch is sent; 0: 1000
    int64_t retry_ms;           // first pause before a batch is sent again; 0: 1000
    int queue_requests;         // 0: 8192
};

// Opens a tracer, between rpc_init() and rpc_shutdown(). Returns INVALID or NOT_FOUND with the reason if an endpoint,
// header or TLS file cannot be used. The collector need not run yet.
enum status tracer_open(const struct tracer_options *options, struct tracer **tracer_p);
// Sends the queued records for at most flush_ms and drops the rest. NULL is allowed.
void tracer_close(struct tracer *tracer, int64_t flush_ms);

// Starts a trace if the context has none, so that all requests of a call are in one trace.
void tracer_begin(struct tracer *tracer, struct trace_context *context);

// Creates the record of a request that arrived at `start_us`. It belongs to the trace of the context, or to a new
// trace. Returns NULL if a new trace would begin and is not sampled.
struct trace_record *tracer_record(struct tracer *tracer, const struct trace_context *context, int64_t start_us);

// Ends a request and takes ownership of its record.
void tracer_finish(struct tracer *tracer, struct trace_record *record);

void tracer_get_counts(struct tracer *tracer, struct trace_counts *counts);
