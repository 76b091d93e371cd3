// SPDX-License-Identifier: Apache-2.0
// Estimates from the nodes' cost models (cost.h): when a node finishes its work, how long a request waits in front of
// a pool, when it has to be dispatched, whether speculation pays. Reads the view, changes nothing.
//
// - The work ahead of a request is the work of the nodes' outstanding bins, plus the smaller of two sums of waiting
// work:
//   the work that precedes the request by priority, and the work that is due before it. Bins are filled by both
//   (bin_planner.h). Waiting work goes to nodes as they come free, so all busy nodes are assumed to finish it together.
// - Every pass has one row for each decoding sequence. Prompts get the share of time that they lately got in passes
// with
//   decodes. Look-ahead has passes of its own up to a share of the time; further steps are parts of the passes that
//   read other prompts.
// - Later arrivals are left out: an estimate is low rather than high, so that no request is refused for events that may
//   not happen.
// - In a pool of more than 64 nodes, a sample of 64 represents the pool, so the cost of an estimate is bounded.
// - A node with no fitted cost model is assumed to cost as much as the cheapest fitted node of its pool. While no node
// of
//   a pool has one, nothing is estimated.
#pragma once

#include "router/sched/waiting_set.h"

struct estimate {
    double wait_us, own_us; // time until the request's turn, and from then on
};

// Estimates the time to first token of a request that is not in a queue yet. If `speculated` is false and its kept
// tokens are unknown, the request keeps all tokens. Returns false if the cost model of a needed pool is not fitted, no
// node has room for the kept tokens, or the request would wait too long for a speculator.
bool estimate_first_token(const struct sched_view *view, const struct sched_request *r, bool speculated, int64_t now_us,
                          struct estimate *estimate_p);

// Returns the time until the speculator has scored a request that was dispatched to it. Infinite: its costs are
// unknown.
double estimate_score_us(const struct sched_view *view, const struct sched_node *node, const struct sched_request *r);

// Returns true if speculation brings the first token sooner, or if no worker group has room for the whole prompt. While
// the speculators' costs are unknown: true if no other request is being scored.
// Writes the predicted times that it compared, or zeros if a time cannot be predicted.
bool estimate_speculation_pays(const struct sched_view *view, const struct sched_request *r, int64_t now_us,
                               struct prefill_prediction *predicted_p);

// Returns the latest time at which a request that joins the waiting set of the role now should be dispatched.
int64_t estimate_due_us(const struct sched_view *view, enum node_role role, const struct sched_request *r,
                        int64_t now_us);

// Time until the nodes of the pool that take work have computed all waiting prompts, if the work were divided evenly.
// work_us includes the prompts that the nodes hold. Infinite: no node takes work, or no costs are known.
struct pool_estimate {
    double queue_us, work_us;
};
struct pool_estimate estimate_pool(const struct sched_view *view, enum node_role role);
