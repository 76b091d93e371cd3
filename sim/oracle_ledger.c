// SPDX-License-Identifier: Apache-2.0
#include "sim/oracle_ledger.h"

#include <math.h>

#include "lib/base/mem.h"
#include "sim/oracle_waiting.h"

struct charges {
    const struct tenant_queues *owner;
    uint64_t number; // of the queue
    double served;
};

// The router of one scenario runs at a time.
static struct charges *all; // [n]
static int n, capacity;

void oracle_ledger_begin(void)
{
    n = 0;
}

static struct charges *charges_of(const struct tenant_queue *queue)
{
    for (int i = n - 1; i >= 0; i--)
        if (all[i].owner == queue->owner && all[i].number == queue->number) return &all[i];
    MEM_GROW(all, n, capacity);
    all[n] = (struct charges){.owner = queue->owner, .number = queue->number};
    return &all[n++];
}

void oracle_ledger_rows(const struct request *r, int64_t rows)
{
    charges_of(r->sched.tenant_queue)->served += (double)rows / r->sched.tenant_queue->weight;
}

void oracle_ledger_output(const struct world *w, const struct request *r, int tokens, int on_host)
{
    const double row_entries = 16384; // vocabulary entries that the host samples from count as a row
    double rows = 2 * tokens + on_host * (double)w->scenario->options.vocab / row_entries;
    charges_of(r->sched.tenant_queue)->served += rows / r->sched.tenant_queue->weight;
}

// Returns the smallest counter of the queues of the same priority that have requests, or where the last one stood.
static double active_counter(const struct tenant_queue *queue)
{
    double least = INFINITY;
    for (size_t b = 0; b < queue->owner->n_buckets; b++)
        for (const struct tenant_queue *other = queue->owner->buckets[b]; other; other = other->next)
            if (other->level == queue->level && other->in_level) least = fmin(least, other->served);
    return isfinite(least) ? least : queue->owner->levels[queue->level].floor;
}

void __real_tenant_queue_catch_up(struct tenant_queue *queue);
void __wrap_tenant_queue_catch_up(struct tenant_queue *queue);

void __wrap_tenant_queue_catch_up(struct tenant_queue *queue)
{
    double before = queue->served, active = active_counter(queue);
    __real_tenant_queue_catch_up(queue);
    if (!queue->packable.count && active > before) charges_of(queue)->served += active - before;
}

void oracle_ledger_check(struct world *w, const struct waiting_set *set)
{
    for (size_t b = 0; b < set->tenants.n_buckets; b++) {
        for (const struct tenant_queue *queue = set->tenants.buckets[b]; queue; queue = queue->next) {
            double served = charges_of(queue)->served;
            HOLDS(fabs(served - queue->served) <= 1e-6 * (1 + served));
        }
    }
}
