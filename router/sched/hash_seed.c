// SPDX-License-Identifier: Apache-2.0
#include <sys/random.h>

#include "router/sched/hash.h"

uint64_t hash_seed(void)
{
    uint64_t seed;
    return getrandom(&seed, sizeof seed, GRND_NONBLOCK) == (ssize_t)sizeof seed ? seed : (uintptr_t)&hash_seed;
}
