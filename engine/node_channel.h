// SPDX-License-Identifier: Apache-2.0
// Opens connections to the router, for the links of a node: node.h and loading_report.h.
#pragma once

#include "engine/node.h"
#include "engine/router_list.h"

#define NODE_ATTACH_PATH "/forepack.cluster.v1.Cluster/Attach"

// Opens a channel for one attempt to attach, with the current contents of the files.
enum status node_channel_open(const struct node_router *router, struct rpc_channel **channel_p);
// Checks that an attempt to attach can use the files and the first address of the list, without connecting. The process
// must have called rpc_init().
enum status node_channel_check(const struct node_router *router, const struct router_list *list);

// Identity of the node's process: one draw for all its streams.
struct node_identity {
    uint64_t instance; // random, not 0
    char node_id[128]; // --node-id, or ROLE-HOST-SUFFIX with a random suffix
};
// `node_id` may be empty.
void node_identity_draw(Forepack__Cluster__V1__Role role, const char *node_id, struct node_identity *identity);
