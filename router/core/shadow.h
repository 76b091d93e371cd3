// SPDX-License-Identifier: Apache-2.0
// Shadows watch pruning in production. A share of the pruned requests gets a shadow: one more pass over the whole
// prompt, after the client has its answer. The shadow is a request of the router itself. Its prompt is the whole prompt
// and the pruned answer, and it asks for the log-probabilities of the answer's tokens and for one token more. So a
// single prefill shows where greedy decoding of the whole prompt would have given another token: greedy decoding gives
// the token with rank 1. The additional token shows whether the whole prompt's answer ends at the same place. If the
// answer was sampled, only its log-probability is known.
//
// - Requests are chosen by a hash of their id. At most `per_s` shadows are made in a second.
// - A shadow waits outside the queue, in a list of at most SHADOW_PENDING_MAX shadows and SHADOW_TOKENS_MAX tokens, and
//   for at most SHADOW_WAIT_US. It runs alone on a worker group without requests. When there are fewer idle groups than
//   requests that need one, shadows are cancelled and wait again. So a request waits for a shadow only until the group
//   ends the pass that it is in.
// - A shadow has no tenant, and counts in no bound, quota, total or measure of requests. Nodes count its work.
// - Draining ends all shadows. A shadow is kept in memory only, and its tokens are freed when it ends.
//
// shadow_run.h dispatches and cancels shadows. Use on the core's thread only.
#pragma once

#include "router/core/agreement.h"
#include "router/core/request.h"

struct core;

enum { SHADOW_PENDING_MAX = 64, SHADOW_TOKENS_MAX = 1 << 20, SHADOW_TRIES = 8 };
#define SHADOW_WAIT_US INT64_C(60000000)

struct shadow_options {
    double share; // share of the pruned requests that get a shadow; 0: none
    int per_s;    // most shadows made in a second
    enum agreement_measure measure;
    double promise; // see struct agreement_table
};

// Why a chosen request got no shadow.
enum shadow_skip {
    SHADOW_NO_ANSWER, // the answer has no tokens
    SHADOW_GRAMMAR,   // a grammar restricts the answer's tokens: structured output or tool calls that must come
    SHADOW_CHANGED,   // penalties, a logit bias or min_tokens change which token is the likeliest
    SHADOW_CHOICE,    // a further choice (n) of a prompt
    SHADOW_CONTEXT,   // no worker group can hold the whole prompt with the answer and one token
    SHADOW_SKIPS
};
const char *shadow_skip_name(enum shadow_skip skip);

// Why a shadow ended without a result.
enum shadow_drop {
    SHADOW_RATE,        // more than per_s in a second
    SHADOW_FULL,        // too many shadows wait
    SHADOW_EXPIRED,     // no worker group was idle in time
    SHADOW_INTERRUPTED, // requests arrived, or its node was lost, each of SHADOW_TRIES times
    SHADOW_FAILED,      // the worker group failed or sent invalid numbers
    SHADOW_DRAINED,     // the router drained
    SHADOW_DROPS
};
const char *shadow_drop_name(enum shadow_drop drop);

struct shadow {
    struct shadow *prev, *next;
    struct core *core;
    struct request *running; // the request on a worker group; NULL: the shadow waits
    int32_t *tokens;         // [n_tokens] the whole prompt, then the answer; owned
    int n_tokens, n_prompt;
    struct sampling sampling; // only what decides where the answer ends
    uint64_t salt;
    int64_t expires_us;
    int tries;
    bool ends; // the answer ended with an end token or a stop token: the whole prompt's answer must end there, too
    char *id, *tenant; // of the request; owned
    uint64_t number;   // of the request
    int kept_tokens;
    struct agreement_key key;
    // Agreement that the running request has shown so far.
    struct agreement agreement;
    bool is_invalid; // the worker group sent a log-probability that is none
};

// The answer with the lowest agreement since the last log line, without its text.
struct shadow_worst {
    bool is_set;
    int64_t since_us;
    uint64_t number;
    char *id; // owned
    int prompt_tokens, kept_tokens, tokens, agreed;
    double surprise;
};

// Each chosen request is skipped, or its shadow is dropped or measured, or its shadow has not ended.
struct shadow_totals {
    uint64_t chosen, measured, skipped[SHADOW_SKIPS], dropped[SHADOW_DROPS];
};

struct shadows {
    struct shadow_options options;
    struct agreement_table agreement;
    struct shadow_totals totals;
    struct shadow *first, *last; // list of the shadows, oldest first; owned
    int n, n_running;
    int64_t tokens;  // tokens of all shadows
    int64_t second;  // the second in which shadows were made last
    int n_in_second; // how many were made in it
    bool drains;
    struct shadow_worst worst;
};

void shadows_init(struct shadows *shadows, const struct shadow_options *options);
void shadows_fini(struct shadows *shadows); // call when no shadow runs; drops the others

// Returns true if the prompt is kept whole because the answers of requests like this one did not agree. A part of the
// chosen requests is pruned even then, so that agreement is measured again: the share of options, at most
// SHADOW_PROBE_SHARE. Requests that must be pruned do not fall back.
#define SHADOW_PROBE_SHARE 0.05
bool shadow_falls_back(const struct core *c, const struct request *r);

// Makes a shadow of a request that has ended with an answer, if it is chosen.
void shadow_take(struct core *c, const struct request *r, int64_t now_us);

// Ends a shadow that does not run.
void shadow_drop(struct shadows *shadows, struct shadow *s, enum shadow_drop drop);
void shadows_drop_all(struct shadows *shadows); // drops every shadow that does not run, and logs the worst answer
// Returns the receiver of the output of the shadow's request.
struct request_sink shadow_sink(struct shadow *s);
void shadow_worst_log(struct shadow_worst *worst);
