// SPDX-License-Identifier: Apache-2.0
#include "router/sched/prefix_tails.h"

#include <stdlib.h>

#include "lib/base/mem.h"

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

static void tail_clear(struct prefix_tail *tail)
{
    free(tail->chain);
    *tail = (struct prefix_tail){0, 0, NULL, 0};
}

// Returns the tail of the oldest bin. If `used` is false, an unused entry is returned first.
static struct prefix_tail *tails_oldest(struct prefix_tails *tails, bool used)
{
    struct prefix_tail *oldest = NULL;
    for (int i = 0; i < PREFIX_TAILS; i++) {
        struct prefix_tail *tail = &tails->tail[i];
        if ((tail->bin || !used) && (!oldest || tail->bin < oldest->bin)) oldest = tail;
    }
    return oldest;
}

static int tails_blocks(const struct prefix_tails *tails)
{
    int blocks = 0;
    for (int i = 0; i < PREFIX_TAILS; i++)
        blocks += tails->tail[i].n;
    return blocks;
}

// Stores a tail. Replaces the tail of the same tenant queue, and clears the oldest tails until there is room.
static void tails_store(struct prefix_tails *tails, const struct sched_request *r, uint64_t bin)
{
    uint64_t number = r->tenant_queue->number;
    int n = r->n_prefix < PREFIX_TAILS_BLOCKS ? r->n_prefix : PREFIX_TAILS_BLOCKS;
    for (int i = 0; i < PREFIX_TAILS; i++)
        if (tails->tail[i].tenant_queue == number) tail_clear(&tails->tail[i]);
    while (tails_blocks(tails) + n > PREFIX_TAILS_BLOCKS)
        tail_clear(tails_oldest(tails, true));
    struct prefix_tail *tail = tails_oldest(tails, false);
    tail_clear(tail);
    *tail = (struct prefix_tail){number, bin, mem_copy(r->prefix, (size_t)n * sizeof *r->prefix), n};
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
