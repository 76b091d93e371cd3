// SPDX-License-Identifier: Apache-2.0
// Peak resident memory of a process, as Linux counts it.
#pragma once

#include <sys/types.h>

// Returns the peak since the process started, in units of 10^6 bytes, or 0 if it cannot be read.
double memory_peak_mb(pid_t pid);
