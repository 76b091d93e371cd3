// SPDX-License-Identifier: Apache-2.0
// Finds the fastest of a few ways to compute the same result on this device. An idle device runs at low clocks and
// takes about a tenth of a second of work to raise them, so the first comparison begins with 300 ms of work. The
// candidates then take turns in several rounds, and the fastest round of each candidate counts. So a disturbance or a
// change of clocks affects one round of all candidates, not one candidate.
#pragma once

#include <cuda_runtime_api.h>
#include <stdbool.h>

#include "lib/base/status.h"

struct timer {
    cudaEvent_t from, to;
    bool warm; // the device has done its 300 ms of work
};

struct candidates {
    int n, runs;                           // runs: number of runs of a candidate in one round
    bool (*run)(void *context, int which); // issues one run into the stream; returns false if the candidate cannot run
    void *context;
    cudaStream_t stream;
};

enum status timer_open(struct timer *t);
void timer_close(struct timer *t);
// Writes to ms [n] the milliseconds of one run of each candidate, or infinity if the candidate cannot run.
enum status timer_compare(struct timer *t, const struct candidates *c, float *ms);
