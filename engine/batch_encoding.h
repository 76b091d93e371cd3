// SPDX-License-Identifier: Apache-2.0
// A ragged batch as one array of 32-bit integers, in which the leader broadcasts it to the followers: the counts, the
// sampling parameters (which need 8-byte alignment), then the other arrays in the order of struct ragged_batch. The
// ranks of a group run on machines of one kind, so the integers are sent in native byte order.
#pragma once

#include <stddef.h>

#include "base/status.h"
#include "kernels/ragged.h"

size_t batch_encoded_ints(const struct ragged_batch *batch);

// Of the largest batch with these numbers of rows, sequences and KV blocks of a sequence.
size_t batch_encoded_ints_max(int rows, int seqs, int seq_blocks);

void batch_encode(const struct ragged_batch *batch, int32_t *encoded); // [batch_encoded_ints(batch)]

// Points the batch's arrays into `encoded`. STATUS_INTERNAL when the counts do not add up to `n_ints`.
enum status batch_decode(const int32_t *encoded, size_t n_ints, struct ragged_batch *batch);
