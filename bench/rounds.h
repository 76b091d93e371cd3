// SPDX-License-Identifier: Apache-2.0
// How everything here is timed: in rounds, with a reading of the probe before the first, between any two and after the
// last. A round runs every contender once or more, so that what is compared shares the machine's moods; a round's
// share is that of the mean of the readings around it. The middle round is reported, and how far apart the extremes
// are.
//
//     probe | a b | probe | a b | probe | a b | probe
#pragma once

#include <stdbool.h>

#include "bench/probe.h"

enum { ROUNDS_MAX = 100, CONTENDERS_MAX = 4 };

struct contender {
    // One run, which times itself and says below what it had to do. The first is not counted.
    enum status (*run)(struct contender *self, double *seconds_p);
    void *context;
    double gflop, gbytes; // of one run at least: 10^9 operations, 10^9 bytes read from memory. 0: not known
};

struct measurement {
    double seconds; // of one run, median over rounds
    double spread;  // (slowest - fastest round) / median
    // The time that the probe's rates allow (arithmetic or memory, whichever takes longer) over the time taken; NAN
    // without a probe. Median over rounds.
    double share;
    bool memory_bound; // memory is what takes longer
};

struct rounds {
    struct probe *probe; // NULL: none
    enum probe_type type;
    int rounds;
    int min_ms; // a contender is run again within a round until it took this long
};

struct rounds_readings {
    struct probe_reading mean;                // of all, NAN without a probe
    struct probe_reading all[ROUNDS_MAX + 1]; // [n]
    int n;
};

enum status rounds_run(const struct rounds *options, struct contender *contenders, int n,
                       struct measurement *measurements, struct rounds_readings *readings_p);
