// SPDX-License-Identifier: Apache-2.0
// The parts of fuzz_node_messages.c:
//
//     fuzz_node_router.c    messages of the router to nodes and clients
//     fuzz_node_clients.c   requests of clients
//     fuzz_node_fill.c      messages of nodes
#pragma once

#include "router/core/core_state.h"
#include "router/front/nodes/node_link.h"
#include "tests/fuzz/fuzz.h"

enum { LINKS = 4, REQUESTS_MAX = 40, TOKENS_MAX = 40, PROMPT_MAX = 200, VOCAB = 100, SENT_MAX = 8 };
enum { TAIL_TOKENS = 8, SECOND_US = 1000000 };

typedef Forepack__Cluster__V1__NodeMessage node_message;

// A recent message of the router to a node, so that the node can answer it.
struct sent {
    uint64_t request;
    int n; // tokens of the prompt to score
};

struct end {
    struct node_link link; // first: the link's functions get this
    bool open, finished;
    struct sent sent[SENT_MAX]; // the latest replaces the oldest
    unsigned n_sent;
};

struct client {
    uint64_t number;
    // of its prompt: number of tokens that are the same for all clients; offset of the remaining tokens
    int head, shift;
    int tokens, max_tokens, prompt_tokens, ends;
    int32_t answer[TOKENS_MAX];
    int logprobs_left; // prompt log-probabilities still to come
    bool has_quality, is_drafted;
    const struct end *group; // the last worker group that the request was sent to
    int advanced;            // number of answer tokens sent to a speculator
};

extern struct world {
    struct core *core;
    struct end ends[LINKS];
    struct client clients[REQUESTS_MAX];
    int n_clients;
    int64_t now_us;
} w;

// --- fuzz_node_router.c

extern const struct node_link_ops node_end_ops;
struct request_sink node_client_sink(struct client *client);
int32_t node_prompt_token(const struct client *client, int i);
void node_check_accounts(void);

// --- fuzz_node_clients.c

void node_request_submit(struct fuzz_script *script);
void node_choices_submit(struct fuzz_script *script); // choices of one prompt, which share its score

// --- fuzz_node_fill.c

void node_fill_begin(void);
uint64_t node_any_request(struct fuzz_script *script);
// Makes a message of the kind, valid until the next call. `answers`: a message of a node that answers what it was sent.
const node_message *node_message_fill(struct fuzz_script *script, int node, int kind, bool answers);
