// SPDX-License-Identifier: Apache-2.0
// Finds the cores that a process may run on, and divides them among processes.
#pragma once

#include <sched.h>
#include <stdbool.h>

// Sets `cores` to the affinity mask of the calling thread, which has at least one core.
void cores_usable(cpu_set_t *cores);
int cores_count(void); // number of cores in cores_usable()

// cores_share() sets `mine` to the share of the cores in `all` that process number `index` (from 0) gets. Every core
// goes to exactly one of the `processes`. The first processes get cores of the first socket, because the first GPUs are
// usually attached to it. The hardware threads of one core go to one process, although Linux numbers all second threads
// last. It returns false, with `mine` unchanged, if there are fewer cores than processes.
extern const char *cores_topology; // the folder in which Linux describes cores; tests change it
bool cores_share(const cpu_set_t *all, int index, int processes, cpu_set_t *mine);

// Returns core number `index` of `cores`, counted from 0.
int cores_at(const cpu_set_t *cores, int index);
