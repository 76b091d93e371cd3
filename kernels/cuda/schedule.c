// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/schedule.h"

#include <assert.h>
#include <string.h>

#include "kernels/cuda/geometry.h"

// ---- laying out -----------------------------------------------------------------------------------------------------

struct staging {
    char *host;
    const char *device;
    size_t used;
};

// Room for `count` values of `size` bytes; *device_p is where they will be on the device.
static void *put(struct staging *staging, size_t count, size_t size, const void **device_p)
{
    void *host = staging->host + staging->used;
    *device_p = staging->device + staging->used;
    staging->used += (count * size + 15) / 16 * 16;
    return host;
}

static int32_t *put_ints(struct staging *staging, int64_t count, const int32_t **device_p)
{
    const void *device;
    int32_t *host = put(staging, (size_t)count, sizeof *host, &device);
    *device_p = device;
    return host;
}

static void copy_ints(int32_t *to, const int32_t *from, int n)
{
    if (from) memcpy(to, from, (size_t)n * sizeof *to); // what a pass does not need may be NULL
}

// The first n of them from the batch, the others all `rest`.
static void put_copy(struct staging *staging, const int32_t *from, int n, int padding, int32_t rest,
                     const int32_t **device_p)
{
    int32_t *to = put_ints(staging, (int64_t)n + padding, device_p);
    copy_ints(to, from, n);
    for (int i = 0; i < padding; i++)
        to[n + i] = rest;
}

// ---- tiles ----------------------------------------------------------------------------------------------------------

// Pairs of a (row, head) and an entry that the tile goes through, in steps of a whole row: what it costs.
static int64_t tile_cost(const struct ragged_batch *batch, const struct attend_tile *tile, int group, int window)
{
    int first_row = tile->pair / group, last_row = (tile->pair + tile->pairs - 1) / group;
    int end = batch->kv_len[tile->seq] + last_row + 1;
    return end - geometry_first_seen(batch->kv_len[tile->seq] + first_row, window);
}

struct tile_order {
    const struct ragged_batch *batch;
    int group, window;
};

// Moves tile i of a heap of n, whose least costly is on top, down to where it belongs.
static void sift(const struct tile_order *order, struct attend_tile *tiles, int n, int i)
{
    struct attend_tile tile = tiles[i];
    int64_t cost = tile_cost(order->batch, &tile, order->group, order->window);
    for (int child; (child = 2 * i + 1) < n; i = child) {
        int64_t least = tile_cost(order->batch, &tiles[child], order->group, order->window);
        if (child + 1 < n) {
            int64_t other = tile_cost(order->batch, &tiles[child + 1], order->group, order->window);
            if (other < least) least = other, child++;
        }
        if (least >= cost) break;
        tiles[i] = tiles[child];
    }
    tiles[i] = tile;
}

// Costliest first, so that the last blocks to start are short ones. A heap sort: qsort may allocate.
static void sort_tiles(const struct tile_order *order, struct attend_tile *tiles, int n)
{
    for (int i = n / 2 - 1; i >= 0; i--)
        sift(order, tiles, n, i);
    for (int end = n - 1; end > 0; end--) {
        struct attend_tile least = tiles[0];
        tiles[0] = tiles[end];
        tiles[end] = least;
        sift(order, tiles, end, 0);
    }
}

static int rows_of(const struct ragged_batch *batch, int s)
{
    return batch->row_start[s + 1] - batch->row_start[s];
}

// Of the rows [first, end) that are not alone in their sequences; returns how many tiles.
static int make_tiles(const struct ragged_batch *batch, const struct schedule_options *options, int first, int end,
                      struct attend_tile *tiles)
{
    int n = 0;
    for (int s = 0; s < batch->n_seqs; s++) {
        if (rows_of(batch, s) == 1) continue;
        const int start = batch->row_start[s], from = start < first ? first : start;
        const int to = batch->row_start[s + 1] < end ? batch->row_start[s + 1] : end;
        const int pairs = (to - start) * options->group;
        for (int pair = (from - start) * options->group; pair < pairs; pair += ATTEND_PAIRS) {
            int rest = pairs - pair;
            tiles[n++] = (struct attend_tile){s, pair, rest < ATTEND_PAIRS ? rest : ATTEND_PAIRS};
        }
    }
    sort_tiles(&(struct tile_order){batch, options->group, options->window}, tiles, n);
    return n;
}

static void put_tiles(struct staging *staging, const struct ragged_batch *batch, const struct schedule_options *options,
                      struct device_batch *out)
{
    struct attend_tile *tiles = (void *)(staging->host + staging->used);
    const void *device;
    out->cut_tiles = make_tiles(batch, options, 0, options->cut, tiles);
    out->n_tiles = out->cut_tiles + make_tiles(batch, options, options->cut, batch->n_rows, tiles + out->cut_tiles);
    put(staging, (size_t)out->n_tiles, sizeof *tiles, &device);
    out->tiles = device;
}

// ---- the rest of the batch ------------------------------------------------------------------------------------------

static void put_lone_rows(struct staging *staging, const struct ragged_batch *batch,
                          const struct schedule_options *options, struct device_batch *out)
{
    const int padding = options->padding_rows;
    int n = padding, before = 0, max_splits = padding ? 1 : 0;
    for (int s = 0; s < batch->n_seqs; s++) {
        n += rows_of(batch, s) == 1;
        before += rows_of(batch, s) == 1 && batch->row_start[s] < options->cut;
    }
    int32_t *row = put_ints(staging, n, &out->lone_row);
    for (int s = 0; s < batch->n_seqs; s++)
        if (rows_of(batch, s) == 1) {
            int splits = geometry_splits(batch->kv_len[s] + 1);
            if (splits > max_splits) max_splits = splits;
            *row++ = batch->row_start[s];
        }
    for (int i = 0; i < padding; i++)
        *row++ = batch->n_rows + i;
    out->n_lone = n;
    out->cut_lone = before;
    out->max_splits = max_splits;
}

static void put_sequences(struct staging *staging, const struct ragged_batch *batch,
                          const struct schedule_options *options, struct device_batch *out)
{
    int padding = options->padding_rows, n_seqs = batch->n_seqs;
    int32_t *row_seq = put_ints(staging, (int64_t)batch->n_rows + padding, &out->row_seq);
    for (int s = 0; s < n_seqs; s++)
        for (int r = batch->row_start[s]; r < batch->row_start[s + 1]; r++)
            row_seq[r] = s;
    int32_t *row_start = put_ints(staging, (int64_t)n_seqs + padding + 1, &out->row_start);
    copy_ints(row_start, batch->row_start, n_seqs + 1);
    for (int i = 0; i < padding; i++) {
        row_seq[batch->n_rows + i] = n_seqs + i;
        row_start[n_seqs + i + 1] = batch->n_rows + i + 1;
    }
    put_copy(staging, batch->kv_len, n_seqs, padding, 0, &out->kv_len);

    int columns = options->table_columns ? options->table_columns : schedule_table_columns(batch);
    int32_t *table = put_ints(staging, (int64_t)(n_seqs + padding) * columns, &out->block_table);
    memset(table, 0, (size_t)(n_seqs + padding) * (size_t)columns * sizeof *table);
    for (int s = 0; s < n_seqs; s++, table += columns) {
        int blocks = (batch->kv_len[s] + rows_of(batch, s) + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
        assert(blocks <= columns);
        copy_ints(table, batch->block_table + (size_t)s * (size_t)batch->max_blocks, blocks);
    }
    for (int i = 0; i < padding; i++, table += columns)
        table[0] = options->padding_block;
    out->n_seqs = n_seqs + padding;
    out->max_blocks = columns;
}

static void put_probes(struct staging *staging, const struct ragged_batch *batch, struct device_batch *out)
{
    int n = batch->n_importance_rows, most = 0;
    put_copy(staging, batch->importance_row, n, 0, 0, &out->importance_row);
    put_copy(staging, batch->importance_keys, n, 0, 0, &out->importance_keys);
    int32_t *first = put_ints(staging, (int64_t)n + 1, &out->probe_first);
    first[0] = 0;
    for (int p = 0; p < n; p++) {
        first[p + 1] = first[p] + batch->importance_keys[p];
        if (batch->importance_keys[p] > most) most = batch->importance_keys[p];
    }
    out->n_importance_rows = n;
    out->smoothing_window = batch->smoothing_window;
    out->most_probe_keys = most;
}

static void put_draws(struct staging *staging, const struct ragged_batch *batch, struct device_batch *out)
{
    out->draw = NULL;
    if (!batch->draw) return;
    const void *device;
    size_t n = (size_t)batch->n_logit_rows;
    struct draw *to = put(staging, n, sizeof *to, &device);
    memcpy(to, batch->draw, n * sizeof *to);
    out->draw = device;
}

int schedule_table_columns(const struct ragged_batch *batch)
{
    int most = 0;
    for (int s = 0; s < batch->n_seqs; s++) {
        int entries = batch->kv_len[s] + rows_of(batch, s);
        if (entries > most) most = entries;
    }
    return (most + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
}

size_t schedule_most_bytes(const struct backend_shape *shape)
{
    size_t rows = (size_t)shape->max_rows, seqs = (size_t)shape->max_seqs;
    size_t columns = ((size_t)shape->max_context + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    size_t group = (size_t)shape->n_heads / (size_t)shape->n_kv_heads;
    size_t tiles = rows * group / ATTEND_PAIRS + seqs + 1; // the last of a sequence, or before a cut, need not be full
    size_t ints = 3 * rows + 2 * seqs + 1 + seqs * columns + rows + 3 * rows + 1 + seqs;
    return ints * sizeof(int32_t) + tiles * sizeof(struct attend_tile) + rows * sizeof(struct draw) +
           13 * 16; // each of the 13 lists rounded up
}

size_t schedule_make(const struct ragged_batch *batch, const struct schedule_options *options, void *host,
                     const void *device, struct device_batch *out)
{
    struct staging staging = {host, device, 0};
    int padding = options->padding_rows;
    assert(!options->cut || (options->cut < batch->n_rows && !padding));
    put_copy(&staging, batch->token, batch->n_rows, padding, 0, &out->token);
    put_copy(&staging, batch->position, batch->n_rows, padding, 0, &out->position);
    put_sequences(&staging, batch, options, out);
    int32_t *logit_row = put_ints(&staging, (int64_t)batch->n_logit_rows + padding, &out->logit_row);
    copy_ints(logit_row, batch->logit_row, batch->n_logit_rows);
    for (int i = 0; i < padding; i++)
        logit_row[batch->n_logit_rows + i] = batch->n_rows + i;
    put_probes(&staging, batch, out);
    put_tiles(&staging, batch, options, out);
    put_lone_rows(&staging, batch, options, out);
    put_draws(&staging, batch, out);
    out->first_row = 0;
    out->n_rows = batch->n_rows + padding;
    out->cut = options->cut;
    out->n_logit_rows = batch->n_logit_rows + padding;
    return staging.used;
}

struct device_batch schedule_half(const struct device_batch *whole, bool second)
{
    struct device_batch half = *whole;
    if (second) {
        half.first_row = whole->cut;
        half.n_rows -= whole->cut;
        half.tiles += whole->cut_tiles;
        half.n_tiles -= whole->cut_tiles;
        half.lone_row += whole->cut_lone;
        half.n_lone -= whole->cut_lone;
    } else {
        half.n_rows = whole->cut;
        half.n_tiles = whole->cut_tiles;
        half.n_lone = whole->cut_lone;
        half.n_importance_rows = 0; // they look at entries of both halves
    }
    return half;
}
