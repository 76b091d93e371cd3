// SPDX-License-Identifier: Apache-2.0
// An attached node inside the core. nodes.c creates and frees it and writes what the node reports; ledger.c alone
// writes its accounts (sched.account, sched.cost, the three token counts); dispatch.c its prefix tails and planning
// notes.
#pragma once

#include "router/core/core.h"

struct core_node {
    struct sched_node sched; // first: sched/ knows the node by this
    struct node_hello hello;
    void *link; // the caller's, passed back in core_ops
    int64_t attached_us, heard_us;
    int kv_blocks_free; // by its last heartbeat, like
    uint64_t progress;  // its count of completed parts of passes; 0: it does not count them
    uint64_t tokens_in, tokens_out, cached_tokens;
};

static inline struct core_node *core_node_of(const struct sched_node *node)
{
    return (struct core_node *)node; // `sched` is its first member
}

static inline struct core_node *core_node_next(const struct core_node *node)
{
    return core_node_of(node->sched.next);
}
