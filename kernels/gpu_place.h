// SPDX-License-Identifier: Apache-2.0
// The GPU of each rank of a group: the first one that the rank sees and that no lower rank uses. So ranks may see all
// GPUs of their host, as under mpirun, or one each, as with srun --gpus-per-task or a CUDA_VISIBLE_DEVICES per rank.
// Identifiers of GPUs differ across hosts, so ranks of one host need not be told apart.
#pragma once

#include <stdint.h>

#include "lib/base/status.h"

struct comm;

struct gpu_id {
    uint8_t bytes[16]; // the UUID
};

// The GPUs that a rank sees, in CUDA's order. More than GPUS_SEEN_MAX are ignored.
enum { GPUS_SEEN_MAX = 16 };
struct gpus_seen {
    int32_t n;
    struct gpu_id id[GPUS_SEEN_MAX];
};

// All zero: the first GPU, for a process without a group.
struct gpu_place {
    int device;  // of those that the rank sees; GPU_NONE: lower ranks use all of them
    int seen;    // number of GPUs that it sees
    int used_by; // GPU_NONE: the rank that uses the first of them
};
enum { GPU_NONE = -1 };

// The place of `rank`, from what ranks 0 .. rank see. A rank that sees no GPU gets device 0, which cannot be opened.
struct gpu_place gpu_place_choose(const struct gpus_seen *ranks, int rank);

// Called by all ranks: exchanges what they see. `backend` is the name that the rank opens; CUDA is not initialised for
// one that uses no GPU.
enum status gpu_place_agree(struct comm *comm, const char *backend, struct gpu_place *place_p);
