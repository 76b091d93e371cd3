// SPDX-License-Identifier: Apache-2.0
// The waiting set: the requests that wait for one pool, in the orders that the bin planner needs, with their counts and
// sums. The cost of filling a bin is proportional to the size of the bin, not to the number of waiting requests.
//
// Owner: struct core has one set per role. Core adds and removes requests and marks them as overdue; the bin planner
// picks requests. One thread.
//
// Picking is a transaction. A picked request leaves the indexes immediately, and its tenant is charged. It stays in the
// set's lists, counts and sums. The picks of a bin end together: waiting_set_commit() removes the picked requests from
// the set, waiting_set_roll_back() puts them back into the indexes. If picked requests stayed in the indexes, each
// search would step over every request picked so far. The cost of a bin would then be quadratic.
#pragma once

#include "router/sched/due_index.h"
#include "router/sched/prefix_groups.h"
#include "router/sched/tenant_queue.h"
#include "router/sched/view.h"

// Number of time slots in waiting_set.due_work, a ring that covers max_wait.
enum { DUE_SLOTS = 64 };

// The receiver of the odd sequence slot, if the overdue requests need more than half of the free slots (bin_planner.h).
enum odd_slot { ODD_TO_TENANT, ODD_TO_OVERDUE, ODD_TO_HIGHER_PRIORITY };

struct waiting_set {
    enum node_role role;
    enum bin_policy policy;
    int batch_requests;
    struct hash_key hash_key;
    // The waiting requests: SCORING for speculators, READY for worker groups.
    struct request_list queue;                                  // by arrival
    struct request_list overdue;                                // by due time
    int64_t rows;                                               // rows that all waiting requests take in bins
    struct cost_work overdue_work, level_work[PRIORITY_LEVELS]; // level_work: work that is not overdue
    struct cost_work due_work[DUE_SLOTS];                       // work that is not overdue, by due time
    int64_t due_slot_us;                                        // length of a time slot of due_work
    double mean_rows;                    // mean number of rows of the requests that joined lately
    struct tenant_queues tenants;        // packable requests by priority, tenant and length
    struct prefix_groups groups;         // packable requests by shared prefix
    const struct prefix_index *prefixes; // prefix index of the pool
    struct due_index due_next;           // packable requests that are overdue, by due time
    int n_packable;
    uint64_t joined; // number of times that a request became packable or overdue
    // List of requests that became packable or overdue lately. A node that declined earlier may accept one of them, and
    // has not been asked yet.
    struct sched_request *unasked, **unasked_end;
    struct sched_request **picked; // [n_picked] in the order of picking
    int n_picked, picked_capacity;
    // receiver in the last bin; receiver in the current picks, valid after the next commit
    enum odd_slot odd_slot, odd_slot_picked;
};

void waiting_set_init(struct waiting_set *set, enum node_role role, const struct sched_options *options,
                      const struct prefix_index *prefixes, const struct tenant_weight *weights, int n_weights);
void waiting_set_fini(struct waiting_set *set); // the set must be empty

int waiting_set_count(const struct waiting_set *set);

// Adds a request. `returned` is true if the request comes back from a lost node. The request is then overdue
// immediately. With BIN_BATCH and BIN_NONE, which have no due times, it becomes the first of `queue`. Sets
// r->tenant_queue, which stays acquired until the request joins another set or until waiting_set_release().
void waiting_set_add(struct waiting_set *set, struct sched_request *r, int64_t due_us, bool returned);
void waiting_set_remove(struct waiting_set *set, struct sched_request *r);
void waiting_set_release(struct sched_request *r); // releases the request's tenant queue; call when the request ends
void waiting_set_mark_overdue(struct waiting_set *set, struct sched_request *r);

// With BIN_BATCH and BIN_NONE: makes the next requests of `queue` packable if no request is packable.
void waiting_set_open_batch(struct waiting_set *set);

// Removes the request from `unasked`, if it is in that list.
void waiting_set_asked(struct waiting_set *set, struct sched_request *r);

// Returns the work due between the two times, in whole slots, not counting overdue requests.
struct cost_work waiting_set_due_between(const struct waiting_set *set, int64_t from_us, int64_t due_us);

// The transaction, see above.
void waiting_set_pick(struct waiting_set *set, struct sched_request *r);
void waiting_set_commit(struct waiting_set *set); // `picked` stays readable until the next pick
void waiting_set_roll_back(struct waiting_set *set);
