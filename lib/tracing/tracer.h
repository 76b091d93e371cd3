// SPDX-License-Identifier: Apache-2.0
// Sends the records of requests to an OpenTelemetry collector, with OTLP over gRPC (opentelemetry.io/docs/specs/otlp).
//
// A record waits in a bounded queue for the tracer's own thread, which sends batches: as soon as one is full, or a
// second after its first record. A collector that is down or busy is asked again after 1, 2, 4... seconds, up to 30
// seconds for a batch; then the batch is dropped. When the queue is full, new records are dropped. So a collector
// never slows a request down, and takes a bounded amount of memory.
//
// Threads: any, except for tracer_open() and tracer_close().
#pragma once

#include "lib/base/status.h"
#include "lib/net/rpc.h"
#include "lib/tracing/record.h"

struct tracer;

struct tracer_options {
    const char *endpoint;       // HOST:PORT of the collector
    const struct rpc_tls *tls;  // NULL: plain text
    const char *headers;        // lines "name: value" that each call carries; NULL: none
    double sample;              // share of the traces begun here that are recorded, 0 to 1
    const char *service_name;   // copied, as is the next
    const char *server_address; // that clients connect to
    int64_t batch_ms;           // age at which a batch is sent; 0: 1000
    int64_t retry_ms;           // the first pause before a batch is sent again; 0: 1000
    int queue_requests;         // 0: 8192
};

// Between rpc_init() and rpc_shutdown(). INVALID or NOT_FOUND with the reason: an endpoint, header or TLS file that
// cannot be used. The collector need not run yet.
enum status tracer_open(const struct tracer_options *options, struct tracer **tracer_p);
// Sends what is queued for at most flush_ms, and drops the rest. NULL is allowed.
void tracer_close(struct tracer *tracer, int64_t flush_ms);

// Starts a trace if the context has none, so that all requests of a call are in one trace.
void tracer_begin(struct tracer *tracer, struct trace_context *context);

// The record of a request that arrived at `start_us`: in the trace of the context, or in one that begins here. NULL:
// nothing is recorded of it, because its trace begins here and is not sampled.
struct trace_record *tracer_record(struct tracer *tracer, const struct trace_context *context, int64_t start_us);

// The request has ended; takes the record.
void tracer_finish(struct tracer *tracer, struct trace_record *record);

void tracer_get_counts(struct tracer *tracer, struct trace_counts *counts);
