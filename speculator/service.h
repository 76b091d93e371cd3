// SPDX-License-Identifier: Apache-2.0
// The speculator's side of the cluster protocol. Receives score bins, advances and cancels. Sends one ScoreResults
// message per scoring pass, or several if the results are large, and one Drafts message per drafting pass.
//
// Owned by the leader's working thread. Has no sockets: messages leave through a callback.
#pragma once

#include "proto/forepack/cluster/v1/cluster.pb-c.h"
#include "speculator/scorer.h"

struct score_service;

// The message is valid only during the call.
typedef void score_service_send_fn(void *arg, const Forepack__Cluster__V1__NodeMessage *message);

struct score_service *score_service_create(const struct scorer_model *model, score_service_send_fn *send, void *arg);
void score_service_free(struct score_service *service);

// Handles a score_bin, advances or cancel message. If a prompt is refused, the next step sends the refusal.
void score_service_handle(struct score_service *service, const Forepack__Cluster__V1__RouterMessage *message);
// Drops the prompts and results of a link. Called after the link's stream has ended.
void score_service_drop_link(struct score_service *service, int link);

void score_service_stop_drafts(struct score_service *service); // prompts still being scored will not be held

bool score_service_busy(const struct score_service *service);  // true if a step has work or results to send
enum status score_service_step(struct score_service *service); // after a failure the speculator is lost
// `waiting` includes refusals not sent yet
struct scorer_load score_service_get_load(const struct score_service *service);
void score_service_count_links(const struct score_service *service,
                               struct link_load *links); // see scorer_count_links()
