// SPDX-License-Identifier: Apache-2.0
// The host's part of a pass. Lays out the batch for the kernels, with the work lists of attention, in staging memory
// that one copy brings to the device. Plain host code that allocates nothing.
//
// The address of a list depends only on the counts of the batch (rows, sequences, tiles, importance rows, table
// columns), or on the counts to which a captured pass pads them. So all passes of one captured kind have the same
// pointers.
#pragma once

#include "kernels/backend.h"
#include "kernels/cuda/launch.h"

struct schedule_options {
    int group; // query heads per KV head
    // Tiles may be divided into at most this many spans, see memory_tile_spans. 0: tiles are not divided, and
    // n_kv_heads and multiprocessors are not used either.
    int max_spans, n_kv_heads, multiprocessors;
    // Rows of the first micro-batch, see schedule_micro_batch. 0: the batch is not divided. Not allowed in a captured
    // pass.
    int first_rows;
    int32_t padding_block; // block to which padding rows write their entries
    // Counts of a captured pass, not less than the counts of the batch. They are 0 if the pass is not captured. Padding
    // rows (token and position 0) are at the end: one more sequence without earlier entries, at most KV_BLOCK_TOKENS
    // rows, which attention does not compute. Each has a logit row.
    struct schedule_counts {
        int rows, seqs, table_columns; // seqs: without the sequence of padding rows
        int singles, max_splits;
        int tiles, spans; // spans: the largest number of tiles that are spans; 0: tiles are not divided
    } captured;
};

// Returns the number of blocks of the batch's longest sequence.
int schedule_table_columns(const struct ragged_batch *batch);
// Fills `host` and returns the bytes used, to be copied to `device`. Both are aligned to 16 bytes. memory_staging_bytes
// suffice for every batch of a shape and captured counts within its limits. *out is the batch without padding.
size_t schedule_make(const struct ragged_batch *batch, const struct schedule_options *options, void *host,
                     const void *device, struct device_batch *out);
// Returns the same batch with the counts of a captured pass, which are equal for all passes of a kind.
struct device_batch schedule_padded(const struct device_batch *batch, const struct schedule_counts *captured);
// Return the largest number of tiles before any tile is divided, and the number of spans that dividing adds to the
// tiles. The tiles are of `rows` rows of at most `seqs` sequences with several rows, and sequences have at most
// `entries` entries.
int schedule_tiles_most(const struct schedule_options *options, int rows, int seqs);
int schedule_spans_most(const struct schedule_options *options, int entries);
// Returns one of the two micro-batches of a batch that was made with first_rows.
struct device_batch schedule_micro_batch(const struct device_batch *whole, bool second);
// Attention runs in rounds. The scores of a round's importance rows fit into `blocks` (cuda_kept_blocks); usually one
// round has all rows of a batch or micro-batch. Returns the round after `done` importance rows of earlier rounds. Call
// it until all importance rows are done, and at least once. The first round has all tiles.
struct device_batch schedule_round(const struct device_batch *all, const struct ragged_batch *batch, int blocks,
                                   int done);
