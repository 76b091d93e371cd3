// SPDX-License-Identifier: Apache-2.0
// The part of group.h that needs MPI. Only group.c calls it. Implemented by group_mpi.c, or by group_single.c in a
// build without MPI.
#pragma once

#include <stdbool.h>

#include "kernels/comm.h"

// Joins the MPI job. `rank_hint` (see group_rank_hint()) and the number of ranks, `n_ranks`, come from the launcher.
// Sets *sharers_p to the number of ranks that share the cores of this rank, itself included. Leaves *sharers_p
// unchanged if that number is not known.
enum status group_mpi_open(int rank_hint, int n_ranks, int *argc, char ***argv, struct comm **comm_p, int *sharers_p);
void group_mpi_finalize(void);
void group_mpi_abort(int exit_code);                  // returns if MPI is not running
bool group_mpi_set_allreduce_bf16(struct comm *comm); // false: `comm` does not use MPI messages
