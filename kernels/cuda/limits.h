// SPDX-License-Identifier: Apache-2.0
// Constants of the CUDA backend that its kernels and the sizes of its memory depend on. Plain C.
#pragma once

#include <stdint.h>

// Prefill attention (sequences with several rows) is divided into row-heads: a row and one of the query heads that
// share a KV head. For one sequence and KV head, row-head i is row i / group and query head i % group of that KV head's
// group. One thread block computes the row-heads [first, first + count) of sequence `seq` for one KV head.
//
// A tile with many entries may be divided into spans of TILE_SPAN entries, each with its own thread block. `span` is
// the number of the span, or -1 for the whole tile. `slot` is the number of the first span's results among the results
// of all spans.
enum { TILE_ROW_HEADS = 128, TILE_SPAN = 2048 };
struct attend_tile {
    int32_t seq, first, count, span, slot;
};
// Limit of the spans of all tiles of a pass.
enum { TILE_SPANS_MAX = 1024 };

// A single row is the only row of its sequence in this pass, as in decode. Its KV entries are divided into splits, and
// each split has its own thread block. geometry.h defines the length of splits. It depends only on the row's number of
// entries, so the result of a row does not depend on other rows.
enum { SPLIT_ENTRIES = 256, SPLITS_MAX = 128 }; // entries of the shortest split; limit of the splits of one row

// For each importance row and query head, floats are kept: first KEPT_SUMS floats for the exponent and the sum of each
// split, then the scores of the prompt's keys.
enum { KEPT_SUMS = 2 * SPLITS_MAX };

// A block-scaled FP8 matrix has one scale for each block of FP8_BLOCK rows and columns. A row that it multiplies has
// one scale for every FP8_BLOCK columns.
enum { FP8_BLOCK = 128 };

// Gemms of up to this many rows are computed by gemv.cu, larger ones by cuBLASLt.
enum { GEMV_ROWS = 8, GEMV_BLOCKS_MAX = 512 };
// gemm_stream.cu computes gemms of up to this many rows if it is switched on.
enum { STREAM_ROWS = 64 };
// Up to this many values in all rows, every thread block of gemv.cu normalises the rows or finds their largest
// magnitudes itself.
enum { GEMV_VALUES_MAX = 32768 };
