// SPDX-License-Identifier: Apache-2.0
// Reads files of the control groups of this process, versions 1 and 2 (cgroups(7)). Any thread may call.
#pragma once

#include <stdbool.h>

enum { CGROUP_PATH_BYTES = 4096 };

extern const char *cgroup_root; // put before paths in /proc and /sys; "" except in tests

// Writes the path of this process's cgroup, "/" if it is not known. The controller "" stands for version 2.
void cgroup_path(const char *controller, char path[CGROUP_PATH_BYTES]);

// Reads the first line of a file of a cgroup. `mount` is the folder of the controller in version 1, such as "/cpu", and
// "" in version 2. Returns false if there is no such file.
bool cgroup_read(const char *mount, const char *group, const char *file_name, char *line, int size);

// Returns the lowest limit of this process's cgroup and its ancestors, as far as they are visible, or 0. `read` returns
// the limit of one cgroup, 0 if it has none. A container sees its own cgroup as the root, and may read its path on the
// host, which does not exist there.
double cgroup_lowest(const char *controller, double (*read)(const char *group));
