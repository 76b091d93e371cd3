// SPDX-License-Identifier: Apache-2.0
// Cache of selections: the kept ranges and the draft that a speculator returned for a prompt. A prompt with the same
// options is not scored twice, and neither is a finished turn of a conversation.
//
// A selection depends only on the prompt, the options and the speculator's model and build. So a cached selection
// equals the selection that a new score would give. The key covers the tokens, the prefill options, the pinned ranges,
// the tail window and the salt of the tenant. An entry is valid for one scorer only (core_node.scorer).
//
// The router holds the cache, not the speculators. A hit then costs no bin and no place in a speculator's queue. It
// also does not matter which speculator scored the prompt earlier.
//
// A key is a pair of 64-bit SipHashes under two random keys of this process, so nobody outside can compute prompts that
// collide. Among a billion prompts, the probability that two of them share a key by chance is about 1e-21.
//
// Owner: struct core. Memory: at most `bytes`. The least recently used selection is evicted first. One thread.
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
    double keep_rate;        // the keep rate by which the kept ranges were chosen
    enum rate_reason reason; // tells what decided keep_rate
    const int32_t *draft;    // [n_draft] the look-ahead tokens; borrowed until the next call
    int n_draft;
};

struct selection_cache;

// Creates the cache. `key` is the key of the hashes. With bytes 0, the cache holds nothing.
struct selection_cache *selection_cache_create(int64_t bytes, const struct hash_key *key);
void selection_cache_free(struct selection_cache *cache); // NULL is fine

// The part of a prompt that is scored: the whole prompt, or its beginning up to the end of a finished turn's prompt.
struct score_prompt {
    int n_tokens;                     // tokens from the start of the whole prompt
    const struct token_range *pinned; // [n_pinned] borrowed
    int n_pinned;
    int before; // number of tokens of the previous turn's prompt; 0: there is no previous turn
    int fresh;  // index of the first token after the answer to the previous turn; 0: there is no previous turn
};

// Makes the key of a selection. `before` is the key of the previous turn's selection, because the new selection may
// depend on the rows of that turn. It is NULL if there is no previous turn. `tail_tokens` is the tail window of this
// prompt. `whole` is true if the turn keeps all tokens without a score. Costs O(tokens since the previous turn).
struct selection_key selection_key_make(const struct selection_cache *cache, const struct request_spec *spec,
                                        const struct score_prompt *prompt, const struct selection_key *before,
                                        int tail_tokens, bool whole);

// Finds a selection. Returns false if the cache holds none for this key and scorer. The found selection becomes the
// most recently used one.
bool selection_cache_find(struct selection_cache *cache, const struct selection_key *key, uint64_t scorer,
                          struct selection *selection_p);
// Copies the selection into the cache. It replaces an entry with the same key, even an entry of another scorer.
void selection_cache_add(struct selection_cache *cache, const struct selection_key *key, uint64_t scorer,
                         const struct selection *selection);
