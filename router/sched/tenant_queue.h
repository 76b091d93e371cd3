// SPDX-License-Identifier: Apache-2.0
// Tenant queues: the waiting requests of one tenant and priority for one pool, and the fairness between them. Tenants
// of one priority share capacity by tokens (virtual token counter, arXiv 2401.00588): the queue with the smallest
// counter goes next. A queue that was empty starts at the counter of the active queues, so a tenant without requests
// earns no credit. Only the waiting set uses these functions, except tenant_queue_charge(), tenant_queue_add_slots()
// and tenant_queue_release(). One thread.
#pragma once

#include "lib/base/hash.h"
#include "router/sched/length_index.h"

struct tenant_weight {
    const char *tenant;
    double weight; // tokens that this tenant gets for each token of a tenant with no weight
};

// Exists while a request waits in the queue, or is on a node after it waited in the queue.
struct tenant_queue {
    struct tenant_queues *owner;
    uint64_t number; // unique in its pool and never reused, unlike the queue's address
    char *tenant;
    int level;                    // see sched_priority_level()
    int refs;                     // requests that wait in the queue or run from it
    struct length_index packable; // requests of the queue that may be packed
    double served;                // the virtual token counter: (rows dispatched + charge for output) / weight
    double weight;
    double held; // accounts: sum of the shares of worker groups that its requests take
    int slots;   // accounts: number of its requests on worker groups; see tenant_queue_add_slots()
    struct tenant_queue *holder_prev, *holder_next; // links in tenant_queues.holders while slots > 0
    int n_picked;              // number of its requests in the bin being filled; the waiting set writes it
    struct tenant_queue *next; // next queue in the hash bucket
    // True while the queue is in the tree of its level: it has packable requests and is not set aside. The next three
    // fields are valid only then.
    bool in_level;
    struct tenant_queue *lower, *higher;
    struct request_need subtree_min;
    uint64_t tree_weight; // keyed hash of `number`, so that no client can unbalance the tree
    // Last request of the queue in the bin being filled, or NULL. The waiting set writes it.
    const struct sched_request *last_picked;
    struct tenant_queue *aside; // next queue in the list of queues that were set aside
};

// The queues of one priority that have packable requests, ordered by counter and then by age. They form a treap (see
// request_tree.h). Each subtree stores the smallest needs of its requests, so a search steps over queues in which no
// request fits.
struct tenant_level {
    struct tenant_queue *root;
    double floor; // counter at which a queue starts if the tree is empty
};

struct tenant_queues {
    const struct tenant_weight *weights; // borrowed
    int n_weights;
    struct tenant_level levels[PRIORITY_LEVELS];
    struct tenant_queue **buckets; // by tenant
    size_t n_buckets;
    struct tenant_queue *holders; // the queues that have requests on worker groups
    struct hash_key hash_key;
    int n;
    uint64_t last_number;
};
void tenant_queues_init(struct tenant_queues *queues, const struct hash_key *key, const struct tenant_weight *weights,
                        int n_weights);
void tenant_queues_fini(struct tenant_queues *queues);

// Returns the queue of the request's tenant and priority. Creates the queue if there is none. The caller gets a
// reference, and releases it with tenant_queue_release().
struct tenant_queue *tenant_queue_acquire(struct tenant_queues *queues, const struct sched_request *r);
void tenant_queue_release(struct tenant_queue *queue);
// Charges the tenant's counter; `tokens` may be negative.
void tenant_queue_charge(struct tenant_queue *queue, double tokens);

// Counts `more` requests of the queue on worker groups; it may be negative.
void tenant_queue_add_slots(struct tenant_queue *queue, int more);

// Returns true if `queue` holds no more than `other` for each unit of its weight after it gets `more`, and `other`
// loses `less`, of a worker group.
bool tenant_queue_holds_less(const struct tenant_queue *queue, double more, const struct tenant_queue *other,
                             double less);

// Raises the counter of an empty queue to the counter of the active queues. Call before a request is added.
void tenant_queue_catch_up(struct tenant_queue *queue);
void tenant_queue_add(struct tenant_queue *queue, struct sched_request *r);
void tenant_queue_remove(struct tenant_queue *queue, struct sched_request *r);

// Returns the queue with the smallest counter among the queues with a request that needs at most `max`, or NULL.
struct tenant_queue *tenant_queues_next(struct tenant_queues *queues, int level, const struct request_need *max);
// Removes the queue from its level for the rest of a plan, because none of its requests fits. Adds the queue to the
// list *aside.
void tenant_queue_set_aside(struct tenant_queue *queue, struct tenant_queue **aside);
void tenant_queues_resume(struct tenant_queue *aside); // resumes every queue of the list
