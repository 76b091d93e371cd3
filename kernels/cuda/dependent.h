// SPDX-License-Identifier: Apache-2.0
// Programmatic dependent launch, on devices of compute capability 9.0 and later. A kernel launched by CUDA_LAUNCH_EARLY
// starts while the previous kernel of the stream still runs, as soon as every thread block of that kernel has called
// dependents_start or ended. Until dependency_wait returns, the early kernel may read only memory that no kernel of a
// pass writes, such as weights and the batch. It uses the time to load such memory. Prefetching into the L2 cache is
// allowed for any memory. The first kernel of a pass is launched in the ordinary way, after the copy of the batch. With
// FOREPACK_CUDA_EARLY_LAUNCH=off in the environment every kernel is launched in the ordinary way.
//
// Every thread of an early kernel calls dependency_wait, even in blocks without work. Then a kernel is complete only
// when all earlier kernels are complete, and waiting for one kernel means waiting for all. After the wait, read results
// of steps by ordinary loads. The cache of __ldg may be older than the wait. In a kernel launched in the ordinary way,
// or on older devices, both calls do nothing.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/cuda/switches.h"

#ifndef FOREPACK_CUDA_EMULATED

static __device__ __forceinline__ void dependency_wait(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

static __device__ __forceinline__ void dependents_start(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Loads 16 bytes that are read only once in a pass and that no kernel writes. It is volatile, so that the compiler does
// not move the load after dependency_wait.
static __device__ __forceinline__ uint4 load_streamed(const void *from)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
}

// Loads a line of 128 bytes into the L2 cache.
static __device__ __forceinline__ void prefetch_line(const void *at)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

// Returns true if the device starts kernels early. A process uses one GPU, so the answer does not change.
static inline bool device_starts_early(void)
{
    static const bool early = [] {
        int device, major = 0;
        return !cuda_switched_off("FOREPACK_CUDA_EARLY_LAUNCH") && cudaGetDevice(&device) == cudaSuccess &&
               cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major >= 9;
    }();
    return early;
}

template <typename... P>
static inline cudaError_t cuda_launch_early(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                                            cudaStream_t stream, typename cuda_as<P>::type... args)
{
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = device_starts_early() ? 1 : 0;
    const void *const function = reinterpret_cast<const void *>(kernel);
    const cudaError_t error = cuda_request_shared(function, shared_bytes);
    if (error != cudaSuccess) return error;
    void *pointers[] = {const_cast<void *>(static_cast<const void *>(&args))...};
    return cudaLaunchKernelExC(&config, function, pointers);
}

#else // ---- emulated: kernels run one after another, and a thread that ends without waiting ends the program --------

static inline void dependency_wait(void)
{
    emulated_dependency_wait();
}

static inline void dependents_start(void)
{
}

static inline uint4 load_streamed(const void *from)
{
    uint4 v;
    memcpy(&v, __builtin_assume_aligned(from, 16), sizeof v);
    return v;
}

static inline void prefetch_line(const void *at)
{
    (void)*(const volatile char *)at; // the address sanitizer checks it
}

template <typename... P>
static inline cudaError_t cuda_launch_early(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                                            cudaStream_t stream, typename cuda_as<P>::type... args)
{
    emulated_call call;
    const char *const name = __PRETTY_FUNCTION__;
    int in_order[] = {0, (emulated_check_argument(name, &args, sizeof args), 0)...};
    (void)in_order;
    return emulated_launch(name, grid, block, shared_bytes, stream, [=] {
        kernel(args...);
        emulated_check_waited();
    });
}
#endif

// Does the same as CUDA_LAUNCH for a kernel that calls dependency_wait, but the kernel may start early.
#define CUDA_LAUNCH_EARLY(...) cuda_launch_early(__VA_ARGS__)
