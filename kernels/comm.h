// SPDX-License-Identifier: Apache-2.0
// Collectives between the ranks of a group, in one table of operations: one rank (comm_self), processes over Open MPI
// (comm_mpi) or shared memory (comm_shm), GPUs over NCCL, and in tests threads of one process (tests/comm_threads.c). A
// group with pipeline stages is split into one comm per stage.
//
// Every rank makes the same calls with the same counts in the same order, from one thread. Buffers are in the memory of
// the backend that the comm was opened for. Every element is summed in rank order, for any count. (The order in
// MPI_Allreduce depends on the message size, so a row's value would depend on the other rows of its pass.) Only NCCL
// sums in its own order (kernels/cuda/comm_nccl.c).
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "lib/base/status.h"

struct comm {
    int rank, size;
    const struct comm_ops *ops;
    int limit_ms;                   // time limit of a wait, for comms that can end a wait (NCCL); 0: no limit
    atomic_uint_least64_t progress; // counts the stages of passes that this rank has completed (kernels/backend.h)
    // True while this rank waits for other ranks; reports of hangs show it. Stays true if another rank made the wait
    // fail.
    atomic_bool waits;
    struct comm *_Atomic part; // comm of the ranks of this rank's pipeline stage, see split(); NULL: not split
};

struct comm_ops {
    enum status (*all_reduce_sum)(struct comm *c, float *data, size_t count); // in place; every rank gets the sum
    enum status (*all_reduce_max)(struct comm *c, float *data, size_t count);
    // Copies rank r's `count` floats to out + r * count on rank 0; `out` may be NULL on other ranks.
    enum status (*gather)(struct comm *c, const float *data, size_t count, float *out);
    enum status (*broadcast)(struct comm *c, void *bytes, size_t size_bytes); // from rank 0, in host memory
    void (*close)(struct comm *c);
    // Reserves memory for sums of up to `count` floats. Call it before the first sum. NULL: sums need no memory.
    void (*reserve)(struct comm *c, size_t count);

    // For pipeline stages; NULL in comms without them.
    // Divides the ranks into `n_parts` equal parts of consecutive ranks, and stores a comm of this rank's part in
    // c->part. Called by all ranks, at most once. Closing `c` closes the part.
    enum status (*split)(struct comm *c, int n_parts);
    // Send `count` floats to another rank and receive them there. Call them after split(). All messages of a rank go to
    // one other rank. A message may have to wait until the other rank receives it.
    enum status (*send)(struct comm *c, int rank, const float *data, size_t count);
    enum status (*receive)(struct comm *c, int rank, float *data, size_t count);
};

// Any thread: returns true while this rank waits for ranks of the group or of its part.
static inline bool comm_waits(const struct comm *c)
{
    struct comm *part = c->part;
    return c->waits || (part && part->waits);
}

enum status comm_open_self(struct comm **comm_p);
