// SPDX-License-Identifier: Apache-2.0
// Traces of clients' requests (lib/tracing/tracer.h): a record goes from the message's arrival through the core to the
// tracer. Every function allows a front without a tracer, and does nothing then.
//
//   client_trace_open()      when a call begins
//   answer_trace_begin()     when a message begins to be parsed (wire_request.c marks the phases)
//   answer_trace_end()       when a request has ended
//   client_trace_refused()   when a message is refused before the core has it
#pragma once

#include "router/front/request/answer.h"

// The trace that the call belongs to, by its headers `traceparent` and `tracestate`; NULL: not sent. I/O threads,
// before the first message is read. For HTTP see http_trace_open().
void client_trace_open(struct client *client, const char *traceparent, const char *tracestate, int server_port);
void client_trace_open_call(struct client *client, const struct rpc_call *call); // over gRPC
// The requests of the client belong to one trace, also if it sent none.
void client_trace_join(struct client *client);

// Within answer_create(): lends the record to the request.
void answer_trace_begin(struct answer *a);

// The request has ended, or its client is gone. Core's thread.
void answer_trace_end(struct answer *a, const struct request *r, enum finish_reason reason, enum status status);
// A message that arrived at `arrived_us` was refused; `first` is its first answer, NULL: it has none yet.
void client_trace_refused(const struct client *client, struct answer *first, enum status status, int64_t arrived_us);
