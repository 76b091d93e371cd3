// SPDX-License-Identifier: Apache-2.0
// The limits on the CPU time of this process: the affinity mask, which the cpuset of the cgroup and --cpus lower, and
// the quota of the cgroup (versions 1 and 2).
#pragma once

#include "lib/base/status.h"

// Restricts the calling thread, and every thread that it starts afterwards, to a list of cores (the option --cpus).
// Returns STATUS_INVALID if the text is not a list, or if it names a core that the process may not use.
enum status cpu_limits_restrict(const char *list);

// Returns the seconds of CPU time per second that the cgroups of this process allow, such as 1.5. Returns 0 if there is
// no quota.
double cpu_limits_quota(void);

// Returns how many threads of this process can compute at the same time if `mask_processes` processes share the
// affinity mask, and `quota_processes` processes share the quota: its part of the cores, or its part of the quota if
// that is less. At least 1.
int cpu_limits_threads(int mask_processes, int quota_processes);

// Writes what limits the cores and the time: "--cpus", "cpuset" or "affinity mask", and "quota 1.5". The text is empty
// if the process may use the whole machine.
enum { CPU_LIMITS_TEXT = 64 };
void cpu_limits_describe(char text[CPU_LIMITS_TEXT]);
