// SPDX-License-Identifier: Apache-2.0
// Packs bins online: whenever a node has room, one bin for it is filled from the whole waiting set and everything else
// stays packable with later arrivals (dataset-level prepacking, arXiv 2404.09529, applied to a queue). Bin after bin
// that is first-fit decreasing. The rules, in the order in which they apply:
//
//  1. The next bin goes to the node predicted to finish its work first (node_choice.h).
//  2. An idle node gets any bin, a busy one a large bin (estimate_min_bin_rows) or one with an overdue request.
//  3. BIN_BATCH and BIN_NONE let only one arrival batch, or one request, be packed at a time.
//  4. Overdue requests go first, by due time: all if their rows fit one bin, else until half of the bin is full.
//  5. If not all fit, one that shares a prefix and is due at most max_wait later may take the place of another.
//  6. The rest of the bin goes by priority level, the highest first.
//  7. Within a level, the tenant queue with the smallest virtual token counter is next (tenant_queue.h).
//  8. Within a tenant queue, a request whose shared prefix pays (prefix_groups.h) goes before the longest.
//  9. Else the longest that fits goes, of equals the oldest; where slots are scarce, in turn with the shortest.
// 10. Cached rows do not count; a request that is not overdue waits for a node whose cache makes it finish sooner.
// 11. A request with more rows than the token budget gets a bin of its own; the node computes it in chunks.
// 12. A plan ends when its scan budget is used up; an idle node without a bin gets a full scan every SCAN_ALL_US.
//
// Details. Rule 2: a busy node also gets a small bin that takes its last sequence slot. Rule 5: only a request of the
// same tenant queue and without a deadline gives its place. Rules 5 and 8: the prefix is shared with the request packed
// before, in this bin or in the node's last one, and must save a quarter of the request's rows and more than it saves
// of the longest request's. Rule 9: a request fits if rows, sequence slots and KV blocks are left for it. Slots are
// scarce when a bin's part of the slots, filled with requests of mean length, barely fills the bin; bins then keep to
// the mean length.
//
// The planner reads the view and works on the waiting set in a transaction (waiting_set.h). Core applies the plan.
#pragma once

#include "router/sched/node_choice.h"
#include "router/sched/waiting_set.h"

struct bin_plan {
    struct sched_request *const *requests; // [n] in order; borrowed from the waiting set until its next pick
    int n;                                 // 0: no bin
    int64_t rows;                          // to be computed
    int64_t uncached_rows;                 // the same without any prefix cache
    bool overdue;                          // has an overdue request
    uint64_t scan_cost;                    // waiting requests examined
    struct no_eligible_note no_eligible;   // for the node from now on
    int64_t scanned_us;                    // for the node from now on
};

// Plans one bin. With n > 0 the requests are picked from the set, and the caller commits or rolls back. With n == 0
// nothing is picked.
void plan_bin(const struct dispatch_round *round, const struct sched_node *node, struct waiting_set *set,
              int64_t now_us, struct bin_plan *plan);

// Whether the request, which just became packable or overdue, makes the node's note void.
bool plan_note_is_void(const struct sched_node *node, const struct sched_request *r);
