// SPDX-License-Identifier: Apache-2.0
// Collectives between processes over Open MPI, on host memory.
//
// Sums are taken in rank order for every element whatever the count is, which MPI_Allreduce does not promise: the
// ranks exchange their values by Allgather (few values, or two ranks) or Alltoall of slices (many), add them up
// themselves, and so compute the very same bits either way. Maxima have no order and go through MPI_Allreduce.
//
// On a slow network the addends of sums may travel as bf16: half the bytes between two ranks, three quarters between
// more (the sums go back whole). They are added up in f32, in rank order, a rank's own rounded like the others', so all
// ranks hold the same bits and a value still depends on nothing beside it. The price: rank 0's addend is the residual
// stream, which is thus rounded to bf16 at every sum.
//
// The thread that initialised MPI makes all calls (MPI_THREAD_FUNNELED). A failed call leaves the group unusable.
#pragma once

#include <stdbool.h>

#include "kernels/comm.h"

// Joins the job's ranks; MPI must be initialised. Closing the comm does not finalize MPI.
enum status comm_open_mpi(struct comm **comm_p);
// Whether all ranks can share memory, the same answer on every rank. All ranks together; `c` is from comm_open_mpi.
bool comm_mpi_on_one_host(struct comm *c);

// All ranks alike. False, and nothing changed, when `c` is of another kind.
bool comm_mpi_set_allreduce_bf16(struct comm *c);
