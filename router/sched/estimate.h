// SPDX-License-Identifier: Apache-2.0
// Estimates from the nodes' cost models (cost.h): when a node finishes its work, how long a request waits in front of
// a pool, when it has to be dispatched, whether speculation pays. Reads the view, changes nothing.
//
// - The work ahead of a request is the work of the nodes' outstanding bins and, of the waiting work, the smaller of
//   two sums: what precedes it by priority, and what is due before it. Bins are filled by both (bin_planner.h).
//   Waiting work is taken to go to each node as it comes free, so that all busy nodes finish it at one time.
// - Every pass has one row for each decoding sequence, and prompts get the share of time that they lately got beside
//   decodes. Look-ahead takes passes of its own up to a share of the time; further steps are parts of the passes that
//   read other prompts. Requests that arrive later are left out: an estimate is low rather than high, so that no
//   request is refused for what may not happen.
// - In a pool of more than 64 nodes, a sample of 64 represents all, so the cost of an estimate is bounded.
// - A node without a fitted cost model is taken to cost what the cheapest fitted node of its pool costs. While no
//   node of a pool has one, nothing is estimated.
#pragma once

#include "router/sched/waiting_set.h"

struct estimate {
    double wait_us, own_us; // until the request's turn, and from then on
};

// Time until the first token of a request that is not in a queue yet. Without `speculated`, and unless its kept tokens
// are known, the request keeps all tokens. False: the cost model of a pool that it needs is not fitted, no node has
// room for the tokens that it keeps, or it would wait too long for a speculator.
bool estimate_first_token(const struct sched_view *view, const struct sched_request *r, bool speculated, int64_t now_us,
                          struct estimate *estimate_p);

// Until the speculator has scored a request that was dispatched to it; infinite: its costs are not known.
double estimate_score_us(const struct sched_view *view, const struct sched_node *node, const struct sched_request *r);

// Whether speculation brings the first token sooner, or no worker group has room for the whole prompt. While the
// speculators' costs are not known: true if no other request is being scored.
bool estimate_speculation_pays(const struct sched_view *view, const struct sched_request *r, int64_t now_us);

// When a request that joins the waiting set of that role now should be dispatched at the latest.
int64_t estimate_due_us(const struct sched_view *view, enum node_role role, const struct sched_request *r,
                        int64_t now_us);

// Until the nodes of the pool that take work have computed all prompts that wait in front of them, if the work were
// divided evenly; work_us: with those that the nodes hold. Infinite: there is no such node, or the costs of none are
// known.
struct pool_estimate {
    double queue_us, work_us;
};
struct pool_estimate estimate_pool(const struct sched_view *view, enum node_role role);
