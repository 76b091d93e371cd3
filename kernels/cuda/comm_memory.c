// SPDX-License-Identifier: Apache-2.0
// See cuda.h and comm_memory.h. NCCL ("the library") has windows from version 2.27 on. A window is memory of all ranks,
// allocated by the library and registered with a communicator. Each GPU reads and writes it directly. The library
// decides which sums use windows: in 2.27 sums within one node, and later sums between GPUs with peer access. For other
// sums a registered window is ordinary memory.
//
// The library launches kernels for windows as dependent.h does. From 2.28 to 2.30.6 these kernels do not wait for the
// previous kernel (fixed by NCCL's commit 2948185d). Our kernels let the next kernel start early, so a sum would read
// results that the previous gemm has not written yet. Windows are not used with these versions.
//
// The functions are weak, so that the module can be loaded with older versions of the library.
#include "kernels/cuda/comm_memory.h"

#include "kernels/cuda/cuda.h"

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)

#pragma weak ncclMemAlloc
#pragma weak ncclMemFree
#pragma weak ncclCommWindowRegister
#pragma weak ncclCommWindowDeregister

static bool has_windows(void)
{
    int version;
    if (ncclGetVersion(&version) != ncclSuccess || version < NCCL_VERSION(2, 27, 0)) return false;
    return version < NCCL_VERSION(2, 28, 0) || version >= NCCL_VERSION(2, 30, 7);
}

cudaError_t comm_memory_allocate(void **memory_p, size_t bytes)
{
    if (!has_windows()) return cudaMalloc(memory_p, bytes);
    if (ncclMemAlloc(memory_p, bytes) == ncclSuccess) return cudaSuccess;
    // NCCL gives no reason.
    size_t available = 0, total = 0;
    const cudaError_t error = cudaMemGetInfo(&available, &total);
    *memory_p = NULL;
    if (error != cudaSuccess) return error;
    return available < bytes ? cudaErrorMemoryAllocation : cudaErrorNotSupported;
}

void comm_memory_free(void *memory)
{
    if (has_windows() && memory)
        ncclMemFree(memory);
    else
        cudaFree(memory);
}

ncclResult_t comm_memory_register(ncclComm_t nccl, void *memory, size_t bytes, void **window_p)
{
    ncclWindow_t window = NULL;
    *window_p = NULL;
    if (!has_windows()) return ncclSuccess;
    const ncclResult_t result = ncclCommWindowRegister(nccl, memory, bytes, &window, NCCL_WIN_COLL_SYMMETRIC);
    if (result == ncclSuccess) *window_p = window;
    return result;
}

ncclResult_t comm_memory_deregister(ncclComm_t nccl, void *window)
{
    return window ? ncclCommWindowDeregister(nccl, window) : ncclSuccess;
}

#else // built with an older version

cudaError_t comm_memory_allocate(void **memory_p, size_t bytes)
{
    return cudaMalloc(memory_p, bytes);
}

void comm_memory_free(void *memory)
{
    cudaFree(memory);
}

ncclResult_t comm_memory_register(ncclComm_t nccl, void *memory, size_t bytes, void **window_p)
{
    (void)nccl, (void)memory, (void)bytes;
    *window_p = NULL;
    return ncclSuccess;
}

ncclResult_t comm_memory_deregister(ncclComm_t nccl, void *window)
{
    (void)nccl, (void)window;
    return ncclSuccess;
}

#endif
