// SPDX-License-Identifier: Apache-2.0
// CUDA's device language for g++. kernels/cuda/device.h includes it instead of CUDA's headers, so that kernels run on
// the CPU in tests. The threads of a block are fibers that switch at barriers, shuffles and similar operations. They
// run in a fixed order, or in a random order whose seed is FOREPACK_EMULATOR_SEED in the environment. Blocks run one
// after another. Errors that hardware may not report end the program with a message. Such errors are threads of a block
// that wait at different barriers or leave while others wait, partial warps at warp operations, and pointers to host
// memory in a kernel's arguments. Dynamic shared memory begins as NaN in every block and has its exact size, so that
// AddressSanitizer detects accesses outside it.
#pragma once

#include <cuda_runtime_api.h>
// CUDA's host versions of the bf16 and fp8 conversions.
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <math.h>
#include <string.h>

#include <functional>
#include <type_traits>

#undef __shared__
#undef __forceinline__
#undef __launch_bounds__
#define __shared__      static // one block at a time
#define __forceinline__ inline
#define __launch_bounds__(...)

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

// Excludes a function from the sanitizers, for functions in which tests spend most of their time. They access only the
// emulator's memory, or memory that an exchange has checked.
#define EMULATED_UNCHECKED         __attribute__((no_sanitize("address", "undefined")))
#define EMULATED_PLACE             const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define DYNAMIC_SHARED(type, name) type *const name = static_cast<type *>(emulated_dynamic_shared())

// Exists during a host call. Serialises calls, and excludes the emulator's allocations from the check of
// lib/base/no_alloc.h.
struct emulated_call {
    int suspended;
    emulated_call();
    ~emulated_call();
};

void *emulated_dynamic_shared(void);
void emulated_block_barrier(const char *file, int line);
// Publishes `bytes` of this lane to its warp and waits until all lanes have called from the same place. Returns the
// bytes of lanes 0..31, one lane after another. They are valid until the warp's second exchange after this one. `bytes`
// is at most 64.
const void *emulated_warp_exchange(const void *mine, size_t bytes, const char *file, int line);
int emulated_lane(void);
// Implement dependency_wait of kernels/cuda/dependent.h, and the check that this thread has called it.
void emulated_dependency_wait(void);
void emulated_check_waited(void);
// Ends the program with a message if a kernel argument is, or contains, a pointer to host memory.
void emulated_check_argument(const char *kernel, const void *value, size_t bytes);
cudaError_t emulated_launch(const char *kernel, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                            std::function<void()> body);

// Does emulated_warp_exchange for values of any type.
template <typename T> static inline const T *emulated_warp(const T &mine, EMULATED_PLACE)
{
    return static_cast<const T *>(emulated_warp_exchange(&mine, sizeof mine, file, line));
}

template <typename T> struct cuda_as {
    typedef T type;
};

template <typename... P>
static inline cudaError_t cuda_launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                                      cudaStream_t stream, typename cuda_as<P>::type... args)
{
    emulated_call call;
    const char *const name = __PRETTY_FUNCTION__;
    int in_order[] = {0, (emulated_check_argument(name, &args, sizeof args), 0)...};
    (void)in_order;
    return emulated_launch(name, grid, block, shared_bytes, stream, [=] { kernel(args...); });
}

// ---- barriers and the warp ------------------------------------------------------------------------------------------

static inline void __syncthreads(EMULATED_PLACE)
{
    emulated_block_barrier(file, line);
}

void emulated_check_mask(unsigned mask, const char *file, int line);

static inline void __syncwarp(unsigned mask = 0xffffffffu, EMULATED_PLACE)
{
    emulated_check_mask(mask, file, line);
    char nothing = 0;
    emulated_warp_exchange(&nothing, 1, file, line);
}

// Shuffle within groups of `width` lanes, as CUDA defines. If the source is outside the group, they return the lane's
// own value; __shfl_sync wraps around instead.
template <typename T> static inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32, EMULATED_PLACE)
{
    emulated_check_mask(mask, file, line);
    int own = emulated_lane();
    return emulated_warp(value, file, line)[(own & ~(width - 1)) + (lane & (width - 1))];
}

template <typename T>
static inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, EMULATED_PLACE)
{
    emulated_check_mask(mask, file, line);
    int own = emulated_lane(), from = own ^ lane_mask;
    return emulated_warp(value, file, line)[from / width <= own / width ? from : own];
}

template <typename T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, EMULATED_PLACE)
{
    emulated_check_mask(mask, file, line);
    int own = emulated_lane(), from = own + (int)delta;
    return emulated_warp(value, file, line)[from / width == own / width ? from : own];
}

template <typename T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, EMULATED_PLACE)
{
    emulated_check_mask(mask, file, line);
    int own = emulated_lane(), from = own - (int)delta;
    return emulated_warp(value, file, line)[from >= (own & ~(width - 1)) ? from : own];
}

static inline unsigned __ballot_sync(unsigned mask, int predicate, EMULATED_PLACE)
{
    emulated_check_mask(mask, file, line);
    const int *all = emulated_warp(predicate, file, line);
    unsigned bits = 0;
    for (int lane = 0; lane < 32; lane++)
        bits |= (unsigned)(all[lane] != 0) << lane;
    return bits;
}

static inline int __any_sync(unsigned mask, int predicate, EMULATED_PLACE)
{
    return __ballot_sync(mask, predicate, file, line) != 0;
}

static inline int __all_sync(unsigned mask, int predicate, EMULATED_PLACE)
{
    return __ballot_sync(mask, predicate, file, line) == 0xffffffffu;
}

// ---- memory ---------------------------------------------------------------------------------------------------------

template <typename T> static inline T __ldg(const T *at)
{
    return *at;
}

template <typename T> static inline T atomicAdd(T *at, T value)
{
    T before = *at;
    *at = before + value;
    return before;
}

template <typename T> static inline T atomicMax(T *at, T value)
{
    T before = *at;
    if (value > before) *at = value;
    return before;
}

template <typename T> static inline T atomicMin(T *at, T value)
{
    T before = *at;
    if (value < before) *at = value;
    return before;
}

template <typename T> static inline T atomicExch(T *at, T value)
{
    T before = *at;
    *at = value;
    return before;
}

template <typename T> static inline T atomicCAS(T *at, T compare, T value)
{
    T before = *at;
    if (before == compare) *at = value;
    return before;
}

static inline void __threadfence(void)
{
}

static inline void __threadfence_block(void)
{
}

// ---- arithmetic -----------------------------------------------------------------------------------------------------

static inline float rsqrtf(float x)
{
    return 1 / sqrtf(x);
}

template <typename To, typename From> static inline To emulated_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "the same bits as another type");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

static inline int __float_as_int(float x)
{
    return emulated_bits<int>(x);
}

static inline unsigned __float_as_uint(float x)
{
    return emulated_bits<unsigned>(x);
}

static inline float __int_as_float(int x)
{
    return emulated_bits<float>(x);
}

static inline float __uint_as_float(unsigned x)
{
    return emulated_bits<float>(x);
}

static inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}

static inline float __fmul_rn(float a, float b)
{
    return a * b;
}

static inline float __fadd_rn(float a, float b)
{
    return a + b;
}

static inline float __fdividef(float a, float b)
{
    return a / b;
}

static inline float __saturatef(float x)
{
    return fminf(fmaxf(x, 0), 1);
}

static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}

static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}

static inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}

template <typename T> static inline T min(T a, T b)
{
    return b < a ? b : a;
}

template <typename T> static inline T max(T a, T b)
{
    return a < b ? b : a;
}
