// SPDX-License-Identifier: Apache-2.0
// Between the cluster protocol's messages and the scorer's structs. Nothing is judged here: what a message may ask for
// is checked where it is used, in scorer_add(), whose answer names what is wrong.
#pragma once

#include "proto/forepack/cluster/v1/cluster.pb-c.h"
#include "speculator/scorer.h"

// `item` borrows the message's tokens; *pinned_p, which it points to as well, is the caller's to free().
void score_item_from_wire(const Forepack__Cluster__V1__ScoreItem *message, struct score_item *item,
                          struct token_range **pinned_p);

// Results that wait to be sent together.
struct score_outbox {
    Forepack__Cluster__V1__ScoreResult **results; // [n] owned
    int n, capacity;
    size_t size_bytes; // about what they will take
};
void score_outbox_add(struct score_outbox *outbox, const struct score_result *result); // copies
// Makes a message of all results, borrowed until score_outbox_clear().
void score_outbox_message(const struct score_outbox *outbox, Forepack__Cluster__V1__ScoreResults *message);
void score_outbox_clear(struct score_outbox *outbox);
