// SPDX-License-Identifier: Apache-2.0
// The health of one GPU: adds up samples of its state (kernels/nvml.h reads them) and decides if its rank can go on. A
// pure state machine over samples and a clock, without CUDA or NVML.
//
// Reasons to leave, in the order in which they are reported:
//
// - NVML says that the GPU is lost or needs a reset.
// - A fatal Xid, an error that the driver reports, has occurred. After a fatal error NVIDIA's catalogue of Xids
//   (docs.nvidia.com/deploy/xid-errors) asks to restart the program or to reset the GPU; see gpu_xid_meaning().
// - A hardware reason has throttled the GPU for too long. The time without throttling is subtracted from the time with
//   it, so a GPU that throttles most of the time is also found.
//
// The first two reasons last until the process ends. Trouble from throttling ends once the GPU has run for the same
// time without throttling.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/gpu_throttle.h"
#include "lib/base/status.h"

enum { GPU_XIDS_MAX = 16, GPU_FATAL_XIDS_MAX = 32, GPU_ADDRESS_MAX = 32, GPU_TROUBLE_MAX = 192 };

enum gpu_state { GPU_PRESENT, GPU_LOST, GPU_NEEDS_RESET };

// State of the GPU at one moment. If NVML does not know a value of this GPU, the value's `has_` member is false.
struct gpu_sample {
    enum gpu_state state;
    bool has_temperature, has_memory, has_ecc, has_throttle;
    uint32_t temperature_celsius;
    uint64_t memory_used_bytes, memory_total_bytes; // memory of all processes
    uint64_t ecc_corrected, ecc_uncorrected;        // memory errors since the driver was loaded
    uint32_t throttle;                              // bits 1 << enum gpu_throttle
    int n_xids;
    uint32_t xids[GPU_XIDS_MAX]; // Xids that the driver reported since the last sample
};

struct gpu_limits {
    int64_t throttle_us; // time of throttling for hardware reasons after which the rank leaves; 0: no limit
    int n_fatal_xids;
    uint32_t fatal_xids[GPU_FATAL_XIDS_MAX];
};
#define GPU_FATAL_XIDS_DEFAULT "46,48,62,64,74,79,94,95,119,120,140"

// Reads a list such as "48,79", or "none". Returns INVALID for other texts.
enum status gpu_fatal_xids_parse(const char *text, struct gpu_limits *limits);

// Returns the meaning of an Xid for logs, or "see NVIDIA's catalogue of Xids" for an Xid that is not listed here.
const char *gpu_xid_meaning(uint32_t xid);

// Report on a GPU. Plain bytes, which ranks of a group send to each other.
struct gpu_report {
    bool known; // true if the other members are recent
    bool has_temperature, has_memory, has_ecc, has_throttle;
    char address[GPU_ADDRESS_MAX]; // address on the PCI bus; empty if NVML knows no GPU of the rank
    uint32_t temperature_celsius;
    uint64_t memory_used_bytes, memory_total_bytes;
    uint64_t ecc_corrected, ecc_uncorrected;
    uint64_t throttled_us[GPU_THROTTLES]; // time of throttling for each reason since the process started
    uint64_t xid_errors;                  // number of Xids since the process started
    uint32_t last_xid;                    // the latest Xid; 0: no Xid so far
    char trouble[GPU_TROUBLE_MAX];        // why the rank cannot go on, as a sentence; empty if it can
};

struct gpu_health {
    struct gpu_limits limits;
    struct gpu_report report;
    int64_t sampled_us;   // time of the last sample; 0: no sample yet
    int64_t throttled_us; // time of throttling for hardware reasons minus the time without it, up to the limit
    bool broken;          // true if the trouble lasts until the process ends
};

void gpu_health_init(struct gpu_health *health, const char *address, const struct gpu_limits *limits);

// Adds the sample taken at now_us. Throttling counts for the time since the last sample, at most GPU_GAP_MAX_US: the
// state in longer gaps is unknown.
enum { GPU_GAP_MAX_US = 5000000 };
void gpu_health_add(struct gpu_health *health, const struct gpu_sample *sample, int64_t now_us);
