// SPDX-License-Identifier: Apache-2.0
// The clients. Each client sends one request of the scenario and verifies every token of the answer. It may leave, or
// send the request again if the router was lost or refused it for now. Clients call the core with checked requests, as
// the router's front does.
//
// A request is tainted if it was on a node while that node lied. The answer may then be wrong or an error. A tainted
// request must still end exactly once, and must not affect other requests.
#pragma once

#include "router/core/request.h"
#include "sim/world.h"

struct clients *clients_create(struct world *w);
void clients_free(struct clients *clients);

void client_arrive(struct world *w, int action); // sends the request of this action
void client_leave(struct world *w, int64_t id);  // the client cancels its call
void client_abort(struct world *w, int64_t id);  // aborts the request by its id
void clients_taint(struct world *w, int node);   // taints the requests and shadow requests on the node

bool clients_all_ended(const struct world *w);
int clients_in_router(const struct world *w); // requests that the core has and that have not ended
void clients_check_end(struct world *w);      // at the end of the run: checks that waiting was bounded

// The outcome of the request of an action.
struct client_result {
    int64_t arrived_us; // time when the client sends the request, before the message's delay
    // Times at the core, before the answer's messages: the first token, the last token, the end.
    int64_t first_us, last_us, ended_us;
    struct request_timing timing;
    struct request_usage usage;
    bool done;
    enum status status; // set if the request failed
};
struct client_result client_get_result(const struct world *w, int action);

struct samples;
void clients_watch_gaps(struct world *w, struct samples *gaps_ms); // records the times between tokens from now on
