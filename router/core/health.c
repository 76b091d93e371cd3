// SPDX-License-Identifier: Apache-2.0
#include "router/core/health.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "router/core/nodes.h"
#include "router/core/requests.h"
#include "router/sched/node_index.h"

#define SLOW         10.0   // a node is slow if its pass takes this many times the median of its peers
#define STALL_US_MAX 86.4e9 // a day: the longest limit, whatever a node reports
enum {
    SLOW_ROWS = 64,    // rows of the pass by which nodes are compared
    SLOW_PASSES = 16,  // passes that a node computes after its admission before it may be ejected as slow
    STALL_PASSES = 4,  // a node hangs only after this many times the expected time of its longest pass
    DOUBLINGS_MAX = 5, // most doublings of eject_us
    // A worker group has to return some result within SILENCE_STALLS times stall_us plus ROW_US for each row that it
    // has to compute. A single request may go without a result SILENCE_TIMES as long, because others may keep it
    // waiting.
    SILENCE_STALLS = 10,
    SILENCE_TIMES = 10,
    ROW_US = 10000,
};

// --- ejection

static void log_node(enum log_level level, const char *event, const struct core_node *node, const char *reason,
                     int64_t us)
{
    log_event(level, event, LOG_FIELD("node", node->hello.node_id), LOG_FIELD("role", role_name(node->sched.role)),
              LOG_FIELD("reason", reason), LOG_FIELD("requests", node->sched.account.requests.count),
              LOG_MS("for_ms", us));
}

static void node_eject(struct core *c, struct core_node *node, const char *reason, int64_t now_us)
{
    struct node_health *health = &node->health;
    int doublings = health->ejections < DOUBLINGS_MAX ? health->ejections : DOUBLINGS_MAX;
    int64_t us = c->options.eject_us << doublings;
    health->ejections++;
    health->ejected_until_us = now_us + us;
    c->health.ejections++;
    log_node(LOG_WARN, "node_ejected", node, reason, us);
    core_node_close(c, node, now_us);
}

static bool may_eject(const struct core *c, const struct core_node *node)
{
    return c->options.eject_us && !node->sched.draining;
}

// Admits the node with one request at a time.
static void node_probe(struct core_node *node)
{
    node->health.ejected_until_us = 0;
    node->health.passes_admitted = node->sched.cost.passes;
    node->sched.limits.max_seqs = 1;
    node_index_note_change(&node->sched);
}

static void node_readmit(struct core *c, struct core_node *node)
{
    node_probe(node);
    log_event(LOG_INFO, "node_readmitted", LOG_FIELD("node", node->hello.node_id),
              LOG_FIELD("role", role_name(node->sched.role)), LOG_FIELD("requests", 1));
    core_node_open(c, node);
}

// --- progress

// Returns how long the node may go without progress: `us` with one stage. A stage of a pipeline may wait for all
// others.
static double of_stages(const struct core_node *node, double us)
{
    return us * (1 + node->sched.limits.more_stages);
}

// Returns how long the node may go without progress. There is no limit for a node that does not count its progress and
// has no cost model yet.
static int64_t stall_limit_us(const struct core *c, const struct core_node *node)
{
    const struct node_limits *limits = &node->sched.limits;
    const struct cost_model *cost = &node->sched.cost;
    int64_t limit_us = (int64_t)of_stages(node, (double)c->options.stall_us);
    if (!cost_knows(cost, 1, c->view.now_us)) return node->health.progress ? limit_us : INT64_MAX;
    double rows = limits->token_budget;
    double pass_us = cost_pass_us(cost, 1, rows, rows * limits->context_tokens);
    double longest_us = of_stages(node, STALL_PASSES * pass_us);
    return longest_us > (double)limit_us ? (int64_t)fmin(longest_us, STALL_US_MAX) : limit_us;
}

static bool node_hangs(const struct core *c, struct core_node *node, int64_t absent_us, int64_t now_us)
{
    int64_t *since_us = &node->health.progress_us;
    if (!node->sched.account.requests.count) *since_us = now_us;
    if (absent_us > 0) *since_us = *since_us + absent_us < now_us ? *since_us + absent_us : now_us;
    int64_t stalled_us = now_us - *since_us;
    return c->options.stall_us && stalled_us >= c->options.stall_us && stalled_us >= stall_limit_us(c, node);
}

// Returns true if a worker group has returned no result for too long, whatever it reports about its progress. Otherwise
// a group that lies could keep its requests for ever. A speculator's requests have a deadline each.
static bool node_is_silent(const struct core *c, struct core_node *node, int64_t absent_us, int64_t now_us)
{
    const struct node_account *account = &node->sched.account;
    int64_t latest_us = 0, earliest_us = INT64_MAX, *excused_us = &node->health.excused_us;
    *excused_us = account->requests.count ? *excused_us + (absent_us > 0 ? absent_us : 0) : 0;
    if (!c->options.stall_us || node->sched.role != NODE_WORKER || !account->requests.count) return false;
    for (const struct sched_request *r = account->requests.first; r; r = r->next) {
        int64_t heard_us = request_of((struct sched_request *)r)->account.charged_us; // of its dispatch or last token
        if (heard_us > latest_us) latest_us = heard_us;
        if (heard_us < earliest_us) earliest_us = heard_us;
    }
    int64_t stalls_us = (int64_t)of_stages(node, SILENCE_STALLS * (double)c->options.stall_us);
    int64_t limit_us = stalls_us + ROW_US * account->bin_tokens + *excused_us;
    return now_us - latest_us > limit_us || now_us - earliest_us > SILENCE_TIMES * limit_us;
}

// Lets the requests of a speculator go on without it.
static void return_requests(struct core *c, struct core_node *node, int64_t now_us)
{
    for (struct sched_request *r; (r = node->sched.account.requests.last);) {
        c->ops.send_cancel(node->link, &request_of(r)->number, 1);
        core_request_lost_at_speculator(c, request_of(r), now_us);
    }
}

static void speculator_hangs(struct core *c, struct core_node *node, const char *reason, int64_t now_us)
{
    if (may_eject(c, node)) node_eject(c, node, reason, now_us);
    return_requests(c, node, now_us);
}

static void worker_hangs(struct core *c, struct core_node *node, const char *reason, int64_t now_us)
{
    struct suspect *suspect = &c->health.suspects[c->health.n_suspects++ % SUSPECTS_MAX];
    snprintf(suspect->node_id, sizeof suspect->node_id, "%s", node->hello.node_id);
    suspect->instance = node->hello.instance;
    suspect->ejections = node->health.ejections;
    core_node_lose(c, node, LOSS_HUNG, reason, now_us);
}

// Handles a hung node. Frees `reason`.
static void node_hung(struct core *c, struct core_node *node, char *reason, int64_t now_us)
{
    node->health.lost = 0;
    c->health.hangs++;
    log_node(LOG_WARN, "node_hung", node, reason, now_us - node->health.progress_us);
    if (node->sched.role == NODE_WORKER) {
        worker_hangs(c, node, reason, now_us);
    } else {
        speculator_hangs(c, node, reason, now_us);
    }
    free(reason);
}

static void node_stalled(struct core *c, struct core_node *node, int64_t now_us)
{
    double s = (double)(now_us - node->health.progress_us) / 1e6;
    int n = node->sched.account.requests.count;
    node_hung(c, node, mem_format("no progress for %.1f s with %d requests", s, n), now_us);
}

static void requests_were_lost(struct core *c, struct core_node *node, int64_t now_us)
{
    int n = node->sched.account.requests.count;
    char *reason =
        mem_format("it has lost %d of its %d requests: it no longer answers or counts them", node->health.lost, n);
    node_hung(c, node, reason, now_us);
}

static void score_missed(struct core *c, struct core_node *node, int64_t now_us)
{
    int64_t since_us = node->health.missed_us;
    node->health.missed_us = 0;
    if (node->health.progress_us <= since_us) {
        speculator_hangs(c, node, "a score timed out and no pass was reported meanwhile", now_us);
    } else if (may_eject(c, node) && cost_knows(&node->sched.cost, 1, now_us)) {
        node_eject(c, node, "a score timed out", now_us);
    }
}

// Handles a new node. A worker group that hung before may hang again, so it is ejected first. If it is the only group
// that takes work, it is probed instead: it gets one request at a time.
static void node_meet(struct core *c, struct core_node *node, int64_t now_us)
{
    node->health.met = true;
    for (int i = 0; i < SUSPECTS_MAX; i++) {
        struct suspect *suspect = &c->health.suspects[i];
        if (strcmp(suspect->node_id, node->hello.node_id) != 0 || suspect->instance != node->hello.instance) continue;
        node->health.ejections = suspect->ejections;
        *suspect = (struct suspect){.ejections = 0};
        if (!may_eject(c, node)) return;
        if (c->open_nodes[node->sched.role] > 1) {
            node_eject(c, node, "it hung before it attached again", now_us);
        } else {
            node_probe(node);
        }
        return;
    }
}

// --- slow nodes

struct peer {
    struct core_node *node;
    double us; // time of a pass of SLOW_ROWS rows
};

static int compare_limits(const struct node_hello *a, const struct node_hello *b)
{
    const int pairs[][2] = {{a->role, b->role},
                            {a->token_budget, b->token_budget},
                            {a->context_tokens, b->context_tokens},
                            {a->ranks, b->ranks}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (pairs[i][0] != pairs[i][1]) return pairs[i][0] < pairs[i][1] ? -1 : 1;
    return 0;
}

static int compare_peers(const void *a, const void *b)
{
    const struct peer *x = a, *y = b;
    int order = compare_limits(&x->node->hello, &y->node->hello);
    return order ? order : (x->us > y->us) - (x->us < y->us);
}

static struct peer *list_peers(const struct core *c, int *n_p, int64_t now_us)
{
    struct peer *peers = NULL;
    int n = 0, capacity = 0;
    for (struct core_node *node = core_first_node(c); node; node = core_node_next(node)) {
        if (!cost_knows(&node->sched.cost, SLOW_ROWS, now_us)) continue;
        MEM_GROW(peers, n, capacity);
        peers[n++] = (struct peer){node, cost_pass_us(&node->sched.cost, 1, SLOW_ROWS, cost_pairs(SLOW_ROWS, 0))};
    }
    if (n) qsort(peers, (size_t)n, sizeof *peers, compare_peers);
    *n_p = n;
    return peers;
}

static int count_ejected(const struct peer *peers, int n)
{
    int ejected = 0;
    for (int i = 0; i < n; i++)
        ejected += peers[i].node->health.ejected_until_us > 0;
    return ejected;
}

// Ejects slow nodes. `peers` [n] have the same role and limits and are in order of speed.
static void eject_slow(struct core *c, const struct peer *peers, int n, int64_t now_us)
{
    double median_us = peers[(n - 1) / 2].us;
    int may_go = n / 2 - count_ejected(peers, n);
    for (int i = n - 1; i > 0 && peers[i].us > SLOW * median_us; i--) {
        struct core_node *node = peers[i].node;
        bool judged = node->sched.cost.passes - node->health.passes_admitted >= SLOW_PASSES;
        if (!judged || !may_eject(c, node) || may_go <= 0 || c->open_nodes[node->sched.role] < 2) continue;
        char *reason =
            mem_format("a pass of %d rows takes %.0f us, %.0f us on its peers", SLOW_ROWS, peers[i].us, median_us);
        node_eject(c, node, reason, now_us);
        free(reason);
        may_go--;
    }
}

static void compare_nodes(struct core *c, int64_t now_us)
{
    int n;
    struct peer *peers = list_peers(c, &n, now_us);
    for (int first = 0, end; first < n; first = end) {
        for (end = first + 1; end < n; end++)
            if (compare_limits(&peers[first].node->hello, &peers[end].node->hello) != 0) break;
        eject_slow(c, peers + first, end - first, now_us);
    }
    free(peers);
}

// --- time

static void check_node(struct core *c, struct core_node *node, int64_t absent_us, int64_t now_us)
{
    const struct node_health *health = &node->health;
    if (!health->met) node_meet(c, node, now_us);
    if (health->missed_us) score_missed(c, node, now_us);
    if (health->lost) {
        requests_were_lost(c, node, now_us);
    } else if (node_hangs(c, node, absent_us, now_us)) {
        node_stalled(c, node, now_us);
    } else if (node_is_silent(c, node, absent_us, now_us)) {
        node_hung(c, node, mem_string("it makes progress but returns no results"), now_us);
    } else if (health->ejected_until_us && !node->leaving && now_us >= health->ejected_until_us) {
        node_readmit(c, node);
    }
}

// Checks all nodes. Ticks come at least once per heartbeat interval. During a longer gap, this process did not run and
// could not read the nodes' progress. So the gap does not count as time without progress.
void core_health_check(struct core *c, int64_t now_us)
{
    if (!c->health.pending && now_us - c->health.checked_us < c->options.heartbeat_us / 4) return;
    c->health.pending = false;
    int64_t absent_us = now_us - c->health.checked_us - c->options.heartbeat_us;
    c->health.checked_us = now_us;
    for (struct core_node *node = core_first_node(c), *next; node; node = next) {
        next = core_node_next(node);
        check_node(c, node, absent_us, now_us);
    }
    if (now_us - c->health.compared_us < c->options.heartbeat_us) return;
    c->health.compared_us = now_us;
    compare_nodes(c, now_us);
}

const char *core_health_state(const struct core_node *node)
{
    if (node->leaving) return "draining";
    if (node->health.ejected_until_us) return "ejected";
    return node->sched.limits.max_seqs < node->hello.max_seqs ? "probing" : "ready";
}
