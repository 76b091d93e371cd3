// SPDX-License-Identifier: Apache-2.0
// Messages of a router into a node of either role, on the simulator's engine, which checks the KV entries of every
// batch. The input is a script of messages and passes.
#pragma once

#include "router/sched/view.h"
#include "sim/answers.h"
#include "sim/role.h"
#include "tests/fuzz/fuzz.h"

enum { FUZZ_VOCAB = 64, FUZZ_CONTEXT = 128, FUZZ_ROWS = 32, FUZZ_IDS = 8, FUZZ_ITEMS_MAX = 4, FUZZ_TOKENS_MAX = 140 };

typedef Forepack__Cluster__V1__RouterMessage router_message;
typedef Forepack__Cluster__V1__NodeMessage node_message;

// The part of the script that a target adds. Messages are valid until the next call.
struct fuzz_role {
    const struct role_ops *ops;
    enum node_role kind;
    const router_message *(*make_bin)(struct fuzz_script *script);
    const router_message *(*make_drafting)(struct fuzz_script *script); // makes the role's message about drafts
    void (*handle)(void *service, router_message *message); // passes the message to the role, which may change it
    void (*sent)(const node_message *message);              // the role has sent it
    void (*dropped)(void);                                  // the role has dropped all its work
    // Called after each message and pass. Returns NULL, or what is wrong.
    const char *(*check)(const struct role_load *load, const struct scenario_node *plan);
    void (*ended)(void *service); // called when the script is over and all work is done
};

// Runs the script. Every pass works, all work ends, and afterwards no KV block is held.
void fuzz_role_run(const struct fuzz_role *role, struct fuzz_script *script);

// Fills in token ids, mostly from the vocabulary. Returns their number.
size_t fuzz_tokens(struct fuzz_script *script, uint32_t tokens[FUZZ_TOKENS_MAX]);

// --- the engines' answers (sim/answers.h). `content`: content of the KV entry before the first token

uint64_t fuzz_content(uint64_t content, const uint32_t *tokens, size_t n, uint32_t first_position);
void fuzz_answer(uint64_t content, uint32_t first_position, uint32_t *tokens, size_t n); // the greedy answer
