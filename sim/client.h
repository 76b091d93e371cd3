// SPDX-License-Identifier: Apache-2.0
// The clients: each sends one request of the scenario, verifies every token of its answer, and may leave, or try again
// after the router was lost. They stand at the core's edge, where the front hands over a checked request.
//
// A request is tainted when it was on a node while that node lied. Its answer may be wrong or an error; it still must
// end exactly once, and all other requests must not notice.
#pragma once

#include "router/core/request.h"
#include "sim/world.h"

struct clients *clients_create(struct world *w);
void clients_free(struct clients *clients);

void client_arrive(struct world *w, int action); // the request of this action
void client_leave(struct world *w, int64_t id);  // its call is cancelled
void client_abort(struct world *w, int64_t id);  // by the name of its request
void clients_taint(struct world *w, int node);   // requests on the node are tainted

bool clients_all_ended(const struct world *w);
int clients_in_router(const struct world *w); // requests that the core has taken over and not ended
void clients_check_end(struct world *w);      // at the end of the run: bounded waiting

// What became of the request of an action. Times are those of the core.
struct client_result {
    int64_t arrived_us, first_us, last_us, ended_us; // first_us, last_us: of tokens
    struct request_timing timing;
    struct request_usage usage;
    bool done;
    enum status status; // of a request that failed
};
struct client_result client_get_result(const struct world *w, int action);

struct samples;
void clients_watch_gaps(struct world *w, struct samples *gaps_ms); // adds the times between tokens from now on
