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
    int device;  // GPU that the rank uses; GPU_NONE: lower ranks use all GPUs that it sees
    int seen;    // number of GPUs that the rank sees
    int used_by; // with GPU_NONE: the lower rank that uses the first GPU that this rank sees
};
enum { GPU_NONE = -1 };

// Returns the place of `rank`, from the GPUs that ranks 0 .. rank see. A rank that sees no GPU gets device 0, which
// cannot be opened.
struct gpu_place gpu_place_choose(const struct gpus_seen *ranks, int rank);

// Exchanges the GPUs that the ranks see, then chooses the place of this rank. Called by all ranks. `backend` is the
// name of the backend that this rank will open. CUDA is not initialised if that backend uses no GPU.
enum status gpu_place_agree(struct comm *comm, const char *backend, struct gpu_place *place_p);
