// SPDX-License-Identifier: Apache-2.0
// The AMX instructions of the gemm and attention kernels: eight tile registers of up to 16 rows of 64 bytes in every
// core, and the sum of products of two tiles. Tiles are named by a digit, 0 to 7.
//
// With CPU_TILES_EMULATED, plain C replaces the instructions and asserts the conditions on which they fault, so that
// tests can run the AMX kernels on any machine. Only tests are built so.
#pragma once

#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cpu/isa.h"

enum { TILE_COUNT = 8, TILE_MAX_ROWS = TILE_SIDE, TILE_WORDS = TILE_SIDE };

// Tile shapes in the layout of ldtilecfg.
struct tile_config {
    uint8_t palette, start_row, reserved[14]; // palette is 1
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

#ifndef CPU_TILES_EMULATED

static inline void tile_configure(const struct tile_config *config)
{
    __asm__ volatile("ldtilecfg %0" ::"m"(*config));
}

// Releases the tiles: tiles in use add 8 KiB to every thread switch and keep the core from deep sleep states.
static inline void tile_release(void)
{
    __asm__ volatile("tilerelease");
}

#define tile_zero(t) __asm__ volatile("tilezero %%tmm" #t ::)
// Loads a tile whose rows are `stride` bytes apart.
#define tile_load(t, from, stride)                                                                                     \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"((const void *)(from)), "r"((size_t)(stride)) : "memory")
// Does the same for a tile that is read once while other tiles are reused: it evicts less of the other tiles from L1.
#define tile_load_streamed(t, from, stride)                                                                            \
    __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm" #t ::"r"((const void *)(from)), "r"((size_t)(stride)) : "memory")
#define tile_store(t, to, stride)                                                                                      \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"((void *)(to)), "r"((size_t)(stride)) : "memory")
// Computes c [rows][columns] += a [rows][words] times b [words][columns], with bf16 words and f32 sums.
#define tile_dot_bf16(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)
// Does the same on int8 words, a unsigned and b signed, with 32-bit integer sums.
#define tile_dot_bytes(c, a, b) __asm__ volatile("tdpbusd %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)

#else

#include "kernels/convert.h"

struct tile {
    int rows, words;
    uint32_t word[TILE_MAX_ROWS][TILE_WORDS];
};

static _Thread_local struct tile tile_bank[TILE_COUNT];

static inline void tile_configure(const struct tile_config *config)
{
    assert(config->palette == 1 && config->start_row == 0);
    memset(tile_bank, 0, sizeof tile_bank);
    for (int i = 0; i < TILE_COUNT; i++) {
        assert(config->rows[i] <= TILE_MAX_ROWS && config->row_bytes[i] <= 4 * TILE_WORDS);
        tile_bank[i].rows = config->rows[i];
        tile_bank[i].words = config->row_bytes[i] / 4;
    }
}

static inline void tile_release(void)
{
    // Tiles without rows: any operation except tile_configure now asserts, since the hardware would fault.
    memset(tile_bank, 0, sizeof tile_bank);
}

static inline void tile_zero(int t)
{
    assert(tile_bank[t].rows);
    memset(tile_bank[t].word, 0, sizeof tile_bank[t].word);
}

static inline void tile_load(int t, const void *from, size_t stride)
{
    assert(tile_bank[t].rows);
    for (int r = 0; r < tile_bank[t].rows; r++)
        memcpy(tile_bank[t].word[r], (const char *)from + (size_t)r * stride, (size_t)tile_bank[t].words * 4);
}

static inline void tile_load_streamed(int t, const void *from, size_t stride)
{
    tile_load(t, from, stride);
}

static inline void tile_store(int t, void *to, size_t stride)
{
    assert(tile_bank[t].rows);
    for (int r = 0; r < tile_bank[t].rows; r++)
        memcpy((char *)to + (size_t)r * stride, tile_bank[t].word[r], (size_t)tile_bank[t].words * 4);
}

static inline void tile_dot_check(const struct tile *c, const struct tile *a, const struct tile *b)
{
    assert(c->rows && c->rows == a->rows && a->words == b->rows && b->words == c->words && c != a && c != b && a != b);
}

// Sums in the order of the instruction: products of even and of odd elements are summed separately, then both are added
// to c.
static inline void tile_dot_bf16(int ct, int at, int bt)
{
    struct tile *c = &tile_bank[ct], *a = &tile_bank[at], *b = &tile_bank[bt];
    tile_dot_check(c, a, b);
    for (int r = 0; r < c->rows; r++) {
        float even[TILE_WORDS] = {0}, odd[TILE_WORDS] = {0};
        for (int k = 0; k < a->words; k++) {
            float x_even = f32_from_bits(a->word[r][k] << 16), x_odd = f32_from_bits(a->word[r][k] & 0xffff0000u);
            for (int i = 0; i < c->words; i++) {
                even[i] += x_even * f32_from_bits(b->word[k][i] << 16);
                odd[i] += x_odd * f32_from_bits(b->word[k][i] & 0xffff0000u);
            }
        }
        for (int i = 0; i < c->words; i++)
            c->word[r][i] = f32_bits(f32_from_bits(c->word[r][i]) + (even[i] + odd[i]));
    }
}

static inline void tile_dot_bytes(int ct, int at, int bt)
{
    struct tile *c = &tile_bank[ct], *a = &tile_bank[at], *b = &tile_bank[bt];
    tile_dot_check(c, a, b);
    for (int r = 0; r < c->rows; r++)
        for (int k = 0; k < a->words; k++)
            for (int i = 0; i < c->words; i++)
                for (int shift = 0; shift < 32; shift += 8) {
                    int x = a->word[r][k] >> shift & 0xff, w = (int8_t)(b->word[k][i] >> shift & 0xff);
                    c->word[r][i] += (uint32_t)(x * w);
                }
}

#endif
