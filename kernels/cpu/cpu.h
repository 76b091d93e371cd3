// SPDX-License-Identifier: Apache-2.0
// Private structs of the CPU backend, shared by the files that implement backend_ops. These files spread work over the
// thread pool; the arithmetic, the packed weight layout and the KV block layout are in isa.h. Results never depend on
// which thread computes an element.
#pragma once

#include <stdatomic.h>

#include "kernels/backend.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/packed_cache.h"
#include "kernels/cpu/placement.h"
#include "kernels/cpu/prefault.h"
#include "kernels/cpu/stream_tuning.h"
#include "kernels/cpu/thread_pool.h"
#include "lib/base/invariant.h"
#include "lib/base/mem.h"

// How a gemm is cut: into items of at most `rows` rows by `panels` panels. Each item computes `words` of K at a time
// for all of its panels.
struct gemm_blocking {
    int rows, words, panels;
};

// Row-major words: a block of x (384 KiB) and of a panel (128 KiB) fit a core's L2 cache of 1 MiB. Tiled words: a block
// of x (1 MiB) and the panel in use fit an L2 cache of 2 MiB, and the panels of an item share the block.
static const struct gemm_blocking row_major_blocking = {192, 512, 1}, tiled_blocking = {256, 1024, 8};

// Queries (rows * heads of a KV group) in one item of attention. There are enough queries that K and V are mostly read
// from cache. There are few enough that their sums, and the K and V of two steps, stay in a core's L1 and L2 caches.
// With tiles, more queries share a copy of V. A batch with fewer than ATTEND_ITEMS such items per thread has half as
// many queries per item.
enum { ATTEND_QUERIES = 48, ATTEND_QUERIES_TILED = 256, ATTEND_ITEMS = 8 };

// Work below this many multiply-adds runs on the calling thread: handing it to threads that spin costs a microsecond or
// two, and waking threads that sleep costs tens.
enum { MIN_PARALLEL_WORK = 1 << 17, MIN_WAKING_WORK = 1 << 19 };

struct tensor {
    struct tensor *next; // list of the backend's tensors, for close
    enum tensor_kind kind;
    bool bf16;  // set for an ACTIVATION of a bf16 backend
    bool tiled; // bf16 ACTIVATION in the layout of tiled x, which gemms read directly
    int max_rows, columns;
    // Elements from row to row: `columns` for F32, and `columns` padded to words and cache lines for ACTIVATION. See
    // rows_out.
    int stride;
    void *data;
};

enum weight_kind { WEIGHT_MATRIX, WEIGHT_EMBEDDING, WEIGHT_VECTOR };

struct weight {
    struct weight *next; // list of the backend's weights, for close
    enum weight_kind kind;
    bool gate_up;          // gate and up columns alternate, for LINEAR_SWIGLU
    enum gemm_type type;   // MATRIX: contents of the words
    bool tiled;            // MATRIX: layout of the panels
    bool mapped;           // the arrays are part of cpu->packed_cache
    int64_t rows, columns; // N, K; a vector has one row
    int words;             // words of K; for a MATRIX padded to a multiple of step_words
    int64_t n_panels;      // MATRIX
    uint32_t *panels;      // MATRIX: [n_panels][gemm_stored_words()][PANEL_COLUMNS], see isa.h
    int groups;            // int8, int4: number of scales of one output: 1, or one for every GROUP_SIZE values of K
    float *scale;          // int8, int4: [n_panels][groups][PANEL_COLUMNS]
    int8_t *zero;          // int4: same shape; zero - 8
    uint32_t *start;       // int8: same shape; start values of integer sums: -128 * (sum of the weights)
    uint8_t *exponents;    // bf12: [n_panels][BF12_EXPONENTS]
    // bf12: escapes of all panels. A panel's escapes start at first_escape[panel] [n_panels + 1].
    struct bf12_escape *escapes;
    uint32_t *first_escape;
    uint32_t *table; // EMBEDDING: [N][words]; NULL if tied to `head`
    const struct weight *head;
    int32_t first_row; // EMBEDDING: vocabulary id of row 0
    float *vector;     // VECTOR: zero-padded to PANEL_COLUMNS
};

// Consecutive rows of one sequence. For each KV head, their attention to entries [first, end) is one item.
struct row_tile {
    int sequence, row, rows;
    int first, end;
    int split; // index of the split row that this segment belongs to, or -1
};

// A row whose segments are separate items.
struct split_row {
    int sequence, row, entries;
    int slot, segments; // its partial results are in slots slot .. slot + segments - 1
};

struct cpu {
    struct backend base;
    struct backend_shape shape; // the arrays of RoPE are copies owned here
    const struct cpu_isa *isa;
    enum gemm_type gemm_type; // contents of the words of matrices, unless shape.as_stored makes them bf16
    bool bf16;                // activations, embeddings, K and V are bf16, else f32
    int threads;
    struct placement placement; // of the pool's threads
    struct thread_pool *pool;
    struct stream_prefetch prefetch; // for weights that are read once

    // The current pass, set by begin.
    struct ragged_batch batch; // the caller owns its arrays
    // [max_rows + 1][D]: D/2 cosines, then D/2 sines, of the row's position. The last row is for layers without RoPE.
    float *cos_sin;
    int *row_sequence;           // [max_rows]
    bool *has_logits;            // [max_rows] all false between two calls of cpu_attention_begin
    struct row_tile *tiles;      // [max_rows + max_slots] the most expensive first
    struct split_row *splits;    // [max_seqs]
    struct row_tile *last_tiles; // [max_rows + max_slots] the tiles with logit rows, in the same order
    int n_tiles, n_last_tiles, n_splits;
    int64_t attend_work, last_attend_work; // operations of the tiles, and of the last tiles, in one layer
    int64_t importance_size;
    float *importance; // [threads][importance_capacity] maxima of each thread, merged when read
    size_t importance_capacity;

    char *kv; // [n_layers][n_kv_blocks][Hkv] blocks of kv_block_bytes, see struct kv_view
    size_t kv_block_bytes, kv_layer_bytes, v_offset_bytes, scale_offset_bytes;
    int v_stride;

    float *scratch; // sums of gemms [threads][scratch_floats]
    size_t scratch_floats;
    float *attend_scratch; // [threads][attend_scratch_floats]
    size_t attend_scratch_floats;
    float *partials; // [max_slots][Hkv][partial_floats]; the slots of one split row are [Hkv][segments]
    size_t partial_floats;
    int max_slots;
    struct prefault *prefault; // see cpu_attention_prefault(); NULL until weights are loaded

    // int8: the current gemm's x in the words that the kernel reads. Sized for the largest ACTIVATION.
    char *packed_x;    // [rows][cpu_packed_row_bytes()], or the same in tiles
    float *row_scale;  // [rows][groups]; int4: sums of the groups of the current gemm's x
    uint32_t *decoded; // int4, bf12: [threads][decoded_words] see panel_gemm
    size_t decoded_words;
    size_t packed_x_bytes, row_scales;

    struct tensor *tensors;
    struct weight *weights;
    struct packed_cache *packed_cache; // NULL if there is none
};

static inline bool gemm_is_int8(enum gemm_type type)
{
    return type == GEMM_INT8 || type == GEMM_INT8_GROUPS;
}

// Returns true if the backend quantises rows of x.
static inline bool cpu_int8(const struct cpu *cpu)
{
    return gemm_is_int8(cpu->gemm_type);
}

static inline bool cpu_kv_int8(const struct cpu *cpu)
{
    return cpu->shape.kv_dtype == DTYPE_INT8;
}

// Returns the number of scales (int4: sums) of one row of K values.
static inline int cpu_groups(const struct cpu *cpu, int k)
{
    const bool grouped = cpu->gemm_type == GEMM_INT8_GROUPS || cpu->gemm_type == GEMM_INT4;
    return grouped ? (k + GROUP_SIZE - 1) / GROUP_SIZE : 1;
}

static inline bool cpu_tiled(const struct cpu *cpu)
{
    return cpu->isa->tiled && cpu->gemm_type != GEMM_F32;
}

static inline const struct gemm_blocking *cpu_blocking(const struct cpu *cpu)
{
    return cpu_tiled(cpu) ? &tiled_blocking : &row_major_blocking;
}

// Returns the type of the words of x: bf16 in the int4 and bf12 types.
static inline enum gemm_type gemm_x_type(enum gemm_type type)
{
    return type == GEMM_INT4 || type == GEMM_BF12 ? GEMM_BF16 : type;
}

// Returns the bytes of a row of packed_x, or of a tiled activation. A row-major row has one cache line more than it
// needs, like a row of a tensor.
static inline size_t cpu_packed_row_bytes(const struct cpu *cpu, int k, enum gemm_type type)
{
    size_t lines = ((size_t)gemm_word_count(k, gemm_x_type(type)) * 4 + 63) / 64;
    return (cpu_tiled(cpu) ? lines : lines + 1) * 64;
}

static inline struct cpu *cpu_of(struct backend *b)
{
    return (struct cpu *)b;
}

// Returns true if `work`, in multiply-adds, is worth the use of all threads.
static inline bool cpu_work_is_parallel(const struct cpu *cpu, int64_t work)
{
    return work >= MIN_WAKING_WORK || (work >= MIN_PARALLEL_WORK && thread_pool_is_awake(cpu->pool));
}

// Calls fn for each item, on all threads if `work`, the multiply-adds of all items, is worth it.
static inline void cpu_run(const struct cpu *cpu, enum thread_pool_order order, int64_t work, thread_pool_fn fn,
                           void *arg, int n_items)
{
    if (cpu_work_is_parallel(cpu, work)) {
        thread_pool_run(cpu->pool, order, fn, arg, n_items);
        return;
    }
    for (int i = 0; i < n_items; i++)
        fn(arg, i, 0);
}

// Like cpu_run, for groups of items that stay on one thread, see thread_pool_run_groups.
static inline void cpu_run_groups(const struct cpu *cpu, int64_t work, thread_pool_fn fn, void *arg, int n_groups,
                                  int size)
{
    if (cpu_work_is_parallel(cpu, work)) {
        thread_pool_run_groups(cpu->pool, fn, arg, n_groups, size);
        return;
    }
    for (int i = 0; i < n_groups * size; i++)
        fn(arg, i, 0);
}

// Returns the scratch memory of one thread [scratch_floats].
static inline float *cpu_thread_scratch(const struct cpu *cpu, int thread)
{
    return cpu->scratch + (size_t)thread * cpu->scratch_floats;
}

// Returns a row of a tensor that is not tiled.
static inline void *cpu_row(const struct tensor *t, int row)
{
    return (char *)t->data + (size_t)row * (size_t)t->stride * (t->bf16 ? 2 : 4);
}

static inline struct rows_out cpu_rows_out(const struct tensor *t)
{
    return (struct rows_out){.data = t->data, .stride = t->stride, .bf16 = t->bf16, .tiled = t->tiled};
}

enum { HUGE_PAGE_BYTES = 2 << 20 };

// Returns memory aligned to cache lines, in huge pages if large, or NULL. free() it. It is zeroed only on request:
// untouched pages of a large cache take no memory.
void *cpu_memory_alloc(size_t count, size_t size_bytes, bool zero);

// Implementations of backend_ops, by file.
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
bool cpu_packed_cache_open(struct backend *b, const char *path, uint64_t key);
void cpu_weights_finish(struct backend *b);
// Reads the table's row of vocabulary id `token` as f32, or zeros for ids of other ranks.
void cpu_embedding_row(const struct weight *table, bool bf16, int32_t token, float *out);
// weights_bf12.c
// The compression of one matrix. Threads may pack different panels at the same time.
struct bf12_packing {
    struct weight *w;
    struct bf12_escape **lists; // [n_panels] escapes of each panel; NULL if it has none
    _Atomic uint64_t escapes;   // of all panels so far; relaxed: only the sum is used
    uint64_t limit;
};
// Allocates the arrays of a bf12 weight except its panels. Returns false if there is no memory.
bool bf12_packing_init(struct bf12_packing *p, struct weight *w);
// Compresses one panel from its bf16 words [words][PANEL_COLUMNS]. Does nothing once there are too many escapes.
void bf12_pack_panel(struct bf12_packing *p, int panel, const uint32_t *words);
bool bf12_packing_failed(const struct bf12_packing *p); // too many escapes
// Joins the lists of escapes and frees the working memory. Returns false if the packing failed or there is no memory.
bool bf12_packing_finish(struct bf12_packing *p);
// Frees what was packed and makes the weight a bf16 weight without panels.
void bf12_give_up(struct weight *w);
// Checks arrays that were read from a file, so that no escape points outside its panel.
bool bf12_is_whole(const struct weight *w, size_t escape_bytes);
// Converts the first `columns` numbers of one output to floats.
void bf12_row_convert(const struct weight *w, int64_t row, int64_t columns, float *out);
// Logs how many matrices are compressed.
void bf12_log(const struct cpu *cpu);
// linear.c
enum status cpu_linear(struct backend *b, struct tensor *out, const struct tensor *x, const struct weight *w,
                       const struct weight *bias, enum linear_mode mode, int rows);
// family_steps.c
enum status cpu_activate(struct backend *b, struct tensor *out, const struct tensor *x,
                         const struct activation *activation, int rows);
enum status cpu_add_norm(struct backend *b, struct tensor *out, struct tensor *x, const struct tensor *addend,
                         const struct weight *gain, float epsilon, int rows);
enum status cpu_sum_squares(struct backend *b, struct tensor *squares, const struct tensor *qkv, int rows);
enum status cpu_norm_whole(struct backend *b, struct tensor *qkv, const struct whole_norm *norm, int rows);
enum status cpu_scale_queries(struct backend *b, struct tensor *qkv, float beta, int context, int rows);
// attention.c
// Allocates memory for the KV cache and attention. After a failure cpu_attention_free releases what was allocated.
enum status cpu_attention_create(struct cpu *cpu);
// Starts to bring that memory and mapped weights into RAM. Call once, after the weights are loaded; cpu_close stops it.
void cpu_attention_prefault(struct cpu *cpu);
void cpu_attention_free(struct cpu *cpu);
void cpu_attention_begin(struct cpu *cpu); // cuts the batch into tiles and clears the importance maxima
enum status cpu_rope_append(struct backend *b, int layer, struct tensor *qkv, const struct weight *q_gain,
                            const struct weight *k_gain, float epsilon);
enum status cpu_attention(struct backend *b, int layer, struct tensor *out, const struct tensor *qkv);
enum status cpu_attention_last(struct backend *b, int layer, struct tensor *out, const struct tensor *qkv);
float *cpu_importance_data(struct backend *b);
enum status cpu_importance_read(struct backend *b, float *host);
