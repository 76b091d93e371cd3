// SPDX-License-Identifier: Apache-2.0
#include "lib/base/cores.h"

void cores_usable(cpu_set_t *cores)
{
    CPU_ZERO(cores);
    // The call fails on machines with more cores than a cpu_set_t holds.
    if (sched_getaffinity(0, sizeof *cores, cores) != 0 || CPU_COUNT(cores) < 1) CPU_SET(0, cores);
}

int cores_count(void)
{
    cpu_set_t cores;
    cores_usable(&cores);
    return CPU_COUNT(&cores);
}

int cores_at(const cpu_set_t *cores, int index)
{
    int core = 0;
    for (; core < CPU_SETSIZE - 1; core++)
        if (CPU_ISSET(core, cores) && index-- == 0) break;
    return core;
}

bool cores_share(const cpu_set_t *all, int index, int processes, cpu_set_t *mine)
{
    int n = CPU_COUNT(all);
    if (n < processes) return false;
    CPU_ZERO(mine);
    for (int i = n * index / processes; i < n * (index + 1) / processes; i++)
        CPU_SET(cores_at(all, i), mine);
    return true;
}
