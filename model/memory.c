// SPDX-License-Identifier: Apache-2.0
// Memory of a model: estimated from its shape before anything is opened, and measured on a device, where the KV cache
// gets the memory that weights and working memory leave. Reported in MiB, as GPU tools do.
#include <math.h>
#include <unistd.h>

#include "base/log.h"
#include "model/llama.h"
#include "model/safetensors.h"

#define MIB(bytes) ((double)(bytes) / (1 << 20))

enum { KV_BLOCKS_MAX = 1 << 20 }; // a float holds it exactly; 16 million tokens

// ---- estimated ------------------------------------------------------------------------------------------------------

// Bytes of a matrix in `dtype`, with its scales.
static double matrix_bytes(enum dtype dtype, double rows, double columns)
{
    double bytes = rows * columns * (double)dtype_size_bytes(dtype);
    if (dtype == DTYPE_INT8_G128) return bytes + rows * columns / 128 * sizeof(float);
    return bytes + (dtype_size_bytes(dtype) == 1 ? rows * sizeof(float) : 0);
}

static size_t count_weights(const struct model *m)
{
    const struct model_config *c = &m->config;
    const double hidden = c->hidden, q = (double)m->n_heads * c->head_size, kv = (double)m->n_kv_heads * c->head_size;
    const double norms = (2.0 * c->n_layers + 1) * hidden * sizeof(float);
    const enum dtype rounded = dtype_of_activations(m->dtype);
    // An FP8 checkpoint stores some attention and MLP matrices, and the head, in 16 bits.
    const bool mixed = m->dtype == DTYPE_FP8 && m->shape.fp8_as_stored;
    const double kept_attention = mixed ? fmin(c->fp8_excluded_attention / 4.0, c->n_layers) : 0;
    const double kept_mlp = mixed ? fmin(c->fp8_excluded_mlp / 3.0, c->n_layers) : 0;
    const enum dtype head_dtype = mixed ? rounded : m->dtype;

    double attention[2], mlp[2]; // bytes of a layer: [0] in the model's dtype, [1] in 16 bits
    for (int i = 0; i < 2; i++) {
        enum dtype dtype = i ? rounded : m->dtype;
        attention[i] = matrix_bytes(dtype, q + 2 * kv, hidden) + matrix_bytes(dtype, hidden, q);
        mlp[i] = matrix_bytes(dtype, 2.0 * m->intermediate, hidden) + matrix_bytes(dtype, hidden, m->intermediate);
    }
    double bytes = (c->n_layers - kept_attention) * attention[0] + kept_attention * attention[1] +
                   (c->n_layers - kept_mlp) * mlp[0] + kept_mlp * mlp[1];
    bool shared = c->tied_embeddings && m->n_ids == m->vocab_share && head_dtype == rounded;
    double table = shared ? 0 : matrix_bytes(rounded, m->n_ids, hidden);
    return (size_t)(bytes + matrix_bytes(head_dtype, m->vocab_share, hidden) + table + norms);
}

// An estimate for a GPU: the runtime and the workspace of cuBLASLt, buffers of NCCL, f32 results of gemms (at most 256
// MiB at a time), rows quantised to bytes, importance maxima, partial results of split attention (at most 128 splits of
// a row).
static size_t count_workspace(const struct model *m)
{
    const double mib = 1 << 20, rows = m->shape.max_rows, seqs = m->shape.max_seqs, context = m->shape.max_context;
    const double widest = 2.0 * m->intermediate > m->vocab_share ? 2.0 * m->intermediate : m->vocab_share;
    const double product = rows * widest * sizeof(float), splits = context / 256 + 1;
    double bytes = 700 * mib + (m->comm->size > 1 ? 1024 * mib : 0) + (product < 256 * mib ? product : 256 * mib);
    bytes += seqs * context * sizeof(float);
    bytes += seqs * (splits < 128 ? splits : 128) * m->n_heads * (m->config.head_size + 2) * sizeof(float);
    if (dtype_size_bytes(m->dtype) == 1) bytes += rows * m->intermediate;
    return (size_t)bytes;
}

static double count_parameters(const struct model_config *c)
{
    double hidden = c->hidden, q = (double)c->n_heads * c->head_size, kv = (double)c->n_kv_heads * c->head_size;
    double layer = hidden * (2 * q + 2 * kv) + 3 * hidden * c->intermediate + 2 * hidden;
    return c->n_layers * layer + hidden + (c->tied_embeddings ? 1 : 2) * hidden * c->vocab_size;
}

enum status model_plan(const struct model_options *options, int rank, int size, struct memory_plan *plan_p)
{
    struct comm comm = {.rank = rank, .size = size};
    struct model m = {.comm = &comm, .host_comm = &comm};
    struct safetensors *st = NULL;
    enum status status = model_config_read(options->dir, &m.config);
    if (status == STATUS_OK && !options->dummy) status = safetensors_open(options->dir, &st);
    if (status == STATUS_OK) status = model_lay_out(options, st, &m);
    safetensors_close(st);
    if (status != STATUS_OK) return status;
    m.shape.fp8_as_stored = m.config.fp8; // also for a shape without a checkpoint
    struct tensor_need list[MODEL_TENSORS_MAX];
    size_t pass_bytes = 0;
    for (int n = model_list_tensors(&m, true, list); n; n--)
        pass_bytes += list[n - 1].bytes;
    *plan_p = (struct memory_plan){.weights = count_parameters(&m.config),
                                   .dtype = m.dtype,
                                   .kv_dtype = m.kv_dtype,
                                   .weight_bytes = count_weights(&m),
                                   .pass_bytes = pass_bytes,
                                   .kv_block_bytes = m.kv_block_bytes,
                                   .workspace_bytes = count_workspace(&m),
                                   .context = m.shape.max_context};
    return STATUS_OK;
}

// ---- measured -------------------------------------------------------------------------------------------------------

struct room {
    size_t total, free;
    double used;    // by this process so far
    double left_kv; // of the fraction that it may use
};

static enum status room_measure(struct model *m, struct room *room)
{
    TRY(m->backend->ops->memory(m->backend, &room->total, &room->free));
    room->used = m->free_at_start > room->free ? (double)(m->free_at_start - room->free) : 0;
    room->left_kv = m->gpu_memory_utilization * (double)room->total - room->used;
    if (room->left_kv > (double)room->free) room->left_kv = (double)room->free;
    return STATUS_OK;
}

// Sets the size of the KV cache in device memory: as asked, or as many blocks as fit on the rank with the least room.
static enum status kv_fit(struct model *m)
{
    struct room room = {0};
    enum status status = room_measure(m, &room);
    double fit = status == STATUS_OK && room.left_kv > 0 ? room.left_kv / (double)m->kv_block_bytes : 0;
    int blocks = m->kv_blocks_asked ? m->kv_blocks_asked : fit < KV_BLOCKS_MAX ? (int)fit : KV_BLOCKS_MAX;
    if (!m->kv_blocks_asked && m->comm->size > 1) {
        float least = -(float)blocks;
        TRY(m->host_comm->ops->all_reduce_max(m->host_comm, &least, 1));
        blocks = (int)-least;
    }
    TRY(status);
    m->shape.n_kv_blocks = blocks;
    m->kv_bytes = (size_t)blocks * m->kv_block_bytes;
    if (blocks && (double)m->kv_bytes <= (double)room.free) return STATUS_OK;
    return status_fail(
        STATUS_EXHAUSTED,
        "no room for %d KV blocks of %.2f MiB: the GPU has %.0f MiB, of which %.0f MiB are free; within "
        "gpu-memory-utilization %.2f, weights and working memory use %.0f MiB. Use more ranks, a smaller dtype or "
        "kv-cache-dtype, a lower max-num-batched-tokens, max-num-seqs or max-model-len, fewer kv-blocks or a higher "
        "gpu-memory-utilization",
        blocks ? blocks : 1, MIB(m->kv_block_bytes), MIB(room.total), MIB(room.free), m->gpu_memory_utilization,
        MIB(room.used));
}

// On a GPU the workspace is the used memory that is neither weights nor tensors nor KV; elsewhere it is 0.
static void log_plan(struct model *m)
{
    size_t weights = count_weights(m);
    struct room room = {.free = (size_t)sysconf(_SC_AVPHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE),
                        .total = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE)};
    if (m->backend->ops->memory && room_measure(m, &room) != STATUS_OK) return;
    double workspace = room.used - (double)(weights + m->pass_bytes + m->kv_bytes);
    log_event(LOG_INFO, "memory_plan", LOG_FIELD("backend", m->backend->ops->name), LOG_FIELD("rank", m->comm->rank),
              LOG_FIELD("ranks", m->comm->size), LOG_FIELD("weights_mib", llround(MIB(weights))),
              LOG_FIELD("pass_mib", llround(MIB(m->pass_bytes))),
              LOG_FIELD("workspace_mib", llround(workspace > 0 ? MIB(workspace) : 0)),
              LOG_FIELD("kv_mib", llround(MIB(m->kv_bytes))), LOG_FIELD("kv_blocks", m->shape.n_kv_blocks),
              LOG_FIELD("kv_tokens", (int64_t)m->shape.n_kv_blocks * KV_BLOCK_TOKENS),
              LOG_FIELD("free_mib", llround(MIB(room.free))), LOG_FIELD("total_mib", llround(MIB(room.total))));
}

enum status model_join(struct model *m)
{
    const struct backend_ops *ops = m->backend->ops;
    if (m->comm->size > 1 && ops->comm_open) TRY(ops->comm_open(m->backend, m->host_comm, &m->comm));
    if (m->comm->ops->reserve) m->comm->ops->reserve(m->comm, (size_t)m->shape.max_rows * (size_t)m->config.hidden);
    if (ops->kv_create) {
        TRY(kv_fit(m));
        TRY(ops->kv_create(m->backend, m->shape.n_kv_blocks));
    }
    TRY(model_warm_up(m));
    log_plan(m);
    return STATUS_OK;
}
