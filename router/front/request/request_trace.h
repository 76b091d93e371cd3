// SPDX-License-Identifier: Apache-2.0
// Traces clients' requests (lib/tracing/tracer.h): a record goes from the message's arrival through the core to the
// tracer. In a front without a tracer these functions have no effect.
//
//   client_trace_open()      when a call begins
//   answer_trace_begin()     when a message begins to be parsed (wire_request.c marks the phases)
//   answer_trace_end()       when a request has ended
//   client_trace_refused()   when a message is refused before the core has it
#pragma once

#include "router/front/request/answer.h"

// Sets the trace that the call belongs to, by its headers `traceparent` and `tracestate` (NULL: not sent). I/O threads;
// call it before the first message is read. HTTP uses http_trace_open().
void client_trace_open(struct client *client, const char *traceparent, const char *tracestate, int server_port);
void client_trace_open_call(struct client *client, const struct rpc_call *call); // over gRPC
// Makes the requests of the client belong to one trace, also if it sent none.
void client_trace_join(struct client *client);

// Begins the record and lends it to the request. Call it within answer_create().
void answer_trace_begin(struct answer *a);

// Ends the record of a request that has ended, or whose client is gone. Core's thread.
void answer_trace_end(struct answer *a, const struct request *r, enum finish_reason reason, enum status status);
// Records a refused message that arrived at `arrived_us`. `first` is its first answer; NULL: it has none yet.
void client_trace_refused(const struct client *client, struct answer *first, enum status status, int64_t arrived_us);
