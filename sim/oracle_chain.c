// SPDX-License-Identifier: Apache-2.0
#include "sim/oracle_chain.h"

#include <string.h>

#include "sim/oracle_waiting.h"

enum { NUMBERS = 2 + 2 * PREFIX_BLOCK }; // the hash before the block, then its tokens with their positions

// Returns the number of full blocks of the rows of the ranges, up to the chain's limit.
static int blocks_of(const struct token_range *ranges, int n_ranges)
{
    int64_t rows = 0;
    for (int k = 0; k < n_ranges; k++)
        rows += ranges[k].last + 1 - ranges[k].first;
    return (int)(rows / PREFIX_BLOCK > PREFIX_BLOCKS_MAX ? PREFIX_BLOCKS_MAX : rows / PREFIX_BLOCK);
}

// Returns the hash of the block that begins with token `*at_p` of range `*range_p`, and moves both past the block.
static uint64_t block_hash(const struct core *c, const struct request *r, const struct token_range *ranges,
                           uint64_t before, int *range_p, int32_t *at_p)
{
    int32_t numbers[NUMBERS];
    memcpy(numbers, &before, sizeof before);
    for (int i = 2; i < NUMBERS; i += 2) {
        if (*at_p > ranges[*range_p].last) *at_p = ranges[++*range_p].first;
        numbers[i] = r->spec.tokens[*at_p];
        numbers[i + 1] = (*at_p)++;
    }
    return hash_bytes(&c->view.options.hash_key, numbers, sizeof numbers);
}

void oracle_chain(struct world *w, const struct core *c, const struct request *r, enum node_role role)
{
    // the prompt, or the turn that is scored
    const struct token_range whole = {0, request_score_prompt(r).n_tokens - 1};
    const struct token_range *ranges = role == NODE_WORKER ? r->kept : &whole;
    int n = blocks_of(ranges, role == NODE_WORKER ? r->n_kept_ranges : 1), range = 0;
    if (r->spec.sampling.prompt_logprobs >= 0) n = 0; // every row is computed
    HOLDS(r->sched.n_prefix == n);
    int32_t at = ranges[0].first;
    uint64_t hash = r->spec.prefix_salt;
    for (int block = 0; block < n && !w->failed; block++) {
        hash = block_hash(c, r, ranges, hash, &range, &at);
        HOLDS(r->sched.prefix[block] == hash);
    }
}
