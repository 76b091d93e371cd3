// SPDX-License-Identifier: Apache-2.0
// Events that wait for a node's working thread, the oldest first. For node.c, which calls it with its mutex held.
#pragma once

#include "engine/node.h"

struct mail {
    struct node_event event;
    uint64_t stream; // number of the stream it belongs to
};

// All zeros: an empty mailbox.
struct mailbox {
    struct mail *mails; // [capacity]; those from first to first + n are waiting
    int first, n, capacity;
};

// Owns the event's message from now on.
void mailbox_post(struct mailbox *box, const struct node_event *event, uint64_t stream);

// Takes the oldest mail, whose message is the caller's. The mailbox is not empty.
struct mail mailbox_take(struct mailbox *box);

// Drops the messages of a stream that ended and keeps the other events: the router has reassigned the work.
void mailbox_drop_messages(struct mailbox *box);

void mailbox_fini(struct mailbox *box);
