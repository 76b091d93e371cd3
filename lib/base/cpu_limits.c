// SPDX-License-Identifier: Apache-2.0
#include "lib/base/cpu_limits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/cgroup.h"
#include "lib/base/cores.h"

static bool restricted; // by cpu_limits_restrict

enum status cpu_limits_restrict(const char *list)
{
    cpu_set_t usable, wanted, both;
    char text[CORES_TEXT];
    if (!cores_parse(list, &wanted))
        return status_fail(STATUS_INVALID, "--cpus %s: must be a list of cores such as 0-3,8", list);
    cores_usable(&usable);
    CPU_AND(&both, &usable, &wanted);
    CPU_XOR(&both, &both, &wanted);
    cores_format(&usable, text);
    if (CPU_COUNT(&both))
        return status_fail(STATUS_INVALID, "--cpus %s: core %d is not among the cores that this process may use: %s",
                           list, cores_at(&both, 0), text);
    if (sched_setaffinity(0, sizeof wanted, &wanted) != 0)
        return status_fail(STATUS_INVALID, "--cpus %s: the system refuses these cores", list);
    restricted = true;
    return STATUS_OK;
}

// ---- quota ----------------------------------------------------------------------------------------------------------

static double quota_of(const char *quota, const char *period)
{
    const double time_us = strtod(quota, NULL), period_us = strtod(period, NULL);
    return time_us >= 1 && period_us >= 1 && time_us / period_us < CPU_SETSIZE ? time_us / period_us : 0;
}

// Version 2: "max 100000" or "150000 100000".
static double quota_read(const char *group)
{
    char line[128];
    if (!cgroup_read("", group, "cpu.max", line, sizeof line)) return 0;
    const char *period = strchr(line, ' ');
    return period ? quota_of(line, period) : 0;
}

// Version 1: the quota is -1 if there is none.
static double quota_read_v1(const char *group)
{
    char quota[128], period[128];
    if (!cgroup_read("/cpu", group, "cpu.cfs_quota_us", quota, sizeof quota) ||
        !cgroup_read("/cpu", group, "cpu.cfs_period_us", period, sizeof period))
        return 0;
    return quota_of(quota, period);
}

static double lower(double a, double b)
{
    return a <= 0 || (b > 0 && b < a) ? b : a;
}

double cpu_limits_quota(void)
{
    return lower(cgroup_lowest("", quota_read), cgroup_lowest("cpu", quota_read_v1));
}

int cpu_limits_threads(int mask_processes, int quota_processes)
{
    cpu_set_t usable;
    cores_usable(&usable);
    const double quota = cpu_limits_quota() / quota_processes;
    int threads = CPU_COUNT(&usable) / mask_processes;
    if (quota > 0 && quota < threads) threads = (int)quota;
    return threads > 1 ? threads : 1;
}

// ---- description ----------------------------------------------------------------------------------------------------

// Reads a list of cores of this process's cgroup or of the machine.
static bool list_read(const char *mount, const char *controller, const char *file_name, cpu_set_t *cores)
{
    char group[CGROUP_PATH_BYTES], list[CGROUP_PATH_BYTES];
    cgroup_path(controller, group);
    if (cgroup_read(mount, group, file_name, list, sizeof list)) return cores_parse(list, cores);
    return cgroup_read(mount, "", file_name, list, sizeof list) && cores_parse(list, cores);
}

static bool online_read(cpu_set_t *cores)
{
    char path[256], list[CGROUP_PATH_BYTES];
    snprintf(path, sizeof path, "%s/cpu/online", cores_system);
    FILE *file = fopen(path, "r");
    if (!file) return false;
    const bool read = fgets(list, sizeof list, file) && cores_parse(list, cores);
    fclose(file);
    return read;
}

// Returns the name of the limit that leaves out some of the machine's cores, or NULL.
static const char *mask_limit(void)
{
    cpu_set_t usable, online, set;
    if (restricted) return "--cpus";
    cores_usable(&usable);
    if (!online_read(&online) || CPU_COUNT(&usable) >= CPU_COUNT(&online)) return NULL;
    const bool known = list_read("", "", "cpuset.cpus.effective", &set) ||
                       list_read("/cpuset", "cpuset", "cpuset.effective_cpus", &set);
    return known && CPU_EQUAL(&set, &usable) ? "cpuset" : "affinity mask";
}

void cpu_limits_describe(char text[CPU_LIMITS_TEXT])
{
    const char *mask = mask_limit();
    const double quota = cpu_limits_quota();
    snprintf(text, CPU_LIMITS_TEXT, "%s", mask ? mask : "");
    if (quota <= 0) return;
    const size_t used = strlen(text);
    snprintf(text + used, CPU_LIMITS_TEXT - used, "%squota %.4g", used ? ", " : "", quota);
}
