// SPDX-License-Identifier: Apache-2.0
// The host's part of a pass: lays out the batch as kernels read it, with the work lists of attention, in staging memory
// that one copy brings to the device. Plain host code that allocates nothing.
//
// The address of a list depends only on the counts of the batch (rows, sequences, tiles, importance rows, table
// columns). Passes of equal counts have equal pointers, as captured graphs require.
#pragma once

#include "kernels/backend.h"
#include "kernels/cuda/launch.h"

struct schedule_options {
    int group; // query heads per KV head
    // Tiles may be divided into at most this many spans, which memory_tile_spans says; 0: tiles are not divided. Then
    // n_kv_heads and multiprocessors are not used either.
    int max_spans, n_kv_heads, multiprocessors;
    // Columns of the block table; 0: schedule_table_columns(batch). A captured graph has a fixed number.
    int table_columns;
    // Rows of the first micro-batch, see schedule_micro_batch; 0: the batch is not divided. Requires padding_rows == 0.
    int first_rows;
    // Rows added at the end to pad a captured pass. Each is a sequence without earlier entries (token and position 0)
    // that writes to `padding_block`, and has a logit row.
    int padding_rows;
    int32_t padding_block;
};

// Blocks of the batch's longest sequence.
int schedule_table_columns(const struct ragged_batch *batch);
// Fills `host` (memory_staging_bytes suffice for every batch of a shape; padding rows count as rows and sequences) and
// returns the bytes used, to be copied to `device` (both aligned to 16 bytes).
size_t schedule_make(const struct ragged_batch *batch, const struct schedule_options *options, void *host,
                     const void *device, struct device_batch *out);
// One of the two micro-batches of a batch that was made with first_rows.
struct device_batch schedule_micro_batch(const struct device_batch *whole, bool second);
// Attention runs in rounds, whose importance rows' scores fit into `blocks` (cuda_kept_blocks): all of a batch or
// micro-batch in one round, as a rule. Returns the round behind the `done` importance rows of earlier rounds. There is
// one round, and then as many as leave importance rows. The first round has all tiles.
struct device_batch schedule_round(const struct device_batch *all, const struct ragged_batch *batch, int blocks,
                                   int done);
