// SPDX-License-Identifier: Apache-2.0
#include "sim/client.h"

#include <stdlib.h>

#include "bench/quantiles.h"
#include "lib/base/mem.h"
#include "lib/text/prefill_limit.h"
#include "sim/client_state.h"
#include "sim/crowd.h"
#include "sim/oracle_fair.h"
#include "sim/oracle_shadow.h"
#include "sim/oracle_steps.h"
#include "sim/placement.h"
#include "sim/router.h"

// --- the request

// Sets the finished turns of the prompt.
static void set_turns(const struct scenario_request *plan, struct request_spec *spec)
{
    int64_t n = plan->turn ? (plan->tokens - 1) / plan->turn : 0;
    if (!n || n > PROMPT_TURNS_MAX) return;
    spec->n_turns = (int)n;
    spec->turns = mem_alloc_array((size_t)n, sizeof *spec->turns);
    for (int t = 0; t < spec->n_turns; t++) {
        struct prompt_turn *turn = &spec->turns[t];
        turn->answer_end = (int)plan->turn * (t + 1);
        turn->end = turn->answer_end - (int)plan->answer;
        for (int i = 0; i < spec->n_pinned && spec->pinned[i].last < turn->end; i++, turn->n_pinned++)
            turn->pinned = mem_copy(spec->pinned, sizeof *turn->pinned); // one at most
    }
}

// Limits the request to what the rule of its client's key allows. The router refuses a request that asks for
// log-probabilities of its prompt although its prompt must be pruned; here it has no rule.
static void apply_rule(const struct scenario_request *plan, struct request_spec *spec)
{
    const struct prune_rule rule = {(enum prune_kind)plan->rule, (double)plan->bound / 1e3};
    struct prefill router;
    prefill_defaults(&router);
    router.quality = 0.99;
    if (spec->score_only || (plan->reading == 3 && rule.kind == PRUNE_REQUIRED)) return;
    if (prefill_limit_prune(&rule, &router, &spec->prefill)) spec->limited_by = rule;
}

static struct request *request_make(struct client *client)
{
    const struct scenario_request *plan = &client->plan->request;
    struct request *r = request_create();
    r->id = mem_format("r%" PRId64, client->plan->id);
    struct request_spec *spec = &r->spec;
    spec->n_tokens = (int)plan->tokens;
    spec->tokens = expect_prompt(client->w->scenario, client->plan);
    spec->sampling.max_tokens = plan->max_tokens ? (int)plan->max_tokens : 1;
    spec->sampling.no_output = !plan->max_tokens;
    spec->sampling.min_tokens = (int)plan->min_tokens;
    spec->sampling.seed = (uint64_t)plan->seed;
    spec->sampling.temperature = (double)plan->temperature / 1e3;
    spec->sampling.ignore_eos = plan->ignore_eos;
    if (plan->reading == 1) spec->sampling.logprobs = 2;
    if (plan->reading == 2) spec->sampling.repetition_penalty = 1.1;
    if (plan->grammar)
        spec->sampling.grammar =
            grammar_spec_of(GRAMMAR_REGEX, mem_format("%d %d", (int)plan->grammar / 100, (int)plan->grammar % 100));
    spec->prefill.mode = (enum prefill_mode)plan->mode;
    if (client_options(client)->draft_acceptance < 0) spec->prefill.drafts = DRAFTS_OFF;
    spec->prefill.quality = (double)plan->quality / 1e3;
    if (plan->quality) spec->prefill.keep_rate = 1;
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
    set_turns(plan, spec);
    spec->score_only = plan->score_only;
    if (plan->reading == 3 && !plan->score_only) {
        spec->sampling.prompt_logprobs = 1;
        spec->prefill.mode = PREFILL_OFF;
    }
    apply_rule(plan, spec);
    client->quality = spec->prefill.quality;
    spec->want_importance = plan->importance;
    spec->priority = (int32_t)plan->priority;
    if (plan->tenant) spec->tenant = mem_format("t%" PRId64, plan->tenant);
    if (client->w->scenario->options.salted) spec->prefix_salt = (uint64_t)plan->tenant;
    spec->arrived_us = client->w->now_us;
    if (plan->deadline_us) spec->ttft_deadline_us = client->w->now_us + plan->deadline_us - 1;
    return r;
}

// --- tokens

static void cancel_handle(struct world *w, const struct event *event);

// Delays the client's reading. The front never waits for a client: it abandons a call that leaves too much unread
// (router/front/request/reply.c).
static void read_later(struct client *client)
{
    int64_t each_us = client->plan->request.read_us, now_us = client->w->now_us;
    if (!each_us || client->left) return;
    client->read_until_us = (client->read_until_us > now_us ? client->read_until_us : now_us) + each_us;
    if (client->read_until_us - now_us <= each_us * client_options(client)->unread_max) return;
    client->left = true;
    sim_router_post(client->w->router, cancel_handle, client, 0);
}

static bool on_tokens(void *user, const int32_t *tokens, const struct token_logprob *logprobs, int n, int *n_used_p)
{
    struct client *client = user;
    const struct scenario_request *plan = &client->plan->request;
    if (client->ended || !client->r) client_fail(client, "a token after the end");
    if (client->received == 0) {
        client->waited_us = client->w->now_us - client->submitted_us;
        client->result.first_us = client->w->now_us;
        placement_answered(client);
        crowd_first_token(client);
    } else if (client->w->clients->gaps_ms) {
        samples_add(client->w->clients->gaps_ms, (double)(client->w->now_us - client->result.last_us) / 1e3);
    }
    client->result.last_us = client->w->now_us;
    for (int i = 0; i < n && !client->w->failed; i++) {
        client_check_token(client, client->r, tokens[i]);
        oracle_fair_served(client->w->fair, client->r, OUTPUT_WEIGHT);
        world_digest(client->w, (uint64_t)tokens[i]);
        read_later(client);
        if (plan->stop_after && client->received == plan->stop_after) {
            *n_used_p = i + 1;
            return true;
        }
    }
    return false;
}

// --- the end

static void submit_later(struct world *w, const struct event *event);

// Tries again after half a second, then after twice as long each time.
static bool client_retries(struct client *client, bool lost, enum status status)
{
    if (client->left || client->tries > client->plan->request.retries) return false;
    if (!lost && status != STATUS_UNAVAILABLE && status != STATUS_EXHAUSTED) return false;
    struct world *w = client->w;
    client->received = client->n_prompt_logprobs = 0; // the answer begins again
    world_at(w, w->now_us + (INT64_C(500000) << client->tries), submit_later, client, 0, NULL, 0);
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
    client_check_state(client, r, reason);
    oracle_steps_ended(client);
    if (r->state == REQUEST_DONE) oracle_shadow_answered(w, r);
    if (!client->tainted && !w->failed) client_check_end(client, r, reason, status, message);
    if (!client->received) client->waited_us = w->now_us - client->submitted_us;
    // counts only the wait after the grace time
    if (status == STATUS_UNAVAILABLE) client->waited_us -= w->scenario->options.worker_grace_ms * 1000;
    world_digest(w, (uint64_t)client->plan->id << 16 | (uint64_t)reason << 8 | (uint64_t)status);
    client->result.done = reason == FINISH_REASON_LENGTH || reason == FINISH_REASON_STOP;
    client->result.status = status;
    client->result.usage = r->usage;
    client->result.timing = r->timing;
    client->r = NULL;
    if (client->result.done || !client_retries(client, lost, status)) client_end(client);
}

// --- what clients do

static void client_number(struct clients *clients, struct client *client)
{
    uint64_t number = client->r->number;
    while ((uint64_t)clients->n_numbers <= number) {
        MEM_GROW(clients->of_number, clients->n_numbers, clients->numbers_capacity);
        clients->of_number[clients->n_numbers++] = NULL;
    }
    clients->of_number[number] = client;
}

struct client *client_of_number(const struct world *w, uint64_t number)
{
    return number < (uint64_t)w->clients->n_numbers ? w->clients->of_number[number] : NULL;
}

// Makes the client's request for the core.
static void client_begin(struct client *client)
{
    client->submitted_us = client->w->now_us;
    client->preemptions = client->sends = client->losses = client->placements = 0;
    client->r = request_make(client);
    client->r->sink = (struct request_sink){on_tokens, client_check_prompt_logprobs, on_done, client};
    world_digest(client->w, (uint64_t)client->plan->id);
}

static void client_submit(struct world *w, const struct event *event)
{
    struct client *client = event->object;
    if (client->ended || client->r) return;
    client->tries++;
    if (!sim_router_core(w->router)) {
        if (!client_retries(client, true, STATUS_OK)) client_end(client);
        return;
    }
    client_begin(client);
    client_number(w->clients, client);
    core_submit(sim_router_core(w->router), client->r, w->now_us);
    client_check_intake(client);
    crowd_submitted(client);
}

// Posts the request to the router, which handles the request when its thread runs.
static void submit_later(struct world *w, const struct event *event)
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
        if (client->r) client_fail(client, "goes on after it was cancelled");
    } else if (sim_router_core(w->router) && !client->tries) { // the prompt is being tokenised
        client->tries++;
        client_begin(client);
        core_submit_aborted(sim_router_core(w->router), client->r, w->now_us);
        if (client->r) client_fail(client, "goes on after it was aborted before its start");
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
    char *id = mem_string(client->r->id); // a copy: the request ends with its own
    if (!core_abort(sim_router_core(w->router), id, 0, w->now_us)) client_fail(client, "cannot be aborted");
    free(id);
    if (client->r) client_fail(client, "goes on after it was aborted");
}

void client_abort(struct world *w, int64_t id)
{
    struct client *client = client_find(w, id);
    if (client && client->arrived && !client->ended) sim_router_post(w->router, abort_handle, client, 0);
}

void clients_taint(struct world *w, int node)
{
    oracle_shadow_taint(w, sim_router_core(w->router), node);
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

void clients_watch_gaps(struct world *w, struct samples *gaps_ms)
{
    w->clients->gaps_ms = gaps_ms;
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
    clients->counts_passes = crowd_applies(w->scenario);
    clients->n_actions = w->scenario->n_actions;
    return clients;
}

void clients_free(struct clients *clients)
{
    for (int i = 0; i < clients->n_actions; i++)
        free(clients->of_action[i].passes);
    free(clients->of_action);
    free(clients->of_number);
    free(clients);
}
