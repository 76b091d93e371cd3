// SPDX-License-Identifier: Apache-2.0
// Decides how much of a bounded queue one tenant may fill: a part in proportion to the free places (dynamic thresholds,
// Choudhury and Hahne 1998). With a share of 80 % a tenant alone fills 80 %. A second tenant then gets 80 % of the
// rest, and so on, so that greedy tenants leave room for the next one. A tenant's first request is exempt, because
// small queues need that.
#pragma once

#include <stdbool.h>
#include <stdint.h>

// Returns true if a tenant may add `more` to a queue of `whole`, in which `used` places are taken, `held` of them by
// this tenant. `percent` 0: no bound. Amounts up to 10^15.
static inline bool tenant_share_allows(int percent, int64_t held, int64_t more, int64_t whole, int64_t used)
{
    return held == 0 || percent == 0 || (held + more) * (100 - percent) <= percent * (whole - used - more);
}
