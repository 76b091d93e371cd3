// SPDX-License-Identifier: Apache-2.0
// The expected answer of a request, computed only from the request (answers.h): every token, the end, the kept tokens,
// and the longest wait. Pure functions.
#pragma once

#include "router/core/request.h"
#include "sim/answers.h"
#include "sim/scenario.h"

// Returns the prompt's tokens, [request.tokens]. The caller frees them.
int32_t *expect_prompt(const struct scenario *scenario, const struct action *action);

struct expectation {
    const struct scenario_request *plan; // borrowed
    bool seen[SCENARIO_VOCAB_MAX];       // tokens of the whole prompt and the answer so far
    uint64_t entry;                      // content of the last token's KV entry
    int n_prompt;                        // tokens of the whole prompt
    int index;                           // index of the next output token
    struct answer_rule rule;
    bool samples; // the engines sample tokens
};

// Begins with the kept tokens of the request. Then, for each token: expect_next() returns the expected token, and
// expect_advance() adds the token that came.
void expect_begin(struct expectation *expect, const struct action *action, const struct request *r,
                  const struct scenario_options *options);
// Returns the next token. *stops_p becomes true if the token ends the text and is not sent.
int32_t expect_next(const struct expectation *expect, bool *stops_p);
void expect_advance(struct expectation *expect, int32_t token);

// Returns true if the request may have rows of earlier turns.
bool expect_conversation(const struct scenario *scenario, const struct request *r);

// Returns true if the kept tokens of the speculated request, in the order of their rows, follow from its prompt and
// policy. `talks`: the request has rows of earlier turns. Costly, so only some requests are checked.
bool expect_kept(const struct scenario *scenario, const struct action *action, const struct request *r, bool talks);

// Returns the longest time that a request may wait for its first token, without faults. The limit is 2 * max_wait + 1
// s, plus a message to a node and back for each request, plus 4 times a serial run. In the serial run, all requests run
// one after another, on the slowest node of each role.
int64_t expect_wait_max_us(const struct scenario *scenario);
