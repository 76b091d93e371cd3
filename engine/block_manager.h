// SPDX-License-Identifier: Apache-2.0
// Allocates the blocks of the paged KV cache, counts their references and finds cached blocks. Works with block numbers
// only: the backend owns the memory. Only the scheduling thread calls these functions. A block has KV_BLOCK_TOKENS
// entries.
//
// One sequence allocates a block and several may reference it. Each reference is released once.
//
// Prefix cache: a full block can be published under a key. The key has the tokens of the block, their positions, the
// previous published block, and a salt. A KV entry depends only on its row and the earlier rows, so equal keys mean
// equal bits. A sequence with the same rows references the block instead of computing it. Positions are part of the key
// because K is stored after RoPE. A pruned prompt therefore shares blocks only with prompts that kept the same tokens
// at the same positions. Tokens and positions are compared whole; their hash only selects a bucket. A cache that
// trusted hashes would give one client another client's text after a collision. The salt separates tenants, so that
// cache hits do not show a tenant how the prompts of another tenant begin.
//
// A published block without references counts as free, and look-ups find it until its memory is needed. The least
// recently released block is evicted first. The last block of a sequence is evicted before its first block, so the
// remaining blocks always form a chain from the start of the sequence.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/ragged.h"

struct block_manager;

struct block_manager *block_manager_create(int n_blocks);
void block_manager_free(struct block_manager *manager); // asserts that no block is referenced

int block_manager_size(const struct block_manager *manager);
int block_manager_n_free(const struct block_manager *manager); // number of blocks without references

// Allocates `n` blocks, each with one reference. Returns false, with nothing allocated, if fewer blocks are free.
bool block_manager_allocate(struct block_manager *manager, int n, int32_t *blocks);
void block_manager_release(struct block_manager *manager, const int32_t *blocks,
                           int n); // asserts that they are referenced
int block_manager_refs(const struct block_manager *manager, int32_t block);

// ---- the prefix cache

// Identifies a published block together with all its preceding blocks. 0 means no block. A number is never reused for
// other content.
typedef uint64_t kv_chain;

struct kv_key {
    kv_chain before; // the previous published block; 0: this is the first block
    uint64_t salt;
    int32_t token[KV_BLOCK_TOKENS], position[KV_BLOCK_TOKENS];
};

// Returns the published block with this key, or -1. Call block_manager_retain() before using it.
int32_t block_manager_lookup(const struct block_manager *manager, const struct kv_key *key, kv_chain *chain_p);
void block_manager_retain(struct block_manager *manager, int32_t block); // adds a reference to a published block
kv_chain block_manager_chain(const struct block_manager *manager, int32_t block); // 0: `block` is not published

// Publishes the full block `block`, which the caller references. If another block is already published under this key,
// the caller's reference moves to that block. Returns the block that the caller references now.
int32_t block_manager_publish(struct block_manager *manager, const struct kv_key *key, int32_t block,
                              kv_chain *chain_p);

static inline int kv_blocks_for(int entries)
{
    return (entries + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
}
