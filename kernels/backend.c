// SPDX-License-Identifier: Apache-2.0
// Code common to all backends: the table of dtypes, checks of arguments, and the default way to run a pass. open.c
// opens a backend by name.
#include "kernels/backend.h"

#include <string.h>

#include "kernels/check.h"
#include "kernels/convert.h"
#include "lib/base/invariant.h"

// ---- dtypes ---------------------------------------------------------------------------------------------------------

static const struct {
    const char *name;
    size_t size_bytes; // 0: not a whole number, see dtype_matrix_bytes()
} dtypes[DTYPE_COUNT] = {
    [DTYPE_F32] = {"f32", 4},
    [DTYPE_F16] = {"f16", 2},
    [DTYPE_BF16] = {"bf16", 2},
    [DTYPE_INT8] = {"int8", 1},
    [DTYPE_INT8_G128] = {"int8-g128", 1},
    [DTYPE_FP8] = {"fp8", 1},
    [DTYPE_INT4_G128] = {"int4-g128", 0},
    [DTYPE_BF12] = {"bf12", 0},
};

size_t dtype_size_bytes(enum dtype dtype)
{
    return dtypes[dtype].size_bytes;
}

size_t dtype_matrix_bytes(enum dtype dtype, int64_t rows, int64_t columns)
{
    if (dtype == DTYPE_BF12) return (size_t)rows * (size_t)((3 * columns + 1) / 2);
    if (dtype == DTYPE_INT4_G128) return (size_t)rows * (size_t)((columns + 1) / 2);
    return (size_t)rows * (size_t)columns * dtype_size_bytes(dtype);
}

const char *dtype_name(enum dtype dtype)
{
    return dtypes[dtype].name;
}

enum dtype dtype_of_activations(enum dtype dtype)
{
    return dtype_size_bytes(dtype) <= 1 ? DTYPE_BF16 : dtype;
}

size_t dtype_kv_bytes(enum dtype dtype, int head_size)
{
    return (size_t)head_size * dtype_size_bytes(dtype) + (dtype_size_bytes(dtype) == 1 ? sizeof(float) : 0);
}

const char *memory_use_name(enum memory_use use)
{
    static const char *const names[MEMORY_USES] = {"weights", "activations", "gemm", "attention", "batch", "kv"};
    return names[use];
}

size_t device_memory_total(const struct device_memory *memory)
{
    size_t bytes = 0;
    for (int use = 0; use < MEMORY_USES; use++)
        bytes += memory->bytes[use];
    return bytes;
}

// ---- checks ---------------------------------------------------------------------------------------------------------

enum status backend_shape_check(const struct backend_shape *shape, enum dtype dtype)
{
    if (dtype == DTYPE_F16)
        return status_fail(STATUS_UNSUPPORTED, "dtype f16: no backend computes in f16: use f32 or bf16");
    if (shape->n_layers < 1 || shape->n_kv_heads < 1 || shape->n_heads < 1 || shape->n_heads % shape->n_kv_heads)
        return status_fail(STATUS_INVALID,
                           "%d layers, %d heads, %d KV heads: must be at least 1 each, heads a multiple of KV heads",
                           shape->n_layers, shape->n_heads, shape->n_kv_heads);
    if (shape->head_size < 2 || shape->head_size % 2)
        return status_fail(STATUS_INVALID, "head size %d: must be even and at least 2", shape->head_size);
    if (backend_kv_bytes(shape) && dtype == DTYPE_F32)
        return status_fail(STATUS_UNSUPPORTED, "K and V in %s need weights of another dtype than f32",
                           dtype_name(shape->kv_dtype));
    if (shape->max_rows < 1 || shape->max_seqs < 1 || shape->max_context < 1 || shape->n_kv_blocks < 1)
        return status_fail(STATUS_INVALID,
                           "limits of %d rows, %d sequences, %d context, %d KV blocks: must be at least 1 each",
                           shape->max_rows, shape->max_seqs, shape->max_context, shape->n_kv_blocks);
    return STATUS_OK;
}

static enum status sequences_check(const struct ragged_batch *batch, const struct backend_shape *shape)
{
    if (batch->row_start[0] != 0 || batch->row_start[batch->n_seqs] != batch->n_rows)
        return status_fail(STATUS_INTERNAL, "ragged batch: the sequences cover rows %d to %d, the batch has %d rows",
                           batch->row_start[0], batch->row_start[batch->n_seqs], batch->n_rows);
    for (int s = 0; s < batch->n_seqs; s++) {
        int rows = batch->row_start[s + 1] - batch->row_start[s], entries = batch->kv_len[s] + rows;
        int blocks = (entries + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
        if (rows < 1 || batch->kv_len[s] < 0 || entries > shape->max_context || blocks > batch->max_blocks)
            return status_fail(
                STATUS_INTERNAL,
                "ragged batch: sequence %d has %d rows and %d cached entries: must be at least 1 row and "
                "0 entries, together at most %d, in at most %d blocks",
                s, rows, batch->kv_len[s], shape->max_context, batch->max_blocks);
        for (int i = 0; i < blocks; i++) {
            int32_t block = batch->block_table[(size_t)s * (size_t)batch->max_blocks + (size_t)i];
            if (block < 0 || block >= shape->n_kv_blocks)
                return status_fail(STATUS_INTERNAL, "ragged batch: sequence %d uses block %d, but there are %d blocks",
                                   s, block, shape->n_kv_blocks);
        }
    }
    return STATUS_OK;
}

static enum status importance_check(const struct ragged_batch *batch, const struct backend_shape *shape)
{
    if (batch->n_importance_rows && (batch->smoothing_window < 1 || batch->smoothing_window % 2 == 0))
        return status_fail(STATUS_INTERNAL, "ragged batch: smoothing window %d must be odd and at least 1",
                           batch->smoothing_window);
    int s = 0;
    for (int p = 0; p < batch->n_importance_rows; p++) {
        const int row = batch->importance_row[p], keys = batch->importance_keys[p];
        if (row < (p ? batch->importance_row[p - 1] + 1 : 0) || row >= batch->n_rows)
            return status_fail(STATUS_INTERNAL, "ragged batch: importance row %d is out of order or out of range", row);
        while (row >= batch->row_start[s + 1])
            s++;
        const int seen = batch->kv_len[s] + row - batch->row_start[s] + 1;
        if (keys < 1 || keys > seen)
            return status_fail(STATUS_INTERNAL, "ragged batch: importance row %d over %d keys: must be 1 to %d", row,
                               keys, seen);
    }
    if (ragged_importance_size(batch) > (int64_t)shape->max_seqs * shape->max_context)
        return status_fail(STATUS_INTERNAL,
                           "ragged batch: importance of %lld keys; the limit is %d contexts of %d keys",
                           (long long)ragged_importance_size(batch), shape->max_seqs, shape->max_context);
    return STATUS_OK;
}

struct ragged_batch ragged_warm_up_batch(void)
{
    static const int32_t zero[1] = {0}, row_start[2] = {0, 1};
    return (struct ragged_batch){.n_rows = 1,
                                 .token = zero,
                                 .position = zero,
                                 .n_seqs = 1,
                                 .row_start = row_start,
                                 .kv_len = zero,
                                 .block_table = zero,
                                 .max_blocks = 1,
                                 .n_logit_rows = 1,
                                 .logit_row = zero,
                                 .smoothing_window = 1};
}

enum status ragged_batch_check(const struct ragged_batch *batch, const struct backend_shape *shape)
{
    if (batch->n_rows < 1 || batch->n_rows > shape->max_rows || batch->n_seqs < 1 || batch->n_seqs > shape->max_seqs)
        return status_fail(STATUS_INTERNAL,
                           "ragged batch: %d rows and %d sequences; the limits are 1 to %d rows and 1 to %d sequences",
                           batch->n_rows, batch->n_seqs, shape->max_rows, shape->max_seqs);
    enum status status = sequences_check(batch, shape);
    return status ? status : importance_check(batch, shape);
}

// ---- a pass ---------------------------------------------------------------------------------------------------------

enum status pass_issue(const struct pass *pass, int rows, int logit_rows)
{
    for (int i = 0; i < pass->n_stages; i++) {
        enum status status = pass->stage(pass->context, i, 0, rows);
        if (status != STATUS_OK) return status;
    }
    return logit_rows ? pass->logits(pass->context, logit_rows) : STATUS_OK;
}

enum status backend_run_pass(struct backend *b, const struct pass *pass)
{
    enum status status = b->ops->begin(b, pass->batch);
    return status != STATUS_OK ? status : pass_issue(pass, pass->batch->n_rows, pass->batch->n_logit_rows);
}

// ---- several steps --------------------------------------------------------------------------------------------------

enum status backend_norm_linear(struct backend *b, struct tensor *out, const struct norm_step *norm,
                                const struct weight *w, const struct weight *bias, enum linear_mode mode, int rows)
{
    const struct backend_ops *ops = b->ops;
    if (ops->norm_linear) return ops->norm_linear(b, out, norm, w, bias, mode, rows);
    INVARIANT(!norm->addend, "a norm with an addend in backend %s", ops->name);
    TRY(ops->rmsnorm(b, norm->out, norm->x, norm->gain, norm->epsilon, norm->row_index, rows));
    return ops->linear(b, out, norm->out, w, bias, mode, rows);
}

enum status backend_rope_attention(struct backend *b, int layer, struct tensor *out, struct tensor *qkv,
                                   const struct weight *q_gain, const struct weight *k_gain, float epsilon)
{
    const struct backend_ops *ops = b->ops;
    if (ops->rope_attention) return ops->rope_attention(b, layer, out, qkv, q_gain, k_gain, epsilon);
    TRY(ops->rope_append(b, layer, qkv, q_gain, k_gain, epsilon));
    return ops->attention(b, layer, out, qkv);
}

enum status backend_mlp(struct backend *b, struct tensor *out, struct tensor *inner, const struct norm_step *norm,
                        const struct weight *gate_up, const struct weight *down, enum linear_mode mode, int rows)
{
    if (b->ops->mlp) return b->ops->mlp(b, out, inner, norm, gate_up, down, mode, rows);
    TRY(backend_norm_linear(b, inner, norm, gate_up, NULL, LINEAR_SWIGLU, rows));
    return b->ops->linear(b, out, inner, down, NULL, mode, rows);
}
