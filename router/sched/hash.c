// SPDX-License-Identifier: Apache-2.0
#include "router/sched/hash.h"

uint64_t hash_text(uint64_t seed, const char *text)
{
    uint64_t hash = seed;
    for (; *text; text++)
        hash = hash_mix(hash + HASH_STEP + (unsigned char)*text);
    return hash;
}
