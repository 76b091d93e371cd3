// SPDX-License-Identifier: Apache-2.0
// Single instructions that kernels use. Each has an equivalent in plain C++ for the emulator, which follows the
// fragment layouts of the PTX ISA. mma and ldmatrix are operations of a whole warp: all 32 lanes must call.
//
// Fragments of lane 4 g + c (g: 0..7, c: 0..3); a register holds two bf16, the lower index in the lower half:
//   A [16 x 16]  a0 = (row g, columns 2c, 2c+1), a1 = (row g+8, columns 2c, 2c+1),
//                a2 = (row g, columns 2c+8, 2c+9), a3 = (row g+8, columns 2c+8, 2c+9)
//   B [16 x 8]   b0 = (rows 2c, 2c+1, column g), b1 = (rows 2c+8, 2c+9, column g)
//   C [16 x 8]   f32: c0, c1 = (row g, columns 2c, 2c+1), c2, c3 = (row g+8, columns 2c, 2c+1)
// So C of one mma, rounded and packed, is half of A of the next: scores become weights without leaving the lane.
#pragma once

#include "kernels/cuda/device.h"

#ifdef FOREPACK_CUDA_EMULATED
#include <assert.h>

#include <vector>
#endif

static __device__ __forceinline__ uint32_t pack_bf16(float low, float high)
{
    __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    uint32_t bits;
    memcpy(&bits, &both, sizeof bits);
    return bits;
}

// Pack the lower halves, or the upper halves, of a and b into one register. Each is one byte permutation.
static __device__ __forceinline__ uint32_t pack_lower(uint32_t a, uint32_t b)
{
    return (a & 0xffff) | b << 16;
}

static __device__ __forceinline__ uint32_t pack_upper(uint32_t a, uint32_t b)
{
    return a >> 16 | (b & 0xffff0000);
}

#ifndef FOREPACK_CUDA_EMULATED

// Computes c += A B.
static __device__ __forceinline__ void mma_bf16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Load four 8 x 8 matrices of bf16. Lane 8 i + j points at row j of matrix i: 16 bytes of shared memory, aligned. r[i]
// of lane 4 g + c is (row g, columns 2c, 2c+1) of matrix i, or if transposed (rows 2c, 2c+1, column g).
static __device__ __forceinline__ void load_matrices(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row)));
}

static __device__ __forceinline__ void load_matrices_transposed(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row)));
}

// Starts a copy of 16 or 8 bytes from global to shared memory, both aligned to their size. The first `bytes` bytes are
// copied and the rest is set to zero. With 0 bytes nothing is read. `commit` puts the lane's copies so far into a
// group. `wait<n>` waits until all groups of this thread except the last n are complete. Other threads see the copied
// bytes after a barrier. Copies of 16 bytes bypass the L1 cache.
template <int SIZE> static __device__ __forceinline__ void copy_async(void *shared, const void *global, int bytes)
{
    uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
    if (SIZE == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(global), "r"(bytes) : "memory");
}

static __device__ __forceinline__ void copy_async_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int N> static __device__ __forceinline__ void copy_async_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Returns 2^x with a relative error of at most 2^-22. Results below 2^-126 are 0.
static __device__ __forceinline__ float exp2_approx(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Computes sin and cos of 2 pi x for |x| <= 1, as accurate as sinf of a small argument.
static __device__ __forceinline__ void sincos_of_turn(float x, float *sin_p, float *cos_p)
{
    sincospif(2 * x, sin_p, cos_p);
}

// Returns bytes 2 I and 2 I + 1 as two integers of 16 bits, with the sign of the byte in all bits above it.
template <int I> static __device__ __forceinline__ uint32_t spread_bytes(uint32_t bytes)
{
    uint32_t result;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(result) : "r"(bytes), "n"(I ? 0xb3a2 : 0x9180));
    return result;
}

// Converts two e4m3 values, as spread_bytes returns them, to bf16. Moving the bits to their places in bf16 leaves an
// exponent that is 120 too small. Multiplying by 2^120 is exact and also correct for subnormals. (Hopper converts with
// one instruction, but only to f16.) K and V have no NaN codes: a head that is not finite has the scale NaN instead.
static __device__ __forceinline__ uint32_t bf16_from_e4m3(uint32_t spread)
{
    uint32_t bits = spread << 4 & 0x87f087f0, result;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(bits), "r"(0x7b807b80), "r"(0x80008000));
    return result;
}

#else // ---- the same, lane by lane ---------------------------------------------------------------------------------

struct emulated_fragments {
    uint32_t a[4], b[2];
};

EMULATED_UNCHECKED static inline void emulated_unpack(double to[2], uint32_t both)
{
    const uint32_t bits[2] = {both << 16, both & 0xffff0000};
    float values[2];
    memcpy(values, bits, sizeof values);
    to[0] = (double)values[0];
    to[1] = (double)values[1];
}

EMULATED_UNCHECKED static inline void emulated_multiply(float c[4], const emulated_fragments *all, int lane)
{
    double rows[2][16], columns[2][16], sums[2][2] = {};
    for (int k = 0; k < 16; k += 2)
        for (int i = 0; i < 2; i++) {
            emulated_unpack(&rows[i][k], all[lane / 4 * 4 + k % 8 / 2].a[i + k / 8 * 2]);
            emulated_unpack(&columns[i][k], all[(lane % 4 * 2 + i) * 4 + k % 8 / 2].b[k / 8]);
        }
    for (int k = 0; k < 16; k++)
        for (int i = 0; i < 4; i++)
            sums[i / 2][i % 2] += rows[i / 2][k] * columns[i % 2][k];
    for (int i = 0; i < 4; i++)
        c[i] = (float)((double)c[i] + sums[i / 2][i % 2]);
}

static inline void mma_bf16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1, EMULATED_PLACE)
{
    const emulated_fragments own = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
    emulated_multiply(c, emulated_warp(own, file, line), emulated_lane());
}

static inline void emulated_load_matrices(uint32_t r[4], const void *row, bool transposed, const char *file, int line)
{
    assert((uintptr_t)row % 16 == 0);
    const void *const *rows = emulated_warp(row, file, line);
    int lane = emulated_lane(), g = lane / 4, c = lane % 4;
    for (int i = 0; i < 4; i++) {
        uint16_t low, high;
        if (transposed) {
            memcpy(&low, (const uint16_t *)rows[8 * i + 2 * c] + g, 2);
            memcpy(&high, (const uint16_t *)rows[8 * i + 2 * c + 1] + g, 2);
        } else {
            memcpy(&low, (const uint16_t *)rows[8 * i + g] + 2 * c, 2);
            memcpy(&high, (const uint16_t *)rows[8 * i + g] + 2 * c + 1, 2);
        }
        r[i] = low | (uint32_t)high << 16;
    }
}

static inline void load_matrices(uint32_t r[4], const void *row, EMULATED_PLACE)
{
    emulated_load_matrices(r, row, false, file, line);
}

static inline void load_matrices_transposed(uint32_t r[4], const void *row, EMULATED_PLACE)
{
    emulated_load_matrices(r, row, true, file, line);
}

// A copy that has not happened. Copies happen at the wait, as late as the hardware may do them. Until then the
// destination holds NaN, which exposes a kernel that reads too early.
struct emulated_copy {
    char *to;
    const char *from;
    int size, bytes, group;
};
static std::vector<emulated_copy> emulated_copies[1024]; // copies of each thread of the block
static int emulated_groups[1024];

static inline int emulated_thread(void)
{
    return (int)(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
}

template <int SIZE> static inline void copy_async(void *shared, const void *global, int bytes)
{
    static_assert(SIZE == 8 || SIZE == 16, "cp.async copies 8 or 16 bytes");
    assert((uintptr_t)shared % SIZE == 0 && (uintptr_t)global % SIZE == 0 && bytes >= 0 && bytes <= SIZE);
    memset(shared, 0xff, SIZE);
    int thread = emulated_thread();
    emulated_copies[thread].push_back({(char *)shared, (const char *)global, SIZE, bytes, emulated_groups[thread]});
}

static inline void copy_async_commit(void)
{
    emulated_groups[emulated_thread()]++;
}

template <int N> static inline void copy_async_wait(void)
{
    int thread = emulated_thread();
    std::vector<emulated_copy> rest;
    for (const emulated_copy &copy : emulated_copies[thread])
        if (copy.group < emulated_groups[thread] - N) {
            memset(copy.to, 0, (size_t)copy.size);
            memcpy(copy.to, copy.from, (size_t)copy.bytes);
        } else {
            rest.push_back(copy);
        }
    emulated_copies[thread].swap(rest);
}

static inline float exp2_approx(float x)
{
    float y = exp2f(x);
    return y < 0x1p-126f ? 0 : y; // NaN stays
}

static inline void sincos_of_turn(float x, float *sin_p, float *cos_p)
{
    double angle = 2 * M_PI * (double)x;
    *sin_p = (float)sin(angle);
    *cos_p = (float)cos(angle);
}

template <int I> static inline uint32_t spread_bytes(uint32_t bytes)
{
    const int8_t low = (int8_t)(bytes >> (16 * I)), high = (int8_t)(bytes >> (16 * I + 8));
    return (uint32_t)(uint16_t)low | (uint32_t)(uint16_t)high << 16;
}

static inline uint32_t bf16_from_e4m3(uint32_t spread)
{
    return pack_bf16(float_from_e4m3((uint8_t)spread), float_from_e4m3((uint8_t)(spread >> 16)));
}

#endif

// Converts bytes 0..3 of four e4m3 values to four bf16, in order.
static __device__ __forceinline__ uint2 bf16_from_e4m3x4(uint32_t bytes)
{
    uint2 result;
    result.x = bf16_from_e4m3(spread_bytes<0>(bytes));
    result.y = bf16_from_e4m3(spread_bytes<1>(bytes));
    return result;
}

static __device__ __forceinline__ uint4 bf16_from_e4m3x8(uint2 bytes)
{
    uint2 low = bf16_from_e4m3x4(bytes.x), high = bf16_from_e4m3x4(bytes.y);
    uint4 result;
    result.x = low.x, result.y = low.y, result.z = high.x, result.w = high.y;
    return result;
}
