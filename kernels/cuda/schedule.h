// SPDX-License-Identifier: Apache-2.0
// The host's part of a pass: the batch as the device reads it, with the work lists of attention, laid into staging
// memory that one copy brings over. Plain host code, allocates nothing.
//
// Where a list lies depends only on the counts of the batch (rows, sequences, tiles, probes, table columns): passes of
// equal counts have equal pointers, which is what a captured graph needs.
#pragma once

#include "kernels/backend.h"
#include "kernels/cuda/launch.h"

struct schedule_options {
    int group;  // query heads of a KV head
    int window; // see launch_attention; here it only tells what is costly
    // Columns of the block table; 0: schedule_table_columns(batch). A captured graph has a fixed number.
    int table_columns;
    // Rows before this one are a half of their own, see schedule_half; 0: there are no halves. Without padding rows.
    int cut;
    // So many rows are added at the end, each a sequence of its own without earlier entries (token and position 0) that
    // uses `padding_block`, and a logit row: they fill up a captured pass.
    int padding_rows;
    int32_t padding_block;
};

// Blocks of the batch's longest sequence.
int schedule_table_columns(const struct ragged_batch *batch);
// Staging that any batch of this shape takes, padding rows counted as rows and sequences.
size_t schedule_most_bytes(const struct backend_shape *shape);
// Fills `host` and returns the bytes it used, which belong at `device` (both aligned to 16 bytes).
size_t schedule_make(const struct ragged_batch *batch, const struct schedule_options *options, void *host,
                     const void *device, struct device_batch *out);
// Of a batch that was made with a cut the rows before it, or those from it on.
struct device_batch schedule_half(const struct device_batch *whole, bool second);
