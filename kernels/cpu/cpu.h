// SPDX-License-Identifier: Apache-2.0
// Inside of the CPU backend: its structs, shared by the files that implement backend_ops. Work is spread over the
// threads of a pool here, the arithmetic is in kernels.c (see isa.h). Which thread computes an element never changes
// its value.
#pragma once

#include <assert.h>

#include "base/mem.h"
#include "kernels/backend.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/saved.h"
#include "kernels/cpu/thread_pool.h"

// A product is cut into items of at most ROW_BLOCK rows by one panel; BLOCK_WORDS words of K are used at a time:
// ROW_BLOCK x BLOCK_WORDS of x (384 KiB) and a block of the panel (128 KiB) stay in a core's L2 cache of 1 MiB.
enum { ROW_BLOCK = 192, BLOCK_WORDS = 512 };

// Queries (rows x heads of a group) that attention computes in one item: enough that K and V are read from cache, few
// enough that their sums, a step's K and V and the next step's stay in a core's L1 and L2 caches.
enum { ATTEND_QUERIES = 48 };

// Below this many multiply-adds waking other threads costs more than it gains (a few microseconds).
enum { MIN_PARALLEL_WORK = 1 << 17 };

struct tensor {
    struct tensor *next; // all of a backend, for close
    enum tensor_kind kind;
    bool bf16; // an ACTIVATION of a bf16 backend
    int max_rows, columns;
    int stride; // elements from row to row: columns for F32; for ACTIVATION padded to whole words and cache lines
    void *data;
};

enum weight_kind { WEIGHT_MATRIX, WEIGHT_EMBEDDING, WEIGHT_VECTOR };

struct weight {
    struct weight *next; // all of a backend, for close
    enum weight_kind kind;
    bool gate_up;          // columns interleaved for LINEAR_SWIGLU
    bool saved;            // the arrays lie in cpu->saved
    int64_t rows, columns; // N, K; a vector has one row
    int words;             // of K, of a MATRIX padded to a multiple of the kernel's step_words
    int64_t n_panels;      // MATRIX
    uint32_t *panels;      // MATRIX: [N / PANEL_COLUMNS][words][PANEL_COLUMNS], zeros beyond N and K
    int groups;            // int8: scales of an output, 1 or one per GROUP_SIZE of K
    float *scale;          // int8: [N / PANEL_COLUMNS][groups][PANEL_COLUMNS]
    uint32_t *start;       // int8: like scale, -128 times the sum of the bytes
    uint32_t *table;       // EMBEDDING: [N][words], or NULL when tied to `head`
    const struct weight *head;
    int32_t first_row; // EMBEDDING: vocabulary id of row 0
    float *vector;     // VECTOR: padded with zeros to PANEL_COLUMNS
};

// Consecutive rows of one sequence whose attention over entries [first, end) is one item of work per KV head.
struct row_tile {
    int sequence, row, rows;
    int first, end;
    int split; // index of the split row that this is a segment of, or -1
};

// A row whose segments are computed apart.
struct split_row {
    int sequence, row, entries;
    int slot, segments; // its partial results are slots slot .. slot + segments - 1
};

struct cpu {
    struct backend base;
    struct backend_shape shape; // inv_freq is our copy
    const struct cpu_isa *isa;
    enum product_type product; // of matrices
    bool bf16;                 // activations, embeddings, K and V; else f32
    int threads;
    struct thread_pool *pool;

    // Of the pass under way, set by begin.
    struct ragged_batch batch; // its arrays are the caller's
    float *cos_sin;            // [max_rows][D]: D/2 cosines, then D/2 sines of the row's position
    int *row_sequence;         // [max_rows]
    struct row_tile *tiles;    // [max_rows + max_slots], the longest first
    struct split_row *splits;  // [max_seqs]
    int n_tiles, n_splits;
    int64_t attend_work; // multiply-adds of one layer's attention
    int64_t probe_size;
    float *probe; // maxima [threads][probe_capacity]: each thread raises its own, they meet when asked for
    size_t probe_capacity;

    char *kv; // [n_layers][n_kv_blocks][Hkv] blocks as in struct kv_view, each kv_block_bytes long
    size_t kv_block_bytes, kv_layer_bytes, v_offset_bytes, scale_offset_bytes;
    int v_stride;

    float *scratch; // of products [threads][scratch_floats]
    size_t scratch_floats;
    float *attend_scratch; // [threads][attend_scratch_floats]
    size_t attend_scratch_floats;
    float *partials; // [max_slots][Hkv][partial_floats], of split rows [Hkv][segments]
    size_t partial_floats;
    int max_slots;

    // Rows of the product under way in int8, with room for the largest ACTIVATION.
    uint8_t *quantised; // [rows][cpu_quantised_stride()]
    float *row_scale;   // [rows][groups]
    size_t quantised_bytes, row_scales;

    struct tensor *tensors;
    struct weight *weights;
    struct saved *saved; // or NULL
};

static inline bool cpu_int8(const struct cpu *cpu)
{
    return cpu->product == PRODUCT_INT8 || cpu->product == PRODUCT_INT8_GROUPS;
}

static inline bool cpu_kv_int8(const struct cpu *cpu)
{
    return cpu->shape.kv_dtype == DTYPE_INT8;
}

// Scales of a row of K values.
static inline int cpu_groups(const struct cpu *cpu, int k)
{
    return cpu->product == PRODUCT_INT8_GROUPS ? (k + GROUP_SIZE - 1) / GROUP_SIZE : 1;
}

// Bytes from row to row: whole cache lines and one more, as for tensors.
static inline size_t cpu_quantised_stride(int k)
{
    return ((size_t)k + 63) / 64 * 64 + 64;
}

static inline struct cpu *cpu_of(struct backend *b)
{
    return (struct cpu *)b;
}

// Calls fn for each item, on all threads where `work` multiply-adds (all items together) are worth it.
static inline void cpu_run(const struct cpu *cpu, enum thread_pool_order order, int64_t work, thread_pool_fn fn,
                           void *arg, int n_items)
{
    if (work >= MIN_PARALLEL_WORK) {
        thread_pool_run(cpu->pool, order, fn, arg, n_items);
        return;
    }
    for (int i = 0; i < n_items; i++)
        fn(arg, i, 0);
}

// Likewise, with groups of items that stay together: see thread_pool_run_groups.
static inline void cpu_run_groups(const struct cpu *cpu, int64_t work, thread_pool_fn fn, void *arg, int n_groups,
                                  int size)
{
    if (work >= MIN_PARALLEL_WORK) {
        thread_pool_run_groups(cpu->pool, fn, arg, n_groups, size);
        return;
    }
    for (int i = 0; i < n_groups * size; i++)
        fn(arg, i, 0);
}

// Scratch memory of one thread of the pool, [scratch_floats].
static inline float *cpu_thread_scratch(const struct cpu *cpu, int thread)
{
    return cpu->scratch + (size_t)thread * cpu->scratch_floats;
}

static inline void *cpu_row(const struct tensor *t, int row)
{
    return (char *)t->data + (size_t)row * (size_t)t->stride * (t->bf16 ? 2 : 4);
}

enum { HUGE_PAGE_BYTES = 2 << 20 };

// Memory aligned to cache lines, in huge pages where it is large, NULL when there is none; zeroed only on request,
// since untouched pages of a large cache cost nothing.
void *cpu_memory(size_t count, size_t size_bytes, bool zero);

// backend_ops, by file.
// weights.c
enum status cpu_weight_create(struct backend *b, const struct matrix_view *parts, int n_parts,
                              struct weight **weight_p);
enum status cpu_weight_gate_up(struct backend *b, const struct matrix_view *gate, const struct matrix_view *up,
                               struct weight **weight_p);
enum status cpu_weight_embedding(struct backend *b, const struct matrix_view *table, int32_t first_row,
                                 struct weight *shared_head, struct weight **weight_p);
enum status cpu_weight_vector(struct backend *b, const struct matrix_view *parts, int n_parts,
                              struct weight **weight_p);
void cpu_weight_free(struct weight *w);
bool cpu_saved_open(struct backend *b, const char *path, uint64_t key);
void cpu_saved_finish(struct backend *b);
// The table's row of vocabulary id `token` as f32, zeros for ids of other ranks.
void cpu_embedding_row(const struct weight *table, bool bf16, int32_t token, float *out);
// linear.c
enum status cpu_linear(struct backend *b, struct tensor *out, const struct tensor *x, const struct weight *w,
                       const struct weight *bias, enum linear_mode mode, int rows);
// attention.c
enum status
cpu_attention_create(struct cpu *cpu); // memory of cache and attention; cpu_attention_free frees what there is
void cpu_attention_free(struct cpu *cpu);
void cpu_attention_begin(struct cpu *cpu); // tiles of the batch, clears the probe maxima
enum status cpu_rope_append(struct backend *b, int layer, struct tensor *qkv, const struct weight *q_gain,
                            const struct weight *k_gain, float epsilon);
enum status cpu_attention(struct backend *b, int layer, struct tensor *out, const struct tensor *qkv);
float *cpu_importance_data(struct backend *b);
enum status cpu_importance_read(struct backend *b, float *host);
