// SPDX-License-Identifier: Apache-2.0
// Watches one GPU through NVML on its own thread, because NVML may block for long when a GPU is lost. Readers never
// wait for NVML. If NVML is missing or cannot be used, the monitor logs one line (`gpu_health_unavailable`) and has no
// report.
#pragma once

#include "kernels/gpu_health.h"

struct gpu_monitor;

enum { GPU_MONITOR_INTERVAL_MS = 1000 };

// Starts a monitor. `address` is the GPU's address on the PCI bus, as CUDA writes it: "0000:65:00.0". Address and
// limits are copied.
struct gpu_monitor *gpu_monitor_start(const char *address, const struct gpu_limits *limits, int interval_ms);

// Any thread: copies the latest report, all zero before the first sample. After ten intervals without a sample, the
// report is not `known`. The first call that finds this logs it (`gpu_health_silent`).
void gpu_monitor_read(struct gpu_monitor *monitor, struct gpu_report *report);

// Stops the monitor. Returns after at most two seconds. If the monitor's thread is then still blocked in NVML, the
// thread frees the monitor when it ends. No effect for NULL.
void gpu_monitor_stop(struct gpu_monitor *monitor);
