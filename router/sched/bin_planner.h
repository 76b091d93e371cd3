// SPDX-License-Identifier: Apache-2.0
// Packs bins online: whenever a node has room, one bin for it is filled from the whole waiting set and everything else
// stays packable with later arrivals (dataset-level prepacking, arXiv 2404.09529, applied to a queue). Bin after bin
// that is first-fit decreasing. The rules, in the order in which they apply:
//
//  1. The next bin goes to the node predicted to finish its work first (node_choice.h). A node has at most `bins_ahead`
//     outstanding bins and `max_seqs` requests.
//  2. An idle node gets a bin of any size. A busy node gets one only if it has enough rows (estimate_min_bin_rows),
//  holds
//     an overdue request, or takes the node's last sequence slot.
//  3. BIN_BATCH and BIN_NONE let only one arrival batch, or one request, be packed at a time.
//  4. Overdue requests go first, the earliest due time first, whatever their priority. All of them, if their rows fit
//  one
//     bin; else up to half of the bin.
//  5. When overdue requests do not all fit, one without a deadline gives its place to an overdue request of the same
//  tenant
//     queue that rule 8 prefers and that is due at most `max_wait` later.
//  6. The rest of the bin goes by priority level, the highest first.
//  7. Within a level the tenant queue with the smallest virtual token counter is next (tenant_queue.h).
//  8. Within a tenant queue, a request that shares a prefix with the request packed before it (in this bin, else in the
//     node's last one) goes before the longest, if the prefix spares a quarter of its rows and more than the longest's.
//  9. Else the longest request that fits the rows, sequence slots and KV blocks left goes next, of equals the oldest.
//  Where
//     sequence slots are scarce the shortest goes in turn with it, so that each bin keeps to the mean length.
// 10. Rows that the node's prefix cache or the bin itself already holds do not count. A request that is not overdue
// waits
//     for another node with room that would finish it sooner because of its cache.
// 11. A request with more rows than the token budget gets a bin of its own; the node computes it in chunks.
// 12. A plan ends when its scan budget is used up. An idle node for which nothing was found that way gets a scan of the
//     whole waiting set every SCAN_ALL_US.
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
    int64_t scanned_us;                    // likewise
};

// Plans one bin. With n > 0 the requests are picked from the set, and the caller commits or rolls back. With n == 0
// nothing is picked.
void plan_bin(const struct dispatch_round *round, const struct sched_node *node, struct waiting_set *set,
              int64_t now_us, struct bin_plan *plan);

// Whether the request, which just became packable or overdue, makes the node's note void.
bool plan_note_is_void(const struct sched_node *node, const struct sched_request *r);
