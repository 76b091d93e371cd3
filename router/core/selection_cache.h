// SPDX-License-Identifier: Apache-2.0
// The selections of prompts that were scored. A prompt that comes again with the same options is not scored again;
// neither is a finished turn of a conversation.
//
// The kept ranges and the draft depend on (prompt, speculator, policy) alone, so a speculator would return the
// selection that is found here. The key covers the tokens, the prefill options, the pinned ranges, the tail window and
// the salt of the tenant. An entry is valid for one scorer alone, see core_node.scorer. The cache is in the router
// rather than in the speculators. A hit then costs no bin and no place in a speculator's queue, and does not depend on
// which speculator got the prompt earlier.
//
// A key is a pair of 64-bit SipHashes under two random keys of this process, so nobody outside can compute prompts that
// collide. Among a billion prompts, two share a key by chance with a probability of 1e-21.
//
// Owner: struct core. Memory: at most the given bytes; the selection used longest ago is evicted first. One thread.
#pragma once

#include <stdint.h>

#include "lib/base/hash.h"
#include "router/sched/sched_request.h"

struct selection_key {
    uint64_t part[2];
};

struct selection {
    const struct token_range *kept; // [n_kept] ascending, not touching; borrowed until the next call
    int n_kept;
    double keep_rate; // the rate that chose them; `reason`: what decided the rate
    enum rate_reason reason;
    const int32_t *draft; // [n_draft] the look-ahead tokens; borrowed until the next call
    int n_draft;
};

struct selection_cache;

// Creates the cache. `key`: key of the hashes. bytes 0: nothing is held.
struct selection_cache *selection_cache_create(int64_t bytes, const struct hash_key *key);
void selection_cache_free(struct selection_cache *cache); // NULL is fine

// The part of a prompt that is scored: all of it, or the prompt of a finished turn.
struct score_prompt {
    int n_tokens;
    const struct token_range *pinned; // [n_pinned] borrowed
    int n_pinned;
    int before; // tokens of the previous turn's prompt; 0: there is none
    int fresh;  // the first token after the answer to the previous turn
};

// Makes the key of a selection. `before`: the key of the previous turn, on whose rows the selection may depend; NULL:
// there is none. `tail_tokens`: the tail window of this prompt. `whole`: the turn keeps all tokens without a score.
// Costs O(tokens since the previous turn).
struct selection_key selection_key_make(const struct selection_cache *cache, const struct request_spec *spec,
                                        const struct score_prompt *prompt, const struct selection_key *before,
                                        int tail_tokens, bool whole);

// Finds a selection; false: none is held for this scorer. A selection that is found counts as used now.
bool selection_cache_find(struct selection_cache *cache, const struct selection_key *key, uint64_t scorer,
                          struct selection *selection_p);
// Copies the selection into the cache. Replaces the selection of another scorer.
void selection_cache_add(struct selection_cache *cache, const struct selection_key *key, uint64_t scorer,
                         const struct selection *selection);
