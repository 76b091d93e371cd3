// SPDX-License-Identifier: Apache-2.0
// Implements group_mpi.h in a build without MPI: one rank per group.
#include "engine/group_mpi.h"

enum status group_mpi_open(int rank_hint, int n_ranks, int *argc, char ***argv, struct comm **comm_p, int *sharers_p)
{
    if (n_ranks == 1) return comm_open_self(comm_p);
    if (rank_hint != 0) return status_fail(STATUS_UNSUPPORTED, "%s", ""); // rank 0 reports it
    return status_fail(STATUS_UNSUPPORTED,
                       "mpirun or srun started %d ranks, but this program was built without MPI and has one rank per "
                       "group: start one rank, or build it with -DFOREPACK_MPI=ON",
                       n_ranks);
}

void group_mpi_finalize(void)
{
}

void group_mpi_abort(int exit_code)
{
}

bool group_mpi_set_allreduce_bf16(struct comm *comm)
{
    return false;
}
