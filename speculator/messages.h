// SPDX-License-Identifier: Apache-2.0
// Converts between the messages of the cluster protocol and the scorer's structs. Does not check the values:
// scorer_add() checks prompts and reports an error text; scorer_advance() checks advances.
#pragma once

#include "proto/forepack/cluster/v1/cluster.pb-c.h"
#include "speculator/scorer.h"

// Converts a message. `item` borrows the message's tokens and trace, and *pinned_p, which the caller frees.
void score_item_from_message(const Forepack__Cluster__V1__ScoreItem *message, struct score_item *item,
                             struct token_range **pinned_p);

// Results collected until they are sent together.
struct score_outbox {
    Forepack__Cluster__V1__ScoreResult **results; // [n] owned
    int n, capacity;
    size_t memory; // upper bound on the bytes that the router counts for the unpacked results
};
void score_outbox_add(struct score_outbox *outbox, const struct score_result *result); // copies
// Fills a message with all results, which it borrows until score_outbox_clear().
void score_outbox_message(const struct score_outbox *outbox, Forepack__Cluster__V1__ScoreResults *message);
void score_outbox_clear(struct score_outbox *outbox);
void score_outbox_drop_link(struct score_outbox *outbox, int link); // drops the results of a link

// Converts a message. The result borrows the message's tokens.
struct score_advance score_advance_from_message(const Forepack__Cluster__V1__Advance *message);

// Drafts collected until they are sent together.
struct draft_outbox {
    Forepack__Cluster__V1__Draft **drafts; // [n] owned
    int n, capacity;
};
void draft_outbox_add(struct draft_outbox *outbox, const struct score_draft *draft); // copies
// Adds a draft that tells the router that the prompt of the request is no longer held.
void draft_outbox_add_released(struct draft_outbox *outbox, uint64_t request);
// Fills a message with all drafts, which it borrows until draft_outbox_clear().
void draft_outbox_message(const struct draft_outbox *outbox, Forepack__Cluster__V1__Drafts *message);
void draft_outbox_clear(struct draft_outbox *outbox);
void draft_outbox_drop_link(struct draft_outbox *outbox, int link); // drops the drafts of a link
