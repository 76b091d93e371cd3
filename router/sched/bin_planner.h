// SPDX-License-Identifier: Apache-2.0
// Packs bins online: whenever a node has room, fills one bin for it from the whole waiting set. The other requests stay
// packable with later arrivals (dataset-level prepacking, arXiv 2404.09529, applied to a queue). Repeated until the
// queue is empty, this is first-fit decreasing. The rules of admission, each with the test that fails without it:
//
// 1. The next bin goes to the node predicted to finish first. An idle node gets any bin. A busy node gets a bin that
//    costs little more per row than a full one, has an overdue request or takes the last sequence slot.
//       check_core_bins: the_node_with_least_work_is_next, an_idle_node_gets_any_bin_and_a_busy_one_only_large_ones
// 2. A bin fits one pass together with the rows of the node's decodes, and the node's sequence slots and KV blocks.
//       check_long_prompts: a_bin_leaves_the_rows_of_decodes_and_half_a_pass_for_a_long_prompt
// 3. A prompt longer than a pass takes half of its bin and of the following bins. A node computes one at a time.
//       check_long_prompts: short_prompts_have_their_first_token_two_passes_after_two_long_ones
// 4. Overdue requests go first, by due time. They get the whole bin if all of them fit it, else half of its rows and
// slots.
//       check_core_bins: no_stream_starves_low_priorities; check_scarce_slots: of_several_free_slots_half_go_to_...
// 5. The remaining requests go by priority, the highest first.
//       check_core_bins: priority_goes_before_a_full_bin; check_scarce_slots: the_next_free_slot_goes_to_the_...
// 6. Within a priority, the tenant with the smallest virtual token counter is next (tenant_queue.h).
//       check_core_bins: tenants_of_one_priority_share_by_tokens
// 7. Within a tenant queue, a request whose shared prefix pays (prefix_groups.h) follows the request it
//    shares the prefix with. Cached rows do not count. A request that is not overdue waits for a node whose cache
//    makes it finish sooner.
//       check_prefix_groups: shared_prefixes_are_used_up_one_after_another, a_cached_prefix_does_not_count_and_...
// 8. Otherwise the longest request that fits goes, and of equals the oldest.
//       check_core_bins: bin_after_bin_the_whole_queue_is_packed_first_fit_decreasing
//
// Details of rule 4: an odd slot goes to a higher priority first, then in turn. If not all overdue requests fit, one
// with no deadline may give its place to another one of its tenant queue, which shares a prefix and is due at most
// max_wait later. Details of rule 7: the prefix is shared with the previous request, in this bin or in the node's last
// bin. It must save a quarter of the request's rows, and more rows than it saves of the longest request. With BIN_BATCH
// and BIN_NONE, only one arrival batch or one request is packed at a time. A request that runs alone (sched_request.h)
// gets an idle node.
//
// The planner reads the view and works on the waiting set in a transaction (waiting_set.h). Core applies the plan.
#pragma once

#include "router/sched/view.h"
#include "router/sched/waiting_set.h"

// Nodes take messages of up to 64 MiB, and unpack them into at most 256 MiB. Rows that a prefix cache holds take no
// room in the bin, but they do in its message.
#define BIN_BYTES_MAX ((int64_t)60 << 20)

struct bin_plan {
    struct sched_request *const *requests; // [n] in order; borrowed from the waiting set until its next pick
    int n;                                 // 0: no bin
    int64_t rows;                          // rows to be computed
    int64_t uncached_rows;                 // rows to be computed if there were no prefix cache
    bool overdue;                          // the bin has an overdue request
    uint64_t scan_cost;                    // waiting requests examined
    int64_t rows_missing;                  // rows that are missing for a bin; set if there is none
    bool elsewhere;                        // a request waits for another node
};

// Plans one bin. With n > 0 the requests are picked from the set, and the caller commits or rolls back. With n == 0
// nothing is picked.
void plan_bin(const struct sched_view *view, const struct sched_node *node, struct waiting_set *set,
              struct bin_plan *plan);
