// SPDX-License-Identifier: Apache-2.0
// A worker group as the router sees it: bins and cancels come in, one StepResults message a step goes out. Everything
// from the router is checked; a sequence that cannot be served is answered with FINISH_ERROR and a sentence, and the
// others of its bin go on.
//
// Owned by the leader's working thread. Knows no sockets: messages leave through a function.
#pragma once

#include "proto/forepack/cluster/v1/cluster.pb-c.h"
#include "worker/scheduler.h"

struct service;

// The message and all in it are valid during the call only.
typedef void service_send_fn(void *arg, const Forepack__Cluster__V1__NodeMessage *message);

// Borrows the engine. Fails as scheduler_create does.
enum status service_create(struct engine *engine, const struct scheduler_limits *limits, service_send_fn *send,
                           void *arg, struct service **service_p);
void service_free(struct service *service);

void service_take(struct service *service, const Forepack__Cluster__V1__RouterMessage *message); // others are ignored
void service_drop_all(struct service *service); // the router has taken everything back

bool service_busy(const struct service *service);
enum status service_step(struct service *service); // a failure means that the group is lost
struct scheduler_load service_get_load(const struct service *service);
