// SPDX-License-Identifier: Apache-2.0
#include "router/core/node_hello.h"

#include <ctype.h>
#include <inttypes.h>
#include <string.h>

// Limit of the token budget that a node reports. Packing uses memory in proportion to the budget.
enum { TOKEN_BUDGET_MAX = 1 << 20 };

// Limit of attached nodes, because each attach and each loss visits all nodes.
enum { NODES_MAX = 4096 };

static enum status check_counts(const struct node_hello *h)
{
    const struct {
        const char *name;
        int value, max;
        bool workers_only;
    } counts[] = {
        {"ranks", h->ranks, INT32_MAX, false},
        {"context_tokens", h->context_tokens, INT32_MAX, false},
        {"token_budget", h->token_budget, TOKEN_BUDGET_MAX, false},
        {"max_seqs", h->max_seqs, INT32_MAX, false},
        {"block_tokens", h->block_tokens, INT32_MAX, true},
        {"kv_blocks", h->kv_blocks, INT32_MAX, true},
    };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        if (counts[i].workers_only && h->role != NODE_WORKER) continue;
        if (counts[i].value >= 1 && counts[i].value <= counts[i].max) continue;
        return status_fail(STATUS_INVALID, "node %s: %s %d: must be from 1 to %d", h->node_id, counts[i].name,
                           counts[i].value, counts[i].max);
    }
    return STATUS_OK;
}

static enum status check_stages(const struct node_hello *h)
{
    if (h->stages < 1 || h->stages > NODE_STAGES_MAX)
        return status_fail(STATUS_INVALID, "node %s: stages %d: must be from 1 to %d", h->node_id, h->stages,
                           NODE_STAGES_MAX);
    if (h->ranks % h->stages != 0)
        return status_fail(STATUS_INVALID, "node %s: stages %d: must divide its %d ranks", h->node_id, h->stages,
                           h->ranks);
    if (h->stages > 1 && h->role == NODE_SPECULATOR)
        return status_fail(STATUS_INVALID, "speculator %s: stages %d: a speculator has one", h->node_id, h->stages);
    return STATUS_OK;
}

static enum status check_pinned_model(const struct core *c, const struct node_hello *h)
{
    uint64_t pinned = c->options.model_fingerprints[h->role];
    if (!pinned || pinned == h->model_fingerprint) return STATUS_OK;
    return status_fail(STATUS_INVALID,
                       "%s %s: its model (fingerprint %016" PRIx64
                       ") is not the one that the router accepts (%016" PRIx64
                       "): start it with that model, or the router with its fingerprint",
                       role_name(h->role), h->node_id, h->model_fingerprint, pinned);
}

static enum status check_same_model(const struct core *c, const struct node_hello *h, const struct core_node *old)
{
    for (const struct core_node *node = core_first_node(c); node; node = core_node_next(node)) {
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

// Nodes of one role must compute in the same way, because a request may move from one node to another.
static enum status check_same_numerics(const struct core *c, const struct node_hello *h, const struct core_node *old)
{
    for (const struct core_node *node = core_first_node(c); node; node = core_node_next(node)) {
        const struct node_hello *other = &node->hello;
        if (node == old || other->role != h->role) continue;
        if (strcmp(other->backend, h->backend) == 0 && strcmp(other->dtype, h->dtype) == 0 &&
            strcmp(other->kv_dtype, h->kv_dtype) == 0)
            continue;
        return status_fail(STATUS_INVALID,
                           "%s %s computes with backend %s, dtype %s, kv-cache-dtype %s; the attached %s with %s, %s, "
                           "%s: a request that moves between them could change its tokens. Start all with the same "
                           "options, or the router with --mixed-numerics",
                           role_name(h->role), h->node_id, h->backend, h->dtype, h->kv_dtype, other->node_id,
                           other->backend, other->dtype, other->kv_dtype);
    }
    return STATUS_OK;
}

// Checks that the id is free. The same process may replace its own lost connection. Another process may not: the two
// processes would evict each other again and again.
static enum status check_id_is_free(const struct node_hello *h, const struct core_node *old, int64_t now_us)
{
    if (!old || old->hello.instance == h->instance) return STATUS_OK;
    return status_fail(STATUS_EXISTS,
                       "%s %s on host %s: another process, on host %s, is attached with this id and was heard %.1f s "
                       "ago: give each node its own --node-id",
                       role_name(h->role), h->node_id, h->host, old->hello.host,
                       (double)(now_us - old->heard_us) / 1e6);
}

static enum status fail_no_room(enum node_role role, const char *node_id)
{
    return status_fail(STATUS_EXHAUSTED,
                       "%s %s: %d nodes are attached, the most that a router has: it can attach once another node has "
                       "left; for more nodes start another router",
                       role_name(role), node_id, NODES_MAX);
}

static enum status check_room(const struct core *c, const struct node_hello *h, const struct core_node *old)
{
    if (old || c->nodes[NODE_WORKER].n_nodes + c->nodes[NODE_SPECULATOR].n_nodes < NODES_MAX) return STATUS_OK;
    return fail_no_room(h->role, h->node_id);
}

static enum status check_id(const char *node_id)
{
    if (!*node_id) return status_fail(STATUS_INVALID, "node_id is empty: every node needs one of its own");
    for (const char *p = node_id; *p; p++) {
        if (isspace((unsigned char)*p) || iscntrl((unsigned char)*p)) {
            return status_fail(STATUS_INVALID, "node_id: blanks and control characters are not allowed");
        }
    }
    return STATUS_OK;
}

static enum status check_models(const struct core *c, const struct node_hello *h, const struct core_node *old)
{
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
    TRY(check_pinned_model(c, h));
    if (!c->options.mixed_numerics) TRY(check_same_numerics(c, h, old));
    return h->role == NODE_WORKER ? check_same_model(c, h, old) : STATUS_OK;
}

static enum status check_loading_id(const struct core *c, const struct node_loading *l, const struct node_loading *old)
{
    const struct core_node *node = core_first_node(c);
    while (node && strcmp(node->hello.node_id, l->node_id) != 0)
        node = core_node_next(node);
    const char *host = node ? node->hello.host : old && old->instance != l->instance ? old->host : NULL;
    if (!host) return STATUS_OK;
    return status_fail(STATUS_EXISTS,
                       "%s %s on host %s loads, but a process on host %s has this id: give each node its "
                       "own --node-id",
                       role_name(l->role), l->node_id, l->host, host);
}

enum status node_loading_check(const struct core *c, const struct node_loading *l, const struct node_loading *old)
{
    TRY(check_id(l->node_id));
    if (l->ranks < 1) return status_fail(STATUS_INVALID, "node %s: ranks %d: must be 1 or more", l->node_id, l->ranks);
    if (l->percent < 0 || l->percent > 100)
        return status_fail(STATUS_INVALID, "node %s: percent %d: must be from 0 to 100", l->node_id, l->percent);
    TRY(check_loading_id(c, l, old));
    if (!old && c->nodes[NODE_WORKER].n_nodes + c->nodes[NODE_SPECULATOR].n_nodes + c->n_loading >= NODES_MAX)
        return fail_no_room(l->role, l->node_id);
    return STATUS_OK;
}

enum status node_hello_check(const struct core *c, const struct node_hello *h, const struct core_node *old,
                             int64_t now_us)
{
    TRY(check_id(h->node_id));
    TRY(check_counts(h));
    TRY(check_stages(h));
    TRY(check_models(c, h, old));
    TRY(check_id_is_free(h, old, now_us));
    return check_room(c, h, old);
}
