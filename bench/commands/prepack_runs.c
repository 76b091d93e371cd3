// SPDX-License-Identifier: Apache-2.0
// Finds the runs of `forepack bench prepack` and computes what they need.
#include "bench/commands/prepack.h"

#include <stddef.h>

bool prepack_uses_batches(enum prepack_policy policy)
{
    return policy != PREPACK_DATASET && policy != PREPACK_NONE && policy != PREPACK_FULL_BINS;
}

struct prepack_run *prepack_find_run(const struct prepack_bench *b, enum prepack_policy policy, int batch_size)
{
    for (int i = 0; i < b->n_runs; i++) {
        const struct prepack_plan *plan = &b->runs[i].plan;
        if (plan->policy == policy && (!prepack_uses_batches(policy) || plan->batch_size == batch_size))
            return &b->runs[i];
    }
    return NULL;
}

struct prepack_need prepack_run_need(const struct prepack_bench *b, const struct prepack_run *run)
{
    return prepack_plan_need(&run->plan, run->prompts->length, &b->memory);
}
