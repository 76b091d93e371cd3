// SPDX-License-Identifier: Apache-2.0
#include "sim/faults.h"

#include "router/sched/view.h"
#include "sim/client.h"
#include "sim/node.h"
#include "sim/router.h"

// Returns how long requests may suffer after a fault has ended. By then the node was missed (three heartbeats),
// attached again (at most five seconds of backoff) and was ejected for a while, and its requests were computed again.
// With the bin policies batch and none, requests also wait for an earlier request that no attached group can hold,
// until its grace time is over.
static int64_t recovery_us(const struct world *w)
{
    const struct scenario_options *o = &w->scenario->options;
    int64_t grace_ms = o->policy == BIN_DATASET ? 0 : o->worker_grace_ms;
    return (4 * o->heartbeat_ms + 4 * o->eject_ms + grace_ms) * 1000 + 8000000;
}

static void disturb(struct world *w, const struct action *action)
{
    int64_t factor = action->kind == ACTION_SLOW ? action->value : 1;
    int64_t drain_us = action->kind == ACTION_RESTART && action->value ? SIM_DRAIN_US : 0;
    world_disturb(w, w->now_us + factor * action->for_us + drain_us + recovery_us(w));
}

// Time until a group that a request poisoned starts again.
enum { POISONED_US = 200000 };

static void poison_act(struct world *w, const struct event *event)
{
    world_disturb(w, w->now_us + POISONED_US + recovery_us(w));
    sim_node_fail_pass(event->object, POISONED_US);
}

void fault_poison(struct world *w, struct sim_node *node, int64_t after_us)
{
    world_at(w, w->now_us + after_us, poison_act, node, 0, NULL, 0);
}

void action_apply(struct world *w, int index)
{
    const struct action *action = &w->scenario->actions[index];
    struct sim_node *node = w->nodes[action->node];
    world_digest(w, (uint64_t)action->kind);
    if (action->kind > ACTION_START) disturb(w, action);
    switch (action->kind) {
    case ACTION_REQUEST: client_arrive(w, index); break;
    case ACTION_CANCEL: client_leave(w, action->id); break;
    case ACTION_ABORT: client_abort(w, action->id); break;
    case ACTION_START: sim_node_start(node); break;
    case ACTION_CRASH: sim_node_crash(node, action->for_us, action->value == 0); break;
    case ACTION_BREAK: sim_node_fail_pass(node, action->for_us); break;
    case ACTION_DRAIN: sim_node_drain(node, action->for_us); break;
    case ACTION_FREEZE: sim_node_freeze(node, action->for_us); break;
    case ACTION_HANG: sim_node_hang(node, action->for_us); break;
    case ACTION_SLOW: sim_node_slow(node, action->for_us, (double)action->value); break;
    case ACTION_LIE:
        sim_node_lie(node, action->for_us, (int)action->value);
        clients_taint(w, (int)action->node);
        break;
    case ACTION_CUT: sim_node_cut(node); break;
    case ACTION_HOLD: sim_node_hold(node, action->for_us); break;
    case ACTION_RESTART: sim_router_restart(w->router, action->for_us, action->value); break;
    case ACTION_STALL: sim_router_stall(w->router, action->for_us); break;
    case ACTION_DISMISS:
        sim_node_restart_after(node, action->for_us);
        sim_router_drain_node(w->router, node, action->value != 0);
        break;
    case ACTION_KINDS: break;
    }
}
