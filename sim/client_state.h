// SPDX-License-Identifier: Apache-2.0
// The inside of a client, for client.c and client_checks.c only.
#pragma once

#include <inttypes.h>

#include "router/core/core_state.h"
#include "sim/client.h"
#include "sim/expect.h"

// Where a request was placed, and how many leading blocks the node's cache then held for it.
struct placement {
    struct sim_node *node; // NULL: nowhere yet, or replayed
    uint64_t life;         // of the node
    int cached_blocks;
};

struct client {
    struct world *w;
    const struct action *plan; // ACTION_REQUEST
    struct request *r;         // in the router; NULL: not there
    enum skip_reason decided;  // why its prompt was not to be scored, as the client knows it
    bool talks;                // it has rows of earlier turns
    struct expectation expect; // of its answer
    int received;
    int n_prompt_logprobs; // received
    uint64_t prompt_entry; // the content of the KV entry before the next one
    int tries;
    bool arrived, ended, left, tainted;
    int64_t read_until_us; // when it will have read what was sent to it
    int64_t submitted_us, waited_us;
    struct placement placed; // on a worker group, last
    struct client_result result;
};

struct clients {
    struct client *of_action;  // [n_actions], of requests only
    struct client **of_number; // [n_numbers] by the router's number of the request
    int n_numbers, numbers_capacity;
    int n_arrived, n_ended;
    struct samples *gaps_ms; // borrowed; NULL: nobody wants the times between tokens
};

static inline const struct scenario_options *client_options(const struct client *client)
{
    return &client->w->scenario->options;
}

static inline void client_fail(struct client *client, const char *what)
{
    world_fail(client->w, "request %" PRId64 ": %s", client->plan->id, what);
}

struct client *client_of_number(const struct world *w, uint64_t number); // NULL: none

void client_check_intake(struct client *client); // right after core_submit()
void client_check_token(struct client *client, const struct request *r, int32_t token);
void client_check_prompt_logprobs(void *user, const struct token_logprob *logprobs, int n); // of struct request_sink
void client_check_state(struct client *client, const struct request *r, enum finish_reason reason); // at its end
void client_check_end(struct client *client, const struct request *r, enum finish_reason reason, enum status status,
                      const char *message);
