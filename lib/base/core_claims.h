// SPDX-License-Identifier: Apache-2.0
// Claims of cores keep the compute pools of a host on different cores: nodes of one cluster, systemd units, nodes of
// several users.
//
// A pool claims its cores by binding abstract UNIX sockets whose names list them, such as
// "@forepack-cores/forepack-worker/0-3/0/5f2c..": program, cores, core of the first thread, random number. Other pools
// read the names in /proc/net/unix (`ss -xl` shows them). Such sockets need no rights and no files, users share them,
// and they vanish with the process. Containers with their own network do not see each other's claims; there, cpusets
// separate pools. Claims are only advice: if a process claims every core, other processes share cores.
//
// Any thread may call.
#pragma once

#include <sched.h>

#include "lib/base/cores.h"

extern const char *core_claims_sockets; // the list of sockets, "/proc/net/unix"; tests change it

struct core_claims;

// Chooses n cores of `usable`, which has at least n, by the load of other pools (cores_choose), and claims them. Pools
// that start at the same time choose one after another, unless one of them takes over 200 ms. If the claim fails, other
// pools do not know of this pool and may share its cores. Returns the claims, which the caller releases.
struct core_claims *core_claims_take(const cpu_set_t *usable, int n, int *chosen, struct cores_choice *choice_p);
void core_claims_release(struct core_claims *claims);
