// SPDX-License-Identifier: Apache-2.0
// Watches one GPU through NVML on a thread of its own, because NVML may block for long when a GPU is lost. Readers
// never wait for it. Without NVML, or with one that cannot be used, it logs one line (`gpu_health_unavailable`) and has
// no report.
#pragma once

#include "kernels/gpu_health.h"

struct gpu_monitor;

enum { GPU_MONITOR_INTERVAL_MS = 1000 };

// `address` of the GPU on the PCI bus, as CUDA writes it: "0000:65:00.0". Copied, as the limits are.
struct gpu_monitor *gpu_monitor_start(const char *address, const struct gpu_limits *limits, int interval_ms);

// Any thread: the latest report. All zero before the first sample. After ten intervals without a sample its numbers are
// not `known`, which is logged once (`gpu_health_silent`).
void gpu_monitor_read(struct gpu_monitor *monitor, struct gpu_report *report);

// Returns after two seconds at the latest. A thread that is blocked in NVML then keeps what it uses until it ends.
// NULL: no effect.
void gpu_monitor_stop(struct gpu_monitor *monitor);
