// SPDX-License-Identifier: Apache-2.0
// Drafts from the pool: a speculator that holds the prompt of a request drafts its answer while a worker group
// generates it. The router sends the speculator what the group has generated, and the group what the speculator guesses
// to come next.
//
// Nothing is booked for drafts, and nothing waits for them: a speculator that is lost, releases a prompt or guesses
// wrongly only yields no accepted tokens. While a worker group is too busy to verify drafts, no advances of its
// requests are sent; the next advance has all tokens since the last one.
//
// A speculator holds the prompts that it has scored. Another prompt (its score was reused, or all its tokens are kept)
// is given to a speculator that has nothing to score.
//
// The core's thread only.
#pragma once

#include "router/core/core_state.h"

// The node has scored the request's prompt and holds it, if request_is_drafted().
void core_drafting_held(struct request *r, struct core_node *node);

// The request has new tokens and goes on.
void core_drafting_advanced(struct core *c, struct request *r);

// Sends the advances since the last call: in one message for each speculator, but for many tokens in several.
void core_drafting_flush(struct core *c);

// The request has ended: the speculator is told to release its prompt.
void core_drafting_ended(struct core *c, struct request *r);

// The node is gone, or the core ends: it holds no prompt any more, and is told nothing.
void core_drafting_node_gone(struct core_node *node);
