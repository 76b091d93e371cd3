// SPDX-License-Identifier: Apache-2.0
// A hash table over entries in a list ordered by last use. Both are arrays of fixed size.
#include "router/sched/prefix_index.h"

#include <stdbool.h>
#include <stdlib.h>

#include "base/mem.h"

enum { NONE = -1 };

struct index_entry {
    uint64_t hash;
    int32_t same_bucket, older, younger;
};

struct prefix_index {
    struct index_entry *entries; // [capacity]
    int32_t *buckets;            // [n_buckets] a power of two
    uint32_t n_buckets;
    int32_t capacity, n, oldest, youngest;
};

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

static int32_t *entry_bucket(const struct prefix_index *index, uint64_t hash)
{
    return &index->buckets[hash & (index->n_buckets - 1)];
}

static int32_t entry_find(const struct prefix_index *index, uint64_t hash)
{
    int32_t i = *entry_bucket(index, hash);
    while (i != NONE && index->entries[i].hash != hash)
        i = index->entries[i].same_bucket;
    return i;
}

static void entry_unlink(struct prefix_index *index, int32_t i)
{
    struct index_entry *e = &index->entries[i];
    *(e->older == NONE ? &index->oldest : &index->entries[e->older].younger) = e->younger;
    *(e->younger == NONE ? &index->youngest : &index->entries[e->younger].older) = e->older;
}

static void entry_link_youngest(struct prefix_index *index, int32_t i)
{
    struct index_entry *e = &index->entries[i];
    e->older = index->youngest;
    e->younger = NONE;
    *(e->older == NONE ? &index->oldest : &index->entries[e->older].younger) = i;
    index->youngest = i;
}

static void entry_unhash(struct prefix_index *index, int32_t i)
{
    int32_t *link = entry_bucket(index, index->entries[i].hash);
    while (*link != i)
        link = &index->entries[*link].same_bucket;
    *link = index->entries[i].same_bucket;
}

// Of a chain the last block counts as used longest ago, so the index always holds a run of blocks from the start of a
// chain, and binary search finds its end.
int prefix_index_match(const struct prefix_index *index, const uint64_t *chain, int n)
{
    if (n == 0 || entry_find(index, chain[0]) == NONE) return 0;
    int known = 1, beyond = n + 1;
    while (beyond - known > 1) {
        int middle = known + (beyond - known) / 2;
        if (entry_find(index, chain[middle - 1]) == NONE) {
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
        int32_t i = entry_find(index, chain[at]);
        if (i != NONE) {
            entry_unlink(index, i);
        } else {
            if (index->n < index->capacity) {
                i = index->n++;
            } else {
                i = index->oldest;
                entry_unlink(index, i);
                entry_unhash(index, i);
            }
            int32_t *bucket = entry_bucket(index, chain[at]);
            index->entries[i] = (struct index_entry){.hash = chain[at], .same_bucket = *bucket};
            *bucket = i;
        }
        entry_link_youngest(index, i);
    }
}
