// SPDX-License-Identifier: Apache-2.0
// A prefix chain identifies the rows that a node computes for a request. It has one 64-bit hash per full block of
// PREFIX_BLOCK rows. Each hash covers the tokens and positions of all rows up to the end of its block. So two prompts
// that start with the same tokens at the same positions have chains that start alike.
//
// The hashes are SipHash under a key of the process, so nobody outside the process can compute prompts that collide.
// Among n prefixes, the probability that any two collide by chance is n^2 / 2^65; the prefix index stores 32 bits of
// each hash, so it confuses prefixes more often. The router then counts rows and KV blocks as shared that are not. No
// answer changes, because nodes compare tokens. prefix_groups.c sorts chains by their hashes alone, so a collision
// cannot make its order inconsistent.
#pragma once

#include <stdint.h>

#include "lib/base/hash.h"
#include "lib/text/generation.h"

enum {
    PREFIX_BLOCK = 16,        // tokens; nodes share KV entries in blocks of this size
    PREFIX_BLOCKS_MAX = 65536 // a chain leaves out later rows
};

// Makes the chain of the tokens in the kept ranges (a prompt kept whole is one range). Prompts with different salts
// have no block in common. Returns the number of blocks. *chain_p is NULL if there is no full block. Otherwise the
// caller frees *chain_p.
int prefix_chain_make(const struct hash_key *key, uint64_t salt, const int32_t *tokens, const struct token_range *kept,
                      int n_kept, uint64_t **chain_p);

// Returns the number of leading blocks that the two chains have in common.
int prefix_chain_common(const uint64_t *a, int n_a, const uint64_t *b, int n_b);
