// SPDX-License-Identifier: Apache-2.0
// Collectives between the ranks of a tensor-parallel group, behind one small table: nothing to do for one rank
// (comm_self), threads of one process in tests (comm_threads), Open MPI between processes (comm_mpi), NCCL on GPUs.
//
// Every rank calls the same function with the same count, in the same order. Buffers lie in the memory of the backend
// that the comm was made for. Sums are taken in rank order for every element, whatever the count is: MPI_Allreduce
// chooses its algorithm, hence its order of summation, by message size, and a row's value would then depend on its
// neighbours. One thread per rank makes all calls. NCCL alone has an order of its own (kernels/cuda/comm_nccl.c).
#pragma once

#include <stdatomic.h>
#include <stddef.h>

#include "base/status.h"

struct comm {
    int rank, size;
    const struct comm_ops *ops;
    int limit_ms;      // of waits that can be given up, which are NCCL's; 0: none
    atomic_bool waits; // for other ranks, as told when a group hangs. Stays set when the wait fails by their doing
};

struct comm_ops {
    enum status (*all_reduce_sum)(struct comm *c, float *data, size_t count); // in place, every rank gets the sum
    enum status (*all_reduce_max)(struct comm *c, float *data, size_t count);
    // Rank r's `count` floats end up at out + r * count on rank 0; `out` may be NULL elsewhere.
    enum status (*gather)(struct comm *c, const float *data, size_t count, float *out);
    enum status (*broadcast)(struct comm *c, void *bytes, size_t size_bytes); // from rank 0; host memory
    void (*close)(struct comm *c);
    // Makes room for sums of up to `count` floats, before the first: sums then allocate nothing. NULL: none is needed.
    void (*reserve)(struct comm *c, size_t count);
};

enum status comm_open_self(struct comm **comm_p);
// `size` handles at once, one for each of `size` threads; the last close frees what they share.
enum status comm_open_threads(int size, struct comm **comms);
