// SPDX-License-Identifier: Apache-2.0
// Pseudo-random numbers for workloads, the same on every machine for the same seed: SplitMix64 (Steele, Lea, Flood:
// Fast splittable pseudorandom number generators, OOPSLA 2014).
#pragma once

#include <stdint.h>

struct random_source {
    uint64_t state;
};

static inline uint64_t random_next(struct random_source *r)
{
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

// Returns an independent stream for every (seed, number).
static inline struct random_source random_stream(uint64_t seed, uint64_t number)
{
    struct random_source r = {seed};
    r.state = random_next(&r) ^ (number * 0xd1342543de82ef95u);
    random_next(&r);
    return r;
}

static inline double random_unit(struct random_source *r) // [0, 1)
{
    return (double)(random_next(r) >> 11) * 0x1p-53;
}

static inline int random_below(struct random_source *r, int n) // 0 .. n-1
{
    return (int)(random_unit(r) * n);
}
