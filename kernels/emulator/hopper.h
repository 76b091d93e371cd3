// SPDX-License-Identifier: Apache-2.0
// The instructions of kernels/cuda/hopper.h on the CPU. Asynchronous operations happen as late as hardware may do them:
// a copy when all threads of the block wait, and a product at the wait for it. Until then the result holds NaN, which
// exposes a kernel that reads it too early. A kernel that overwrites operands too early gets wrong results.
#pragma once

#include <assert.h>
#include <cudaTypedefs.h>
#include <stdio.h>
#include <stdlib.h>

#include <deque>
#include <vector>

#undef __grid_constant__
#define __grid_constant__
#define HOPPER true

void emulated_barrier_init(uint64_t *barrier, int count);
void emulated_barrier_init_fence(void);
void emulated_barrier_arrive(uint64_t *barrier, int bytes);
void emulated_barrier_wait(uint64_t *barrier, uint32_t parity, const char *file, int line);
void emulated_named_barrier(int id, int threads, bool wait, const char *file, int line);
// Copies a box to shared memory the next time that all threads wait.
void emulated_box_load(void *to, const CUtensorMap *map, int x, int y, uint64_t *barrier);

static inline void barrier_init(uint64_t *barrier, int count)
{
    emulated_barrier_init(barrier, count);
}

static inline void barrier_init_fence(void)
{
    emulated_barrier_init_fence();
}

static inline void barrier_arrive(uint64_t *barrier)
{
    emulated_barrier_arrive(barrier, 0);
}

static inline void barrier_arrive_expect(uint64_t *barrier, int bytes)
{
    emulated_barrier_arrive(barrier, bytes);
}

static inline void barrier_wait(uint64_t *barrier, uint32_t parity, EMULATED_PLACE)
{
    emulated_barrier_wait(barrier, parity, file, line);
}

static inline void named_sync(int id, int threads, EMULATED_PLACE)
{
    emulated_named_barrier(id, threads, true, file, line);
}

static inline void named_arrive(int id, int threads, EMULATED_PLACE)
{
    emulated_named_barrier(id, threads, false, file, line);
}

template <int N> static inline void registers_lower(void)
{
    static_assert(N % 8 == 0, "registers are assigned in eights");
}

template <int N> static inline void registers_raise(void)
{
    static_assert(N % 8 == 0, "registers are assigned in eights");
}

static inline void box_load(void *to, const CUtensorMap *map, int x, int y, uint64_t *barrier)
{
    emulated_box_load(to, map, x, y, barrier);
}

static inline void box_prefetch_map(const CUtensorMap *)
{
}

static inline void writes_fence(void)
{
}

// ---- wgmma ----------------------------------------------------------------------------------------------------------

// Returns the descriptor of a matrix. Addresses in shared memory are offsets from its start.
static inline uint64_t matrix_at(const void *at, int apart)
{
    uint64_t offset = (uint64_t)((const char *)at - (const char *)emulated_dynamic_shared());
    assert(offset % 1024 == 0);
    return offset >> 4 | (uint64_t)(apart >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

// Returns a value of a matrix. `at` is its byte offset in the layout without permutation.
EMULATED_UNCHECKED static inline double emulated_matrix_value(const unsigned char *shared, uint32_t at)
{
    uint16_t high;
    memcpy(&high, shared + (at ^ (at >> 7 & 7) << 4), sizeof high);
    const uint32_t bits = (uint32_t)high << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

// One lane's part of a product that has not completed.
struct emulated_product {
    float *c;
    int n;                    // columns of B
    std::vector<float> start; // c before the first pending product on it; empty for later products
    bool in_registers;
    double rows[2][16]; // A in registers
    uint64_t a, b;
    bool add;
    int group;
};
static std::deque<emulated_product> emulated_products[1024]; // products of each thread of the block
static int emulated_product_groups[1024];
// true if wgmma_fence was called since the last wait. After a wait, registers may be written.
static bool emulated_fenced[1024];

static inline void emulated_product_begin(emulated_product product)
{
    std::deque<emulated_product> &all = emulated_products[emulated_thread()];
    if (!emulated_fenced[emulated_thread()]) {
        fprintf(stderr, "cuda emulator: a product of a warp group without wgmma_fence before it\n");
        abort();
    }
    bool under_way = false;
    for (const emulated_product &before : all)
        under_way |= before.c == product.c;
    if (!under_way) product.start.assign(product.c, product.c + product.n / 2);
    memset(product.c, 0xff, (size_t)product.n / 2 * sizeof *product.c);
    product.group = emulated_product_groups[emulated_thread()];
    all.push_back(product);
}

EMULATED_UNCHECKED static inline void emulated_product_end(const emulated_product *p)
{
    const unsigned char *shared = (const unsigned char *)emulated_dynamic_shared();
    const uint32_t a = (uint32_t)(p->a & 0x3fff) << 4, b = (uint32_t)(p->b & 0x3fff) << 4;
    const uint32_t apart = (uint32_t)(p->b >> 16 & 0x3fff) << 4;
    const int lane = emulated_lane(), warp = emulated_thread() / 32 % 4;
    double rows[2][16];
    for (int r = 0; r < 2; r++)
        for (int k = 0; k < 16; k++) {
            uint32_t row = (uint32_t)(warp * 16 + r * 8 + lane / 4);
            rows[r][k] =
                p->in_registers ? p->rows[r][k] : emulated_matrix_value(shared, a + row * 128 + (uint32_t)k * 2);
        }
    if (!p->start.empty()) memcpy(p->c, p->start.data(), p->start.size() * sizeof *p->c);
    for (int i = 0; i < p->n / 8; i++)
        for (int x = 0; x < 2; x++) {
            uint32_t n = (uint32_t)(i * 8 + lane % 4 * 2 + x);
            double sums[2] = {};
            for (uint32_t k = 0; k < 16; k++) {
                uint32_t at = p->in_registers ? k * 128 + n / 64 * apart + n % 64 * 2 : n * 128 + k * 2;
                double value = emulated_matrix_value(shared, b + at);
                sums[0] += rows[0][k] * value, sums[1] += rows[1][k] * value;
            }
            for (int r = 0; r < 2; r++) {
                float *c = &p->c[4 * i + 2 * r + x];
                *c = (float)((p->add ? (double)*c : 0) + sums[r]);
            }
        }
}

template <int N> static inline void wgmma_shared(float (&c)[N], uint64_t a, uint64_t b, bool add)
{
    emulated_product_begin({c, 2 * N, {}, false, {}, a, b, add, 0});
}

template <int N>
static inline void wgmma_registers(float (&c)[N], const uint32_t a[4], uint64_t b, bool add, EMULATED_PLACE)
{
    emulated_product product = {c, 2 * N, {}, true, {}, 0, b, add, 0};
    const emulated_fragments own = {{a[0], a[1], a[2], a[3]}, {}}, *all = emulated_warp(own, file, line);
    for (int k = 0; k < 16; k += 2)
        for (int r = 0; r < 2; r++)
            emulated_unpack(&product.rows[r][k], all[emulated_lane() / 4 * 4 + k % 8 / 2].a[r + k / 8 * 2]);
    emulated_product_begin(product);
}

static inline void wgmma_fence(void)
{
    emulated_fenced[emulated_thread()] = true;
}

static inline void wgmma_commit(void)
{
    emulated_product_groups[emulated_thread()]++;
}

template <int PENDING, int N> static inline void wgmma_wait(float (&)[N], EMULATED_PLACE)
{
    std::deque<emulated_product> &all = emulated_products[emulated_thread()];
    emulated_fenced[emulated_thread()] = false;
    while (!all.empty() && all.front().group < emulated_product_groups[emulated_thread()] - PENDING) {
        emulated_product_end(&all.front());
        all.pop_front();
    }
    __syncwarp(0xffffffffu, file, line); // when one lane returns, the product of the whole warp is complete
}
