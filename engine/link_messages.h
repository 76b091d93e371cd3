// SPDX-License-Identifier: Apache-2.0
// Converts messages between a node, which serves several routers, and one of its links: link_id.h explains the numbers.
#pragma once

#include <stdbool.h>

#include "engine/link_id.h"
#include "proto/forepack/cluster/v1/cluster.pb-c.h"

// Replaces the router's numbers in a message by those of the node. Returns false if a number is too large.
bool link_message_receive(int link, Forepack__Cluster__V1__RouterMessage *message);

// The part of a node's message that concerns one link: results and drafts of its requests, with the router's numbers.
// Every link gets the cost of every pass.
struct link_part {
    Forepack__Cluster__V1__NodeMessage message;
    union {
        Forepack__Cluster__V1__StepResults step;
        Forepack__Cluster__V1__ScoreResults scored;
        Forepack__Cluster__V1__Drafts drafts;
    };
    void *items, *list; // owned
};

// Returns false if the message has nothing for the link. The part borrows from `message`; link_part_free() releases it
// in either case. A message of another kind is passed on whole.
bool link_part_make(int link, const Forepack__Cluster__V1__NodeMessage *message, struct link_part *part);
void link_part_free(struct link_part *part);
