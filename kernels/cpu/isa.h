// SPDX-License-Identifier: Apache-2.0
// The arithmetic of the CPU backend, as one table of kernels for each instruction set level. kernels.c is compiled once
// for each level with the compiler flags of that level, and exports only its table. The backend uses the fastest level
// of the machine. Kernels run on the calling thread, allocate nothing and know nothing of threads or batches.
//
// Words. Weights, activations and keys are arrays of 32-bit words along K, the dimension that is summed over. A word
// has one f32, a pair of bf16 (the even element in the lower half) or four int8. Every type shares layouts and loops,
// and the dot product instructions (dpbf16, dpbusd) read a word as it is stored.
//
// Packed weights. The N outputs of an N x K weight are cut into panels of PANEL_COLUMNS outputs. A panel stores its
// words K-major, so that a gemm reads it from front to back:
//
//                       panel p: outputs 64p .. 64p + 63
//      word 0           | out 0 | out 1 | out 2 |   ..   | out 63 |   256 bytes: 4 vectors of AVX-512, 4 cache lines
//      word 1           |       |       |       |        |        |
//        ..             |       |       |       |        |        |   one word of K: f32 k, bf16 2k and 2k + 1,
//      word W - 1       |       |       |       |        |        |   int8 4k .. 4k + 3, or int4 8k .. 8k + 7;
//                                                                        W padded to step_words (int4: INT4_STEP)
//
//      a weight: panel 0, panel 1, .. one after another; outputs and words beyond N and K are zeros
//
// A register tile computes up to 6 rows of x by 64 columns (AVX-512; 6 by 16 with AVX2, 6 by 8 portable) and keeps its
// sums in registers.
//
// Tiled words (AMX, all types except f32). Panels and rows of x are cut into contiguous tiles of TILE_SIDE by TILE_SIDE
// words. A tile load is twice as fast from 16 neighbouring cache lines as from 16 distant ones:
//
//      a panel          [words / 256][2 halves of 32 outputs][16 steps][2 tiles of 16 outputs][16 words][16 outputs]
//      x                [rows / 16][words / 16][16 rows][16 words]      bf16 activations, or int8 after quantisation
//      sums of a panel  [rows / 16][4 tiles of 16 outputs][16 rows][16 outputs]
//
// Half a panel over TILED_BLOCK_WORDS words of K is 32 KiB: all rows use it from L1 before the next half. It is
// contiguous because lines 4 KiB apart share a set of L1. The last block of K may have fewer steps.
//
// int4. A word has the codes of eight values of K: the even values in its lower half, the odd values in its upper half,
// each from the lowest bits up. So one shift of both halves gives a pair of bf16. Panels are never tiled. A gemm of few
// rows decodes the words in registers. A gemm of more rows, and every gemm on tiles, first decodes a block of K of the
// panel to bf16 words: code - 8, which is exact. Sums over a group of K are therefore sums of x (code - 8). Subtracting
// (zero - 8) times the sum of x and multiplying by the scale completes them. x stays bf16.
//
// bf12. A panel stores quads, four words of K in three (kernels/bf12.h), so it has BF12_QUAD_WORDS rows of 64 words for
// four words of K. `words` still counts words of K. Panels have one table of exponents, and are never tiled. Decoded
// words are the bf16 words, and a product by them has the same operations as in GEMM_BF16.
//
// A gate_up weight alternates gate and up columns, one vector (vector_floats) of each, so that one register tile has
// both operands of SwiGLU. A panel then has 32 outputs.
//
// Exactness. Every output element is one chain of operations that depends only on its own row and on fixed boundaries,
// never on the number of rows computed together.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/backend.h"
#include "kernels/bf12.h"
#include "kernels/convert.h"

// Each level includes the instruction sets of the levels before it.
enum cpu_isa_level {
    CPU_ISA_PORTABLE,
    CPU_ISA_AVX2,
    CPU_ISA_AVX512,
    CPU_ISA_AVX512_VNNI,
    CPU_ISA_AVX512_BF16,
    CPU_ISA_AMX,
    CPU_ISA_COUNT
};

enum { TILE_SIDE = 16, TILE_SIZE = TILE_SIDE * TILE_SIDE, TILED_BLOCK_WORDS = 256 };

enum {
    PANEL_COLUMNS = 64, // outputs in one panel of a packed weight
    TILE_ENTRIES = 64,  // KV entries in one step of the online softmax, counted from the sequence's first entry
    // KV entries in one segment, counted in the same way. Different threads can compute the segments of one query.
    SEGMENT_ENTRIES = 1024,
    ATTEND_QUERY_TILE = 6,        // queries in one register tile
    ATTEND_STEP = 256,            // with tiles: KV entries in one step, a multiple of TILE_ENTRIES
    PAIR_QUERIES = 2 * TILE_SIDE, // with tiles: queries that are computed together
    SUM_LANES = 16,               // floats in the widest vector
};

static inline int word_count(int n, bool bf16)
{
    return bf16 ? (n + 1) / 2 : n;
}

// Contents of words. In the INT8 types, weights are signed bytes q and rows of x are unsigned bytes q + 128, both with
// x ~ q * scale. There is one scale for each output and each row, or in INT8_GROUPS one for every GROUP_SIZE values of
// K. In GEMM_INT4 weights are codes of 4 bits and rows of x are bf16. GEMM_BF12 is GEMM_BF16 with compressed panels.
enum gemm_type { GEMM_F32, GEMM_BF16, GEMM_INT8, GEMM_INT8_GROUPS, GEMM_INT4, GEMM_BF12 };
enum { GROUP_SIZE = QUANTISE_GROUP, GROUP_WORDS = GROUP_SIZE / 4 };
enum {
    INT4_PAIRS = 4, // pairs of values of K in a word of int4, which are INT4_PAIRS words of x
    INT4_STEP = 4,  // words of K of a panel are a multiple of this number
    INT4_GROUP_WORDS = GROUP_SIZE / 8,
    INT4_BLOCK_WORDS = 8 * INT4_GROUP_WORDS // words of K that are decoded to memory at a time
};

static inline int gemm_word_count(int k, enum gemm_type type)
{
    if (type == GEMM_BF16 || type == GEMM_BF12) return (k + 1) / 2;
    return type == GEMM_F32 ? k : type == GEMM_INT4 ? (k + 7) / 8 : (k + 3) / 4;
}

// Returns the words that a panel stores for one output and `words` words of K.
static inline int gemm_stored_words(int words, enum gemm_type type)
{
    return type == GEMM_BF12 ? (words + BF12_QUAD - 1) / BF12_QUAD * BF12_QUAD_WORDS : words;
}

// Returns the start of a tile in a tiled panel of `words` words: words of K from k on, a multiple of TILE_SIDE, by the
// outputs from `column` on.
static inline size_t tiled_panel_at(int words, int k, int column)
{
    int block = k / TILED_BLOCK_WORDS * TILED_BLOCK_WORDS, half = PANEL_COLUMNS / 2;
    int block_words = words - block < TILED_BLOCK_WORDS ? words - block : TILED_BLOCK_WORDS;
    return (size_t)block * PANEL_COLUMNS + (size_t)(column / half * block_words + k - block) * (size_t)half +
           (size_t)(column % half / TILE_SIDE) * TILE_SIZE;
}

// Returns the place of one sum in the tiled sums of a panel. The TILE_SIDE sums of a row in one tile are contiguous.
static inline size_t tiled_sums_at(int row, int column)
{
    return (size_t)(row / TILE_SIDE) * TILE_SIDE * PANEL_COLUMNS + (size_t)(column / TILE_SIDE) * TILE_SIZE +
           (size_t)(row % TILE_SIDE * TILE_SIDE + column % TILE_SIDE);
}

// Software prefetch of a panel that streams past its rows: each line is requested `ahead_bytes` before its use. The
// fastest choice depends on the machine (stream_tuning.h). It changes no result.
enum stream_target { STREAM_NONE, STREAM_INTO_L1, STREAM_INTO_L2, STREAM_TARGETS };
struct stream_prefetch {
    enum stream_target target;
    int ahead_bytes; // a multiple of cache lines up to STREAM_AHEAD_MAX; 0 with STREAM_NONE
};
enum { STREAM_AHEAD_MAX = 16 << 10 };

// Rows that a kernel writes, in one of two layouts. Row-major: f32 or bf16, with `stride` elements from row to row.
// Tiled: bf16 in the layout of tiled x, where `stride` is a multiple of the elements of a tile's row.
struct rows_out {
    void *data; // row 0, column 0
    int stride;
    bool bf16, tiled;
};

enum { TILE_ROW_HALVES = 2 * TILE_SIDE };

// Returns the place of a column. In a tiled output, columns are contiguous up to the next multiple of TILE_ROW_HALVES.
static inline void *rows_out_at(struct rows_out out, int row, int column)
{
    size_t at = (size_t)row * (size_t)out.stride + (size_t)column;
    if (out.tiled)
        at = (size_t)(row / TILE_SIDE * TILE_SIDE) * (size_t)out.stride +
             (size_t)(column / TILE_ROW_HALVES * TILE_SIDE + row % TILE_SIDE) * TILE_ROW_HALVES +
             (size_t)(column % TILE_ROW_HALVES);
    return (char *)out.data + at * (out.bf16 ? 2 : 4);
}

// One gemm over a block of K: c [rows][PANEL_COLUMNS] = (or +=) x [rows][words] times panel [words][PANEL_COLUMNS].
// Either all three are tiled or none is. The next block of a panel follows in memory. Tiled blocks are a multiple of
// TILED_BLOCK_WORDS, except the last. GEMM_INT8 leaves integers in c, which panel_finish scales.
struct panel_gemm {
    enum gemm_type type;
    bool accumulate; // add to c: this is not the first block of K
    int rows, words;
    float *c;
    const uint32_t *x;
    size_t x_stride; // words from row to row, or from row tile to row tile if tiled
    const uint32_t *panel;
    // INT8: [groups of the block][PANEL_COLUMNS] start values of the sums: -128 * (sum of the weights).
    const uint32_t *start;
    const float *w_scale; // INT8_GROUPS, INT4: [groups of the block][PANEL_COLUMNS]
    // INT8_GROUPS: [rows][x_scale_stride], from the block's first group on. INT4: the same, with the sums of x.
    const float *x_scale;
    int x_scale_stride;
    const int8_t *zero;                // INT4: [groups of the block][PANEL_COLUMNS] zero - 8
    uint32_t *decoded;                 // INT4, BF12: [decoded_words()] for bf16 words of the block and sums of a group
    const uint8_t *exponents;          // BF12: [BF12_EXPONENTS] table of the panel
    const struct bf12_escape *escapes; // BF12: [n_escapes] escapes of the panel
    int n_escapes, first_word;         // BF12: first_word is the word of K at which the block starts
    struct stream_prefetch prefetch;   // for a panel that is used once
    // NULL, or the sums of another panel. At tiled levels, vector instructions finish them between the tile
    // instructions of this gemm. Other levels leave them unfinished.
    struct panel_out *overlapped;
};

// Rows of an int4 gemm up to which panels are decoded in registers, at levels without tiles.
enum { INT4_DIRECT_ROWS = 12 };

// Words of K of a bf12 panel that are decoded to memory at a time.
enum { BF12_BLOCK_WORDS = 512, BF12_TILED_BLOCK_WORDS = TILED_BLOCK_WORDS };

// Returns the words of memory into which a gemm of `type` and of up to `rows` rows decodes.
static inline size_t decoded_words(enum gemm_type type, bool tiled, int rows)
{
    if (type == GEMM_BF12) return (size_t)(tiled ? BF12_TILED_BLOCK_WORDS : BF12_BLOCK_WORDS) * PANEL_COLUMNS;
    if (type != GEMM_INT4) return 0;
    const size_t group = (size_t)INT4_GROUP_WORDS * INT4_PAIRS * PANEL_COLUMNS;
    return tiled ? group + (size_t)rows * PANEL_COLUMNS : group * (INT4_BLOCK_WORDS / INT4_GROUP_WORDS);
}

// The sums of one panel, their destination, and the operations applied to them.
struct panel_out {
    const float *sums; // [rows][PANEL_COLUMNS]
    int rows, done;    // rows before `done` are finished
    enum linear_mode mode;
    bool tiled;                     // layout of the sums
    const float *bias;              // [PANEL_COLUMNS] bias of this panel, or NULL
    const float *x_scale, *w_scale; // GEMM_INT8: [rows], [PANEL_COLUMNS]; else NULL
    struct rows_out to;
    int row, column; // row and column of the first sum
    int columns;     // columns of the panel that exist in out
    // Use non-temporal stores, which bypass the caches. Not with LINEAR_ADD. Every panel except the last one then fills
    // whole, aligned cache lines.
    bool streamed;
};

// The cached K and V of one layer, one KV head and one sequence, in blocks of KV_BLOCK_TOKENS entries. Both gemms of
// attention read words as they are stored:
//     f32, bf16   K [word_count(D)][KV_BLOCK_TOKENS]: words along D      (q . K sums over D)
//                 V [word_count(KV_BLOCK_TOKENS)][v_stride]: words along the entries   (weights . V sums over entries)
//     int8        K bytes [D][KV_BLOCK_TOKENS], V bytes [KV_BLOCK_TOKENS][v_stride], then the f32 scales of K and of V
//                 [KV_BLOCK_TOKENS] each. Two rows of bytes widen to one row of bf16 words (step_widen_int8)
struct kv_view {
    char *base; // address of block 0
    const int32_t *blocks;
    size_t block_bytes, v_offset_bytes, scale_offset_bytes;
    int head_size, v_stride; // v_stride: head_size rounded up to 16
    bool bf16;               // the gemms compute in bf16
    bool int8;               // the cache holds int8; bf16 is set too
};

// Queries of consecutive rows of one sequence, in all heads of one KV group.
struct attend_tile {
    struct kv_view kv;
    int rows, group;     // rows * group queries
    int first_valid;     // number of entries visible to row 0; row r sees first_valid + r
    int first, end;      // entries to attend to; first is a multiple of SEGMENT_ENTRIES
    const float *q;      // row 0, first head of the group; heads are head_size apart
    int q_stride;        // floats from row to row
    struct rows_out out; // output: the first head of row 0 goes to (row, column), other heads as in q
    int row, column;
    float *partial; // NULL, or [attend_partial_floats]: receives the partial result of one segment for attend_merge
    float *scratch; // [attend_scratch_floats]
};

// Returns the floats of the partial result of `queries` = rows * group queries.
static inline size_t attend_partial_floats(int queries, int head_size)
{
    size_t padded = ((size_t)head_size + 15) / 16 * 16;
    return (size_t)queries * (padded + SUM_LANES) + ((size_t)queries + 15) / 16 * 16;
}

// Returns the floats for the K and V of one step of an int8 cache as bf16 words, with their scales.
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

// Returns the scratch size if K and V are read as tiles: bf16 and int8 at a level with `tiled`.
static inline size_t attend_tiles_scratch_floats(int queries, int head_size)
{
    size_t padded = ((size_t)head_size + 15) / 16 * 16;
    size_t rows = ((size_t)queries + PAIR_QUERIES - 1) / PAIR_QUERIES * PAIR_QUERIES;
    return 2 * attend_partial_floats((int)rows, head_size) + rows * padded / 2 + ATTEND_STEP * (padded + 2) +
           (size_t)PAIR_QUERIES * (3 * ATTEND_STEP + padded);
}

// One importance row: its attention over the first n entries, in all heads of one KV group.
struct importance_tile {
    struct kv_view kv;
    int group, n, window;
    const float *q; // layout as in attend_tile
    float *maximum; // [n] raised to the maximum
    float *scratch; // [importance_scratch_floats]
    size_t stride;  // floats of `scratch` for the scores of one head; at least importance_stride(n)
};

static inline size_t importance_stride(int n)
{
    return ((size_t)n + TILE_ENTRIES - 1) / TILE_ENTRIES * TILE_ENTRIES + 2 * (size_t)TILE_ENTRIES;
}

static inline size_t importance_scratch_floats(int n, int head_size)
{
    return step_words_floats(head_size) + ATTEND_QUERY_TILE * (importance_stride(n) + TILE_ENTRIES + (size_t)head_size);
}

struct cpu_isa {
    const char *name;
    int vector_floats; // width of a vector; gate_up weights alternate gate and up columns in this unit
    bool tiled;        // words of all types except f32 are tiled
    // Panels have a multiple of this many words of K, padded with zeros. Rows of x have the same padding.
    int step_words;

    void (*panel_gemm)(const struct panel_gemm *p);
    // Quantises n values (bf16 or f32) to out [n] = bytes q + 128. Returns the scale.
    float (*quantise)(uint8_t *out, const void *x, bool bf16, int n);
    // Scales the rows from out->done up to row `end`, adds the bias, applies the mode and stores them.
    void (*panel_finish)(struct panel_out *out, int end);

    void (*rmsnorm_row)(struct rows_out out, int row, const float *x, const float *gain, int n, float epsilon);
    // Rows of the steps that only some families have, see backend_ops.activate and the steps after it. n is the number
    // of columns of the result.
    float (*sum_squares)(const float *x, int n);
    void (*scale_row)(float *x, float scale, const float *gain, int n); // x = x * scale * gain
    void (*add_norm_row)(struct rows_out out, int row, float *x, const float *addend, const float *gain, int n,
                         float epsilon);
    void (*activate_row)(struct rows_out out, int row, const float *x, const struct activation *activation, int n);
    // Changes one head in place: RMS norm (not if gain is NULL), then RoPE with cos and sin [D/2].
    void (*rope_head)(float *head, const float *gain, int head_size, float epsilon, const float *cos_sin);
    // Changes one head in place: the Hadamard rotation of an int8 cache (backend.h).
    void (*hadamard_head)(float *head, int head_size);
    // Stores K and V of n consecutive entries in one block. Consecutive K and V are `stride` floats apart.
    void (*kv_append)(const struct kv_view *kv, int entry, int n, const float *k, const float *v, size_t stride);
    void (*attend)(const struct attend_tile *tile);
    // Merges the partial results of a tile's segments, which follow one another at tile->partial. Ignores first and
    // end.
    void (*attend_merge)(const struct attend_tile *tile, int segments);
    // Computes maximum = max(maximum, softmax of each head's q over the first n entries, averaged over the smoothing
    // window).
    void (*importance)(const struct importance_tile *tile);
};

// Returns NULL if the build or the machine lacks this level.
const struct cpu_isa *cpu_isa_at(enum cpu_isa_level level);
// Returns the level that is fastest on this machine, usually its highest.
const struct cpu_isa *cpu_isa_best(void);
// For tests: makes backends opened afterwards use this level. Not thread-safe.
void cpu_isa_prefer(const struct cpu_isa *isa);
