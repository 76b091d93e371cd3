// SPDX-License-Identifier: Apache-2.0
#include "router/core/node_gpus.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

static void grow(struct node_gpus *gpus, int n)
{
    if (n <= gpus->n) return;
    gpus->gpus = mem_resize(gpus->gpus, (size_t)n, sizeof *gpus->gpus);
    memset(gpus->gpus + gpus->n, 0, (size_t)(n - gpus->n) * sizeof *gpus->gpus);
    gpus->n = n;
}

void node_gpus_update(struct node_gpus *gpus, const struct node_gpu *reported, int n_reported, int ranks)
{
    const int limit = ranks < NODE_GPUS_MAX ? ranks : NODE_GPUS_MAX;
    for (int rank = 0; rank < gpus->n; rank++)
        gpus->gpus[rank].reported = gpus->gpus[rank].known = false;
    for (int i = 0; i < n_reported; i++) {
        const int rank = reported[i].rank;
        if (rank < 0 || rank >= limit) continue;
        grow(gpus, rank + 1);
        gpus->gpus[rank] = reported[i];
        gpus->gpus[rank].seen = gpus->gpus[rank].reported = true;
    }
}

struct node_gpus node_gpus_copy(const struct node_gpus *gpus)
{
    struct node_gpus copy = {.n = gpus->n};
    if (!gpus->n) return copy;
    copy.gpus = mem_alloc_array((size_t)gpus->n, sizeof *copy.gpus);
    memcpy(copy.gpus, gpus->gpus, (size_t)gpus->n * sizeof *copy.gpus);
    return copy;
}

void node_gpus_fini(struct node_gpus *gpus)
{
    free(gpus->gpus);
    *gpus = (struct node_gpus){0};
}
