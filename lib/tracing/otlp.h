// SPDX-License-Identifier: Apache-2.0
// Encodes records of requests as an ExportTraceServiceRequest of the OpenTelemetry protocol (OTLP 1), with the
// attributes of its conventions for generative AI. Writes it directly: protobuf-c's structs would take several times
// the CPU time, and two allocations for each attribute. Thread-safe.
#pragma once

#include "lib/tracing/record.h"

struct otlp_buffer {
    uint8_t *data; // owned
    size_t n, capacity;
};

// The sender of the spans. Text is borrowed.
struct otlp_source {
    const char *service_name, *version, *instance_id, *host_name;
    const char *server_address; // address that clients connect to
    int64_t wall_offset_us;     // from clock_now_us() to the time since 1970
};

// Appends a request with the spans of the records, linked by `next`. The record that makes it exceed `max_bytes` is the
// last one in it. Returns the first record that is not in it, or NULL if none is left. *n_spans_p is the number of
// spans.
struct trace_record *otlp_encode(struct otlp_buffer *out, const struct otlp_source *source,
                                 struct trace_record *records, size_t max_bytes, int *n_spans_p);

int otlp_span_count(const struct trace_record *record);
