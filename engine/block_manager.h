// SPDX-License-Identifier: Apache-2.0
// Who holds which block of the paged KV cache, and what the blocks hold. Numbers only: the memory itself is the
// backend's. Owned by the thread that schedules; blocks are KV_BLOCK_TOKENS entries each.
//
// A block is taken by one sequence and may be held by several: each gives it back once.
//
// Prefix cache: a block that is full can be published under its key: which tokens at which positions stand in it, and
// in the published block before it. An entry of the cache depends on the rows up to it and on nothing else, so equal
// keys mean equal bits, and a sequence that is made of the same tokens holds the block instead of computing it.
// Positions are part of the key since K is stored after RoPE: a prompt of which tokens were dropped can only ever share
// blocks with a prompt that kept the same tokens at the same places, hence never be taken for the whole one. Tokens and
// positions are compared, not their hash: a collision would answer one client with another one's text.
//
// A published block that nobody holds stays findable until its memory is needed; it counts as free. Those given back
// longest ago are forgotten first; of one sequence the last block goes before the first, so what remains is always a
// chain from the start.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/ragged.h"

struct block_manager;

struct block_manager *block_manager_create(int n_blocks);
void block_manager_free(struct block_manager *pool); // asserts that every block came back

int block_manager_size(const struct block_manager *pool);
int block_manager_n_free(const struct block_manager *pool); // nobody holds them

// All `n` blocks or none (false).
bool block_manager_allocate(struct block_manager *pool, int n, int32_t *blocks);
void block_manager_release(struct block_manager *pool, const int32_t *blocks, int n); // asserts that they were held
int block_manager_refs(const struct block_manager *pool, int32_t block);

// ---- the prefix cache

// The chain of published blocks up to some block; 0 is that of no block. Never the same again for other content.
typedef uint64_t kv_chain;

struct kv_key {
    kv_chain before;
    int32_t token[KV_BLOCK_TOKENS], position[KV_BLOCK_TOKENS];
};

// The block of this content, or -1. It is the caller's only once held.
int32_t block_manager_lookup(const struct block_manager *pool, const struct kv_key *key, kv_chain *chain_p);
void block_manager_retain(struct block_manager *pool, int32_t block);
kv_chain block_manager_chain(const struct block_manager *pool,
                             int32_t block); // up to this block; 0: it is not published

// Says what the block, held by the caller alone or with others, is full of. When another block of this content is
// known already, the caller holds that one from now on and `block` is given back. Returns the one the caller holds.
int32_t block_manager_publish(struct block_manager *pool, const struct kv_key *key, int32_t block, kv_chain *chain_p);

static inline int kv_blocks_for(int entries)
{
    return (entries + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
}
