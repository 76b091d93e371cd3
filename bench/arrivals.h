// SPDX-License-Identifier: Apache-2.0
// When the requests of an open-loop load arrive: fixed before the first is sent, so that no answer, however late, can
// delay a request.
#pragma once

#include <stdint.h>

enum arrivals { ARRIVALS_POISSON, ARRIVALS_CONSTANT };

// Microseconds after the start of each of `n` requests at a mean rate of `qps`; the first at 0. Ascending.
void arrivals_make(enum arrivals kind, double qps, uint64_t seed, int n, int64_t *at_us);
