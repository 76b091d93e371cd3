// SPDX-License-Identifier: Apache-2.0
// A client's checks of its answer: every token, the end and its cause, usage and timing.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "router/core/shadow.h"
#include "router/sched/estimate.h"
#include "router/sched/node_time.h"
#include "sim/answers.h"
#include "sim/calibrations.h"
#include "sim/client_state.h"
#include "sim/expect_score.h"
#include "sim/oracle_estimate.h"
#include "sim/oracle_ledger.h"
#include "sim/router.h"

// --- intake

static bool queue_is_full(const struct client *client, const struct request *r);

// Returns the shortest time in which an idle worker group computes the whole prompt, by the learned costs, or 0 if it
// is not known.
static double least_us(const struct core *c, const struct request *r)
{
    double least = INFINITY;
    for (const struct core_node *node = core_first_node(c); node; node = core_node_next(node)) {
        if (node->hello.role != NODE_WORKER || !sched_node_can_hold(&node->sched, &r->sched)) continue;
        if (node->sched.prefixes || !node_time_is_known(&c->view, &node->sched, r->spec.n_tokens)) return 0;
        double rows = r->spec.n_tokens;
        least = fmin(least, cost_pass_us(&node->sched.cost, 1, rows, cost_pairs(rows, 0)));
    }
    return least;
}

static void check_estimate(struct client *client)
{
    const struct core *c = sim_router_core(client->w->router);
    const struct request *r = client->r;
    struct estimate estimate;
    if (!estimate_first_token(&c->view, &r->sched, r->skip == SKIP_NONE, client->w->now_us, &estimate)) return;
    if (!isfinite(estimate.wait_us) || !isfinite(estimate.own_us) || estimate.wait_us < 0 || estimate.own_us <= 0)
        client_fail(client, "the time until its first token is estimated as infinite or negative");
    oracle_estimate(client->w, c, &r->sched);
}

// Returns the tokens of the prompt and of the longest answer that the client may get.
static int64_t context_needed(const struct request *r)
{
    return (int64_t)r->spec.n_tokens + (r->spec.sampling.no_output ? 0 : r->spec.sampling.max_tokens);
}

// Returns true if the context of an attached worker group is long enough for the request.
static bool has_context(const struct world *w, const struct request *r)
{
    int64_t context = context_needed(r);
    for (const struct core_node *node = core_first_node(sim_router_core(w->router)); node; node = core_node_next(node))
        if (node->hello.role == NODE_WORKER && context <= node->hello.context_tokens) return true;
    return false;
}

// Returns true within the grace time, in which worker groups that left may come back.
static bool in_grace(const struct client *client)
{
    int64_t gone_us = sim_router_core(client->w->router)->workers_gone_us; // 0: none left
    return gone_us && client->w->now_us <= gone_us + client_options(client)->worker_grace_ms * 1000;
}

// Checks that an admitted request has a place in the queue, and a deadline that a node can meet.
static void check_admitted(struct client *client)
{
    const struct request *r = client->r;
    if (queue_is_full(client, r)) client_fail(client, "admitted though the queue is full");
    if (r->spec.ttft_deadline_us <= client->w->now_us) client_fail(client, "admitted though its deadline had passed");
    if (!r->spec.score_only && !has_context(client->w, r) && !in_grace(client))
        client_fail(client, "admitted though no worker group has a context for it");
    if (r->skip == SKIP_NONE || r->spec.ttft_deadline_us == INT64_MAX) return;
    double left_us = (double)(r->spec.ttft_deadline_us - client->w->now_us);
    double us = least_us(sim_router_core(client->w->router), r);
    if (isfinite(us) && us > left_us)
        world_fail(client->w,
                   "request %" PRId64 ": admitted with a deadline in %.0f us, the fastest node takes %.0f us alone",
                   client->plan->id, left_us, us);
}

// Returns true if all attached speculators have the same calibration, and it applies to the request's options.
static bool is_calibrated(const struct client *client, const struct prefill *prefill)
{
    const struct scenario *scenario = client->w->scenario;
    const struct calibration *first = NULL;
    for (const struct core_node *node = core_first_node(sim_router_core(client->w->router)); node;
         node = core_node_next(node)) {
        if (node->hello.role != NODE_SPECULATOR) continue;
        const struct calibration *own = sim_calibration(scenario->nodes[sim_router_node_of(node->link)].calibration);
        if (!first) first = own;
        if (!own || own != first) return false;
    }
    return first && first->main.model == SIM_MAIN_FINGERPRINT && first->tail_tokens == scenario->options.tail_tokens &&
           calibration_covers(first, prefill, 1, 0);
}

// Sets *any_p if a speculator takes work, and *fits_p if the context of such a speculator is long enough for the
// request.
static void count_speculators(const struct client *client, const struct request *r, bool *any_p, bool *fits_p)
{
    for (const struct core_node *node = core_first_node(sim_router_core(client->w->router)); node;
         node = core_node_next(node)) {
        if (node->hello.role != NODE_SPECULATOR || node->sched.draining) continue;
        *any_p = true;
        *fits_p |= r->spec.n_tokens + r->spec.prefill.look_ahead - 1 <= node->hello.context_tokens;
    }
}

// Returns why the prompt is not scored, derived from the attached nodes.
static enum skip_reason decided_skip(const struct client *client, const struct request *r)
{
    const struct prefill *prefill = &r->spec.prefill;
    bool any = false, fits = false, calibrated = is_calibrated(client, prefill);
    bool has_quality = client->quality > 0 && (prefill->keep_rate >= 1 || calibrated);
    count_speculators(client, r, &any, &fits);
    if (prefill->mode == PREFILL_OFF) return SKIP_OFF;
    if (has_quality ? client->quality >= 1 : prefill->keep_rate >= 1) return SKIP_KEEP_ALL;
    if (prefill->mode == PREFILL_AUTO && r->spec.n_tokens < client_options(client)->min_tokens) return SKIP_SHORT;
    if (shadow_falls_back(sim_router_core(client->w->router), r)) return SKIP_FALLBACK;
    if (!any) return SKIP_NO_NODE;
    if (!fits) return SKIP_TOO_LONG;
    return has_quality && !calibrated ? SKIP_UNCALIBRATED : SKIP_NONE;
}

// Returns true if the prompts may begin with the same tokens.
static bool begin_equally(const struct client *a, const struct client *b)
{
    const struct scenario_request *plan_a = &a->plan->request, *plan_b = &b->plan->request;
    int64_t source_a = plan_a->same_as ? plan_a->same_as : a->plan->id;
    int64_t source_b = plan_b->same_as ? plan_b->same_as : b->plan->id;
    return source_a == source_b || (plan_a->head && plan_a->head == plan_b->head) ||
           (plan_a->tail && plan_a->tail == plan_b->tail);
}

// Returns true if an earlier request with the same beginning has a tenant whose selections the request may reuse.
static bool may_reuse(const struct client *client)
{
    const struct scenario *scenario = client->w->scenario;
    for (int i = 0; i < scenario->n_actions; i++) {
        const struct client *other = &client->w->clients->of_action[i];
        if (!other->arrived || other == client || !begin_equally(other, client)) continue;
        if (!scenario->options.salted || other->plan->request.tenant == client->plan->request.tenant) return true;
    }
    return client->tries > 1 || client->r->spec.n_tokens < 32; // its own selection; short prompts are equal by chance
}

// Checks what the core decided about speculation.
void client_check_intake(struct client *client)
{
    const struct request *r = client->r;
    client->decided = SKIP_NONE;
    client->talks = r && expect_conversation(client->w->scenario, r) && sim_router_core(client->w->router)->scorer;
    if (r) check_admitted(client);
    if (r) check_estimate(client);
    if (!r || r->spec.score_only) return;
    enum skip_reason skip = client->decided = decided_skip(client, r);
    bool is_auto = r->spec.prefill.mode == PREFILL_AUTO, is_reused = r->usage.scored_tokens;
    if (is_reused && !may_reuse(client)) client_fail(client, "it reuses a selection of another tenant");
    if (skip == SKIP_NONE && r->skip == SKIP_COST && is_auto && !is_reused) return;
    // A speculator's selection that the router holds may keep all tokens; expect_rate() checks this reason later.
    if (skip == SKIP_NONE && is_reused && (r->skip == SKIP_UNSURE || r->skip == SKIP_UNCALIBRATED)) return;
    if (r->skip != skip)
        world_fail(client->w, "request %" PRId64 ": skipped for '%s', must be '%s'", client->plan->id,
                   skip_reason_name(r->skip), skip_reason_name(skip));
}

// --- tokens

// Checks log-probabilities of prompt tokens. The model is certain of one token after each entry.
void client_check_prompt_logprobs(void *user, const struct token_logprob *logprobs, int n)
{
    struct client *client = user;
    if (client->ended || !client->r || client->received) client_fail(client, "prompt log-probabilities after a token");
    const struct request_spec *spec = &client->r->spec;
    if (!client->n_prompt_logprobs) client->prompt_entry = ANSWER_START;
    oracle_ledger_output(client->w, client->r, 0, n);
    for (int i = 0; i < n && !client->w->failed; i++) {
        int at = client->n_prompt_logprobs++;
        client->prompt_entry = answer_entry(client->prompt_entry, spec->tokens[at], at);
        if (client->tainted) continue;
        const struct answer_rule rule = answer_rule_of(client_options(client), false);
        int32_t likeliest = answer_token(client->prompt_entry, -1, &rule);
        bool expected = spec->tokens[at + 1] == likeliest;
        const struct token_logprob *l = &logprobs[i];
        if (l->token != spec->tokens[at + 1] || l->n_top != 1 || l->top_token[0] != likeliest ||
            (l->rank == 1) != expected || (l->logprob == 0) != expected)
            client_fail(client, "a log-probability of its prompt is wrong");
    }
}

static void prompt_logprobs_check(struct client *client, const struct request *r)
{
    int wanted = r->spec.sampling.prompt_logprobs >= 0 ? r->spec.n_tokens - 1 : 0;
    if (client->n_prompt_logprobs != wanted) client_fail(client, "not all log-probabilities of its prompt came");
}

void client_check_token(struct client *client, const struct request *r, int32_t token)
{
    if (client->received == 0) prompt_logprobs_check(client, r);
    if (client->received == 0) expect_begin(&client->expect, client->plan, r, client_options(client));
    bool stops;
    int32_t expected = expect_next(&client->expect, &stops);
    if (!client->tainted && (token != expected || stops)) {
        world_fail(client->w, "request %" PRId64 ": token %d is %d, must be %d%s", client->plan->id, client->received,
                   token, expected, stops ? ", the end of the text" : "");
    }
    expect_advance(&client->expect, token);
    oracle_ledger_output(client->w, r, 1, sampling_needs_host(&r->spec.sampling, client->received));
    client->sends = client->losses = 0;
    client->received++;
    if (client->received > client->plan->request.max_tokens) client_fail(client, "got more tokens than max_tokens");
}

// --- the end

static void stop_check(struct client *client, const struct request *r)
{
    const struct scenario_request *plan = &client->plan->request;
    if (plan->score_only || (plan->stop_after && client->received == plan->stop_after)) return;
    if (client->received == 0) expect_begin(&client->expect, client->plan, r, client_options(client));
    bool stops;
    expect_next(&client->expect, &stops);
    if (!stops) client_fail(client, "the answer stopped before its end");
}

// Checks the total time. Unless the request was replayed or preempted, also checks that the parts of the time to first
// token add up to it.
static void timing_check(struct client *client, const struct request *r)
{
    const struct request_timing *t = &r->timing;
    int64_t now_us = client->w->now_us;
    if (t->total_us != now_us - r->spec.arrived_us) client_fail(client, "total_us is not the time since its arrival");
    if (r->usage.replays || r->usage.preemptions || !client->received) return;
    if (t->ttft_us != client->result.first_us - r->spec.arrived_us)
        client_fail(client, "ttft_us is not the time to its first token");
    if (t->queue_us + t->score_us + t->pack_wait_us + t->prefill_us != t->ttft_us)
        client_fail(client, "the parts of ttft_us do not add up to it");
}

// Returns true if the request may reuse a selection that a lying speculator made.
static bool may_reuse_a_lie(const struct client *client, const struct request *r)
{
    const struct scenario *scenario = client->w->scenario;
    bool lies = false;
    for (int i = 0; i < scenario->n_actions; i++)
        lies |= scenario->actions[i].kind == ACTION_LIE;
    return lies && r->usage.score_cached_tokens >= (r->spec.n_turns ? 0 : r->spec.n_tokens);
}

// Returns true if a speculator scored the prompt, even if all tokens were then kept.
static bool was_scored(const struct client *client, const struct request *r)
{
    return r->skip == SKIP_NONE || r->skip == SKIP_UNSURE ||
           (r->skip == SKIP_UNCALIBRATED && client->decided == SKIP_NONE);
}

// Checks the number of scored tokens: the prompt once, and in a conversation also the turns whose selection the router
// did not hold.
static bool scored_is_right(const struct client *client, const struct request *r)
{
    int64_t least = was_scored(client, r) ? r->spec.n_tokens : 0, most = least;
    if (!client->talks) return r->usage.scored_tokens == least;
    for (int t = 0; t < r->spec.n_turns; t++)
        most += r->spec.turns[t].end;
    return r->usage.scored_tokens >= least && r->usage.scored_tokens <= most;
}

// Returns true if fewer tokens than the share `bound` of the prompt are kept. A budget counts chunks and is rounded, so
// two chunks may be missing.
static bool keeps_less(const struct request *r, double bound)
{
    int chunk = r->spec.prefill.paper_exact && r->spec.prefill.chunk_tokens < 0 ? CHUNK_TOKENS_PAPER
                : r->spec.prefill.chunk_tokens > 0                              ? r->spec.prefill.chunk_tokens
                                                                                : 1;
    return r->usage.kept_tokens < bound * r->spec.n_tokens - 2 * chunk;
}

// Checks the answer against the rule for pruning of the client's key, without the code that applies the rule.
static void rule_check(struct client *client, const struct request *r)
{
    const struct scenario_request *plan = &client->plan->request;
    const double bound = (double)plan->bound / 1e3;
    const bool pruned = r->usage.kept_tokens < r->spec.n_tokens;
    if (!r->kept || r->spec.score_only) return;
    switch ((enum prune_kind)plan->rule) {
    case PRUNE_NEVER:
        if (pruned || r->keep_rate != 1) client_fail(client, "its prompt is pruned though its key forbids that");
        break;
    case PRUNE_QUALITY:
        if (pruned && (r->rate_reason != RATE_QUALITY || client->quality < bound))
            client_fail(client, "its prompt is pruned without the quality that its key demands");
        break;
    case PRUNE_KEEP:
        if (r->keep_rate < bound || (!may_reuse_a_lie(client, r) && keeps_less(r, bound)))
            client_fail(client, "less of its prompt is kept than its key allows");
        break;
    case PRUNE_REQUIRED:
        if (plan->reading != 3 && r->skip != SKIP_NONE && r->skip != SKIP_UNSURE && r->skip != SKIP_UNCALIBRATED)
            client_fail(client, "its prompt is whole though its key requires pruning");
        break;
    default: break;
    }
}

static void rate_check(struct client *client, const struct request *r)
{
    if (!was_scored(client, r) && r->keep_rate != 1) client_fail(client, "a keep rate without a score");
    if (r->skip != SKIP_NONE && r->usage.kept_tokens != r->spec.n_tokens)
        client_fail(client, "tokens are missing though all were to be kept");
    if (!was_scored(client, r) || !r->kept || may_reuse_a_lie(client, r)) return;
    if (r->spec.prefill.quality == 0 && (r->keep_rate != r->spec.prefill.keep_rate || r->rate_reason != RATE_FIXED))
        client_fail(client, "the keep rate differs from the requested one");
    if (r->spec.prefill.quality > 0 && !expect_rate(client->w->scenario, r))
        world_fail(client->w, "request %" PRId64 ": no calibration chooses keep rate %g (%s) for its quality",
                   client->plan->id, r->keep_rate, request_rate_reason(r));
}

static void usage_check(struct client *client, const struct request *r)
{
    timing_check(client, r);
    if (!r->spec.score_only) prompt_logprobs_check(client, r);
    if (r->skip == SKIP_TIMEOUT &&
        r->timing.queue_us + r->timing.score_us < client_options(client)->score_timeout_ms * 1000)
        client_fail(client, "its skip reason is a timeout, but the score timeout was not over");
    if (r->usage.completion_tokens != client->received)
        client_fail(client, "completion_tokens is not the number of received tokens");
    if (r->usage.prompt_tokens != r->spec.n_tokens) client_fail(client, "prompt_tokens is not the prompt's length");
    rate_check(client, r);
    rule_check(client, r);
    if (!scored_is_right(client, r))
        client_fail(client, "scored_tokens is not the number of tokens that a speculator scored");
    bool was_held = !client->talks && was_scored(client, r) && !r->timing.score_us; // an earlier request's score
    if (was_held && r->usage.score_cached_tokens != r->usage.scored_tokens)
        client_fail(client, "a held score must count all its tokens as cached");
    bool ascends = !client->talks;
    for (int k = 1; k < r->n_kept_ranges; k++)
        if (ascends ? r->kept[k].first <= r->kept[k - 1].last + 1 : r->kept[k].first == r->kept[k - 1].last + 1)
            client_fail(client, "its kept ranges touch");
    if (r->usage.frozen_tokens + r->usage.recalled_tokens > r->usage.kept_tokens)
        client_fail(client, "it has more frozen and recalled tokens than kept tokens");
    if (r->skip == SKIP_NONE && r->kept && !may_reuse_a_lie(client, r) &&
        !expect_kept(client->w->scenario, client->plan, r, client->talks))
        client_fail(client, "the kept tokens do not follow from its prompt and policy");
}

// Returns true if an attached worker group that takes new work could hold the request now.
static bool could_hold(const struct world *w, const struct request *r)
{
    int64_t kept = r->usage.kept_tokens ? r->usage.kept_tokens : r->spec.n_tokens, output = r->spec.sampling.max_tokens;
    for (const struct core_node *node = core_first_node(sim_router_core(w->router)); node;
         node = core_node_next(node)) {
        if (node->hello.role != NODE_WORKER || node->sched.draining) continue;
        int64_t entries = (int64_t)node->hello.kv_blocks * node->hello.block_tokens;
        if (context_needed(r) <= node->hello.context_tokens && kept + output - 1 <= entries) return true;
    }
    return false;
}

static int64_t class_bound(int64_t whole, int32_t priority, int64_t reserve_percent)
{
    int64_t classes_above = priority > 0 ? 0 : priority == 0 ? 1 : 2;
    return (whole * (100 - classes_above * reserve_percent) + 99) / 100;
}

// The router's queue: all requests, and the requests that count as one tenant with the client's request.
struct queue_use {
    int64_t requests, tokens, tenant_requests, tenant_tokens;
};

// Returns true if the requests share a tenant's bound. Only tenant 1 has a weight, so the other tenants share one
// bound.
static bool same_tenant(const struct request *a, const struct request *b)
{
    bool first_a = a->spec.tenant && strcmp(a->spec.tenant, "t1") == 0;
    bool first_b = b->spec.tenant && strcmp(b->spec.tenant, "t1") == 0;
    return first_a == first_b;
}

// Returns the tokens that a request counts for in the queue. A pinned range of a turn takes the memory of two tokens,
// four bytes of a grammar take the memory of one.
static int64_t queue_tokens(const struct request *r)
{
    int64_t n = r->spec.n_tokens + ((int64_t)r->spec.sampling.grammar.text_bytes + 3) / 4;
    for (int t = 0; t < r->spec.n_turns; t++)
        n += 2 * r->spec.turns[t].n_pinned;
    return n;
}

static struct queue_use queue_used(const struct client *client, const struct request *r)
{
    struct queue_use use = {0};
    for (int i = 0; i < client->w->scenario->n_actions; i++) {
        const struct request *other = client->w->clients->of_action[i].r;
        if (!other || other == r) continue;
        if (other->account.node && other->account.node->hello.role == NODE_WORKER) continue;
        use.requests++;
        use.tokens += queue_tokens(other);
        if (!same_tenant(r, other)) continue;
        use.tenant_requests++;
        use.tenant_tokens += queue_tokens(other);
    }
    return use;
}

static bool queue_is_full(const struct client *client, const struct request *r)
{
    const struct scenario_options *o = client_options(client);
    struct queue_use use = queue_used(client, r);
    int64_t n = queue_tokens(r), requests = class_bound(o->max_queue_requests, r->spec.priority, o->queue_reserve);
    int64_t tokens = class_bound(o->max_queue_tokens, r->spec.priority, o->queue_reserve);
    if (use.requests >= requests || use.tokens + n > tokens) return true;
    int64_t percent = o->tenant_percent;
    if (!use.tenant_requests || !percent) return false; // the first request of a tenant is exempt
    return (use.tenant_requests + 1) * (100 - percent) > percent * (requests - use.requests - 1) ||
           (use.tenant_tokens + n) * (100 - percent) > percent * (tokens - use.tokens - n);
}

// Checks that the error message gives the request's own numbers, or their sum.
static void sentence_check(struct client *client, const struct request *r, const char *message)
{
    char sum[32], expected[32];
    snprintf(sum, sizeof sum, "context of %" PRId64 ":", context_needed(r));
    if (strstr(message, "context of ") && strstr(message, "max_tokens") && !strstr(message, sum))
        world_fail(client->w, "request %" PRId64 ": a wrong number in: %s", client->plan->id, message);
    bool is_of_queue = strstr(message, "whole queue");
    snprintf(expected, sizeof expected, "%" PRId64, is_of_queue ? queue_tokens(r) : (int64_t)r->spec.n_tokens);
    if (strstr(message, "prompt of ") && !strstr(message, expected))
        world_fail(client->w, "request %" PRId64 ": a wrong number in: %s", client->plan->id, message);
}

// Checks the room left in the queue that the error message gives.
static void places_check(struct client *client, const struct request *r, const char *message)
{
    const struct scenario_options *o = client_options(client);
    struct queue_use use = queue_used(client, r);
    int64_t requests = class_bound(o->max_queue_requests, r->spec.priority, o->queue_reserve) - use.requests;
    int64_t tokens = class_bound(o->max_queue_tokens, r->spec.priority, o->queue_reserve) - use.tokens;
    char expected[96];
    snprintf(expected, sizeof expected, "%" PRId64 " requests and %" PRId64 " tokens are left", requests, tokens);
    if (strstr(message, "for this tenant") && !strstr(message, expected))
        world_fail(client->w, "request %" PRId64 ": must have '%s': %s", client->plan->id, expected, message);
}

// Checks that the error message is right about the attached nodes of each role.
static void attached_check(struct client *client, const char *message)
{
    static const char *const names[NODE_ROLES] = {[NODE_SPECULATOR] = "speculator", [NODE_WORKER] = "worker group"};
    const struct core *c = sim_router_core(client->w->router);
    bool attached[NODE_ROLES] = {false};
    for (const struct core_node *node = core_first_node(c); node; node = core_node_next(node))
        attached[node->hello.role] = true;
    for (int role = 0; role < NODE_ROLES; role++) {
        char none[64], busy[64];
        snprintf(none, sizeof none, "no %s is attached", names[role]);
        snprintf(busy, sizeof busy, "every attached %s is", names[role]);
        if (strstr(message, attached[role] ? none : busy))
            world_fail(client->w, "request %" PRId64 ": not so: %s", client->plan->id, message);
    }
}

// Checks that an error has a cause: no request is refused that could have been served.
static void error_check(struct client *client, const struct request *r, enum status status, const char *message)
{
    bool scored = r->spec.score_only || r->spec.prefill.mode == PREFILL_REQUIRED; // a speculator may be missing
    if (!*message) client_fail(client, "an error without a sentence");
    sentence_check(client, r, message);
    switch (status) {
    case STATUS_EXHAUSTED:
        if (!queue_is_full(client, r)) client_fail(client, "refused as if the queue were full");
        places_check(client, r, message);
        break;
    case STATUS_DEADLINE:
        if (!client->plan->request.deadline_us) client_fail(client, "missed a deadline that it does not have");
        break;
    case STATUS_OUT_OF_RANGE:
        if (strstr(message, "more KV blocks") && !has_context(client->w, r))
            client_fail(client, "refused for lack of KV blocks, though no worker group has a context for it");
        if (!scored && could_hold(client->w, r) && !queue_is_full(client, r))
            world_fail(client->w, "request %" PRId64 ": refused, though a worker group can hold it: %s",
                       client->plan->id, message);
        break;
    case STATUS_UNAVAILABLE:
        attached_check(client, message);
        if (sim_router_drains(client->w->router)) break;
        if (!scored && client->submitted_us < client->w->now_us &&
            client->w->now_us <
                sim_router_workers_gone_us(client->w->router) + client_options(client)->worker_grace_ms * 1000)
            client_fail(client, "refused within the grace time");
        if (!scored && !r->account.losses && could_hold(client->w, r))
            client_fail(client, "refused while a worker group is attached");
        break;
    case STATUS_INTERNAL:
        if (r->account.losses < 3) client_fail(client, "given up though fewer than three worker groups were lost");
        break;
    default: world_fail(client->w, "request %" PRId64 ": %s: %s", client->plan->id, status_name(status), message);
    }
}

void client_check_state(struct client *client, const struct request *r, enum finish_reason reason)
{
    enum request_state state = reason == FINISH_REASON_ERROR       ? REQUEST_FAILED
                               : reason == FINISH_REASON_CANCELLED ? REQUEST_CANCELLED
                                                                   : REQUEST_DONE;
    if (r->state != state) client_fail(client, "its state does not fit its finish reason");
}

// Checks a request that ended with its score: Score and Compress. It is charged for every token that was scored, unless
// its options keep everything.
static void score_check(struct client *client, const struct request *r)
{
    bool off = r->spec.prefill.mode == PREFILL_OFF;
    if (off != (r->skip == SKIP_OFF)) client_fail(client, "scored though mode off needs no score, or not scored");
    if (r->usage.scored_tokens != (off ? 0 : r->spec.n_tokens)) client_fail(client, "charged for other scored tokens");
    if (!off && r->spec.want_importance && !r->importance) client_fail(client, "its tokens have no importance");
    if (off && r->usage.kept_tokens != r->spec.n_tokens) client_fail(client, "mode off keeps every token");
    if (!off && !r->account.bin_id && !r->usage.score_cached_tokens) client_fail(client, "scored outside the queue");
}

void client_check_end(struct client *client, const struct request *r, enum finish_reason reason, enum status status,
                      const char *message)
{
    const struct scenario_request *plan = &client->plan->request;
    switch (reason) {
    case FINISH_REASON_LENGTH:
        if (client->received != plan->max_tokens) client_fail(client, "the answer has not max_tokens tokens");
        if (plan->grammar && plan->grammar / 100 <= plan->max_tokens)
            client_fail(client, "the answer did not end with its grammar");
        usage_check(client, r);
        break;
    case FINISH_REASON_STOP:
        stop_check(client, r);
        usage_check(client, r);
        if (r->spec.score_only) score_check(client, r);
        break;
    case FINISH_REASON_CANCELLED:
        if (!client->left && !sim_router_ended(client->w->router)) client_fail(client, "cancelled by nobody");
        break;
    case FINISH_REASON_ERROR: error_check(client, r, status, message); break;
    }
}
