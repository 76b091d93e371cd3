// SPDX-License-Identifier: Apache-2.0
// Queues events for a node's working thread, the oldest first. The links call these functions with the node's mutex
// held.
#pragma once

#include "engine/node.h"

struct mail {
    struct node_event event;
    uint64_t stream; // number of the event's stream
};

// Zero it to get an empty mailbox.
struct mailbox {
    struct mail *mails; // [capacity]; mails [first, first + n) are waiting
    int first, n, capacity;
};

// Adds an event and takes ownership of its message.
void mailbox_post(struct mailbox *box, const struct node_event *event, uint64_t stream);

// Removes and returns the oldest mail. The caller owns its message. The mailbox must not be empty.
struct mail mailbox_take(struct mailbox *box);

// Drops the messages of a stream that has ended, because the router has reassigned the work. Keeps the other events.
void mailbox_drop_messages(struct mailbox *box, uint64_t stream);

void mailbox_fini(struct mailbox *box);
