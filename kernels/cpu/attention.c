// SPDX-License-Identifier: Apache-2.0
// The KV cache, and attention over the ragged batch. Rows are cut into tiles of one sequence. Threads claim (tile, KV
// head) items, the most expensive first. No item reads another sequence.
//
// A decode row over a long context would be a single item, so its segments become separate items and are merged in
// order afterwards. For an unsplit row one thread merges the segments in the same order, so the bits are the same.
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

// ---- memory ---------------------------------------------------------------------------------------------------------

static int segment_count(int entries)
{
    return (entries + SEGMENT_ENTRIES - 1) / SEGMENT_ENTRIES;
}

static enum status kv_cache_create(struct cpu *cpu)
{
    const struct backend_shape *shape = &cpu->shape;
    size_t d = (size_t)shape->head_size, line = 64;
    size_t element_bytes = cpu_kv_int8(cpu) ? 1 : cpu->bf16 ? 2 : 4;
    cpu->v_stride = (int)((d + 15) / 16 * 16);
    cpu->v_offset_bytes = KV_BLOCK_TOKENS * d * element_bytes;
    cpu->scale_offset_bytes = cpu->v_offset_bytes + KV_BLOCK_TOKENS * (size_t)cpu->v_stride * element_bytes;
    cpu->kv_block_bytes = cpu->scale_offset_bytes + (cpu_kv_int8(cpu) ? 2 * KV_BLOCK_TOKENS * sizeof(float) : 0);
    // Use an odd number of cache lines, so that the blocks of one head do not compete for the same cache sets.
    cpu->kv_block_bytes = ((cpu->kv_block_bytes + line - 1) / line | 1) * line;
    cpu->kv_layer_bytes = (size_t)shape->n_kv_blocks * (size_t)shape->n_kv_heads * cpu->kv_block_bytes;
    // Layers fill at the same rate. If they start at different offsets within a huge page, they do not touch new
    // pages in the same pass, which takes up to milliseconds each.
    size_t apart = HUGE_PAGE_BYTES / (size_t)shape->n_layers / line * line,
           past = cpu->kv_layer_bytes % HUGE_PAGE_BYTES;
    if (cpu->kv_layer_bytes >= HUGE_PAGE_BYTES)
        cpu->kv_layer_bytes += (HUGE_PAGE_BYTES + apart - past) % HUGE_PAGE_BYTES;
    cpu->kv = cpu_memory_alloc((size_t)shape->n_layers, cpu->kv_layer_bytes, false);
    if (cpu->kv) return STATUS_OK;
    return status_fail(STATUS_EXHAUSTED, "no memory for a KV cache of %d blocks (%d layers of %zu bytes)",
                       shape->n_kv_blocks, shape->n_layers, cpu->kv_layer_bytes);
}

// Returns true if K and V are read as tiles.
static bool attends_with_tiles(const struct cpu *cpu)
{
    return cpu->isa->tiled && cpu->bf16;
}

// Returns the largest number of queries of one item in a batch of `rows` rows. An item of one row has more if the KV
// group has more heads.
static int attend_queries(const struct cpu *cpu, int rows)
{
    if (!attends_with_tiles(cpu)) return ATTEND_QUERIES;
    int64_t enough = (int64_t)ATTEND_ITEMS * cpu->threads * ATTEND_QUERIES_TILED;
    return (int64_t)rows * cpu->shape.n_heads < enough ? ATTEND_QUERIES_TILED / 2 : ATTEND_QUERIES_TILED;
}

enum status cpu_attention_create(struct cpu *cpu)
{
    enum status status = kv_cache_create(cpu);
    if (status) return status;
    const struct backend_shape *shape = &cpu->shape;
    int group = shape->n_heads / shape->n_kv_heads, queries = attend_queries(cpu, shape->max_rows);
    if (queries < group) queries = group;
    size_t rows = (size_t)shape->max_rows, seqs = (size_t)shape->max_seqs, threads = (size_t)cpu->threads;
    size_t scratch = attends_with_tiles(cpu) ? attend_tiles_scratch_floats(queries, shape->head_size)
                                             : attend_scratch_floats(queries, shape->head_size);
    size_t importance = importance_scratch_floats(shape->max_context, shape->head_size);
    cpu->attend_scratch_floats =
        ((scratch > importance ? scratch : importance) + 31) / 16 * 16; // so that threads use separate cache lines
    // This is enough for all segments of a full cache. Sequences that share blocks may need more: then some rows stay
    // unsplit.
    cpu->max_slots = segment_count(shape->n_kv_blocks * KV_BLOCK_TOKENS) + shape->max_seqs;
    cpu->partial_floats = attend_partial_floats(group, shape->head_size);
    cpu->importance_capacity = (seqs * (size_t)shape->max_context + 31) / 16 * 16;

    cpu->row_sequence = cpu_memory_alloc(rows, sizeof *cpu->row_sequence, false);
    cpu->tiles = cpu_memory_alloc(rows + (size_t)cpu->max_slots, sizeof *cpu->tiles, false);
    cpu->last_tiles = cpu_memory_alloc(rows + (size_t)cpu->max_slots, sizeof *cpu->last_tiles, false);
    cpu->has_logits = cpu_memory_alloc(rows, sizeof *cpu->has_logits, true);
    cpu->splits = cpu_memory_alloc(seqs, sizeof *cpu->splits, false);
    cpu->importance = cpu_memory_alloc(threads, cpu->importance_capacity * sizeof *cpu->importance, false);
    cpu->attend_scratch = cpu_memory_alloc(threads, cpu->attend_scratch_floats * sizeof *cpu->attend_scratch, false);
    cpu->partials = cpu_memory_alloc((size_t)cpu->max_slots * (size_t)shape->n_kv_heads,
                                     cpu->partial_floats * sizeof *cpu->partials, false);
    if (cpu->row_sequence && cpu->tiles && cpu->last_tiles && cpu->has_logits && cpu->splits && cpu->importance &&
        cpu->attend_scratch && cpu->partials)
        return STATUS_OK;
    return status_fail(STATUS_EXHAUSTED, "no memory for attention over %d rows with a context of %d tokens",
                       shape->max_rows, shape->max_context);
}

void cpu_attention_prefault(struct cpu *cpu)
{
    const size_t threads = (size_t)cpu->threads, slots = (size_t)cpu->max_slots;
    size_t mapped_bytes;
    void *mapped = packed_cache_map(cpu->packed_cache, &mapped_bytes);
    const struct prefault_range ranges[] = {
        {cpu->attend_scratch, threads * cpu->attend_scratch_floats * sizeof *cpu->attend_scratch, 1, false},
        {cpu->importance, threads * cpu->importance_capacity * sizeof *cpu->importance, 1, false},
        {cpu->partials, slots * (size_t)cpu->shape.n_kv_heads * cpu->partial_floats * sizeof *cpu->partials, 1, false},
        {mapped, mapped_bytes, 1, true},
        {cpu->kv, cpu->kv_layer_bytes, cpu->shape.n_layers, false},
    };
    cpu->prefault = prefault_start(ranges, sizeof ranges / sizeof ranges[0]);
}

void cpu_attention_free(struct cpu *cpu)
{
    free(cpu->kv);
    free(cpu->row_sequence);
    free(cpu->tiles);
    free(cpu->last_tiles);
    free(cpu->has_logits);
    free(cpu->splits);
    free(cpu->importance);
    free(cpu->attend_scratch);
    free(cpu->partials);
}

// ---- cutting the batch ----------------------------------------------------------------------------------------------

static bool tile_is_longer(const struct row_tile *a, const struct row_tile *b)
{
    int64_t cost_a = (int64_t)a->rows * (a->end - a->first), cost_b = (int64_t)b->rows * (b->end - b->first);
    if (cost_a != cost_b) return cost_a > cost_b;
    return a->row != b->row ? a->row < b->row : a->first < b->first;
}

// Restores the heap below `root`. The heap's top is the item that sorts last.
static void tiles_sift(struct row_tile *tiles, int root, int n)
{
    for (int child; (child = 2 * root + 1) < n; root = child) {
        if (child + 1 < n && tile_is_longer(&tiles[child], &tiles[child + 1])) child++;
        if (!tile_is_longer(&tiles[root], &tiles[child])) return;
        struct row_tile moved = tiles[root];
        tiles[root] = tiles[child];
        tiles[child] = moved;
    }
}

// Sorts tiles, the most expensive first. Uses heap sort, because glibc's qsort() allocates from 1 KiB on.
static void tiles_sort(struct row_tile *tiles, int n)
{
    for (int root = n / 2 - 1; root >= 0; root--)
        tiles_sift(tiles, root, n);
    for (int end = n - 1; end > 0; end--) {
        struct row_tile last = tiles[0];
        tiles[0] = tiles[end];
        tiles[end] = last;
        tiles_sift(tiles, 0, end);
    }
}

// Adds the only row of a sequence in this batch, one tile for each of its segments.
static void tiles_add_split_row(struct cpu *cpu, int sequence, int row, int entries, int slot)
{
    int segments = segment_count(entries);
    cpu->splits[cpu->n_splits++] = (struct split_row){sequence, row, entries, slot, segments};
    for (int s = 0; s < segments; s++) {
        int first = s * SEGMENT_ENTRIES, end = s + 1 < segments ? first + SEGMENT_ENTRIES : entries;
        cpu->tiles[cpu->n_tiles++] = (struct row_tile){sequence, row, 1, first, end, cpu->n_splits - 1};
    }
}

static bool tile_has_logits(const struct cpu *cpu, const struct row_tile *tile)
{
    return memchr(cpu->has_logits + tile->row, true, (size_t)tile->rows) != NULL;
}

// Copies the sorted tiles that have logit rows.
static void last_tiles_copy(struct cpu *cpu)
{
    const struct ragged_batch *batch = &cpu->batch;
    for (int i = 0; i < batch->n_logit_rows; i++)
        cpu->has_logits[batch->logit_row[i]] = true;
    cpu->n_last_tiles = 0;
    for (int i = 0; i < cpu->n_tiles; i++)
        if (tile_has_logits(cpu, &cpu->tiles[i])) cpu->last_tiles[cpu->n_last_tiles++] = cpu->tiles[i];
    for (int i = 0; i < batch->n_logit_rows; i++)
        cpu->has_logits[batch->logit_row[i]] = false;
}

static int64_t tiles_work(const struct cpu *cpu, const struct row_tile *tiles, int n)
{
    int64_t pairs = 0;
    for (int i = 0; i < n; i++)
        pairs += (int64_t)tiles[i].rows * (tiles[i].end - tiles[i].first);
    return pairs * 2 * cpu->shape.n_heads * cpu->shape.head_size;
}

void cpu_attention_begin(struct cpu *cpu)
{
    const struct ragged_batch *batch = &cpu->batch;
    int group = cpu->shape.n_heads / cpu->shape.n_kv_heads, slots = 0, queries = attend_queries(cpu, batch->n_rows);
    int tile_rows = group < queries ? queries / group : 1;
    cpu->n_tiles = cpu->n_splits = 0;
    for (int s = 0; s < batch->n_seqs; s++) {
        int first = batch->row_start[s], end = batch->row_start[s + 1], segments = segment_count(batch->kv_len[s] + 1);
        for (int row = first; row < end; row++)
            cpu->row_sequence[row] = s;
        if (end - first == 1 && segments > 1 && segments <= cpu->max_slots - slots) {
            tiles_add_split_row(cpu, s, first, batch->kv_len[s] + 1, slots);
            slots += segments;
        } else {
            for (int row = first; row < end; row += tile_rows) {
                int rows = end - row < tile_rows ? end - row : tile_rows;
                int entries = batch->kv_len[s] + row - first + rows;
                cpu->tiles[cpu->n_tiles++] = (struct row_tile){s, row, rows, 0, entries, -1};
            }
        }
    }
    tiles_sort(cpu->tiles, cpu->n_tiles);
    last_tiles_copy(cpu);
    cpu->attend_work = tiles_work(cpu, cpu->tiles, cpu->n_tiles);
    cpu->last_attend_work = tiles_work(cpu, cpu->last_tiles, cpu->n_last_tiles);
    cpu->importance_size = ragged_importance_size(batch);
    for (int thread = 0; thread < cpu->threads; thread++)
        memset(cpu->importance + (size_t)thread * cpu->importance_capacity, 0,
               (size_t)cpu->importance_size * sizeof *cpu->importance);
}

static struct kv_view kv_view_of(const struct cpu *cpu, int layer, int sequence, int kv_head)
{
    return (struct kv_view){
        .base = cpu->kv + (size_t)layer * cpu->kv_layer_bytes + (size_t)kv_head * cpu->kv_block_bytes,
        .blocks = cpu->batch.block_table + (size_t)sequence * (size_t)cpu->batch.max_blocks,
        .block_bytes = (size_t)cpu->shape.n_kv_heads * cpu->kv_block_bytes,
        .v_offset_bytes = cpu->v_offset_bytes,
        .scale_offset_bytes = cpu->scale_offset_bytes,
        .head_size = cpu->shape.head_size,
        .v_stride = cpu->v_stride,
        .bf16 = cpu->bf16,
        .int8 = cpu_kv_int8(cpu),
    };
}

// ---- steps ----------------------------------------------------------------------------------------------------------

// Arguments of the items of one step of one layer.
struct attention {
    struct cpu *cpu;
    int layer;
    struct tensor *qkv, *out;
    const struct row_tile *tiles; // [n_tiles]
    int n_tiles;
    const float *q_gain, *k_gain;
    float epsilon;
};

static void head_rotate(const struct attention *a, float *head, const float *gain, const float *cos_sin)
{
    const struct cpu *cpu = a->cpu;
    cpu->isa->rope_head(head, gain, cpu->shape.head_size, a->epsilon, cos_sin);
    if (cpu_kv_int8(cpu)) cpu->isa->hadamard_head(head, cpu->shape.head_size);
}

static void row_rotate(const struct attention *a, int row)
{
    const struct cpu *cpu = a->cpu;
    int d = cpu->shape.head_size, n_heads = cpu->shape.n_heads, n_kv_heads = cpu->shape.n_kv_heads;
    float *q = cpu_row(a->qkv, row);
    const int at = rope_layer_rotates(&cpu->shape.rope, a->layer) ? row : cpu->shape.max_rows;
    const float *cos_sin = cpu->cos_sin + (size_t)at * (size_t)d;
    for (int h = 0; h < n_heads + n_kv_heads; h++)
        head_rotate(a, q + h * d, h < n_heads ? a->q_gain : a->k_gain, cos_sin);
}

// Rotates q and k, and appends K and V. The call for the first row in a KV block handles all rows in this block, so
// that one thread writes the whole block. Calls for other rows do nothing.
static void kv_append_rows(void *arg, int row, int thread)
{
    const struct attention *a = arg;
    const struct cpu *cpu = a->cpu;
    int s = cpu->row_sequence[row], first = cpu->batch.row_start[s], left = cpu->batch.row_start[s + 1] - row;
    int entry = cpu->batch.kv_len[s] + row - first, n = KV_BLOCK_TOKENS - entry % KV_BLOCK_TOKENS;
    if (row > first && n < KV_BLOCK_TOKENS) return;
    if (n > left) n = left;
    for (int i = 0; i < n; i++)
        row_rotate(a, row + i);
    int d = cpu->shape.head_size, n_kv_heads = cpu->shape.n_kv_heads;
    const float *k = (const float *)cpu_row(a->qkv, row) + cpu->shape.n_heads * d, *v = k + n_kv_heads * d;
    for (int h = 0; h < n_kv_heads; h++) {
        struct kv_view kv = kv_view_of(cpu, a->layer, s, h);
        cpu->isa->kv_append(&kv, entry, n, k + h * d, v + h * d, (size_t)a->qkv->stride);
    }
}

enum status cpu_rope_append(struct backend *b, int layer, struct tensor *qkv, const struct weight *q_gain,
                            const struct weight *k_gain, float epsilon)
{
    struct cpu *cpu = cpu_of(b);
    INVARIANT(qkv->kind == TENSOR_F32 &&
                  qkv->columns == (cpu->shape.n_heads + 2 * cpu->shape.n_kv_heads) * cpu->shape.head_size,
              "rope_append: qkv of kind %d with %d columns, %d + 2 * %d heads of %d", (int)qkv->kind, qkv->columns,
              cpu->shape.n_heads, cpu->shape.n_kv_heads, cpu->shape.head_size);
    INVARIANT((!q_gain || q_gain->columns == cpu->shape.head_size) &&
                  (!k_gain || k_gain->columns == cpu->shape.head_size),
              "rope_append: gains of %lld and %lld for heads of %d", (long long)(q_gain ? q_gain->columns : 0),
              (long long)(k_gain ? k_gain->columns : 0), cpu->shape.head_size);
    struct attention a = {.cpu = cpu,
                          .layer = layer,
                          .qkv = qkv,
                          .q_gain = q_gain ? q_gain->vector : NULL,
                          .k_gain = k_gain ? k_gain->vector : NULL,
                          .epsilon = epsilon};
    // An element costs several multiply-adds: the rotation, and a store to a line of the KV cache.
    int64_t work = 4 * (int64_t)cpu->batch.n_rows * qkv->columns;
    cpu_run(cpu, THREAD_POOL_STATIC, work, kv_append_rows, &a, cpu->batch.n_rows);
    return STATUS_OK;
}

static struct attend_tile attend_tile_of(const struct attention *a, const struct row_tile *rows, int kv_head,
                                         int thread)
{
    const struct cpu *cpu = a->cpu;
    int group = cpu->shape.n_heads / cpu->shape.n_kv_heads, column = kv_head * group * cpu->shape.head_size;
    return (struct attend_tile){
        .kv = kv_view_of(cpu, a->layer, rows->sequence, kv_head),
        .rows = rows->rows,
        .group = group,
        .first_valid = cpu->batch.kv_len[rows->sequence] + rows->row - cpu->batch.row_start[rows->sequence] + 1,
        .first = rows->first,
        .end = rows->end,
        .q = (const float *)cpu_row(a->qkv, rows->row) + column,
        .q_stride = a->qkv->stride,
        .out = cpu_rows_out(a->out),
        .row = rows->row,
        .column = column,
        .scratch = cpu->attend_scratch + (size_t)thread * cpu->attend_scratch_floats,
    };
}

// Returns a partial result of a split row. Partial results are ordered by KV head, then by segment.
static float *partial_at(const struct cpu *cpu, const struct split_row *split, int kv_head, int segment)
{
    size_t first = (size_t)split->slot * (size_t)cpu->shape.n_kv_heads;
    return cpu->partials + (first + (size_t)kv_head * (size_t)split->segments + (size_t)segment) * cpu->partial_floats;
}

static void importance_item(const struct attention *a, int index, int kv_head, int thread)
{
    const struct cpu *cpu = a->cpu;
    const struct ragged_batch *batch = &cpu->batch;
    int group = cpu->shape.n_heads / cpu->shape.n_kv_heads, row = batch->importance_row[index];
    float *maximum = cpu->importance + (size_t)thread * cpu->importance_capacity;
    for (int p = 0; p < index; p++)
        maximum += batch->importance_keys[p];
    struct importance_tile tile = {
        .kv = kv_view_of(cpu, a->layer, cpu->row_sequence[row], kv_head),
        .group = group,
        .n = batch->importance_keys[index],
        .window = batch->smoothing_window,
        .q = (const float *)cpu_row(a->qkv, row) + kv_head * group * cpu->shape.head_size,
        .maximum = maximum,
        .scratch = cpu->attend_scratch + (size_t)thread * cpu->attend_scratch_floats,
        .stride = importance_stride(batch->importance_keys[index]),
    };
    cpu->isa->importance(&tile);
}

// Computes an item. Importance items come first, then all tiles of the first KV head, of the second, and so on. So the
// K and V of one head stay in the shared cache.
static void attend_item(void *arg, int item, int thread)
{
    const struct attention *a = arg;
    const struct cpu *cpu = a->cpu;
    int n_importance = cpu->batch.n_importance_rows * cpu->shape.n_kv_heads;
    if (item < n_importance) {
        importance_item(a, item / cpu->shape.n_kv_heads, item % cpu->shape.n_kv_heads, thread);
        return;
    }
    int kv_head = (item - n_importance) / a->n_tiles;
    const struct row_tile *rows = &a->tiles[(item - n_importance) % a->n_tiles];
    struct attend_tile tile = attend_tile_of(a, rows, kv_head, thread);
    if (rows->split >= 0)
        tile.partial = partial_at(cpu, &cpu->splits[rows->split], kv_head, rows->first / SEGMENT_ENTRIES);
    cpu->isa->attend(&tile);
}

static void attend_merge_item(void *arg, int item, int thread)
{
    const struct attention *a = arg;
    const struct cpu *cpu = a->cpu;
    const struct split_row *split = &cpu->splits[item / cpu->shape.n_kv_heads];
    int kv_head = item % cpu->shape.n_kv_heads;
    struct row_tile row = {.sequence = split->sequence, .row = split->row, .rows = 1};
    struct attend_tile tile = attend_tile_of(a, &row, kv_head, thread);
    tile.partial = partial_at(cpu, split, kv_head, 0);
    cpu->isa->attend_merge(&tile, split->segments);
}

static enum status attention_run(struct cpu *cpu, int layer, struct tensor *out, const struct tensor *qkv,
                                 const struct row_tile *tiles, int n_tiles, int64_t tiles_work)
{
    int n_kv_heads = cpu->shape.n_kv_heads, n_columns = cpu->shape.n_heads * cpu->shape.head_size;
    INVARIANT(out->kind == TENSOR_ACTIVATION && out->columns == n_columns,
              "attention: out of kind %d with %d columns, heads have %d", (int)out->kind, out->columns, n_columns);
    struct attention a = {
        .cpu = cpu, .layer = layer, .qkv = (struct tensor *)qkv, .out = out, .tiles = tiles, .n_tiles = n_tiles};
    int64_t work = tiles_work + cpu->importance_size * n_columns;
    cpu_run(cpu, THREAD_POOL_DYNAMIC, work, attend_item, &a, (cpu->batch.n_importance_rows + n_tiles) * n_kv_heads);
    if (cpu->n_splits) cpu_run(cpu, THREAD_POOL_DYNAMIC, work, attend_merge_item, &a, cpu->n_splits * n_kv_heads);
    return STATUS_OK;
}

enum status cpu_attention(struct backend *b, int layer, struct tensor *out, const struct tensor *qkv)
{
    struct cpu *cpu = cpu_of(b);
    return attention_run(cpu, layer, out, qkv, cpu->tiles, cpu->n_tiles, cpu->attend_work);
}

enum status cpu_attention_last(struct backend *b, int layer, struct tensor *out, const struct tensor *qkv)
{
    struct cpu *cpu = cpu_of(b);
    return attention_run(cpu, layer, out, qkv, cpu->last_tiles, cpu->n_last_tiles, cpu->last_attend_work);
}

// ---- importance -----------------------------------------------------------------------------------------------------

float *cpu_importance_data(struct backend *b)
{
    struct cpu *cpu = cpu_of(b);
    if (!cpu->importance_size) return NULL;
    for (int thread = 1; thread < cpu->threads; thread++) {
        const float *more = cpu->importance + (size_t)thread * cpu->importance_capacity;
        for (int64_t i = 0; i < cpu->importance_size; i++)
            if (more[i] > cpu->importance[i]) cpu->importance[i] = more[i];
    }
    return cpu->importance;
}

enum status cpu_importance_read(struct backend *b, float *host)
{
    memcpy(host, cpu_importance_data(b), (size_t)cpu_of(b)->importance_size * sizeof *host);
    return STATUS_OK;
}
