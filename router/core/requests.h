// SPDX-License-Identifier: Apache-2.0
// The life of a request inside the core, from admission to its end. Each step books the accounts in the ledger, removes
// the request from its node or waiting set, changes its state, adds it to the next node or waiting set, and finally
// sets its timer. A step may end the request. The pointer is then no longer valid. The functions call
// core_ops.send_cancel and the request's sink. Use on the core's thread only.
//
// request_selection.h handles scores that arrive, request_steps.h handles tokens.
#pragma once

#include "router/core/core_state.h"

// Adds a tokenised request to the core. The caller then carries out its score plan. `tenant` is
// admission_queue_tenant().
void core_request_admit(struct core *c, struct request *r, const char *tenant);
// Lets the request wait for a speculator. If no speculator can hold its prompt, the request goes on without a score.
void core_request_wait_for_score(struct core *c, struct request *r, int64_t now_us);
// Lets the request wait for the kept tokens of `scored`.
void core_request_share_score(struct core *c, struct request *r, struct request *scored);
// Goes on without a score: the request keeps its whole prompt, or ends if it requires a score.
void core_request_unscorable(struct core *c, struct request *r, enum skip_reason reason, int64_t now_us);
// Handles a request whose speculator was lost. The request waits for another speculator, or goes on without a score.
void core_request_lost_at_speculator(struct core *c, struct request *r, int64_t now_us);

// Handles a request whose kept ranges are known. It joins the waiting set of the worker groups, or ends if only its
// score was asked for.
void core_request_ready(struct core *c, struct request *r, int64_t now_us);
// Handles a request whose worker group was lost. The request waits for another group, which is also sent the tokens
// generated so far.
void core_request_replay(struct core *c, struct request *r, enum node_loss loss, int64_t now_us);
// Takes the request back from its worker group, so that another request gets its place. It goes on later, like a
// replayed request.
void core_request_preempt(struct core *c, struct request *r, int64_t now_us);

// Moves the request from its waiting set into a bin of the node. core_request_dispatched() follows when the bin is
// sent.
void core_request_place(struct core *c, struct request *r, struct core_node *node, struct core_bin *bin,
                        int64_t now_us);
void core_request_dispatched(struct core *c, struct request *r, int64_t now_us);

// Ends the request with the status. If `tell_node` is true, the request's node is sent a cancel.
void core_request_finish(struct core *c, struct request *r, enum finish_reason reason, enum status status,
                         const char *message, bool tell_node, int64_t now_us);

void core_request_expire(struct core *c, struct request *r, int64_t now_us); // call when the request's timer expires
void core_request_retime(struct core *c, struct request *r);                 // sets the timer by the request's state
