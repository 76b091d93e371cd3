// SPDX-License-Identifier: Apache-2.0
#include "sim/cached.h"

#include <stdlib.h>

#include "engine/block_manager.h"
#include "lib/base/mem.h"
#include "lib/text/generation.h"
#include "sim/answers.h"

void prefix_set_clear(struct prefix_set *set)
{
    free(set->slots);
    *set = (struct prefix_set){0};
}

static uint64_t *slot_of(const struct prefix_set *set, uint64_t block)
{
    uint64_t mask = (uint64_t)set->n_slots - 1, at = block & mask;
    while (set->slots[at] && set->slots[at] != block)
        at = (at + 1) & mask;
    return &set->slots[at];
}

static void set_grow(struct prefix_set *set)
{
    struct prefix_set bigger = {.n_slots = set->n_slots ? 2 * set->n_slots : 64};
    bigger.slots = mem_alloc_array((size_t)bigger.n_slots, sizeof *bigger.slots);
    for (int i = 0; i < set->n_slots; i++)
        if (set->slots[i]) *slot_of(&bigger, set->slots[i]) = set->slots[i];
    free(set->slots);
    set->slots = bigger.slots;
    set->n_slots = bigger.n_slots;
}

void prefix_set_add(struct prefix_set *set, const uint64_t *blocks, int n)
{
    for (int i = 0; i < n; i++) {
        if (2 * set->n >= set->n_slots) set_grow(set);
        uint64_t *slot = slot_of(set, blocks[i]);
        set->n += *slot == 0;
        *slot = blocks[i];
    }
}

int prefix_set_match(const struct prefix_set *set, const uint64_t *blocks, int n)
{
    int match = 0;
    while (set->n_slots && match < n && *slot_of(set, blocks[match]))
        match++;
    return match;
}

int prefix_contents(uint64_t salt, const int32_t *tokens, const struct token_range *ranges, int n_ranges,
                    uint64_t **blocks_p)
{
    int n = 0, entries = 0;
    for (int k = 0; k < n_ranges; k++)
        n += ranges[k].last - ranges[k].first + 1;
    uint64_t content = ANSWER_START ^ salt;
    *blocks_p = mem_alloc_array((size_t)n / KV_BLOCK_TOKENS, sizeof **blocks_p);
    for (int k = 0; k < n_ranges; k++) {
        for (int32_t i = ranges[k].first; i <= ranges[k].last; i++) {
            content = answer_entry(content, tokens[i], i);
            if (++entries % KV_BLOCK_TOKENS == 0) (*blocks_p)[entries / KV_BLOCK_TOKENS - 1] = content | 1;
        }
    }
    return n / KV_BLOCK_TOKENS;
}
