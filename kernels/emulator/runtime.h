// SPDX-License-Identifier: Apache-2.0
// Interface between the parts of the emulator.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

#include "kernels/emulator/device.h"

// Runs all blocks of a kernel. The caller holds the lock.
void emulated_run(const char *kernel, dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()> &body);
// Appends a device operation to the stream, or to the graph that captures the stream.
cudaError_t emulated_put(cudaStream_t stream, std::function<void()> run);
// Does the same for an operation that may have to wait for other streams. If `run` returns false, it is called again
// later.
cudaError_t emulated_put_waiting(cudaStream_t stream, std::function<bool()> run);
bool emulated_is_capturing(cudaStream_t stream);
void emulated_run_streams(void); // runs all streams as far as possible. The caller holds the lock
bool emulated_is_device_memory(const void *at, size_t bytes);
extern int emulated_launches;
bool emulated_is_counting(void);     // see emulator_count_only
extern int64_t emulated_duration_us; // a running operation adds its time beyond one microsecond
int emulated_capability(void);       // major * 10 + minor
