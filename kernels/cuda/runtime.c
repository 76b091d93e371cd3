// SPDX-License-Identifier: Apache-2.0
// Calls of the CUDA runtime that all files of the backend use: the status of an error, and device memory.
#include "kernels/cuda/cuda.h"

enum status cuda_status(cudaError_t error, const char *what)
{
    if (error == cudaSuccess) return STATUS_OK;
    cudaGetLastError(); // otherwise the next call would report the error again
    return status_fail(error == cudaErrorMemoryAllocation ? STATUS_EXHAUSTED : STATUS_UNAVAILABLE, "%s: %s", what,
                       cudaGetErrorString(error));
}

enum status cuda_allocate_by(struct cuda *cuda, enum memory_use use, size_t bytes, const char *what, void **memory_p,
                             cudaError_t (*allocate)(void **memory_p, size_t bytes))
{
    const size_t mib = 1 << 20;
    cudaError_t error = cudaSetDevice(cuda->device);
    *memory_p = NULL;
    if (error == cudaSuccess) error = allocate(memory_p, bytes);
    if (error == cudaErrorMemoryAllocation) {
        size_t total = 0, available = 0;
        cudaGetLastError();
        cudaMemGetInfo(&available, &total);
        return status_fail(STATUS_EXHAUSTED,
                           "needs %zu MiB for %s, GPU %d has %zu of its %zu MiB free: use fewer KV blocks, rows or "
                           "sequences, weights of fewer bits, or more ranks",
                           (bytes + mib - 1) / mib, what, cuda->device, available / mib, total / mib);
    }
    if (error != cudaSuccess) return cuda_status(error, what);
    memory_count(&cuda->memory, use, bytes);
    return cuda_status(cudaMemsetAsync(*memory_p, 0, bytes, cuda->stream), what);
}

static cudaError_t device_malloc(void **memory_p, size_t bytes)
{
    return cudaMalloc(memory_p, bytes);
}

enum status cuda_allocate(struct cuda *cuda, enum memory_use use, size_t bytes, const char *what, void **memory_p)
{
    return cuda_allocate_by(cuda, use, bytes, what, memory_p, device_malloc);
}

void cuda_release(struct cuda *cuda, enum memory_use use, size_t bytes, void *memory)
{
    if (!memory) return;
    cudaFree(memory);
    memory_uncount(&cuda->memory, use, bytes);
}
