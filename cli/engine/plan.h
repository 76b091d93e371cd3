// SPDX-License-Identifier: Apache-2.0
// The parts of `forepack plan`:
//
//     plan.c           options, the memory of one group, and the choice between the two answers
//     plan_memory.c    memory of a group on GPUs, by pipeline stages, and the data of its passes
//     plan_group.c     the divisions of a number of GPUs into stages and tensor-parallel ranks, and the best of them
//     capacity.c       the highest load of a group, from the time of its passes
//     sizing.c         the smallest cluster that keeps limits on TTFT and ITL
//     sizing_run.c     runs forepack-sim for a cluster
//     sizing_report.c  the answer as text and JSON
#pragma once

#include <jansson.h>

#include "engine/model/model.h"
#include "engine/model/pass_cost.h"
#include "engine/model/stages.h"
#include "lib/base/number_list.h"

struct plan_flags {
    char *model, *shape, *dtype, *kv_dtype, *allreduce_dtype, *spec_shape, *spec_dtype, *gpu;
    char *prompt_tokens, *qps, *trace, *pp_layers;
    int64_t tp, pp, gpus, gpu_mib, token_budget, max_seqs, max_context, host_gpus, spec_tp;
    int64_t output_tokens, shared_tokens, tail_tokens;
    double gpu_memory_utilization, keep_rate, disk_rate, upload_rate, ttft_p95_s, itl_p95_s;
    bool json;
    bool tp_given, pp_given, seqs_given, budget_given; // flags or the --config file have set the option
};

// Limits of a node in a plan for a load, unless options give them.
enum { PLAN_SEQS_DEFAULT = 256, PLAN_BUDGET_DEFAULT = 8192 };

#define PLAN_MIB(bytes) ((double)(bytes) / (1 << 20))

// Memory of a model on one GPU of its group.
struct plan_memory {
    struct memory_plan rank; // of rank 0, which needs the most of its stage, the last one
    double kv_mib;           // left for the KV cache; negative: missing
    int64_t kv_blocks;       // of the stage with the least room, which all stages have
    int n_stages;
    struct plan_stage {
        int layers;
        double weights_mib, block_mib; // of the weights; of a KV block
        double kv_mib;                 // left for the KV cache; negative: missing
    } stages[MODEL_STAGES_MAX];
};

// Returns the stage with the least room for KV blocks.
const struct plan_stage *plan_least_stage(const struct plan_memory *m);

// A model and the limits of its node.
struct plan_node {
    const char *path; // a model directory, or a config.json
    bool is_shape;    // `path` is a config.json
    const char *dtype;
    int64_t max_seqs, token_budget;
};

double plan_usable_mib(const struct plan_flags *flags); // memory of a GPU that the process may use
double plan_libraries_mib(const struct memory_plan *m); // memory of the driver and the libraries

// Computes the memory with `ranks` ranks in each of `n_stages` stages, whose layers --pp-layers may give. Fails if the
// model cannot be divided so.
enum status plan_memory_of(const struct plan_flags *flags, const struct plan_node *node, int ranks, int n_stages,
                           struct plan_memory *memory_p);

// Returns the data from which the time of a pass is computed, for `ranks` ranks in each stage of `memory` (NULL: one
// stage) on a device with `rates` (NULL: those of --gpu).
struct pass_shape plan_pass_shape(const struct plan_flags *flags, const struct model_config *config, const char *dtype,
                                  int ranks, const struct plan_memory *memory, const struct device_rates *rates);

// Prints the memory, the times and the highest load of each division of --gpus, for prompts of `prompt_tokens` tokens
// and answers of --output-tokens, and names the division that serves most requests. *code_p becomes 1 if the model fits
// no division. INVALID: the options allow no division.
enum status plan_group_print(const struct plan_flags *flags, double prompt_tokens, int *code_p);
