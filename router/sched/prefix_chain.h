// SPDX-License-Identifier: Apache-2.0
// Prefix chains: one 64-bit hash per full block of the rows of a pass, which covers all tokens and positions up to the
// end of the block. Prompts that start with the same tokens at the same positions have chains that start alike.
//
// The hashes are SipHash under a key of the process, so that nobody outside it can compute prompts that collide. A
// collision by chance (n prefixes: n^2 / 2^65) makes two prefixes look shared: the router then misjudges rows and KV
// blocks by a few. No answer changes, because nodes compare tokens. Chains are compared block by block from the start,
// so their order is total and all structures stay intact whatever the hashes are.
#pragma once

#include <stdint.h>

#include "lib/base/hash.h"
#include "lib/text/generation.h"

enum {
    PREFIX_BLOCK = 16,        // tokens; nodes share KV entries in blocks of this size
    PREFIX_BLOCKS_MAX = 65536 // blocks of a chain
};

// Makes the chain of the tokens in the kept ranges (a prompt kept whole is one range). Prompts with different salts
// have no block in common. *chain_p is NULL for less than a block; otherwise the caller frees it. Returns the number of
// blocks.
int prefix_chain_make(const struct hash_key *key, uint64_t salt, const int32_t *tokens, const struct token_range *kept,
                      int n_kept, uint64_t **chain_p);

// Returns the number of leading blocks that both chains have.
int prefix_chain_common(const uint64_t *a, int n_a, const uint64_t *b, int n_b);
