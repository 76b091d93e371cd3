// SPDX-License-Identifier: Apache-2.0
// The cores that a process may run on, and how several processes divide them.
#pragma once

#include <sched.h>
#include <stdbool.h>

// The affinity mask of the calling thread, at least one core.
void cores_usable(cpu_set_t *cores);
int cores_count(void); // of cores_usable

// The share of one of `sharers` that may all use `all`: consecutive cores (so mostly of one NUMA node), every core in
// exactly one share. False, and nothing set, when there are fewer cores than sharers.
bool cores_share(const cpu_set_t *all, int index, int sharers, cpu_set_t *mine);

// The core that is number `index` of `cores`, counted from 0.
int cores_at(const cpu_set_t *cores, int index);
