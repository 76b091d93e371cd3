// SPDX-License-Identifier: Apache-2.0
// Encodes a ragged batch as one array of 32-bit integers, which the leader broadcasts to the followers. The array has
// the counts, the sampling parameters (which need 8-byte alignment), then the other arrays in the order of struct
// ragged_batch. All ranks of a group have the same byte order, so the integers are sent in native byte order.
//
// The block table is sent without padding, and the followers pad it again. If one sequence is long, a padded table
// would be most of the message (64 sequences, one of 32,768 entries: 512 KiB instead of 10 KiB).
#pragma once

#include <stddef.h>

#include "kernels/ragged.h"
#include "lib/base/status.h"

size_t batch_encoded_ints(const struct ragged_batch *batch);

// Returns the size of the largest batch with these numbers of rows, sequences and KV blocks of a sequence.
size_t batch_encoded_ints_max(int rows, int seqs, int seq_blocks);

void batch_encode(const struct ragged_batch *batch, int32_t *encoded); // [batch_encoded_ints(batch)]

// Decodes a batch. Its arrays point into `encoded`, except the block table, which is written to `block_table`
// [table_ints]. Returns STATUS_INTERNAL if the counts do not add up to `n_ints` or if the table does not fit.
enum status batch_decode(const int32_t *encoded, size_t n_ints, int32_t *block_table, size_t table_ints,
                         struct ragged_batch *batch);
