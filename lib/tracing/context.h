// SPDX-License-Identifier: Apache-2.0
// The trace that a client's call belongs to, from its headers `traceparent` and `tracestate` (W3C Trace Context, level
// 2). Plain data; any thread.
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { TRACE_ID_BYTES = 16, SPAN_ID_BYTES = 8, TRACE_STATE_BYTES_MAX = 512 };

struct trace_context {
    uint8_t trace_id[TRACE_ID_BYTES]; // zeros: each request of the call begins a trace
    uint8_t parent_id[SPAN_ID_BYTES]; // the client's span; zeros: none
    bool sampled;
    int server_port; // that the call came to; 0: not known
    char state[];    // the client's tracestate; "": none
};

// A context without a trace. free() it.
struct trace_context *trace_context_create(void);

// The context of a client's headers; free() it. `traceparent` NULL (not sent) or malformed: without a trace.
// `tracestate` may be NULL; a malformed one is left out, as is one of more than TRACE_STATE_BYTES_MAX.
struct trace_context *trace_context_read(const char *traceparent, const char *tracestate);

bool trace_context_has_trace(const struct trace_context *context);
