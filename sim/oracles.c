// SPDX-License-Identifier: Apache-2.0
#include "sim/oracles.h"

#include "router/core/core_state.h"
#include "sim/client.h"
#include "sim/node.h"
#include "sim/router.h"

#define HOLDS(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) world_fail(w, "%s:%d: does not hold: %s", __func__, __LINE__, #condition);                   \
    } while (0)

// --- nodes

enum { BINS_MAX = 64 };

struct bin_count {
    const struct core_bin *bins[BINS_MAX];
    int n, outstanding, open;
};

static void bin_count_add(struct bin_count *count, const struct core_bin *bin)
{
    for (int i = 0; i < count->n; i++)
        if (count->bins[i] == bin) return;
    if (count->n < BINS_MAX) count->bins[count->n++] = bin;
    count->open += bin->open;
    count->outstanding += bin->open_fitting > 0;
}

static void check_node(struct world *w, const struct core_node *node)
{
    const struct node_account *account = &node->sched.account;
    struct bin_count bins = {.n = 0};
    int64_t bin_tokens = 0, kv_blocks = 0;
    int n = 0, in_bins = 0, n_long = 0;
    for (const struct sched_request *s = account->requests.first; s; s = s->next, n++) {
        const struct request *r = request_of(s);
        bool worker = node->hello.role == NODE_WORKER;
        HOLDS(r->account.node == node);
        HOLDS(worker ? r->state == REQUEST_PREFILL || r->state == REQUEST_DECODE : r->state == REQUEST_SCORING);
        kv_blocks += r->account.kv_blocks;
        if (!r->account.bin) continue;
        bin_tokens += r->account.rows;
        in_bins++;
        n_long += r->account.is_long;
        bin_count_add(&bins, r->account.bin);
    }
    HOLDS(n == account->requests.count && n <= node->hello.max_seqs);
    HOLDS(bins.outstanding == account->bins && account->bins <= w->scenario->options.bins_ahead);
    HOLDS(n_long == account->long_prompts && (n_long || account->long_tokens == 0));
    HOLDS(bins.open == in_bins && in_bins == account->requests_in_bins);
    HOLDS(bin_tokens == account->bin_tokens);
    HOLDS(kv_blocks == account->kv_blocks);
}

// --- waiting sets

static void check_waiting(struct world *w, const struct waiting_set *set, int *n_p)
{
    int n = 0;
    int64_t rows = 0;
    const struct request_list *lists[] = {&set->queue, &set->overdue};
    for (int k = 0; k < 2; k++) {
        for (const struct sched_request *s = lists[k]->first; s; s = s->next, n++) {
            const struct request *r = request_of(s);
            HOLDS(r->state == (set->role == NODE_WORKER ? REQUEST_READY : REQUEST_SCORING));
            HOLDS(!r->account.node && !r->account.bin && s->list == lists[k]);
            HOLDS(s->overdue == (k == 1));
            HOLDS(!s->overdue || !s->prev || s->prev->due_us <= s->due_us);
            rows += sched_request_rows(s);
        }
    }
    HOLDS(n == waiting_set_count(set) && rows == set->rows && set->n_picked == 0);
    HOLDS(w->scenario->options.policy != BIN_DATASET || set->n_packable == n);
    *n_p += n;
}

// --- the whole

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
            class_count->tokens += on_worker ? 0 : r->spec.n_tokens;
            HOLDS(r->links.timer_index < 0 || c->timers.heap[r->links.timer_index] == r);
        }
    }
    HOLDS(n == c->table.count && n == clients_in_router(w));
    HOLDS(running == c->ledger.running);
    for (int k = 0; k < QUEUE_CLASSES; k++)
        HOLDS(waiting[k].requests == c->ledger.waiting[k].requests && waiting[k].tokens == c->ledger.waiting[k].tokens);
}

void oracles_check(struct world *w)
{
    const struct core *c = sim_router_core(w->router);
    if (c) {
        int n = 0, open[NODE_ROLES] = {0};
        check_waiting(w, &c->waiting[NODE_SPECULATOR], &n);
        check_waiting(w, &c->waiting[NODE_WORKER], &n);
        for (const struct core_node *node = core_first_node(c); node; node = core_node_next(node)) {
            check_node(w, node);
            n += node->sched.account.requests.count;
            open[node->hello.role] += !node->sched.draining;
        }
        HOLDS(n == c->table.count); // every request waits or is on a node
        HOLDS(open[NODE_SPECULATOR] == c->open_nodes[NODE_SPECULATOR] &&
              open[NODE_WORKER] == c->open_nodes[NODE_WORKER]);
        check_ledger(w, c);
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
