// SPDX-License-Identifier: Apache-2.0
#include "cli/engine/plan.h"

#include <string.h>

#include "worker/scheduler.h"

double plan_usable_mib(const struct plan_flags *flags)
{
    return flags->gpu_memory_utilization * (double)flags->gpu_mib;
}

double plan_libraries_mib(const struct memory_plan *m)
{
    return PLAN_MIB(m->runtime_bytes) + PLAN_MIB(m->nccl_bytes) + PLAN_MIB(m->allocated.rounding);
}

static struct plan_stage stage_of(const struct plan_flags *flags, const struct memory_plan *m, int layers)
{
    return (struct plan_stage){.layers = layers,
                               .weights_mib = PLAN_MIB(m->allocated.bytes[MEMORY_WEIGHTS]),
                               .block_mib = PLAN_MIB(m->kv_block_bytes),
                               .kv_mib = plan_usable_mib(flags) - PLAN_MIB(device_memory_total(&m->allocated)) -
                                         plan_libraries_mib(m)};
}

// Returns the KV blocks that fit. One further block is for padding rows of captured passes.
static int64_t stage_blocks(const struct plan_stage *s)
{
    const double left_mib = s->kv_mib - s->block_mib;
    return left_mib > 0 ? (int64_t)(left_mib / s->block_mib) : 0;
}

const struct plan_stage *plan_least_stage(const struct plan_memory *m)
{
    const struct plan_stage *least = &m->stages[0];
    for (int i = 1; i < m->n_stages; i++)
        if (m->stages[i].kv_mib / m->stages[i].block_mib < least->kv_mib / least->block_mib) least = &m->stages[i];
    return least;
}

enum status plan_memory_of(const struct plan_flags *flags, const struct plan_node *node, int ranks, int n_stages,
                           struct plan_memory *memory_p)
{
    struct model_config config;
    int layers[MODEL_STAGES_MAX];
    TRY(model_config_read(node->path, &config));
    TRY(stages_divide(&config, n_stages > 1 ? flags->pp_layers : NULL, n_stages, layers));
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
                                        .allreduce_dtype = flags->allreduce_dtype,
                                        .stages = n_stages,
                                        .stage_layers = n_stages > 1 ? flags->pp_layers : NULL};
    struct plan_memory memory = {.n_stages = n_stages};
    for (int i = 0; i < n_stages; i++) {
        struct memory_plan rank;
        TRY(model_plan(&model, (n_stages - 1 - i) * ranks, n_stages * ranks, &rank));
        memory.stages[i] = stage_of(flags, &rank, layers[i]);
        memory.rank = rank; // the last stage has rank 0
    }
    const struct plan_stage *least = plan_least_stage(&memory);
    memory.kv_mib = least->kv_mib;
    memory.kv_blocks = stage_blocks(least);
    *memory_p = memory;
    return STATUS_OK;
}

struct pass_shape plan_pass_shape(const struct plan_flags *flags, const struct model_config *config, const char *dtype,
                                  int ranks, const struct plan_memory *memory, const struct device_rates *rates)
{
    int layers[MODEL_STAGES_MAX];
    for (int i = 0; memory && i < memory->n_stages; i++)
        layers[i] = memory->stages[i].layers;
    struct pass_options options = {.ranks = ranks,
                                   .stages = memory ? memory->n_stages : 1,
                                   .stage_layers = layers,
                                   .kv_bytes = strcmp(flags->kv_dtype, "fp8") == 0 ? 1 : 2,
                                   .overlap_rows = MODEL_OVERLAP_ROWS};
    pass_type_parse(dtype, config, &options.type);
    return pass_shape_of(config, rates ? rates : device_rates_find(flags->gpu), &options);
}
