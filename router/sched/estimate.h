// SPDX-License-Identifier: Apache-2.0
// Estimates from the nodes' cost models (cost.h): how long a request waits for a pool, when it has to be dispatched,
// and whether speculation pays. Reads the view and changes nothing.
//
// - The work ahead of a request has two parts. One is the work of the nodes' outstanding bins. The other is waiting
//   work: either the work that precedes the request by priority or the work that is due before it, whichever is less.
//   Bins are filled in both orders (bin_planner.h). Waiting work goes to nodes as they become free. So all busy nodes
//   are assumed to finish it at the same time.
// - Every pass has one row for each decoding sequence. In passes with decodes, prompts are assumed to get the share of
//   the time that they got lately. A speculator's look-ahead (its guess at the answer) gets separate passes, up to a
//   share of the time. Its further steps run as rows of passes that read other prompts (speculator/score_pace.h).
// - Later arrivals are left out. An estimate is low rather than high, so that no request is refused because of events
//   that may not happen.
// - In a pool of more than 64 nodes, a sample of 64 nodes represents the pool, so the cost of an estimate is bounded.
// - A node whose cost model is not fitted is assumed to cost as much as the cheapest fitted node of its pool. While no
//   node of a pool has a fitted model, nothing is estimated.
#pragma once

#include "router/sched/waiting_set.h"

struct estimate {
    double wait_us, own_us; // wait until the request is computed; time from then to its first token
};

// Estimates the time to first token of a request that is not in a queue yet. If `speculated` is true, a speculator
// scores it first. If `speculated` is false and the kept tokens are unknown, the request is assumed to keep all tokens.
// Returns false if no cost model of a needed pool is fitted, if no node has room for the kept tokens, or if the request
// would wait too long for a speculator.
bool estimate_first_token(const struct sched_view *view, const struct sched_request *r, bool speculated, int64_t now_us,
                          struct estimate *estimate_p);

// Returns the time in microseconds until the speculator has scored a request that was dispatched to it. Returns
// INFINITY while the node's costs are unknown.
double estimate_score_us(const struct sched_view *view, const struct sched_node *node, const struct sched_request *r);

// Returns true if speculation brings the first token clearly sooner, or if no worker group has room for the whole
// prompt. While the speculators' costs are unknown, returns true if no other request is being scored. *predicted_p gets
// the two times that were compared, or zeros if no times were compared.
bool estimate_speculation_pays(const struct sched_view *view, const struct sched_request *r, int64_t now_us,
                               struct prefill_prediction *predicted_p);

// Returns the due time of a request that joins the waiting set of the role now: the latest time at which it should be
// dispatched.
int64_t estimate_due_us(const struct sched_view *view, enum node_role role, const struct sched_request *r,
                        int64_t now_us);

// Times in which the nodes that take work would compute the prompts of the pool, if these were divided evenly. INFINITY
// if no node takes work or no costs are known.
struct pool_estimate {
    double queue_us, work_us; // for the waiting prompts; for these and the prompts on the nodes
};
struct pool_estimate estimate_pool(const struct sched_view *view, enum node_role role);
