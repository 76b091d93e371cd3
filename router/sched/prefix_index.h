// SPDX-License-Identifier: Apache-2.0
// What a node's prefix cache is likely to hold: the prompt blocks of the requests that were dispatched to it. Requests
// with a shared prefix go to the node that has it, and a bin counts only the rows that are left to compute (global
// prefix sharing: BatchLLM, arXiv 2412.03594).
//
// A prefix chain has one 64-bit hash per full block, which covers all tokens and positions up to the end of that block.
// Two prefixes with equal hashes cost a node some computing and change no answer: the node compares tokens. The index
// is bounded like the cache itself, which the router does not see, and evicts the chain used longest ago from its end.
// Not thread-safe.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "model/generation.h"

enum {
    PREFIX_BLOCK = 16,        // tokens; nodes share KV entries in blocks of this size
    PREFIX_BLOCKS_MAX = 65536 // of a chain, and of an index
};

// Makes the chain of the tokens in the kept ranges (a prompt kept whole is one range). *chain_p is NULL for less than a
// block, else to be freed by the caller. Returns the number of blocks.
int prefix_chain_make(const int32_t *tokens, const struct token_range *kept, int n_kept, uint64_t **chain_p);

int prefix_chain_common(const uint64_t *a, int n_a, const uint64_t *b, int n_b); // leading blocks that both have

struct prefix_index;

struct prefix_index *prefix_index_create(int blocks); // its capacity, at most PREFIX_BLOCKS_MAX
void prefix_index_free(struct prefix_index *index);   // NULL is fine

int prefix_index_match(const struct prefix_index *index, const uint64_t *chain, int n); // leading blocks in the index
void prefix_index_add(struct prefix_index *index, const uint64_t *chain, int n);
