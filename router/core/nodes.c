// SPDX-License-Identifier: Apache-2.0
#include "router/core/nodes.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "router/core/availability.h"
#include "router/core/drafting.h"
#include "router/core/loading.h"
#include "router/core/node_hello.h"
#include "router/core/requests.h"
#include "router/sched/prefix_tails.h"

void core_update_ready(struct core *c)
{
    bool ready = c->open_nodes[NODE_WORKER] > 0 && !c->draining;
    if (ready == c->ready) return;
    c->ready = ready;
    c->ops.ready_changed(c->ops.user, ready);
}

// --- losing nodes

static void release_reservation(struct core *c, const struct core_node *node)
{
    if (c->view.reservation.node == &node->sched) core_clear_reservation(c);
}

static void worker_gone(struct core *c, int context_tokens, int64_t now_us)
{
    if (now_us >= core_grace_end_us(c)) c->workers_gone_context = 0;
    if (context_tokens > c->workers_gone_context) c->workers_gone_context = context_tokens;
    c->workers_gone_us = now_us;
}

// Returns true if another node that takes work can hold every request that the node could hold.
static bool is_replaceable(const struct core *c, const struct core_node *node)
{
    const struct node_limits *lost = &node->sched.limits;
    int64_t entries = (int64_t)lost->kv_blocks * lost->block_tokens;
    for (const struct sched_node *other = c->view.nodes; other; other = other->next) {
        const struct node_limits *limits = &other->limits;
        if (other != &node->sched && other->role == node->sched.role && !other->draining &&
            limits->context_tokens >= lost->context_tokens &&
            (int64_t)limits->kv_blocks * limits->block_tokens >= entries)
            return true;
    }
    return false;
}

// Handles a node that takes no more work. Requests that only this node could hold go on without it. The whole queue is
// visited only if there may be such requests.
static void node_closed(struct core *c, const struct core_node *node, int64_t now_us)
{
    enum node_role role = node->sched.role;
    struct waiting_set *set = &c->waiting[role];
    bool replaceable = is_replaceable(c, node);
    c->open_nodes[role]--;
    if (role == NODE_WORKER) worker_gone(c, node->hello.context_tokens, now_us);
    const struct request_list *lists[] = {&set->overdue, &set->queue};
    for (int i = 0; i < 2 && !replaceable; i++) {
        for (struct sched_request *r = lists[i]->first, *next; r; r = next) {
            next = r->next;
            if (role == NODE_WORKER) {
                core_request_retime(c, request_of(r)); // its grace period begins
            } else if (!sched_pool_can_hold(&c->view, role, r)) {
                core_request_unscorable(c, request_of(r), c->open_nodes[role] ? SKIP_TOO_LONG : SKIP_NO_NODE, now_us);
            }
        }
    }
    core_update_ready(c);
}

void core_node_close(struct core *c, struct core_node *node, int64_t now_us)
{
    node_index_set_draining(&node->sched, true);
    release_reservation(c, node);
    node_closed(c, node, now_us);
}

void core_node_open(struct core *c, struct core_node *node)
{
    node_index_set_draining(&node->sched, false);
    c->open_nodes[node->sched.role]++;
    core_update_ready(c);
}

// Updates the scorer that all attached speculators have in common. Only selections of this scorer are reused.
static void update_scorer(struct core *c)
{
    c->scorer = 0;
    for (const struct core_node *node = core_first_node(c); node; node = core_node_next(node)) {
        if (!node->scorer) continue;
        if (c->scorer && c->scorer != node->scorer) {
            c->scorer = 0;
            return;
        }
        c->scorer = node->scorer;
    }
}

static bool calibrations_equal(const struct node_calibration *a, const struct node_calibration *b)
{
    return a->fingerprint == b->fingerprint && a->main_fingerprint == b->main_fingerprint &&
           a->look_ahead == b->look_ahead && a->chunk_tokens == b->chunk_tokens && a->pool_window == b->pool_window &&
           a->tail_tokens == b->tail_tokens;
}

// Updates the calibration, which is used only if all speculators have the same one. The kept tokens of a request must
// not depend on the speculator that scores it.
static void update_calibration(struct core *c)
{
    const struct core_node *first = NULL;
    c->calibration = (struct node_calibration){0};
    for (const struct core_node *node = core_first_node(c); node; node = core_node_next(node)) {
        if (node->hello.role != NODE_SPECULATOR) continue;
        if (!first) first = node;
        if (!calibrations_equal(&first->hello.calibration, &node->hello.calibration)) return;
    }
    if (first) c->calibration = first->hello.calibration;
}

static void node_unlink(struct core *c, const struct core_node *node)
{
    if (core_first_node(c) == node) {
        c->view.nodes = node->sched.next;
        return;
    }
    struct core_node *before = core_first_node(c);
    while (core_node_next(before) != node)
        before = core_node_next(before);
    before->sched.next = node->sched.next;
}

static void node_free(struct core *c, struct core_node *node)
{
    node_measures_release(&c->ledger.nodes, node->measures);
    prefix_record_close(node->sched.prefixes);
    if (node->sched.tails) prefix_tails_fini(node->sched.tails);
    free(node->sched.tails);
    pass_times_fini(&node->pass_times);
    free(node);
}

// Removes the node from the core, and returns its requests to the queue. Nothing is sent over the node's link any more.
static void node_remove(struct core *c, struct core_node *node, enum node_loss loss, const char *reason, int64_t now_us)
{
    enum node_role role = node->sched.role;
    struct request_list *requests = &node->sched.account.requests;
    int n = requests->count;
    node_unlink(c, node);
    core_drafting_node_gone(node);
    update_scorer(c);
    update_calibration(c);
    release_reservation(c, node);
    node_index_remove(&node->sched);
    ledger_node_gone(&c->ledger, node, now_us);
    // Starts with the last request, because each request is put at the head of the waiting set.
    while (requests->last) {
        if (role == NODE_WORKER) {
            core_request_replay(c, request_of(requests->last), loss, now_us);
        } else {
            core_request_lost_at_speculator(c, request_of(requests->last), now_us);
        }
    }
    log_event(LOG_INFO, "node_gone", LOG_FIELD("node", node->hello.node_id), LOG_FIELD("role", role_name(role)),
              LOG_FIELD("requests", n), LOG_FIELD("reason", *reason ? reason : "told to drain"));
    if (!node->sched.draining) {
        node_closed(c, node, now_us);
    } else if (role == NODE_WORKER) {
        worker_gone(c, node->hello.context_tokens, now_us); // again, because the node may have begun to drain long ago
    }
    node_free(c, node);
}

void core_node_lose(struct core *c, struct core_node *node, enum node_loss loss, const char *reason, int64_t now_us)
{
    void *link = node->link;
    node_remove(c, node, loss, reason, now_us);
    c->ops.node_lost(link, reason);
}

// Checks which nodes are silent. Ticks come at least once per heartbeat. After a longer gap, this process did not run
// (stopped, starved, the machine paused) and has not read the nodes' messages. So the gap does not count as silence of
// the nodes.
void core_nodes_check_silence(struct core *c, int64_t now_us)
{
    int64_t absent_us = now_us - c->view.now_us - c->options.heartbeat_us;
    if (absent_us <= 0 && now_us < c->silence_us) return;
    c->silence_us = INT64_MAX;
    for (struct core_node *node = core_first_node(c), *next; node; node = next) {
        next = core_node_next(node);
        if (absent_us > 0) node->heard_us = node->heard_us + absent_us < now_us ? node->heard_us + absent_us : now_us;
        int64_t silent_us = node->heard_us + 3 * c->options.heartbeat_us;
        if (now_us < silent_us) {
            if (silent_us < c->silence_us) c->silence_us = silent_us;
            continue;
        }
        char *reason = mem_format("no message from it for %.1f s", (double)(now_us - node->heard_us) / 1e6);
        core_node_lose(c, node, LOSS_SILENT, reason, now_us);
        free(reason);
    }
    loading_check_silence(c, absent_us, now_us);
}

void core_release_nodes(struct core *c, int64_t now_us)
{
    for (struct core_node *node; (node = core_first_node(c));) {
        void *link = node->link;
        node_remove(c, node, LOSS_STREAM_ENDED, "the router stops", now_us);
        c->ops.node_lost(link, NULL);
    }
    loading_release(c);
}

void core_nodes_free(struct core *c)
{
    for (struct core_node *node; (node = core_first_node(c));) {
        c->view.nodes = node->sched.next;
        node_free(c, node);
    }
    loading_free(c);
}

// --- draining

static struct core_node *node_by_id(const struct core *c, const char *node_id)
{
    struct core_node *node = core_first_node(c);
    while (node && strcmp(node->hello.node_id, node_id) != 0)
        node = core_node_next(node);
    return node;
}

static void node_leaves(struct core *c, struct core_node *node, const char *reason, int64_t now_us)
{
    if (node->leaving) return;
    node->leaving = true;
    log_event(*reason ? LOG_WARN : LOG_INFO, "node_draining", LOG_FIELD("node", node->hello.node_id),
              LOG_FIELD("role", role_name(node->hello.role)), LOG_FIELD("requests", node->sched.account.requests.count),
              LOG_FIELD("reason", *reason ? reason : "told to drain"));
    if (!node->sched.draining) core_node_close(c, node, now_us);
}

void core_draining(struct core *c, struct core_node *node, const char *reason, int64_t now_us)
{
    node->heard_us = now_us;
    c->ledger.measures.gpu_drains += *reason && !node->leaving;
    node_leaves(c, node, reason, now_us);
}

static bool was_drained(const struct core *c, const struct node_hello *h)
{
    for (int i = 0; i < DRAINED_MAX; i++) {
        const struct drained_process *process = &c->drained[i];
        if (process->instance == h->instance && strcmp(process->node_id, h->node_id) == 0) return true;
    }
    return false;
}

static void node_drain(struct core *c, struct core_node *node, int64_t now_us)
{
    node_leaves(c, node, "", now_us);
    c->ops.send_drain(node->link);
}

// Returns the ids of up to NAMES_MAX attached nodes, as text for an error message. The caller frees it.
static char *node_names(const struct core *c)
{
    enum { NAMES_MAX = 8 };
    char *names = mem_string("");
    int n = 0;
    for (const struct core_node *node = core_first_node(c); node; node = core_node_next(node), n++) {
        if (n >= NAMES_MAX) continue;
        char *longer = mem_format("%s%s%s", names, n ? ", " : "", node->hello.node_id);
        free(names);
        names = longer;
    }
    char *list = n > NAMES_MAX ? mem_format("%s and %d more", names, n - NAMES_MAX) : mem_string(n ? names : "none");
    free(names);
    return list;
}

static enum status fail_unknown_node(const struct core *c, const char *node_id)
{
    if (loading_find(c, node_id))
        return status_fail(STATUS_NOT_FOUND,
                           "node %s loads its weights and has no requests: end its process, or drain it later",
                           node_id);
    char *names = node_names(c);
    enum status status = status_fail(STATUS_NOT_FOUND, "no node %s is attached: attached are: %s", node_id, names);
    free(names);
    return status;
}

enum status core_drain_node(struct core *c, const char *node_id, uint64_t instance, int64_t now_us,
                            struct node_drain *drain_p)
{
    struct core_node *node = node_by_id(c, node_id);
    if (!node || (instance && node->hello.instance != instance)) return fail_unknown_node(c, node_id);
    bool was_draining = node->leaving;
    if (!was_drained(c, &node->hello)) {
        struct drained_process *process = &c->drained[c->n_drained++ % DRAINED_MAX];
        snprintf(process->node_id, sizeof process->node_id, "%s", node->hello.node_id);
        process->instance = node->hello.instance;
        node_drain(c, node, now_us);
    }
    enum node_role role = node->hello.role;
    *drain_p = (struct node_drain){node->hello.instance, role, node->sched.account.requests.count, c->open_nodes[role],
                                   was_draining};
    return STATUS_OK;
}

// --- attaching

// Returns the scorer of a node (core_node.scorer). The version is included because it stands for the rules of
// selection.
static uint64_t scorer_of(const struct core *c, const struct node_hello *h)
{
    if (h->role != NODE_SPECULATOR) return 0;
    char *text = mem_format("%016" PRIx64 " %d %s %s %s %s %016" PRIx64, h->model_fingerprint, h->ranks, h->backend,
                            h->dtype, h->kv_dtype, h->version, h->calibration.fingerprint);
    uint64_t scorer = hash_text(&c->view.options.hash_key, text);
    free(text);
    return scorer | 1;
}

// Returns the passes by which a result comes later than with one stage, as measured passes say.
static double fill_passes(const struct node_hello *h)
{
    const double most = h->stages - 1;
    return h->stage_us > 0 ? fmin(most, (double)h->latency_us / (double)h->stage_us - 1) : most;
}

static struct core_node *node_create(struct core *c, const struct node_hello *hello, void *link, int64_t now_us)
{
    struct core_node *node = mem_alloc(sizeof *node);
    *node = (struct core_node){.hello = *hello,
                               .link = link,
                               .scorer = scorer_of(c, hello),
                               .attached_us = now_us,
                               .heard_us = now_us,
                               .kv_blocks_free = hello->kv_blocks,
                               .health.progress_us = now_us,
                               .health.counted_us = now_us - c->options.heartbeat_us};
    node->measures = node_measures_acquire(&c->ledger.nodes, hello->node_id, hello->role);
    node->at_attach = node->measures->counts;
    node->sched.role = hello->role;
    node->sched.limits = (struct node_limits){.context_tokens = hello->context_tokens,
                                              .token_budget = hello->token_budget,
                                              .block_tokens = hello->block_tokens,
                                              .kv_blocks = hello->kv_blocks,
                                              .max_seqs = hello->max_seqs,
                                              .more_stages = hello->stages - 1,
                                              .fill_passes = fill_passes(hello)};
    if (hello->prefix_cache) {
        node->sched.prefixes = prefix_record_open(c->view.prefixes[hello->role], &node->sched, hello->kv_blocks);
        node->sched.tails = mem_alloc(sizeof *node->sched.tails);
    }
    ledger_node_measured(node, now_us);
    return node;
}

static void log_calibration(const struct core *c, const struct node_hello *hello)
{
    const struct node_calibration *calibration = &hello->calibration;
    const char *problem = core_calibration_problem(c);
    if (calibration->fingerprint)
        log_event(LOG_INFO, "speculator_calibrated", LOG_FIELD("node", hello->node_id),
                  LOG_FINGERPRINT("model", calibration->main_fingerprint));
    if (problem)
        log_event(LOG_WARN, "calibration_unused", LOG_FIELD("node", hello->node_id), LOG_FIELD("reason", problem),
                  LOG_FIELD("effect", "a quality keeps every token"));
}

enum status core_attach(struct core *c, const struct node_hello *hello, void *link, int64_t now_us,
                        struct core_node **node_p)
{
    struct core_node *old = node_by_id(c, hello->node_id);
    TRY(node_hello_check(c, hello, old, now_us));
    loading_attached(c, hello, link);
    // The new node is linked before the old node is removed, so that requests of the old node find the new node.
    struct core_node *node = node_create(c, hello, link, now_us);
    node->sched.next = c->view.nodes;
    c->view.nodes = &node->sched;
    update_scorer(c);
    node_index_add(&c->nodes[hello->role], &node->sched);
    c->open_nodes[hello->role]++;
    if (hello->role == NODE_WORKER) c->model_fingerprint = hello->model_fingerprint;
    update_calibration(c);
    if (now_us + 3 * c->options.heartbeat_us < c->silence_us) c->silence_us = now_us + 3 * c->options.heartbeat_us;
    log_event(LOG_INFO, "node_attached", LOG_FIELD("node", hello->node_id), LOG_FIELD("role", role_name(hello->role)),
              LOG_FIELD("host", hello->host), LOG_FINGERPRINT("model", hello->model_fingerprint),
              LOG_FIELD("ranks", hello->ranks), LOG_FIELD("stages", hello->stages),
              LOG_FIELD("backend", hello->backend), LOG_FIELD("dtype", hello->dtype),
              LOG_FIELD("budget", hello->token_budget), LOG_FIELD("context", hello->context_tokens),
              LOG_FIELD("kv_blocks", hello->kv_blocks), LOG_FIELD("max_seqs", hello->max_seqs));
    if (old) core_node_lose(c, old, LOSS_REPLACED, "the same process attached again", now_us);
    log_calibration(c, hello);
    c->health.pending = true;
    if (was_drained(c, hello)) node_drain(c, node, now_us);
    core_update_ready(c);
    *node_p = node;
    return STATUS_OK;
}

void core_detach(struct core *c, struct core_node *node, const char *reason, int64_t now_us)
{
    node_remove(c, node, LOSS_STREAM_ENDED, reason, now_us);
}
