// SPDX-License-Identifier: Apache-2.0
// Virtual time. Replaces clock_now_us() and hash_key_random() of the product at link time: all code of this program
// reads the time of the simulated event, and hashes are the same in every run.
#pragma once

#include <stdint.h>

// Start of a run. It is not 0, since some code takes 0 for "never".
#define SIM_START_US INT64_C(1000000000)

void sim_clock_set(int64_t now_us);
