// SPDX-License-Identifier: Apache-2.0
// Chooses the GPU of each rank of a group: the first GPU that the rank sees and that no lower rank uses. So ranks may
// see all GPUs of their host, as under mpirun, or one each, as with srun --gpus-per-task or a CUDA_VISIBLE_DEVICES per
// rank. Identifiers of GPUs differ across hosts, so the choice need not know the hosts of ranks.
#pragma once

#include <stdint.h>

#include "lib/base/status.h"

struct comm;

struct gpu_id {
    uint8_t bytes[16]; // the UUID
};

// GPUs that a rank sees, in CUDA's order. More than GPUS_SEEN_MAX are ignored.
enum { GPUS_SEEN_MAX = 16 };
struct gpus_seen {
    int32_t n;
    struct gpu_id id[GPUS_SEEN_MAX];
};

// Place of a rank. Zeros mean the first GPU, for a process without a group.
struct gpu_place {
    int device;  // device that the rank uses; GPU_NONE: lower ranks use all that it sees
    int seen;    // number of GPUs that the rank sees
    int used_by; // with GPU_NONE: the rank that uses the first of these GPUs
};
enum { GPU_NONE = -1 };

// Returns the place of `rank`, from the GPUs that ranks 0 .. rank see. A rank that sees no GPU gets device 0, which
// cannot be opened.
struct gpu_place gpu_place_choose(const struct gpus_seen *ranks, int rank);

// Called by all ranks: exchanges the GPUs that they see. `backend` is the name that the rank opens; CUDA is not
// initialised if that backend uses no GPU.
enum status gpu_place_agree(struct comm *comm, const char *backend, struct gpu_place *place_p);
