// SPDX-License-Identifier: Apache-2.0
// Traces clients' requests (lib/tracing/tracer.h). Each request has a record, which begins when its message arrives and
// goes to the tracer when the request ends. If front->tracer is NULL, these functions have no effect.
//
//   client_trace_open()      when a call begins
//   answer_trace_begin()     when a message begins to be parsed (wire_request.c marks the phases)
//   answer_trace_end()       when a request has ended
//   client_trace_refused()   when a message is refused before the core has it
#pragma once

#include "router/front/request/answer.h"

// Sets the trace of the call from its headers `traceparent` and `tracestate` (NULL: not sent). I/O threads; call it
// before the first message is read. HTTP uses http_trace_open().
void client_trace_open(struct client *client, const char *traceparent, const char *tracestate, int server_port);
void client_trace_open_call(struct client *client, const struct rpc_call *call); // over gRPC
// Puts all requests of the client into one trace, even if the client sent no trace.
void client_trace_join(struct client *client);

// Begins the record of an answer and lends it to the answer's request. answer_create() calls it.
void answer_trace_begin(struct answer *a);

// Ends the record of a request that has ended, or whose client is gone. Core's thread.
void answer_trace_end(struct answer *a, const struct request *r, enum finish_reason reason, enum status status);
// Records a refused message that arrived at `arrived_us`. `first` is the message's first answer; NULL: there is none.
void client_trace_refused(const struct client *client, struct answer *first, enum status status, int64_t arrived_us);
