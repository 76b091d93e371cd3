// SPDX-License-Identifier: Apache-2.0
// Collectives between processes through Open MPI, on host memory.
//
// Every element is summed in rank order, for any count. MPI_Allreduce does not promise that, so the ranks exchange
// their values and add them up themselves. They use Allgather for few values or two ranks, and Alltoall of slices for
// many values. Both give the same bits. Maxima do not depend on the order and use MPI_Allreduce.
//
// For slow networks the addends of sums can be sent as bf16. This halves the bytes between two ranks. With more ranks
// it saves a quarter of the bytes, because the sums are returned as f32. Addends are added in f32, in rank order, and
// every rank rounds its own addend too. So all ranks hold the same bits, and a sum does not depend on its index in the
// buffer. Rank 0's addend is the residual stream, which is therefore rounded to bf16 at every sum.
//
// The thread that initialised MPI makes all calls (MPI_THREAD_FUNNELED). A failed call leaves the group unusable.
#pragma once

#include <stdbool.h>

#include "kernels/comm.h"

// Opens a comm of all ranks of the job. MPI must be initialised. Closing the comm does not finalize MPI.
enum status comm_open_mpi(struct comm **comm_p);
// Returns true on every rank if all ranks can share memory, else false on every rank. Called by all ranks; `c` is from
// comm_open_mpi().
bool comm_mpi_on_one_host(struct comm *c);
// Replaces a comm whose ranks are on one host by one over shared memory. Returns the same comm if a rank cannot open
// the memory; that rank logs the reason. Called by all ranks.
struct comm *comm_mpi_to_shm(struct comm *mpi);

// Makes later sums send their addends as bf16. Called by all ranks, before a model is opened. Returns false, without
// effect, if `c` is not from comm_open_mpi().
bool comm_mpi_set_allreduce_bf16(struct comm *c);
