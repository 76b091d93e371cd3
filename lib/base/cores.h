// SPDX-License-Identifier: Apache-2.0
// Finds the cores that a process may run on, and divides them among processes.
#pragma once

#include <sched.h>
#include <stdbool.h>

// Returns the affinity mask of the calling thread, with at least one core.
void cores_usable(cpu_set_t *cores);
int cores_count(void); // number of cores in cores_usable()

// Divides the cores of `all` among `processes`: process `index` gets consecutive cores (mostly of one NUMA node), and
// every core goes to exactly one process. Returns false, with `mine` unchanged, if there are fewer cores than
// processes.
bool cores_share(const cpu_set_t *all, int index, int processes, cpu_set_t *mine);

// Returns core number `index` of `cores`, counted from 0.
int cores_at(const cpu_set_t *cores, int index);
