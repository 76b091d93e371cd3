// SPDX-License-Identifier: Apache-2.0
// Peak resident memory of a process, as Linux counts it.
#pragma once

#include <sys/types.h>

// Returns 10^6 bytes, the peak since the process started, or 0 if it cannot be read.
double memory_peak_mb(pid_t pid);
