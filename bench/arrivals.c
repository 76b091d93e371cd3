// SPDX-License-Identifier: Apache-2.0
#include "bench/arrivals.h"

#include <math.h>

#include "lib/base/random.h"

void arrivals_make(enum arrivals kind, double qps, uint64_t seed, int n, int64_t *at_us)
{
    struct random_source random = random_stream(seed, 0);
    double at = 0;
    for (int i = 0; i < n; i++) {
        at_us[i] = llround(at * 1e6);
        // Gaps of a Poisson process are exponential; 1 - u is never 0.
        at += kind == ARRIVALS_CONSTANT ? 1 / qps : -log(1 - random_unit(&random)) / qps;
    }
}
