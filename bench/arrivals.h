// SPDX-License-Identifier: Apache-2.0
// Arrival times of an open-loop load. They are fixed before the first request is sent, so a slow answer cannot delay a
// request.
#pragma once

#include <stdint.h>

enum arrivals { ARRIVALS_POISSON, ARRIVALS_CONSTANT };

// Fills at_us [n] with ascending arrival times in microseconds after the start, at a mean rate of `qps`. The first time
// is 0.
void arrivals_make(enum arrivals kind, double qps, uint64_t seed, int n, int64_t *at_us);
