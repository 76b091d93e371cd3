// SPDX-License-Identifier: Apache-2.0
#include "lib/base/memory_limit.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "lib/base/cgroup.h"

// The text is "max" in version 2 if there is no limit; version 1 has a number above all memory.
static double limit_read(const char *mount, const char *group, const char *file)
{
    char line[64];
    return cgroup_read(mount, group, file, line, sizeof line) ? strtod(line, NULL) : 0;
}

static double limit_read_v2(const char *group)
{
    return limit_read("", group, "memory.max");
}

static double limit_read_v1(const char *group)
{
    return limit_read("/memory", group, "memory.limit_in_bytes");
}

size_t memory_limit_bytes(void)
{
    const double machine = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    const double v2 = cgroup_lowest("", limit_read_v2), v1 = cgroup_lowest("memory", limit_read_v1);
    const double limit = v2 <= 0 || (v1 > 0 && v1 < v2) ? v1 : v2;
    return limit >= 1 && limit < machine ? (size_t)limit : 0;
}

size_t memory_used_bytes(void)
{
    char line[256];
    size_t kib = 0, sum = 0;
    FILE *file = fopen("/proc/self/status", "r");
    if (!file) return 0;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "RssAnon: %zu", &kib) == 1 || sscanf(line, "RssShmem: %zu", &kib) == 1) sum += kib;
    fclose(file);
    return sum << 10;
}
