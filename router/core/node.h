// SPDX-License-Identifier: Apache-2.0
// An attached node inside the core. nodes.c creates and frees it, and node_reports.c writes what the node reports. Only
// ledger.c writes its accounts (sched.account, sched.cost, measures). dispatch.c writes its prefix tails and planning
// notes. health.c writes its health and sched.limits.max_seqs, also by the functions at the end of this file.
#pragma once

#include "router/core/core.h"
#include "router/core/measures.h"
#include "router/core/pass_times.h"

struct node_health {
    uint64_t progress;        // in its last heartbeat; 0: the node does not count it
    int64_t progress_us;      // the last time that it made progress or had no work
    int64_t ejected_until_us; // 0: not ejected
    int ejections;            // ejections in a row
    int passes_admitted;      // passes reported until it was admitted again
    int64_t missed_us;        // when it got a request whose score then timed out; 0: none
    int lost;                 // requests that it was sent, has not answered and no longer counts
    int64_t counted_us;       // the last time that these were counted
    bool met;                 // health.c has seen it
};

struct core_node {
    struct sched_node sched; // first: sched/ knows the node by this member
    struct node_hello hello;
    void *link; // passed back to the caller in core_ops
    // A hash of everything, except prompt and options, that the selections of a speculator depend on. 0: not a
    // speculator.
    uint64_t scorer;
    int64_t attached_us, heard_us;
    bool leaving; // it drains; sched.draining is also true while the node is ejected
    int kv_blocks_free, held_prompts, held_kv_blocks; // in its last heartbeat
    int64_t passed_us;                                // when it reported a pass while it had work left; 0: it had none
    int draft_length;                                 // worker groups only, see core_draft_length()
    struct request *drafted;                          // requests whose prompts a speculator holds; drafting.c
    int n_drafted;
    uint64_t *advanced; // [n_advanced] numbers of requests with tokens to send; owned; drafting.c
    int n_advanced, advanced_capacity;
    struct node_health health;
    struct node_measures *measures; // measures of its id; owned by the ledger's list
    struct node_counts at_attach;   // counts when it attached
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

// Notes that a request got its score or its first token. A node that is probed may then have twice as many requests at
// once.
static inline void node_answered(struct core_node *node)
{
    int *admitted = &node->sched.limits.max_seqs, most = node->hello.max_seqs;
    if (*admitted == most) return;
    *admitted = *admitted < most - *admitted ? 2 * *admitted : most;
    if (*admitted == most) node->health.ejections = 0;
}
