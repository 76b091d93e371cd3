// SPDX-License-Identifier: Apache-2.0
#include "lib/base/cgroup.h"

#include <stdio.h>
#include <string.h>

const char *cgroup_root = "";

// Returns the path in a line "number:controllers:path" of /proc/self/cgroup if the line has the controller, or NULL.
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

void cgroup_path(const char *controller, char path[CGROUP_PATH_BYTES])
{
    char name[CGROUP_PATH_BYTES], line[CGROUP_PATH_BYTES];
    snprintf(path, CGROUP_PATH_BYTES, "/");
    snprintf(name, sizeof name, "%s/proc/self/cgroup", cgroup_root);
    FILE *file = fopen(name, "r");
    if (!file) return;
    while (fgets(line, sizeof line, file)) {
        const char *found = line_path(line, controller);
        if (found) snprintf(path, CGROUP_PATH_BYTES, "%s", found);
    }
    fclose(file);
}

bool cgroup_read(const char *mount, const char *group, const char *file_name, char *line, int size)
{
    char path[2 * CGROUP_PATH_BYTES];
    snprintf(path, sizeof path, "%s/sys/fs/cgroup%s%s/%s", cgroup_root, mount, group, file_name);
    FILE *file = fopen(path, "r");
    if (!file) return false;
    const bool read = fgets(line, size, file) != NULL;
    fclose(file);
    return read;
}

double cgroup_lowest(const char *controller, double (*read)(const char *group))
{
    char group[CGROUP_PATH_BYTES];
    double lowest = 0;
    cgroup_path(controller, group);
    for (char *end = group + strlen(group); end; end = strrchr(group, '/')) {
        *end = 0;
        const double limit = read(group);
        if (limit > 0 && (lowest <= 0 || limit < lowest)) lowest = limit;
    }
    return lowest;
}
