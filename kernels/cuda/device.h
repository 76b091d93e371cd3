// SPDX-License-Identifier: Apache-2.0
// The first include of every kernel: CUDA's headers under nvcc, or their emulation on the CPU (kernels/emulator), and a
// few helpers. A .cu file compiles with both if it uses only this file, and kernels/cuda/ptx.h or hopper.h for single
// instructions.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef FOREPACK_CUDA_EMULATED
#include "kernels/emulator/device.h"
#else
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

// True if the code is compiled for a GPU with the instructions of kernels/cuda/hopper.h.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define HOPPER true
#else
#define HOPPER false
#endif

// Declares the launch's dynamic shared memory as `type *name`, aligned as wgmma requires.
#define DYNAMIC_SHARED(type, name)                                                                                     \
    extern __shared__ __align__(1024) unsigned char cuda_dynamic_shared[];                                             \
    type *const name = reinterpret_cast<type *>(cuda_dynamic_shared)

template <typename T> struct cuda_as {
    typedef T type;
};

enum { CUDA_SHARED_UNASKED = 48 * 1024 }; // a kernel must request more dynamic shared memory than this

// Requests dynamic shared memory for a kernel of this file, once: the call takes as long as a launch. A process uses
// one GPU, and one thread launches at a time.
static inline cudaError_t cuda_request_shared(const void *kernel, size_t bytes)
{
    enum { KERNELS = 32 }; // the memory of further kernels is requested at every launch
    static struct {
        const void *kernel;
        size_t bytes;
    } requested[KERNELS];
    int i = 0;
    if (bytes <= CUDA_SHARED_UNASKED) return cudaSuccess;
    while (i < KERNELS && requested[i].kernel && requested[i].kernel != kernel)
        i++;
    if (i < KERNELS && requested[i].kernel && requested[i].bytes >= bytes) return cudaSuccess;
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (error == cudaSuccess && i < KERNELS) requested[i].kernel = kernel, requested[i].bytes = bytes;
    return error;
}

// Launches kernel(args...). Arguments are converted to the kernel's parameter types, as in a call.
template <typename... P>
static inline cudaError_t cuda_launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                                      cudaStream_t stream, typename cuda_as<P>::type... args)
{
    const void *const function = reinterpret_cast<const void *>(kernel);
    const cudaError_t error = cuda_request_shared(function, shared_bytes);
    if (error != cudaSuccess) return error;
    void *pointers[] = {const_cast<void *>(static_cast<const void *>(&args))...};
    return cudaLaunchKernel(function, grid, block, pointers, shared_bytes, stream);
}
#endif

// Launches kernel(args...): CUDA_LAUNCH(kernel, grid, block, shared_bytes, stream, args...) is a cudaError_t.
#define CUDA_LAUNCH(...) cuda_launch(__VA_ARGS__)

enum { WARP = 32 };
static const unsigned FULL_WARP = 0xffffffffu;

// Reduce a value over the 32 lanes of a warp, always in the same order. Every lane gets the result.
static __device__ __forceinline__ float warp_sum(float x)
{
#pragma unroll
    for (int lanes = WARP / 2; lanes > 0; lanes /= 2)
        x += __shfl_xor_sync(FULL_WARP, x, lanes);
    return x;
}

static __device__ __forceinline__ float warp_max(float x)
{
#pragma unroll
    for (int lanes = WARP / 2; lanes > 0; lanes /= 2)
        x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, lanes));
    return x;
}

// Converts to e4m3, which has no infinity: values out of range become +-448, and NaN stays NaN.
static __device__ __forceinline__ uint8_t e4m3_from_float(float x)
{
    return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
}

// Converts two values together: x is in the lower byte.
static __device__ __forceinline__ uint32_t e4m3x2_from_floats(float x, float y)
{
    return __nv_cvt_float2_to_fp8x2(make_float2(x, y), __NV_SATFINITE, __NV_E4M3);
}

// Rows, and heads of K and V, are quantised to e4m3 with one scale: their largest magnitude / E4M3_MAX. If the largest
// magnitude is below E4M3_MIN, all values become zeros, since E4M3_MAX / largest could overflow.
static const float E4M3_MAX = 448.f, E4M3_MIN = 0x1p-100f;

// Returns the magnitude of a value, for a maximum of magnitudes. It is infinite for NaN, because fmaxf ignores NaN.
static __device__ __forceinline__ float magnitude(float x)
{
    return x - x == 0 ? fabsf(x) : INFINITY;
}

// Returns the factor by which values are multiplied before they are converted to e4m3. If it is 0, store bytes of zero.
static __device__ __forceinline__ float e4m3_factor(float largest)
{
    return largest < INFINITY && largest >= E4M3_MIN ? E4M3_MAX / largest : 0;
}

static __device__ __forceinline__ float e4m3_scale(float largest)
{
    return largest < INFINITY ? largest / E4M3_MAX : __int_as_float(0x7fc00000);
}

static __device__ __forceinline__ float float_from_e4m3(uint8_t x)
{
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(x, __NV_E4M3)));
}
