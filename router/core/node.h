// SPDX-License-Identifier: Apache-2.0
// An attached node inside the core. nodes.c creates and frees it, and node_reports.c writes what the node reports. Only
// ledger.c writes its accounts (sched.account, sched.cost, measures). dispatch.c writes its prefix tails, node_index.c
// its place in the index. health.c and the functions at the end of this file write its health and
// sched.limits.max_seqs.
#pragma once

#include "router/core/core.h"
#include "router/core/measures.h"
#include "router/core/pass_times.h"

struct node_health {
    uint64_t progress;        // progress counter of the last heartbeat; 0: the node does not count progress
    int64_t progress_us;      // the last time that the node made progress or had no work
    int64_t ejected_until_us; // end of the ejection; 0: not ejected
    int ejections;            // number of ejections in a row
    int passes_admitted;      // sched.cost.passes when the node was last admitted after an ejection
    int64_t missed_us;        // time at which the node received the request whose score timed out; 0: none
    int lost;                 // unanswered requests that the node's heartbeat no longer counts (a fault)
    int64_t counted_us;       // the last time that `lost` was counted
    int64_t excused_us;       // time in which this process did not run, since the node last had no request
    bool met;                 // true once health.c has handled the node as new
};

struct core_node {
    struct sched_node sched; // first member: core_node_of() casts a pointer to it
    struct node_hello hello;
    void *link; // passed back to the caller in core_ops
    // Speculators: a hash of model, ranks, backend, types, version and calibration. Speculators with equal scorers
    // select the same tokens of a prompt with the same options. Worker groups: 0.
    uint64_t scorer;
    int64_t attached_us, heard_us; // when the node attached; when its last message came
    bool leaving;                  // true: the node drains. sched.draining is also true while the node is ejected
    int kv_blocks_free, held_prompts, held_kv_blocks; // values of the last heartbeat
    int64_t passed_us;       // time of the node's last pass report; 0 if the node has had no request since
    int draft_length;        // worker groups only, see core_draft_length()
    struct request *drafted; // list of requests whose prompts the speculator holds; drafting.c
    int n_drafted;           // length of that list
    uint64_t *advanced; // [n_advanced] numbers of requests with tokens to send to the speculator; owned; drafting.c
    int n_advanced, advanced_capacity;
    struct node_health health;
    struct node_measures *measures; // measures of the node's id; owned by the ledger's list
    struct node_counts at_attach;   // measures->counts when the node attached
    struct pass_times pass_times;
};

static inline struct core_node *core_node_of(const struct sched_node *node)
{
    return (struct core_node *)node; // `sched` is its first member
}

static inline struct core_node *core_node_next(const struct core_node *node)
{
    return core_node_of(node->sched.next);
}

static inline const char *role_name(enum node_role role)
{
    return role == NODE_WORKER ? "worker" : "speculator";
}

// Returns true if the node can have computed this pass. The cost model must not learn from a pass with more rows than
// the token budget, with more pairs than the context allows, or with a thousand rows in a microsecond.
static inline bool node_pass_is_possible(const struct core_node *node, const struct pass_cost *pass)
{
    const struct node_limits *limits = &node->sched.limits;
    return pass->rows >= 1 && pass->rows <= limits->token_budget && pass->pairs >= pass->rows &&
           pass->pairs <= pass->rows * limits->context_tokens && pass->us > pass->rows / 1000;
}

// --- notes for health.c

static inline void node_progressed(struct core_node *node, int64_t now_us)
{
    node->health.progress_us = now_us;
}

static inline void node_counts_progress(struct core_node *node, uint64_t progress, int64_t now_us)
{
    if (progress != node->health.progress) node_progressed(node, now_us);
    node->health.progress = progress;
}

// Notes that a request of the node got its score or its first token. A probing node (admitted again after an ejection)
// may then have twice as many requests at the same time, up to its own limit.
static inline void node_answered(struct core_node *node)
{
    int *admitted = &node->sched.limits.max_seqs, most = node->hello.max_seqs;
    if (*admitted == most) return;
    *admitted = *admitted < most - *admitted ? 2 * *admitted : most;
    if (*admitted == most) node->health.ejections = 0;
}
