// SPDX-License-Identifier: Apache-2.0
// The arithmetic of the CPU backend, as one table of kernels per instruction set. kernels.c is compiled once for each
// of them with that set's compiler flags and exports nothing but its table; the backend picks the best one the machine
// has when it opens. Kernels run on the calling thread, allocate nothing and know nothing of threads or batches.
//
// Words. Weights, activations and keys are arrays of 32-bit words along the dimension that is summed over: a word is
// one f32, or a pair of bf16 (the lower half is the even element), or four int8. So all types share layouts and loops,
// and the dot product instructions eat words as they lie.
//
// Exactness. Every output element is one chain of operations that depends only on its own row and on fixed
// boundaries, never on how many rows are computed beside it or on which rows those are.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/backend.h"
#include "kernels/convert.h"

// Each has all that those before it have.
enum cpu_isa_level {
    CPU_ISA_PORTABLE,
    CPU_ISA_AVX2,
    CPU_ISA_AVX512,
    CPU_ISA_AVX512_VNNI,
    CPU_ISA_AVX512_BF16,
    CPU_ISA_AMX,
    CPU_ISA_COUNT
};

enum {
    PANEL_COLUMNS = 64,     // outputs of a weight that are packed and computed together
    TILE_ENTRIES = 64,      // KV entries per step of the online softmax, counted from the sequence's first
    SEGMENT_ENTRIES = 1024, // KV entries whose sums are gathered on their own, counted likewise: the unit in which one
                            // query's attention can be spread over threads
    ATTEND_QUERY_TILE = 6,  // queries computed together
    SUM_LANES = 16,         // floats that a vector has at most
};

static inline int words_of(int n, bool bf16)
{
    return bf16 ? (n + 1) / 2 : n;
}

// What the words of a product hold. In the INT8 types weights are signed bytes and rows of x are bytes with 128 added,
// each x ~ q * scale with a scale per output and per row; in GROUPS these hold for GROUP_SIZE of K only.
enum product_type { PRODUCT_F32, PRODUCT_BF16, PRODUCT_INT8, PRODUCT_INT8_GROUPS };
enum { GROUP_SIZE = QUANTISE_GROUP, GROUP_WORDS = GROUP_SIZE / 4 };

static inline int product_words(int k, enum product_type type)
{
    return type == PRODUCT_F32 ? k : type == PRODUCT_BF16 ? (k + 1) / 2 : (k + 3) / 4;
}

// c [rows][PANEL_COLUMNS] (+)= x [rows][words] times a block of a packed panel [words][PANEL_COLUMNS], whose next
// block follows in memory. PRODUCT_INT8 leaves integers in c.
struct panel_product {
    enum product_type type;
    bool accumulate; // not the first block of K
    int rows, words;
    float *c;
    const uint32_t *x;
    size_t x_stride; // words
    const uint32_t *panel;
    const uint32_t *start; // INT8: -128 times the sum of the weights, [PANEL_COLUMNS]; [groups of the block] of them
    const float *w_scale;  // GROUPS: [groups of the block][PANEL_COLUMNS]
    const float *x_scale;  // GROUPS: [rows][x_scale_stride], first group of the block
    int x_scale_stride;
};

// Where the product of some rows with one panel goes.
struct panel_out {
    enum linear_mode mode;
    const float *bias;              // [PANEL_COLUMNS] of this panel, or NULL
    const float *x_scale, *w_scale; // PRODUCT_INT8: [rows], [PANEL_COLUMNS]; else NULL
    bool bf16;                      // type of out
    void *out;                      // first row, first column of the panel
    int stride;                     // elements from row to row
    int columns;                    // valid columns of the panel in out
};

// The cached K and V of one layer, one KV head, one sequence. A block of KV_BLOCK_TOKENS entries is K as words of its
// dimensions, [words_of(D)][KV_BLOCK_TOKENS], then V as words of its entries, [words_of(KV_BLOCK_TOKENS)][v_stride]:
// both products of attention sum over words as they lie. In int8 it is K as bytes [D][KV_BLOCK_TOKENS] and V as bytes
// [KV_BLOCK_TOKENS][v_stride], of which two rows make a row of such words, then the scales of K and of V
// [KV_BLOCK_TOKENS] f32 each.
struct kv_view {
    char *base; // of block 0
    const int32_t *blocks;
    size_t block_bytes, v_offset_bytes, scale_offset_bytes;
    int head_size, v_stride; // v_stride: head_size rounded up to 16
    bool bf16;               // the products' type
    bool int8;               // the cache's; then bf16 too
};

// Queries of consecutive rows of one sequence and of all heads that share a KV head.
struct attend_tile {
    struct kv_view kv;
    int rows, group; // rows x heads of the group
    int first_valid; // entries that row 0 attends to; row r attends to first_valid + r
    int first, end;  // entries attended to here; first is a multiple of SEGMENT_ENTRIES
    const float *q;  // row 0, first head of the group; heads are head_size apart
    int q_stride;    // floats from row to row
    void *out;       // as q, in the activation dtype (bf16 as the products)
    int out_stride;  // elements from row to row
    float *partial;  // NULL, or [attend_partial_floats] for the result of this one segment, to be merged later
    float *scratch;  // [attend_scratch_floats]
};

// Of `queries` = rows * group.
static inline size_t attend_partial_floats(int queries, int head_size)
{
    size_t padded = ((size_t)head_size + 15) / 16 * 16;
    return (size_t)queries * (padded + SUM_LANES) + ((size_t)queries + 15) / 16 * 16;
}

// Room for the K and V of a step in int8 as words of bf16, and their scales.
static inline size_t step_words_floats(int head_size)
{
    size_t padded = ((size_t)head_size + 15) / 16 * 16;
    return TILE_ENTRIES * (padded + 2);
}

static inline size_t attend_scratch_floats(int queries, int head_size)
{
    size_t padded = ((size_t)head_size + 15) / 16 * 16;
    return step_words_floats(head_size) + (size_t)queries * padded + 2 * attend_partial_floats(queries, head_size) +
           2 * (size_t)ATTEND_QUERY_TILE * TILE_ENTRIES;
}

// One row whose attention over the first n entries is wanted, for all heads that share a KV head.
struct probe_tile {
    struct kv_view kv;
    int group, n, window;
    const float *q; // as in attend_tile
    float *maximum; // [n] raised
    float *scratch; // [probe_scratch_floats]
    size_t stride;  // probe_stride(n) or more
};

static inline size_t probe_stride(int n)
{
    return ((size_t)n + TILE_ENTRIES - 1) / TILE_ENTRIES * TILE_ENTRIES + 2 * (size_t)TILE_ENTRIES;
}

static inline size_t probe_scratch_floats(int n, int head_size)
{
    return step_words_floats(head_size) + ATTEND_QUERY_TILE * (probe_stride(n) + TILE_ENTRIES + (size_t)head_size);
}

struct cpu_isa {
    const char *name;
    int vector_floats; // also the unit in which a gate_up weight interleaves gate and up columns
    int step_words;    // panels hold a multiple of so many words of K, zeros beyond K; rows of x have room for them

    void (*panel_product)(const struct panel_product *p);
    // out [n] = bytes q + 128, returns their scale; x is bf16 or f32.
    float (*quantise)(uint8_t *out, const void *x, bool bf16, int n);
    // Ends a product: c [rows][PANEL_COLUMNS] is destroyed.
    void (*panel_finish)(float *c, int rows, const struct panel_out *out);

    void (*rmsnorm_row)(void *out, bool bf16, const float *x, const float *gain, int n, float epsilon);
    // In place on one head: RMS norm (gain NULL: none), then RoPE with cos and sin [D/2] (NULL: none).
    void (*rope_head)(float *head, const float *gain, int head_size, float epsilon, const float *cos_sin);
    // In place on one head: the Hadamard matrix of an int8 cache (backend.h).
    void (*spread_head)(float *head, int head_size);
    // K and V of one entry into its block.
    void (*kv_append)(const struct kv_view *kv, int entry, const float *k, const float *v);
    void (*attend)(const struct attend_tile *tile);
    // Ends the attention of a tile whose segments lie in tile->partial, one after another; first and end are not read.
    void (*attend_merge)(const struct attend_tile *tile, int segments);
    // maximum = max(maximum, softmax of each head's q over the first n entries, averaged over a centred window).
    void (*probe)(const struct probe_tile *tile);
};

// NULL when the build or the machine lacks it.
const struct cpu_isa *cpu_isa_at(enum cpu_isa_level level);
// The best there is.
const struct cpu_isa *cpu_isa_best(void);
// For tests: the best for backends opened afterwards is this one. Not thread-safe.
void cpu_isa_prefer(const struct cpu_isa *isa);
