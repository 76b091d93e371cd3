// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/schedule and geometry: every row-head is computed once, the costliest tiles come first, the device's
// arrays hold the batch, and nothing is written outside the staging memory. The test needs no GPU and no emulated GPU.
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/geometry.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/schedule.h"
#include "lib/base/mem.h"
#include "tests/kernel_fixture.h"
#include "tests/suite.h"

enum { MAX_ROWS = 700, MAX_SEQS = 24, MAX_CONTEXT = 40000, COLUMNS = MAX_CONTEXT / KV_BLOCK_TOKENS + 3 };

// A batch of random shape and its arrays.
struct made {
    struct ragged_batch batch;
    int32_t token[MAX_ROWS], position[MAX_ROWS], logit_row[MAX_ROWS], importance_row[MAX_ROWS],
        importance_keys[MAX_ROWS];
    int32_t row_start[MAX_SEQS + 1], kv_len[MAX_SEQS], table[MAX_SEQS * COLUMNS];
};

static void batch_make(struct made *m, int max_rows)
{
    int n_seqs = 1 + random_below(MAX_SEQS - 4), rows = 0;
    m->batch = (struct ragged_batch){
        .token = m->token,
        .position = m->position,
        .n_seqs = n_seqs,
        .row_start = m->row_start,
        .kv_len = m->kv_len,
        .block_table = m->table,
        .max_blocks = COLUMNS,
        .logit_row = m->logit_row,
        .importance_row = m->importance_row,
        .importance_keys = m->importance_keys,
        .smoothing_window = 13,
    };
    for (int s = 0; s < n_seqs; s++) {
        m->row_start[s] = rows;
        m->kv_len[s] = random_below(3) ? random_below(300) : random_below(MAX_CONTEXT - 600);
        int room = MAX_ROWS - 8 - rows - (n_seqs - s), count = random_below(3) ? 1 + random_below(max_rows) : 1;
        rows += count <= room ? count : 1;
    }
    m->row_start[n_seqs] = m->batch.n_rows = rows;
    for (int r = 0; r < rows; r++)
        m->token[r] = random_below(1000), m->position[r] = random_below(1000);
    for (int i = 0, first = random_below(100000); i < MAX_SEQS * COLUMNS; i++)
        m->table[i] = first + i;
    for (int s = 0; s < n_seqs; s++) {
        m->logit_row[m->batch.n_logit_rows++] = m->row_start[s + 1] - 1;
        if (random_below(2)) continue;
        m->importance_row[m->batch.n_importance_rows] = m->row_start[s + 1] - 1;
        m->importance_keys[m->batch.n_importance_rows++] = 1 + random_below(m->kv_len[s] + 1);
    }
}

// The host copy of a device array, in the staging memory `host`.
static const void *staged(const void *host, const char *device, const void *at)
{
    return (const char *)host + ((const char *)at - device);
}

static void check_ints(const void *host, const char *device, const int32_t *at, const int32_t *expected, int n)
{
    ck_assert_int_eq(memcmp(staged(host, device, at), expected, (size_t)n * sizeof *expected), 0);
}

// Returns the entries of the tile, or of its span.
static int tile_entries(const struct ragged_batch *batch, const struct attend_tile *t, int group)
{
    int entries = batch->kv_len[t->seq] + (t->first + t->count - 1) / group + 1;
    if (t->span < 0) return entries;
    ck_assert_int_lt(t->span * TILE_SPAN, entries);
    return entries - t->span * TILE_SPAN < TILE_SPAN ? entries - t->span * TILE_SPAN : TILE_SPAN;
}

// Checks that each row-head is in one tile, and that each span of the tile has its own place.
static void check_tiles(const struct made *m, const struct schedule_options *options, const struct attend_tile *tiles,
                        const struct device_batch *d)
{
    const struct ragged_batch *batch = &m->batch;
    int group = options->group, *seen = mem_alloc_array((size_t)MAX_ROWS * (size_t)group, sizeof *seen), before = 0;
    int n_spans = 0, first_spans = 0, *entries = mem_alloc_array((size_t)MAX_ROWS * (size_t)group, sizeof *entries);
    char *span_seen = mem_alloc_array(TILE_SPANS_MAX, 1);
    for (int i = 0; i < d->n_tiles; i++) {
        const struct attend_tile *t = &tiles[i];
        ck_assert_int_ge(t->count, 1);
        ck_assert_int_le(t->count, TILE_ROW_HEADS);
        int rows = batch->row_start[t->seq + 1] - batch->row_start[t->seq], own = tile_entries(batch, t, group);
        ck_assert_int_gt(rows, 1);
        ck_assert_int_le(t->first + t->count, rows * group);
        for (int k = t->first; k < t->first + t->count; k++) {
            seen[batch->row_start[t->seq] * group + k] += t->span <= 0;
            entries[batch->row_start[t->seq] * group + k] += own;
        }
        if (t->span >= 0) {
            ck_assert_int_lt(t->slot + t->span, d->n_spans);
            ck_assert_int_eq(span_seen[t->slot + t->span]++, 0);
            n_spans++;
            first_spans += i < d->first_tiles;
        }
        int first_row = batch->row_start[t->seq] + t->first / group;
        int last_row = batch->row_start[t->seq] + (t->first + t->count - 1) / group;
        ck_assert(i < d->first_tiles ? last_row < options->first_rows : first_row >= options->first_rows);
        if (i && i != d->first_tiles) ck_assert_int_ge(before, own);
        before = own;
    }
    ck_assert_int_eq(d->n_spans, n_spans);
    ck_assert_int_eq(d->first_spans, first_spans);
    ck_assert_int_le(n_spans, options->max_spans);
    int wrong = 0;
    for (int s = 0; s < batch->n_seqs; s++)
        for (int r = batch->row_start[s]; r < batch->row_start[s + 1]; r++)
            for (int h = 0; h < group; h++) {
                bool several = batch->row_start[s + 1] - batch->row_start[s] > 1;
                wrong += seen[r * group + h] != several;
                wrong += several && entries[r * group + h] <= batch->kv_len[s] + r - batch->row_start[s];
            }
    ck_assert_int_eq(wrong, 0);
    free(span_seen);
    free(entries);
    free(seen);
}

static void check_single(const struct made *m, const int32_t *single, const struct device_batch *d, int captured)
{
    int n = 0, splits = 0;
    for (int s = 0; s < m->batch.n_seqs; s++)
        if (m->row_start[s + 1] - m->row_start[s] == 1) {
            ck_assert_int_eq(single[n++], m->row_start[s]);
            int own = geometry_splits(m->kv_len[s] + 1);
            splits = own > splits ? own : splits;
        }
    ck_assert_int_eq(d->n_single, n);
    ck_assert_int_eq(d->max_splits, splits);
    for (int i = n; i < captured; i++)
        ck_assert_int_eq(single[i], -1);
    for (int i = 0; i < n; i++)
        ck_assert((single[i] < d->first_rows) == (i < d->first_single));
}

// Checks that the two micro-batches together are the batch.
static void check_micro_batches(const struct device_batch *d)
{
    struct device_batch first = schedule_micro_batch(d, false), second = schedule_micro_batch(d, true);
    ck_assert_int_eq(first.first_row, 0);
    ck_assert_int_eq(second.first_row, first.n_rows);
    ck_assert_int_eq(first.n_rows + second.n_rows, d->n_rows);
    ck_assert_ptr_eq(first.tiles, d->tiles);
    ck_assert_ptr_eq(second.tiles, first.tiles + first.n_tiles);
    ck_assert_int_eq(first.n_tiles + second.n_tiles, d->n_tiles);
    ck_assert_int_eq(first.n_spans + second.n_spans, d->n_spans);
    ck_assert_ptr_eq(first.single_row, d->single_row);
    ck_assert_ptr_eq(second.single_row, first.single_row + first.n_single);
    ck_assert_int_eq(first.n_single + second.n_single, d->n_single);
    ck_assert_int_eq(first.n_importance_rows + second.n_importance_rows, d->n_importance_rows);
    ck_assert_int_eq(first.importance_begin, 0);
    ck_assert_int_eq(second.importance_begin, first.n_importance_rows);
    ck_assert(second.single_importance == d->single_importance + first.n_single);
    ck_assert(second.tiled_importance == d->tiled_importance + first.n_tiled_importance);
    ck_assert_int_eq(first.n_tiled_importance + second.n_tiled_importance, d->n_tiled_importance);
}

// Checks that each importance row belongs to a single row or is in a sequence with several rows.
static void check_importance(const struct made *m, const void *host, const char *device, const struct device_batch *d)
{
    const struct ragged_batch *batch = &m->batch;
    const int32_t *first = staged(host, device, d->importance_first),
                  *block = staged(host, device, d->importance_block);
    const int32_t *of_single = staged(host, device, d->single_importance), *row = staged(host, device, d->single_row);
    const int32_t *tiled = staged(host, device, d->tiled_importance), *seq = staged(host, device, d->row_seq);
    ck_assert_int_eq(first[batch->n_importance_rows], ragged_importance_size(batch));
    int seen = 0, next_tiled = 0;
    for (int p = 0; p < batch->n_importance_rows; p++) {
        ck_assert_int_eq(first[p + 1] - first[p], batch->importance_keys[p]);
        ck_assert_int_eq(block[p + 1] - block[p], cuda_kept_blocks(batch->importance_keys[p]));
        const int s = seq[batch->importance_row[p]];
        if (batch->row_start[s + 1] - batch->row_start[s] > 1) ck_assert_int_eq(tiled[next_tiled++], p);
    }
    ck_assert_int_eq(d->n_tiled_importance, next_tiled);
    for (int i = 0; i < d->n_single; i++) {
        if (of_single[i] >= 0) ck_assert_int_eq(batch->importance_row[of_single[i]], row[i]);
        seen += of_single[i] >= 0;
    }
    ck_assert_int_eq(seen + next_tiled, batch->n_importance_rows);
}

// Checks that the rounds of a batch or micro-batch have its importance rows in order, and that each round has those of
// its single rows.
static void check_rounds(const struct made *m, const void *host, const char *device, const struct device_batch *all)
{
    const int32_t *keys = m->importance_keys, *rows = m->importance_row;
    int longest = 0, done = 0, singles = 0, tiled = 0, tiles = 0;
    for (int p = 0; p < m->batch.n_importance_rows; p++)
        longest = keys[p] > longest ? keys[p] : longest;
    const int blocks = cuda_kept_blocks(longest) * (1 + random_below(4));
    do {
        const struct device_batch round = schedule_round(all, &m->batch, blocks, done);
        ck_assert_int_eq(round.importance_begin, all->importance_begin + done);
        ck_assert(round.single_row == all->single_row + singles);
        ck_assert(round.single_importance == all->single_importance + singles);
        ck_assert(round.tiled_importance == all->tiled_importance + tiled);
        const int32_t *of_single = staged(host, device, round.single_importance);
        const int32_t *of_tiles = staged(host, device, round.tiled_importance);
        const int end = round.importance_begin + round.n_importance_rows;
        int used = 0, found = 0;
        for (int p = round.importance_begin; p < end; p++)
            used += cuda_kept_blocks(keys[p]);
        ck_assert_int_le(used, blocks);
        for (int i = 0; i < round.n_single; i++) {
            if (of_single[i] < 0) continue;
            ck_assert_int_ge(of_single[i], round.importance_begin);
            ck_assert_int_lt(of_single[i], end);
            found++;
        }
        for (int i = 0; i < round.n_tiled_importance; i++) {
            ck_assert_int_ge(of_tiles[i], round.importance_begin);
            ck_assert_int_lt(of_tiles[i], end);
        }
        ck_assert_int_eq(found + round.n_tiled_importance, round.n_importance_rows);
        ck_assert(round.n_importance_rows > 0 || all->n_importance_rows == 0);
        done += round.n_importance_rows;
        singles += round.n_single;
        tiled += round.n_tiled_importance;
        tiles += round.n_tiles;
        ck_assert(done == all->n_importance_rows || used + cuda_kept_blocks(keys[end]) > blocks);
    } while (done < all->n_importance_rows);
    ck_assert_int_eq(singles, all->n_single);
    ck_assert_int_eq(tiled, all->n_tiled_importance);
    ck_assert_int_eq(tiles, all->n_tiles);
    ck_assert(done == 0 || rows[all->importance_begin] >= all->first_row);
}

// Sets the counts of a captured pass with `padding` padding rows. They have room for every batch of its rows and
// sequences.
static void captured_counts(const struct made *m, struct schedule_options *options, int padding)
{
    struct schedule_counts *c = &options->captured;
    c->rows = m->batch.n_rows + padding;
    c->seqs = m->batch.n_seqs + random_below(4);
    c->table_columns = COLUMNS;
    c->singles = c->seqs;
    c->max_splits = SPLITS_MAX;
    c->spans = schedule_spans_most(options, COLUMNS * KV_BLOCK_TOKENS);
    c->tiles = schedule_tiles_most(options, c->rows, c->seqs) + c->spans;
}

START_TEST(staging_holds_the_batch_and_its_work)
{
    struct made *m = mem_alloc(sizeof *m);
    const char *device = (const char *)(uintptr_t)0x7f0000000000;
    for (int round = 0; round < 200; round++) {
        batch_make(m, 1 + random_below(200));
        const struct ragged_batch *batch = &m->batch;
        static const int groups[] = {1, 2, 3, 4, 7, 8, 64, 200};
        struct schedule_options options = {.group = groups[random_below(8)],
                                           .padding_block = 7777,
                                           .max_spans = random_below(2) ? random_below(TILE_SPANS_MAX + 1) : 0,
                                           .n_kv_heads = 2,
                                           .multiprocessors = 1 + random_below(132)};
        const bool captured = random_below(2);
        int padding = captured ? random_below(4) : 0, n = batch->n_rows, n_seqs = batch->n_seqs;
        if (captured)
            captured_counts(m, &options, padding);
        else
            options.first_rows = random_below(batch->n_rows);
        struct backend_shape shape = {.n_heads = 2 * options.group,
                                      .n_kv_heads = 2,
                                      .max_rows = n + padding,
                                      .max_seqs = captured ? options.captured.seqs : n_seqs,
                                      .max_context = COLUMNS * KV_BLOCK_TOKENS};
        size_t bytes = memory_staging_bytes(&shape);
        void *host = malloc(bytes); // not cleared and of its exact size, for sanitizers
        struct device_batch d;
        size_t used = schedule_make(batch, &options, host, device, &d);
        ck_assert_uint_le(used, bytes);

        ck_assert_int_eq(d.n_rows, n);
        ck_assert_int_eq(d.n_seqs, n_seqs);
        ck_assert_int_eq(d.n_logit_rows, batch->n_logit_rows);
        check_ints(host, device, d.token, batch->token, n);
        check_ints(host, device, d.position, batch->position, n);
        check_ints(host, device, d.row_start, batch->row_start, n_seqs + 1);
        check_ints(host, device, d.kv_len, batch->kv_len, n_seqs);
        check_ints(host, device, d.logit_row, batch->logit_row, batch->n_logit_rows);
        check_ints(host, device, d.importance_row, batch->importance_row, batch->n_importance_rows);
        check_ints(host, device, d.importance_keys, batch->importance_keys, batch->n_importance_rows);
        ck_assert_int_eq(d.max_blocks, captured ? COLUMNS : schedule_table_columns(batch));

        const int32_t *row_seq = staged(host, device, d.row_seq), *table = staged(host, device, d.block_table);
        for (int s = 0; s < n_seqs; s++) {
            int entries = batch->kv_len[s] + batch->row_start[s + 1] - batch->row_start[s];
            for (int r = batch->row_start[s]; r < batch->row_start[s + 1]; r++)
                ck_assert_int_eq(row_seq[r], s);
            ck_assert_int_eq(memcmp(table + s * d.max_blocks, m->table + s * COLUMNS,
                                    (size_t)((entries + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS) * sizeof *table),
                             0);
        }
        for (int i = 0; i < padding; i++) {
            const int32_t *kv_len = staged(host, device, d.kv_len), *start = staged(host, device, d.row_start);
            ck_assert_int_eq(row_seq[n + i], n_seqs);
            ck_assert_int_eq(kv_len[n_seqs], 0);
            ck_assert_int_eq(start[n_seqs], n);
            ck_assert_int_eq(table[n_seqs * d.max_blocks], 7777);
            ck_assert_int_eq(((const int32_t *)staged(host, device, d.token))[n + i], 0);
            ck_assert_int_eq(((const int32_t *)staged(host, device, d.logit_row))[batch->n_logit_rows + i], n + i);
        }
        const struct attend_tile *tiles = staged(host, device, d.tiles);
        for (int i = d.n_tiles; i < options.captured.tiles; i++)
            ck_assert_int_eq(tiles[i].count, 0);
        check_importance(m, host, device, &d);
        check_tiles(m, &options, tiles, &d);
        check_single(m, staged(host, device, d.single_row), &d, options.captured.singles);
        ck_assert_int_eq(d.first_rows, options.first_rows);
        if (d.first_rows) check_micro_batches(&d);
        check_rounds(m, host, device, &d);
        for (int second = 0; second < 2 && d.first_rows; second++) {
            const struct device_batch part = schedule_micro_batch(&d, second);
            check_rounds(m, host, device, &part);
        }
        free(host);
    }
    free(m);
}
END_TEST

static void check_same_arguments(const struct device_batch *a, const struct device_batch *b)
{
    ck_assert_ptr_eq(a->token, b->token);
    ck_assert_ptr_eq(a->position, b->position);
    ck_assert_ptr_eq(a->row_seq, b->row_seq);
    ck_assert_ptr_eq(a->row_start, b->row_start);
    ck_assert_ptr_eq(a->kv_len, b->kv_len);
    ck_assert_ptr_eq(a->block_table, b->block_table);
    ck_assert_ptr_eq(a->logit_row, b->logit_row);
    ck_assert_ptr_eq(a->tiles, b->tiles);
    ck_assert_ptr_eq(a->single_row, b->single_row);
    ck_assert_ptr_eq(a->single_importance, b->single_importance);
    ck_assert_int_eq(a->n_rows, b->n_rows);
    ck_assert_int_eq(a->n_seqs, b->n_seqs);
    ck_assert_int_eq(a->n_logit_rows, b->n_logit_rows);
    ck_assert_int_eq(a->max_blocks, b->max_blocks);
    ck_assert_int_eq(a->n_single, b->n_single);
    ck_assert_int_eq(a->max_splits, b->max_splits);
    ck_assert_int_eq(a->n_tiles, b->n_tiles);
    ck_assert_int_eq(a->n_spans, b->n_spans);
}

// A captured pass reuses its arguments, so all batches of its kind must have equal ones. _i is the limit on the rows of
// most sequences.
START_TEST(captured_passes_of_a_kind_have_equal_arguments)
{
    struct made *m = mem_alloc(sizeof *m);
    void *host = malloc(1 << 22);
    struct schedule_options options = {.group = 4, .max_spans = 300, .n_kv_heads = 2, .multiprocessors = 20};
    struct schedule_counts *c = &options.captured;
    struct device_batch first;
    const int rows = _i * (MAX_SEQS - 4), most_padding = 7;
    *c = (struct schedule_counts){
        .rows = rows, .seqs = MAX_SEQS, .table_columns = COLUMNS, .singles = MAX_SEQS, .max_splits = SPLITS_MAX};
    c->spans = _i > 1 ? schedule_spans_most(&options, COLUMNS * KV_BLOCK_TOKENS) : 0;
    c->tiles = _i > 1 ? schedule_tiles_most(&options, c->rows, MAX_SEQS) + c->spans : 0;
    int spans = 0;
    for (int made = 0; made < 40;) {
        batch_make(m, _i);
        if (_i > 1 && m->batch.n_rows < rows - most_padding) // then the last sequence has more
            m->row_start[m->batch.n_seqs] = m->batch.n_rows = rows - random_below(most_padding + 1);
        if (m->batch.n_rows < rows - most_padding) continue;
        m->batch.n_importance_rows = 0;
        m->batch.n_logit_rows = m->batch.n_rows;
        for (int r = 0; r < m->batch.n_rows; r++)
            m->logit_row[r] = r;
        struct device_batch d;
        schedule_make(&m->batch, &options, host, host, &d);
        ck_assert_int_le(d.n_spans, c->spans);
        spans += d.n_spans;
        d = schedule_padded(&d, c);
        if (made++ == 0) first = d;
        check_same_arguments(&d, &first);
    }
    ck_assert(_i == 1 || spans > 0);
    free(host);
    free(m);
}
END_TEST

START_TEST(splits_cover_a_row)
{
    for (int n = 1; n < 300000; n += n < 600 ? 1 : 1977) {
        int split_entries = geometry_split_entries(n), splits = geometry_splits(n);
        ck_assert_int_eq(split_entries % SPLIT_ENTRIES, 0);
        ck_assert_int_le(splits, SPLITS_MAX);
        ck_assert_int_ge(splits * split_entries, n);
        ck_assert_int_lt((splits - 1) * split_entries, n);
    }
    ck_assert_int_eq(geometry_split_entries(SPLIT_ENTRIES * SPLITS_MAX), SPLIT_ENTRIES);
    ck_assert_int_ge(geometry_splits(INT32_MAX), 1);
    ck_assert_int_le(geometry_splits(INT32_MAX), SPLITS_MAX);
}
END_TEST

START_TEST(kv_entries_do_not_overlap)
{
    // By layer, then block, K before V, then head: no two blocks of entries overlap and there are no gaps.
    struct kv_cache kv = {.n_layers = 3, .n_blocks = 5, .n_kv_heads = 2, .head_size = 8};
    int64_t expected = 0;
    for (int layer = 0; layer < 3; layer++)
        for (int block = 0; block < 5; block++)
            for (int v = 0; v < 2; v++)
                for (int h = 0; h < 2; h++, expected += KV_BLOCK_TOKENS)
                    ck_assert_int_eq(geometry_kv_at(&kv, layer, block, v, h), expected);
}
END_TEST

// A few rows after a long cached prompt are two tiles. Only spans spread these over the device.
START_TEST(one_sequence_has_room_for_the_spans_of_two_tiles)
{
    const struct backend_shape shape = {.n_layers = 1,
                                        .n_heads = 32,
                                        .n_kv_heads = 8,
                                        .head_size = 128,
                                        .max_rows = 64,
                                        .max_seqs = 1,
                                        .max_context = 32768 + 50};
    ck_assert_int_ge(memory_tile_spans(&shape), 2 * 17);
}
END_TEST

SUITE("cuda_schedule")
{
    TIMEOUT(0);
    TEST(staging_holds_the_batch_and_its_work);
    LOOP(captured_passes_of_a_kind_have_equal_arguments, 1, 6);
    TEST(splits_cover_a_row);
    TEST(one_sequence_has_room_for_the_spans_of_two_tiles);
    TEST(kv_entries_do_not_overlap);
}
