// SPDX-License-Identifier: Apache-2.0
// The trace of a client's call, from its headers `traceparent` and `tracestate` (W3C Trace Context, level 2). Plain
// data; any thread.
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { TRACE_ID_BYTES = 16, SPAN_ID_BYTES = 8, TRACE_STATE_BYTES_MAX = 512 };

struct trace_context {
    uint8_t trace_id[TRACE_ID_BYTES]; // zeros: each request of the call begins a trace
    uint8_t parent_id[SPAN_ID_BYTES]; // the client's span; zeros if there is none
    bool sampled;
    int server_port; // port that received the call; 0: not known
    char state[];    // the client's tracestate, or ""
};

// Creates a context without a trace. free() it.
struct trace_context *trace_context_create(void);

// Creates the context of a client's headers; free() it. It has no trace if `traceparent` is NULL (not sent) or
// malformed. `tracestate` may be NULL. A tracestate that is malformed or longer than TRACE_STATE_BYTES_MAX is left out.
struct trace_context *trace_context_read(const char *traceparent, const char *tracestate);

bool trace_context_has_trace(const struct trace_context *context);
