// SPDX-License-Identifier: Apache-2.0
// Timing in rounds, with a reading of the machine probe before the first round, between two rounds and after the last.
// Each round runs every contender at least once, so that changes of the machine's speed affect all contenders. A
// round's share of the limit uses the mean of the two readings around it. The result is the median over rounds and the
// spread.
//
//     probe | a b | probe | a b | probe | a b | probe
#pragma once

#include <stdbool.h>

#include "bench/probe.h"

enum { ROUNDS_MAX = 100, CONTENDERS_MAX = 4 };

struct contender {
    // Runs `burst` times, reports the mean time of one run, and sets gflop and gbytes. The first call warms up and is
    // not counted.
    enum status (*run)(struct contender *self, double *seconds_p);
    void *context;
    double gflop, gbytes; // least work of one run: 10^9 operations, 10^9 bytes read from memory; 0: unknown
    int burst;            // runs in one call; 0 is 1
};

struct measurement {
    double seconds; // time of one run, median over rounds
    double spread;  // (slowest - fastest round) / median
    // The time needed at the probe's rates (the longer of arithmetic and memory), over the time taken. Median over
    // rounds; NAN without a probe.
    double share;
    bool memory_bound; // memory takes longer than arithmetic
};

struct rounds {
    struct probe *probe; // NULL: no readings
    enum probe_type type;
    int rounds;
    int min_ms; // in each round a contender is repeated until it has run this long
};

struct rounds_readings {
    struct probe_reading mean;                // NAN without a probe
    struct probe_reading all[ROUNDS_MAX + 1]; // [n]
    int n;
};

// Fills measurements [n] and the readings. Returns the status of the first run that fails.
enum status rounds_run(const struct rounds *options, struct contender *contenders, int n,
                       struct measurement *measurements, struct rounds_readings *readings_p);
