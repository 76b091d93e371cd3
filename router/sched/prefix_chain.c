// SPDX-License-Identifier: Apache-2.0
#include "router/sched/prefix_chain.h"

#include "lib/base/mem.h"

// The input of a block's hash: the hash of the previous block, which covers all earlier blocks, and the block's tokens
// with their positions. The first block has the salt as its previous hash.
struct chain_link {
    uint64_t before;
    struct {
        int32_t token, position;
    } row[PREFIX_BLOCK];
};

int prefix_chain_make(const struct hash_key *key, uint64_t salt, const int32_t *tokens, const struct token_range *kept,
                      int n_kept, uint64_t **chain_p)
{
    int64_t count = 0;
    for (int k = 0; k < n_kept; k++)
        count += kept[k].last - kept[k].first + 1;
    int n = (int)(count / PREFIX_BLOCK < PREFIX_BLOCKS_MAX ? count / PREFIX_BLOCK : PREFIX_BLOCKS_MAX), row = 0;
    uint64_t *chain = n ? mem_alloc_array((size_t)n, sizeof *chain) : NULL;
    struct chain_link link = {.before = salt};
    for (int k = 0; k < n_kept && row < n * PREFIX_BLOCK; k++) {
        for (int32_t at = kept[k].first; at <= kept[k].last && row < n * PREFIX_BLOCK; at++) {
            link.row[row % PREFIX_BLOCK].token = tokens[at];
            link.row[row % PREFIX_BLOCK].position = at;
            if (++row % PREFIX_BLOCK == 0)
                chain[row / PREFIX_BLOCK - 1] = link.before = hash_bytes(key, &link, sizeof link);
        }
    }
    *chain_p = chain;
    return n;
}

int prefix_chain_common(const uint64_t *a, int n_a, const uint64_t *b, int n_b)
{
    int common = 0, most = n_a < n_b ? n_a : n_b;
    while (common < most && a[common] == b[common])
        common++;
    return common;
}
