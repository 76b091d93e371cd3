// SPDX-License-Identifier: Apache-2.0
// See prefix_index.h. A hash table over entries in a list by age, all in two arrays made at the start.
#include "router/sched/prefix_index.h"

#include <stdbool.h>
#include <stdlib.h>

#include "base/mem.h"

enum { NONE = -1 };

struct entry {
    uint64_t number;
    int32_t same_bucket, older, younger;
};

struct prefix_index {
    struct entry *entries; // [capacity]
    int32_t *buckets;      // [n_buckets] a power of two
    uint32_t n_buckets;
    int32_t capacity, n, oldest, youngest;
};

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

int prefix_chain_make(const int32_t *tokens, const struct token_range *kept, int n_kept, uint64_t **chain_p)
{
    int64_t count = 0;
    for (int k = 0; k < n_kept; k++)
        count += kept[k].last - kept[k].first + 1;
    int n = (int)(count / PREFIX_BLOCK < PREFIX_BLOCKS_MAX ? count / PREFIX_BLOCK : PREFIX_BLOCKS_MAX);
    uint64_t *chain = n ? mem_alloc_array((size_t)n, sizeof *chain) : NULL, state = 0;
    int entry = 0;
    for (int k = 0; k < n_kept && entry < n * PREFIX_BLOCK; k++) {
        for (int32_t at = kept[k].first; at <= kept[k].last && entry < n * PREFIX_BLOCK; at++) {
            state = mix(state + 0x9e3779b97f4a7c15u + ((uint64_t)(uint32_t)tokens[at] << 32 | (uint32_t)at));
            if (++entry % PREFIX_BLOCK == 0) chain[entry / PREFIX_BLOCK - 1] = state;
        }
    }
    *chain_p = chain;
    return n;
}

// A block's number stands for all before it, too: a search by halves finds where two chains part.
int prefix_chain_common(const uint64_t *a, int n_a, const uint64_t *b, int n_b)
{
    int same = 0, beyond = (n_a < n_b ? n_a : n_b) + 1;
    if (beyond == 1 || a[0] != b[0]) return 0; // most
    while (beyond - same > 1) {
        int middle = same + (beyond - same) / 2;
        if (a[middle - 1] == b[middle - 1]) {
            same = middle;
        } else {
            beyond = middle;
        }
    }
    return same;
}

struct prefix_index *prefix_index_create(int blocks)
{
    struct prefix_index *index = mem_alloc(sizeof *index);
    index->capacity = blocks < 1 ? 1 : blocks > PREFIX_BLOCKS_MAX ? PREFIX_BLOCKS_MAX : blocks;
    index->entries = mem_alloc_array((size_t)index->capacity, sizeof *index->entries);
    index->n_buckets = 1;
    while (index->n_buckets < (uint32_t)index->capacity)
        index->n_buckets *= 2;
    index->buckets = mem_alloc_array(index->n_buckets, sizeof *index->buckets);
    for (uint32_t b = 0; b < index->n_buckets; b++)
        index->buckets[b] = NONE;
    index->oldest = index->youngest = NONE;
    return index;
}

void prefix_index_free(struct prefix_index *index)
{
    if (!index) return;
    free(index->entries);
    free(index->buckets);
    free(index);
}

static int32_t *bucket_of(const struct prefix_index *index, uint64_t number)
{
    return &index->buckets[number & (index->n_buckets - 1)];
}

static int32_t find(const struct prefix_index *index, uint64_t number)
{
    int32_t i = *bucket_of(index, number);
    while (i != NONE && index->entries[i].number != number)
        i = index->entries[i].same_bucket;
    return i;
}

static void leave_list(struct prefix_index *index, int32_t i)
{
    struct entry *e = &index->entries[i];
    *(e->older == NONE ? &index->oldest : &index->entries[e->older].younger) = e->younger;
    *(e->younger == NONE ? &index->youngest : &index->entries[e->younger].older) = e->older;
}

static void become_youngest(struct prefix_index *index, int32_t i)
{
    struct entry *e = &index->entries[i];
    e->older = index->youngest;
    e->younger = NONE;
    *(e->older == NONE ? &index->oldest : &index->entries[e->older].younger) = i;
    index->youngest = i;
}

static void leave_table(struct prefix_index *index, int32_t i)
{
    int32_t *link = bucket_of(index, index->entries[i].number);
    while (*link != i)
        link = &index->entries[*link].same_bucket;
    *link = index->entries[i].same_bucket;
}

// The last block is the oldest of a chain, so what is known of a chain is always a run from its start: a search by
// halves finds its end.
int prefix_index_match(const struct prefix_index *index, const uint64_t *chain, int n)
{
    if (n == 0 || find(index, chain[0]) == NONE) return 0;
    int known = 1, beyond = n + 1;
    while (beyond - known > 1) {
        int middle = known + (beyond - known) / 2;
        if (find(index, chain[middle - 1]) == NONE) {
            beyond = middle;
        } else {
            known = middle;
        }
    }
    return known;
}

void prefix_index_add(struct prefix_index *index, const uint64_t *chain, int n)
{
    if (n > index->capacity) n = index->capacity;
    for (int at = n - 1; at >= 0; at--) {
        int32_t i = find(index, chain[at]);
        if (i != NONE) {
            leave_list(index, i);
        } else {
            if (index->n < index->capacity) {
                i = index->n++;
            } else {
                i = index->oldest;
                leave_list(index, i);
                leave_table(index, i);
            }
            int32_t *bucket = bucket_of(index, chain[at]);
            index->entries[i] = (struct entry){.number = chain[at], .same_bucket = *bucket};
            *bucket = i;
        }
        become_youngest(index, i);
    }
}
