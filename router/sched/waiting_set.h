// SPDX-License-Identifier: Apache-2.0
// The waiting set: the requests that wait for one pool, in the orders that filling a bin needs, with their counts and
// sums. Filling a bin costs in proportion to the bin, not to the number of waiting requests.
//
// Owner: struct core has one for each role. Core adds, removes and marks overdue; the bin planner picks. One thread.
//
// Picking is a transaction. A picked request leaves the indexes immediately and its tenant is charged, so that every
// further search finds the next request and does not step over picked ones. It stays in the set's lists, counts and
// sums. Picks end together: waiting_set_commit() removes them from the set, waiting_set_roll_back() puts them back.
// Marks in a constant set would not do: searches would step over each request picked so far, which is quadratic in the
// bin.
#pragma once

#include "router/sched/due_index.h"
#include "router/sched/prefix_groups.h"
#include "router/sched/tenant_queue.h"
#include "router/sched/view.h"

// Work that is not overdue, by due time: a ring of time slots that covers max_wait.
enum { DUE_SLOTS = 64 };

// The receiver of the odd slot of a number of sequence slots, when slots are short (bin_planner.h).
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
    struct cost_work due_work[DUE_SLOTS];                       // the same work by due time
    int64_t due_slot_us;
    double mean_rows; // mean of the requests that joined lately
    // Packable requests: by priority, tenant and length; by shared prefix; overdue ones by due time.
    struct tenant_queues tenants;
    struct prefix_groups groups;
    const struct prefix_index *prefixes; // of the pool
    struct due_index due_next;
    int n_packable;
    uint64_t joined; // number of times that a request became packable or overdue
    // List of requests for which nodes that declined earlier have not been asked again.
    struct sched_request *unasked, **unasked_end;
    struct sched_request **picked; // [n_picked] in the order of picking
    int n_picked, picked_capacity;
    enum odd_slot odd_slot, odd_slot_picked; // the last bin's; the picks', which holds once they are committed
};

void waiting_set_init(struct waiting_set *set, enum node_role role, const struct sched_options *options,
                      const struct prefix_index *prefixes, const struct tenant_weight *weights, int n_weights);
void waiting_set_fini(struct waiting_set *set); // the set must be empty

int waiting_set_count(const struct waiting_set *set);

// Adds a request. `returned`: the request comes back from a node. It is overdue immediately, or first if the policy has
// no due times. Sets tenant_queue, which stays acquired until the request joins another set or waiting_set_release().
void waiting_set_add(struct waiting_set *set, struct sched_request *r, int64_t due_us, bool returned);
void waiting_set_remove(struct waiting_set *set, struct sched_request *r);
void waiting_set_release(struct sched_request *r); // releases its tenant queue when the request ends
void waiting_set_mark_overdue(struct waiting_set *set, struct sched_request *r);

// Makes the next requests of `queue` packable if nothing is packable, under BIN_BATCH and BIN_NONE.
void waiting_set_open_batch(struct waiting_set *set);

void waiting_set_asked(struct waiting_set *set,
                       struct sched_request *r); // removes it from the unasked requests, if it is one of them

// Returns the work due between the two times, in whole slots, not counting overdue requests.
struct cost_work waiting_set_due_between(const struct waiting_set *set, int64_t from_us, int64_t due_us);

// The transaction, see above.
void waiting_set_pick(struct waiting_set *set, struct sched_request *r);
void waiting_set_commit(struct waiting_set *set); // `picked` stays readable until the next pick
void waiting_set_roll_back(struct waiting_set *set);
