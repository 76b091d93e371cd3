// SPDX-License-Identifier: Apache-2.0
#include "lib/base/cores.h"

#include <stdio.h>
#include <stdlib.h>

const char *cores_topology = "/sys/devices/system/cpu";

void cores_usable(cpu_set_t *cores)
{
    CPU_ZERO(cores);
    // The call fails on machines with more cores than a cpu_set_t holds. Core 0 is used then.
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

// Place of a core in the machine. Linux counts each hardware thread as a core.
struct place {
    int package, core, number;
};

// Returns a number from the core's topology in sysfs, or 0 if the machine does not report it.
static int topology_read(int number, const char *what)
{
    char path[256];
    int value = 0;
    snprintf(path, sizeof path, "%s/cpu%d/topology/%s", cores_topology, number, what);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    if (fscanf(file, "%d", &value) != 1) value = 0;
    fclose(file);
    return value;
}

static int place_compare(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    if (x->package != y->package) return x->package < y->package ? -1 : 1;
    if (x->core != y->core) return x->core < y->core ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

bool cores_share(const cpu_set_t *all, int index, int processes, cpu_set_t *mine)
{
    struct place places[CPU_SETSIZE];
    const int n = CPU_COUNT(all);
    if (n < processes) return false;
    for (int i = 0; i < n; i++) {
        const int number = cores_at(all, i);
        places[i] =
            (struct place){topology_read(number, "physical_package_id"), topology_read(number, "core_id"), number};
    }
    qsort(places, (size_t)n, sizeof *places, place_compare);
    CPU_ZERO(mine);
    for (int i = n * index / processes; i < n * (index + 1) / processes; i++)
        CPU_SET(places[i].number, mine);
    return true;
}
