// SPDX-License-Identifier: Apache-2.0
#include "router/sched/prefix_tails.h"

#include <stdlib.h>

#include "base/mem.h"

void prefix_tails_fini(struct prefix_tails *tails)
{
    for (int i = 0; i < PREFIX_TAILS; i++)
        free(tails->tail[i].chain);
}

const struct prefix_tail *prefix_tails_find(const struct prefix_tails *tails, const struct tenant_queue *queue)
{
    for (int i = 0; i < PREFIX_TAILS; i++) {
        if (tails->tail[i].bin && tails->tail[i].tenant_queue == queue->number) return &tails->tail[i];
    }
    return NULL;
}

// Into the entry of its tenant queue, else into the one with the oldest bin.
static void tails_store(struct prefix_tails *tails, const struct sched_request *r, uint64_t bin)
{
    uint64_t number = r->tenant_queue->number;
    struct prefix_tail *tail = &tails->tail[0];
    for (int i = 0; i < PREFIX_TAILS && tail->tenant_queue != number; i++)
        if (tails->tail[i].tenant_queue == number || tails->tail[i].bin < tail->bin) tail = &tails->tail[i];
    free(tail->chain);
    *tail =
        (struct prefix_tail){number, bin, mem_copy(r->prefix, (size_t)r->n_prefix * sizeof *r->prefix), r->n_prefix};
}

int prefix_tails_update(struct prefix_tails *tails, const struct waiting_set *set, uint64_t bin,
                        struct sched_request *const *requests, int n)
{
    int scan_cost = 0;
    for (int i = n - 1; i >= 0; i--) {
        const struct sched_request *r = requests[i];
        const struct prefix_tail *tail = prefix_tails_find(tails, r->tenant_queue);
        if (tail && tail->bin == bin) continue;
        struct prefix_walk walk;
        prefix_walk_start(&walk, &set->groups, r->tenant_queue, r->prefix, r->n_prefix);
        if (prefix_walk_next(&walk)) tails_store(tails, r, bin);
        scan_cost += walk.scan_cost;
    }
    return scan_cost;
}
