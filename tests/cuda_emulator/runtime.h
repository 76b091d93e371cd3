// SPDX-License-Identifier: Apache-2.0
// What the parts of the emulator know of each other.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

#include "tests/cuda_emulator/device.h"

// Runs all blocks of a kernel; the caller holds the lock.
void emulated_run(const char *kernel, dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()> &body);
// Puts an operation of the device into the stream, or into the graph that the stream is captured into.
cudaError_t emulated_put(cudaStream_t stream, std::function<void()> run);
// The same for one that may have to wait for other streams: false from `run` means that it is to be called again.
cudaError_t emulated_put_waiting(cudaStream_t stream, std::function<bool()> run);
bool emulated_is_device_memory(const void *at, size_t bytes);
extern int emulated_launches;
int emulated_capability(void); // major * 10 + minor
