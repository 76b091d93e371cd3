// SPDX-License-Identifier: Apache-2.0
// Finds out from the environment how this process was started. This is needed before MPI is initialised, because it
// decides whether MPI is initialised at all.
#pragma once

enum launcher {
    LAUNCHER_NONE,           // started by a shell or a service manager: a group of one rank
    LAUNCHER_MPIRUN,         // started by Open MPI's mpirun
    LAUNCHER_SRUN,           // started by Slurm's srun, which connects the tasks (--mpi=pmix)
    LAUNCHER_SRUN_SEPARATELY // started by srun as one of several tasks that are not connected
};

struct launch {
    enum launcher launcher;
    int rank, ranks; // rank of this process in the job; number of ranks of the job
    int host_ranks;  // number of the job's ranks on this host; 0: not known
};

// `get` is getenv, except in tests.
struct launch launch_read(const char *(*get)(const char *name));
