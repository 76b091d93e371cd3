// SPDX-License-Identifier: Apache-2.0
// The answers of the simulated models: pure functions of tokens and positions. The simulated engines compute them from
// the KV entries that a batch refers to, and clients compute them from the prompt. So a client can verify every token,
// and an engine that was given a wrong row, position or KV block answers wrongly.
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "sim/scenario.h"

enum { TOKEN_BOS = 1, TOKEN_EOS = 2, TOKEN_FIRST = 3 }; // TOKEN_FIRST: the first token that a prompt may contain

#define ANSWER_STEP UINT64_C(0x9e3779b97f4a7c15)

static inline uint64_t answer_mix(uint64_t x) // the finaliser of splitmix64: consecutive numbers look random
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

// Returns the content of a KV entry, which depends on its token, its position and all earlier entries. The lowest bits
// depend only on the position. At a share of the positions, every model answers the same token, whatever it has read.
// So draft tokens of a speculator, which reads the whole prompt, can equal tokens of the main model, which reads the
// kept tokens.
#define ANSWER_START  UINT64_C(0x243f6a8885a308d3)
#define ANSWER_SHARED UINT64_C(0xff)
static inline uint64_t answer_entry(uint64_t before, int32_t token, int32_t position)
{
    uint64_t content = answer_mix(before * 3 + ((uint64_t)(uint32_t)token << 32 | (uint32_t)position) + ANSWER_STEP);
    return (content & ~ANSWER_SHARED) | (answer_mix((uint64_t)(uint32_t)position) & ANSWER_SHARED);
}

// The rule by which a model answers. In a scenario, half of the positions are shared. At the other positions, models
// answer the same only if they have read the same tokens. In a capacity plan (plan.h), draft tokens are right only at
// shared positions.
struct answer_rule {
    int vocab;
    int n_shared;   // kinds of positions that are shared, out of ANSWER_POSITIONS
    uint64_t model; // changes the answers at positions that are not shared; 0: no change
};
enum { ANSWER_POSITIONS = 256 };

static inline struct answer_rule answer_rule_of(const struct scenario_options *o, bool is_speculator)
{
    if (!o->draft_acceptance) return (struct answer_rule){(int)o->vocab, ANSWER_POSITIONS / 2, 0};
    int64_t chance = o->draft_acceptance < 0 ? 0 : o->draft_acceptance;
    return (struct answer_rule){(int)o->vocab, (int)((chance * ANSWER_POSITIONS + 500) / 1000),
                                is_speculator ? UINT64_C(0x13198a2e03707344) : 0};
}

// Returns the greedy token after an entry, or the token that `uniform`, from 0 to 1, samples. Negative `uniform`:
// greedy.
static inline int32_t answer_token(uint64_t entry, double uniform, const struct answer_rule *rule)
{
    uint64_t bits = 0, shared = entry & ANSWER_SHARED;
    int kind = (int)((~shared & 1) << 7 | shared >> 1);
    if (kind < rule->n_shared)
        return TOKEN_FIRST + (int32_t)(answer_mix(shared) % (uint64_t)(rule->vocab - TOKEN_FIRST));
    if (uniform >= 0) memcpy(&bits, &uniform, sizeof bits);
    return (int32_t)(answer_mix((entry ^ rule->model) ^ (bits | (uniform >= 0)) * ANSWER_STEP) % (uint64_t)rule->vocab);
}

// Returns the second most likely token after an entry. It differs from the most likely token `first`.
static inline int32_t answer_second_token(uint64_t entry, int32_t first, int vocab)
{
    int32_t step = 1 + (int32_t)(answer_mix(entry + 2 * ANSWER_STEP) % (uint64_t)(vocab - 1));
    return (first + step) % vocab;
}

// Logits of the two most likely tokens; all other logits are 0. Sampling selects the first token, unless a mask
// excludes this token, or a repetition penalty lowers only this token.
#define ANSWER_LOGIT        1e6f
#define ANSWER_SECOND_LOGIT (ANSWER_LOGIT - 200)

// Returns the importance, 0 to 1, that the row of entry `query` gives to prompt token number `key`.
static inline float answer_importance(uint64_t query, int32_t token, int key)
{
    uint64_t x = (query ^ (uint64_t)(uint32_t)token << 20 ^ (uint64_t)(uint32_t)key) * UINT64_C(0xbf58476d1ce4e5b9);
    return (float)((x ^ x >> 32) & 0xffffff) * 0x1p-24f;
}

// Returns true if the token ends a sentence.
static inline int answer_ends_sentence(int32_t token)
{
    return token % 12 == 0;
}

// Returns token i of a prompt. `source` identifies a shared prefix, or one request.
static inline int32_t answer_prompt_token(int64_t source, int i, int vocab)
{
    if (i == 0 && source % 2 == 0) return TOKEN_BOS;
    return TOKEN_FIRST +
           (int32_t)(answer_mix((uint64_t)source * ANSWER_STEP + (uint64_t)i) % (uint64_t)(vocab - TOKEN_FIRST));
}
