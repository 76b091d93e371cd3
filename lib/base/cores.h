// SPDX-License-Identifier: Apache-2.0
// Finds the cores that a process may run on, and divides them among processes.
#pragma once

#include <sched.h>
#include <stdbool.h>

// Returns the affinity mask of the calling thread, with at least one core.
void cores_usable(cpu_set_t *cores);
int cores_count(void); // number of cores in cores_usable()

// Divides the cores of `all` among `processes`: every core goes to exactly one process. The first processes get cores
// of the first socket, since the first GPUs mostly belong to it. Threads of one core stay together: Linux numbers the
// second threads of all sockets last. Returns false, with `mine` unchanged, if there are fewer cores than processes.
extern const char *cores_topology; // the folder in which Linux describes cores; tests change it
bool cores_share(const cpu_set_t *all, int index, int processes, cpu_set_t *mine);

// Returns core number `index` of `cores`, counted from 0.
int cores_at(const cpu_set_t *cores, int index);
