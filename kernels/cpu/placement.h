// SPDX-License-Identifier: Apache-2.0
// The cores of a compute pool's threads: each thread has a core of its own, as far as affinity mask, quota, topology
// and the claims of other pools allow.
#pragma once

#include <stdbool.h>

#include "lib/base/core_claims.h"

struct placement {
    int *core;                  // [threads], the caller first; NULL: more threads than cores, the threads are not bound
    bool spins;                 // threads that wait may spin: no quota limits their time
    struct core_claims *claims; // of the cores
    char cores[CORES_TEXT];     // list of the cores, such as "0-3"; of all usable cores if the threads are not bound
    char decided_by[128];       // such as "cpuset, quota 1.5, other pools"; "all cores" if nothing limits the pool
};

// Chooses and claims cores for a pool, and logs them. Release the placement in the end.
void placement_make(int threads, struct placement *placement);
void placement_release(struct placement *placement);
