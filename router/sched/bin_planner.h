// SPDX-License-Identifier: Apache-2.0
// Packs bins online. A bin is a set of requests that is sent to one node in one message. Whenever a node has room, the
// planner fills one bin for it from the whole waiting set. The other requests can be packed with later arrivals
// (dataset-level prepacking, arXiv 2404.09529, applied to a queue). If no request arrives meanwhile, this is first-fit
// decreasing. The rules of admission follow, each with the test that fails if the rule is broken:
//
// 1. The next bin goes to the node predicted to finish first. An idle node gets any bin. A busy node gets a bin only in
//    three cases: the bin costs little more per row than a full bin, has an overdue request, or uses the last sequence
//    slot.
//       check_core_bins: the_node_with_least_work_is_next, an_idle_node_gets_any_bin_and_a_busy_one_only_large_ones
// 2. A bin and the rows of the node's decoding sequences fit one pass. The bin fits the node's free sequence slots and
//    KV blocks.
//       check_long_prompts: a_bin_leaves_the_rows_of_decodes_and_half_a_pass_for_a_long_prompt
// 3. A prompt longer than a pass (a long prompt) uses half of its bin and of the following bins until it is computed.
//    A node computes one long prompt at a time.
//       check_long_prompts: short_prompts_have_their_first_token_two_passes_after_two_long_ones
// 4. Overdue requests go first, by due time. They get the whole bin if all of them fit. Otherwise they get half of its
//    rows and slots. The tenant that is next by rule 6 goes before the first overdue request if it holds less of the
//    worker groups than that request's tenant: preemption (preemption.h) would give it the place anyway.
//       check_preemption: a_freed_slot_goes_to_the_tenant_that_holds_less; check_core_bins:
//       no_stream_starves_low_priorities; check_scarce_slots: of_several_free_slots_half_go_to_...
// 5. The remaining requests go by priority, the highest first.
//       check_core_bins: priority_goes_before_a_full_bin; check_scarce_slots: the_next_free_slot_goes_to_the_...
// 6. Within a priority, the tenant with the smallest virtual token counter is next (tenant_queue.h).
//       check_core_bins: tenants_of_one_priority_share_by_tokens
// 7. Within a tenant queue, requests that share a prefix follow each other if this saves enough rows (prefix_groups.h).
//    Rows that the node's prefix cache holds take no room in the bin. A request that is not overdue may wait for
//    another node, if that node's cache makes the request finish sooner.
//       check_prefix_groups: shared_prefixes_are_used_up_one_after_another, a_cached_prefix_does_not_count_and_...
// 8. Otherwise the longest request that fits is next. Among equally long requests, it is the oldest.
//       check_core_bins: bin_after_bin_the_whole_queue_is_packed_first_fit_decreasing
//
// Details of rule 4: if the number of free slots is odd, the odd slot alternates between the overdue requests and a
// second receiver. The second receiver is a higher priority, if one waits, else the next tenant. If not all overdue
// requests fit, another overdue request of the same tenant queue may replace an overdue request that has no deadline.
// The replacement must share a prefix with the previous request, and must be due at most max_wait later.
//
// Details of rule 7: the prefix is shared with the previous request, in this bin or in the node's last bins. The shared
// prefix must save a quarter of the request's rows. It must also save clearly more rows of this request than of the
// request that rule 8 would choose.
//
// With BIN_BATCH, only the requests of one arrival batch may be packed, and with BIN_NONE only one request. A request
// that runs alone (sched_request.h) gets an idle node.
//
// The planner reads the view and works on the waiting set in a transaction (waiting_set.h). Core applies the plan.
#pragma once

#include "router/sched/view.h"
#include "router/sched/waiting_set.h"

// Limit of the message of a bin. Nodes accept messages of up to 64 MiB and unpack them into at most 256 MiB. Rows in
// the node's prefix cache take no room in the bin, but they are part of its message.
#define BIN_BYTES_MAX ((int64_t)60 << 20)

struct bin_plan {
    struct sched_request *const *requests; // [n] in order; borrowed from the waiting set until its next pick
    int n;                                 // 0: no bin
    int64_t rows;                          // rows to be computed
    int64_t uncached_rows;                 // rows that would have to be computed without a prefix cache
    bool overdue;                          // the bin has an overdue request, or one that precedes an overdue request
    uint64_t scan_cost;                    // number of requests and tenant queues examined
    int64_t rows_missing;                  // with n == 0: the node should be asked again when this many more rows wait
    bool elsewhere;                        // true: a request fits, but waits for a node that would finish it sooner
};

// Plans one bin. If plan->n > 0, the requests are picked from the set, and the caller commits or rolls back. If plan->n
// is 0, nothing is picked.
void plan_bin(const struct sched_view *view, const struct sched_node *node, struct waiting_set *set,
              struct bin_plan *plan);

// Plans a bin with the next request of the queue (rules 7 and 8), in the place that a preemption has made on the node.
// A reservation of the node is not regarded.
void plan_place(const struct sched_view *view, const struct sched_node *node, struct waiting_set *set,
                struct tenant_queue *queue, struct bin_plan *plan);
