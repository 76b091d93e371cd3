// SPDX-License-Identifier: Apache-2.0
// Sets of cores and the places of cores in the machine: sockets, NUMA nodes and hardware threads. Divides cores among
// processes and chooses cores for a pool of threads. Linux counts each hardware thread as a core.
#pragma once

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>

extern const char *cores_system; // the folder in which Linux describes cores and nodes; tests change it

// Sets `cores` to the affinity mask of the calling thread, which has at least one core.
void cores_usable(cpu_set_t *cores);

// Returns core number `index` of `cores`, counted from 0.
int cores_at(const cpu_set_t *cores, int index);

// Reads a list such as "0-3,8", the form of taskset and of Linux. A line feed may follow it. Returns false, with
// `cores` unchanged, if the text is not such a list or names a core of CPU_SETSIZE and more.
bool cores_parse(const char *list, cpu_set_t *cores);

// Writes such a list. A list that does not fit ends with ",...".
enum { CORES_TEXT = 96 };
void cores_format(const cpu_set_t *cores, char text[CORES_TEXT]);

// cores_share() sets `mine` to the share of the cores in `all` that process number `index` (from 0) gets. Every core
// goes to exactly one of the `processes`. The first processes get cores of the first socket, because the first GPUs are
// usually attached to it. The hardware threads of one core go to one process, although Linux numbers all second threads
// last. It returns false, with `mine` unchanged, if there are fewer cores than processes.
bool cores_share(const cpu_set_t *all, int index, int processes, cpu_set_t *mine);

// Threads of other pools on a core.
struct core_load {
    int alike;  // threads of the same program, which compute at the same times
    int others; // threads of other programs
    int first;  // first threads of pools, which also do the serial work of their pools; counted in `alike` or `others`
};

struct cores_choice {
    bool one_thread_per_core; // sibling hardware threads were left out
    bool one_node;            // cores of other NUMA nodes were left out
    bool avoided;             // the load of other pools changed the choice
    bool shared;              // at least one chosen core has a thread of another pool
};

// Chooses n different cores of `usable`, which has at least n, for a pool of n threads. load [CPU_SETSIZE]. Prefers, in
// this order: cores without other pools; cores with fewer threads of the same program; different physical cores; one
// NUMA node. The first chosen core has the fewest first threads of other pools.
struct cores_choice cores_choose(const cpu_set_t *usable, const struct core_load *load, int n, int *chosen);
