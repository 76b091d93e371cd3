// SPDX-License-Identifier: Apache-2.0
// The host's part of a pass. Lays out the batch for the kernels, with the work lists of attention, in staging memory
// that one copy brings to the device. Plain host code that allocates nothing.
//
// The address of a list depends only on the counts of the batch (rows, sequences, tiles, importance rows, table
// columns). In a captured pass it depends on the padded counts. So all passes of one captured kind have the same
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
    // rows (token and position 0) are at the end. They are one more sequence without earlier entries, of at most
    // KV_BLOCK_TOKENS rows. Attention does not compute padding rows, but each has a logit row.
    struct schedule_counts {
        int rows, seqs, table_columns; // seqs: without the sequence of padding rows
        int singles, max_splits;
        int tiles, spans; // spans: limit of tiles that are spans; 0 if tiles are not divided
    } captured;
};

// Returns the number of blocks of the batch's longest sequence.
int schedule_table_columns(const struct ragged_batch *batch);
// Fills `host` and returns the number of bytes that the caller must copy to `device`. Both addresses are aligned to 16
// bytes. memory_staging_bytes is enough for every batch of a shape, even if it is padded to captured counts within the
// limits of the shape. *out is the batch without padding.
size_t schedule_make(const struct ragged_batch *batch, const struct schedule_options *options, void *host,
                     const void *device, struct device_batch *out);
// Returns the same batch with the counts of a captured pass, which are equal for all passes of a kind.
struct device_batch schedule_padded(const struct device_batch *batch, const struct schedule_counts *captured);
// Return upper bounds: the number of tiles before any tile is divided, and the number of spans. The pass has `rows`
// rows in at most `seqs` sequences with several rows, and a sequence has at most `entries` entries.
int schedule_tiles_most(const struct schedule_options *options, int rows, int seqs);
int schedule_spans_most(const struct schedule_options *options, int entries);
// Returns the first or the second micro-batch of a batch that was made with options.first_rows.
struct device_batch schedule_micro_batch(const struct device_batch *whole, bool second);
// Attention runs in rounds. The scores of a round's importance rows fit `blocks`, in the unit of cuda_kept_blocks.
// Usually one round has all rows of a batch or micro-batch. Returns the next round after earlier rounds with `done`
// importance rows. Call it until all importance rows are done, and at least once. The first round has all tiles.
struct device_batch schedule_round(const struct device_batch *all, const struct ragged_batch *batch, int blocks,
                                   int done);
