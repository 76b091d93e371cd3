// SPDX-License-Identifier: Apache-2.0
#include "sim/client.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "router/core/core_state.h"
#include "sim/answers.h"
#include "sim/expect.h"
#include "sim/router.h"

struct client {
    struct world *w;
    const struct action *plan; // ACTION_REQUEST
    struct request *r;         // in the router; NULL: not there
    struct expectation expect; // of its answer
    int received;
    int tries;
    bool arrived, ended, left, tainted;
    int64_t submitted_us, waited_us;
    struct client_result result;
};

struct clients {
    struct client *of_action; // [n_actions], of requests only
    int n_arrived, n_ended;
};

static const struct scenario_options *options_of(const struct client *client)
{
    return &client->w->scenario->options;
}

static void client_fail(struct client *client, const char *what)
{
    world_fail(client->w, "request %" PRId64 ": %s", client->plan->id, what);
}

// --- the request

static struct request *request_make(struct client *client)
{
    const struct scenario_request *plan = &client->plan->request;
    struct request *r = request_create();
    r->id = mem_format("r%" PRId64, client->plan->id);
    struct request_spec *spec = &r->spec;
    spec->n_tokens = (int)plan->tokens;
    spec->tokens = expect_prompt(client->plan, (int)options_of(client)->vocab);
    spec->sampling.max_tokens = (int)plan->max_tokens;
    spec->sampling.min_tokens = (int)plan->min_tokens;
    spec->sampling.seed = (uint64_t)plan->seed;
    spec->sampling.temperature = (double)plan->temperature / 1e3;
    spec->sampling.ignore_eos = plan->ignore_eos;
    if (plan->reading == 1) spec->sampling.logprobs = 2;
    if (plan->reading == 2) spec->sampling.presence_penalty = 0.5;
    spec->prefill.mode = (enum prefill_mode)plan->mode;
    if (plan->keep) spec->prefill.keep_rate = (double)plan->keep / 1e3;
    if (plan->look_ahead) spec->prefill.look_ahead = (int)plan->look_ahead;
    spec->prefill.chunk_tokens = (int)plan->chunk;
    if (plan->window) spec->prefill.pool_window = (int)plan->window;
    spec->prefill.paper_exact = plan->paper;
    if (plan->pin_last) {
        spec->pinned = mem_alloc(sizeof *spec->pinned);
        *spec->pinned = (struct token_range){(int32_t)plan->pin_first, (int32_t)plan->pin_last};
        spec->n_pinned = 1;
    }
    spec->score_only = plan->score_only;
    spec->want_importance = plan->importance;
    spec->priority = (int32_t)plan->priority;
    if (plan->tenant) spec->tenant = mem_format("t%" PRId64, plan->tenant);
    spec->arrived_us = client->w->now_us;
    if (plan->deadline_us) spec->ttft_deadline_us = client->w->now_us + plan->deadline_us;
    return r;
}

// --- tokens

static void token_check(struct client *client, const struct request *r, int32_t token)
{
    if (client->received == 0) expect_begin(&client->expect, client->plan, r, options_of(client));
    bool stops;
    int32_t expected = expect_next(&client->expect, &stops);
    if (!client->tainted && (token != expected || stops)) {
        world_fail(client->w, "request %" PRId64 ": token %d is %d, must be %d%s", client->plan->id, client->received,
                   token, expected, stops ? ", the end of the text" : "");
    }
    expect_advance(&client->expect, token);
    client->received++;
}

static bool on_tokens(void *user, const int32_t *tokens, const struct token_logprob *logprobs, int n, int *n_used_p)
{
    struct client *client = user;
    const struct scenario_request *plan = &client->plan->request;
    if (client->ended || !client->r) client_fail(client, "a token after the end");
    if (client->received == 0) {
        client->waited_us = client->w->now_us - client->submitted_us;
        client->result.first_us = client->w->now_us;
    }
    for (int i = 0; i < n && !client->w->failed; i++) {
        token_check(client, client->r, tokens[i]);
        world_digest(client->w, (uint64_t)tokens[i]);
        if (plan->stop_after && client->received == plan->stop_after) {
            *n_used_p = i + 1;
            return true;
        }
    }
    return false;
}

// --- the end

static void stop_check(struct client *client, const struct request *r)
{
    const struct scenario_request *plan = &client->plan->request;
    if (plan->score_only || (plan->stop_after && client->received == plan->stop_after)) return;
    if (client->received == 0) expect_begin(&client->expect, client->plan, r, options_of(client));
    bool stops;
    expect_next(&client->expect, &stops);
    if (!stops) client_fail(client, "the answer stopped before its end");
}

static void usage_check(struct client *client, const struct request *r)
{
    if (r->usage.completion_tokens != client->received)
        client_fail(client, "completion_tokens is not what was received");
    if (r->usage.prompt_tokens != r->spec.n_tokens) client_fail(client, "prompt_tokens is not the prompt's length");
    if (r->skip == SKIP_NONE && r->kept && !expect_kept(client->w->scenario, client->plan, r))
        client_fail(client, "the kept tokens are not those of its prompt and policy");
}

// Whether an attached node of the role that takes new work could hold the request now.
static bool could_hold(const struct world *w, const struct request *r)
{
    int64_t kept = r->usage.kept_tokens ? r->usage.kept_tokens : r->spec.n_tokens, output = r->spec.sampling.max_tokens;
    for (const struct core_node *node = core_first_node(sim_router_core(w->router)); node;
         node = core_node_next(node)) {
        if (node->hello.role != NODE_WORKER || node->sched.draining) continue;
        int64_t entries = (int64_t)node->hello.kv_blocks * node->hello.block_tokens;
        if (r->spec.n_tokens + output <= node->hello.context_tokens && kept + output - 1 <= entries) return true;
    }
    return false;
}

static int64_t class_bound(int64_t whole, int32_t priority, int64_t reserve_percent)
{
    int64_t classes_above = priority > 0 ? 0 : priority == 0 ? 1 : 2;
    return (whole * (100 - classes_above * reserve_percent) + 99) / 100;
}

// What waits in the router, of all and of those that count as one tenant with the request.
struct queue_use {
    int64_t requests, tokens, tenant_requests, tenant_tokens;
};

// Only tenant 1 has a weight; all others are bounded together.
static bool same_tenant(const struct request *a, const struct request *b)
{
    bool first_a = a->spec.tenant && strcmp(a->spec.tenant, "t1") == 0;
    bool first_b = b->spec.tenant && strcmp(b->spec.tenant, "t1") == 0;
    return first_a == first_b;
}

static struct queue_use queue_used(const struct client *client, const struct request *r)
{
    struct queue_use use = {0};
    for (int i = 0; i < client->w->scenario->n_actions; i++) {
        const struct request *other = client->w->clients->of_action[i].r;
        if (!other || other == r) continue;
        if (other->account.node && other->account.node->hello.role == NODE_WORKER) continue;
        use.requests++;
        use.tokens += other->spec.n_tokens;
        if (!same_tenant(r, other)) continue;
        use.tenant_requests++;
        use.tenant_tokens += other->spec.n_tokens;
    }
    return use;
}

static bool queue_is_full(const struct client *client, const struct request *r)
{
    const struct scenario_options *o = options_of(client);
    struct queue_use use = queue_used(client, r);
    int64_t n = r->spec.n_tokens, requests = class_bound(o->max_queue_requests, r->spec.priority, o->queue_reserve);
    int64_t tokens = class_bound(o->max_queue_tokens, r->spec.priority, o->queue_reserve);
    if (use.requests >= requests || use.tokens + n > tokens) return true;
    int64_t percent = o->tenant_percent;
    if (!use.tenant_requests || !percent) return false; // the first request of a tenant is exempt
    return (use.tenant_requests + 1) * (100 - percent) > percent * (requests - use.requests - 1) ||
           (use.tenant_tokens + n) * (100 - percent) > percent * (tokens - use.tokens - n);
}

// No request is refused that could have been served.
static void error_check(struct client *client, const struct request *r, enum status status, const char *message)
{
    bool scored = r->spec.score_only || r->spec.prefill.mode == PREFILL_REQUIRED; // a speculator may be missing
    if (!*message) client_fail(client, "an error without a sentence");
    switch (status) {
    case STATUS_EXHAUSTED:
        if (!queue_is_full(client, r)) client_fail(client, "refused as if the queue were full");
        break;
    case STATUS_DEADLINE:
        if (!client->plan->request.deadline_us) client_fail(client, "missed a deadline that it does not have");
        break;
    case STATUS_OUT_OF_RANGE:
        if (!scored && could_hold(client->w, r) && !queue_is_full(client, r))
            world_fail(client->w, "request %" PRId64 ": refused, though a worker group can hold it: %s",
                       client->plan->id, message);
        break;
    case STATUS_UNAVAILABLE:
        if (!scored && !r->account.losses && could_hold(client->w, r))
            client_fail(client, "refused while a worker group is attached");
        break;
    default: world_fail(client->w, "request %" PRId64 ": %s: %s", client->plan->id, status_name(status), message);
    }
}

static void end_check(struct client *client, const struct request *r, enum finish_reason reason, enum status status,
                      const char *message)
{
    const struct scenario_request *plan = &client->plan->request;
    switch (reason) {
    case FINISH_REASON_LENGTH:
        if (client->received != plan->max_tokens) client_fail(client, "the answer has not max_tokens tokens");
        usage_check(client, r);
        break;
    case FINISH_REASON_STOP:
        stop_check(client, r);
        usage_check(client, r);
        break;
    case FINISH_REASON_CANCELLED:
        if (!client->left && !sim_router_ended(client->w->router)) client_fail(client, "cancelled by nobody");
        break;
    case FINISH_REASON_ERROR: error_check(client, r, status, message); break;
    }
}

static void client_submit(struct world *w, const struct event *event);

// Half a second, then twice as long each time.
static bool client_retries(struct client *client, bool lost, enum status status)
{
    if (client->left || client->tries > client->plan->request.retries) return false;
    if (!lost && status != STATUS_UNAVAILABLE && status != STATUS_EXHAUSTED) return false;
    struct world *w = client->w;
    client->received = 0; // the answer begins again
    world_at(w, w->now_us + (INT64_C(500000) << client->tries), client_submit, client, 0, NULL, 0);
    return true;
}

static void client_end(struct client *client)
{
    if (client->ended) client_fail(client, "ended twice");
    client->ended = true;
    client->result.ended_us = client->w->now_us;
    client->w->clients->n_ended++;
}

static void on_done(void *user, const struct request *r, enum finish_reason reason, enum status status,
                    const char *message)
{
    struct client *client = user;
    struct world *w = client->w;
    if (client->ended || client->r != r) client_fail(client, "ended twice");
    bool lost = sim_router_ended(w->router);
    if (!client->tainted && !w->failed) end_check(client, r, reason, status, message);
    if (!client->received) client->waited_us = w->now_us - client->submitted_us;
    world_digest(w, (uint64_t)client->plan->id << 16 | (uint64_t)reason << 8 | (uint64_t)status);
    client->result.done = reason == FINISH_REASON_LENGTH || reason == FINISH_REASON_STOP;
    client->result.tokens = client->received;
    client->result.kept = r->usage.kept_tokens;
    client->r = NULL;
    if (client->result.done || !client_retries(client, lost, status)) client_end(client);
}

// --- what clients do

static void client_submit(struct world *w, const struct event *event)
{
    struct client *client = event->object;
    if (client->ended || client->r) return;
    client->tries++;
    if (!sim_router_core(w->router)) {
        if (!client_retries(client, true, STATUS_OK)) client_end(client);
        return;
    }
    client->submitted_us = w->now_us;
    client->r = request_make(client);
    client->r->sink = (struct request_sink){on_tokens, on_done, client};
    world_digest(w, (uint64_t)client->plan->id);
    core_submit(sim_router_core(w->router), client->r, w->now_us);
}

static void submit_later(struct world *w, const struct event *event) // at the router, when it runs
{
    sim_router_post(w->router, client_submit, event->object, 0);
}

void client_arrive(struct world *w, int action)
{
    struct client *client = &w->clients->of_action[action];
    client->arrived = true;
    client->result.arrived_us = w->now_us;
    w->clients->n_arrived++;
    world_at(w, w->now_us + w->scenario->options.delay_us, submit_later, client, 0, NULL, 0);
}

static struct client *client_find(struct world *w, int64_t id)
{
    for (int i = 0; i < w->scenario->n_actions; i++) {
        const struct action *action = &w->scenario->actions[i];
        if (action->kind == ACTION_REQUEST && action->id == id) return &w->clients->of_action[i];
    }
    return NULL;
}

static void cancel_handle(struct world *w, const struct event *event)
{
    struct client *client = event->object;
    if (client->ended) return;
    if (client->r && sim_router_core(w->router)) {
        if (!core_cancel(sim_router_core(w->router), client->r->number, w->now_us))
            client_fail(client, "cannot be cancelled");
    } else {
        client_end(client);
    }
}

void client_leave(struct world *w, int64_t id)
{
    struct client *client = client_find(w, id);
    if (!client || !client->arrived || client->ended) return;
    client->left = true;
    sim_router_post(w->router, cancel_handle, client, 0);
}

static void abort_handle(struct world *w, const struct event *event)
{
    struct client *client = event->object;
    if (client->ended || !client->r || !sim_router_core(w->router)) return;
    client->left = true;
    if (!core_abort(sim_router_core(w->router), client->r->id, w->now_us)) client_fail(client, "cannot be aborted");
}

void client_abort(struct world *w, int64_t id)
{
    struct client *client = client_find(w, id);
    if (client && client->arrived && !client->ended) sim_router_post(w->router, abort_handle, client, 0);
}

void clients_taint(struct world *w, int node)
{
    for (int i = 0; i < w->scenario->n_actions; i++) {
        struct client *client = &w->clients->of_action[i];
        const struct core_node *on = client->r ? client->r->account.node : NULL;
        if (on && sim_router_node_of(on->link) == node) client->tainted = true;
    }
}

// --- the run

bool clients_all_ended(const struct world *w)
{
    return w->clients->n_arrived == w->clients->n_ended;
}

int clients_in_router(const struct world *w)
{
    int n = 0;
    for (int i = 0; i < w->scenario->n_actions; i++)
        n += w->clients->of_action[i].r != NULL;
    return n;
}

void clients_check_end(struct world *w)
{
    int64_t bound_us = expect_wait_max_us(w->scenario) + w->disturbed_us;
    for (int i = 0; i < w->scenario->n_actions; i++) {
        const struct client *client = &w->clients->of_action[i];
        if (client->waited_us <= bound_us || client->tainted) continue;
        world_fail(w, "request %" PRId64 ": waited %.3f s for its first token, the bound is %.3f s", client->plan->id,
                   (double)client->waited_us / 1e6, (double)bound_us / 1e6);
    }
}

struct client_result client_get_result(const struct world *w, int action)
{
    return w->clients->of_action[action].result;
}

struct clients *clients_create(struct world *w)
{
    struct clients *clients = mem_alloc(sizeof *clients);
    clients->of_action = mem_alloc_array((size_t)w->scenario->n_actions, sizeof *clients->of_action);
    for (int i = 0; i < w->scenario->n_actions; i++) {
        clients->of_action[i].w = w;
        clients->of_action[i].plan = &w->scenario->actions[i];
    }
    return clients;
}

void clients_free(struct clients *clients)
{
    free(clients->of_action);
    free(clients);
}
