// SPDX-License-Identifier: Apache-2.0
// Decides how much of a bounded queue one tenant may fill: a part in proportion to the free places (dynamic thresholds,
// Choudhury and Hahne 1998). With a share of 80 %, the first tenant fills at most 80 % of the queue. The second tenant
// fills at most 80 % of the rest, and so on. So greedy tenants leave room for the next tenant. A tenant with no waiting
// request may always add one request, because a share of a small queue may be less than one place.
#pragma once

#include <stdbool.h>
#include <stdint.h>

// Returns true if a tenant may add `more` places to a queue of `whole` places. `used` places are taken, `held` of them
// by this tenant. With `percent` 0 there is no bound. Amounts may be up to 10^15: the products fit 64 bits.
static inline bool tenant_share_allows(int percent, int64_t held, int64_t more, int64_t whole, int64_t used)
{
    return held == 0 || percent == 0 || (held + more) * (100 - percent) <= percent * (whole - used - more);
}
