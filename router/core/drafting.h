// SPDX-License-Identifier: Apache-2.0
// Drafts on speculators: while a worker group generates the answer to a request, a speculator that holds the prompt
// guesses the answer ahead. The router sends the speculator the tokens that the group has generated (an advance). It
// sends the group the tokens that the speculator expects next (a draft).
//
// Drafts are optional: nothing waits for them, and the ledger does not book them. If a speculator is lost, releases a
// prompt or guesses wrongly, the group only accepts fewer draft tokens. While a worker group is too busy to verify
// drafts, no advances of its requests are sent. The next advance has all tokens since the last advance.
//
// A speculator holds the prompts that it has scored. A prompt whose score was reused, or whose tokens are all kept, is
// sent to a speculator that has nothing to score.
//
// Use on the core's thread only.
#pragma once

#include "router/core/core_state.h"

// Notes that the node has scored the request's prompt and holds it, if request_is_drafted().
void core_drafting_held(struct request *r, struct core_node *node);

// Notes that the request has new tokens and has not ended.
void core_drafting_advanced(struct core *c, struct request *r);

// Sends the advances since the last call, in one message for each speculator. Many tokens are sent in several messages.
void core_drafting_flush(struct core *c);

// Tells the speculator to release the prompt of a request that has ended.
void core_drafting_ended(struct core *c, struct request *r);

// Forgets the prompts of a node that is gone, or of every node at the end of the core. The node is told nothing.
void core_drafting_node_gone(struct core_node *node);
