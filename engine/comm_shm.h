// SPDX-License-Identifier: Apache-2.0
// Collectives between the ranks of one host, through one segment of shared memory.
//
// Every rank has a lane that it alone writes: a step counter and room for two pieces of data. A collective is a few
// steps on all ranks; a message longer than a piece is cut. Sums are taken in rank order for every element, so the
// bits are those of comm_mpi and comm_threads whatever the count.
//
// Waiting: a rank that has a core of its own spins for a fraction of a millisecond, which is what a peer in step is
// late by; then, or at once where ranks share a core, it sleeps in the kernel (futex). So sharing cores with each other
// or with strangers does no harm, and waiting for a late peer burns next to nothing. A peer that died is not noticed
// here: mpirun ends the job, and the watchdogs see a stuck step.
//
// One thread per rank makes all calls. A failed call leaves the group unusable.
#pragma once

#include "kernels/comm.h"

// All ranks of `over` together, which must be on one host; `over` is used only here, to tell where the segment is and
// to agree. Fails on every rank alike when one cannot have the segment (no /dev/shm, or it is full): the rank with
// the cause has the sentence.
enum status comm_open_shm(struct comm *over, struct comm **comm_p);
