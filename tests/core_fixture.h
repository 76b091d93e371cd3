// SPDX-License-Identifier: Apache-2.0
// A core whose time the test sets, with nodes that only record what they are sent, and clients that record everything.
#pragma once

#include <check.h>

#include "router/core/core.h"

enum { CLIENT_TOKENS_MAX = 128, NODE_REQUESTS_MAX = 8192, SECOND = 1000000, VOCAB = 1000 };

// Checks a condition cheaply. ck_assert() records its place even if it holds, which is too slow for checks at every
// step.
#define ck_cheap(condition)                                                                                            \
    do {                                                                                                               \
        if (!(condition)) ck_abort_msg("%s", #condition);                                                              \
    } while (0)

struct client {
    uint64_t number;
    struct request *r; // set until the request is done
    int ends;          // times `done` was called
    enum finish_reason reason;
    enum status status;
    char message[512];
    int32_t tokens[CLIENT_TOKENS_MAX]; // streamed so far
    int n_tokens;
    int stop_after; // tokens after which a stop string ends the answer; 0: no stop string
    struct request_usage usage;
    struct request_timing timing;
    enum skip_reason skip;
    struct token_range kept[16];
    int n_kept;
    float importance_0;
    bool importance; // the client has received the importance
    struct client *next;
};

struct fake_advance {
    uint64_t request;
    int from, n, ahead;
    bool with_prompt;
};

struct fake_node {
    struct core_node *node; // NULL if not attached
    char id[32];
    bool lost; // node_lost was called
    // Requests dispatched to the node and neither answered nor cancelled, in order.
    uint64_t requests[NODE_REQUESTS_MAX];
    int n_requests;
    int bins, last_bin_items, last_bin_rows; // bins received in all; items and rows of the last bin
    int cancels, drains;
    bool is_speculator;
    int releases;                           // number of cancels of answered requests
    int advances, advance_messages, drafts; // received in all
    struct fake_advance last_advance;
    struct node_draft last_draft;
    int32_t draft_tokens[NODE_DRAFT_MAX]; // tokens of the last draft
};

struct fixture {
    struct core *c;
    int64_t now_us;
    struct core_options options;
    struct fake_node *nodes[64];
    int n_nodes;
    struct client *clients; // list of all clients, latest first
    int submitted, ended;
    bool ready;
    int ready_changes;
    uint64_t first_number; // number of the first request of this test
};

void fixture_init(struct fixture *f); // fills `options`, which may be changed before fixture_start
void fixture_start(struct fixture *f);
void fixture_stop(struct fixture *f);                // frees the core; checks that every request ended exactly once
void fixture_advance(struct fixture *f, int64_t us); // runs all ticks that the core asks for

struct node_hello fixture_hello(enum node_role role, const char *id);
struct fake_node *fixture_attach(struct fixture *f, const struct node_hello *hello); // must succeed
void fixture_detach(struct fixture *f, struct fake_node *node);

// Returns a request that is not submitted yet, for the test to change.
struct client *fixture_request(struct fixture *f, int n_tokens, int max_tokens);
void fixture_submit(struct fixture *f, struct client *client); // does not tick
// Predicts the time to the first token, in microseconds, of a request of `n_tokens` tokens that would arrive now.
double fixture_predicted_us(struct fixture *f, int n_tokens);
struct client *fixture_send(struct fixture *f, int n_tokens, int max_tokens); // prefill off; submits and ticks
// Submits a request with prefill off and does not tick, so that several requests are packed together. `tenant` may be
// NULL. With a head, the first `head` tokens are the same for equal `text`, and the remaining tokens differ from every
// other request's.
struct client *fixture_put(struct fixture *f, const char *tenant, int n_tokens, int priority);
struct client *fixture_put_with_head(struct fixture *f, int head, int text, int n_tokens, const char *tenant);
struct client *fixture_find(const struct fixture *f, uint64_t number);

bool fake_node_has(const struct fake_node *node, const struct client *client);
void fake_node_forget(struct fake_node *node, uint64_t number);
// Answers one request with tokens that count up from `first`, then ticks. finish < 0: the answer continues.
void fake_node_step(struct fixture *f, struct fake_node *node, struct client *client, int first, int n, int finish);
// Ends all requests of the oldest outstanding bin.
void fake_node_finish_oldest_bin(struct fixture *f, struct fake_node *node);
void fake_node_score(struct fixture *f, struct fake_node *node, struct client *client, int first,
                     int last); // also ticks

struct core_status fixture_status(const struct fixture *f); // release it with core_status_fini
