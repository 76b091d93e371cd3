// SPDX-License-Identifier: Apache-2.0
#include "sim/router.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "router/core/core_state.h"
#include "router/front/nodes/node_link.h"
#include "sim/cached.h"
#include "sim/client.h"
#include "sim/node.h"
#include "sim/oracle_attach.h"
#include "sim/oracle_bin.h"
#include "sim/oracle_cost_model.h"
#include "sim/oracle_costs.h"
#include "sim/oracle_ledger.h"
#include "sim/oracle_plan.h"
#include "sim/oracle_preempt.h"
#include "sim/oracle_reservation.h"
#include "sim/oracle_shadow.h"
#include "sim/oracle_steps.h"
#include "sim/oracle_tails.h"
#include "sim/oracle_view.h"
#include "sim/oracle_waiting.h"
#include "sim/oracles.h"
#include "sim/placement.h"

// The core's work for a pool, counted for the bound of a tick.
struct dispatch_work {
    uint64_t at_tick; // work done when the tick began
    uint64_t at_bin;  // work done when the last bin was sent
};

// The dispatch rounds of a pool.
struct dispatch_rounds {
    uint64_t begun, changes; // counts at the end of the last tick
    bool goes_on;
};

// The router's end of a stream.
struct node_end {
    struct node_link link; // first member: the core passes a pointer to it to the link's functions
    struct stream *stream;
    struct world *w;
    struct prefix_set prefixes; // prefixes sent to the node
    struct cost_watch costs;
    struct node_counts at_attach; // counts of all earlier nodes with its id
    int passed_over;              // rounds in a row in which the node was passed over
    int64_t heard_us;             // time of the last message
    struct node_end *next;
};

struct sim_router {
    struct world *w;
    struct core *core; // NULL while it is down
    struct node_end *ends;
    struct tenant_weight weight;
    int64_t tick_us; // time of the next tick; INT64_MAX: none
    int64_t stalled_until_us;
    uint64_t ticks;
    bool ended, drains;
    bool ready;              // the last state that the core reported
    int open_workers;        // worker groups that take work, at the last check
    int64_t workers_gone_us; // time at which open_workers last fell
    uint64_t *drained;       // [n_drained] processes that an operator drained since the core started
    int n_drained, drained_capacity;
    struct dispatch_work work[NODE_ROLES];
    struct dispatch_rounds rounds[NODE_ROLES];
    int64_t speeds_us; // when the pool speeds were last measured
};

// --- what holds after every event

static uint64_t work_done(const struct core *c, enum node_role role)
{
    return c->ledger.bins[role].items + c->ledger.bins[role].scan_cost + c->nodes[role].plans;
}

static void work_begin(struct sim_router *router)
{
    for (enum node_role role = 0; role < NODE_ROLES; role++)
        router->work[role].at_tick = router->work[role].at_bin = work_done(router->core, role);
}

// Checks that a tick sends no bin after it has done its share of work.
static void work_check(struct world *w, enum node_role role)
{
    struct dispatch_work *work = &w->router->work[role];
    HOLDS(work->at_bin - work->at_tick < (uint64_t)w->scenario->options.tick_work);
    work->at_bin = work_done(w->router->core, role);
}

static struct dispatch_rounds rounds_now(const struct core *c, enum node_role role)
{
    const struct node_index *index = &c->nodes[role];
    return (struct dispatch_rounds){index->round, index->changes + c->waiting[role].joined, c->in_round[role]};
}

// Checks when rounds begin. A pool without a change begins no round while the other pool's round goes on. A pool with a
// change begins one if requests wait in it. `changes`: changes up to the beginning of the check.
static void rounds_check(struct world *w, bool others_go_on, const uint64_t *changes)
{
    struct sim_router *router = w->router;
    for (enum node_role role = 0; role < NODE_ROLES; role++) {
        struct dispatch_rounds before = router->rounds[role], now = rounds_now(router->core, role);
        bool is_new = now.begun != before.begun, waits = waiting_set_count(&router->core->waiting[role]) > 0;
        HOLDS(is_new || before.goes_on || !waits || changes[role] == before.changes);
        HOLDS(!others_go_on || before.goes_on || now.changes != before.changes || !is_new);
        HOLDS(waits || !now.goes_on);
        router->rounds[role] = now;
    }
}

// Checks that the speed of a pool is measured at the end of its rounds, from everything it has dispatched.
static void speeds_check(struct world *w, bool goes_on)
{
    struct sim_router *router = w->router;
    for (enum node_role role = 0; role < NODE_ROLES; role++) {
        const struct pool_speed *speed = &router->core->speeds[role];
        int waiting = waiting_set_count(&router->core->waiting[role]);
        HOLDS(!goes_on || speed->updated_us == router->speeds_us);
        HOLDS(goes_on || (speed->updated_us == w->now_us && speed->waits == (waiting > 0) &&
                          speed->dispatched == router->core->ledger.pools[role].dispatched_rows));
    }
    if (!goes_on) router->speeds_us = w->now_us;
}

// Checks that no node is passed over in more than ROUNDS_MAX rounds in a row. A node may decline a request in favour of
// another node. It must be asked again if the other node has no room.
static void passed_over_check(struct world *w)
{
    enum { ROUNDS_MAX = 2 };
    const struct core *c = w->router->core;
    for (const struct core_node *node = core_first_node(c); node; node = core_node_next(node)) {
        struct node_end *end = node->link;
        if (c->in_round[node->hello.role]) continue;
        end->passed_over = oracle_node_is_passed_over(c, &node->sched) ? end->passed_over + 1 : 0;
        HOLDS(end->passed_over <= ROUNDS_MAX);
    }
}

static bool was_drained(const struct sim_router *router, uint64_t instance)
{
    for (int i = 0; i < router->n_drained; i++)
        if (router->drained[i] == instance) return true;
    return false;
}

// Checks that no node stays attached after five heartbeat intervals of silence while the router reads. The router drops
// a node after three intervals, at its next tick.
static void silence_check(struct world *w, const struct core_node *node)
{
    const struct scenario_options *o = &w->scenario->options;
    const struct node_end *end = node->link;
    int64_t since_us = end->heard_us, stalled_until_us = w->router->stalled_until_us;
    if (stalled_until_us > since_us) since_us = stalled_until_us;
    HOLDS(w->now_us - since_us <= 5 * o->heartbeat_ms * 1000 + 2 * o->loop_us);
}

void sim_router_check(struct world *w)
{
    struct sim_router *router = w->router;
    const struct core *c = router->core;
    int open = 0;
    oracle_shadow_check(w, c);
    if (!c) return;
    for (const struct core_node *node = core_first_node(c); node; node = core_node_next(node)) {
        open += node->hello.role == NODE_WORKER && !node->sched.draining;
        silence_check(w, node);
        HOLDS(node->leaving || !was_drained(router, node->hello.instance)); // even if it has attached again
    }
    if (open < router->open_workers) router->workers_gone_us = w->now_us;
    router->open_workers = open;
    HOLDS(router->ready == (open > 0 && !router->drains));
}

// --- the loop

static void tick_plan(struct sim_router *router, int64_t at_us);

static void tick(struct world *w, const struct event *event)
{
    struct sim_router *router = w->router;
    if (!router->core || w->now_us != router->tick_us) return;
    if (router->stalled_until_us > w->now_us) {
        router->tick_us = INT64_MAX;
        tick_plan(router, router->stalled_until_us);
        return;
    }
    router->tick_us = INT64_MAX;
    work_begin(router);
    bool went_on = router->core->in_round[NODE_SPECULATOR] || router->core->in_round[NODE_WORKER];
    const uint64_t changes[NODE_ROLES] = {rounds_now(router->core, 0).changes, rounds_now(router->core, 1).changes};
    core_tick(router->core, w->now_us);
    const char *const problems[] = {oracle_plan_problem(), oracle_tails_problem(), oracle_reservation_problem(),
                                    oracle_preempt_problem()};
    for (int i = 0; i < 4; i++)
        if (problems[i]) world_fail(w, "%s", problems[i]);
    oracle_shadow_check_tick(w, router->core);
    rounds_check(w, went_on, changes);
    if (!went_on && !w->scenario->load) passed_over_check(w);
    bool goes_on = router->core->in_round[NODE_SPECULATOR] || router->core->in_round[NODE_WORKER];
    speeds_check(w, goes_on);
    HOLDS(!goes_on || core_next_deadline_us(router->core) <= w->now_us);
    if (++router->ticks % 5 == 0 && !w->scenario->load) oracles_check_tick(w);
    int64_t next_us = core_next_deadline_us(router->core); // immediately while a round goes on; a tick takes time
    tick_plan(router, goes_on ? w->now_us + w->scenario->options.loop_us / 16 : next_us);
}

static void tick_plan(struct sim_router *router, int64_t at_us)
{
    if (at_us < router->w->now_us) at_us = router->w->now_us;
    if (at_us >= router->tick_us) return;
    router->tick_us = at_us;
    world_at(router->w, at_us, tick, router, 0, NULL, 0);
}

// Plans the tick that follows a batch of events.
static void tick_soon(struct sim_router *router)
{
    tick_plan(router, router->w->now_us + router->w->scenario->options.loop_us);
}

void sim_router_post(struct sim_router *router, event_fn *fn, void *object, uint64_t tag)
{
    int64_t at_us = router->w->now_us;
    if (router->stalled_until_us > at_us) at_us = router->stalled_until_us;
    world_at(router->w, at_us, fn, object, tag, NULL, 0);
    if (router->core) tick_plan(router, at_us + router->w->scenario->options.loop_us);
}

// --- the transport of a link

static void bin_check(const struct node_end *end, const Forepack__Cluster__V1__RouterMessage *message)
{
    struct world *w = end->w;
    bool prefill = message->kind_case == FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_PREFILL_BIN;
    HOLDS(!end->link.node->sched.draining);
    size_t n = prefill ? message->prefill_bin->n_sequences : message->score_bin->n_items;
    uint64_t *numbers = mem_alloc_array(n, sizeof *numbers);
    for (size_t i = 0; i < n; i++)
        numbers[i] = prefill ? message->prefill_bin->sequences[i]->request : message->score_bin->items[i]->request;
    uint64_t bin = prefill ? message->prefill_bin->bin_id : message->score_bin->bin_id;
    oracle_bin(w, w->router->core, end->link.node, bin, numbers, (int)n);
    free(numbers);
}

static void end_send(struct node_link *link, const Forepack__Cluster__V1__RouterMessage *message)
{
    struct node_end *end = (struct node_end *)link;
    if (stream_is_suspect(end->stream) || sim_node_lies(stream_owner(end->stream, STREAM_NODE)))
        clients_taint(end->w, sim_router_node_of(link));
    bool prefill = message->kind_case == FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_PREFILL_BIN;
    bool score = message->kind_case == FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_SCORE_BIN;
    if (prefill || score) work_check(end->w, prefill ? NODE_WORKER : NODE_SPECULATOR);
    if ((prefill || score) && !end->w->scenario->load) bin_check(end, message);
    size_t n = forepack__cluster__v1__router_message__get_packed_size(message);
    placement_sent(end->w, stream_owner(end->stream, STREAM_NODE), &end->prefixes, message, n);
    uint8_t *bytes = mem_alloc(n);
    forepack__cluster__v1__router_message__pack(message, bytes);
    stream_send(end->stream, STREAM_ROUTER, bytes, n);
}

static void closed_handle(struct world *w, const struct event *event)
{
    struct node_end *end = stream_owner(event->object, STREAM_ROUTER);
    if (end && w->router->core) node_link_closed(&end->link, w->router->core, w->now_us);
}

// Closes the router's end. As in gRPC, a finished stream is closed a little later.
static void end_finish(struct node_link *link, enum status status, const char *reason)
{
    struct node_end *end = (struct node_end *)link;
    stream_close(end->stream, STREAM_ROUTER, true);
    sim_router_post(end->w->router, closed_handle, end->stream, 0);
}

static const char *end_peer(const struct node_link *link)
{
    return "sim";
}

static const struct node_link_ops end_ops = {end_send, end_finish, end_peer};

int sim_router_node_of(const void *link)
{
    const struct node_end *end = link;
    const struct world *w = end->w;
    int i = 0;
    while (w->nodes[i] != stream_owner(end->stream, STREAM_NODE))
        i++;
    return i;
}

const struct node_counts *sim_router_counts_at_attach(const void *link)
{
    return &((const struct node_end *)link)->at_attach;
}

// --- streams

static struct node_end *end_of(struct sim_router *router, struct stream *s)
{
    struct node_end *end = stream_owner(s, STREAM_ROUTER);
    if (end) return end;
    end = mem_alloc(sizeof *end);
    *end = (struct node_end){.stream = s, .w = router->w, .next = router->ends};
    end->link.ops = &end_ops;
    end->link.heartbeat_ms = router->w->scenario->options.heartbeat_ms;
    end->link.tail_tokens = (int)router->w->scenario->options.tail_tokens;
    router->ends = end;
    stream_set_owner(s, STREAM_ROUTER, end);
    return end;
}

static void end_attached(struct node_end *end)
{
    end->at_attach = end->link.node->measures->counts;
    oracle_attach(end->w, end->w->router->core, end->link.node);
}

static void message_handle(struct sim_router *router, struct stream *s, const uint8_t *bytes, size_t n)
{
    struct world *w = router->w;
    struct node_end *end = end_of(router, s);
    Forepack__Cluster__V1__NodeMessage *m = forepack__cluster__v1__node_message__unpack(NULL, n, bytes);
    end->heard_us = w->now_us;
    if (m) {
        const struct core_node *before = end->link.node;
        oracle_costs(w, &end->costs, end->link.node, sim_router_node_of(&end->link), m);
        node_link_handle(&end->link, router->core, m, w->now_us);
        if (end->link.node && !before) end_attached(end);
        forepack__cluster__v1__node_message__free_unpacked(m, NULL);
    } else {
        end_finish(&end->link, STATUS_INVALID, "the message is not a valid NodeMessage");
    }
    tick_soon(router);
}

static void late_handle(struct world *w, const struct event *event)
{
    if (w->router->core && stream_is_open(event->object, STREAM_ROUTER))
        message_handle(w->router, event->object, event->bytes, event->n_bytes);
}

static void router_received(struct world *w, struct stream *s, const uint8_t *bytes, size_t n)
{
    struct sim_router *router = w->router;
    if (!router->core) { // nobody listens
        stream_break(s);
    } else if (router->stalled_until_us >= w->now_us) { // also at the end of a stall: older messages go first
        // The message waits in the kernel while the router is stalled.
        world_at(w, router->stalled_until_us, late_handle, s, 0, mem_copy(bytes, n), n);
    } else {
        message_handle(router, s, bytes, n);
    }
}

static void router_closed(struct world *w, struct stream *s)
{
    if (stream_owner(s, STREAM_ROUTER)) sim_router_post(w->router, closed_handle, s, 0);
}

struct stream_events sim_router_events(void)
{
    return (struct stream_events){router_received, router_closed};
}

// --- start, end

static void ready_changed(void *user, bool ready)
{
    struct sim_router *router = user;
    if (router->ready == ready)
        world_fail(router->w, "the core said twice that it is %s", ready ? "ready" : "not ready");
    router->ready = ready;
}

static void core_start(struct sim_router *router)
{
    const struct scenario_options *o = &router->w->scenario->options;
    router->weight = (struct tenant_weight){"t1", (double)o->weight_of_1 / 1e3};
    const struct core_options options = {
        .max_queue_requests = (int)o->max_queue_requests,
        .max_queue_tokens = o->max_queue_tokens,
        .queue_reserve_percent = (int)o->queue_reserve,
        .tenant_queue_percent = (int)o->tenant_percent,
        .tenant_weights = &router->weight,
        .n_tenant_weights = 1,
        .max_wait_us = o->max_wait_ms * 1000,
        .score_timeout_us = o->score_timeout_ms * 1000,
        .stall_us = o->stall_ms * 1000,
        .eject_us = o->eject_ms * 1000,
        .worker_grace_us = o->worker_grace_ms * 1000,
        .heartbeat_us = o->heartbeat_ms * 1000,
        .min_tokens = (int)o->min_tokens,
        .tail_tokens = (int)o->tail_tokens,
        .selection_bytes = o->selection_kib << 10,
        .bins_ahead = (int)o->bins_ahead,
        .policy = (enum bin_policy)o->policy,
        .batch_requests = (int)o->batch_requests,
        .tick_work = (int)o->tick_work,
        .tokenizer_fingerprint = SIM_TOKENIZER_FINGERPRINT,
        .vocab_size = (int)o->vocab,
        .shadow = {.share = (double)o->shadow / 1e3,
                   .per_s = (int)o->shadow_per_s,
                   .measure = (enum agreement_measure)o->shadow_measure,
                   .promise = (double)o->shadow_promise / 1e3},
    };
    struct core_ops ops = {.ready_changed = ready_changed, .user = router};
    node_link_core_ops(&ops);
    router->ready = router->drains = false;
    router->open_workers = 0;
    router->workers_gone_us = 0;
    router->n_drained = 0;
    struct core_options changed = options; // an operator changes the queue's bounds
    changed.max_queue_requests = changed.queue_reserve_percent = changed.tenant_queue_percent = 1;
    changed.max_queue_tokens = 1;
    router->core = core_create(o->noise_seed % 2 ? &changed : &options, &ops);
    core_set_queue_bounds(router->core, &options);
    oracle_shadow_started(router->w->shadow);
    struct random_source random = random_stream((uint64_t)o->noise_seed, UINT64_C(3) << 32);
    const char *problem = oracle_cost_model(&random);
    if (problem) world_fail(router->w, "%s", problem);
    oracle_rate_mean(router->w, &random);
    oracle_plan_watch(!router->w->scenario->load);
    oracle_preempt_watch(!router->w->scenario->load);
    oracle_ledger_begin();
    oracle_steps_begin(router->w);
    memset(router->rounds, 0, sizeof router->rounds);
    router->speeds_us = 0;
    router->tick_us = INT64_MAX;
    tick_soon(router);
}

static void router_end(struct sim_router *router)
{
    if (!router->core) return;
    router->ended = true;
    core_free(router->core);
    router->ended = false;
    router->core = NULL;
    for (struct node_end *end = router->ends, *next; end; end = next) {
        next = end->next;
        stream_set_owner(end->stream, STREAM_ROUTER, NULL);
        prefix_set_clear(&end->prefixes);
        free(end);
    }
    router->ends = NULL;
    network_break(router->w->network);
}

static void router_starts(struct world *w, const struct event *event)
{
    if (!w->router->core) core_start(w->router);
}

static void router_ends(struct world *w, const struct event *event)
{
    struct sim_router *router = w->router;
    if (!router->core) return;
    router_end(router);
    router->stalled_until_us = 0;
    world_at(w, w->now_us + (int64_t)event->tag, router_starts, router, 0, NULL, 0);
}

void sim_router_restart(struct sim_router *router, int64_t for_us, bool drains)
{
    struct world *w = router->w;
    if (!router->core || router->drains) return;
    router->drains = drains;
    if (drains) core_drain(router->core);
    world_at(w, w->now_us + (drains ? SIM_DRAIN_US : 0), router_ends, router, (uint64_t)for_us, NULL, 0);
}

static void drain_handle(struct world *w, const struct event *event)
{
    struct core *c = w->router->core;
    if (!c) return;
    const char *id = sim_node_id(event->object);
    const struct core_node *node = core_first_node(c);
    while (node && (strcmp(node->hello.node_id, id) != 0 || (event->tag && node->hello.instance != event->tag)))
        node = core_node_next(node);
    bool leaves = node && node->leaving;
    struct node_drain drain;
    enum status status = core_drain_node(c, id, event->tag, w->now_us, &drain);
    HOLDS(status == (node ? STATUS_OK : STATUS_NOT_FOUND));
    if (!node) return;
    MEM_GROW(w->router->drained, w->router->n_drained, w->router->drained_capacity);
    w->router->drained[w->router->n_drained++] = drain.instance;
    HOLDS(node->leaving && node->sched.draining && drain.was_draining == leaves);
    HOLDS(drain.instance == node->hello.instance && drain.running == node->sched.account.requests.count);
}

void sim_router_drain_node(struct sim_router *router, struct sim_node *node, bool this_process)
{
    sim_router_post(router, drain_handle, node, this_process ? sim_node_instance(node) : 0);
}

void sim_router_stall(struct sim_router *router, int64_t for_us)
{
    int64_t until_us = router->w->now_us + for_us;
    if (router->core && until_us > router->stalled_until_us) router->stalled_until_us = until_us;
}

bool sim_router_listens(const struct sim_router *router)
{
    return router->core;
}

struct core *sim_router_core(const struct sim_router *router)
{
    return router->core;
}

bool sim_router_node_leaves(const struct sim_router *router)
{
    for (const struct core_node *node = core_first_node(router->core); node; node = core_node_next(node))
        if (node->leaving) return true;
    return false;
}

bool sim_router_has_shadows(const struct sim_router *router)
{
    return router->core->shadows.n;
}

bool sim_router_drains(const struct sim_router *router)
{
    return router->drains;
}

int64_t sim_router_workers_gone_us(const struct sim_router *router)
{
    return router->workers_gone_us;
}

bool sim_router_ended(const struct sim_router *router)
{
    return router->ended;
}

struct sim_router *sim_router_create(struct world *w)
{
    struct sim_router *router = mem_alloc(sizeof *router);
    router->w = w;
    core_start(router);
    return router;
}

void sim_router_free(struct sim_router *router)
{
    router_end(router);
    free(router->drained);
    free(router);
}
