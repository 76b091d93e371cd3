// SPDX-License-Identifier: Apache-2.0
#include "router/core/admission.h"

#include <string.h>

#include "router/core/availability.h"
#include "router/core/tenant_share.h"
#include "router/sched/estimate.h"

const char *queue_class_name(enum queue_class queue_class)
{
    static const char *const names[QUEUE_CLASSES] = {"low", "normal", "high"};
    return names[queue_class];
}

// Returns the part of a bound that a class may fill. Each class leaves a share of the whole to every higher class. The
// part is rounded up, so that every class has a place in a small queue.
int64_t admission_class_bound(const struct core *c, int64_t whole, enum queue_class queue_class)
{
    int64_t percent = 100 - (int64_t)(QUEUE_HIGH - queue_class) * c->options.queue_reserve_percent;
    return whole / 100 * percent + (whole % 100 * percent + 99) / 100;
}

const char *admission_queue_tenant(const struct core *c, const struct request *r)
{
    const char *tenant = r->spec.tenant ? r->spec.tenant : "";
    if (!c->options.n_tenant_weights) return tenant;
    for (int i = 0; i < c->options.n_tenant_weights; i++) {
        if (!strcmp(c->options.tenant_weights[i].tenant, tenant)) return tenant;
    }
    return "";
}

// Checks the tenant's part of the queue. `requests` and `tokens` bound the whole queue for the request's class.
static enum status check_tenant(const struct core *c, const struct request *r, int64_t requests, int64_t tokens)
{
    const struct tenant_account *tenant = tenant_accounts_find(&c->ledger.tenants, admission_queue_tenant(c, r));
    int percent = c->options.tenant_queue_percent;
    int64_t waiting_tokens = ledger_waiting_tokens(&c->ledger);
    if (!tenant) return STATUS_OK;
    if (tenant_share_allows(percent, tenant->waiting, 1, requests, core_waiting_requests(c)) &&
        tenant_share_allows(percent, tenant->waiting_tokens, request_queue_tokens(r), tokens, waiting_tokens))
        return STATUS_OK;
    return status_fail(STATUS_EXHAUSTED,
                       "the queue is full for this tenant: %d of its requests with %lld prompt tokens wait, and places "
                       "for %lld requests and %lld tokens are left for all tenants; try again later",
                       tenant->waiting, (long long)tenant->waiting_tokens,
                       (long long)(requests - core_waiting_requests(c)), (long long)(tokens - waiting_tokens));
}

static enum status check_queue(const struct core *c, const struct request *r)
{
    enum queue_class queue_class = ledger_class_of(r->spec.priority);
    const char *name = queue_class_name(queue_class);
    int64_t n_tokens = request_queue_tokens(r);
    const char *other = n_tokens > r->spec.n_tokens
                            ? " (its resumed tokens count, and 4 bytes of its grammar, stop strings, texts to compress "
                              "and turns' pinned ranges count as one)"
                            : "";
    int64_t requests = admission_class_bound(c, c->options.max_queue_requests, queue_class);
    int64_t tokens = admission_class_bound(c, c->options.max_queue_tokens, queue_class);
    int64_t waiting_tokens = ledger_waiting_tokens(&c->ledger);
    if (n_tokens > tokens) {
        return status_fail(
            STATUS_OUT_OF_RANGE,
            "the prompt of %lld tokens%s is longer than the router's whole queue may be (%lld tokens for %s "
            "priority)",
            (long long)n_tokens, other, (long long)tokens, name);
    }
    if (core_waiting_requests(c) >= requests) {
        return status_fail(STATUS_EXHAUSTED,
                           "the queue is full: %d requests wait, the limit for %s priority is %lld; try again later",
                           core_waiting_requests(c), name, (long long)requests);
    }
    if (waiting_tokens + n_tokens > tokens) {
        return status_fail(
            STATUS_EXHAUSTED,
            "the queue is full: prompts of %lld tokens wait and this one has %lld%s; the limit for %s priority is "
            "%lld; try again later",
            (long long)waiting_tokens, (long long)n_tokens, other, name, (long long)tokens);
    }
    return check_tenant(c, r, requests, tokens);
}

enum status admission_check_deadline(const struct core *c, const struct request *r, bool scored, int64_t now_us)
{
    int64_t left_us = r->spec.ttft_deadline_us - now_us;
    struct estimate estimate;
    if (r->spec.ttft_deadline_us == INT64_MAX || r->spec.score_only) return STATUS_OK;
    if (!estimate_first_token(&c->view, &r->sched, scored, now_us, &estimate)) return STATUS_OK;
    if (estimate.wait_us + estimate.own_us <= (double)left_us) return STATUS_OK;
    return status_fail(STATUS_DEADLINE,
                       "the first token would come in about %.0f ms (%.0f ms for requests ahead, %.0f ms for this "
                       "prompt), and %s leaves %.0f ms: allow more time, or try again later",
                       (estimate.wait_us + estimate.own_us) / 1e3, estimate.wait_us / 1e3, estimate.own_us / 1e3,
                       request_deadline_name(r), (double)left_us / 1e3);
}

// Returns the longest context of the attached worker groups and of worker groups that may come back.
static int longest_context(const struct core *c, int64_t now_us)
{
    int attached = sched_pool_context(&c->view, NODE_WORKER);
    int gone = now_us < core_grace_end_us(c) ? c->workers_gone_context : 0;
    return attached > gone ? attached : gone;
}

void admission_reduce_output(const struct core *c, struct request *r, int64_t now_us)
{
    int room = longest_context(c, now_us) - r->spec.n_tokens;
    struct sampling *s = &r->spec.sampling;
    if (r->spec.context.reduces && room >= 1 && s->max_tokens > room && s->min_tokens <= room) s->max_tokens = room;
}

static enum status check_worker(const struct core *c, const struct request *r, int64_t now_us)
{
    int n_tokens = r->spec.n_tokens, max_tokens = sampling_output_max(&r->spec.sampling);
    if (r->spec.sampling.max_tokens < 1)
        return status_fail(STATUS_INVALID, "max_tokens %d: must be 1 or more", max_tokens);
    if (sched_pool_can_hold(&c->view, NODE_WORKER, &r->sched)) return STATUS_OK;
    bool returns = sched_request_context(&r->sched, NODE_WORKER) <= c->workers_gone_context;
    if (returns && now_us < core_grace_end_us(c)) return STATUS_OK;
    if (!c->open_nodes[NODE_WORKER]) return core_fail_no_node(c, NODE_WORKER);
    int context = sched_pool_context(&c->view, NODE_WORKER);
    if (n_tokens + !r->spec.sampling.no_output > context)
        return context_refuse(r->spec.context.words, n_tokens, true, context, " on the attached worker groups");
    return status_fail(STATUS_OUT_OF_RANGE,
                       "a prompt of %d tokens with max_tokens %d needs a context of %lld: the attached worker groups "
                       "have %d",
                       n_tokens, max_tokens, (long long)n_tokens + max_tokens, context);
}

enum status admission_check(const struct core *c, const struct request *r, int64_t now_us)
{
    if (c->draining) return status_fail(STATUS_UNAVAILABLE, "the router is shutting down and takes no new requests");
    if (r->spec.n_tokens < 1) return status_fail(STATUS_INVALID, "the prompt is empty: at least one token is needed");
    if (r->id && !r->resume.given && request_table_find_id(&c->table, r->id, r->spec.owner)) {
        return status_fail(STATUS_EXISTS, "request_id \"%s\" is running already: choose another one", r->id);
    }
    if (r->spec.ttft_deadline_us <= now_us) {
        return status_fail(STATUS_DEADLINE, "%s had passed before the request was queued: allow more time",
                           request_deadline_name(r));
    }
    // A score-only request needs no worker group. score_plan_make() checks whether a speculator can score it.
    if (!r->spec.score_only) TRY(check_worker(c, r, now_us));
    return check_queue(c, r);
}
