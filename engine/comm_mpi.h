// SPDX-License-Identifier: Apache-2.0
// Collectives between processes over Open MPI, on host memory.
//
// Sums are taken in rank order for every element whatever the count is, which MPI_Allreduce does not promise: the
// ranks exchange their values by Allgather (few values, or two ranks) or Alltoall of slices (many) and add them up
// themselves, with the same bits either way. Maxima do not depend on the order and use MPI_Allreduce.
//
// For slow networks the addends of sums can be sent as bf16: half the bytes between two ranks, three quarters between
// more (the sums return as f32). They are added in f32, in rank order, and every rank rounds its own addend too. So all
// ranks hold the same bits, and a value does not depend on its neighbours. Rank 0's addend is the residual stream,
// which is therefore rounded to bf16 at every sum.
//
// The thread that initialised MPI makes all calls (MPI_THREAD_FUNNELED). A failed call leaves the group unusable.
#pragma once

#include <stdbool.h>

#include "kernels/comm.h"

// A comm of all ranks of the job; MPI must be initialised. Closing the comm does not finalize MPI.
enum status comm_open_mpi(struct comm **comm_p);
// Whether all ranks can share memory: the same answer on every rank. Called by all ranks; `c` is from comm_open_mpi.
bool comm_mpi_on_one_host(struct comm *c);

// On all ranks with the same value. False, without effect, when `c` is not from comm_open_mpi.
bool comm_mpi_set_allreduce_bf16(struct comm *c);
