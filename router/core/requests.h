// SPDX-License-Identifier: Apache-2.0
// The life of a request inside the core, from admission to its end. Each step books its accounts in the ledger, leaves
// the node or the waiting set it was in, changes the state, joins the next, and sets the timer last. A step may end the
// request: the pointer is then gone. Calls core_ops.send_cancel and the request's sink. The core's thread only.
//
// What nodes answer arrives in request_selection.h (scores) and request_steps.h (tokens).
#pragma once

#include "router/core/core_state.h"

// TOKENISED; then what the score plan says. `tenant`: see ledger_admitted().
void core_request_admit(struct core *c, struct request *r, const char *tenant);
void core_request_wait_for_score(struct core *c, struct request *r, int64_t now_us);
void core_request_share_score(struct core *c, struct request *r, struct request *scored); // is given its score
// No speculator can score it (any more): keeps the whole prompt, or ends the request if it requires a score.
void core_request_unscorable(struct core *c, struct request *r, enum skip_reason reason, int64_t now_us);
void core_request_lost_at_speculator(struct core *c, struct request *r, int64_t now_us);

// Its kept ranges are known: it joins the waiting set in front of the worker groups, or ends if only its score was
// asked for.
void core_request_ready(struct core *c, struct request *r, int64_t now_us);
void core_request_replay(struct core *c, struct request *r, enum node_loss loss, int64_t now_us); // of its group

void core_request_place(struct core *c, struct request *r, struct core_node *node, struct core_bin *bin,
                        int64_t now_us); // picked from its waiting set, into a bin of the node
void core_request_dispatched(struct core *c, struct request *r, int64_t now_us); // the bin was sent

// Ends it with the status; the node it is on is sent a cancel if `tell_node`.
void core_request_finish(struct core *c, struct request *r, enum finish_reason reason, enum status status,
                         const char *message, bool tell_node, int64_t now_us);

void core_request_expire(struct core *c, struct request *r, int64_t now_us); // its timer has expired
void core_request_retime(struct core *c, struct request *r);                 // its timer may have changed
