// SPDX-License-Identifier: Apache-2.0
// For tests of the worker's scheduler: a tiny model, random requests, the result of each request alone, and its result
// now.
#pragma once

#include <check.h>

#include "tests/tiny_model.h"
#include "worker/pace.h"
#include "worker/scheduler.h"

enum { REQUESTS = 36, PROMPT_MAX = 90, OUTPUT_MAX = 64, CONTEXT = 192, POOL = 256, BUDGET_MAX = 256 };

struct request {
    struct sequence_request ask; // its arrays are the fields below
    int32_t tokens[PROMPT_MAX + OUTPUT_MAX];
    int32_t whole[CONTEXT];
    struct token_range kept[PROMPT_MAX];
    struct logit_bias bias;
};

struct outcome {
    int32_t tokens[OUTPUT_MAX];
    float logprobs[OUTPUT_MAX];
    int n;
    enum sequence_finish finish;
};

struct world {
    char *dir;
    struct comm *comm;
    struct engine *engine;
    struct scheduler *scheduler;
    int pool;
    bool prefix_cache;
    int64_t pace_us;
    struct request requests[REQUESTS];
    struct outcome alone[REQUESTS];
    struct outcome now[REQUESTS];
    int cached[REQUESTS];
    bool cancelled[REQUESTS];
    long steps, rows;
};

// The kinds of model. The tests of exactness run with each of them.
struct kind {
    const char *family;
    uint64_t seed;
    const char *dtype, *kv_dtype;
    int threads;
};

enum { WORLDS = 6 };
extern const struct kind worlds[WORLDS];

struct world *world_open_of(const struct kind *kind);
struct world *world_open(const char *family, uint64_t seed);
void world_close(struct world *w);
int world_random(int n); // 0 to n - 1

// Starts a scheduler, which the test frees. The functions below add requests, step and finish.
void world_start(struct world *w, int token_budget, int max_seqs, int pool);
void world_add(struct world *w, const struct sequence_request *ask);
void world_step(struct world *w);
void world_run(struct world *w); // until nothing is left and every block is released
void world_take_report(void *arg, const struct step_report *report);

void world_run_alone(struct world *w); // runs every request in an empty scheduler, its whole prompt in one pass
// Checks that request i gave the same result now, from its token `from` on. The message says `how` it was run.
void world_check_same(const struct world *w, int i, int from, const char *how);

struct sequence_request plain_request(uint64_t id, const int32_t *tokens, int n); // asks for four greedy tokens
