// SPDX-License-Identifier: Apache-2.0
// The batch that the leader of a group broadcasts, as a follower decodes it: any integers. The arrays of an accepted
// batch lie within the message, and encoding the batch gives the same integers.
#include "engine/batch_encoding.h"
#include "tests/fuzz/fuzz.h"

enum { INTS_MAX = 1024, TABLE_INTS = 256 };

static int64_t sum(const int32_t *numbers, int n)
{
    int64_t total = 0;
    for (int i = 0; i < n; i++)
        total += numbers[i];
    return total;
}

// Reads all arrays.
static int64_t sum_arrays(const struct ragged_batch *b)
{
    int64_t total = sum(b->token, b->n_rows) + sum(b->position, b->n_rows) + sum(b->row_start, b->n_seqs + 1) +
                    sum(b->kv_len, b->n_seqs) + sum(b->logit_row, b->n_logit_rows) +
                    sum(b->importance_row, b->n_importance_rows) + sum(b->importance_keys, b->n_importance_rows);
    if (b->rope_length) total += sum(b->rope_length, b->n_seqs);
    for (int i = 0; b->sampling && i < b->n_logit_rows; i++)
        total += b->sampling[i].top_k;
    for (int s = 0; s < b->n_seqs; s++)
        total += sum(b->block_table + (size_t)s * (size_t)b->max_blocks, b->max_blocks);
    return total;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int32_t table[TABLE_INTS];
    size_t n = size / sizeof(int32_t);
    struct ragged_batch batch;
    if (n < 1 || n > INTS_MAX) return 0;
    int32_t *message = malloc(n * sizeof *message), *again = malloc(n * sizeof *again);
    memcpy(message, data, n * sizeof *message);
    if (batch_decode(message, n, table, TABLE_INTS, &batch) == STATUS_OK) {
        volatile int64_t total = sum_arrays(&batch);
        (void)total;
        FUZZ_CHECK(batch_encoded_ints(&batch) == n);
        batch_encode(&batch, again);
        FUZZ_CHECK(memcmp(message, again, n * sizeof *message) == 0);
    }
    free(message);
    free(again);
    return 0;
}
