// SPDX-License-Identifier: Apache-2.0
// The GPUs of a node's ranks, as its heartbeats report them. For metrics only. One thread.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/gpu_throttle.h"

struct node_gpu {
    int rank;
    bool seen;     // a heartbeat has reported the GPU, so its counters are known
    bool reported; // the last heartbeat has reported the GPU
    bool known;    // the last heartbeat has reported the GPU, with recent gauges
    bool healthy;  // false: the GPU is in trouble. The node then drains, unless it is set to only report its GPUs
    bool has_temperature, has_ecc, has_throttle;
    int temperature_celsius;
    uint64_t memory_used_bytes, memory_total_bytes; // total 0: not known
    uint64_t ecc_corrected, ecc_uncorrected;
    uint64_t throttled_us[GPU_THROTTLES];
    uint64_t xid_errors;
    uint32_t last_xid; // 0: none
};

struct node_gpus {
    struct node_gpu *gpus; // [n] by rank; owned
    int n;
};

// Stores the GPU reports of a heartbeat. Ignores reports of a rank >= `ranks` or >= NODE_GPUS_MAX.
enum { NODE_GPUS_MAX = 256 };
void node_gpus_update(struct node_gpus *gpus, const struct node_gpu *reported, int n_reported, int ranks);

struct node_gpus node_gpus_copy(const struct node_gpus *gpus);
void node_gpus_fini(struct node_gpus *gpus);
