// SPDX-License-Identifier: Apache-2.0
#include "router/core/score_plan.h"

#include "router/core/availability.h"
#include "router/core/request_selection.h"
#include "router/core/score_sharing.h"
#include "router/sched/estimate.h"

// Returns true if the request lets the router keep all tokens when that is faster.
static bool may_keep_all(const struct request *r)
{
    return !r->spec.score_only && r->spec.prefill.mode == PREFILL_AUTO;
}

static bool keeps_all(const struct prefill *prefill)
{
    return prefill->quality > 0 ? prefill->quality >= 1 : prefill->keep_rate >= 1;
}

void score_plan_settle_quality(const struct core *c, struct request *r)
{
    struct prefill *prefill = &r->spec.prefill;
    if (prefill->keep_rate < 1 && !core_quality_applies(c, prefill)) prefill->quality = 0;
}

// Returns why no speculator scores the request, or SKIP_NONE if a speculator can score it.
static enum skip_reason skip_reason_of(const struct core *c, const struct request *r)
{
    const struct prefill *prefill = &r->spec.prefill;
    if (prefill->mode == PREFILL_OFF) return SKIP_OFF;
    if (!r->spec.score_only) {
        if (keeps_all(prefill)) return SKIP_KEEP_ALL; // with mode required, too: nothing would be pruned
        if (may_keep_all(r) && r->spec.n_tokens < c->options.min_tokens) return SKIP_SHORT;
    }
    if (!r->resume.mark && shadow_falls_back(c, r)) return SKIP_FALLBACK; // a resumed answer stays as it began
    if (!c->open_nodes[NODE_SPECULATOR]) return SKIP_NO_NODE;
    if (!sched_pool_can_hold(&c->view, NODE_SPECULATOR, &r->sched)) return SKIP_TOO_LONG;
    if (!r->spec.score_only && prefill->quality > 0 && !core_quality_applies(c, prefill)) return SKIP_UNCALIBRATED;
    return SKIP_NONE;
}

// Predicts the times that the client is told, for a prefill mode whose decision does not need them. If the costs of
// speculators are not known, only the time of the whole prompt can be predicted.
static void predict(const struct core *c, struct request *r, int64_t now_us)
{
    struct estimate whole;
    estimate_speculation_pays(&c->view, &r->sched, now_us, &r->predicted);
    if (r->predicted.whole_us > 0 || !estimate_first_token(&c->view, &r->sched, false, now_us, &whole)) return;
    r->predicted.whole_us = whole.wait_us + whole.own_us;
}

// Makes the plan. A score that is reused or shared costs nothing, so pruning always pays. A new score is compared with
// keeping all tokens.
struct score_plan score_plan_make(struct core *c, struct request *r, int64_t now_us)
{
    if (r->spec.explain) predict(c, r, now_us);
    enum skip_reason skip = skip_reason_of(c, r);
    if (skip != SKIP_NONE) return (struct score_plan){.action = SCORE_SKIP, .skip = skip};
    if (core_request_find_selection(c, r)) return (struct score_plan){.action = SCORE_REUSE};
    struct request *scored = score_sharing_find(c, r);
    if (scored) return (struct score_plan){.action = SCORE_SHARE, .scored = scored};
    if (may_keep_all(r) && !estimate_speculation_pays(&c->view, &r->sched, now_us, &r->predicted))
        return (struct score_plan){.action = SCORE_SKIP, .skip = SKIP_COST};
    return (struct score_plan){.action = SCORE_RUN};
}
