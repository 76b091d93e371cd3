// SPDX-License-Identifier: Apache-2.0
// A group: the ranks of one MPI job, or a single process that no launcher started. Ranks on one host exchange data
// through shared memory (comm_shm.h), ranks on several hosts through MPI (comm_mpi.h).
//
// MPI is a build option (-DFOREPACK_MPI). A build without it has groups of one rank, and refuses to start with more.
//
// Reads the environment once, at start. One thread per process makes all calls (MPI_THREAD_FUNNELED).
#pragma once

#include <stdbool.h>

#include "kernels/comm.h"

// Joins the MPI job that started this process, by mpirun or by srun (launch.h). A process that was started otherwise
// gets a comm of one rank, and MPI is not initialised. Ranks that cannot reach each other hang in the first collective.
// So after limit_s seconds (0: no limit), the process logs the failure and ends with exit code 1. Ranks of one host
// with the same affinity mask divide the cores of the mask. Each rank, and every thread that it starts afterwards, uses
// only its own part. Block the signals that the program receives by sigwait() before this call.
#define GROUP_LIMIT_S "60"
enum status group_open(int *argc, char ***argv, int limit_s, struct comm **comm_p);
void group_close(struct comm *comm);

// Sends the addends of sums between hosts as bf16 (see comm_mpi.h). Call it on all ranks, before a model is opened.
// Returns false, without effect, for ranks of one host. Sums on GPUs are not affected: GPUs have their own collectives.
bool group_set_allreduce_bf16(struct comm *comm);

// Ends the whole job immediately with this exit code, because a group is unusable after a failed step. Call it from the
// MPI thread.
_Noreturn void group_abort(struct comm *comm, int exit_code);

// Returns the rank according to the launcher. It is known before MPI is initialised, so that only rank 0 reports wrong
// options.
int group_rank_hint(void);

// Returns true if no launcher has started this process.
bool group_is_single(void);

// Returns the number of compute threads of this rank: `requested` or, if that is 0, the number of this rank's cores, at
// least 1.
int group_threads(int requested);
// Returns this rank's part of the memory that the cgroup allows, in bytes; 0: no limit.
size_t group_memory_bytes(void);

// Usage lines of a program that say how to start several ranks.
#ifdef FOREPACK_MPI
#define GROUP_USAGE                                                                                                    \
    "       mpirun -n TP --bind-to none forepack-... [options]   (the same, as a group of TP tensor-parallel ranks)\n" \
    "       srun -n TP --mpi=pmix forepack-... [options]         (the same, as a step of a Slurm job)\n"
#else
#define GROUP_USAGE "       (built without MPI: one rank per group)\n"
#endif
