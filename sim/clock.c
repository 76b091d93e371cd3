// SPDX-License-Identifier: Apache-2.0
#include "sim/clock.h"

#include "lib/base/clock.h"
#include "lib/base/hash.h"

static int64_t virtual_us = SIM_START_US;

void sim_clock_set(int64_t now_us)
{
    virtual_us = now_us;
}

int64_t clock_now_us(void)
{
    return virtual_us;
}

struct hash_key hash_key_random(void)
{
    return (struct hash_key){UINT64_C(0x5eed), UINT64_C(0xfeed)};
}
