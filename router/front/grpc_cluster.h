// SPDX-License-Identifier: Apache-2.0
// The stream of one attached node, shared by grpc_cluster.c (messages of the node) and grpc_bins.c (messages to the
// node). Not for other files. Core's thread, except that I/O threads read `front`.
#pragma once

#include "proto/forepack/cluster/v1/cluster.pb-c.h"
#include "router/front/front.h"
#include "router/front/reply.h"

struct attachment {
    struct rpc_call *call; // our reference
    const struct front *front;
    struct core_node *node; // NULL before Hello and once the core has given the node up
    bool greeted;           // Hello was accepted
};

static inline void attachment_send(struct attachment *a, const Forepack__Cluster__V1__RouterMessage *message)
{
    reply_send(a->call, &message->base);
}
