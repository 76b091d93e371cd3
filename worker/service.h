// SPDX-License-Identifier: Apache-2.0
// The worker group's side of the cluster protocol: receives bins (batches of requests), drafts and cancels, and sends
// one StepResults message per step. Checks all values from the router. Answers a sequence that it cannot serve with
// FINISH_ERROR and an error text, and serves the other sequences of the bin.
//
// Owned by the leader's working thread. Has no sockets: messages leave through a callback.
#pragma once

#include "lib/grammar/compiler.h"
#include "proto/forepack/cluster/v1/cluster.pb-c.h"
#include "worker/scheduler.h"

struct service;

// The message is valid during the call only.
typedef void service_send_fn(void *arg, const Forepack__Cluster__V1__NodeMessage *message);

// Borrows the engine. Fails as scheduler_create does.
enum status service_create(struct engine *engine, const struct scheduler_limits *limits, service_send_fn *send,
                           void *arg, struct service **service_p);
void service_free(struct service *service);

// Sets the library for structured output, which is borrowed. While the library is NULL, as at the start, sequences with
// a grammar are refused. Grammars are compiled on another thread. That thread calls `wake` with the `arg` of
// service_create() when a grammar is compiled, so that service_step() can begin its sequence.
void service_set_grammars(struct service *service, const struct grammar_library *grammars, grammar_wake_fn *wake);

// Handles a prefill_bin, drafts or cancel message; ignores others.
void service_handle(struct service *service, const Forepack__Cluster__V1__RouterMessage *message);
// Drops the sequences of a link. Call it after the link's stream has ended: its router reassigns them.
void service_drop_link(struct service *service, int link);

bool service_busy(const struct service *service); // true if there are sequences
// Returns true if service_step() has work. If not, the caller may wait for the next message or `wake`.
bool service_ready(const struct service *service);
enum status service_step(struct service *service); // after a failure the group is lost
struct scheduler_load service_get_load(const struct service *service);
const struct scheduler *service_scheduler(const struct service *service); // for assertions and tests
