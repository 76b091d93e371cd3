// SPDX-License-Identifier: Apache-2.0
#include "router/core/recent_bins.h"

#include <string.h>

void recent_bins_add(struct recent_bins *recent, const struct core_node *node, uint64_t bin, int64_t rows,
                     struct request *const *requests, int n, int64_t now_us)
{
    struct recent_bin *b = &recent->bins[recent->n++ % RECENT_BINS];
    b->id = bin;
    b->sent_us = now_us;
    memcpy(b->node_id, node->hello.node_id, sizeof b->node_id);
    b->token_budget = node->hello.token_budget;
    b->rows = rows;
    b->n = n;
    for (int i = 0; i < n && i < RECENT_BIN_PROMPTS; i++) {
        const struct request *r = requests[i];
        b->prompts[i] = (struct recent_prompt){r->spec.n_tokens, r->usage.kept_tokens, r->account.rows};
    }
}

const struct recent_bin *recent_bins_get(const struct recent_bins *recent, int i)
{
    if (i >= RECENT_BINS || (uint64_t)i >= recent->n) return NULL;
    return &recent->bins[(recent->n - 1 - (uint64_t)i) % RECENT_BINS];
}
