// SPDX-License-Identifier: Apache-2.0
// Plans the memory of a model before anything is opened. On a device, also measures the free memory: the KV cache gets
// the memory that weights and working memory leave. Reports are in MiB, as in GPU tools.
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/model/llama.h"
#include "engine/model/safetensors.h"
#include "lib/base/log.h"

#define MIB(bytes) ((double)(bytes) / (1 << 20))

enum { KV_BLOCKS_MAX = 1 << 20 }; // 16 million tokens; a float holds this number exactly

// ---- counted --------------------------------------------------------------------------------------------------------

// Estimates of the memory that libraries allocate. Published numbers for H100 are 500 to 600 MiB for a CUDA context
// with the kernels of cuBLASLt, and 0.5 to 1 GiB for NCCL's buffers on a node of 8 GPUs.
static const size_t RUNTIME_BYTES = (size_t)640 << 20;
static const size_t NCCL_BYTES = (size_t)1024 << 20;

enum status model_count_memory(const struct model *m, const struct safetensors *st, struct device_memory *memory_p)
{
    struct model counted = *m;
    struct tensor_need list[MODEL_TENSORS_MAX];
    counted.layers = NULL;
    counted.progress = NULL;
    counted.zeros = true;
    TRY(backend_open_counting(&m->shape, m->dtype, &counted.backend));
    const struct backend_ops *ops = counted.backend->ops;
    enum status status = model_load_weights(&counted, st);
    for (int n = model_list_tensors(&counted, true, list); n && status == STATUS_OK; n--)
        status = ops->tensor_create(counted.backend, list[n - 1].kind, list[n - 1].rows, list[n - 1].columns,
                                    list[n - 1].tensor_p);
    *memory_p = *ops->allocated(counted.backend);
    free(counted.layers);
    ops->close(counted.backend);
    return status;
}

static double count_parameters(const struct model_config *c)
{
    double hidden = c->hidden, q = (double)c->n_heads * c->head_size, kv = (double)c->n_kv_heads * c->head_size;
    double mlp = layer_mlp_matrices(&c->layer) * hidden * c->intermediate;
    double layer = hidden * (2 * q + 2 * kv) + mlp + 2 * hidden;
    return c->n_layers * layer + hidden + (c->tied_embeddings ? 1 : 2) * hidden * c->vocab_size;
}

enum status model_plan(const struct model_options *options, int rank, int size, struct memory_plan *plan_p)
{
    const int stages = options->stages > 1 ? options->stages : 1;
    int stage;
    TRY(stage_of_rank(rank, size, stages, &stage));
    const int tp = size / stages;
    struct comm group = {.rank = rank, .size = size}, part = {.rank = rank % tp, .size = tp};
    struct model m = {.comm = &part, .host_comm = &part, .group = &group};
    struct safetensors *st = NULL;
    enum status status = model_config_read(options->dir, &m.config);
    if (status == STATUS_OK && !options->dummy) status = safetensors_open(options->dir, &st);
    if (status == STATUS_OK) status = model_lay_out(options, st, &m);
    struct device_memory allocated;
    if (status == STATUS_OK) status = model_count_memory(&m, st, &allocated);
    safetensors_close(st);
    if (status != STATUS_OK) return status;
    *plan_p = (struct memory_plan){.weights = count_parameters(&m.config),
                                   .dtype = m.dtype,
                                   .kv_dtype = m.kv_dtype,
                                   .allocated = allocated,
                                   .kv_block_bytes = m.kv_block_bytes,
                                   .runtime_bytes = RUNTIME_BYTES,
                                   .nccl_bytes = size > 1 ? NCCL_BYTES : 0,
                                   .context = m.shape.max_context};
    return STATUS_OK;
}

// ---- measured -------------------------------------------------------------------------------------------------------

struct room {
    size_t total, free; // bytes of the device
    double used;        // bytes used by this process so far
    double left_kv;     // bytes left for the KV cache within the fraction that this process may use
};

static enum status room_measure(struct model *m, struct room *room)
{
    TRY(m->backend->ops->memory(m->backend, &room->total, &room->free));
    room->used = m->free_at_start > room->free ? (double)(m->free_at_start - room->free) : 0;
    // If more memory was used up than this process can have allocated, another process is starting on this GPU. Its
    // memory does not count.
    size_t own = device_memory_total(m->backend->ops->allocated(m->backend));
    own += RUNTIME_BYTES + (m->comm->size > 1 ? NCCL_BYTES : 0);
    if (room->used > (double)own) room->used = (double)own;
    room->left_kv = m->gpu_memory_utilization * (double)room->total - room->used;
    if (room->left_kv > (double)room->free) room->left_kv = (double)room->free;
    return STATUS_OK;
}

// Sets the size of the KV cache in device memory: the requested size, or as many blocks as fit on the rank with the
// least free memory.
static enum status kv_fit(struct model *m)
{
    struct room room = {0};
    enum status status = room_measure(m, &room);
    // One block is for padding rows of captured passes.
    double fit = status == STATUS_OK ? room.left_kv / (double)m->kv_block_bytes - 1 : 0;
    if (fit < 0) fit = 0;
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

// Logs the memory that the backend has allocated. On a device also logs the rest of the memory that this process uses
// there (runtime_mib): CUDA's and NCCL's.
static void log_plan(struct model *m)
{
    struct room room = {.free = (size_t)sysconf(_SC_AVPHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE),
                        .total = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE)};
    struct device_memory now = {
        .bytes = {[MEMORY_WEIGHTS] = m->weight_bytes, [MEMORY_ACTIVATIONS] = m->pass_bytes, [MEMORY_KV] = m->kv_bytes}};
    if (m->host_limit && m->host_limit < room.total) room.total = m->host_limit;
    if (m->backend->ops->memory && room_measure(m, &room) != STATUS_OK) return;
    if (m->backend->ops->allocated) now = *m->backend->ops->allocated(m->backend);
    const size_t total = device_memory_total(&now), *bytes = now.bytes;
    const size_t workspace = bytes[MEMORY_GEMM] + bytes[MEMORY_ATTENTION] + bytes[MEMORY_BATCH];
    const double runtime = room.used - (double)total;
    log_event(LOG_INFO, "memory_plan", LOG_FIELD("backend", m->backend->ops->name), LOG_FIELD("rank", m->comm->rank),
              LOG_FIELD("ranks", m->comm->size), LOG_FIELD("weights_mib", llround(MIB(bytes[MEMORY_WEIGHTS]))),
              LOG_FIELD("pass_mib", llround(MIB(bytes[MEMORY_ACTIVATIONS]))),
              LOG_FIELD("workspace_mib", llround(MIB(workspace))),
              LOG_FIELD("runtime_mib", llround(runtime > 0 ? MIB(runtime) : 0)),
              LOG_FIELD("kv_mib", llround(MIB(bytes[MEMORY_KV]))), LOG_FIELD("kv_blocks", m->shape.n_kv_blocks),
              LOG_FIELD("kv_tokens", (int64_t)m->shape.n_kv_blocks * KV_BLOCK_TOKENS),
              LOG_FIELD("free_mib", llround(MIB(room.free))), LOG_FIELD("total_mib", llround(MIB(room.total))));
}

// Compares the plan with the allocations. They differ on GPUs that compute block-scaled matrices in bf16, because the
// plan assumes FP8. Any other difference is a bug of this program.
static void check_plan(struct model *m)
{
    const struct device_memory *now = m->backend->ops->allocated(m->backend);
    for (int use = 0; use < MEMORY_USES; use++)
        if (use != MEMORY_KV && now->bytes[use] != m->planned.bytes[use])
            log_event(LOG_WARN, "memory_plan_differs", LOG_FIELD("rank", m->comm->rank),
                      LOG_FIELD("use", memory_use_name((enum memory_use)use)),
                      LOG_FIELD("planned_bytes", m->planned.bytes[use]), LOG_FIELD("allocated_bytes", now->bytes[use]));
}

void model_log_memory(struct model *m)
{
    log_plan(m);
    if (m->backend->ops->allocated) check_plan(m);
}

// Sets the number of KV blocks to the least of the ranks, whose memory limits may differ.
static enum status kv_agree(struct model *m)
{
    float least = -(float)m->shape.n_kv_blocks;
    if (m->group->size == 1) return STATUS_OK;
    TRY(m->group->ops->all_reduce_max(m->group, &least, 1));
    m->shape.n_kv_blocks = (int)-least;
    m->kv_bytes = (size_t)m->shape.n_kv_blocks * m->kv_block_bytes;
    return STATUS_OK;
}

enum status model_join(struct model *m)
{
    const struct backend_ops *ops = m->backend->ops;
    if (m->comm->size > 1 && ops->comm_open) TRY(ops->comm_open(m->backend, m->host_comm, &m->comm));
    if (m->comm->ops->reserve) m->comm->ops->reserve(m->comm, (size_t)m->shape.max_rows * (size_t)m->config.hidden);
    if (!ops->kv_create) return kv_agree(m);
    TRY(kv_fit(m));
    return ops->kv_create(m->backend, m->shape.n_kv_blocks);
}
