// SPDX-License-Identifier: Apache-2.0
// The router's end of one attached node, without a transport: messages of the node become events of the core, actions
// of the core become messages to the node. grpc_attach.c carries the messages over gRPC, forepack-sim over a simulated
// network.
//
//   node_link.c   converts messages of nodes to events of the core
//   node_bins.c   converts actions of the core to messages for nodes
//
// The owner of the transport owns the link. Core's thread only.
#pragma once

#include "proto/forepack/cluster/v1/cluster.pb-c.h"
#include "router/core/core.h"

struct node_link;

struct node_link_ops { // the transport; must not call back into the core
    // Sends a message, which is borrowed until the function returns.
    void (*send)(struct node_link *link, const Forepack__Cluster__V1__RouterMessage *message);
    void (*finish)(struct node_link *link, enum status status, const char *reason); // ends the stream
    const char *(*peer)(const struct node_link *link); // returns the node's address, for logs
};

struct node_link {
    const struct node_link_ops *ops;
    int64_t heartbeat_ms;
    uint64_t instance; // random number of the router's process
    int tail_tokens;
    struct core_node *node;       // NULL before Hello is accepted, and after the core has lost the node
    struct loading_node *loading; // the node loads its weights; NULL before its first report and after Hello
    bool greeted;                 // Hello was accepted
    bool ended;                   // the router has ended the stream and ignores messages that were on their way
};

// Handles a message of the node.
void node_link_handle(struct node_link *link, struct core *c, const Forepack__Cluster__V1__NodeMessage *m,
                      int64_t now_us);
void node_link_closed(struct node_link *link, struct core *c, int64_t now_us); // the stream has ended

// Sets the functions of core_ops that send to nodes. Their `link`, the argument of core_attach(), is a struct
// node_link.
void node_link_core_ops(struct core_ops *ops);
