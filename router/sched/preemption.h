// SPDX-License-Identifier: Apache-2.0
// Preemption: a waiting request gets the place of running requests. Otherwise a tenant with long answers in all
// sequence slots would make others wait for the end of these answers, whatever the order of the queue.
//
// A waiting request may take the place of a running request of
//
// - any tenant, if its priority is of a higher class (low, normal, high). A request that was overdue before it ran
//   loses its place to a higher class only after PREEMPT_TOKENS tokens: it does not wait twice for its first token;
// - another tenant whose priority is not higher, if its own tenant then holds no more of the worker groups than the
//   other tenant, for each unit of weight. `held` of a tenant queue (tenant_queue.h) is the tenant's holding. A tenant
//   that holds nothing may also take a place after PREEMPT_TOKENS tokens, so that tenants take turns if there are more
//   tenants than slots. Within a priority, a tenant that already holds a place, or that takes a turn, must also have
//   been served no more tokens than the other tenant (virtual token counter). So preemption never takes a place for a
//   request that the queue would not choose next.
//
// The preempted requests wait again as overdue requests, and go on with the tokens that they have.
//
// Bounds: each preemption moves what tenants hold towards balance, so none is undone by the next one. A request that
// was preempted before is preempted again only after new tokens: a sixteenth of the rows that it would lose, and at
// least PREEMPT_TOKENS, twice as many after each preemption. So the number of preemptions of an answer is at most
// logarithmic in its length.
#pragma once

#include "router/sched/view.h"
#include "router/sched/waiting_set.h"

enum { PREEMPT_TOKENS = 16, PREEMPT_MAX = 32 }; // PREEMPT_MAX: most requests that leave for one request

struct preemption {
    const struct sched_node *node; // NULL: no preemption
    struct tenant_queue *queue;    // the queue whose next request gets the place
    struct sched_request *leaving[PREEMPT_MAX];
    int n_leaving;            // 0: only a reservation of the node kept the request waiting
    uint64_t scan_cost;       // examined queues, tenants that hold slots, and requests
    uint64_t holders_scanned; // part of scan_cost: tenants that hold slots
};

// Chooses the next preemption for the requests that wait for the worker groups. It chooses the node that has
// the fewest rows to compute again.
void preemption_choose(const struct sched_view *view, struct waiting_set *set, struct preemption *preemption);
