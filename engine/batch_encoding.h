// SPDX-License-Identifier: Apache-2.0
// Encodes a ragged batch as one array of 32-bit integers, which the leader broadcasts to the followers. The array has
// the counts, the sampling parameters (which need 8-byte alignment), then the other arrays in the order of struct
// ragged_batch. The ranks of a group run on machines of one kind, so the integers are sent in native byte order.
//
// The block table is sent without padding, and the followers pad it again. A padded table would be most of the message
// as soon as one sequence is long (64 sequences, one of 32,768 entries: 512 KiB instead of 10).
#pragma once

#include <stddef.h>

#include "kernels/ragged.h"
#include "lib/base/status.h"

size_t batch_encoded_ints(const struct ragged_batch *batch);

// Returns the size of the largest batch with these numbers of rows, sequences and KV blocks of a sequence.
size_t batch_encoded_ints_max(int rows, int seqs, int seq_blocks);

void batch_encode(const struct ragged_batch *batch, int32_t *encoded); // [batch_encoded_ints(batch)]

// Points the arrays of the batch into `encoded` and its block table to `block_table`, which has room for `table_ints`
// integers. Fills in the block table. Returns STATUS_INTERNAL if the counts do not add up to `n_ints` or the table does
// not fit.
enum status batch_decode(const int32_t *encoded, size_t n_ints, int32_t *block_table, size_t table_ints,
                         struct ragged_batch *batch);
