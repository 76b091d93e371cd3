// SPDX-License-Identifier: Apache-2.0
// Collectives between the ranks of one host, through one segment of shared memory.
//
// Every rank has a lane that only this rank writes: a step counter and room for two pieces of data. A collective is a
// few steps on all ranks. A message longer than a piece is sent in pieces. Every element is summed in rank order, so
// the bits equal the results of comm_mpi and tests/comm_threads.c for any count.
//
// Waiting: a rank that does not share its core spins for a fraction of a millisecond, because peers are usually not
// later. Then it sleeps in the kernel (futex). Ranks that share a core sleep immediately. So ranks may share cores with
// each other and with other processes, and waiting for a late peer costs almost no CPU time. A dead peer is not noticed
// here: mpirun ends the job, and the watchdogs notice a stuck pass.
//
// One thread per rank makes all calls. A failed call leaves the group unusable.
#pragma once

#include "kernels/comm.h"

// Opens a comm over shared memory. Called by all ranks of `over`, which must be on one host. Uses `over` only during
// the call: to broadcast the name of the segment, and to agree on success. Fails on every rank if one rank cannot map
// the segment (no /dev/shm, or /dev/shm is full). Only the rank that failed has the cause in status_message().
enum status comm_open_shm(struct comm *over, struct comm **comm_p);
