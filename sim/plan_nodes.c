// SPDX-License-Identifier: Apache-2.0
// The nodes of a plan: their limits, and the costs of their passes, which are given, measured by a running cluster, or
// computed.
#include <math.h>
#include <string.h>

#include "engine/block_manager.h"
#include "engine/model/pass_cost.h"
#include "lib/text/json_file.h"
#include "sim/plan.h"

enum { TOKEN_BUDGET_DEFAULT = 2048, STATUS_BYTES_MAX = 64 << 20 };
static const double DRAFT_SHARE = 0.25; // share of a speculator's KV blocks; the default of --draft-kv-share
static const char *const role_names[NODE_ROLES] = {"speculator", "worker"};

// Known data of the nodes of a role.
struct known {
    struct plan_costs costs;
    struct measured_passes passes;
    int64_t token_budget, kv_blocks; // 0: unknown
    double gap_us;                   // between two passes
};

static bool costs_known(const struct plan_costs *costs)
{
    return costs->fixed_us + costs->row_us + costs->pair_us > 0;
}

// --- measured

// Returns the node's mean time between two passes while it has work.
static double gap_read(const json_t *node)
{
    double gaps = json_number_value(json_object_get(node, "pass_gap_count"));
    double gap_s = json_number_value(json_object_get(node, "pass_gap_s"));
    return gaps > 0 && gap_s > 0 ? gap_s * 1e6 / gaps : 0;
}

static void known_read(const json_t *nodes, const char *role, struct known *known)
{
    size_t i;
    json_t *node;
    json_array_foreach(nodes, i, node)
    {
        const char *name = json_string_value(json_object_get(node, "role"));
        if (!name || strcmp(name, role) != 0) continue;
        *known = (struct known){.costs = {.fixed_us = json_number_value(json_object_get(node, "pass_fixed_us")),
                                          .row_us = json_number_value(json_object_get(node, "pass_row_us")),
                                          .pair_us = json_number_value(json_object_get(node, "pass_pair_us"))},
                                .token_budget = json_integer_value(json_object_get(node, "token_budget")),
                                .kv_blocks = json_integer_value(json_object_get(node, "kv_blocks")),
                                .gap_us = gap_read(node)};
        measured_passes_read(&known->passes, node, known->costs.row_us, known->costs.pair_us);
        if (costs_known(&known->costs)) return;
    }
}

static enum status status_read(const struct plan_options *o, struct known *known)
{
    json_t *object;
    if (!o->status) return STATUS_OK;
    enum status status = json_file_read(o->status, STATUS_BYTES_MAX, &object);
    if (status != STATUS_OK) return status;
    const json_t *nodes = json_object_get(object, "nodes");
    if (json_is_array(nodes)) {
        for (int role = 0; role < NODE_ROLES; role++)
            known_read(nodes, role_names[role], &known[role]);
    } else {
        status =
            status_fail(STATUS_DATA, "%s: has no list \"nodes\": give the output of forepack status --json", o->status);
    }
    json_decref(object);
    return status;
}

// --- computed

// Returns the costs on a line through two passes of prompts, for the report. The passes themselves take the time of the
// model.
static struct plan_costs costs_of_model(const struct pass_shape *m, double rows)
{
    struct pass_work one = {0}, many = {0};
    pass_work_add(&one, m, 1, 1, 0, true);
    pass_work_add(&many, m, 1, rows, 0, true);
    const double pair_us = m->pair_flop / (m->device.tflops[RATE_BF16] * 1e6 * m->attention_share);
    const double fixed_us = pass_cost_of(m, &one).total_us;
    const double rows_us = pass_cost_of(m, &many).total_us - fixed_us - pair_us * rows * (rows + 1) / 2;
    return (struct plan_costs){fixed_us, fmax(rows_us, 0) / rows, pair_us};
}

static enum status costs_compute(struct plan *plan, int role, struct known *known)
{
    const struct plan_options *o = plan->o;
    const struct model_config *shape = &plan->load.shape[role];
    const struct device_rates device =
        o->gpu ? *device_rates_find(o->gpu) : device_rates_of(o->tflops, o->gbytes_per_s);
    const int ranks = (int)(role == NODE_WORKER ? o->tp : o->spec_tp);
    struct pass_options options = {.ranks = ranks, .overlap_rows = MODEL_OVERLAP_ROWS};
    pass_type_parse(role == NODE_WORKER ? o->dtype : o->spec_dtype, shape, &options.type);
    options.kv_bytes = strcmp(o->kv_dtype, "fp8") == 0 || strcmp(o->kv_dtype, "int8") == 0 ? 1 : 2;
    plan->load.model[role] = pass_shape_of(shape, &device, &options);
    plan->load.computed[role] = true;
    known->costs =
        costs_of_model(&plan->load.model[role], (double)(o->token_budget ? o->token_budget : TOKEN_BUDGET_DEFAULT));
    known->gap_us = device.host_us;
    return STATUS_OK;
}

// --- the nodes

static enum status sources_check(const struct plan_options *o)
{
    if (o->gpu && o->status) return status_fail(STATUS_INVALID, "give one of --gpu and --status");
    if (o->gpu && (o->tflops > 0 || o->gbytes_per_s > 0))
        return status_fail(STATUS_INVALID, "give one of --gpu and --tflops with --gbytes-per-s");
    return STATUS_OK;
}

static enum status costs_settle(struct plan *plan, int role, struct known *known)
{
    const struct plan_options *o = plan->o;
    if (costs_known(&o->costs[role])) {
        known->costs = o->costs[role];
        known->passes = (struct measured_passes){.row_us = 0};
    } else if (o->gpu || (!o->status && o->tflops > 0 && o->gbytes_per_s > 0)) {
        return costs_compute(plan, role, known);
    } else if (!costs_known(&known->costs)) {
        const char *prefix = role == NODE_WORKER ? "" : "spec-";
        return status_fail(STATUS_INVALID,
                           "the costs of a pass of a %s are not known%s: give --gpu, or --%spass-fixed-us, "
                           "--%spass-row-us and --%spass-pair-us, or --status FILE, or --tflops and --gbytes-per-s",
                           role_names[role], o->status ? " to --status" : "", prefix, prefix, prefix);
    }
    return STATUS_OK;
}

static enum status node_make(struct plan *plan, int role, struct known *known)
{
    const struct plan_options *o = plan->o;
    enum status status = costs_settle(plan, role, known);
    if (status != STATUS_OK) return status;
    const struct model_config *shape = &plan->load.shape[role];
    int64_t budget = o->token_budget ? o->token_budget : known->token_budget, kv_blocks = known->kv_blocks;
    int64_t context = shape->max_context;
    if (shape->sliding_window && shape->sliding_window < context) context = shape->sliding_window;
    if (role == NODE_WORKER && o->kv_blocks) kv_blocks = o->kv_blocks;
    if (role == NODE_SPECULATOR && o->spec_kv_blocks) kv_blocks = o->spec_kv_blocks;
    if (!kv_blocks) kv_blocks = kv_blocks_for((int)context) * o->max_seqs;
    if (kv_blocks * KV_BLOCK_TOKENS < context) context = kv_blocks * KV_BLOCK_TOKENS;
    plan->node[role] = (struct scenario_node){.role = role,
                                              .up = 1,
                                              .context = context,
                                              .budget = budget ? budget : TOKEN_BUDGET_DEFAULT,
                                              .kv_blocks = kv_blocks,
                                              .max_seqs = o->max_seqs,
                                              .prefix_cache = o->prefix_cache,
                                              .draft_blocks = role == NODE_SPECULATOR && o->draft_acceptance > 0
                                                                  ? (int64_t)(DRAFT_SHARE * (double)kv_blocks)
                                                                  : 0,
                                              .fixed_us = llround(known->costs.fixed_us),
                                              .row_ns = llround(known->costs.row_us * 1e3),
                                              .pair_ps = llround(known->costs.pair_us * 1e6),
                                              .gap_us = llround(known->gap_us),
                                              .itl_target_ms = o->itl_target_ms,
                                              .noise_percent = o->noise_percent < 0 ? 0 : o->noise_percent};
    plan->load.passes[role] = known->passes;
    if (o->noise_percent >= 0) measured_passes_forget_deviations(&plan->load.passes[role]);
    if (o->max_seqs > plan->node[role].budget)
        return status_fail(STATUS_INVALID, "--max-num-seqs %lld: must be at most --max-num-batched-tokens (%lld)",
                           (long long)o->max_seqs, (long long)plan->node[role].budget);
    return STATUS_OK;
}

enum status plan_nodes_make(struct plan *plan)
{
    const struct plan_options *o = plan->o;
    struct known known[NODE_ROLES] = {{.kv_blocks = 0}};
    plan->nodes[NODE_WORKER] = (int)o->workers;
    plan->nodes[NODE_SPECULATOR] = (int)o->speculators;
    enum status status = model_config_read(o->shape, &plan->load.shape[NODE_WORKER]);
    if (status == STATUS_OK && o->speculators)
        status = model_config_read(o->spec_shape, &plan->load.shape[NODE_SPECULATOR]);
    if (status == STATUS_OK) status = sources_check(o);
    if (status == STATUS_OK) status = status_read(o, known);
    for (int role = 0; role < NODE_ROLES && status == STATUS_OK; role++)
        if (plan->nodes[role]) status = node_make(plan, role, &known[role]);
    return status;
}
