// SPDX-License-Identifier: Apache-2.0
#include "router/core/availability.h"

#include "router/core/loading.h"

enum status core_fail_no_node(const struct core *c, enum node_role role)
{
    const char *what = role == NODE_WORKER ? "worker group" : "speculator";
    for (const struct sched_node *node = c->view.nodes; node; node = node->next) {
        if (node->role == role)
            return status_fail(STATUS_UNAVAILABLE, "every attached %s is draining or ejected: try again later", what);
    }
    const int percent = loading_percent(c, role);
    if (percent >= 0)
        return status_fail(STATUS_UNAVAILABLE, "no %s is ready: one loads its weights (%d %% done): try again later",
                           what, percent);
    return status_fail(STATUS_UNAVAILABLE, "no %s is attached: start a forepack-%s, or try again later", what,
                       role_name(role));
}

const char *core_calibration_problem(const struct core *c)
{
    bool any = false;
    for (const struct core_node *node = core_first_node(c); node; node = core_node_next(node))
        any |= node->hello.role == NODE_SPECULATOR && node->hello.calibration.fingerprint;
    if (!any) return NULL;
    if (!c->calibration.fingerprint) return "the speculators do not all have the same calibration";
    if (c->model_fingerprint && c->calibration.main_fingerprint != c->model_fingerprint)
        return "the calibration was made for another main model";
    bool other_tail = c->calibration.tail_tokens != c->options.tail_tokens;
    return other_tail ? "the calibration was made for another tail window than the router's --tail-tokens" : NULL;
}

bool core_quality_applies(const struct core *c, const struct prefill *prefill)
{
    const struct node_calibration *calibration = &c->calibration;
    uint64_t main = c->model_fingerprint;
    return calibration->fingerprint && (!main || main == calibration->main_fingerprint) && !prefill->paper_exact &&
           prefill->look_ahead == calibration->look_ahead && prefill->chunk_tokens == calibration->chunk_tokens &&
           prefill->pool_window == calibration->pool_window && c->options.tail_tokens == calibration->tail_tokens;
}

bool core_rate_holds(const struct core *c, const struct prefill *prefill)
{
    return prefill->quality == 0 || core_quality_applies(c, prefill);
}
