// SPDX-License-Identifier: Apache-2.0
#include "sim/run.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "router/core/shadow.h"
#include "sim/client.h"
#include "sim/clock.h"
#include "sim/expect.h"
#include "sim/faults.h"
#include "sim/network.h"
#include "sim/node.h"
#include "sim/oracle_fair.h"
#include "sim/oracle_shadow.h"
#include "sim/oracles.h"
#include "sim/router.h"

// Numbers of events between two recounts. A recount takes time in proportion to the requests, so it does not run after
// every event.
enum { RECOUNT_EVENTS = 61, RECOUNT_OFTEN_EVENTS = 5, IDLE_EVENTS = 16 };

static void world_start(struct world *w, const struct scenario *scenario)
{
    *w = (struct world){.scenario = scenario, .now_us = SIM_START_US};
    sim_clock_set(w->now_us);
    w->network = network_create(w);
    network_set_events(w->network, STREAM_NODE, sim_node_events());
    network_set_events(w->network, STREAM_ROUTER, sim_router_events());
    w->clients = clients_create(w);
    w->fair = oracle_fair_create(scenario);
    w->shadow = oracle_shadow_create();
    w->nodes = mem_alloc_array((size_t)scenario->n_nodes, sizeof(struct sim_node *));
    w->router = sim_router_create(w);
    for (int i = 0; i < scenario->n_nodes; i++)
        w->nodes[i] = sim_node_create(w, i);
    for (int i = 0; i < scenario->n_nodes; i++)
        if (scenario->nodes[i].up) sim_node_start(w->nodes[i]);
}

static void world_end(struct world *w)
{
    sim_router_free(w->router);
    for (int i = 0; i < w->scenario->n_nodes; i++)
        sim_node_free(w->nodes[i]);
    free(w->nodes);
    clients_free(w->clients);
    oracle_fair_free(w->fair);
    oracle_shadow_free(w->shadow);
    network_free(w->network);
    event_queue_fini(&w->queue);
}

static void apply_event(struct world *w, const struct event *event)
{
    action_apply(w, (int)event->tag);
}

static bool is_idle(const struct world *w)
{
    if (!clients_all_ended(w) || !sim_router_listens(w->router) || clients_in_router(w)) return false;
    if (sim_router_node_leaves(w->router) || sim_router_has_shadows(w->router)) return false;
    for (int i = 0; i < w->scenario->n_nodes; i++)
        if (sim_node_runs(w->nodes[i]) && !sim_node_idle(w->nodes[i])) return false;
    return true;
}

static void world_step(struct world *w)
{
    struct event event = event_queue_take(&w->queue);
    w->now_us = event.at_us;
    sim_clock_set(event.at_us);
    event.fn(w, &event);
    free(event.bytes);
    world_digest(w, (uint64_t)event.at_us);
    sim_router_check(w);
    oracle_fair_check(w->fair, w, sim_router_core(w->router));
    bool often = w->scenario->options.noise_seed % 8 == 0;
    if (++w->events % (often ? RECOUNT_OFTEN_EVENTS : RECOUNT_EVENTS) == 0 && !w->scenario->load) oracles_check(w);
}

// Returns the time after the last action by which everything must be over, not counting faults.
static int64_t settle_us(const struct world *w)
{
    const struct scenario_options *o = &w->scenario->options;
    int64_t shadows_us = o->shadow ? SHADOW_WAIT_US : 0;
    return expect_wait_max_us(w->scenario) + (o->worker_grace_ms + o->score_timeout_ms) * 1000 + 60000000 + shadows_us;
}

static void world_run(struct world *w)
{
    const struct scenario *s = w->scenario;
    int64_t last_us = SIM_START_US + (s->n_actions ? s->actions[s->n_actions - 1].at_us : 0);
    int64_t settled_us = last_us + settle_us(w);
    for (int i = 0; i < s->n_actions; i++)
        world_at(w, SIM_START_US + s->actions[i].at_us, apply_event, NULL, (uint64_t)i, NULL, 0);
    while (!w->failed && w->queue.n) {
        world_step(w);
        if (w->now_us <= last_us || w->events % IDLE_EVENTS) continue;
        if (is_idle(w)) break;
        if (w->now_us > settled_us + w->disturbed_us) world_fail(w, "not idle long after the last action");
    }
    if (!w->failed) oracles_check_idle(w);
    if (!w->failed) clients_check_end(w);
}

static void watch_begin(struct world *w, const struct event *event)
{
    const struct run_watch *watch = event->object;
    watch->begin(w, watch->arg);
}

struct run_result run_scenario(const struct scenario *scenario, struct run_watch *watch)
{
    struct world w;
    world_start(&w, scenario);
    if (watch) world_at(&w, SIM_START_US + watch->from_us, watch_begin, watch, 0, NULL, 0);
    world_run(&w);
    if (watch) watch->end(&w, watch->arg);
    struct run_result result = {w.events, w.digest, w.now_us - SIM_START_US, w.failed, ""};
    memcpy(result.violation, w.violation, sizeof result.violation);
    w.failed = true; // violations while the world is freed do not count
    world_end(&w);
    return result;
}
