// SPDX-License-Identifier: Apache-2.0
// router/core under a random sequence of events: clients that arrive, cancel and repeat ids; nodes that attach, leave,
// answer late, wrongly or not at all; jumps in time. All counters are recomputed from scratch every few events, each
// client's tokens have to count up from zero whatever happened to its worker groups, and every request ends exactly
// once.
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "router/core/core_state.h"
#include "router/sched/node_choice.h"
#include "tests/core_fixture.h"

enum { EVENTS = 110000, CLIENTS_MAX = 40000, SLOTS = 6 };

static struct fixture f;
static struct client *clients[CLIENTS_MAX]; // by number
static uint64_t first_number, last_number;
static struct fake_node *slots[SLOTS];
static int events, expected_max[CLIENTS_MAX];
static uint64_t seen_states;

static uint64_t random_state;
static int random_below(int n)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int)((random_state >> 33) % (uint64_t)n);
}

static bool one_in(int n)
{
    return random_below(n) == 0;
}

// --- the invariants

static int held_blocks(const struct core_node *node, const struct request *r)
{
    return sched_node_shares_blocks(&node->sched) ? prefix_run_blocks(r->account.run) : 0;
}

// Blocks that the request holds and no request before it on the node does.
static int distinct_blocks(const struct core_node *node, const struct sched_request *s)
{
    int held = held_blocks(node, request_of(s)), shared = 0;
    for (const struct sched_request *other = node->sched.account.requests.first; other != s; other = other->next) {
        int n = prefix_chain_common(s->prefix, held, other->prefix, held_blocks(node, request_of(other)));
        if (n > shared) shared = n;
    }
    return held - shared;
}

// The node's accounts against the requests on it.
static void check_node(const struct core_node *node)
{
    const struct node_account *account = &node->sched.account;
    int64_t bin_tokens = 0, kv_blocks = 0, context_blocks = 0;
    double pairs = 0;
    int in_bins = 0, open = 0, count = 0, n_bins = 0, n_long = 0, n_fitting = 0;
    struct core_bin *bins[16];
    for (const struct sched_request *s = account->requests.first; s; s = s->next, count++) {
        const struct request *r = request_of(s);
        ck_cheap(r->account.node == node);
        ck_cheap(s->list == &account->requests);
        bool worker = node->hello.role == NODE_WORKER;
        ck_cheap(worker ? r->state == REQUEST_PREFILL || r->state == REQUEST_DECODE : r->state == REQUEST_SCORING);
        kv_blocks += r->account.own_blocks + distinct_blocks(node, s);
        context_blocks += r->account.own_blocks + held_blocks(node, r);
        if (worker)
            ck_cheap(r->account.own_blocks + held_blocks(node, r) ==
                     sched_request_kv_blocks(s, node->hello.block_tokens));
        if (!r->account.bin) continue;
        bin_tokens += r->account.rows;
        pairs += r->account.attention_pairs;
        in_bins++;
        n_long += r->account.is_long;
        int b = 0;
        while (b < n_bins && bins[b] != r->account.bin)
            b++;
        if (b < n_bins) continue;
        ck_cheap(n_bins < 16);
        bins[n_bins++] = r->account.bin;
        open += r->account.bin->open;
        n_fitting += r->account.bin->open_fitting > 0;
    }
    ck_cheap(count == account->requests.count);
    ck_cheap(n_fitting == account->bins);
    ck_cheap(n_long == account->long_prompts && (n_long || account->long_tokens == 0));
    ck_cheap(open == in_bins && in_bins == account->requests_in_bins);
    ck_cheap(bin_tokens == account->bin_tokens);
    ck_cheap(!(pairs < account->bin_attention_pairs) && !(pairs > account->bin_attention_pairs));
    ck_cheap(kv_blocks == account->kv_blocks && context_blocks == account->context_blocks);
    ck_cheap(account->bins <= f.options.bins_ahead);
    ck_cheap(count <= node->hello.max_seqs);
}

static void check_length_index(const struct tenant_queue *queue, const struct sched_request *r, int *count_p)
{
    if (!r) return;
    ck_cheap(r->packable && r->tenant_queue == queue && r->need.rows == sched_request_rows(r));
    bool worker = queue->owner == &f.c->waiting[NODE_WORKER].tenants;
    int blocks = worker ? sched_request_kv_blocks(r, PREFIX_BLOCK) : 0;
    int shareable = worker ? sched_request_shareable_blocks(r, r->n_prefix) : 0;
    ck_cheap(r->need.blocks <= blocks && r->need.blocks >= blocks - shareable);
    const struct sched_request *shorter = r->lower[BY_LENGTH], *longer = r->higher[BY_LENGTH];
    int min = r->need.blocks;
    if (shorter && shorter->subtree_min[BY_LENGTH].blocks < min) min = shorter->subtree_min[BY_LENGTH].blocks;
    if (longer && longer->subtree_min[BY_LENGTH].blocks < min) min = longer->subtree_min[BY_LENGTH].blocks;
    ck_cheap(r->subtree_min[BY_LENGTH].blocks == min);
    if (shorter) ck_cheap(shorter->need.rows <= r->need.rows);
    if (longer) ck_cheap(longer->need.rows >= r->need.rows);
    ++*count_p;
    check_length_index(queue, shorter, count_p);
    check_length_index(queue, longer, count_p);
}

// In its shared-prefix group a request is the nearest to itself.
static void check_prefix_group(const struct waiting_set *set, const struct sched_request *r)
{
    struct prefix_walk walk;
    if (!r->packable || !r->n_prefix) return;
    prefix_walk_start(&walk, &set->groups, r->tenant_queue, r->prefix, r->n_prefix);
    for (const struct sched_request *other; (other = prefix_walk_next(&walk)) != r;) {
        ck_cheap(other && walk.blocks == r->n_prefix);
        ck_cheap(other->tenant_queue == r->tenant_queue && other->packable);
    }
}

// The tenant queues, their length indexes and heaps.
static void check_tenants(const struct waiting_set *set)
{
    const struct tenant_queues *tenants = &set->tenants;
    int queues = 0, packable = 0, refs = 0;
    for (size_t b = 0; b < tenants->n_buckets; b++) {
        for (const struct tenant_queue *queue = tenants->buckets[b]; queue; queue = queue->next, queues++) {
            int count = 0;
            check_length_index(queue, queue->packable.root, &count);
            ck_cheap(queue->owner == tenants && queue->refs > 0 && count == queue->packable.count);
            ck_cheap(!(queue->served < 0));
            ck_cheap(queue->in_level == (count > 0));
            if (count) ck_cheap(queue->subtree_min.rows <= queue->packable.root->subtree_min[BY_LENGTH].rows);
            if (count && queue->lower) ck_cheap(queue->lower->served <= queue->served);
            if (count && queue->higher) ck_cheap(queue->higher->served >= queue->served);
            packable += count;
            refs += queue->refs;
        }
    }
    ck_cheap(queues == tenants->n && packable == set->n_packable && set->n_picked == 0);
    for (size_t b = 0; b < f.c->table.buckets; b++) {
        for (const struct request *r = f.c->table.by_number[b]; r; r = r->links.number_next)
            refs -= r->sched.tenant_queue && r->sched.tenant_queue->owner == tenants;
    }
    ck_cheap(refs == 0);
}

static void check_sums(const struct waiting_set *set, int64_t rows, int64_t overdue_rows)
{
    struct cost_work by_level = {0, 0}, by_time = {0, 0};
    for (int level = 0; level < PRIORITY_LEVELS; level++) {
        by_level.rows += set->level_work[level].rows;
        by_level.pairs += set->level_work[level].pairs;
    }
    for (int slot = 0; slot < DUE_SLOTS; slot++) {
        by_time.rows += set->due_work[slot].rows;
        by_time.pairs += set->due_work[slot].pairs;
    }
    ck_cheap((int64_t)by_level.rows == rows && (int64_t)by_time.rows == rows);
    ck_cheap((int64_t)by_level.pairs == (int64_t)by_time.pairs && by_time.pairs >= by_time.rows);
    ck_cheap((int64_t)set->overdue_work.rows == overdue_rows);
    struct cost_work before = waiting_set_due_between(set, f.now_us, f.now_us + f.options.max_wait_us);
    ck_cheap(before.rows <= by_time.rows);
    ck_cheap(f.c->view.computed_share[set->role] > 0 && f.c->view.computed_share[set->role] <= 1);
}

static void check_waiting_set(const struct waiting_set *set, int *count_p)
{
    int64_t rows = 0, overdue_rows = 0;
    int count = 0, unpackable = 0;
    const struct request_list *lists[] = {&set->queue, &set->overdue};
    for (int i = 0; i < 2; i++) {
        for (const struct sched_request *r = lists[i]->first; r; r = r->next, count++) {
            const struct request *whole = request_of(r);
            ck_cheap(whole->state == (set->role == NODE_WORKER ? REQUEST_READY : REQUEST_SCORING));
            ck_cheap(!whole->account.node && !whole->account.bin && r->list == lists[i] && r->overdue == (i == 1));
            ck_cheap(r->tenant_queue && r->tenant_queue->owner == &set->tenants);
            rows += sched_request_rows(r);
            if (r->overdue) overdue_rows += sched_request_rows(r);
            if (r->overdue && r->prev) ck_cheap(r->prev->due_us <= r->due_us);
            unpackable += !r->packable;
            check_prefix_group(set, r);
        }
    }
    ck_cheap(rows == set->rows);
    check_sums(set, rows - overdue_rows, overdue_rows);
    ck_cheap(count == waiting_set_count(set));
    ck_cheap(unpackable + set->n_packable == count);
    const struct request_need any = {INT_MAX, INT_MAX, INT_MAX};
    const struct sched_request *next = NULL;
    for (const struct sched_request *r = set->overdue.first; r; r = r->next) {
        next = due_index_next(&set->due_next, next, &any);
        ck_cheap(next == r);
    }
    ck_cheap(!due_index_next(&set->due_next, next, &any));
    if (f.options.policy == BIN_DATASET) ck_cheap(unpackable == 0);
    check_tenants(set);
    *count_p += count;
}

static bool some_cache(void)
{
    const struct sched_node *node = f.c->view.nodes;
    while (node && !node->prefixes)
        node = node->next;
    return node;
}

// After a tick: a request that is overdue, or waits where a node is idle, waits because no node that may take it has
// room. (A request that is not overdue may also wait for a node that has its prefix in the cache.)
static void check_no_request_waits_beside_room(void)
{
    bool caches = some_cache();
    for (const struct sched_node *node = f.c->view.nodes; node; node = node->next) {
        const struct waiting_set *set = &f.c->waiting[node->role];
        if (f.c->view.reservation.node == node || !node_is_open(&f.c->view, node)) continue;
        const struct request_list *lists[] = {&set->overdue, &set->queue};
        for (int i = 0; i < (node->account.bins || caches ? 1 : 2); i++) {
            for (const struct sched_request *r = lists[i]->first; r; r = r->next) {
                bool second_long = node->account.long_prompts && r->need.rows > sched_node_pass_rows(node);
                ck_cheap(!r->packable || second_long || r->runs_alone || !node_has_room(&f.c->view, node, r));
            }
        }
    }
}

// The ledger's counts against all requests.
static void check_ledger(int running)
{
    const struct ledger *ledger = &f.c->ledger;
    struct class_count waiting[QUEUE_CLASSES] = {{0, 0}};
    for (size_t b = 0; b < f.c->table.buckets; b++) {
        for (const struct request *r = f.c->table.by_number[b]; r; r = r->links.number_next) {
            if (!r->account.node || r->account.node->hello.role != NODE_WORKER) {
                waiting[ledger_class_of(r->spec.priority)].requests++;
                waiting[ledger_class_of(r->spec.priority)].tokens += r->spec.n_tokens;
            }
            if (r->links.timer_index >= 0) ck_cheap(f.c->timers.heap[r->links.timer_index] == r);
            seen_states |= UINT64_C(1) << r->state;
        }
    }
    ck_cheap(running == ledger->running);
    for (int k = 0; k < QUEUE_CLASSES; k++) {
        ck_cheap(waiting[k].requests == ledger->waiting[k].requests);
        ck_cheap(waiting[k].tokens == ledger->waiting[k].tokens);
    }
    const struct core_totals *t = &ledger->totals;
    ck_cheap(t->requests == (uint64_t)f.submitted);
    ck_cheap(t->done + t->failed + t->cancelled + t->refused == (uint64_t)f.ended);
}

static void check_invariants(void)
{
    int count = 0, running = 0, nodes[NODE_ROLES] = {0};
    check_waiting_set(&f.c->waiting[NODE_SPECULATOR], &count);
    check_waiting_set(&f.c->waiting[NODE_WORKER], &count);
    for (const struct core_node *node = core_first_node(f.c); node; node = core_node_next(node)) {
        check_node(node);
        int requests = node->sched.account.requests.count;
        count += requests;
        if (node->hello.role == NODE_WORKER) running += requests;
        if (!node->sched.draining) nodes[node->hello.role]++;
    }
    check_ledger(running);
    ck_cheap(count == f.c->table.count); // every request waits or is on a node
    ck_cheap(count == f.submitted - f.ended);
    ck_cheap(nodes[NODE_SPECULATOR] == f.c->open_nodes[NODE_SPECULATOR]);
    ck_cheap(nodes[NODE_WORKER] == f.c->open_nodes[NODE_WORKER]);
    ck_cheap(f.ready == (nodes[NODE_WORKER] > 0));
}

// --- the events

static struct client *some_client(void)
{
    if (last_number < first_number) return NULL;
    // Mostly one of the latest, which may still be running.
    uint64_t span = last_number - first_number + 1;
    if (span > 40 && !one_in(5)) span = 40;
    return clients[last_number - (uint64_t)random_below((int)span) - first_number];
}

static void submit(void)
{
    if (last_number + 1 - first_number >= CLIENTS_MAX) return;
    int n_tokens = one_in(20) ? 1 + random_below(3000) : 1 + random_below(300), max_tokens = 1 + random_below(12);
    struct client *client = fixture_request(&f, n_tokens, max_tokens);
    struct request *r = client->r;
    if (!first_number) first_number = r->number;
    last_number = r->number;
    clients[r->number - first_number] = client;
    expected_max[r->number - first_number] = max_tokens;
    int head = random_below(4), head_tokens = random_below(n_tokens);
    for (int i = 0; i < n_tokens; i++)
        r->spec.tokens[i] = i < head_tokens ? head : 4 + random_below(2);
    r->spec.prefill.mode = (enum prefill_mode)random_below(4);
    if (one_in(10)) r->spec.prefill.keep_rate = 1;
    if (one_in(4)) r->spec.priority = random_below(25) - 12;
    if (one_in(2)) r->spec.tenant = mem_format("tenant-%d", random_below(6));
    if (one_in(10)) r->spec.ttft_deadline_us = f.now_us + random_below(3 * SECOND);
    if (one_in(3)) r->id = mem_format("id-%d", random_below(500));
    if (one_in(8)) client->stop_after = 1 + random_below(8);
    if (one_in(10)) {
        r->spec.score_only = true;
        r->spec.want_importance = one_in(2);
    }
    fixture_submit(&f, client);
}

static void attach(int slot)
{
    struct node_hello hello = fixture_hello(slot < SLOTS / 2 ? NODE_WORKER : NODE_SPECULATOR, slots[slot]->id);
    hello.context_tokens = one_in(3) ? 8192 : 2000;
    hello.token_budget = 128 << random_below(4);
    hello.kv_blocks = 40 << random_below(4);
    hello.max_seqs = 4 + random_below(40);
    hello.prefix_cache = one_in(2);
    // Attaching to a slot in use replaces its node: node_lost must be called for the old link.
    struct fake_node *old = slots[slot];
    struct fake_node *node = old->node ? mem_alloc(sizeof *node) : old;
    memcpy(node->id, old->id, sizeof node->id);
    node->lost = false;
    node->n_requests = 0;
    ck_cheap(core_attach(f.c, &hello, node, f.now_us, &node->node) == STATUS_OK);
    if (node == old) return;
    ck_cheap(old->lost && !old->node);
    slots[slot] = node;
    free(old);
}

static void change_node(void)
{
    int slot = random_below(SLOTS);
    struct fake_node *node = slots[slot];
    if (!node->node || one_in(4)) {
        attach(slot);
    } else if (one_in(3)) {
        core_draining(f.c, node->node, f.now_us);
    } else if (one_in(2)) {
        struct core_node *gone = node->node;
        node->node = NULL;
        node->n_requests = 0;
        core_detach(f.c, gone, "its stream ended", f.now_us);
    }
}

// A pass with this time per row.
static void report_pass(struct fake_node *node, int row_us)
{
    int rows = 1 + random_below(600);
    struct pass_cost pass = {rows, (int64_t)rows * (rows + 1) / 2, 200 + row_us * rows};
    core_passed(f.c, node->node, &pass, f.now_us);
}

static void step_worker(struct fake_node *node)
{
    report_pass(node, 50);
    int n = 1 + random_below(6);
    for (int i = 0; i < n && node->n_requests; i++) {
        uint64_t number = node->requests[random_below(node->n_requests)];
        struct client *client = clients[number - first_number];
        ck_cheap(client->r && client->r->account.node == node->node);
        int left = expected_max[number - first_number] - client->n_tokens,
            n_tokens = 1 + random_below(left < 3 ? left : 3);
        int32_t tokens[4];
        for (int t = 0; t < n_tokens; t++)
            tokens[t] = client->n_tokens + t; // what a resumed request has to continue with
        struct sequence_result result = {.request = number, .tokens = tokens, .n_tokens = n_tokens};
        result.finished = n_tokens == left || one_in(10);
        result.reason = n_tokens == left ? FINISH_REASON_LENGTH : FINISH_REASON_STOP;
        if (one_in(200)) {
            result.finished = true;
            result.reason = FINISH_REASON_ERROR;
            result.error = "broken";
        }
        if (one_in(300)) tokens[0] = VOCAB + random_below(100);
        if (one_in(300)) result.n_tokens = 0; // nothing new, or an end without tokens
        if (result.finished) fake_node_forget(node, number);
        core_step(f.c, node->node, &result, 1, f.now_us);
    }
}

static void step_speculator(struct fake_node *node)
{
    report_pass(node, one_in(2) ? 10 : 40);
    uint64_t number = node->requests[random_below(node->n_requests)];
    struct client *client = clients[number - first_number];
    ck_cheap(client->r && client->r->account.node == node->node);
    int n = client->r->spec.n_tokens;
    float *importance = mem_alloc_array((size_t)n, sizeof *importance);
    int first = random_below(n);
    struct token_range kept[2] = {{first, first + random_below(n - first)}, {n - 1, n - 1}};
    struct score_result result = {.request = number,
                                  .kept = kept,
                                  .n_kept = kept[0].last < n - 1 ? 2 : 1,
                                  .importance = importance,
                                  .n_importance = n};
    if (one_in(20)) result.error = "broken";
    if (one_in(20)) kept[0].last += n;
    if (one_in(50)) result.n_importance--;
    fake_node_forget(node, number);
    core_scored(f.c, node->node, &result, f.now_us);
    free(importance);
}

// Results of requests that are not on that node: ended, on another node, or unknown.
static void late_result(struct fake_node *node)
{
    struct client *client = some_client();
    uint64_t number = client && !one_in(5) ? client->number : (uint64_t)random_below(1 << 30) + (UINT64_C(1) << 40);
    if (client && number == client->number && client->r && client->r->account.node == node->node) return;
    int32_t token = 999;
    struct sequence_result step = {.request = number, .tokens = &token, .n_tokens = 1, .finished = one_in(2)};
    struct token_range kept = {0, 0};
    struct score_result scored = {.request = number, .kept = &kept, .n_kept = 1};
    if (one_in(2)) {
        core_step(f.c, node->node, &step, 1, f.now_us);
    } else {
        core_scored(f.c, node->node, &scored, f.now_us);
    }
}

static void one_event(void)
{
    struct fake_node *node = slots[random_below(SLOTS)];
    int kind = random_below(100);
    if (kind < 14) {
        submit();
    } else if (kind < 50) {
        if (node->node && node->n_requests) {
            (node->node->hello.role == NODE_WORKER ? step_worker : step_speculator)(node);
        }
    } else if (kind < 66) {
        if (node->node) late_result(node);
    } else if (kind < 70) {
        struct client *client = some_client();
        bool runs = client && client->ends == 0;
        if (client) ck_cheap(core_cancel(f.c, client->number, f.now_us) == runs);
    } else if (kind < 71) {
        char *id = mem_format("id-%d", random_below(500));
        core_abort(f.c, id, 0, f.now_us);
        free(id);
    } else if (kind < 85) {
        f.now_us += one_in(300) ? 3 * SECOND : random_below(20000);
    } else if (kind < 96) {
        if (node->node)
            core_heartbeat(f.c, node->node, &(struct node_heartbeat){.kv_blocks_free = random_below(100)}, f.now_us);
    } else if (one_in(10)) {
        change_node();
    }
    events++;
}

START_TEST(after_random_events_all_accounts_agree_and_every_request_has_ended_once)
{
    fixture_init(&f);
    f.options.max_wait_us = SECOND / 5;
    f.options.heartbeat_us = 2 * SECOND;
    f.options.stall_us = SECOND;
    f.options.eject_us = 5000;
    f.options.queue_reserve_percent = 15;
    f.options.tenant_weights = &(struct tenant_weight){"tenant-3", 2.5};
    f.options.n_tenant_weights = 1;
    f.options.max_queue_requests = 60;
    f.options.max_queue_tokens = 20000;
    f.options.policy = (enum bin_policy)(_i % 3);
    f.options.batch_requests = 5;
    fixture_start(&f);
    random_state = 42 + (uint64_t)_i;
    for (int slot = 0; slot < SLOTS; slot++) {
        slots[slot] = mem_alloc(sizeof **slots);
        slots[slot]->id[0] = (char)('a' + slot);
        attach(slot);
    }
    while (events < EVENTS) {
        one_event();
        if (one_in(3)) {
            fixture_advance(&f, 0);
            check_no_request_waits_beside_room();
        }
        if (events % 32 == 0) check_invariants();
    }
    // Then no new requests, all nodes attached, answers until all requests have ended.
    for (int slot = 0; slot < SLOTS; slot++)
        attach(slot);
    for (int round = 0; round < 100000 && !core_idle(f.c); round++) {
        fixture_advance(&f, 1000);
        for (int slot = 0; slot < SLOTS; slot++) {
            struct fake_node *node = slots[slot];
            if (!node->node) attach(slot);
            core_heartbeat(f.c, node->node, &(struct node_heartbeat){.kv_blocks_free = 0}, f.now_us);
            if (node->n_requests) (node->node->hello.role == NODE_WORKER ? step_worker : step_speculator)(node);
        }
    }
    check_invariants();
    ck_assert(core_idle(f.c) && f.ended == f.submitted);
    ck_assert(f.c->timers.count == 0 && f.c->ledger.running == 0 && !f.c->view.reservation.request);
    for (int k = 0; k < QUEUE_CLASSES; k++)
        ck_assert(f.c->ledger.waiting[k].requests == 0 && f.c->ledger.waiting[k].tokens == 0);
    ck_assert(f.c->waiting[0].tenants.n == 0 && f.c->waiting[1].tenants.n == 0);
    uint64_t completion = 0, replays = 0, kept = 0;
    for (uint64_t number = first_number; number <= last_number; number++) {
        const struct client *client = clients[number - first_number];
        for (int i = 0; i < client->n_tokens; i++)
            ck_cheap(client->tokens[i] == i); // no repeat, no gap
        completion += (uint64_t)client->usage.completion_tokens;
        replays += (uint64_t)client->usage.replays;
        kept += (uint64_t)client->usage.kept_tokens;
    }
    const struct core_totals *t = &f.c->ledger.totals;
    ck_assert_uint_eq(completion, t->completion_tokens);
    ck_assert_uint_eq(replays, t->replays);
    ck_assert_uint_ge(kept, t->kept_tokens); // score-only requests keep tokens, too
    for (const struct sched_node *node = f.c->view.nodes; node; node = node->next) {
        const struct node_account *account = &node->account;
        ck_assert(account->bins == 0 && account->bin_tokens == 0);
        ck_assert(account->kv_blocks == 0 && account->requests.count == 0);
    }
    printf("storm %d: %d events, %d requests: done %d failed %d cancelled %d refused %d, replays %d, degraded %d, bins "
           "%d\n",
           _i, events, f.submitted, (int)t->done, (int)t->failed, (int)t->cancelled, (int)t->refused, (int)t->replays,
           (int)t->degraded, (int)(f.c->ledger.bins[0].bins + f.c->ledger.bins[1].bins));
    fflush(stdout);
    // The sequence has reached every path.
    ck_assert(t->done > 1000 && t->failed > 50 && t->cancelled > 100 && t->refused > 50 && t->replays > 50);
    for (enum skip_reason reason = SKIP_NONE; reason < SKIP_COUNT; reason++)
        ck_assert_msg(t->skipped[reason] > 0, "no request was skipped for %s", skip_reason_name(reason));
    fixture_stop(&f);
    for (int slot = 0; slot < SLOTS; slot++)
        free(slots[slot]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("core_storm");
    TCase *tcase = tcase_create("core_storm");
    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, after_random_events_all_accounts_agree_and_every_request_has_ended_once, 0, 3);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
