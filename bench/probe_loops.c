// SPDX-License-Identifier: Apache-2.0
// A loop keeps enough independent sums in registers to hide latency (24 of 32 vector registers, 12 of 16), and touches
// no memory.
#include "bench/probe_loops.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/tiles.h"

#define FOR_CPU(features) __attribute__((target(features)))
#endif

// Keeps `n` sums of type `vec`, each updated `iterations` times by `step` (an expression in `sum[i]`). The sums start
// with different values, or the compiler would merge them. Loops over them are fully unrolled, or they would live in
// memory.
#define LOOP(vec, n, start, step)                                                                                      \
    vec sum[n];                                                                                                        \
    _Pragma("GCC unroll 24") for (int i = 0; i < (n); i++) sum[i] = (start);                                           \
    for (int turn = 0; turn < iterations; turn++) {                                                                    \
        _Pragma("GCC unroll 24") for (int i = 0; i < (n); i++) sum[i] = (step);                                        \
    }                                                                                                                  \
    int bits = 0;                                                                                                      \
    _Pragma("GCC unroll 24") for (int i = 0; i < (n); i++)                                                             \
    {                                                                                                                  \
        vec copy = sum[i]; /* sum itself must have no address */                                                       \
        int first;                                                                                                     \
        memcpy(&first, &copy, sizeof first);                                                                           \
        bits ^= first;                                                                                                 \
    }                                                                                                                  \
    return bits

// ---- arithmetic -----------------------------------------------------------------------------------------------------

typedef float vec4 __attribute__((vector_size(16)));

static int plain_f32(int iterations)
{
    volatile float seed = 1e-6f; // unknown at compile time
    const vec4 x = {seed, seed, seed, seed}, y = {seed, 2 * seed, seed, seed};
    LOOP(vec4, 12, x * (float)i, sum[i] * x + y);
}

#if defined(__x86_64__)
FOR_CPU("avx2,fma") static int avx2_f32(int iterations)
{
    volatile float seed = 1e-6f;
    const __m256 x = _mm256_set1_ps(seed), y = _mm256_set1_ps(2 * seed);
    LOOP(__m256, 12, _mm256_set1_ps(seed * (float)i), _mm256_fmadd_ps(x, y, sum[i]));
}

FOR_CPU("avx512f") static int avx512_f32(int iterations)
{
    volatile float seed = 1e-6f;
    const __m512 x = _mm512_set1_ps(seed), y = _mm512_set1_ps(2 * seed);
    LOOP(__m512, 24, _mm512_set1_ps(seed * (float)i), _mm512_fmadd_ps(x, y, sum[i]));
}

FOR_CPU("avx512f,avx512bf16") static int avx512_bf16(int iterations)
{
    volatile int seed = 0x3c003c00; // two numbers of 2^-7
    const __m512bh x = (__m512bh)_mm512_set1_epi32(seed);
    LOOP(__m512, 24, _mm512_set1_ps((float)i), _mm512_dpbf16_ps(sum[i], x, x));
}

// Computes a dot product of bytes on CPUs that lack VNNI: vpmaddubsw, vpmaddwd, vpaddd. The empty assembly hides that
// the operand never changes, or the compiler would compute the products once.
FOR_CPU("avx2") static __m256i avx2_dot(__m256i sum, __m256i x, __m256i ones)
{
    __asm__ volatile("" : "+x"(x));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(x, x), ones));
}

FOR_CPU("avx2") static int avx2_int8(int iterations)
{
    volatile int seed = 0x01010101;
    const __m256i x = _mm256_set1_epi32(seed), ones = _mm256_set1_epi16(1);
    LOOP(__m256i, 8, _mm256_set1_epi32(seed + i), avx2_dot(sum[i], x, ones));
}

// Uses inline assembly, since GCC 12 adds moves around the intrinsic.
FOR_CPU("avx512f,avx512vnni") static __m512i avx512_dot(__m512i sum, __m512i x)
{
    __asm__("vpdpbusd %1, %1, %0" : "+v"(sum) : "v"(x));
    return sum;
}

FOR_CPU("avx512f,avx512vnni") static int avx512_int8(int iterations)
{
    volatile int seed = 0x01010101;
    const __m512i x = _mm512_set1_epi32(seed);
    LOOP(__m512i, 24, _mm512_set1_epi32(i), avx512_dot(sum[i], x));
}

// Starts four tiles of sums, as in the AMX kernel.
static void tiles_start(void)
{
    struct tile_config config = {.palette = 1};
    for (int t = 0; t < TILE_COUNT; t++) {
        config.rows[t] = TILE_MAX_ROWS;
        config.row_bytes[t] = 4 * TILE_WORDS;
    }
    tile_configure(&config); // also clears the tiles
}

static int tiles_end(void)
{
    int sums[TILE_MAX_ROWS][TILE_WORDS];
    tile_store(0, sums, sizeof sums[0]);
    tile_release();
    return sums[0][0];
}

static int amx_bf16(int iterations)
{
    tiles_start();
    for (int turn = 0; turn < iterations; turn++) {
        tile_dot_bf16(0, 4, 6);
        tile_dot_bf16(1, 4, 7);
        tile_dot_bf16(2, 5, 6);
        tile_dot_bf16(3, 5, 7);
    }
    return tiles_end();
}

static int amx_int8(int iterations)
{
    tiles_start();
    for (int turn = 0; turn < iterations; turn++) {
        tile_dot_bytes(0, 4, 6);
        tile_dot_bytes(1, 4, 7);
        tile_dot_bytes(2, 5, 6);
        tile_dot_bytes(3, 5, 7);
    }
    return tiles_end();
}
#endif

enum feature { ANY, AVX2, AVX512, AVX512_BF16, AVX512_VNNI, AMX };

static bool cpu_has(enum feature feature)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    switch (feature) {
    case AVX2: return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case AVX512: return __builtin_cpu_supports("avx512f");
    case AVX512_BF16: return __builtin_cpu_supports("avx512bf16");
    case AVX512_VNNI: return __builtin_cpu_supports("avx512vnni");
    case AMX: return cpu_isa_at(CPU_ISA_AMX) != NULL; // also requests the tiles from the kernel
    default: break;
    }
#endif
    return feature == ANY;
}

// The fastest loop of each type comes first.
static const struct {
    enum probe_type type;
    enum feature feature;
    struct probe_loop loop;
} loops[] = {
#if defined(__x86_64__)
    {PROBE_INT8, AMX, {"tdpbusd", 4 * 16 * 16 * 64 * 2, amx_int8}},
    {PROBE_INT8, AVX512_VNNI, {"vpdpbusd zmm", 24 * 64 * 2, avx512_int8}},
    {PROBE_INT8, AVX2, {"vpmaddubsw ymm", 8 * 32 * 2, avx2_int8}},
    {PROBE_BF16, AMX, {"tdpbf16ps", 4 * 16 * 16 * 32 * 2, amx_bf16}},
    {PROBE_BF16, AVX512_BF16, {"vdpbf16ps zmm", 24 * 32 * 2, avx512_bf16}},
    {PROBE_F32, AVX512, {"vfmadd231ps zmm", 24 * 16 * 2, avx512_f32}},
    {PROBE_F32, AVX2, {"vfmadd231ps ymm", 12 * 8 * 2, avx2_f32}},
#endif
    {PROBE_F32, ANY, {"plain C", 12 * 4 * 2, plain_f32}},
};

const struct probe_loop *probe_loop_best(enum probe_type type)
{
    size_t n = sizeof loops / sizeof loops[0];
    for (size_t i = 0; i < n; i++)
        if (loops[i].type == type && cpu_has(loops[i].feature)) return &loops[i].loop;
    return probe_loop_best(PROBE_F32);
}

// ---- memory ---------------------------------------------------------------------------------------------------------

// One body, compiled for each vector width.
typedef uint64_t vec_words __attribute__((vector_size(64), aligned(64)));

enum { STREAM_STEP = 1024, STREAM_AHEAD = 2048 }; // bytes; the usual distance of the AMX gemm

static inline __attribute__((always_inline)) uint64_t stream_xor(const void *data, size_t bytes, bool prefetch)
{
    vec_words a = {0}, b = a, c = a, d = a;
    for (const char *at = data, *end = at + bytes; at < end; at += STREAM_STEP) {
        for (int i = 0; prefetch && i < STREAM_STEP; i += 64)
            __builtin_prefetch(at + STREAM_AHEAD + i, 0, 3);
        const vec_words *from = (const vec_words *)(const void *)at;
#pragma GCC unroll 4
        for (size_t i = 0; i < STREAM_STEP / sizeof *from; i += 4) {
            a ^= from[i];
            b ^= from[i + 1];
            c ^= from[i + 2];
            d ^= from[i + 3];
        }
    }
    a ^= b ^ c ^ d;
    return a[0] ^ a[1] ^ a[2] ^ a[3] ^ a[4] ^ a[5] ^ a[6] ^ a[7];
}

static uint64_t plain_stream(const void *data, size_t bytes, bool prefetch)
{
    return prefetch ? stream_xor(data, bytes, true) : stream_xor(data, bytes, false);
}

#if defined(__x86_64__)
FOR_CPU("avx2") static uint64_t avx2_stream(const void *data, size_t bytes, bool prefetch)
{
    return prefetch ? stream_xor(data, bytes, true) : stream_xor(data, bytes, false);
}

FOR_CPU("avx512f,prefer-vector-width=512")
static uint64_t avx512_stream(const void *data, size_t bytes, bool prefetch)
{
    return prefetch ? stream_xor(data, bytes, true) : stream_xor(data, bytes, false);
}
#endif

probe_stream_fn probe_stream_best(void)
{
#if defined(__x86_64__)
    if (cpu_has(AVX512)) return avx512_stream;
    if (cpu_has(AVX2)) return avx2_stream;
#endif
    return plain_stream;
}
