// SPDX-License-Identifier: Apache-2.0
// How this process was started, from its environment: before MPI is initialised nothing else tells whether it shall be.
#pragma once

enum launcher {
    LAUNCHER_NONE,           // by a shell or a service manager: a group of one rank
    LAUNCHER_MPIRUN,         // by Open MPI's mpirun
    LAUNCHER_SRUN,           // by Slurm's srun, which connects the tasks (--mpi=pmix)
    LAUNCHER_SRUN_SEPARATELY // by srun, several tasks that nothing connects
};

struct launch {
    enum launcher launcher;
    int rank, ranks; // of the job
    int host_ranks;  // on this host; 0: not known
};

// `get` is getenv, except in tests.
struct launch launch_read(const char *(*get)(const char *name));
