// SPDX-License-Identifier: Apache-2.0
// The speculator's side of the cluster protocol: receives score bins, advances and cancels, sends one ScoreResults
// message per pass, or several when results with importance are large, and one Drafts message per drafting pass.
//
// Owned by the leader's working thread. Has no sockets: messages leave through a callback.
#pragma once

#include "proto/forepack/cluster/v1/cluster.pb-c.h"
#include "speculator/scorer.h"

struct score_service;

// The message is valid during the call only.
typedef void score_service_send_fn(void *arg, const Forepack__Cluster__V1__NodeMessage *message);

struct score_service *score_service_create(const struct scorer_model *model, score_service_send_fn *send, void *arg);
void score_service_free(struct score_service *service);

// Handles a score_bin, advances or cancel message. Refusals of a bin's prompts leave with the next step.
void score_service_handle(struct score_service *service, const Forepack__Cluster__V1__RouterMessage *message);
void score_service_drop_all(struct score_service *service); // after the stream ended

void score_service_stop_drafts(struct score_service *service); // prompts that are still scored are not held

bool score_service_busy(const struct score_service *service);  // whether a step has work or results to send
enum status score_service_step(struct score_service *service); // after a failure the speculator is lost
struct scorer_load score_service_get_load(const struct score_service *service); // waiting: refusals not sent yet, too
