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
    int64_t wall_offset_us;     // Unix time minus clock_now_us()
};

// Appends a request with the spans of the records, linked by `next`. Stops after the record with which the request
// exceeds `max_bytes`. Returns the first record that is not in the request, or NULL. *n_spans_p is the number of spans.
struct trace_record *otlp_encode(struct otlp_buffer *out, const struct otlp_source *source,
                                 struct trace_record *records, size_t max_bytes, int *n_spans_p);

int otlp_span_count(const struct trace_record *record);
