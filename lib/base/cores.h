// SPDX-License-Identifier: Apache-2.0
// The cores that a process may run on, and the division of cores among processes.
#pragma once

#include <sched.h>
#include <stdbool.h>

// The affinity mask of the calling thread, at least one core.
void cores_usable(cpu_set_t *cores);
int cores_count(void); // number of cores in cores_usable()

// Divides the cores of `all` among `processes`: process `index` gets consecutive cores (mostly of one NUMA node), and
// every core goes to exactly one process. False, with `mine` unchanged, when there are fewer cores than processes.
bool cores_share(const cpu_set_t *all, int index, int processes, cpu_set_t *mine);

// Core number `index` of `cores`, counted from 0.
int cores_at(const cpu_set_t *cores, int index);
