// SPDX-License-Identifier: Apache-2.0
// Nodes: who may attach, what they may hold, what happens to their requests when they go, and what they report.
#include "router/core/state.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"

// Packing takes memory in proportion to the capacity of a bin, which a node names.
enum { TOKEN_BUDGET_MAX = 1 << 20 };

// How many bins a request stays for, until the first ones have left.
enum { STAY_FIRST = 8 };

static const char *role_name(enum node_role role)
{
    return role == NODE_WORKER ? "worker" : "speculator";
}

// --- what a node may be given

bool core_node_can_hold(const struct core_node *node, const struct request *r)
{
    const struct node_hello *h = &node->hello;
    if (node->draining) return false;
    if (r->state == REQUEST_TOKENISED || r->state == REQUEST_SCORING) {
        // The look-ahead decodes its first token from the prompt's last row: one entry less than steps.
        if (h->role == NODE_SPECULATOR) return (int64_t)r->n_tokens + r->prefill.look_ahead - 1 <= h->context_tokens;
        return (int64_t)r->n_tokens + r->sampling.max_tokens <= h->context_tokens;
    }
    int64_t entries = (int64_t)r->usage.kept_tokens + r->sampling.max_tokens;
    return h->role == NODE_WORKER && (int64_t)r->n_tokens + r->sampling.max_tokens <= h->context_tokens &&
           entries <= (int64_t)h->kv_blocks * h->block_tokens;
}

bool core_pool_can_hold(const struct core *c, enum node_role role, const struct request *r)
{
    for (const struct core_node *node = c->nodes; node; node = node->next) {
        if (node->hello.role == role && core_node_can_hold(node, r)) return true;
    }
    return false;
}

int64_t core_node_blocks_left(const struct core_node *node)
{
    return node->hello.role == NODE_WORKER ? node->hello.kv_blocks - node->kv_blocks : INT64_MAX;
}

int core_node_blocks_of(const struct core_node *node, const struct request *r)
{
    return node->hello.role == NODE_WORKER ? core_request_blocks(r, node->hello.block_tokens) : 0;
}

int core_pool_context(const struct core *c, enum node_role role)
{
    int longest = 0;
    for (const struct core_node *node = c->nodes; node; node = node->next) {
        if (node->hello.role != role || node->draining) continue;
        if (node->hello.context_tokens > longest) longest = node->hello.context_tokens;
    }
    return longest;
}

void core_update_ready(struct core *c)
{
    bool ready = c->pools[NODE_WORKER].nodes > 0 && !c->draining;
    if (ready == c->ready) return;
    c->ready = ready;
    c->ops.ready_changed(c->ops.user, ready);
}

// --- losing them

// A node takes no more new work, for whatever reason: those who waited for it alone go on without.
static void after_closing(struct core *c, enum node_role role, int64_t now_us)
{
    struct core_pool *pool = &c->pools[role];
    pool->nodes--;
    if (role == NODE_WORKER) c->workers_gone_us = now_us;
    const struct request_list *lists[] = {&pool->urgent, &pool->queue};
    for (int i = 0; i < 2; i++) {
        for (struct request *r = lists[i]->first, *next; r; r = next) {
            next = r->next;
            if (role == NODE_SPECULATOR && !core_pool_can_hold(c, role, r)) {
                core_request_unscorable(c, r, pool->nodes ? SKIP_TOO_LONG : SKIP_NO_NODE, now_us);
            } else if (role == NODE_WORKER) {
                core_request_retime(c, r); // the time of grace begins
            }
        }
    }
    core_update_ready(c);
}

static void lost_at_speculator(struct core *c, struct request *r, int64_t now_us)
{
    if (r->score_only && core_pool_can_hold(c, NODE_SPECULATOR, r)) {
        r->losses++; // another one can still answer, until the score timeout
        core_request_wait_for_score(c, r, now_us);
    } else {
        core_request_unscorable(c, r, SKIP_LOST, now_us);
    }
}

// Takes it out of the core and its requests back. Its link is not spoken to any more.
static void remove_node(struct core *c, struct core_node *node, const char *reason, int64_t now_us)
{
    struct node_hello *h = &node->hello;
    int requests = node->requests.count;
    struct core_node **link = &c->nodes;
    while (*link != node)
        link = &(*link)->next;
    *link = node->next;
    if (c->reserved == node) c->starved = NULL;
    // The last first: each goes to the head of the queue.
    while (node->requests.last) {
        if (h->role == NODE_WORKER) {
            core_request_replay(c, node->requests.last, now_us);
        } else {
            lost_at_speculator(c, node->requests.last, now_us);
        }
    }
    log_info("node_gone node=%s role=%s requests=%d reason=\"%s\"", h->node_id, role_name(h->role), requests, reason);
    if (!node->draining) after_closing(c, h->role, now_us);
    prefix_index_free(node->prefixes);
    core_node_forget_kin(node);
    free(node);
}

static void lose_node(struct core *c, struct core_node *node, const char *reason, int64_t now_us)
{
    void *link = node->link;
    remove_node(c, node, reason, now_us);
    c->ops.node_lost(link, reason);
}

// Ticks come at least once a heartbeat. When they did not (this process was stopped or starved, the machine paused),
// what the nodes said meanwhile lies unread: that time is no silence of theirs.
void core_nodes_check_silence(struct core *c, int64_t now_us)
{
    int64_t absent_us = now_us - c->now_us - c->options.heartbeat_us;
    for (struct core_node *node = c->nodes, *next; node; node = next) {
        next = node->next;
        if (absent_us > 0) node->heard_us = node->heard_us + absent_us < now_us ? node->heard_us + absent_us : now_us;
        if (now_us - node->heard_us < 3 * c->options.heartbeat_us) continue;
        char *reason = mem_format("nothing was heard of it for %.1f s", (double)(now_us - node->heard_us) / 1e6);
        lose_node(c, node, reason, now_us);
        free(reason);
    }
}

// --- attaching

static struct core_node *find_node(const struct core *c, const char *node_id)
{
    struct core_node *node = c->nodes;
    while (node && strcmp(node->hello.node_id, node_id) != 0)
        node = node->next;
    return node;
}

static enum status check_counts(const struct node_hello *h)
{
    const struct {
        const char *name;
        int value, most;
        bool for_workers;
    } counts[] = {
        {"ranks", h->ranks, INT32_MAX, false},
        {"context_tokens", h->context_tokens, INT32_MAX, false},
        {"token_budget", h->token_budget, TOKEN_BUDGET_MAX, false},
        {"max_seqs", h->max_seqs, INT32_MAX, false},
        {"block_tokens", h->block_tokens, INT32_MAX, true},
        {"kv_blocks", h->kv_blocks, INT32_MAX, true},
    };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        if (counts[i].for_workers && h->role != NODE_WORKER) continue;
        if (counts[i].value >= 1 && counts[i].value <= counts[i].most) continue;
        return status_fail(STATUS_INVALID, "node %s: %s %d: must be from 1 to %d", h->node_id, counts[i].name,
                           counts[i].value, counts[i].most);
    }
    return STATUS_OK;
}

// `old` is the node whose place it would take, or NULL.
static enum status check_hello(const struct core *c, const struct node_hello *h, const struct core_node *old)
{
    if (!h->node_id[0]) return status_fail(STATUS_INVALID, "node_id is empty: every node needs one of its own");
    for (const char *p = h->node_id; *p; p++) {
        if (isspace((unsigned char)*p) || iscntrl((unsigned char)*p)) {
            return status_fail(STATUS_INVALID, "node_id: blanks and control characters are not allowed");
        }
    }
    enum status status = check_counts(h);
    if (status != STATUS_OK) return status;
    if (h->tokenizer_fingerprint != c->options.tokenizer_fingerprint) {
        return status_fail(STATUS_INVALID,
                           "%s %s: its tokenizer (fingerprint %016" PRIx64 ") is not the router's (%016" PRIx64
                           "): both need the same tokenizer.json",
                           role_name(h->role), h->node_id, h->tokenizer_fingerprint, c->options.tokenizer_fingerprint);
    }
    if (h->vocab_size != c->options.vocab_size) {
        return status_fail(STATUS_INVALID,
                           "%s %s: its vocabulary of %d tokens is not the router's of %d: both need to be the same",
                           role_name(h->role), h->node_id, h->vocab_size, c->options.vocab_size);
    }
    for (const struct core_node *node = c->nodes; node && h->role == NODE_WORKER; node = node->next) {
        if (node == old || node->hello.role != NODE_WORKER) continue;
        if (node->hello.model_fingerprint == h->model_fingerprint) continue;
        return status_fail(STATUS_INVALID,
                           "worker %s: its model (fingerprint %016" PRIx64
                           ") is not that of the attached worker %s (%016" PRIx64
                           "): all worker groups of a router need the same model",
                           h->node_id, h->model_fingerprint, node->hello.node_id, node->hello.model_fingerprint);
    }
    return STATUS_OK;
}

enum status core_attach(struct core *c, const struct node_hello *hello, void *link, int64_t now_us,
                        struct core_node **node_p)
{
    struct core_node *old = find_node(c, hello->node_id);
    enum status status = check_hello(c, hello, old);
    if (status != STATUS_OK) return status;
    struct core_node *node = mem_alloc(sizeof *node);
    *node = (struct core_node){.hello = *hello,
                               .link = link,
                               .attached_us = now_us,
                               .heard_us = now_us,
                               .kv_blocks_free = hello->kv_blocks,
                               .stay = STAY_FIRST};
    if (hello->prefix_cache) node->prefixes = prefix_index_create(hello->kv_blocks);
    // In first, out then: requests of the old one find the new one there.
    node->next = c->nodes;
    c->nodes = node;
    c->pools[hello->role].nodes++;
    log_info("node_attached node=%s role=%s host=%s ranks=%d dtype=%s budget=%d context=%d kv_blocks=%d max_seqs=%d",
             hello->node_id, role_name(hello->role), hello->host, hello->ranks, hello->dtype, hello->token_budget,
             hello->context_tokens, hello->kv_blocks, hello->max_seqs);
    if (old) lose_node(c, old, "another node of the same id took its place", now_us);
    core_update_ready(c);
    *node_p = node;
    return STATUS_OK;
}

void core_detach(struct core *c, struct core_node *node, const char *reason, int64_t now_us)
{
    remove_node(c, node, reason, now_us);
}

// --- hearing from them

void core_heartbeat(struct core *c, struct core_node *node, int kv_blocks_free, int running, int waiting,
                    int64_t now_us)
{
    node->heard_us = now_us;
    // What runs and waits there the core knows itself, and earlier; the cache only the node does.
    node->kv_blocks_free = kv_blocks_free;
}

void core_draining(struct core *c, struct core_node *node, int64_t now_us)
{
    node->heard_us = now_us;
    if (node->draining) return;
    node->draining = true;
    if (c->reserved == node) c->starved = NULL;
    log_info("node_draining node=%s role=%s requests=%d", node->hello.node_id, role_name(node->hello.role),
             node->requests.count);
    after_closing(c, node->hello.role, now_us);
}

void core_passed(struct core *c, struct core_node *node, const struct pass_cost *pass, int64_t now_us)
{
    node->heard_us = now_us;
    cost_learn(&node->cost, pass->rows, pass->pairs, pass->us, now_us);
}

// The request of a result, if it is still on that node: results cross with cancels, timeouts and losses all the time.
static struct request *find_on(const struct core *c, const struct core_node *node, uint64_t number)
{
    struct request *r = request_table_find(&c->table, number);
    return r && r->node == node ? r : NULL;
}

void core_scored(struct core *c, struct core_node *node, const struct score_result *result, int64_t now_us)
{
    node->heard_us = now_us;
    struct request *r = find_on(c, node, result->request);
    if (r && r->state == REQUEST_SCORING) core_request_scored(c, r, result, now_us);
}

void core_step(struct core *c, struct core_node *node, const struct sequence_result *results, int n, int64_t now_us)
{
    node->heard_us = now_us;
    for (int i = 0; i < n; i++) {
        struct request *r = find_on(c, node, results[i].request);
        if (r && (r->state == REQUEST_PREFILL || r->state == REQUEST_DECODE))
            core_request_step(c, r, &results[i], now_us);
    }
}
