// SPDX-License-Identifier: Apache-2.0
// What a node's prefix cache is likely to hold: the blocks of the requests it was given. So that requests which begin
// alike go to the same node, and a bin counts what is left to compute (global prefix sharing: BatchLLM, arXiv
// 2412.03594).
//
// A request is known by the chain of its full blocks: number i stands for all tokens and positions up to the end of
// block i, 64 bits of hash. Two texts of one number cost a node some computing, never an answer: the node compares
// tokens. Bounded and forgetful like the cache itself, which it does not see: the chain used longest ago goes first,
// from its end.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "model/generation.h"

enum {
    PREFIX_BLOCK = 16,        // tokens; what nodes share their KV by
    PREFIX_BLOCKS_MAX = 65536 // of a chain, and of an index
};

// The chain of the tokens in the kept ranges (all n tokens as one range for a prompt kept whole). *chain_p is the
// caller's, NULL for less than a block; returns its length.
int prefix_chain_make(const int32_t *tokens, const struct token_range *kept, int n_kept, uint64_t **chain_p);

// Blocks that two chains have in common, from the first.
int prefix_chain_common(const uint64_t *a, int n_a, const uint64_t *b, int n_b);

struct prefix_index;

struct prefix_index *prefix_index_create(int blocks); // room for so many, at most PREFIX_BLOCKS_MAX
void prefix_index_free(struct prefix_index *index);   // NULL is fine

// How many blocks of the chain, from the first, are there.
int prefix_index_match(const struct prefix_index *index, const uint64_t *chain, int n);
void prefix_index_add(struct prefix_index *index, const uint64_t *chain, int n);
