// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/schedule.h"

#include <assert.h>
#include <string.h>

#include "kernels/cuda/geometry.h"
#include "kernels/cuda/memory.h"

// ---- laying out -----------------------------------------------------------------------------------------------------

struct staging {
    char *host;
    const char *device;
    size_t used;
};

// Reserves `count` values of `size` bytes. *device_p is their address on the device.
static void *staging_put(struct staging *staging, size_t count, size_t size, const void **device_p)
{
    void *host = staging->host + staging->used;
    *device_p = staging->device + staging->used;
    staging->used += (count * size + 15) / 16 * 16;
    return host;
}

static int32_t *staging_put_ints(struct staging *staging, int64_t count, const int32_t **device_p)
{
    const void *device;
    int32_t *host = staging_put(staging, (size_t)count, sizeof *host, &device);
    *device_p = device;
    return host;
}

static void ints_copy(int32_t *to, const int32_t *from, int n)
{
    if (from) memcpy(to, from, (size_t)n * sizeof *to); // arrays that a pass does not use may be NULL
}

// Puts n values of the batch, then the value `rest` until there are `count` values.
static void staging_put_copy(struct staging *staging, const int32_t *from, int n, int count, int32_t rest,
                             const int32_t **device_p)
{
    int32_t *to = staging_put_ints(staging, count, device_p);
    ints_copy(to, from, n);
    for (int i = n; i < count; i++)
        to[i] = rest;
}

// Returns the batch's count, or the count of a captured pass if it is larger.
static int larger(int count, int captured)
{
    return captured > count ? captured : count;
}

// ---- tiles ----------------------------------------------------------------------------------------------------------

// Returns the cost of a tile or span: the number of entries that it attends to.
static int64_t tile_cost(const struct ragged_batch *batch, const struct attend_tile *tile, int group)
{
    int64_t entries = batch->kv_len[tile->seq] + (tile->first + tile->count - 1) / group + 1;
    if (tile->span < 0) return entries;
    int64_t rest = entries - (int64_t)tile->span * TILE_SPAN;
    return rest < TILE_SPAN ? rest : TILE_SPAN;
}

// Restores the heap order below tile i. The heap has n tiles, with the cheapest tile on top.
static void tile_sift(const struct ragged_batch *batch, int group, struct attend_tile *tiles, int n, int i)
{
    struct attend_tile tile = tiles[i];
    int64_t cost = tile_cost(batch, &tile, group);
    for (int child; (child = 2 * i + 1) < n; i = child) {
        int64_t least = tile_cost(batch, &tiles[child], group);
        if (child + 1 < n) {
            int64_t other = tile_cost(batch, &tiles[child + 1], group);
            if (other < least) least = other, child++;
        }
        if (least >= cost) break;
        tiles[i] = tiles[child];
    }
    tiles[i] = tile;
}

// Sorts the tiles, costliest first, so that the thread blocks that start last end soon. Uses heap sort, since qsort may
// allocate.
static void tiles_sort(const struct ragged_batch *batch, int group, struct attend_tile *tiles, int n)
{
    for (int i = n / 2 - 1; i >= 0; i--)
        tile_sift(batch, group, tiles, n, i);
    for (int end = n - 1; end > 0; end--) {
        struct attend_tile least = tiles[0];
        tiles[0] = tiles[end];
        tiles[end] = least;
        tile_sift(batch, group, tiles, end, 0);
    }
}

static int seq_rows(const struct ragged_batch *batch, int s)
{
    return batch->row_start[s + 1] - batch->row_start[s];
}

// Divides tile i of n into spans and returns their number. The first span replaces the tile, and the other spans are
// appended after the n tiles.
static int tile_divide(const struct ragged_batch *batch, int group, struct attend_tile *tiles, int i, int n, int slot)
{
    const int64_t entries = tile_cost(batch, &tiles[i], group);
    const int spans = (int)((entries + TILE_SPAN - 1) / TILE_SPAN);
    tiles[i].slot = slot;
    for (int span = 0; span < spans; span++) {
        struct attend_tile *to = span ? &tiles[n + span - 1] : &tiles[i];
        *to = tiles[i];
        to->span = span;
    }
    return spans;
}

// Divides tiles that cost more than an even share of all work: they would still run when all other multiprocessors are
// idle. Returns the number of tiles with spans. Adds the number of spans to *spans_p.
static int tiles_divide(const struct ragged_batch *batch, const struct schedule_options *options,
                        struct attend_tile *tiles, int n, int *spans_p)
{
    int64_t share = 0;
    for (int i = 0; i < n; i++)
        share += tile_cost(batch, &tiles[i], options->group) * options->n_kv_heads;
    share /= options->multiprocessors;
    for (int i = 0, all = n; i < all; i++) {
        int64_t cost = tile_cost(batch, &tiles[i], options->group);
        if (cost <= share || cost <= TILE_SPAN) continue;
        if (*spans_p + (cost + TILE_SPAN - 1) / TILE_SPAN > options->max_spans) continue;
        int spans = tile_divide(batch, options->group, tiles, i, n, *spans_p);
        n += spans - 1;
        *spans_p += spans;
    }
    return n;
}

// Makes the tiles of rows [first_row, end_row), for sequences with several rows. Returns their number, and adds the
// number of spans to *spans_p.
static int tiles_make(const struct ragged_batch *batch, const struct schedule_options *options, int first_row,
                      int end_row, struct attend_tile *tiles, int *spans_p)
{
    const int group = options->group;
    int n = 0;
    for (int s = 0; s < batch->n_seqs; s++) {
        if (seq_rows(batch, s) == 1) continue;
        const int start = batch->row_start[s], from = start < first_row ? first_row : start;
        const int to = batch->row_start[s + 1] < end_row ? batch->row_start[s + 1] : end_row;
        const int row_heads = (to - start) * group;
        for (int first = (from - start) * group; first < row_heads; first += TILE_ROW_HEADS) {
            int rest = row_heads - first;
            tiles[n++] = (struct attend_tile){s, first, rest < TILE_ROW_HEADS ? rest : TILE_ROW_HEADS, -1, 0};
        }
    }
    if (options->max_spans) n = tiles_divide(batch, options, tiles, n, spans_p);
    tiles_sort(batch, group, tiles, n);
    return n;
}

static void tiles_put(struct staging *staging, const struct ragged_batch *batch, const struct schedule_options *options,
                      struct device_batch *out)
{
    struct attend_tile *tiles = (void *)(staging->host + staging->used);
    const void *device;
    int spans = 0;
    out->first_tiles = tiles_make(batch, options, 0, options->first_rows, tiles, &spans);
    out->first_spans = spans;
    out->n_tiles = out->first_tiles +
                   tiles_make(batch, options, options->first_rows, batch->n_rows, tiles + out->first_tiles, &spans);
    out->n_spans = spans;
    const int count = larger(out->n_tiles, options->captured.tiles);
    assert(!options->captured.rows || count == options->captured.tiles);
    for (int i = out->n_tiles; i < count; i++)
        tiles[i] = (struct attend_tile){0};
    staging_put(staging, (size_t)count, sizeof *tiles, &device);
    out->tiles = device;
}

int schedule_tiles_most(const struct schedule_options *options, int rows, int seqs)
{
    // A sequence with tiles has at least two rows, and at most one tile that is not full.
    return (rows / 2 < seqs ? rows / 2 : seqs) + rows * options->group / TILE_ROW_HEADS;
}

int schedule_spans_most(const struct schedule_options *options, int entries)
{
    // `divided` bounds the tiles of a KV head that cost more than an even share.
    const int64_t spans = ((int64_t)entries + TILE_SPAN - 1) / TILE_SPAN;
    if (!options->max_spans || spans < 2) return 0;
    const int64_t divided = (options->multiprocessors + options->n_kv_heads - 1) / options->n_kv_heads;
    return divided * spans < options->max_spans ? (int)(divided * spans) : options->max_spans;
}

// ---- the rest of the batch ------------------------------------------------------------------------------------------

static void single_rows_put(struct staging *staging, const struct ragged_batch *batch,
                            const struct schedule_options *options, struct device_batch *out)
{
    int n = 0, in_first = 0, max_splits = 0;
    for (int s = 0; s < batch->n_seqs; s++) {
        n += seq_rows(batch, s) == 1;
        in_first += seq_rows(batch, s) == 1 && batch->row_start[s] < options->first_rows;
    }
    const int count = larger(n, options->captured.singles);
    int32_t *row = staging_put_ints(staging, count, &out->single_row);
    int32_t *importance = staging_put_ints(staging, count, &out->single_importance);
    for (int s = 0, p = 0; s < batch->n_seqs; s++)
        if (seq_rows(batch, s) == 1) {
            int splits = geometry_splits(batch->kv_len[s] + 1);
            if (splits > max_splits) max_splits = splits;
            *row = batch->row_start[s];
            while (p < batch->n_importance_rows && batch->importance_row[p] < *row)
                p++;
            *importance++ = p < batch->n_importance_rows && batch->importance_row[p] == *row ? p : -1;
            row++;
        }
    for (int i = n; i < count; i++)
        *row++ = -1, *importance++ = -1;
    out->n_single = n;
    out->first_single = in_first;
    out->max_splits = max_splits;
}

static void sequences_put(struct staging *staging, const struct ragged_batch *batch,
                          const struct schedule_options *options, struct device_batch *out)
{
    const int n_seqs = batch->n_seqs, rows = larger(batch->n_rows, options->captured.rows);
    const int seqs = options->captured.rows ? options->captured.seqs + 1 : n_seqs; // plus the sequence of padding rows
    assert(seqs >= n_seqs + (rows > batch->n_rows));
    int32_t *row_seq = staging_put_ints(staging, rows, &out->row_seq);
    for (int s = 0; s < n_seqs; s++)
        for (int r = batch->row_start[s]; r < batch->row_start[s + 1]; r++)
            row_seq[r] = s;
    for (int r = batch->n_rows; r < rows; r++)
        row_seq[r] = n_seqs;
    staging_put_copy(staging, batch->row_start, n_seqs + 1, seqs + 1, rows, &out->row_start);
    staging_put_copy(staging, batch->kv_len, n_seqs, seqs, 0, &out->kv_len);
    staging_put_copy(staging, batch->rope_length, batch->rope_length ? n_seqs : 0, seqs, 0, &out->rope_length);

    const int columns = options->captured.rows ? options->captured.table_columns : schedule_table_columns(batch);
    int32_t *table = staging_put_ints(staging, (int64_t)seqs * columns, &out->block_table);
    memset(table, 0, (size_t)seqs * (size_t)columns * sizeof *table);
    for (int s = 0; s < n_seqs; s++, table += columns) {
        int blocks = (batch->kv_len[s] + seq_rows(batch, s) + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
        assert(blocks <= columns);
        ints_copy(table, batch->block_table + (size_t)s * (size_t)batch->max_blocks, blocks);
    }
    if (rows > batch->n_rows) table[0] = options->padding_block;
    out->n_seqs = n_seqs;
    out->max_blocks = columns;
}

// Stores in `tiled` the numbers of the importance rows in sequences with several rows, and returns how many there are.
// *first_p is how many of these rows are below first_rows.
static int tiled_importance_list(const struct ragged_batch *batch, int first_rows, int32_t *tiled, int *first_p)
{
    int n = 0;
    *first_p = 0;
    for (int p = 0, s = 0; p < batch->n_importance_rows; p++) {
        while (batch->importance_row[p] >= batch->row_start[s + 1])
            s++;
        if (seq_rows(batch, s) == 1) continue;
        *first_p += batch->importance_row[p] < first_rows;
        tiled[n++] = p;
    }
    return n;
}

static void importance_put(struct staging *staging, const struct ragged_batch *batch, int first_rows,
                           struct device_batch *out)
{
    int n = batch->n_importance_rows, largest = 0;
    staging_put_copy(staging, batch->importance_row, n, n, 0, &out->importance_row);
    staging_put_copy(staging, batch->importance_keys, n, n, 0, &out->importance_keys);
    int32_t *first = staging_put_ints(staging, (int64_t)n + 1, &out->importance_first);
    int32_t *block = staging_put_ints(staging, (int64_t)n + 1, &out->importance_block);
    int32_t *tiled = staging_put_ints(staging, n, &out->tiled_importance);
    first[0] = block[0] = 0;
    out->first_importance_rows = 0;
    for (int p = 0; p < n; p++) {
        first[p + 1] = first[p] + batch->importance_keys[p];
        block[p + 1] = block[p] + cuda_kept_blocks(batch->importance_keys[p]);
        if (batch->importance_keys[p] > largest) largest = batch->importance_keys[p];
        out->first_importance_rows += batch->importance_row[p] < first_rows;
    }
    out->n_tiled_importance = tiled_importance_list(batch, first_rows, tiled, &out->first_tiled_importance);
    out->importance_begin = 0;
    out->n_importance_rows = n;
    out->smoothing_window = batch->smoothing_window;
    out->max_importance_keys = largest;
}

static void sampling_put(struct staging *staging, const struct ragged_batch *batch, struct device_batch *out)
{
    out->sampling = NULL;
    if (!batch->sampling) return;
    const void *device;
    size_t n = (size_t)batch->n_logit_rows;
    struct row_sampling *to = staging_put(staging, n, sizeof *to, &device);
    memcpy(to, batch->sampling, n * sizeof *to);
    out->sampling = device;
}

int schedule_table_columns(const struct ragged_batch *batch)
{
    int longest = 0;
    for (int s = 0; s < batch->n_seqs; s++) {
        int entries = batch->kv_len[s] + seq_rows(batch, s);
        if (entries > longest) longest = entries;
    }
    return (longest + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
}

size_t schedule_make(const struct ragged_batch *batch, const struct schedule_options *options, void *host,
                     const void *device, struct device_batch *out)
{
    struct staging staging = {host, device, 0};
    const int rows = larger(batch->n_rows, options->captured.rows), padding = rows - batch->n_rows;
    assert(!options->first_rows || (options->first_rows < batch->n_rows && !options->captured.rows));
    assert(padding <= KV_BLOCK_TOKENS);
    staging_put_copy(&staging, batch->token, batch->n_rows, rows, 0, &out->token);
    staging_put_copy(&staging, batch->position, batch->n_rows, rows, 0, &out->position);
    sequences_put(&staging, batch, options, out);
    int32_t *logit_row = staging_put_ints(&staging, (int64_t)batch->n_logit_rows + padding, &out->logit_row);
    ints_copy(logit_row, batch->logit_row, batch->n_logit_rows);
    for (int i = 0; i < padding; i++)
        logit_row[batch->n_logit_rows + i] = batch->n_rows + i;
    importance_put(&staging, batch, options->first_rows, out);
    tiles_put(&staging, batch, options, out);
    single_rows_put(&staging, batch, options, out);
    sampling_put(&staging, batch, out);
    out->first_row = 0;
    out->n_rows = batch->n_rows;
    out->first_rows = options->first_rows;
    out->n_logit_rows = batch->n_logit_rows;
    return staging.used;
}

struct device_batch schedule_padded(const struct device_batch *batch, const struct schedule_counts *captured)
{
    struct device_batch padded = *batch;
    padded.n_logit_rows += captured->rows - batch->n_rows;
    padded.n_rows = captured->rows;
    padded.n_seqs = captured->seqs + 1;
    padded.n_single = captured->singles;
    padded.max_splits = captured->max_splits;
    padded.n_tiles = padded.first_tiles = captured->tiles;
    padded.n_spans = padded.first_spans = captured->spans;
    return padded;
}

struct device_batch schedule_micro_batch(const struct device_batch *whole, bool second)
{
    struct device_batch part = *whole;
    if (second) {
        part.first_row = whole->first_rows;
        part.n_rows -= whole->first_rows;
        part.tiles += whole->first_tiles;
        part.n_tiles -= whole->first_tiles;
        part.n_spans -= whole->first_spans;
        part.single_row += whole->first_single;
        part.single_importance += whole->first_single;
        part.n_single -= whole->first_single;
        part.importance_begin = whole->first_importance_rows;
        part.n_importance_rows -= whole->first_importance_rows;
        part.tiled_importance += whole->first_tiled_importance;
        part.n_tiled_importance -= whole->first_tiled_importance;
    } else {
        part.n_rows = whole->first_rows;
        part.n_tiles = whole->first_tiles;
        part.n_spans = whole->first_spans;
        part.n_single = whole->first_single;
        part.n_importance_rows = whole->first_importance_rows;
        part.n_tiled_importance = whole->first_tiled_importance;
    }
    return part;
}

// ---- rounds ---------------------------------------------------------------------------------------------------------

// Returns the number of single rows below `row`.
static int singles_below(const struct ragged_batch *batch, int row)
{
    int n = 0;
    for (int s = 0; s < batch->n_seqs && batch->row_start[s] < row; s++)
        n += seq_rows(batch, s) == 1;
    return n;
}

// Returns how many of the first `end` importance rows are in sequences with several rows.
static int tiled_importance_below(const struct ragged_batch *batch, int end)
{
    int n = 0;
    for (int p = 0, s = 0; p < end; p++) {
        while (batch->importance_row[p] >= batch->row_start[s + 1])
            s++;
        n += seq_rows(batch, s) > 1;
    }
    return n;
}

struct device_batch schedule_round(const struct device_batch *all, const struct ragged_batch *batch, int blocks,
                                   int done)
{
    const int begin = all->importance_begin + done, last = all->importance_begin + all->n_importance_rows;
    int end = begin;
    for (int64_t used = 0; end < last; end++) {
        used += cuda_kept_blocks(batch->importance_keys[end]);
        if (used > blocks) break;
    }
    assert(end > begin || begin == last);
    struct device_batch round = *all;
    round.importance_begin = begin;
    round.n_importance_rows = end - begin;
    if (done == 0 && end == last) return round;
    // The round has the rows after the importance rows of the previous round, up to its own last importance row. The
    // last round has all remaining rows.
    const int from_row = done ? batch->importance_row[begin - 1] + 1 : all->first_row;
    const int to_row = end < last ? batch->importance_row[end - 1] + 1 : all->first_row + all->n_rows;
    const int before = singles_below(batch, from_row) - singles_below(batch, all->first_row);
    round.single_row += before;
    round.single_importance += before;
    round.n_single = singles_below(batch, to_row) - singles_below(batch, from_row);
    round.tiled_importance +=
        tiled_importance_below(batch, begin) - tiled_importance_below(batch, all->importance_begin);
    round.n_tiled_importance = tiled_importance_below(batch, end) - tiled_importance_below(batch, begin);
    if (done) round.n_tiles = round.n_spans = 0; // the first round computed them
    return round;
}
