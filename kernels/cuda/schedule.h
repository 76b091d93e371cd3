// SPDX-License-Identifier: Apache-2.0
// The host's part of a pass: lays out the batch as kernels read it, with the work lists of attention, in staging memory
// that one copy brings to the device. Plain host code that allocates nothing.
//
// The address of a list depends only on the counts of the batch (rows, sequences, tiles, importance rows, table
// columns), or on those to which a captured pass pads them. So all passes of one captured kind have the same pointers.
#pragma once

#include "kernels/backend.h"
#include "kernels/cuda/launch.h"

struct schedule_options {
    int group; // query heads per KV head
    // Tiles may be divided into at most this many spans, which memory_tile_spans says; 0: tiles are not divided. Then
    // n_kv_heads and multiprocessors are not used either.
    int max_spans, n_kv_heads, multiprocessors;
    // Rows of the first micro-batch, see schedule_micro_batch; 0: the batch is not divided. Not in a captured pass.
    int first_rows;
    int32_t padding_block; // where padding rows write their entries
    // Counts of a captured pass, at least those of the batch; all 0: the pass is not captured. Padding rows (token and
    // position 0) are at the end: one more sequence without earlier entries, at most KV_BLOCK_TOKENS rows, which
    // attention does not compute. Each has a logit row.
    struct schedule_counts {
        int rows, seqs, table_columns; // seqs: without that of the padding rows
        int singles, max_splits;
        int tiles, spans; // spans: how many of the tiles, at most; 0: tiles are not divided
    } captured;
};

// Blocks of the batch's longest sequence.
int schedule_table_columns(const struct ragged_batch *batch);
// Fills `host` (memory_staging_bytes suffice for every batch of a shape and captured counts within its limits) and
// returns the bytes used, to be copied to `device` (both aligned to 16 bytes). *out is the batch without padding.
size_t schedule_make(const struct ragged_batch *batch, const struct schedule_options *options, void *host,
                     const void *device, struct device_batch *out);
// The same batch with the counts of a captured pass, the same for all passes of a kind.
struct device_batch schedule_padded(const struct device_batch *batch, const struct schedule_counts *captured);
// Tiles of `rows` rows of at most `seqs` sequences with several rows, before any is divided, and by how many spans
// dividing them adds to the tiles, if sequences have at most `entries` entries.
int schedule_tiles_most(const struct schedule_options *options, int rows, int seqs);
int schedule_spans_most(const struct schedule_options *options, int entries);
// One of the two micro-batches of a batch that was made with first_rows.
struct device_batch schedule_micro_batch(const struct device_batch *whole, bool second);
// Attention runs in rounds. The scores of a round's importance rows fit into `blocks` (cuda_kept_blocks); usually one
// round has all rows of a batch or micro-batch. Returns the round after `done` importance rows of earlier rounds. Call
// it until all importance rows are done, and at least once. The first round has all tiles.
struct device_batch schedule_round(const struct device_batch *all, const struct ragged_batch *batch, int blocks,
                                   int done);
