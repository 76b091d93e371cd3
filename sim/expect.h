// SPDX-License-Identifier: Apache-2.0
// What a client may expect of its answer, computed from its request alone (answers.h): every token, its end, the kept
// tokens, and how long it may wait. Pure.
#pragma once

#include "router/core/request.h"
#include "sim/answers.h"
#include "sim/scenario.h"

// The tokens of the request's prompt, [request.tokens]; the caller frees them.
int32_t *expect_prompt(const struct scenario *scenario, const struct action *action);

struct expectation {
    const struct scenario_request *plan; // borrowed
    bool seen[SCENARIO_VOCAB_MAX];       // tokens of the whole prompt and the answer so far
    uint64_t entry;                      // the content of the last token's KV entry
    int n_prompt, index;
    struct answer_rule rule;
    bool samples; // the engines sample tokens
};

// Begins with the kept tokens of the request; then, for each token: what is next, and the token that came.
void expect_begin(struct expectation *expect, const struct action *action, const struct request *r,
                  const struct scenario_options *options);
int32_t expect_next(const struct expectation *expect, bool *stops_p); // *stops_p: it ends the text and is not sent
void expect_advance(struct expectation *expect, int32_t token);

bool expect_conversation(const struct scenario *scenario, const struct request *r); // may have rows of earlier turns

// Whether the speculated request keeps the tokens that its prompt and policy say, in the order of their rows. Costly:
// checked for some requests.
// `talks`: it has rows of earlier turns.
bool expect_kept(const struct scenario *scenario, const struct action *action, const struct request *r, bool talks);

// How long any request of the scenario may wait for its first token, without faults:
//   2 * max_wait + 1 s + 4 * (the time that all its requests take alone, one after another, on the slowest nodes of
//   both roles) + a message to a node and back for each of them.
int64_t expect_wait_max_us(const struct scenario *scenario);
