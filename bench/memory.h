// SPDX-License-Identifier: Apache-2.0
// Peak resident memory of processes of this machine, as the kernel counts it.
#pragma once

#include <sys/types.h>

// In units of 10^6 bytes, since the process started; 0 when it is not to be read.
double memory_peak_mb(pid_t pid);
