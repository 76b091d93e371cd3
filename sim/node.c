// SPDX-License-Identifier: Apache-2.0
#include "sim/node.h"

#include <stdio.h>
#include <stdlib.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/version.h"
#include "proto/forepack/cluster/v1/cluster.pb-c.h"
#include "sim/cached.h"
#include "sim/calibrations.h"
#include "sim/clock.h"
#include "sim/lies.h"
#include "sim/role.h"
#include "sim/router.h"

typedef Forepack__Cluster__V1__NodeMessage node_message;
typedef Forepack__Cluster__V1__RouterMessage router_message;

// The same as in engine/node.c.
enum { BACKOFF_MIN_US = 200000, BACKOFF_MAX_US = 5000000, STREAM_STABLE_US = 10000000 };

enum { LOADING_US = 2500000 }; // time for which a node loads its weights

enum mail_kind { MAIL_MESSAGE, MAIL_ATTACHED, MAIL_DETACHED };

struct mail {
    enum mail_kind kind;
    uint64_t stream; // number of the stream
    router_message *message;
};

struct packed {
    uint8_t *bytes;
    size_t n;
};

struct sim_node {
    struct world *w;
    const struct scenario_node *plan;
    int index;
    char id[32];
    const struct role_ops *role;
    struct random_source random; // for backoff and lies

    // The process. `life` counts its starts: events of an earlier life are ignored.
    bool runs;
    uint64_t life;
    struct engine *engine;
    void *service;
    struct mail *mails;
    int n_mails, mails_capacity;
    bool in_pass;           // true until the results of the pass have left
    int64_t rests_until_us; // end of the gap after a pass
    bool pass_failed;
    struct packed *outbox; // messages of the pass
    int n_outbox, outbox_capacity;
    struct role_load load; // load that heartbeats report, as of the last message handled or sent
    uint64_t last_bin;     // the last bin that the load counts
    bool draining;
    int64_t restart_after_us;
    struct prefix_set computed;

    // The link.
    struct stream *stream; // NULL: none
    uint64_t stream_number, working_number;
    bool welcomed, refused;
    bool loads;        // the last message that wanted an answer was Loading
    int64_t loaded_us; // end of loading; no Hello is sent before
    int64_t welcomed_us;
    int64_t heartbeat_us, heartbeat_due_us, backoff_us;

    // Faults.
    int64_t frozen_until_us, hung_until_us, lies_until_us;
    uint64_t slow_number;
    enum lie lie;
    int64_t passes, busy_us, pass_begin_us, pass_end_us;
};

static void introduce_again(struct world *w, const struct event *event);
static void node_work(struct sim_node *node);
static void node_connect(struct sim_node *node);
static void node_wake(struct world *w, const struct event *event);

static void node_at(struct sim_node *node, int64_t at_us, event_fn *fn)
{
    world_at(node->w, at_us, fn, node, node->life, NULL, 0);
}

// Returns false if the event belongs to an earlier life of the node. Also returns false if the process is frozen, after
// scheduling the event for the end of the freeze.
static bool node_event_is_due(struct world *w, const struct event *event)
{
    struct sim_node *node = event->object;
    if (!node->runs || event->tag != node->life) return false;
    if (node->frozen_until_us <= w->now_us) return true;
    node_at(node, node->frozen_until_us, event->fn);
    return false;
}

// --- sending

static void send_packed(void *arg, uint8_t *bytes, size_t n)
{
    struct sim_node *node = arg;
    stream_send(node->stream, STREAM_NODE, bytes, n);
}

static void send_on_stream(struct sim_node *node, struct packed packed)
{
    if (sim_node_lies(node)) {
        stream_suspect(node->stream);
        lie_send(node->lie, &node->random, packed.bytes, packed.n, send_packed, node);
        free(packed.bytes);
    } else {
        send_packed(node, packed.bytes, packed.n);
    }
}

static struct packed pack(const node_message *message)
{
    struct packed packed = {.n = forepack__cluster__v1__node_message__get_packed_size(message)};
    packed.bytes = mem_alloc(packed.n);
    forepack__cluster__v1__node_message__pack(message, packed.bytes);
    return packed;
}

// Sends a message like node_send() of engine/node.h.
static void send_work(struct sim_node *node, struct packed packed)
{
    if (node->stream && node->welcomed && node->working_number == node->stream_number) {
        send_on_stream(node, packed);
    } else {
        free(packed.bytes);
    }
}

// Sends a message of the service. The results of a pass leave when the pass's time is over.
static void service_sends(void *arg, const node_message *message)
{
    struct sim_node *node = arg;
    struct packed packed = pack(message);
    if (!node->in_pass) {
        send_work(node, packed);
        return;
    }
    MEM_GROW(node->outbox, node->n_outbox, node->outbox_capacity);
    node->outbox[node->n_outbox++] = packed;
}

// Returns the calibration as the hello describes it, or NULL for none.
static Forepack__Cluster__V1__Calibration *describe_calibration(const struct calibration *calibration,
                                                                Forepack__Cluster__V1__Calibration *to)
{
    if (!calibration) return NULL;
    forepack__cluster__v1__calibration__init(to);
    to->fingerprint = calibration_fingerprint(calibration);
    to->main_fingerprint = calibration->main.model;
    to->look_ahead = (uint32_t)calibration->look_ahead;
    to->chunk_tokens = calibration->chunk_tokens;
    to->pool_window = (uint32_t)calibration->pool_window;
    to->tail_tokens = (uint32_t)calibration->tail_tokens;
    return to;
}

static Forepack__Cluster__V1__Role role_of(const struct sim_node *node)
{
    return node->plan->role ? FOREPACK__CLUSTER__V1__ROLE__ROLE_WORKER : FOREPACK__CLUSTER__V1__ROLE__ROLE_SPECULATOR;
}

static void send_hello(struct sim_node *node)
{
    const struct scenario_node *plan = node->plan;
    Forepack__Cluster__V1__Calibration calibration;
    Forepack__Cluster__V1__Hello hello = FOREPACK__CLUSTER__V1__HELLO__INIT;
    hello.node_id = node->id;
    hello.role = role_of(node);
    hello.version = "sim";
    hello.host = "sim";
    hello.ranks = 1;
    hello.backend = "sim";
    hello.dtype = hello.kv_dtype = plan->role ? "bf16" : "f32"; // compared within a role
    hello.protocol = CLUSTER_PROTOCOL_VERSION;
    hello.instance = sim_node_instance(node);
    hello.model_fingerprint = plan->role ? SIM_MAIN_FINGERPRINT : SIM_SPECULATOR_FINGERPRINT;
    hello.tokenizer_fingerprint = SIM_TOKENIZER_FINGERPRINT;
    hello.vocab_size = (uint32_t)node->w->scenario->options.vocab;
    hello.context_tokens = (uint32_t)plan->context;
    hello.token_budget = (uint32_t)plan->budget;
    hello.block_tokens = KV_BLOCK_TOKENS;
    hello.kv_blocks = (uint32_t)plan->kv_blocks;
    hello.max_seqs = (uint32_t)plan->max_seqs;
    hello.prefix_cache = plan->prefix_cache;
    hello.calibration = describe_calibration(sim_calibration(plan->calibration), &calibration);
    node_message message = FOREPACK__CLUSTER__V1__NODE_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_HELLO;
    message.hello = &hello;
    struct packed packed = pack(&message);
    send_packed(node, packed.bytes, packed.n);
}

static bool node_loads(const struct sim_node *node)
{
    return node->w->now_us < node->loaded_us;
}

static void send_loading(struct sim_node *node)
{
    Forepack__Cluster__V1__Loading loading = FOREPACK__CLUSTER__V1__LOADING__INIT;
    loading.node_id = node->id;
    loading.role = role_of(node);
    loading.version = "sim";
    loading.host = "sim";
    loading.ranks = 1;
    loading.protocol = CLUSTER_PROTOCOL_VERSION;
    loading.instance = sim_node_instance(node);
    loading.percent = (uint32_t)(100 - (node->loaded_us - node->w->now_us) * 100 / LOADING_US);
    node_message message = FOREPACK__CLUSTER__V1__NODE_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_LOADING;
    message.loading = &loading;
    struct packed packed = pack(&message);
    send_packed(node, packed.bytes, packed.n);
}

// Sends the first message of a stream, or the next report of a node that loads.
static void introduce(struct sim_node *node)
{
    node->loads = node_loads(node);
    if (node->loads)
        send_loading(node);
    else
        send_hello(node);
}

// A node that loads reports with each heartbeat, and sends Hello when it has loaded.
static void introduce_later(struct sim_node *node)
{
    const int64_t now_us = node->w->now_us, next_us = now_us + node->heartbeat_us;
    const int64_t loaded_us = node_loads(node) ? node->loaded_us : now_us;
    node_at(node, next_us < loaded_us ? next_us : loaded_us, introduce_again);
}

static void introduce_again(struct world *w, const struct event *event)
{
    struct sim_node *node = event->object;
    if (!node_event_is_due(w, event) || !node->stream || !node->loads) return;
    introduce(node);
    if (node->loads) introduce_later(node);
}

static void send_draining(struct sim_node *node)
{
    Forepack__Cluster__V1__Draining draining = FOREPACK__CLUSTER__V1__DRAINING__INIT;
    node_message message = FOREPACK__CLUSTER__V1__NODE_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_DRAINING;
    message.draining = &draining;
    send_on_stream(node, pack(&message));
}

// Starts to drain. A second request changes nothing.
static void drain_start(struct sim_node *node)
{
    if (node->draining) return;
    node->draining = true;
    if (node->welcomed) send_draining(node);
}

// Returns the number of layers computed so far. It stands still while a pass hangs.
static uint64_t progress_of(const struct sim_node *node)
{
    const int64_t layers = 32;
    int64_t now_us = node->w->now_us, done = node->passes * layers;
    if (!node->in_pass || now_us >= node->pass_end_us) return (uint64_t)(done + 1);
    int64_t spent_us = node->hung_until_us > now_us ? 0 : now_us - node->pass_begin_us;
    return (uint64_t)(done - layers + 1 + spent_us * layers / (node->pass_end_us - node->pass_begin_us));
}

static void heartbeat(struct world *w, const struct event *event)
{
    struct sim_node *node = event->object;
    if (!node_event_is_due(w, event) || !node->welcomed || w->now_us < node->heartbeat_due_us) return;
    Forepack__Cluster__V1__Heartbeat beat = FOREPACK__CLUSTER__V1__HEARTBEAT__INIT;
    beat.kv_blocks_free = (uint32_t)node->load.kv_blocks_free;
    beat.running = (uint32_t)node->load.running;
    beat.waiting = (uint32_t)node->load.waiting;
    beat.held_prompts = (uint32_t)node->load.held_prompts;
    beat.held_kv_blocks = (uint32_t)node->load.held_kv_blocks;
    beat.progress = progress_of(node);
    beat.last_bin = node->working_number == node->stream_number ? node->last_bin : 0;
    node_message message = FOREPACK__CLUSTER__V1__NODE_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_HEARTBEAT;
    message.heartbeat = &beat;
    send_on_stream(node, pack(&message));
    node->heartbeat_due_us = w->now_us + node->heartbeat_us;
    node_at(node, node->heartbeat_due_us, heartbeat);
}

// --- the mailbox

static void mail_post(struct sim_node *node, enum mail_kind kind, router_message *message)
{
    MEM_GROW(node->mails, node->n_mails, node->mails_capacity);
    node->mails[node->n_mails++] = (struct mail){kind, node->stream_number, message};
}

static void message_free(router_message *message)
{
    if (message) forepack__cluster__v1__router_message__free_unpacked(message, NULL);
}

static void mail_drop_messages(struct sim_node *node)
{
    int n = 0;
    for (int i = 0; i < node->n_mails; i++) {
        if (node->mails[i].kind == MAIL_MESSAGE) {
            message_free(node->mails[i].message);
        } else {
            node->mails[n++] = node->mails[i];
        }
    }
    node->n_mails = n;
}

static void note_bin(struct sim_node *node, const router_message *message)
{
    if (message->kind_case == FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_SCORE_BIN)
        node->last_bin = message->score_bin->bin_id;
    if (message->kind_case == FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_PREFILL_BIN)
        node->last_bin = message->prefill_bin->bin_id;
}

static void mail_handle(struct sim_node *node, const struct mail *mail)
{
    switch (mail->kind) {
    case MAIL_MESSAGE:
        note_bin(node, mail->message);
        node->role->handle(node->service, mail->message);
        break;
    case MAIL_ATTACHED: node->working_number = mail->stream; node->last_bin = 0; // fall through
    case MAIL_DETACHED: node->role->drop_all(node->service); break;
    }
}

static void mails_handle(struct sim_node *node)
{
    for (int i = 0; i < node->n_mails; i++) {
        mail_handle(node, &node->mails[i]);
        message_free(node->mails[i].message);
    }
    node->n_mails = 0;
    node->load = node->role->load(node->service);
}

// --- the life of the process

static void node_restart(struct world *w, const struct event *event)
{
    struct sim_node *node = event->object;
    if (event->tag == node->life && !node->runs) sim_node_start(node);
}

static void outbox_clear(struct sim_node *node)
{
    for (int i = 0; i < node->n_outbox; i++)
        free(node->outbox[i].bytes);
    node->n_outbox = 0;
}

// Ends the process and starts it again later. `told`: the stream ends; otherwise the router learns nothing.
static void node_end(struct sim_node *node, int64_t for_us, bool told)
{
    if (!node->runs) return;
    const char *problem = sim_node_check(node);
    if (problem) world_fail(node->w, "node %d: %s", node->index, problem);
    if (node->stream) stream_close(node->stream, STREAM_NODE, told);
    node->stream = NULL;
    node->welcomed = node->in_pass = node->pass_failed = node->draining = false;
    mail_drop_messages(node);
    node->n_mails = 0;
    outbox_clear(node);
    node->role->free(node->service);
    sim_engine_free(node->engine);
    node->service = NULL;
    node->engine = NULL;
    node->runs = false;
    node_at(node, node->w->now_us + for_us, node_restart);
}

void sim_node_start(struct sim_node *node)
{
    if (node->runs) return;
    node->life++;
    node->runs = true;
    prefix_set_clear(&node->computed);
    node->engine = sim_engine_create(node->w->scenario, node->plan, (uint64_t)node->index << 20 | node->life);
    node->service = node->role->create(node->engine, node->plan, service_sends, node);
    if (!node->service) {
        world_fail(node->w, "node %d does not start: %s", node->index, status_message());
        return;
    }
    node->load = node->role->load(node->service);
    node->backoff_us = BACKOFF_MIN_US;
    node->frozen_until_us = node->hung_until_us = node->rests_until_us = 0;
    node->working_number = 0;
    node->loaded_us = node->life % 2 ? 0 : node->w->now_us + LOADING_US; // loads at every second start
    node_connect(node);
}

// --- passes

static void pass_over(struct world *w, const struct event *event)
{
    struct sim_node *node = event->object;
    if (!node_event_is_due(w, event)) return;
    int64_t timeout_us = node->pass_end_us + w->scenario->options.step_timeout_ms * 1000;
    if (node->hung_until_us > w->now_us && w->now_us < timeout_us) {
        node_at(node, node->hung_until_us < timeout_us ? node->hung_until_us : timeout_us, pass_over);
        return;
    }
    if (node->pass_failed || node->hung_until_us > w->now_us) { // the watchdog ends a process whose pass hangs
        node_end(node, node->restart_after_us, true);
        return;
    }
    node->in_pass = false;
    for (int i = 0; i < node->n_outbox; i++)
        send_work(node, node->outbox[i]);
    node->n_outbox = 0;
    node->rests_until_us = w->now_us + node->plan->gap_us;
    if (node->plan->gap_us) {
        node_at(node, node->rests_until_us, node_wake);
    } else {
        node_work(node);
    }
}

static void pass_run(struct sim_node *node)
{
    struct world *w = node->w;
    node->in_pass = true;
    node->pass_failed = node->role->step(node->service) != STATUS_OK;
    if (sim_engine_fault(node->engine)) world_fail(w, "node %d: %s", node->index, sim_engine_fault(node->engine));
    int64_t end_us = clock_now_us();
    sim_clock_set(w->now_us);
    node->passes++;
    node->busy_us += end_us - w->now_us;
    node->pass_begin_us = w->now_us;
    node->pass_end_us = end_us;
    world_digest(w, (uint64_t)end_us);
    node_at(node, end_us, pass_over);
}

// Runs the working thread: handles the messages that have arrived, then runs a pass if there is work.
static void node_work(struct sim_node *node)
{
    if (node->in_pass || node->w->now_us < node->rests_until_us) return;
    mails_handle(node);
    if (node->role->busy(node->service)) {
        pass_run(node);
    } else if (node->draining) {
        node_end(node, node->restart_after_us, true);
    }
}

static void node_wake(struct world *w, const struct event *event)
{
    if (node_event_is_due(w, event)) node_work(event->object);
}

// --- the stream

static void node_connect_again(struct world *w, const struct event *event)
{
    if (node_event_is_due(w, event)) node_connect(event->object);
}

static void node_back_off(struct sim_node *node)
{
    if (node->draining) return;
    int64_t pause_us = node->backoff_us / 2 + (int64_t)(random_unit(&node->random) * (double)node->backoff_us / 2);
    node->backoff_us = node->backoff_us < BACKOFF_MAX_US / 2 ? 2 * node->backoff_us : BACKOFF_MAX_US;
    node_at(node, node->w->now_us + pause_us, node_connect_again);
}

static void node_connect(struct sim_node *node)
{
    if (node->stream || node->draining) return;
    if (!sim_router_listens(node->w->router)) {
        node_back_off(node);
        return;
    }
    node->stream = network_open(node->w->network, node);
    node->stream_number++;
    node->welcomed = false;
    introduce(node);
}

static void welcome_handle(struct sim_node *node, const Forepack__Cluster__V1__Welcome *welcome)
{
    node->refused = false;
    node->heartbeat_us = (int64_t)welcome->heartbeat_ms * 1000;
    if (node->loads) {
        introduce_later(node);
        return;
    }
    node->welcomed = true;
    node->welcomed_us = node->w->now_us;
    mail_post(node, MAIL_ATTACHED, NULL);
    if (node->draining) send_draining(node);
    node->heartbeat_due_us = node->w->now_us;
    node_at(node, node->w->now_us, heartbeat);
}

// Handles a refusal. Only a node whose id is in use may be refused; it tries again.
static void refused_handle(struct sim_node *node, const Forepack__Cluster__V1__Refused *refused)
{
    node->refused = true;
    if (!refused->retry) world_fail(node->w, "node %d was refused: %s", node->index, refused->reason);
}

static void node_received(struct world *w, struct stream *s, const uint8_t *bytes, size_t n)
{
    struct sim_node *node = stream_owner(s, STREAM_NODE);
    if (node->stream != s) return;
    router_message *message = forepack__cluster__v1__router_message__unpack(NULL, n, bytes);
    if (!message) {
        world_fail(w, "the router sent node %d a message that cannot be read", node->index);
        return;
    }
    if (message->kind_case == FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_WELCOME) {
        welcome_handle(node, message->welcome);
        message_free(message);
    } else if (message->kind_case == FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_REFUSED) {
        refused_handle(node, message->refused);
        message_free(message);
    } else if (message->kind_case == FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_DRAIN) {
        drain_start(node);
        message_free(message);
    } else {
        if (!node->welcomed) world_fail(w, "the router sent node %d work before Welcome", node->index);
        mail_post(node, MAIL_MESSAGE, message);
    }
    node_at(node, w->now_us, node_wake);
}

static void node_stream_closed(struct world *w, struct stream *s)
{
    struct sim_node *node = stream_owner(s, STREAM_NODE);
    if (node->stream != s) return;
    node->stream = NULL;
    mail_drop_messages(node);
    if (node->welcomed) mail_post(node, MAIL_DETACHED, NULL);
    if (node->welcomed && w->now_us - node->welcomed_us >= STREAM_STABLE_US) node->backoff_us = BACKOFF_MIN_US;
    node->welcomed = false;
    node_at(node, w->now_us, node_wake);
    node_back_off(node);
}

struct stream_events sim_node_events(void)
{
    return (struct stream_events){node_received, node_stream_closed};
}

// --- faults

void sim_node_crash(struct sim_node *node, int64_t for_us, bool told)
{
    node_end(node, for_us, told);
}

void sim_node_fail_pass(struct sim_node *node, int64_t for_us)
{
    if (!node->runs) return;
    node->restart_after_us = for_us;
    sim_engine_fail_next(node->engine);
}

void sim_node_drain(struct sim_node *node, int64_t for_us)
{
    if (!node->runs || node->draining) return;
    node->restart_after_us = for_us;
    drain_start(node);
    node_at(node, node->w->now_us, node_wake);
}

void sim_node_restart_after(struct sim_node *node, int64_t for_us)
{
    node->restart_after_us = for_us;
}

void sim_node_freeze(struct sim_node *node, int64_t for_us)
{
    int64_t until_us = node->w->now_us + for_us;
    if (until_us > node->frozen_until_us) node->frozen_until_us = until_us;
}

void sim_node_hang(struct sim_node *node, int64_t for_us)
{
    int64_t until_us = node->w->now_us + for_us;
    if (until_us > node->hung_until_us) node->hung_until_us = until_us;
}

static void slowness_over(struct world *w, const struct event *event)
{
    struct sim_node *node = event->object;
    if (node->runs && event->tag == node->slow_number) sim_engine_set_slowness(node->engine, 1);
}

void sim_node_slow(struct sim_node *node, int64_t for_us, double factor)
{
    if (!node->runs) return;
    sim_engine_set_slowness(node->engine, factor);
    world_at(node->w, node->w->now_us + for_us, slowness_over, node, ++node->slow_number, NULL, 0);
}

void sim_node_lie(struct sim_node *node, int64_t for_us, int lie)
{
    node->lie = (enum lie)lie;
    node->lies_until_us = node->w->now_us + for_us;
}

void sim_node_cut(struct sim_node *node)
{
    if (node->stream) stream_break(node->stream);
}

void sim_node_hold(struct sim_node *node, int64_t for_us)
{
    if (node->stream) stream_hold(node->stream, node->w->now_us + for_us);
}

// --- queries

bool sim_node_lies(const struct sim_node *node)
{
    return node->w->now_us < node->lies_until_us;
}

const char *sim_node_id(const struct sim_node *node)
{
    return node->id;
}

uint64_t sim_node_instance(const struct sim_node *node)
{
    return (uint64_t)node->index << 32 | node->life;
}

bool sim_node_runs(const struct sim_node *node)
{
    return node->runs;
}

const char *sim_node_check(const struct sim_node *node)
{
    return node->runs && node->service && !node->pass_failed ? node->role->check(node->service) : NULL;
}

bool sim_node_idle(const struct sim_node *node)
{
    if (!node->runs || node->in_pass || node->n_mails || node->role->busy(node->service)) return false;
    if (!node->welcomed && !node->refused) return false;
    return node->role->load(node->service).kv_blocks_free == (int)node->plan->kv_blocks;
}

uint64_t sim_node_life(const struct sim_node *node)
{
    return node->life;
}

struct prefix_set *sim_node_computed(struct sim_node *node)
{
    return &node->computed;
}

int64_t sim_node_passes(const struct sim_node *node)
{
    return node->passes;
}

int64_t sim_node_busy_us(const struct sim_node *node)
{
    return node->busy_us;
}

struct sim_node *sim_node_create(struct world *w, int index)
{
    struct sim_node *node = mem_alloc(sizeof *node);
    node->w = w;
    node->index = index;
    node->plan = &w->scenario->nodes[index];
    snprintf(node->id, sizeof node->id, "%s-%lld", node->plan->role ? "worker" : "speculator",
             (long long)node->plan->id);
    node->role = node->plan->role ? &worker_role : &speculator_role;
    node->random = random_stream((uint64_t)w->scenario->options.noise_seed, UINT64_C(2) << 32 | (uint64_t)index);
    return node;
}

void sim_node_free(struct sim_node *node)
{
    if (node->service) node->role->free(node->service);
    sim_engine_free(node->engine);
    outbox_clear(node);
    mail_drop_messages(node);
    prefix_set_clear(&node->computed);
    free(node->outbox);
    free(node->mails);
    free(node);
}
