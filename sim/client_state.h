// SPDX-License-Identifier: Apache-2.0
// The inside of a client, for client.c and client_checks.c only.
#pragma once

#include <inttypes.h>

#include "router/core/core_state.h"
#include "sim/client.h"
#include "sim/expect.h"

// The node that a request was placed on, and how many leading blocks the node's prefix cache then held for it.
struct placement {
    struct sim_node *node; // NULL: not placed yet, or placed again after the first token
    uint64_t life;         // the node's life at that time, see sim_node_life()
    int cached_blocks;
};

struct client {
    struct world *w;
    const struct action *plan; // ACTION_REQUEST
    struct request *r;         // the router's request; NULL: not in the router
    double quality;            // quality that the rule for pruning left to the request; 0: none
    enum skip_reason decided;  // reason not to score the prompt, as the client derives it
    bool talks;                // the request may have rows of earlier turns
    struct expectation expect; // the expected answer
    int received;              // number of received tokens
    int n_prompt_logprobs;     // number of received prompt log-probabilities
    uint64_t prompt_entry;     // content of the KV entry before the next prompt token
    int tries;
    int preemptions; // preemptions of the request until it was placed last
    int64_t *passes; // [n_passes] passes of each node when it arrived, if its first token is bounded (crowd.h); owned
    int n_passes;
    int sends;         // times that it was sent to a worker group since its last token, not counting preemptions
    int losses;        // worker groups lost in a row while they had the request, since its last token
    int placements;    // times that it was sent to a worker group
    int placed_tokens; // tokens received when it was sent to a worker group last
    // The result of the message that the router handles now, and the usage before it; NULL: none.
    const struct sequence_result *step;
    struct request_usage before_step;
    bool step_is_double; // the message has two results for the request
    bool step_is_wrong;  // the result is of another node, or of an earlier attempt
    bool arrived, ended, left, tainted;
    int64_t read_until_us; // time at which the client will have read all tokens sent so far
    int64_t submitted_us, waited_us;
    struct placement placed; // the last placement on a worker group
    struct client_result result;
};

struct clients {
    struct client *of_action; // [n_actions], set for requests only
    int n_actions;
    struct client **of_number; // [n_numbers] by the router's number of the request
    int n_numbers, numbers_capacity;
    int n_arrived, n_ended;
    bool counts_passes;      // see crowd_applies()
    struct samples *gaps_ms; // borrowed; NULL: times between tokens are not recorded
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

void client_check_intake(struct client *client); // call right after core_submit()
void client_check_token(struct client *client, const struct request *r, int32_t token);
// Called as a function of struct request_sink.
void client_check_prompt_logprobs(void *user, const struct token_logprob *logprobs, int n);
// Called when the request ends.
void client_check_state(struct client *client, const struct request *r, enum finish_reason reason);
void client_check_end(struct client *client, const struct request *r, enum finish_reason reason, enum status status,
                      const char *message);
