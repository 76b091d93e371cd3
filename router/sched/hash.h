// SPDX-License-Identifier: Apache-2.0
// Hashes of the router's tables.
#pragma once

#include <stdint.h>

static inline uint64_t hash_mix(uint64_t x) // the finaliser of splitmix64: consecutive numbers look random
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

#define HASH_STEP UINT64_C(0x9e3779b97f4a7c15) // added to the state before each hash_mix()

// Text from clients is hashed with a seed of the process, so that a client cannot aim many texts at one bucket.
// The seed has a file of its own so that forepack-sim can replace it by a constant at link time.
uint64_t hash_seed(void);
uint64_t hash_text(uint64_t seed, const char *text);
