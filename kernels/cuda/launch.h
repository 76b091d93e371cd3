// SPDX-License-Identifier: Apache-2.0
// The kernels of the CUDA backend as C functions that put them into a stream. Pointers are device memory unless a name
// says host. A launcher checks nothing: shapes were checked by the backend. It returns what the launch returned;
// errors of the run show at the next wait.
//
// Notation as in kernels/backend.h: T rows, S sequences, H query heads, Hkv KV heads, D head size.
#pragma once

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/ragged.h"

#ifdef __cplusplus
extern "C" {
#endif

// The KV cache of all layers. The D values of (layer, block, K or V, h, entry) start at element
// ((((layer * n_blocks + block) * 2 + is_v) * Hkv + h) * KV_BLOCK_TOKENS + entry) * D.
// n_blocks counts one more than the caller has: the last takes the rows that pad a captured pass.
struct kv_cache {
    void *data;
    float *scale; // FP8: one for each head of an entry, in the same order; NULL for bf16
    bool fp8;     // e4m3 bytes times `scale`; else bf16
    int n_layers, n_blocks, n_kv_heads, head_size;
};

// Attention of sequences with several rows goes by pairs of a row and one of the query heads that share a KV head: pair
// i of a sequence and KV head is row i / group, head i % group of the group. One thread block takes the pairs
// [pair, pair + pairs) of sequence `seq` for one KV head.
enum { ATTEND_PAIRS = 128 };
struct attend_tile {
    int32_t seq, pair, pairs;
};

// A lone row of a sequence (decode) reads its entries in stretches, each by a thread block of its own; geometry.h says
// how long they are. That depends on the row's own entries alone: what it computes never depends on its neighbours.
enum { SPLIT_ENTRIES = 256, SPLITS_MAX = 128 }; // the shortest stretch; the most stretches of one row

// struct ragged_batch (kernels/ragged.h) on the device, with the work lists of attention that schedule.c makes. Of half
// a pass n_rows rows from first_row on: the work lists are theirs, all other arrays are those of the whole batch.
struct device_batch {
    int first_row, n_rows, n_seqs, max_blocks, n_logit_rows, n_importance_rows, smoothing_window;
    int cut;                                         // rows of the first half; 0: the batch is not cut
    const int32_t *token, *position;                 // [T]
    const int32_t *row_seq;                          // [T] sequence of each row
    const int32_t *row_start, *kv_len, *block_table; // as in the batch
    const int32_t *logit_row;                        // [L]
    const struct draw *draw;                         // [L], NULL where the batch has none
    const int32_t *importance_row, *importance_keys; // [P]
    const int32_t *probe_first;                      // [P+1] where its maxima start in the probe array
    const struct attend_tile *tiles;                 // rows of sequences with several rows, costliest first
    int n_tiles, cut_tiles;                          // all; those of rows before the cut, which come first
    const int32_t *lone_row;                         // [n_lone] rows of sequences with one row, ascending
    int n_lone, cut_lone;                            // all; those before the cut
    int max_splits; // at least the stretches of any lone row, its own entry included; at most SPLITS_MAX
    int most_probe_keys;
};

// out f32 [T, hidden]: row of the table (bf16) of each token, zeros for tokens of other ranks.
cudaError_t launch_embed(cudaStream_t stream, float *out, const void *table, int table_stride, int64_t table_rows,
                         int32_t first_row, const int32_t *token, int rows, int hidden);
// out bf16 [rows, stride] = x / rms(x) * gain; x f32 [.., n]; row_index NULL: rows 0..rows-1.
cudaError_t launch_rmsnorm(cudaStream_t stream, void *out, int out_stride, const float *x, const float *gain,
                           float epsilon, const int32_t *row_index, int rows, int n);
// out bf16 [rows, out_stride] = silu(x[:, 0..n)) * x[:, n..2n); x f32 [rows, x_stride].
cudaError_t launch_swiglu(cudaStream_t stream, void *out, int out_stride, const float *x, int x_stride, int rows,
                          int n);
// Rows of bf16 or f32 as e4m3 bytes with a scale each: largest magnitude / 448. Not finite: scale NaN.
cudaError_t launch_quantise_rows(cudaStream_t stream, void *out, int out_stride, float *row_scale, const void *x,
                                 bool x_f32, int x_stride, int rows, int n);
// The end of a product in f32 [rows, x_stride]: y = x * row_scale * column_scale (either may be NULL) + bias (may be
// NULL), of the first n columns; then as `add` says out f32 += y, or out = y, f32 or bf16. x may be out.
cudaError_t launch_epilogue(cudaStream_t stream, void *out, int out_stride, bool out_bf16, bool add, const float *x,
                            int x_stride, const float *row_scale, const float *column_scale, const float *bias,
                            int rows, int n);

// backend_ops.rope_append. qkv: of the whole batch, as in attention.
cudaError_t launch_rope_append(cudaStream_t stream, const struct kv_cache *kv, const struct device_batch *batch,
                               int layer, float *qkv, int n_heads, const float *q_gain, const float *k_gain,
                               float epsilon, const float *inv_freq);
// backend_ops.attention: out bf16 [T, H D] with rows of out_stride. qkv f32 [T, (H + 2 Hkv) D] after rope_append.
// partials: attention_partial_floats() of scratch. window: entries that a row sees at most, itself included; 0: all.
cudaError_t launch_attention(cudaStream_t stream, const struct kv_cache *kv, const struct device_batch *batch,
                             int layer, void *out, int out_stride, const float *qkv, int n_heads, int window,
                             float *partials);
size_t attention_partial_floats(int max_lone, int max_splits, int n_heads, int head_size);
// Its lone rows alone, by decode.cu; launch_attention calls it.
cudaError_t launch_attention_lone(cudaStream_t stream, const struct kv_cache *kv, const struct device_batch *batch,
                                  int layer, void *out, int out_stride, const float *qkv, int n_heads, int window,
                                  float *partials);
// Raises the probe maxima by this layer's attention of the probe rows. sums: importance_sum_floats() of scratch.
// cudaErrorInvalidValue for a probe window wider than PROBE_WINDOW_MOST.
enum { PROBE_WINDOW_MOST = 1023 };
cudaError_t launch_importance(cudaStream_t stream, const struct kv_cache *kv, const struct device_batch *batch,
                              int layer, float *probe, const float *qkv, int n_heads, float *sums);
size_t importance_sum_floats(int max_probes, int n_heads);

// Logits of n_ids ids from first_id on, row by row: those of a row lie in stretches of `columns`, `part` floats apart.
struct logit_rows {
    const float *data;
    int64_t part, row_stride;
    int columns, n_ids;
    int32_t first_id, unused; // no padding: the emulated GPU looks at arguments whole
};
// backend_ops.sample; `draw` is device memory.
cudaError_t launch_argmax(cudaStream_t stream, const struct logit_rows *logits, int rows, struct pick *out);
cudaError_t launch_sample(cudaStream_t stream, const struct logit_rows *logits, int rows, const struct draw *draw,
                          struct pick *out);

#ifdef __cplusplus
}
#endif
