// SPDX-License-Identifier: Apache-2.0
// The batch builder and the encoding in which batches are broadcast: layout, block tables, the results wanted of rows,
// a round trip, and inconsistent encodings.
#include <stdlib.h>
#include <string.h>

#include "engine/batch_builder.h"
#include "engine/batch_encoding.h"
#include "tests/suite.h"

static const struct batch_limits limits = {
    .rows = 8, .seqs = 3, .seq_blocks = 4, .logit_rows = 3, .importance_rows = 2};
enum { TABLE = 3 * 4 };
static int32_t table[TABLE];
static const int32_t blocks[3][4] = {{7, 8}, {1, 2, 3, 4}, {9}};

static struct batch_builder builder;

static void setup(void)
{
    batch_builder_init(&builder, &limits);
}

static void teardown(void)
{
    batch_builder_fini(&builder);
}

static void add_rows(struct batch_builder *b, int sequence, int n_blocks, int n_cached, int rows)
{
    batch_builder_add_sequence(b, blocks[sequence], n_blocks, n_cached);
    for (int r = 0; r < rows; r++)
        batch_builder_add_row(b, 100 * sequence + r, 10 * (n_cached + r));
}

static const struct ragged_batch *build(struct batch_builder *b, bool with_logits, bool with_tokens)
{
    const struct row_sampling sampling = {.uniform = 0.25, .top_p = 0.5, .inverse_temperature = 2, .top_k = 3};
    batch_builder_reset(b);
    add_rows(b, 0, 2, 20, 2);
    if (with_logits) batch_builder_want_logits(b, b->batch.n_rows - 1);
    add_rows(b, 1, 4, 50, 1);
    if (with_tokens) batch_builder_want_token(b, b->batch.n_rows - 1, &sampling);
    add_rows(b, 2, 1, 0, 3);
    batch_builder_want_importance(b, 3);
    return batch_builder_finish(b);
}

static void check_layout(const struct ragged_batch *batch)
{
    static const int32_t token[] = {0, 1, 100, 200, 201, 202}, position[] = {200, 210, 500, 0, 10, 20};
    static const int32_t row_start[] = {0, 2, 3, 6}, kv_len[] = {20, 50, 0};
    static const int32_t expected[] = {7, 8, 0, 0, 1, 2, 3, 4, 9, 0, 0, 0};
    ck_assert_int_eq(batch->n_rows, 6);
    ck_assert_int_eq(batch->n_seqs, 3);
    ck_assert_int_eq(batch->max_blocks, 4);
    ck_assert_mem_eq(batch->token, token, sizeof token);
    ck_assert_mem_eq(batch->position, position, sizeof position);
    ck_assert_mem_eq(batch->row_start, row_start, sizeof row_start);
    ck_assert_mem_eq(batch->kv_len, kv_len, sizeof kv_len);
    ck_assert_mem_eq(batch->block_table, expected, sizeof expected);
    ck_assert_int_eq(batch->n_importance_rows, 1);
    ck_assert_int_eq(batch->importance_row[0], 5);
    ck_assert_int_eq(batch->importance_keys[0], 3);
    ck_assert_int_eq(batch->smoothing_window, 1);
}

START_TEST(rows_sequences_and_blocks_are_laid_out_in_order)
{
    check_layout(build(&builder, true, true));
    // A narrower pass follows: nothing of the wider pass stays in its block table.
    batch_builder_reset(&builder);
    add_rows(&builder, 2, 1, 3, 1);
    add_rows(&builder, 0, 2, 17, 1);
    const struct ragged_batch *batch = batch_builder_finish(&builder);
    ck_assert_int_eq(batch->n_rows, 2);
    ck_assert_int_eq(batch->max_blocks, 2);
    ck_assert_int_eq(batch->n_logit_rows, 0);
    ck_assert_ptr_null(batch->sampling);
    ck_assert_mem_eq(batch->block_table, ((int32_t[]){9, 0, 7, 8}), 4 * sizeof(int32_t));
}
END_TEST

START_TEST(a_pass_returns_logits_or_tokens_or_both)
{
    for (int logits = 0; logits < 2; logits++) {
        for (int tokens = 0; tokens < 2; tokens++) {
            const struct ragged_batch *batch = build(&builder, logits, tokens);
            ck_assert_int_eq(batch->n_logit_rows, logits + tokens);
            ck_assert_int_eq(batch->sampling != NULL, tokens);
            ck_assert_int_eq(batch->n_unread_rows, tokens);
            if (logits) ck_assert_int_eq(batch->logit_row[0], 1);
            if (tokens) ck_assert_int_eq(batch->logit_row[logits], 2);
            if (tokens) ck_assert_int_eq(batch->sampling[logits].top_k, 3);
            if (tokens && logits) ck_assert(batch->sampling[0].inverse_temperature == 0); // greedy, and ignored
        }
    }
}
END_TEST

START_TEST(rows_whose_logits_are_read_come_first)
{
    const struct row_sampling sampling = {.top_p = 0.5, .inverse_temperature = 2};
    batch_builder_reset(&builder);
    for (int s = 0; s < 3; s++) {
        add_rows(&builder, s, 1, 0, 1);
        if (s == 1) {
            batch_builder_want_logits(&builder, s);
        } else {
            batch_builder_want_token(&builder, s, &sampling);
        }
    }
    const struct ragged_batch *batch = batch_builder_finish(&builder);
    ck_assert_int_eq(batch->n_logit_rows, 3);
    ck_assert_int_eq(batch->n_unread_rows, 2);
    ck_assert_mem_eq(batch->logit_row, ((int32_t[]){1, 0, 2}), 3 * sizeof(int32_t));
    ck_assert(batch->sampling[0].inverse_temperature == 0);
    ck_assert(batch->sampling[1].inverse_temperature == 2);
}
END_TEST

START_TEST(an_encoded_batch_is_decoded_to_the_same_batch)
{
    for (int kind = 0; kind < 4; kind++) {
        struct ragged_batch *batch = &builder.batch;
        build(&builder, kind & 1, kind & 2);
        batch->skipped_layers = kind;
        size_t n = batch_encoded_ints(batch);
        ck_assert_uint_le(n, batch_encoded_ints_max(limits.rows, limits.seqs, limits.seq_blocks));
        int32_t *encoded = malloc(n * sizeof *encoded);
        batch_encode(batch, encoded);
        struct ragged_batch decoded;
        ck_assert_int_eq(batch_decode(encoded, n, table, TABLE, &decoded), STATUS_OK);
        check_layout(&decoded);
        ck_assert_int_eq(decoded.n_logit_rows, batch->n_logit_rows);
        ck_assert_mem_eq(decoded.logit_row, batch->logit_row, (size_t)batch->n_logit_rows * sizeof(int32_t));
        ck_assert_int_eq(decoded.n_unread_rows, batch->n_unread_rows);
        ck_assert_int_eq(decoded.skipped_layers, kind);
        ck_assert_int_eq(!decoded.sampling, !batch->sampling);
        if (decoded.sampling)
            ck_assert_mem_eq(decoded.sampling, batch->sampling, (size_t)batch->n_logit_rows * sizeof *batch->sampling);
        free(encoded);
    }
}
END_TEST

// Sizes are numbers of integers. The padded table alone would have 64 * 2048.
START_TEST(short_sequences_with_a_long_one_send_only_their_own_blocks)
{
    enum { SEQS = 64, LONG = 2048, SHORT = 8 };
    const struct batch_limits wide = {.rows = SEQS, .seqs = SEQS, .seq_blocks = LONG, .logit_rows = SEQS};
    static int32_t many[LONG], padded[SEQS * LONG];
    for (int i = 0; i < LONG; i++)
        many[i] = i + 1;
    struct batch_builder b;
    batch_builder_init(&b, &wide);
    batch_builder_reset(&b);
    for (int s = 0; s < SEQS; s++) {
        int n = s == 5 ? LONG : SHORT;
        batch_builder_add_sequence(&b, many, n, n * KV_BLOCK_TOKENS - 1);
        batch_builder_add_row(&b, 1, n * KV_BLOCK_TOKENS);
        batch_builder_want_logits(&b, s);
    }
    const struct ragged_batch *batch = batch_builder_finish(&b);
    size_t n = batch_encoded_ints(batch), of_table = LONG + (SEQS - 1) * SHORT;
    ck_assert_uint_eq(n, 12 + 2 * SEQS + (SEQS + 1) + SEQS + of_table + SEQS);
    int32_t *encoded = malloc(n * sizeof *encoded);
    batch_encode(batch, encoded);
    struct ragged_batch decoded;
    ck_assert_int_eq(batch_decode(encoded, n, padded, SEQS * LONG, &decoded), STATUS_OK);
    ck_assert_mem_eq(decoded.block_table, batch->block_table, sizeof padded);
    ck_assert_int_eq(batch_decode(encoded, n, padded, SEQS * LONG - 1, &decoded), STATUS_INTERNAL);
    free(encoded);
    batch_builder_fini(&b);
}
END_TEST

START_TEST(counts_that_do_not_add_up_are_refused)
{
    const struct ragged_batch *batch = build(&builder, true, true);
    size_t n = batch_encoded_ints(batch);
    int32_t *encoded = malloc(n * sizeof *encoded);
    for (int i = 0; i < 9; i++) {
        struct ragged_batch decoded;
        batch_encode(batch, encoded);
        if (i == 5) continue; // the smoothing window changes no size
        encoded[i] = i == 6 ? 2 : i == 7 ? batch->n_logit_rows + 1 : encoded[i] + 1;
        ck_assert_int_eq(batch_decode(encoded, n, table, TABLE, &decoded), STATUS_INTERNAL);
        encoded[i] = -1;
        ck_assert_int_eq(batch_decode(encoded, n, table, TABLE, &decoded), STATUS_INTERNAL);
    }
    free(encoded);
}
END_TEST

SUITE("batch")
{
    FIXTURE(setup, teardown);
    TEST(rows_sequences_and_blocks_are_laid_out_in_order);
    TEST(a_pass_returns_logits_or_tokens_or_both);
    TEST(rows_whose_logits_are_read_come_first);
    TEST(an_encoded_batch_is_decoded_to_the_same_batch);
    TEST(short_sequences_with_a_long_one_send_only_their_own_blocks);
    TEST(counts_that_do_not_add_up_are_refused);
}
