// SPDX-License-Identifier: Apache-2.0
#include "sim/oracle_tails.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "router/sched/prefix_chain.h"
#include "router/sched/prefix_tails.h"

static const char *problem;

const char *oracle_tails_problem(void)
{
    const char *last = problem;
    problem = NULL;
    return last;
}

// Returns true if a waiting request of the same queue should follow this one.
static bool has_follower(const struct waiting_set *set, const struct sched_request *r)
{
    const struct request_list *lists[] = {&set->queue, &set->overdue};
    for (int k = 0; k < 2; k++) {
        for (const struct sched_request *other = lists[k]->first; other; other = other->next) {
            int common = prefix_chain_common(r->prefix, r->n_prefix, other->prefix, other->n_prefix);
            if (!other->packable || other->tenant_queue != r->tenant_queue || !common) continue;
            if (other->need.rows <= PREFIX_PAYS_ROWS * PREFIX_BLOCK * common) return true;
        }
    }
    return false;
}

static int oldest_of(const struct prefix_tail *tails, bool used)
{
    int oldest = -1;
    for (int i = 0; i < PREFIX_TAILS; i++)
        if ((tails[i].bin || !used) && (oldest < 0 || tails[i].bin < tails[oldest].bin)) oldest = i;
    return oldest;
}

static void forget(struct prefix_tail *tail)
{
    *tail = (struct prefix_tail){.n = 0};
}

// Remembers the chain of `r` for its queue. Borrows the chain.
static void remember(struct prefix_tail *tails, const struct sched_request *r, uint64_t bin)
{
    int n = r->n_prefix < PREFIX_TAILS_BLOCKS ? r->n_prefix : PREFIX_TAILS_BLOCKS, sum = n;
    for (int i = 0; i < PREFIX_TAILS; i++)
        if (tails[i].tenant_queue == r->tenant_queue->number) forget(&tails[i]);
    for (int i = 0; i < PREFIX_TAILS; i++)
        sum += tails[i].n;
    while (sum > PREFIX_TAILS_BLOCKS) {
        struct prefix_tail *oldest = &tails[oldest_of(tails, true)];
        sum -= oldest->n;
        forget(oldest);
    }
    tails[oldest_of(tails, false)] = (struct prefix_tail){r->tenant_queue->number, bin, r->prefix, n};
}

// Remembers, for each queue, the last request of the bin that has a follower.
static void predict(struct prefix_tail *tails, const struct waiting_set *set, uint64_t bin,
                    struct sched_request *const *requests, int n)
{
    for (int i = n - 1; i >= 0; i--) {
        bool is_known = !has_follower(set, requests[i]);
        for (int k = 0; k < PREFIX_TAILS; k++)
            is_known |= tails[k].bin == bin && tails[k].tenant_queue == requests[i]->tenant_queue->number;
        if (!is_known) remember(tails, requests[i], bin);
    }
}

static bool is_same(const struct prefix_tail *a, const struct prefix_tail *b)
{
    return a->bin == b->bin && a->n == b->n && a->tenant_queue == b->tenant_queue &&
           (!a->n || memcmp(a->chain, b->chain, (size_t)a->n * sizeof *a->chain) == 0);
}

int __real_prefix_tails_update(struct prefix_tails *tails, const struct waiting_set *set, uint64_t bin,
                               struct sched_request *const *requests, int n);
int __wrap_prefix_tails_update(struct prefix_tails *tails, const struct waiting_set *set, uint64_t bin,
                               struct sched_request *const *requests, int n);

int __wrap_prefix_tails_update(struct prefix_tails *tails, const struct waiting_set *set, uint64_t bin,
                               struct sched_request *const *requests, int n)
{
    struct prefix_tail before[PREFIX_TAILS], expected[PREFIX_TAILS];
    for (int i = 0; i < PREFIX_TAILS; i++) {
        expected[i] = before[i] = tails->tail[i];
        if (before[i].n) before[i].chain = mem_copy(before[i].chain, (size_t)before[i].n * sizeof *before[i].chain);
        expected[i].chain = before[i].chain;
    }
    predict(expected, set, bin, requests, n);
    int scan_cost = __real_prefix_tails_update(tails, set, bin, requests, n);
    for (int i = 0; i < PREFIX_TAILS; i++)
        if (scan_cost < PREFIX_SCAN_MAX && !is_same(&expected[i], &tails->tail[i]))
            problem = "a remembered chain of a node's last bins does not follow from the rules";
    for (int i = 0; i < PREFIX_TAILS; i++)
        if (before[i].n) free(before[i].chain);
    return scan_cost;
}
