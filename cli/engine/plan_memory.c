// SPDX-License-Identifier: Apache-2.0
#include "cli/engine/plan.h"
#include "worker/scheduler.h"

double plan_usable_mib(const struct plan_flags *flags)
{
    return flags->gpu_memory_utilization * (double)flags->gpu_mib;
}

double plan_libraries_mib(const struct memory_plan *m)
{
    return PLAN_MIB(m->runtime_bytes) + PLAN_MIB(m->nccl_bytes) + PLAN_MIB(m->allocated.rounding);
}

enum status plan_memory_of(const struct plan_flags *flags, const struct plan_node *node, int ranks,
                           struct plan_memory *memory_p)
{
    const struct model_options model = {.dir = node->path,
                                        .dummy = node->is_shape,
                                        .backend = "cuda",
                                        .dtype = node->dtype,
                                        .kv_dtype = flags->kv_dtype,
                                        .max_rows = (int)node->token_budget,
                                        .max_seqs = (int)node->max_seqs,
                                        .max_logit_rows =
                                            scheduler_logit_rows((int)node->max_seqs, (int)node->token_budget),
                                        .max_context = (int)flags->max_context,
                                        .allreduce_dtype = flags->allreduce_dtype};
    struct plan_memory memory;
    TRY(model_plan(&model, 0, ranks, &memory.rank));
    memory.kv_mib = plan_usable_mib(flags) - PLAN_MIB(device_memory_total(&memory.rank.allocated)) -
                    plan_libraries_mib(&memory.rank);
    // One block is for padding rows of captured passes.
    const double block_mib = PLAN_MIB(memory.rank.kv_block_bytes), left_mib = memory.kv_mib - block_mib;
    memory.kv_blocks = left_mib > 0 ? (int64_t)(left_mib / block_mib) : 0;
    *memory_p = memory;
    return STATUS_OK;
}
