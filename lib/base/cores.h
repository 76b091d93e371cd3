// SPDX-License-Identifier: Apache-2.0
// The cores that a process may run on, and the division of cores among processes.
#pragma once

#include <sched.h>
#include <stdbool.h>

// The affinity mask of the calling thread, at least one core.
void cores_usable(cpu_set_t *cores);
int cores_count(void); // number of cores in cores_usable()

// Divides the cores of `all` among `processes`: every core goes to exactly one process. The first processes get cores
// of the first socket, as the first GPUs mostly belong to it, and threads of one core stay together; Linux numbers the
// second threads of all sockets last. False, with `mine` unchanged, when there are fewer cores than processes.
extern const char *cores_topology; // the folder that Linux describes cores in; tests change it
bool cores_share(const cpu_set_t *all, int index, int processes, cpu_set_t *mine);

// Core number `index` of `cores`, counted from 0.
int cores_at(const cpu_set_t *cores, int index);
