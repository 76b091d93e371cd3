// SPDX-License-Identifier: Apache-2.0
#include "sim/generate.h"

#include <math.h>
#include <stdbool.h>

#include "lib/base/prune_rule.h"
#include "lib/base/random.h"
#include "lib/text/generation.h"
#include "router/core/agreement.h"
#include "sim/calibrations.h"
#include "sim/crowd.h"
#include "sim/lies.h"

enum { HEADS_MAX = 6, TENANTS_MAX = 5 };

// The choices that a seed draws once for all requests and faults.
struct swarm {
    struct random_source random;
    struct scenario *s;
    int64_t span_us; // the time in which requests arrive
    int n_requests, n_heads, n_tenants;
    int prompt_log2, output_log2; // scales of lengths
    bool long_prompts, priorities, deadlines, cancels, sampling, reading, speculated, score_only, retries, bursts, fits,
        fair, slow_readers, scarce;
    bool kinds[ACTION_KINDS]; // kinds of faults
    int n_kinds;
};

static int below(struct swarm *g, int n)
{
    return random_below(&g->random, n);
}

static bool one_in(struct swarm *g, int n)
{
    return below(g, n) == 0;
}

static int64_t between(struct swarm *g, int64_t least, int64_t most)
{
    return least + (int64_t)(random_unit(&g->random) * (double)(most - least + 1));
}

// Draws a number that is spread evenly over powers of two.
static int64_t scaled(struct swarm *g, int64_t least, int64_t most)
{
    return (int64_t)((double)least * pow((double)most / (double)least, random_unit(&g->random)));
}

// --- options and nodes

static void draw_options(struct swarm *g)
{
    struct scenario_options *o = &g->s->options;
    o->noise_seed = (int64_t)(random_next(&g->random) >> 2);
    o->vocab = one_in(g, 2) ? 64 : 512;
    o->delay_us = scaled(g, 20, 5000);
    if (one_in(g, 2)) o->loop_us = scaled(g, 1, 2000);
    o->samples = !one_in(g, 4);
    if (one_in(g, 3)) o->heartbeat_ms = scaled(g, 50, 5000);
    if (one_in(g, 2)) o->jitter_us = scaled(g, 100, 300 * o->heartbeat_ms); // heartbeats must be able to come in time
    if (one_in(g, 3)) o->max_queue_requests = scaled(g, 2, 100);
    if (one_in(g, 4)) o->max_queue_tokens = scaled(g, 500, 50000);
    if (one_in(g, 3)) o->queue_reserve = below(g, 50);
    if (one_in(g, 3)) o->tenant_percent = below(g, 101);
    if (one_in(g, 2)) o->max_wait_ms = one_in(g, 4) ? 0 : scaled(g, 10, 100000);
    if (one_in(g, 2)) o->score_timeout_ms = scaled(g, 20, 20000);
    if (one_in(g, 3)) o->worker_grace_ms = scaled(g, 10, 30000);
    if (one_in(g, 2)) o->step_timeout_ms = scaled(g, 100, 20000);
    if (one_in(g, 2)) o->stall_ms = one_in(g, 4) ? 0 : scaled(g, 200, 20000);
    if (one_in(g, 2)) o->eject_ms = one_in(g, 4) ? 0 : scaled(g, 20, 10000);
    if (one_in(g, 2)) o->min_tokens = scaled(g, 1, 512);
    if (one_in(g, 2)) o->tail_tokens = one_in(g, 3) ? 0 : scaled(g, 1, 256);
    if (one_in(g, 2)) o->bins_ahead = between(g, 1, 5);
    if (one_in(g, 6)) o->policy = between(g, 1, 2);
    if (one_in(g, 2)) o->batch_requests = scaled(g, 1, 32);
    if (one_in(g, 2)) o->weight_of_1 = scaled(g, 100, 10000);
    if (one_in(g, 2)) o->unread_max = scaled(g, 1, 100);
    if (one_in(g, 3)) o->tick_work = scaled(g, 1, 100);
}

static void draw_node(struct swarm *g, int role, int id, const struct scenario_node *like)
{
    struct scenario_node node = like ? *like : (struct scenario_node){.role = role};
    node.id = id;
    node.up = 1;
    if (!like || one_in(g, 3)) {
        node.budget = scaled(g, 32, 1024);
        node.kv_blocks = scaled(g, 24, one_in(g, 4) ? 4000 : 600);
        node.max_seqs = scaled(g, 1, node.budget < 48 ? node.budget : 48);
        if (node.budget < 48 && one_in(g, 4)) node.max_seqs = node.budget;
        node.context = scaled(g, 200, 4000);
        node.prefix_cache = one_in(g, 2);
    }
    if (!like || one_in(g, 3)) {
        node.fixed_us = scaled(g, 200, 20000);
        node.row_ns = scaled(g, 500, role ? 100000 : 20000);
        node.pair_ps = scaled(g, 1, 20000);
        node.noise_percent = one_in(g, 2) ? 0 : scaled(g, 1, 40);
        if (role && one_in(g, 4)) node.sample_us = scaled(g, 10, 20000);
        if (!role && !one_in(g, 3)) node.draft_blocks = node.kv_blocks / scaled(g, 1, 8);
        if (one_in(g, 3)) node.itl_target_ms = one_in(g, 2) ? -1 : scaled(g, 1, 1000);
    }
    // copied from a node that may have more blocks
    if (node.draft_blocks > node.kv_blocks) node.draft_blocks = node.kv_blocks;
    scenario_add_node(g->s, node);
}

static void draw_nodes(struct swarm *g)
{
    int n_workers = one_in(g, 60) ? 70 : (int)scaled(g, 1, 6), n_speculators = one_in(g, 3) ? 0 : (int)scaled(g, 1, 4);
    for (int i = 0; i < n_workers; i++)
        draw_node(g, 1, i, i ? &g->s->nodes[0] : NULL);
    for (int i = 0; i < n_speculators; i++)
        draw_node(g, 0, i, i ? &g->s->nodes[n_workers] : NULL);
    if (one_in(g, 6)) { // a node with the id of another node, started later
        struct scenario_node twin = g->s->nodes[below(g, g->s->n_nodes)];
        twin.up = 0;
        scenario_add_node(g->s, twin);
    }
    g->speculated = n_speculators && !one_in(g, 4);
}

// --- requests

static int64_t draw_length(struct swarm *g, int log2)
{
    int64_t typical = INT64_C(1) << log2;
    if (g->long_prompts && one_in(g, 12)) return scaled(g, typical, 3000);
    return scaled(g, 1, typical);
}

static void draw_speculation(struct swarm *g, struct scenario_request *r)
{
    r->mode = below(g, 4);
    r->keep = one_in(g, 8) ? 1000 : scaled(g, 20, 900);
    r->look_ahead = one_in(g, 2) ? 0 : scaled(g, 1, 12);
    r->chunk = one_in(g, 4) ? 0 : one_in(g, 2) ? CHUNK_TOKENS_AUTO : scaled(g, 1, 64);
    r->window = one_in(g, 4) ? 1 + 2 * below(g, 20) : 0;
    r->paper = one_in(g, 6);
    if (one_in(g, 4)) {
        r->pin_first = below(g, (int)r->tokens);
        r->pin_last = between(g, r->pin_first, r->tokens - 1);
    }
    r->score_only = g->score_only && one_in(g, 6);
    r->importance = one_in(g, 10);
}

// Sometimes makes the request exactly as long as a node allows, or one token longer or shorter.
static void draw_fit(struct swarm *g, struct scenario_request *r)
{
    if (!g->fits || !one_in(g, 6)) return;
    const struct scenario_node *node = &g->s->nodes[below(g, g->s->n_nodes)];
    int64_t most = one_in(g, 2) ? node->context : one_in(g, 2) ? node->kv_blocks * 16 + 1 : node->budget;
    int64_t left = most + between(g, -1, 1) - r->max_tokens;
    if (left >= 1 && left < 4000) r->tokens = left;
}

// Makes the request one that only scores its prompt. A prompt that fitted with its answer then fits alone.
static void draw_no_output(struct scenario_request *r)
{
    r->tokens += r->max_tokens;
    r->max_tokens = r->min_tokens = r->stop_after = 0;
}

static void draw_sampling(struct swarm *g, struct scenario_request *r)
{
    r->seed = (int64_t)(random_next(&g->random) >> 1);
    if (g->sampling && one_in(g, 2)) {
        r->temperature = scaled(g, 100, 2000);
    } else if (g->reading && one_in(g, 3)) {
        r->reading = between(g, 1, 3);
    }
    r->ignore_eos = one_in(g, 3);
    if (!r->ignore_eos && !r->temperature && r->reading != 2 && one_in(g, 4))
        r->min_tokens = between(g, 1, r->max_tokens);
    if (one_in(g, 8)) r->stop_after = between(g, 1, r->max_tokens);
    if (r->reading == 3 && r->seed % 3 == 0) draw_no_output(r);
}

static void draw_request(struct swarm *g, int64_t at_us, int id)
{
    struct action action = {.at_us = at_us, .kind = ACTION_REQUEST, .id = id};
    struct scenario_request *r = &action.request;
    r->tokens = draw_length(g, g->prompt_log2);
    r->max_tokens = draw_length(g, g->output_log2);
    if (r->max_tokens > 400) r->max_tokens = 400;
    if (g->n_heads && !one_in(g, 4)) {
        r->head = 1 + below(g, g->n_heads);
        r->head_tokens = one_in(g, 4) ? r->tokens : scaled(g, 1, r->tokens);
    }
    if (g->n_heads && one_in(g, 4)) {
        r->tail = 1 + below(g, 2);
        r->tail_from = 16 * below(g, 4);
    }
    draw_fit(g, r);
    draw_sampling(g, r);
    r->mode = PREFILL_OFF;
    if (g->speculated) draw_speculation(g, r);
    if (g->n_tenants) r->tenant = below(g, g->n_tenants + 1);
    if (g->priorities) r->priority = between(g, -10, 10);
    if (g->deadlines && one_in(g, 3)) r->deadline_us = one_in(g, 8) ? 1 : scaled(g, 1000, 20000000);
    if (g->retries) r->retries = between(g, 0, 4);
    if (g->slow_readers && one_in(g, 3)) r->read_us = scaled(g, 100, 10000000);
    scenario_add_action(g->s, action);
    if (!g->cancels || !one_in(g, 5)) return;
    action = (struct action){.kind = one_in(g, 4) ? ACTION_ABORT : ACTION_CANCEL, .id = id};
    action.at_us = at_us + scaled(g, 1, g->span_us + 1000);
    scenario_add_action(g->s, action);
}

// Draws tenants that ask for more than the cluster can do. No priority, deadline or waiting time overrides the order of
// tenants.
static void draw_fair_load(struct swarm *g)
{
    g->s->options.max_wait_ms = 1000000;
    g->s->options.policy = 0;
    g->prompt_log2 = (int)between(g, 2, 5);
    g->output_log2 = (int)between(g, 1, 4);
    g->n_tenants = 1 + below(g, TENANTS_MAX);
    g->long_prompts = g->priorities = g->deadlines = g->score_only = g->retries = g->fits = g->speculated = false;
    g->bursts = true;
    for (int i = 0; i < g->s->n_nodes; i++) {
        struct scenario_node *node = &g->s->nodes[i];
        node->max_seqs = between(g, 1, 4);
        node->budget = between(g, 100, 300);
        node->kv_blocks = between(g, 24, 60);
        if (node->draft_blocks > node->kv_blocks) node->draft_blocks = node->kv_blocks;
    }
}

// Draws answers that need more KV blocks than the groups have: sequences are preempted, and cached blocks evicted.
static void draw_scarce_blocks(struct swarm *g)
{
    g->prompt_log2 = (int)between(g, 4, 8);
    g->output_log2 = (int)between(g, 5, 7);
    g->bursts = true;
    for (int i = 0; i < g->s->n_nodes; i++) {
        struct scenario_node *node = &g->s->nodes[i];
        if (!node->role) continue;
        node->kv_blocks = scaled(g, 24, 80);
        node->max_seqs = scaled(g, 4, 32);
        if (node->budget < 2 * node->max_seqs) node->budget = 2 * node->max_seqs;
        node->prefix_cache = !one_in(g, 3);
    }
}

static void draw_load(struct swarm *g, int64_t events)
{
    g->prompt_log2 = (int)between(g, 3, 10);
    g->output_log2 = (int)between(g, 1, 7);
    g->long_prompts = one_in(g, 2);
    g->n_heads = one_in(g, 2) ? 0 : 1 + below(g, HEADS_MAX);
    g->n_tenants = one_in(g, 2) ? 0 : 1 + below(g, TENANTS_MAX);
    g->priorities = one_in(g, 3);
    g->deadlines = one_in(g, 4);
    g->cancels = one_in(g, 3);
    g->sampling = one_in(g, 2);
    g->reading = one_in(g, 4);
    g->score_only = one_in(g, 4);
    g->retries = one_in(g, 2);
    g->bursts = one_in(g, 3);
    g->fits = one_in(g, 3);
    g->fair = one_in(g, 10);
    g->slow_readers = one_in(g, 5);
    g->scarce = !g->fair && one_in(g, 6);
    if (g->fair) draw_fair_load(g);
    if (g->scarce) draw_scarce_blocks(g);
    g->n_requests = (int)(events / (8 + (INT64_C(1) << g->output_log2)));
    if (g->n_requests < 4) g->n_requests = 4;
    double row_us = (double)g->s->nodes[0].row_ns / 1e3, fixed_us = (double)g->s->nodes[0].fixed_us;
    double each_us = (double)(1 << g->prompt_log2) / 4 * row_us + (double)(1 << g->output_log2) / 8 * fixed_us;
    g->span_us = (int64_t)(each_us * g->n_requests * (0.2 + 2 * random_unit(&g->random))) + 1000;
}

static void draw_requests(struct swarm *g)
{
    int64_t at_us = 0;
    for (int i = 0; i < g->n_requests; i++) {
        if (!g->bursts || one_in(g, 10)) at_us = between(g, 0, g->span_us);
        draw_request(g, at_us + (g->bursts ? below(g, 1000) : 0), i + 1);
    }
}

// --- faults

static void draw_kinds(struct swarm *g)
{
    if (one_in(g, 4)) return; // no faults at all
    for (int kind = ACTION_CRASH; kind < ACTION_KINDS; kind++) {
        g->kinds[kind] = one_in(g, 4);
        g->n_kinds += g->kinds[kind];
    }
}

static enum action_kind draw_kind(struct swarm *g)
{
    int left = below(g, g->n_kinds), kind = ACTION_CRASH;
    while (!g->kinds[kind] || left--)
        kind++;
    return (enum action_kind)kind;
}

// Lets the operator ask twice, or loses the router's message with the stream.
static void draw_after_dismissal(struct swarm *g, struct action action)
{
    struct action cut = action;
    action.at_us += scaled(g, 1, 1000000);
    if (one_in(g, 3)) scenario_add_action(g->s, action);
    if (!one_in(g, 3)) return;
    cut.kind = ACTION_CUT;
    cut.at_us += scaled(g, 1, 2 * g->s->options.delay_us);
    scenario_add_action(g->s, cut);
}

static void draw_fault(struct swarm *g)
{
    struct action action = {.kind = draw_kind(g), .node = below(g, g->s->n_nodes)};
    action.at_us = between(g, 0, g->span_us + g->span_us / 4);
    action.for_us = scaled(g, 1000, 10000000);
    if (action.kind == ACTION_CRASH) action.value = one_in(g, 2);
    if (action.kind == ACTION_SLOW) action.value = scaled(g, 2, 20);
    if (action.kind == ACTION_RESTART) action.value = one_in(g, 2);
    if (action.kind == ACTION_DISMISS) action.value = one_in(g, 2);
    if (action.kind == ACTION_LIE) action.value = below(g, LIES);
    if (action.kind == ACTION_STALL || action.kind == ACTION_HOLD) action.for_us = scaled(g, 1000, 3000000);
    scenario_add_action(g->s, action);
    if (action.kind == ACTION_DISMISS) draw_after_dismissal(g, action);
}

static void draw_faults(struct swarm *g)
{
    for (int i = 0; i < g->s->n_nodes; i++) {
        struct action start = {.at_us = between(g, 0, g->span_us), .kind = ACTION_START, .node = i};
        if (!g->s->nodes[i].up) scenario_add_action(g->s, start);
    }
    draw_kinds(g);
    int n = g->n_kinds ? (int)scaled(g, 1, 13) : 0;
    for (int i = 0; i < n; i++)
        draw_fault(g);
}

static void draw_calibrations(struct swarm *g)
{
    int64_t usual = 1 + (one_in(g, 4) ? below(g, SIM_CALIBRATIONS) : 0);
    for (int i = 0; i < g->s->n_nodes; i++) {
        struct scenario_node *node = &g->s->nodes[i];
        if (!node->role) node->calibration = one_in(g, 10) ? below(g, SIM_CALIBRATIONS + 1) : usual;
    }
}

// Draws requests that leave the keep rate to the speculators' calibration, mostly with the options that the calibration
// is for.
static void draw_qualities(struct swarm *g)
{
    if (!g->speculated || one_in(g, 2)) return;
    if (!one_in(g, 6)) g->s->options.tail_tokens = sim_calibration(1)->tail_tokens;
    if (!one_in(g, 8)) draw_calibrations(g);
    for (int i = 0; i < g->s->n_actions; i++) {
        struct scenario_request *r = &g->s->actions[i].request;
        if (g->s->actions[i].kind != ACTION_REQUEST || r->mode == PREFILL_OFF || one_in(g, 3)) continue;
        r->quality = one_in(g, 10) ? 1000 : between(g, 400, 999);
        if (!one_in(g, 4)) r->keep = 0;
        if (one_in(g, 6)) continue;
        r->look_ahead = r->window = r->paper = 0;
        r->chunk = CHUNK_TOKENS_AUTO;
    }
}

static void draw_turns(struct swarm *g, struct scenario_request *r)
{
    r->turn = scaled(g, 16, 400);
    r->answer = one_in(g, 4) ? 0 : between(g, 1, r->turn - 1);
}

// Draws requests that repeat an earlier request or continue its conversation, so that the earlier score may be reused.
// Some requests differ slightly from the earlier one.
static void draw_repeats(struct swarm *g)
{
    if (!g->speculated || one_in(g, 2)) return;
    g->s->options.selection_kib = one_in(g, 3) ? 1 : 64;
    const struct action *of = NULL;
    bool talks = one_in(g, 2);
    for (int i = 0; i < g->s->n_actions; i++) {
        struct action *action = &g->s->actions[i];
        if (action->kind != ACTION_REQUEST) continue;
        if (!of || !one_in(g, 3)) {
            if (of && !one_in(g, 4)) continue;
            of = action;
            if (talks) draw_turns(g, &action->request);
            continue;
        }
        struct scenario_request *r = &action->request, own = *r;
        *r = of->request;
        if (!one_in(g, 3)) r->same_as = of->id;
        if (one_in(g, 6)) r->keep = scaled(g, 20, 900);
        if (r->turn && r->tokens < 2000) r->tokens += r->turn * below(g, 4); // the conversation goes on
        r->max_tokens = own.max_tokens;
        r->min_tokens = 0;
        r->stop_after = own.stop_after;
        r->seed = own.seed;
        r->priority = own.priority;
        if (g->s->options.salted && action->id % 3 == 0) r->tenant = own.tenant; // its score must not be reused
    }
}

// Draws greedy answers whose tokens a grammar masks.
static void draw_grammars(struct swarm *g)
{
    if (!one_in(g, 5)) return;
    for (int i = 0; i < g->s->n_actions; i++) {
        struct scenario_request *r = &g->s->actions[i].request;
        if (g->s->actions[i].kind != ACTION_REQUEST || one_in(g, 2) || !r->max_tokens) continue;
        r->grammar = 100 * between(g, 1, 2 * r->max_tokens) + between(g, 2, 5);
        r->temperature = r->reading = r->min_tokens = r->ignore_eos = 0;
    }
}

// Draws rules for pruning of the clients' keys.
static void draw_rules(struct swarm *g)
{
    if (!g->speculated || one_in(g, 2)) return;
    for (int i = 0; i < g->s->n_actions; i++) {
        struct scenario_request *r = &g->s->actions[i].request;
        if (g->s->actions[i].kind != ACTION_REQUEST || one_in(g, 3)) continue;
        if (r->mode == PREFILL_OFF && g->fair) continue;
        r->rule = between(g, PRUNE_ANY, PRUNE_KINDS - 1);
        if (r->rule == PRUNE_QUALITY) r->bound = between(g, 400, 999);
        if (r->rule == PRUNE_KEEP) r->bound = scaled(g, 20, 900);
    }
}

// Draws shadows of pruned requests. Models agree at half of the positions, so low promises can be kept.
static void draw_shadows(struct swarm *g)
{
    struct scenario_options *o = &g->s->options;
    if (!g->speculated || !one_in(g, 3)) return;
    o->shadow = one_in(g, 3) ? between(g, 1, 999) : 1000;
    o->shadow_per_s = one_in(g, 3) ? scaled(g, 1, 10) : 1000;
    o->shadow_measure = between(g, AGREEMENT_UNWATCHED, AGREEMENT_ANSWER);
    o->shadow_promise = between(g, 100, 990);
}

// Draws requests that make their worker groups fail, one group after another. A random source of its own leaves the
// other draws of the seed as they are.
static void draw_poison(struct swarm *g, uint64_t seed)
{
    enum { POISONED = 8, PLACEMENTS = 5, REQUESTS = 5 };
    struct random_source random = random_stream(seed, 2);
    if (g->fair || random_below(&random, POISONED)) return;
    for (int i = 0; i < g->s->n_actions; i++) {
        struct scenario_request *r = &g->s->actions[i].request;
        if (g->s->actions[i].kind != ACTION_REQUEST || random_below(&random, g->n_requests) >= REQUESTS) continue;
        r->poison = 1 + random_below(&random, (1 << PLACEMENTS) - 1);
        r->poison_us = random_below(&random, 2) ? 0 : (int64_t)(random_unit(&random) * (double)g->span_us / 4);
    }
}

// One in CROWDS scenarios is of crowd.h.
enum { CROWDS = 16 };

void scenario_generate(uint64_t seed, int64_t events, struct scenario *s)
{
    struct random_source crowd = random_stream(seed, 1);
    if (random_below(&crowd, CROWDS) == 0) {
        crowd_generate(&crowd, s);
        return;
    }
    struct swarm g = {.random = random_stream(seed, 0), .s = s};
    scenario_init(s);
    draw_options(&g);
    draw_nodes(&g);
    draw_load(&g, events);
    draw_requests(&g);
    draw_faults(&g);
    s->options.salted = one_in(&g, 2);
    draw_qualities(&g);
    draw_repeats(&g);
    draw_grammars(&g);
    draw_rules(&g);
    draw_shadows(&g);
    draw_poison(&g, seed);
    scenario_sort(s);
}
