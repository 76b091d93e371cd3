// SPDX-License-Identifier: Apache-2.0
// Token strings with their ids: a hash table with open addressing. Most tokens are so short that their entry holds all
// their bytes, so that finding one reads one cache line. Threads may search it at the same time.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "lib/base/hash.h"

struct vocabulary_entry {
    uint64_t head; // short token: its first 8 bytes; long token: its hash
    uint32_t tail; // short token: its last bytes and its length; long token: all ones
    int32_t id;    // -1: no entry
};

struct vocabulary {
    const char **token;               // [n_ids], NULL for an unused id; borrowed
    uint32_t *length;                 // [n_ids] bytes
    int n_ids;                        // largest id + 1
    struct vocabulary_entry *entries; // [mask + 1]; owned, like the arrays above
    uint32_t mask;
    struct hash_key key;
};

void vocabulary_init(struct vocabulary *vocabulary, int n_ids);
void vocabulary_fini(struct vocabulary *vocabulary);
// Adds a token. `token` [length] must outlive the vocabulary. Each id has at most one string, and each string one id.
void vocabulary_add(struct vocabulary *vocabulary, int32_t id, const char *token, size_t length);
int32_t vocabulary_find(const struct vocabulary *vocabulary, const char *token, size_t length); // -1 if there is none

// Returns the mask of a hash table of `n` entries that is at most two thirds full.
static inline uint32_t table_mask(size_t n)
{
    uint32_t size = 16;
    while ((uint64_t)size * 2 < (uint64_t)n * 3)
        size *= 2;
    return size - 1;
}

// Hashes with a random key, so that no file can have tokens or merges that all collide. The hash of lib/base/hash.h is
// too slow here: each word and each symbol needs a lookup.
static inline uint64_t table_hash(const struct hash_key *key, uint64_t x)
{
    __extension__ unsigned __int128 product = (unsigned __int128)(x ^ key->k0) * (key->k1 | 1);
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}
