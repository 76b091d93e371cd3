// SPDX-License-Identifier: Apache-2.0
// The operations of a forward pass of a Llama-class model. `kernels/reference` implements them in plain C and is the
// oracle, `kernels/cpu` is the fast CPU implementation, and `kernels/cuda` runs on a GPU. Callers include only this
// header and query `capabilities` instead of comparing names.
//
// A backend is a set of fused steps over opaque tensors and weights, issued to one stream in order. A step may return
// before it has run; `read` and `wait` wait for all earlier steps. One thread at a time drives a backend. Sizes are per
// tensor-parallel rank.
//
// Notation: T rows and S sequences of the batch, H query heads, Hkv KV heads, D head size, N x K for a weight of N
// outputs and K inputs.
//
// Exactness: in a backend with exact_rows, the result of a row does not depend on other rows, on the row's place in the
// batch, or on how its prompt was cut into chunks. So sums over K have one order for every T. Attention walks the KV
// blocks of a sequence in order, block by block, both in prefill and in decode.
//
// Errors: creation can fail (memory, device). Steps return a status too, since a device may be lost. Callers must pass
// matching shapes, which asserts check.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/gpu_place.h"
#include "kernels/ragged.h"
#include "kernels/rope_shape.h"
#include "lib/base/status.h"

// INT8: weights are signed bytes with one scale per output, and the rows that they multiply are quantised to bytes with
// one scale per row. INT8_G128: weights and rows have one scale per 128 values of K; no checkpoint stores this type.
// FP8: bytes in e4m3fn (sign, 4 bits of exponent, 3 of mantissa, largest 448, no infinities; arXiv 2209.05433) times
// scales. Matrices stored in FP8 have the scales that struct matrix_view describes. Matrices computed in FP8 have one
// scale per output, and the rows that they multiply have one scale per row, like INT8. INT4_G128: weights are (code -
// zero) * scale, with codes of 4 bits and one zero and one scale per 128 values of K (int4.h); the rows that they
// multiply are bf16. BF12: bf16 weights that are stored in 12 bits without loss (bf12.h), CPU only; results equal
// the results of BF16. No checkpoint stores this type.
enum dtype {
    DTYPE_F32,
    DTYPE_F16,
    DTYPE_BF16,
    DTYPE_INT8,
    DTYPE_INT8_G128,
    DTYPE_FP8,
    DTYPE_INT4_G128,
    DTYPE_BF12,
    DTYPE_COUNT
};
size_t dtype_size_bytes(enum dtype dtype); // bytes of an element; 0 for INT4_G128 and BF12, see dtype_matrix_bytes
// Returns the bytes of the elements of a matrix, without scales and zeros.
size_t dtype_matrix_bytes(enum dtype dtype, int64_t rows, int64_t columns);
const char *dtype_name(enum dtype dtype); // "f32", "f16", "bf16", "int8", "int8-g128", "fp8", "int4-g128", "bf12"
// Returns the type of activations and embedding tables in a backend of `dtype`: bf16 for the types of up to 12 bits,
// else `dtype` itself. K and V have the same type unless kv_dtype has 8 bits.
enum dtype dtype_of_activations(enum dtype dtype);
// Returns the bytes that the K of one head takes in one KV entry (V takes the same). Includes the scale if `dtype` has
// 8 bits.
size_t dtype_kv_bytes(enum dtype dtype, int head_size);

struct comm;
struct backend; // a device context: threads or stream, scratch memory

// The cores of compute threads on the host, for logs and reports.
struct host_cores {
    const char *list;       // such as "0-3"
    const char *decided_by; // such as "cpuset, quota 1.5"
};
struct tensor; // device memory [max_rows][columns], row-major
struct weight; // a matrix in the backend's own packed layout, or a vector of f32

// Element type of a tensor. ACTIVATION is the input type of the backend's gemms: f32 in an f32 backend, bf16 in all
// others. The residual stream, q/k/v before RoPE and logits are F32 everywhere. PARTIAL is for partial sums that
// sum_ranks adds up: bf16, in memory that the devices' collectives can access. It exists only in backends that have
// sum_ranks.
enum tensor_kind { TENSOR_F32, TENSOR_ACTIVATION, TENSOR_PARTIAL };

// Place of 4-bit codes in a file, which packs eight codes in a 32-bit word. The codes of a word belong to neighbouring
// inputs, or to neighbouring outputs. The element (r, c) of a view has the code of output R = scale_row + r and input
// C = scale_column + c of the tensor. Its word is
//     words of inputs     data[R * output_stride + C / 8 * input_stride]      bits 4 (C % 8) and up
//     words of outputs    data[R / 8 * output_stride + C * input_stride]      bits 4 (R % 8) and up
// Zeros are words of outputs: zero[R / 8 * zero_output_stride + C / 128 * zero_group_stride]. Interleaved words have
// the codes of their outputs 0, 2, 4, 6, 1, 3, 5, 7 in this order.
struct int4_layout {
    bool words_of_outputs, interleaved;
    int64_t output_stride, input_stride;
    const void *zero; // NULL: all zeros are 8
    int64_t zero_output_stride, zero_group_stride;
    uint32_t zero_added; // is added to the stored zeros, modulo 16
    // The scale is scale[R * scale_output_stride + C / 128 * scale_group_stride].
    int64_t scale_output_stride, scale_group_stride;
};

// A view of rows [0, rows) x columns [0, columns) of a row-major matrix in host memory, usually a mapped file. Element
// (r, c) is at data + r * row_stride_bytes + c * size of dtype. The data need not be aligned.
struct matrix_view {
    const void *data; // NULL: all elements are zero
    enum dtype dtype; // F32, F16, BF16, FP8, INT8 or INT4_G128
    int64_t rows, columns;
    int64_t row_stride_bytes;
    // FP8 and INT8: an element is its byte times a scale. The scale of element (r, c) is
    //     without blocks              scale[r * scale_stride]
    //     blocks of B = scale_block   scale[(scale_row + r) / B * scale_stride + (scale_column + c) / B]
    // The scales are in host memory, like `data`. NULL: all scales are 1.
    const void *scale;
    enum dtype scale_dtype;      // F32, F16 or BF16
    int scale_stride;            // without blocks: 1 for one scale per row, 0 for one in total
    int scale_block;             // rows and columns of a block; 0: no blocks
    int scale_row, scale_column; // place of element (0, 0) in its block, or in the tensor of INT4_G128
    struct int4_layout int4;     // INT4_G128 only; scale_column is a multiple of 128, row_stride_bytes is not used
};

// Shape of the model and limits of a pass, for one rank.
struct backend_shape {
    int n_layers;
    int n_heads, n_kv_heads; // heads of this rank; n_heads is a multiple of n_kv_heads
    int head_size;           // D, even
    struct rope_shape rope;  // arrays of D/2 elements, copied
    int max_rows;            // largest T
    int max_seqs;            // largest S
    int max_context;         // largest number of KV entries of one sequence
    int n_kv_blocks;         // KV blocks in the cache, each of KV_BLOCK_TOKENS entries in all layers; see kv_create
    struct gpu_place gpu;    // GPU of this rank
    enum dtype kv_dtype;     // INT8 or FP8 (not in an f32 backend, see rope_append); else the type of activations
    // FP8, INT8 and INT4_G128 backends: true computes matrices without parts of this type in bf16, false quantises them
    bool as_stored;
    bool fp8_fast_accum;   // FP8 backend on a GPU: sums keep about 14 bits, see docs/gpus.md
    float embedding_scale; // factor of the embeddings; 0: 1
    int overlap_rows;      // several ranks: passes of at least twice this many rows run as two micro-batches; 0: never
};

// Returns true if K and V are stored in 8 bits with scales.
static inline bool backend_kv_bytes(const struct backend_shape *shape)
{
    return shape->kv_dtype == DTYPE_INT8 || shape->kv_dtype == DTYPE_FP8;
}

// Use of the result of a gemm.
enum linear_mode {
    LINEAR_STORE,  // out = x W^T (+ bias)
    LINEAR_ADD,    // out += x W^T (+ bias); out is F32 (the residual stream)
    LINEAR_SWIGLU, // W was made by weight_gate_up: out = silu(x G^T) * (x U^T), out has N/2 columns
};

// The function between the two matrices of an MLP that backend_ops.mlp does not compute: it has biases or no gate. I is
// the width of the MLP.
enum activation_kind {
    ACTIVATION_SWIGLU, // x [rows, 2 I] has the gate's columns, then up's columns: silu(gate) * up
    ACTIVATION_RELU2,  // x [rows, I]: x^2 where x > 0, else 0
    ACTIVATION_XIELU,  // x [rows, I] (arXiv 2411.13010): a x^2 + beta x where x > 0, else (e^min(x, epsilon) - 1 - x) b
                       // + beta x
};
struct activation {
    enum activation_kind kind;
    float a, b, beta, epsilon; // XIELU
};

// Arguments of an RMSNorm over all heads of q, and of one over all heads of k (OLMo 2). The gains are for this
// rank's heads, [H D] and [Hkv D]. `squares` holds sums over all ranks, of q_dims and k_dims squares.
struct whole_norm {
    const struct tensor *squares;
    const struct weight *q_gain, *k_gain;
    int q_dims, k_dims;
    float epsilon;
};

// Arguments of the RMSNorm (see backend_ops.rmsnorm) with which a fused step begins. If `addend`, a PARTIAL tensor, is
// not NULL, the norm is of x + addend, added in f32. If row_index is NULL, this sum also replaces x. A row has the same
// bits as if a separate step added the addend first.
struct norm_step {
    struct tensor *out, *x;
    const struct weight *gain;
    float epsilon;
    const int32_t *row_index;
    const struct tensor *addend; // NULL: no addend, as always in backends without device_collectives
};

// One forward pass, described by the model and run by the backend. The model issues the steps, and the backend decides
// when and for which rows: all rows together, two alternating micro-batches, or not at all if it replays a captured
// pass.
//
// A stage is a sequence of steps that ends with a sum over ranks. The ranks sum either the residual stream, which is
// then complete on every rank, or partial sums, which the next stage adds to the stream. `stage` issues stage i for
// rows [first_row, first_row + rows) of the batch, and its steps apply to these rows of their tensors. `logits` issues
// the steps from the residual stream to the logits. Both return the first failure.
//
// A backend calls stages 0 to n_stages - 1 in order for every row. If every row of the batch is a logit row, the
// backend may pass more rows than the batch has, up to max_logit_rows. The extra rows are padding whose results are
// unused.
struct pass {
    const struct ragged_batch *batch; // valid until the results have been read
    void *context;                    // first argument of the functions
    enum status (*stage)(void *context, int i, int first_row, int rows);
    enum status (*logits)(void *context, int logit_rows); // not called if there are no logit rows
    int n_stages;
    int max_logit_rows; // rows of the logits tensor
};

// Properties that differ between backends.
struct backend_capabilities {
    // Tensors are in host memory, and steps have run when they return. Results may be read in place, at tensor_data and
    // importance_data, instead of copied by `read`.
    bool host_memory;
    // A row has the same bits in passes of any size. (A GPU's gemm library sums in another order for other numbers of
    // rows.)
    bool exact_rows;
    bool reads_no_weights;   // only the shapes of weight views are used, their data is not read
    bool device_collectives; // ranks reduce over links between their devices: comm_open, sum_ranks
};

// Use of device memory.
enum memory_use {
    MEMORY_WEIGHTS,
    MEMORY_ACTIVATIONS, // tensors
    MEMORY_GEMM,        // workspace, f32 results and FP8 rows of gemms
    MEMORY_ATTENTION,   // partial results, importance
    MEMORY_BATCH,       // the description of a pass
    MEMORY_KV,
    MEMORY_USES
};
struct device_memory {
    size_t bytes[MEMORY_USES];
    size_t rounding; // estimate of the bytes that the device adds by rounding allocations up to pages of 2 MiB
};
const char *memory_use_name(enum memory_use use); // "weights", "activations", "gemm", "attention", "batch", "kv"
size_t device_memory_total(const struct device_memory *memory); // sum of `bytes`, without rounding

struct backend_ops {
    const char *name; // "reference", "cpu", "cuda"
    struct backend_capabilities capabilities;

    void (*close)(struct backend *b); // frees everything that was created from the backend

    // Memory. Tensors are created at start; the token loop allocates nothing.
    enum status (*tensor_create)(struct backend *b, enum tensor_kind kind, int max_rows, int columns,
                                 struct tensor **tensor_p);
    // Returns the tensor's memory, row-major, in the backend's address space, for collectives. Only for F32 tensors.
    float *(*tensor_data)(struct backend *b, struct tensor *t);
    // Waits for all earlier steps, then copies the first `rows` rows of an F32 tensor to host memory.
    enum status (*read)(struct backend *b, const struct tensor *t, int rows, float *host);

    // Creates a weight. It has the rows of all parts one after another ([q; k; v] is one weight). The views are not
    // used after the call.
    enum status (*weight_create)(struct backend *b, const struct matrix_view *parts, int n_parts,
                                 struct weight **weight_p);
    enum status (*weight_gate_up)(struct backend *b, const struct matrix_view *gate, const struct matrix_view *up,
                                  struct weight **weight_p);
    // Creates an embedding table, which only `embed` reads. Its rows are the vocabulary ids first_row .. first_row +
    // rows - 1. `shared_head` is NULL, or the weight of the head made of the same view (tied embeddings). `embed` may
    // then read that weight instead of a copy.
    enum status (*weight_embedding)(struct backend *b, const struct matrix_view *table, int32_t first_row,
                                    struct weight *shared_head, struct weight **weight_p);
    // Creates a vector from views of one row each, joined end to end and stored as f32.
    enum status (*weight_vector)(struct backend *b, const struct matrix_view *parts, int n_parts,
                                 struct weight **weight_p);

    // Read and write a file of packed weights that later starts read instead of packing again. NULL in backends that do
    // not pack. Call `packed_cache_open` before the first weight. It returns true if the file exists. Weights are then
    // read from it in the order in which they were created, as long as they match. `key` identifies the contents of the
    // views. The backend completes the path and owns the layout. Call `weights_finish` after the last weight, with or
    // without a file. It measures how weights are read fastest, and writes the file unless every weight was read from
    // it. Neither function fails: a file that cannot be used or written is logged.
    bool (*packed_cache_open)(struct backend *b, const char *path, uint64_t key);
    void (*weights_finish)(struct backend *b);

    // Returns a key of the processor, the instruction set level and the number of threads: backends with the same key
    // are equally fast. NULL in backends that keep no packed weights.
    uint64_t (*machine)(const struct backend *b);

    // Runs a pass, see struct pass. Returns when every step has been issued.
    enum status (*run_pass)(struct backend *b, const struct pass *pass);
    // Prepares the steps of one batch: checks the batch, prepares RoPE, clears the importance maxima. run_pass calls
    // it. Tests and benchmarks of single kernels call it themselves and then issue steps.
    enum status (*begin)(struct backend *b, const struct ragged_batch *batch);

    // Steps.
    // out [T, hidden] F32: each token's row of the table, or zeros if another rank has that row.
    enum status (*embed)(struct backend *b, struct tensor *out, const struct weight *table);
    // out [rows, n] ACTIVATION = x / rms(x) * gain. `row_index` selects rows of x; NULL selects rows 0 .. rows - 1.
    enum status (*rmsnorm)(struct backend *b, struct tensor *out, const struct tensor *x, const struct weight *gain,
                           float epsilon, const int32_t *row_index, int rows);
    // x is ACTIVATION [rows, K]; out is F32, ACTIVATION or PARTIAL [rows, N]; bias may be NULL.
    enum status (*linear)(struct backend *b, struct tensor *out, const struct tensor *x, const struct weight *w,
                          const struct weight *bias, enum linear_mode mode, int rows);
    // qkv F32 [T, (H + 2 Hkv) D]: applies RMSNorm to each q and k head (a gain may be NULL: no norm), rotates q and k
    // by position, writes q back in place and k, v to the cache of `layer`.
    //
    // With kv_dtype INT8 or FP8, the k and the v of each head are D bytes times one f32 scale, as QUANTISE_MAX in
    // convert.h defines. A head with a value that is not finite gets the scale NaN. So a KV entry depends only on its
    // own row.
    //
    // With INT8, q and k are first multiplied by a Hadamard matrix (arXiv 2404.00456): blocks of B dims, where B is the
    // largest power of two that divides D, times 1 / sqrt(B). This leaves q . k unchanged and spreads the few dims of K
    // with outliers over all dims of a block. FP8 needs no rotation: its exponents cover the outliers.
    enum status (*rope_append)(struct backend *b, int layer, struct tensor *qkv, const struct weight *q_gain,
                               const struct weight *k_gain, float epsilon);
    // out ACTIVATION [T, H D]: attention of each row's q (in qkv, after rope_append) over the KV entries of its
    // sequence. Inputs are rounded as in gemms: in a bf16 backend q, K, V and the softmax weights are bf16, and sums
    // and the softmax are f32. A weight is rounded as 2^(score log2(e) - M), where M is an integer near the row's
    // largest exponent. The result is divided by the sum of the unrounded weights. Every integer M gives the same
    // rounding.
    //
    // With K and V in INT8 or FP8 the gemms read their bytes, which are exact in bf16. A score is (q . bytes) times the
    // scale of k. A weight is multiplied by the scale of v before it is rounded, but the sum of weights is not.
    //
    // For importance rows it also raises the importance maxima, one for each of the first importance_keys keys: the
    // softmax over these keys is averaged over the smoothing window, and the maximum is over this rank's heads and the
    // layers so far. The average counts zeros outside the prompt, and its divisor is always the window. The value is
    // infinite if an average is not finite, since a maximum may drop NaN.
    enum status (*attention)(struct backend *b, int layer, struct tensor *out, const struct tensor *qkv);
    // Returns the importance maxima so far, F32 [1, sum of importance_keys], in the backend's memory (like
    // tensor_data). Returns NULL if the batch has no importance rows.
    float *(*importance_data)(struct backend *b);
    enum status (*importance_read)(struct backend *b, float *host); // waits, then copies the maxima to the host

    // Steps that only some families of models have. They follow another step and precede a gemm, so they need no speed
    // beyond that of memory.
    // out ACTIVATION [rows, I] = activation of x F32.
    enum status (*activate)(struct backend *b, struct tensor *out, const struct tensor *x,
                            const struct activation *activation, int rows);
    // x F32 [rows, n] += addend / rms(addend) * gain, with the addend F32; then out ACTIVATION = x. If addend is NULL,
    // x stays.
    enum status (*add_norm)(struct backend *b, struct tensor *out, struct tensor *x, const struct tensor *addend,
                            const struct weight *gain, float epsilon, int rows);
    // squares F32 [rows, 2] = the sums of squares of this rank's q and of its k, from qkv before rope_append.
    enum status (*sum_squares)(struct backend *b, struct tensor *squares, const struct tensor *qkv, int rows);
    // Normalises q and k of qkv in place.
    enum status (*norm_whole)(struct backend *b, struct tensor *qkv, const struct whole_norm *norm, int rows);
    // Multiplies the q of each row of the batch by 1 + beta * log(1 + floor(position / context)), in f32 as
    // transformers does.
    enum status (*scale_queries)(struct backend *b, struct tensor *qkv, float beta, int context, int rows);

    // The operations below are optional: a pointer is NULL if the backend does not have the operation.

    // Fused steps, for backends that compute several steps in fewer kernels. Callers use backend_norm_linear() etc.
    // below, which issue the single steps if the backend has no fused step. Both give the same bits. Values that only
    // the next step reads are undefined afterwards: norm->out, `inner`, and q, k and v.
    enum status (*norm_linear)(struct backend *b, struct tensor *out, const struct norm_step *norm,
                               const struct weight *w, const struct weight *bias, enum linear_mode mode, int rows);
    enum status (*rope_attention)(struct backend *b, int layer, struct tensor *out, struct tensor *qkv,
                                  const struct weight *q_gain, const struct weight *k_gain, float epsilon);
    enum status (*mlp)(struct backend *b, struct tensor *out, struct tensor *inner, const struct norm_step *norm,
                       const struct weight *gate_up, const struct weight *down, enum linear_mode mode, int rows);

    // Steps for a last layer, whose results only the logit rows need. A backend has both or neither.
    // Like `attention`, but rows of out that have no logits are undefined. Importance is the same.
    enum status (*attention_last)(struct backend *b, int layer, struct tensor *out, const struct tensor *qkv);
    // out [rows, n] = rows row_index[0 .. rows - 1] of x. Both tensors have the same kind and the same columns.
    enum status (*gather_rows)(struct backend *b, struct tensor *out, const struct tensor *x, const int32_t *row_index,
                               int rows);

    // Called at start-up, after a first dummy pass: times the algorithms of every gemm that the pass issued and selects
    // the fastest. Overwrites the contents of tensors.
    enum status (*tune)(struct backend *b);
    // Samples one token per row of logits. sampled F32 [rows, 2] receives a struct sampled_id per row. The logits are
    // in `parts` parts, one after another, each of `rows` rows of the tensor's columns: gather leaves the shares of the
    // ranks in this form. Concatenated by row they are the logits of ids first_id .. first_id + n_ids - 1, followed by
    // padding. With use_sampling, each row is sampled as batch.sampling says, with equally likely tokens ordered by id.
    // Otherwise it gets the most likely token, or the lower id if logits are equal. NaN counts as -inf.
    enum status (*sample)(struct backend *b, struct tensor *sampled, const struct tensor *logits, int parts, int rows,
                          int32_t first_id, int32_t n_ids, bool use_sampling);
    // Runs fn(arg, item, thread) once for each item of [0, n_items) on the threads that compute the steps, and returns
    // when all calls have returned. `thread` is in [0, host_threads()). A backend has both operations or neither.
    void (*host_run)(struct backend *b, void (*fn)(void *arg, int item, int thread), void *arg, int n_items);
    int (*host_threads)(const struct backend *b);
    // Returns the cores of these threads, owned by the backend.
    struct host_cores (*host_cores)(const struct backend *b);
    // Makes `read` into this memory faster, until `close`. The caller must not free the memory before `close`.
    void (*host_pin)(struct backend *b, void *memory, size_t bytes);
    // Waits for all steps, like `read`. Ranks that read nothing use it to notice a failed step.
    enum status (*wait)(struct backend *b);
    // Opens a comm for collectives on this backend's memory, ordered with its steps. Every rank calls it. `host`
    // connects the same ranks on host memory. The caller owns `host` and keeps it open, since the new comm broadcasts
    // over it. From then on the backend's waits notice a failed rank. The backend owns the new comm and closes it in
    // `close`.
    enum status (*comm_open)(struct backend *b, struct comm *host, struct comm **comm_p);
    // Replaces `rows` rows of a PARTIAL tensor by their sums over the ranks of comm_open. Each rank has rounded its
    // addend to bf16. The sums are also bf16, and are rounded at most once for each further rank.
    enum status (*sum_ranks)(struct backend *b, struct tensor *partial, int rows);
    // Returns the device's address on the PCI bus, such as "0000:65:00.0". Owned by the backend.
    const char *(*gpu_address)(const struct backend *b);
    // Returns the total and free bytes of the device.
    enum status (*memory)(struct backend *b, size_t *total_p, size_t *free_p);
    // Returns the bytes of host memory that the backend has allocated in addition to the tensors, per row of a pass. A
    // NULL pointer means none.
    size_t (*row_bytes)(const struct backend *b);
    // Returns the device memory that the backend has allocated so far. Valid until the next call.
    const struct device_memory *(*allocated)(struct backend *b);
    // Creates the KV cache with n_kv_blocks instead of shape.n_kv_blocks. Called once, before the first `begin`, by
    // callers that size the cache by the memory that weights and tensors leave free. Otherwise the first `begin`
    // creates it.
    enum status (*kv_create)(struct backend *b, int n_kv_blocks);
    // Measures two speeds, for about `ms` milliseconds each: of a large bf16 gemm in 10^9 operations per second, and of
    // a large copy in 10^9 bytes per second, where bytes read and bytes written both count.
    enum status (*measure)(struct backend *b, int ms, double *gflops_p, double *gbytes_per_s_p);
};

struct backend {
    const struct backend_ops *ops; // first member of every implementation's own struct
};

// Issues every stage of a pass for `rows` rows in order, then the logits of `logit_rows` rows.
enum status pass_issue(const struct pass *pass, int rows, int logit_rows);
// Implements run_pass for backends that neither capture nor overlap: calls `begin`, then pass_issue for the rows of the
// batch.
enum status backend_run_pass(struct backend *b, const struct pass *pass);

// Computes out (mode) = rmsnorm(x) W^T (+ bias).
enum status backend_norm_linear(struct backend *b, struct tensor *out, const struct norm_step *norm,
                                const struct weight *w, const struct weight *bias, enum linear_mode mode, int rows);
// Runs rope_append, then attention.
enum status backend_rope_attention(struct backend *b, int layer, struct tensor *out, struct tensor *qkv,
                                   const struct weight *q_gain, const struct weight *k_gain, float epsilon);
// Computes inner = silu(rmsnorm(x) G^T) * (rmsnorm(x) U^T), then out (mode) = inner down^T.
enum status backend_mlp(struct backend *b, struct tensor *out, struct tensor *inner, const struct norm_step *norm,
                        const struct weight *gate_up, const struct weight *down, enum linear_mode mode, int rows);

// Open a backend. `dtype` is the type of weights in computation: f32, bf16, bf12, int8, int8-g128, fp8 or
// int4-g128. `threads` 0 means as many as the process may use. The CPU backend reads views in FP8, but does not
// multiply in FP8 and does not store K and V in FP8.
enum status backend_open_reference(const struct backend_shape *shape, enum dtype dtype, struct backend **backend_p);
enum status backend_open_cpu(const struct backend_shape *shape, enum dtype dtype, int threads,
                             struct backend **backend_p);
// Opens a backend that computes nothing and allocates no memory for tensors and weights. `allocated` returns the bytes
// that the CUDA backend would allocate on a GPU of compute capability 9.0 for the same tensors, weights and KV cache.
// `dtype` may be any dtype.
enum status backend_open_counting(const struct backend_shape *shape, enum dtype dtype, struct backend **backend_p);
// Opens the backend on a GPU, in bf16, fp8 or int4-g128. Exported only by the module (kernels/module.h): programs call
// backend_open("cuda"). STATUS_NOT_FOUND: this machine has no GPU, no driver, or lacks the libraries.
enum status backend_open_cuda(const struct backend_shape *shape, enum dtype dtype, struct backend **backend_p);
// Opens a backend by name: "reference", "cpu", "cuda" or "auto". "auto" opens the GPU if the CUDA backend is built, a
// GPU is found and it computes in `dtype`. Otherwise it opens the CPU. A GPU that fails for another reason is an error.
// The choice and its reason are logged. STATUS_INVALID lists the names.
enum status backend_open(const char *name, const struct backend_shape *shape, enum dtype dtype, int threads,
                         struct backend **backend_p);
// Opens a backend like backend_open() in *dtype_p, or in `second` if it does not support *dtype_p. "auto" prefers a GPU
// in `second` to a CPU in *dtype_p. Sets *dtype_p to the dtype in use.
enum status backend_open_either(const char *name, const struct backend_shape *shape, enum dtype second, int threads,
                                enum dtype *dtype_p, struct backend **backend_p);
