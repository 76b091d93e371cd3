// SPDX-License-Identifier: Apache-2.0
// The selections of prompts that were scored: a prompt that comes again with the same options is not scored again, nor
// is a finished turn of a conversation.
//
// The kept ranges and the draft are a property of (prompt, speculator, policy), so a selection found here is the one
// that a speculator would return. The key covers all of that: the tokens, the prefill options, the pinned ranges, the
// tail window and the salt of the tenant; and an entry holds for one scorer alone, see core_node.scorer. It lies in the
// router rather than in the speculators, since a hit then costs neither a bin nor a place in a speculator's queue, and
// does not depend on the speculator that a prompt came to before.
//
// A key is a pair of 64-bit SipHashes under two random keys of this process: nobody outside can compute prompts that
// collide, and among a billion prompts two share a key by chance with a probability of 1e-21.
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
    double keep_rate; // that chose them, and what decided it
    enum rate_reason reason;
    const int32_t *draft; // [n_draft] the look-ahead tokens; borrowed likewise
    int n_draft;
};

struct selection_cache;

// `key`: of the hashes. bytes 0: nothing is held.
struct selection_cache *selection_cache_create(int64_t bytes, const struct hash_key *key);
void selection_cache_free(struct selection_cache *cache); // NULL is fine

// What is scored of a prompt: all of it, or the prompt of a finished turn.
struct score_prompt {
    int n_tokens;
    const struct token_range *pinned; // [n_pinned] borrowed
    int n_pinned;
    int before; // tokens of the prompt of the turn before; 0: there is none
    int fresh;  // the first token behind the answer to that
};

// `before`: the key of the turn before, on whose rows the selection may depend; NULL: there is none. `tail_tokens`: the
// tail window of this prompt. `whole`: the turn keeps all tokens without a score. Costs O(tokens since that turn).
struct selection_key selection_key_make(const struct selection_cache *cache, const struct request_spec *spec,
                                        const struct score_prompt *prompt, const struct selection_key *before,
                                        int tail_tokens, bool whole);

// False: not held for this scorer. A selection that is found was used now.
bool selection_cache_find(struct selection_cache *cache, const struct selection_key *key, uint64_t scorer,
                          struct selection *selection_p);
// Copies the selection. Replaces that of another scorer.
void selection_cache_add(struct selection_cache *cache, const struct selection_key *key, uint64_t scorer,
                         const struct selection *selection);
