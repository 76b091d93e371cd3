// SPDX-License-Identifier: Apache-2.0
// What a device must be able to do for a Llama-class forward pass. `kernels/reference` does it in plain C and is the
// oracle, `kernels/cpu` does it fast, `kernels/cuda` does it on a GPU; callers see only this header.
//
// The interface is a handful of fused steps over opaque device memory, ordered as on one stream: an operation may
// return before it is done, `read` waits; not so with host_memory. One thread at a time drives a backend. All sizes are
// the rank's own share.
//
// Notation: T rows of the batch, H query heads, Hkv KV heads, D head size, N x K a weight of N outputs and K inputs.
//
// Exactness: a row's result never depends on which other rows share the batch, on its place in it, or on how a prompt
// was cut into chunks. So sums over K run in one order whatever T is, and attention walks the KV blocks of a sequence
// in order, tiled by block, whether a row is prefilled or decoded.
//
// Errors: creation can fail (memory, device); steps report a status too, since a device may be lost. Shapes are the
// caller's duty and asserted.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "kernels/ragged.h"

// INT8: matrices as signed bytes with a scale per output, the rows they multiply as bytes with a scale per row made on
// the fly. INT8_G128: both scales anew for every 128 of K. These two are ways to compute, not to store.
// FP8: bytes that are e4m3fn numbers (sign, 4 bits of exponent, 3 of mantissa, up to 448, no infinities; arXiv
// 2209.05433) times scales. As stored, see matrix_view; as computed, scales per output and per row as in INT8.
enum dtype { DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_INT8, DTYPE_INT8_G128, DTYPE_FP8, DTYPE_COUNT };
size_t dtype_size_bytes(enum dtype dtype);
const char *dtype_name(enum dtype dtype); // "f32", "f16", "bf16", "int8", "int8-g128", "fp8"
// The type of activations and embedding tables in a backend of `dtype`, of K and V too unless they are bytes: bf16 for
// the types of 8 bits.
enum dtype dtype_of_activations(enum dtype dtype);
// Bytes that the K or the V of one entry and KV head takes in `dtype`; in 8 bits with its scale.
size_t dtype_kv_bytes(enum dtype dtype, int head_size);

struct comm;
struct backend; // a device context: threads or stream, scratch memory
struct tensor;  // device memory [max_rows][columns], row-major
struct weight;  // a matrix in the backend's own packed layout, or a vector of f32

// The type a tensor holds. ACTIVATION is what the backend's matrix products read: f32 in an f32 backend, bf16 in
// all others. The residual stream, q/k/v before RoPE and logits are F32 everywhere.
enum tensor_kind { TENSOR_F32, TENSOR_ACTIVATION };

// Rows [0, rows) x columns [0, columns) of a row-major matrix that lies in host memory (usually a mapped file), as a
// view: element (r, c) is at data + r * row_stride_bytes + c * size of dtype. Need not be aligned.
struct matrix_view {
    const void *data;
    enum dtype dtype; // F32, F16, BF16 or FP8
    int64_t rows, columns;
    int64_t row_stride_bytes;
    // FP8: element (r, c) is its byte times scale number r * scale_stride. Lies as `data` does; NULL: all are 1.
    const void *scale;
    enum dtype scale_dtype; // F32, F16 or BF16
    int scale_stride;       // 1: one for each row; 0: one for all
};

// Model shape as one rank sees it.
struct backend_shape {
    int n_layers;
    int n_heads, n_kv_heads; // of this rank; n_heads is a multiple of n_kv_heads
    int head_size;           // D, even
    const float *inv_freq;   // [D/2] RoPE angle per position, copied. Dims i and i + D/2 rotate together
    int max_rows;            // largest T
    int max_seqs;            // largest S
    int max_context;         // largest number of KV entries of one sequence
    int n_kv_blocks;         // KV cache size in blocks of KV_BLOCK_TOKENS entries, for all layers; see also kv_create
    int host_rank;           // this rank among the host_ranks of its host: which of the host's devices it uses
    int host_ranks;          // 0: as 1
    enum dtype kv_dtype;     // INT8, FP8 (neither in an f32 backend): see rope_append; any other: as activations
    bool fp8_as_stored;      // FP8 backend: a matrix without parts in FP8 is computed in bf16; else it is quantised
    int overlap_rows;        // between ranks, passes of twice as many rows or more go in halves, see `half`; 0: none
};

// Whether K and V are bytes with scales.
static inline bool backend_kv_bytes(const struct backend_shape *shape)
{
    return shape->kv_dtype == DTYPE_INT8 || shape->kv_dtype == DTYPE_FP8;
}

// How a matrix product ends.
enum linear_mode {
    LINEAR_STORE,  // out = x W^T (+ bias)
    LINEAR_ADD,    // out += x W^T (+ bias); out is F32 (the residual stream)
    LINEAR_SWIGLU, // W was made by weight_gate_up: out = silu(x G^T) * (x U^T), out has N/2 columns
};

struct backend_ops {
    const char *name; // "reference", "cpu"
    // Tensors and probe maxima lie in host memory and steps are done when they return: results may be read where they
    // lie, at tensor_data and probe_data, instead of copied by `read` and probe_read.
    bool host_memory;

    void (*close)(struct backend *b); // frees everything made from it

    // Memory. Tensors are made once, at start; the token loop allocates nothing.
    enum status (*tensor_create)(struct backend *b, enum tensor_kind kind, int max_rows, int columns,
                                 struct tensor **tensor_p);
    // Where collectives work: the tensor's memory in the backend's space, row-major. F32 tensors only.
    float *(*tensor_data)(struct backend *b, struct tensor *t);
    // Copies the first `rows` rows of an F32 tensor to host memory; waits for all steps before it.
    enum status (*read)(struct backend *b, const struct tensor *t, int rows, float *host);

    // Weights: the rows of all parts one below the other ([q; k; v] is one weight). The views are not needed after.
    enum status (*weight_create)(struct backend *b, const struct matrix_view *parts, int n_parts,
                                 struct weight **weight_p);
    enum status (*weight_gate_up)(struct backend *b, const struct matrix_view *gate, const struct matrix_view *up,
                                  struct weight **weight_p);
    // An embedding table: only read by `embed`. Rows are vocabulary ids first_row .. first_row + rows - 1.
    // `shared_head`, when not NULL, is a weight made of the same view (tied embeddings): may be read instead of a copy.
    enum status (*weight_embedding)(struct backend *b, const struct matrix_view *table, int32_t first_row,
                                    struct weight *shared_head, struct weight **weight_p);
    enum status (*weight_vector)(struct backend *b, const struct matrix_view *parts, int n_parts,
                                 struct weight **weight_p); // views of one row each, laid end to end, kept as f32

    // Packed weights kept in a file between starts. NULL where a backend packs nothing that is worth it. `open` before
    // the first weight: from then on weights are taken from the file, in the order in which they were made, as long as
    // they fit; true if there is such a file. `key` names the contents of the views; the layout and the end of the path
    // are the backend's. `finish` after the last: writes the file unless all came from it. Neither fails: what they
    // cannot use or write they log.
    bool (*packed_cache_open)(struct backend *b, const char *path, uint64_t key);
    void (*packed_cache_finish)(struct backend *b);

    // Steps. `begin` takes the batch for the steps that follow (and prepares RoPE tables, clears the probe maxima);
    // the batch's arrays must stay valid until the last of them.
    enum status (*begin)(struct backend *b, const struct ragged_batch *batch);
    // out [T, hidden] F32: the table's row of each token, zeros for tokens of other ranks.
    enum status (*embed)(struct backend *b, struct tensor *out, const struct weight *table);
    // out [rows, n] ACTIVATION = x / rms(x) * gain. `row_index` picks the rows of x (NULL: rows 0..rows-1).
    enum status (*rmsnorm)(struct backend *b, struct tensor *out, const struct tensor *x, const struct weight *gain,
                           float epsilon, const int32_t *row_index, int rows);
    // x is ACTIVATION [rows, K]; out F32 or ACTIVATION [rows, N]; bias may be NULL.
    enum status (*linear)(struct backend *b, struct tensor *out, const struct tensor *x, const struct weight *w,
                          const struct weight *bias, enum linear_mode mode, int rows);
    // qkv F32 [T, (H + 2 Hkv) D]: RMS-norms each q and k head (gains may be NULL: none), rotates q and k by position,
    // writes q back in place and k, v to the cache of `layer`. With kv_dtype INT8 or FP8 each head's k, and each head's
    // v, becomes D bytes times an f32 scale of their own, as QUANTISE_MAX in convert.h says; one that is not finite
    // gets the scale NaN. So an entry depends on its own row alone. In INT8 q and k are turned before by a Hadamard
    // matrix (arXiv 2404.00456): blocks of B dims, the largest power of two that divides D, times 1 / sqrt(B). That
    // leaves q . k as it is, and spreads the few dims of K that are many times larger than the rest over all of a
    // block. FP8 has exponents for those.
    enum status (*rope_append)(struct backend *b, int layer, struct tensor *qkv, const struct weight *q_gain,
                               const struct weight *k_gain, float epsilon);
    // out ACTIVATION [T, H D]: attention of each row's q (in qkv, after rope_append) over its sequence's cache. Both of
    // its products read what matrix products read: in a bf16 backend q, K, V and the softmax weights are bf16, sums and
    // the softmax f32. The weights are rounded as 2^(score log2(e) - M) with M an integer near the row's largest
    // exponent, before the division by their unrounded sum: so any integer M gives the same rounding.
    // With K and V in INT8 or FP8 the products read their bytes, which bf16 holds exactly: a score is (q . bytes) times
    // the scale of k_e, and a weight takes the scale of v_e into itself before it is rounded (the sum does not). Probe
    // rows also raise the probe maxima: softmax over the first importance_keys keys alone, averaged over the window
    // (zeros outside, divisor always the window), maximum over this rank's heads and the layers so far.
    enum status (*attention)(struct backend *b, int layer, struct tensor *out, const struct tensor *qkv);
    // The probe maxima so far, F32 [1, sum of importance_keys], in the backend's memory (as tensor_data); NULL without
    // probes.
    float *(*probe_data)(struct backend *b);
    enum status (*probe_read)(struct backend *b, float *host); // copies them to the host; waits

    // A pass of many rows between ranks in two halves: while the ranks sum up the residual of one, each goes on with
    // the other. Both NULL in backends whose collectives hold up all steps.
    // `halve`, right after `begin`: how many rows of the batch are the first half; 0: it goes whole.
    int (*halve)(struct backend *b);
    // What follows is for rows [first, first + rows) of the batch, one of the halves or all: `embed`, `rmsnorm` without
    // row_index, `linear`, `rope_append`, `attention` and sums over ranks. They work on these rows of their tensors and
    // come after all that was asked for these rows before; sums of other rows may be under way beside them. In each
    // layer the first half attends before the second, which also raises the probe maxima.
    enum status (*half)(struct backend *b, int first, int rows);

    // Passes of one kind (decode), kept as a whole; NULL in backends that keep none. `replay` is to be asked right
    // after `begin`: true if all steps up to the logits' product are under way already, as they were kept. Else *rows_p
    // says for how many rows they are to be called: those of the batch or, where the pass is filled up to be kept,
    // more; of the logits then as many.
    bool (*replay)(struct backend *b, int *rows_p);
    // After the logits' product, before anything reads what the pass computed; `steps` is how the steps ended.
    // *again_p: the pass could not be kept and nothing was computed, the steps are to be called again.
    enum status (*pass_end)(struct backend *b, enum status steps, bool *again_p);
    // At start-up, after a first pass that was nobody's: chooses how to compute, by timing, each product that the pass
    // asked for. Tensors hold rubbish afterwards. NULL: there is nothing to choose.
    enum status (*warm)(struct backend *b);

    // What a device with memory of its own has to offer beside; each may be NULL.
    //
    // Drawing tokens where the logits are. picks F32 [rows, 2]: a struct pick for each of `rows` rows of `logits`.
    // Those lie in `parts` parts one behind the other, each of `rows` rows of the tensor's columns (as gather leaves
    // the shares of the ranks); row by row they are the logits of n_ids ids from first_id on, the last part's perhaps
    // followed by what is none. With `draw` as the batch's draws say, by the id itself where they are equally likely;
    // without, the likeliest, of equal logits the lower id. NaN counts as -inf.
    enum status (*sample)(struct backend *b, struct tensor *picks, const struct tensor *logits, int parts, int rows,
                          int32_t first_id, int32_t n_ids, bool draw);
    // Waits for all steps, as a read does: for ranks that have nothing to read, so that they notice what failed.
    enum status (*wait)(struct backend *b);
    // A comm for collectives on this backend's memory, in step with its other steps. `host` is the comm between the
    // same ranks on host memory; it stays the caller's, and is used for broadcasts as long as the new one is. All ranks
    // together. While it is open the backend's waits notice a rank that failed. Closed before the backend.
    enum status (*comm_open)(struct backend *b, struct comm *host, struct comm **comm_p);
    // Bytes of the device in all, and free now.
    enum status (*memory)(struct backend *b, size_t *total_p, size_t *free_p);
    // Makes the KV cache, in place of the one of shape.n_kv_blocks, which such a backend does not make when it is
    // opened: so it can have what weights and tensors leave free. Once, before the first `begin`.
    enum status (*kv_create)(struct backend *b, int n_kv_blocks);
    // What the device reaches for about `ms` each: 10^9 operations a second of a large bf16 product, 10^9 bytes a
    // second read and written by a large copy.
    enum status (*measure)(struct backend *b, int ms, double *gflops_p, double *gbytes_per_s_p);
};

struct backend {
    const struct backend_ops *ops; // first member of every implementation's own struct
};

// `dtype` is the type of weights as computed with: f32, bf16, int8, int8-g128 or fp8. `threads` 0 means all the process
// may use. The CPU backend reads views in FP8, but neither multiplies nor keeps K and V in it.
enum status backend_open_reference(const struct backend_shape *shape, enum dtype dtype, struct backend **backend_p);
enum status backend_open_cpu(const struct backend_shape *shape, enum dtype dtype, int threads,
                             struct backend **backend_p);
// On a GPU, in bf16 or fp8. Only in the module (kernels/module.h): programs say backend_open("cuda"). STATUS_NOT_FOUND:
// this machine has no GPU, no driver for it, or not its libraries.
enum status backend_open_cuda(const struct backend_shape *shape, enum dtype dtype, struct backend **backend_p);
// By name: "reference", "cpu", "cuda" or "auto": the GPU where the CUDA backend is built, a GPU is there and computes
// in `dtype`, else the CPU; the log says which and why. STATUS_INVALID names what there is.
enum status backend_open(const char *name, const struct backend_shape *shape, enum dtype dtype, int threads,
                         struct backend **backend_p);
