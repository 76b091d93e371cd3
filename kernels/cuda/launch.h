// SPDX-License-Identifier: Apache-2.0
// C functions that launch the kernels of the CUDA backend into a stream. Pointers are device memory unless the name
// says host. Launchers check nothing: the backend has checked the shapes. They return the status of the launch. An
// error while the kernel runs is reported by the next wait.
//
// Notation as in kernels/backend.h: T rows, S sequences, H query heads, Hkv KV heads, D head size.
#pragma once

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/backend.h"
#include "kernels/cuda/limits.h"
#include "kernels/ragged.h"
#include "kernels/rope_shape.h"

#ifdef __cplusplus
extern "C" {
#endif

// The KV cache of all layers. The D values of (layer, block, K or V, h, entry) start at element ((((layer * n_blocks +
// block) * 2 + is_v) * Hkv + h) * KV_BLOCK_TOKENS + entry) * D. n_blocks is one more than the caller's number: padding
// rows of captured passes write to the last block.
struct kv_cache {
    void *data;
    float *scale; // FP8: one scale for each head of K and V of an entry, in the same order; NULL for bf16
    bool fp8;     // values are e4m3 bytes times `scale`; else bf16
    int n_layers, n_blocks, n_kv_heads, head_size;
};

// struct ragged_batch (kernels/ragged.h) on the device, with the work lists of attention that schedule.c makes. In a
// micro-batch, the rows are the n_rows rows from first_row on, and the work lists cover only these rows. The other
// arrays belong to the whole batch.
struct device_batch {
    int first_row, n_rows, n_seqs, max_blocks, n_logit_rows, n_importance_rows, smoothing_window;
    int first_rows;                                  // rows of the first micro-batch; 0: the batch is not divided
    const int32_t *token, *position;                 // [T]
    const int32_t *row_seq;                          // [T] sequence of each row
    const int32_t *row_start, *kv_len, *block_table; // copied from the batch
    const int32_t *rope_length;                      // [S] zeros if the batch has none
    const int32_t *logit_row;                        // [L]
    const struct row_sampling *sampling;             // [L], NULL if the batch has none
    const int32_t *importance_row, *importance_keys; // [P]
    const int32_t *importance_first;                 // [P+1] start of the maxima of each importance row
    const int32_t *importance_block; // [P+1] start of the kept scores of each importance row, see geometry_kept_at
    // n_importance_rows is the number in the micro-batch or round (schedule.h), which begins with number
    // importance_begin of the P importance rows.
    int importance_begin, first_importance_rows; // first_importance_rows: number in the first micro-batch
    const int32_t *tiled_importance; // [n_tiled_importance] importance rows of sequences with several rows, ascending
    int n_tiled_importance, first_tiled_importance; // number of all; number in the first micro-batch
    const struct attend_tile *tiles;                // prefill rows, costliest tiles first
    // Number of tiles; number of tiles of the first micro-batch, which come first.
    int n_tiles, first_tiles;
    int n_spans, first_spans;         // number of tiles that are spans; the same in the first micro-batch
    const int32_t *single_row;        // [n_single] rows that are alone in their sequence, ascending
    const int32_t *single_importance; // [n_single] number of the single row as an importance row, or -1
    int n_single, first_single;       // number of all; number in the first micro-batch
    int max_splits;                   // at least the number of splits of any single row; at most SPLITS_MAX
    int max_importance_keys;          // largest of importance_keys
};

// out f32 [T, hidden] = each token's row of the bf16 table times `scale`, or zeros for tokens of other ranks.
cudaError_t launch_embed(cudaStream_t stream, float *out, const void *table, int table_stride, int64_t table_rows,
                         int32_t first_row, const int32_t *token, int rows, int hidden, float scale);
// out bf16 [rows, stride] = x / rms(x) * gain, with x f32 [.., n]. row_index NULL means rows 0..rows-1.
cudaError_t launch_rmsnorm(cudaStream_t stream, void *out, int out_stride, const float *x, const float *gain,
                           float epsilon, const int32_t *row_index, int rows, int n);
// Does the same for x + addend, where addend is bf16 [.., addend_stride]. If row_index is NULL, x is replaced by the
// sum.
cudaError_t launch_add_rmsnorm(cudaStream_t stream, void *out, int out_stride, float *x, const void *addend,
                               int addend_stride, const float *gain, float epsilon, const int32_t *row_index, int rows,
                               int n);
// out bf16 [rows, out_stride] = silu(x[:, 0..n)) * x[:, n..2n); x f32 [rows, x_stride].
cudaError_t launch_swiglu(cudaStream_t stream, void *out, int out_stride, const float *x, int x_stride, int rows,
                          int n);
// Does the same with e4m3 bytes and one scale per row as the result. The bits equal launch_swiglu followed by
// launch_quantise_rows. Bytes from n on are zeros. out_stride is a multiple of 16, less than n + 16; n is at most
// SWIGLU_FP8_MAX.
enum { SWIGLU_FP8_MAX = 96 * 1024 };
cudaError_t launch_swiglu_fp8(cudaStream_t stream, void *out, int out_stride, float *row_scale, const float *x,
                              int x_stride, int rows, int n);
// Quantises rows of bf16 or f32 to e4m3 bytes. The scale of a row is its largest magnitude / 448, or NaN if a value of
// the row is not finite.
cudaError_t launch_quantise_rows(cudaStream_t stream, void *out, int out_stride, float *row_scale, const void *x,
                                 bool x_f32, int x_stride, int rows, int n);
// Does the same with one scale for each block of FP8_BLOCK values of a row. The scale of block b is row_scale[b *
// scale_stride + row]. n is a multiple of 16.
cudaError_t launch_quantise_blocks(cudaStream_t stream, void *out, int out_stride, float *row_scale, int scale_stride,
                                   const void *x, int x_stride, int rows, int n);
// The bits equal launch_rmsnorm followed by launch_quantise_rows, or by launch_quantise_blocks if scale_stride is not
// 0. Bytes from n on are zeros. out_stride is a multiple of 16, less than n + 16.
cudaError_t launch_rmsnorm_fp8(cudaStream_t stream, void *out, int out_stride, float *row_scale, int scale_stride,
                               const float *x, const float *gain, float epsilon, const int32_t *row_index, int rows,
                               int n);
// The bits equal launch_add_rmsnorm followed by launch_quantise_rows.
cudaError_t launch_add_rmsnorm_fp8(cudaStream_t stream, void *out, int out_stride, float *row_scale, float *x,
                                   const void *addend, int addend_stride, const float *gain, float epsilon,
                                   const int32_t *row_index, int rows, int n);
// out bf16 [rows, stride]: rows [first, first + rows) of e4m3 `bytes` [.., stride] times their scales. There is one
// scale for each row if scale_stride is 0. Else there is one for each block of FP8_BLOCK x FP8_BLOCK, and scale_stride
// scales for each row of blocks. stride is a multiple of 16.
cudaError_t launch_dequantise(cudaStream_t stream, void *out, const void *bytes, int stride, const float *scale,
                              int scale_stride, int64_t first, int rows);
// Epilogue of a gemm whose result is x f32 [rows, x_stride]: y = x * row_scale * column_scale + bias over the first n
// columns, where each factor may be NULL. Then out f32 += y if `add`, else out = y in f32 or bf16. x may be out.
cudaError_t launch_epilogue(cudaStream_t stream, void *out, int out_stride, bool out_bf16, bool add, const float *x,
                            int x_stride, const float *row_scale, const float *column_scale, const float *bias,
                            int rows, int n);

// Steps of some families (family_rows.cu), see backend_ops.activate and the steps after it. `rows` counts the rows of a
// step.
cudaError_t launch_activate(cudaStream_t stream, void *out, int out_stride, const float *x, const struct activation *a,
                            int rows, int n);
cudaError_t launch_add_norm(cudaStream_t stream, void *out, int out_stride, float *x, const float *addend,
                            const float *gain, float epsilon, int rows, int n);
// squares f32 [rows, 2] of the first q and the next k values of rows of qkv, `stride` floats apart.
cudaError_t launch_sum_squares(cudaStream_t stream, float *squares, const float *qkv, int stride, int rows, int q,
                               int k);
// Normalises these values, with sums over q_dims and k_dims values.
struct whole_rows {
    const float *squares, *q_gain, *k_gain;
    int q, k, q_dims, k_dims, stride;
    float epsilon;
};
cudaError_t launch_norm_whole(cudaStream_t stream, float *qkv, const struct whole_rows *norm, int rows);
// Multiplies the first n values of each row by rope_query_scale() of its position.
cudaError_t launch_scale_queries(cudaStream_t stream, float *qkv, int stride, const int32_t *position, float beta,
                                 int context, int rows, int n);

// A gemm of up to GEMV_ROWS rows: out [rows, N] = x [rows, K] W[N, K]^T, reading W once (gemv.cu). K is padded with
// zeros to a multiple of 16. Both operands are bf16. If fp8 is set, both are e4m3 bytes with the scales row_scale
// [rows] and column_scale [N], or block-scaled as in launch_quantise_blocks and launch_dequantise.
enum gemv_mode {
    GEMV_STORE,  // out f32 = result + bias
    GEMV_ADD,    // out f32 += result + bias
    GEMV_BF16,   // out bf16 = result + bias
    GEMV_SWIGLU, // out bf16 [rows, N/2], no bias
};
// Form of x. Every thread block does the remaining steps for x itself, and gets the same bits as the separate kernel.
enum gemv_rows {
    GEMV_READY,    // ready to be multiplied
    GEMV_NORM,     // x is f32, and the norm (launch_rmsnorm) remains to be done; W is bf16
    GEMV_QUANTISE, // x is bf16, and remains to be quantised (launch_quantise_rows or _blocks); W is FP8
};
struct gemv {
    const void *w, *x;
    const float *row_scale, *column_scale, *bias; // row_scale: only with READY. bias may be NULL
    void *out;
    int n, k, rows, x_stride, out_stride;
    int fp8, block_stride, row_scale_stride; // block_stride: scales in a row of blocks of W; 0: one for each output
    enum gemv_mode mode;
    enum gemv_rows x_is;

    const float *gain;        // NORM: [columns], columns a multiple of 8
    const int32_t *row_index; // NORM: rows of x; NULL: 0 .. rows - 1
    float epsilon;            // NORM
    int columns;              // NORM
    // Largest magnitudes of parts of each row, [GEMV_ROWS][GEMV_BLOCKS_MAX]. SWIGLU stores the maxima of out in
    // out_maxima unless it is NULL, one for each thread block. QUANTISE reads the maxima of x from x_maxima, n_maxima
    // for each row. If x_maxima is NULL, it finds the maxima itself.
    float *out_maxima;
    const float *x_maxima;
    int n_maxima, unused; // instead of padding: the emulated GPU inspects all bytes of arguments
};
// Returns the number of thread blocks of a launch.
int gemv_blocks(const struct gemv *gemv, int multiprocessors);
cudaError_t launch_gemv(cudaStream_t stream, const struct gemv *gemv, int multiprocessors);
// Does the same for any number of rows that are READY in bf16, with a weight of 4 bits (int4.cu). `w` has words of
// INT4_WORD_CODES codes, from the lowest bits up, k / INT4_WORD_CODES for each output. column_scale has one scale for
// each output and group of INT4_GROUP_SIZE columns, then one zero (a byte) for each.
enum { INT4_WORD_CODES = 8, INT4_GROUP_SIZE = 128 };
cudaError_t launch_int4_gemm(cudaStream_t stream, const struct gemv *gemv);
// Does the same for up to STREAM_ROWS rows that are READY, with a bf16 weight (gemm_stream.cu). A row gets the same
// bits as from launch_gemv. A thread block takes up to gemm_stream_shared_bytes of shared memory.
cudaError_t launch_gemm_stream(cudaStream_t stream, const struct gemv *gemv, int multiprocessors);
size_t gemm_stream_shared_bytes(void);

// How the heads of q and k are normalised and rotated before attention reads them.
struct rope {
    const float *q_gain, *k_gain; // gains of the norms of heads, or NULL
    const float *angles;          // angles of the rows of the pass, see launch_rope_angles
    float epsilon;
    int angle_stride; // distance between the angles of two rows, in floats: D, or 0 if all rows share one row of angles
};
// angles [rows, D/2, 2] = cosine and sine of each row's angles, times their factor. Computed once for all layers. The
// arrays of `rope` are on the device.
cudaError_t launch_rope_angles(cudaStream_t stream, float *angles, const struct rope_shape *rope,
                               const struct device_batch *batch, int head_size);
// Implements backend_ops.rope_append. qkv has the whole batch, as in attention.
cudaError_t launch_rope_append(cudaStream_t stream, const struct kv_cache *kv, const struct device_batch *batch,
                               int layer, float *qkv, int n_heads, const struct rope *rope);
// The driver's description of the KV cache, with which TMA reads it if geometry_wgmma is true. Made once for each
// cache.
struct kv_map {
    bool made; // false: tiles are computed without TMA
    int multiprocessors;
    unsigned char bytes[128]; // a CUtensorMap
};
cudaError_t attention_map_make(const struct kv_cache *kv, struct kv_map *map);
// Scratch memory of attention, and the map of the KV cache.
struct attention_scratch {
    float *partials;    // memory_partials_bytes()
    uint32_t *arrivals; // memory_arrivals_bytes(), zeros before and after every kernel
    float *kept;        // kept scores of importance rows, of size memory_kept_blocks(); see launch_importance
    struct kv_map map;
};
// backend_ops.attention: out bf16 [T, H D] with rows of out_stride. qkv f32 [T, (H + 2 Hkv) D] after rope_append.
cudaError_t launch_attention(cudaStream_t stream, const struct kv_cache *kv, const struct device_batch *batch,
                             int layer, void *out, int out_stride, const float *qkv, int n_heads,
                             const struct attention_scratch *scratch);
// Computes the tiles of launch_attention if the map is made (attention_wgmma.cu).
cudaError_t launch_attention_wgmma(cudaStream_t stream, const struct kv_cache *kv, const struct device_batch *batch,
                                   int layer, void *out, int out_stride, const float *qkv, int n_heads,
                                   const struct attention_scratch *scratch);
// Computes the single rows of launch_attention (decode.cu). If `rope` is not NULL, it also does backend_ops.rope_append
// for these rows, without a change of qkv. If it is NULL, qkv must be the result of rope_append.
cudaError_t launch_attention_single(cudaStream_t stream, const struct kv_cache *kv, const struct device_batch *batch,
                                    int layer, void *out, int out_stride, const float *qkv, int n_heads,
                                    const struct attention_scratch *scratch, const struct rope *rope);
// Raises the importance maxima to this layer's attention weights of the importance rows, where these are larger. Call
// it after launch_attention of the same batch. launch_attention keeps the scores of importance rows that are single
// rows; this kernel computes the scores of the other importance rows. `kept` is scratch for the scores, as
// geometry_kept_at says. Returns cudaErrorInvalidValue if the smoothing window is wider than IMPORTANCE_WINDOW_MAX.
enum { IMPORTANCE_WINDOW_MAX = 1023 };
cudaError_t launch_importance(cudaStream_t stream, const struct kv_cache *kv, const struct device_batch *batch,
                              int layer, float *maxima, const float *qkv, int n_heads, float *kept);

// Logits of ids first_id .. first_id + n_ids - 1. The logits of a row are in parts of `columns` logits. Parts begin
// `part` floats apart.
struct logit_rows {
    const float *data;
    int64_t part, row_stride;
    int columns, n_ids;
    int32_t first_id, unused; // instead of padding: the emulated GPU inspects all bytes of arguments
};
// Implement backend_ops.sample without and with use_sampling.
cudaError_t launch_argmax(cudaStream_t stream, const struct logit_rows *logits, int rows, struct sampled_id *out);
cudaError_t launch_sample(cudaStream_t stream, const struct logit_rows *logits, int rows,
                          const struct row_sampling *sampling, struct sampled_id *out);

#ifdef __cplusplus
}
#endif
