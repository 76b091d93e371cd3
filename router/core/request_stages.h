// SPDX-License-Identifier: Apache-2.0
// Records how each pool took a request, for clients that ask for it (request_spec.explain). Other requests record
// nothing. Use on the core's thread only.
#pragma once

#include "router/core/core_state.h"
#include "router/sched/bin_planner.h"

// The obstacle that a request found when it joined the queue of a pool.
enum stage_wait {
    STAGE_WAIT_NONE,    // a node could take it immediately
    STAGE_WAIT_QUEUE,   // a node had room, but other requests waited already
    STAGE_WAIT_BUSY,    // each node with room computed a bin
    STAGE_WAIT_ROOM,    // each node had its outstanding bins, or as many requests as it may have
    STAGE_WAIT_BLOCKS,  // each open node lacked free KV blocks
    STAGE_WAIT_NO_NODE, // no node that takes work could hold the request
};
const char *stage_wait_name(enum stage_wait wait); // "" for STAGE_WAIT_NONE

// The last time that the request was in a pool. A replay, or a further score of a conversation, overwrites it.
struct request_stage {
    char *node_id; // node that took the request; owned; NULL: none did
    enum stage_wait wait;
    int waiting;      // requests that waited for the pool when the request joined
    int bin_requests; // requests in the bin, including this request
    int64_t bin_rows; // rows of the bin that its node computes
    int token_budget; // token budget of the node
};

// Notes the obstacle that the request finds. Call before the request joins the pool's waiting set.
void request_stage_joined(const struct core *c, struct request *r, enum node_role role);

// Notes the node and the bin that take the request.
void request_stage_dispatched(struct request *r, const struct core_node *node, const struct bin_plan *plan);

void request_stages_free(struct request_stage *stages); // NULL is fine
