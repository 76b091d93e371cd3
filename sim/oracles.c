// SPDX-License-Identifier: Apache-2.0
#include "sim/oracles.h"

#include <math.h>

#include "sim/client.h"
#include "sim/node.h"
#include "sim/oracle_estimate.h"
#include "sim/oracle_index.h"
#include "sim/oracle_ledger.h"
#include "sim/oracle_measures.h"
#include "sim/oracle_preempt.h"
#include "sim/oracle_status.h"
#include "sim/oracle_waiting.h"
#include "sim/router.h"

// --- nodes

enum { BINS_MAX = 64 };

struct bin_count {
    const struct core_bin *bins[BINS_MAX];
    int n, outstanding, open;
    double pairs; // attention pairs of the requests
};

static void bin_count_add(struct bin_count *count, const struct core_bin *bin)
{
    for (int i = 0; i < count->n; i++)
        if (count->bins[i] == bin) return;
    if (count->n < BINS_MAX) count->bins[count->n++] = bin;
    count->open += bin->open;
    count->outstanding += bin->open_fitting > 0;
}

static int held_blocks(const struct core_node *node, const struct request *r)
{
    bool shares =
        node->hello.role == NODE_WORKER && node->hello.prefix_cache && node->hello.block_tokens == PREFIX_BLOCK;
    return shares ? prefix_run_blocks(r->sched.run) : 0;
}

// Returns the KV blocks that a request is expected to need, for its entries and the tokens left to generate.
static int expected_blocks(const struct sched_request *s, int block_tokens)
{
    const struct request_usage *usage = s->usage;
    int entries = usage->kept_tokens + usage->completion_tokens;
    int left = (s->spec->sampling.max_tokens - usage->completion_tokens + block_tokens - 1) / block_tokens;
    int most = (usage->kept_tokens + s->spec->sampling.max_tokens - 1 + block_tokens - 1) / block_tokens;
    int expected = (entries + block_tokens - 1) / block_tokens + (int)output_blocks_expected(left);
    return expected < most ? expected : most;
}

// Returns the blocks that the request holds and no earlier request on the node holds.
static int distinct_blocks(const struct core_node *node, const struct sched_request *s)
{
    int held = held_blocks(node, request_of(s)), shared = 0;
    for (const struct sched_request *other = node->sched.account.requests.first; other != s; other = other->next) {
        int n = prefix_chain_common(s->prefix, held, other->prefix, held_blocks(node, request_of(other)));
        if (n > shared) shared = n;
    }
    return held - shared;
}

static void check_node(struct world *w, const struct core_node *node)
{
    const struct node_account *account = &node->sched.account;
    struct bin_count bins = {.n = 0};
    int64_t bin_tokens = 0, kv_blocks = 0, context_blocks = 0, long_tokens = 0;
    int n = 0, in_bins = 0, n_long = 0, alone = 0;
    for (const struct sched_request *s = account->requests.first; s; s = s->next, n++) {
        const struct request *r = request_of(s);
        bool worker = node->hello.role == NODE_WORKER;
        HOLDS(r->account.node == node && s->list == &account->requests);
        HOLDS(worker ? r->state == REQUEST_PREFILL || r->state == REQUEST_DECODE : r->state == REQUEST_SCORING);
        kv_blocks += r->sched.own_blocks + distinct_blocks(node, s);
        context_blocks += r->sched.own_blocks + held_blocks(node, r);
        alone += s->runs_alone;
        HOLDS(!worker || r->sched.own_blocks + held_blocks(node, r) == expected_blocks(s, node->hello.block_tokens));
        if (!r->account.bin) continue;
        bin_tokens += r->account.rows;
        in_bins++;
        n_long += r->account.is_long;
        long_tokens += r->account.is_long ? r->account.rows : 0;
        bins.pairs += r->account.attention_pairs;
        bin_count_add(&bins, r->account.bin);
    }
    HOLDS(n == account->requests.count && n <= node->hello.max_seqs && alone == account->running_alone);
    HOLDS(bins.outstanding == account->bins &&
          account->bins <= w->scenario->options.bins_ahead + node->hello.stages - 1);
    HOLDS(n_long == account->long_prompts && long_tokens == account->long_tokens);
    HOLDS(bins.open == in_bins && in_bins == account->requests_in_bins);
    HOLDS(bin_tokens == account->bin_tokens);
    HOLDS(fabs(bins.pairs - account->bin_attention_pairs) <= 1e-9 * bins.pairs);
    HOLDS(kv_blocks == account->kv_blocks && context_blocks == account->context_blocks);
}

// --- the whole

static void sooner(int64_t *due_us, int64_t at_us)
{
    if (at_us < *due_us) *due_us = at_us;
}

// Checks the timer of a request. The timer is at the earliest deadline, or before it if the earliest deadline has moved
// to a later time. Once tokens have come, the deadline of the first token does not count.
static void check_timer(struct world *w, const struct core *c, const struct request *r)
{
    int64_t at_us = r->links.timer_index < 0 ? INT64_MAX : r->links.timer_us, due_us = INT64_MAX;
    HOLDS(r->links.timer_index < 0 || c->timers.heap[r->links.timer_index] == r);
    if (!r->usage.completion_tokens) sooner(&due_us, r->spec.ttft_deadline_us);
    if (r->state == REQUEST_SCORING) sooner(&due_us, r->score_deadline_us);
    bool waits = r->sched.list && !r->account.node;
    if (waits && !r->sched.overdue && c->options.policy == BIN_DATASET) sooner(&due_us, r->sched.due_us);
    if (r->state == REQUEST_READY && !sched_pool_can_hold(&c->view, NODE_WORKER, &r->sched)) {
        int64_t since_us = r->spec.arrived_us > c->workers_gone_us ? r->spec.arrived_us : c->workers_gone_us;
        sooner(&due_us, since_us + c->options.worker_grace_us);
    }
    HOLDS(at_us <= due_us);
    if (r->usage.completion_tokens) HOLDS(at_us == due_us || at_us != r->spec.ttft_deadline_us);
    HOLDS(r->state != REQUEST_SCORING || r->account.losses < 2); // a score is tried twice
}

static void check_ledger(struct world *w, const struct core *c)
{
    struct class_count waiting[QUEUE_CLASSES] = {{0, 0}};
    int running = 0, n = 0;
    for (size_t b = 0; b < c->table.buckets; b++) {
        for (const struct request *r = c->table.by_number[b]; r; r = r->links.number_next, n++) {
            bool on_worker = r->account.node && r->account.node->hello.role == NODE_WORKER;
            struct class_count *class_count = &waiting[ledger_class_of(r->spec.priority)];
            running += on_worker;
            class_count->requests += !on_worker;
            class_count->tokens += on_worker ? 0 : request_queue_tokens(r);
            check_timer(w, c, r);
        }
    }
    HOLDS(n == c->table.count && n == clients_in_router(w) + c->shadows.n_running && (size_t)n <= c->table.buckets);
    HOLDS(running == c->ledger.running);
    for (int i = 1; i < c->timers.count; i++)
        HOLDS(c->timers.heap[(i - 1) / 2]->links.timer_us <= c->timers.heap[i]->links.timer_us);
    for (int k = 0; k < QUEUE_CLASSES; k++)
        HOLDS(waiting[k].requests == c->ledger.waiting[k].requests && waiting[k].tokens == c->ledger.waiting[k].tokens);
}

void oracles_check_tick(struct world *w)
{
    const struct core *c = sim_router_core(w->router);
    oracle_waiting_with_room(w, c);
    oracle_preempt_tick(w, c);
    oracle_index_tick(w, c, NODE_SPECULATOR);
    oracle_index_tick(w, c, NODE_WORKER);
}

void oracles_check(struct world *w)
{
    const struct core *c = sim_router_core(w->router);
    if (c) {
        int n = 0, open[NODE_ROLES] = {0};
        oracle_waiting(w, c, &c->waiting[NODE_SPECULATOR], &n);
        oracle_waiting(w, c, &c->waiting[NODE_WORKER], &n);
        oracle_ledger_check(w, &c->waiting[NODE_SPECULATOR]);
        oracle_ledger_check(w, &c->waiting[NODE_WORKER]);
        for (const struct core_node *node = core_first_node(c); node; node = core_node_next(node)) {
            check_node(w, node);
            n += node->sched.account.requests.count;
            open[node->hello.role] += !node->sched.draining;
        }
        oracle_index(w, c, NODE_SPECULATOR);
        oracle_index(w, c, NODE_WORKER);
        HOLDS(n == c->table.count); // every request waits or is on a node
        HOLDS(open[NODE_SPECULATOR] == c->open_nodes[NODE_SPECULATOR] &&
              open[NODE_WORKER] == c->open_nodes[NODE_WORKER]);
        check_ledger(w, c);
        oracle_estimate_nodes(w, c);
        oracle_status(w, c);
        oracle_measures(w, c);
    }
    for (int i = 0; i < w->scenario->n_nodes; i++) {
        const char *problem = sim_node_check(w->nodes[i]);
        if (problem) world_fail(w, "node %d: %s", i, problem);
    }
}

void oracles_check_idle(struct world *w)
{
    const struct core *c = sim_router_core(w->router);
    oracles_check(w);
    HOLDS(c && core_idle(c) && clients_in_router(w) == 0);
    if (!c) return;
    HOLDS(c->timers.count == 0 && c->ledger.running == 0 && !c->view.reservation.request);
    for (int k = 0; k < QUEUE_CLASSES; k++)
        HOLDS(c->ledger.waiting[k].requests == 0 && c->ledger.waiting[k].tokens == 0);
    HOLDS(c->waiting[0].tenants.n == 0 && c->waiting[1].tenants.n == 0);
    for (const struct core_node *node = core_first_node(c); node; node = core_node_next(node)) {
        const struct node_account *account = &node->sched.account;
        HOLDS(account->bins == 0 && account->bin_tokens == 0 && account->kv_blocks == 0 &&
              account->requests.count == 0);
        HOLDS(account->requests_in_bins == 0 && account->bin_attention_pairs < 1e-6);
    }
}
