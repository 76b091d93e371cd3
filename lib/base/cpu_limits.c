// SPDX-License-Identifier: Apache-2.0
#include "lib/base/cpu_limits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/cores.h"

enum { PATH_BYTES = 4096 };

const char *cpu_limits_root = "";
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

// ---- cgroups --------------------------------------------------------------------------------------------------------

// Returns the path in a line "number:controllers:path" of /proc/self/cgroup if the line has the controller, or NULL.
// The controller "" stands for version 2.
static char *line_path(char *line, const char *controller)
{
    char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;
    if (!path) return NULL;
    *path++ = 0;
    path[strcspn(path, "\n")] = 0;
    if (*path != '/' || strstr(path, "/..")) return NULL; // a cgroup outside of this namespace
    char *rest = names + 1, *name;
    while ((name = strsep(&rest, ",")))
        if (strcmp(name, controller) == 0) return path;
    return NULL;
}

// Writes the path of this process's cgroup. A path that is not known is "/".
static void group_path(const char *controller, char path[PATH_BYTES])
{
    char name[PATH_BYTES], line[PATH_BYTES];
    snprintf(path, PATH_BYTES, "/");
    snprintf(name, sizeof name, "%s/proc/self/cgroup", cpu_limits_root);
    FILE *file = fopen(name, "r");
    if (!file) return;
    while (fgets(line, sizeof line, file)) {
        const char *found = line_path(line, controller);
        if (found) snprintf(path, PATH_BYTES, "%s", found);
    }
    fclose(file);
}

// Reads the first line of a file of a cgroup. Returns false if there is no such file.
static bool group_read(const char *mount, const char *group, const char *file_name, char *line, int size)
{
    char path[2 * PATH_BYTES];
    snprintf(path, sizeof path, "%s/sys/fs/cgroup%s%s/%s", cpu_limits_root, mount, group, file_name);
    FILE *file = fopen(path, "r");
    if (!file) return false;
    const bool read = fgets(line, size, file) != NULL;
    fclose(file);
    return read;
}

static double quota_of(const char *quota, const char *period)
{
    const double time_us = strtod(quota, NULL), period_us = strtod(period, NULL);
    return time_us >= 1 && period_us >= 1 && time_us / period_us < CPU_SETSIZE ? time_us / period_us : 0;
}

// Version 2: "max 100000" or "150000 100000".
static double quota_read(const char *group)
{
    char line[128];
    if (!group_read("", group, "cpu.max", line, sizeof line)) return 0;
    const char *period = strchr(line, ' ');
    return period ? quota_of(line, period) : 0;
}

// Version 1: the quota is -1 if there is none.
static double quota_read_v1(const char *group)
{
    char quota[128], period[128];
    if (!group_read("/cpu", group, "cpu.cfs_quota_us", quota, sizeof quota) ||
        !group_read("/cpu", group, "cpu.cfs_period_us", period, sizeof period))
        return 0;
    return quota_of(quota, period);
}

// Returns the lowest quota of a cgroup and its ancestors, as far as they are visible. A container sees its own cgroup
// as the root, and may read its path on the host, which does not exist there.
static double quota_lowest(const char *controller, double (*read)(const char *group))
{
    char group[PATH_BYTES];
    double lowest = 0;
    group_path(controller, group);
    for (char *end = group + strlen(group); end; end = strrchr(group, '/')) {
        *end = 0;
        const double quota = read(group);
        if (quota > 0 && (lowest <= 0 || quota < lowest)) lowest = quota;
    }
    return lowest;
}

double cpu_limits_quota(void)
{
    const double quota = quota_lowest("", quota_read), quota_v1 = quota_lowest("cpu", quota_read_v1);
    if (quota <= 0) return quota_v1;
    return quota_v1 > 0 && quota_v1 < quota ? quota_v1 : quota;
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
    char group[PATH_BYTES], list[PATH_BYTES];
    group_path(controller, group);
    if (group_read(mount, group, file_name, list, sizeof list)) return cores_parse(list, cores);
    return group_read(mount, "", file_name, list, sizeof list) && cores_parse(list, cores);
}

static bool online_read(cpu_set_t *cores)
{
    char path[256], list[PATH_BYTES];
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
