// SPDX-License-Identifier: Apache-2.0
// The CUDA backend: the device, opening and closing, tensors, running a pass, and steps that are one launch.
#include "kernels/cuda/cuda.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/check.h"
#include "kernels/comm.h"
#include "kernels/cuda/geometry.h"
#include "kernels/cuda/schedule.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"

enum { HEAD_SIZE_MAX = 256 };

// ---- the device -----------------------------------------------------------------------------------------------------

static enum status device_open(struct cuda *cuda)
{
    int n_devices = 0;
    cudaError_t error = cudaGetDeviceCount(&n_devices);
    if (error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver || (error == cudaSuccess && !n_devices)) {
        cudaGetLastError();
        return status_fail(STATUS_NOT_FOUND, "no CUDA device: %s",
                           error != cudaSuccess ? cudaGetErrorString(error) : "there is none");
    }
    const struct gpu_place *place = &cuda->shape.gpu;
    if (place->device == GPU_NONE)
        return status_fail(STATUS_INVALID,
                           "%d GPU%s seen, all in use by lower ranks (the first by rank %d): each rank needs "
                           "its own GPU. Start fewer ranks on this host, or let each rank see another GPU "
                           "(CUDA_VISIBLE_DEVICES, srun --gpus-per-task)",
                           place->seen, place->seen == 1 ? "" : "s", place->used_by);
    cuda->device = place->device;
    if (error == cudaSuccess) error = cudaSetDevice(cuda->device);
    enum status status = cuda_status(error, "CUDA device");
    if (status == STATUS_OK)
        status = cuda_status(cudaGetDeviceProperties(&cuda->properties, cuda->device), "CUDA device");
    if (status != STATUS_OK) return status;
    const struct cudaDeviceProp *p = &cuda->properties;
    const int capability = 10 * p->major + p->minor, least = cuda->dtype == DTYPE_FP8 ? 89 : 80;
    if (capability < least)
        return status_fail(STATUS_UNSUPPORTED, "GPU %d, %s, has compute capability %d.%d: %s needs %d.%d", cuda->device,
                           p->name, p->major, p->minor, dtype_name(cuda->dtype), least / 10, least % 10);
    return cuda_status(cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking), "CUDA stream");
}

static enum status memory_read(struct backend *b, size_t *total_p, size_t *free_p)
{
    upload_close(cuda_of(b)); // the upload buffers are not needed after loading
    return cuda_status(cudaMemGetInfo(free_p, total_p), "CUDA device memory");
}

static const char *gpu_address(const struct backend *b)
{
    return ((const struct cuda *)b)->address;
}

static const struct device_memory *memory_allocated(struct backend *b)
{
    return &cuda_of(b)->memory;
}

// ---- tensors --------------------------------------------------------------------------------------------------------

static enum status tensor_create(struct backend *b, enum tensor_kind kind, int max_rows, int columns,
                                 struct tensor **tensor_p)
{
    struct cuda *cuda = cuda_of(b);
    const bool f32 = kind == TENSOR_F32, sums = kind == TENSOR_PARTIAL;
    struct tensor *t = mem_alloc(sizeof *t);
    *t =
        (struct tensor){.kind = f32 ? kind : TENSOR_ACTIVATION, .max_rows = max_rows, .columns = columns, .sums = sums};
    t->stride = f32 ? columns : cuda_stride(columns);
    char what[64];
    snprintf(what, sizeof what, "a tensor of %d x %d", max_rows, columns);
    const size_t bytes = memory_tensor_bytes(kind, max_rows, columns);
    t->next = cuda->tensors;
    cuda->tensors = t; // close frees it, also after a failure
    TRY(sums ? cuda_allocate_by(cuda, MEMORY_ACTIVATIONS, bytes, what, &t->data, comm_memory_allocate)
             : cuda_allocate(cuda, MEMORY_ACTIVATIONS, bytes, what, &t->data));
    if (!f32) TRY(gemm_reserve_rows(cuda, max_rows));
    *tensor_p = t;
    return STATUS_OK;
}

static float *tensor_data(struct backend *b, struct tensor *t)
{
    assert(t->kind == TENSOR_F32);
    return t->data;
}

static enum status read_floats(struct cuda *cuda, const void *from, size_t count, float *host)
{
    comm_wait_begin(cuda);
    cudaError_t error = cudaMemcpyAsync(host, from, count * sizeof *host, cudaMemcpyDeviceToHost, cuda->stream);
    if (error == cudaSuccess) error = cudaStreamSynchronize(cuda->stream);
    return comm_wait_end(cuda, error, "CUDA: reading a tensor");
}

static enum status tensor_read(struct backend *b, const struct tensor *t, int rows, float *host)
{
    assert(t->kind == TENSOR_F32 && rows <= t->max_rows);
    return read_floats(cuda_of(b), t->data, (size_t)rows * (size_t)t->columns, host);
}

// Pins memory: copies into pageable memory pass through a buffer of the driver. If the memory cannot be pinned, copies
// still work that way.
static void host_pin(struct backend *b, void *memory, size_t bytes)
{
    struct cuda *cuda = cuda_of(b);
    if (cudaHostRegister(memory, bytes, cudaHostRegisterDefault) != cudaSuccess) {
        cudaGetLastError();
        return;
    }
    struct pinned *p = mem_alloc(sizeof *p);
    *p = (struct pinned){cuda->pinned, memory};
    cuda->pinned = p;
}

static enum status steps_wait(struct backend *b)
{
    return cuda_wait(cuda_of(b));
}

// ---- the KV cache ---------------------------------------------------------------------------------------------------

static enum status kv_create(struct backend *b, int n_kv_blocks)
{
    struct cuda *cuda = cuda_of(b);
    struct kv_cache *kv = &cuda->kv;
    const struct memory_kv memory = memory_kv(&cuda->shape, n_kv_blocks);
    assert(!kv->data);
    cuda->shape.n_kv_blocks = n_kv_blocks;
    *kv = (struct kv_cache){.fp8 = cuda->shape.kv_dtype == DTYPE_FP8,
                            .n_layers = cuda->shape.n_layers,
                            .n_blocks = memory.blocks,
                            .n_kv_heads = cuda->shape.n_kv_heads,
                            .head_size = cuda->shape.head_size};
    char what[64];
    snprintf(what, sizeof what, "%d KV blocks", n_kv_blocks);
    enum status status = cuda_allocate(cuda, MEMORY_KV, memory.data_bytes, what, &kv->data);
    if (status == STATUS_OK && kv->fp8)
        status = cuda_allocate(cuda, MEMORY_KV, memory.scale_bytes, what, (void **)&kv->scale);
    if (status != STATUS_OK) return status;
    return cuda_status(attention_map_make(kv, &cuda->attention.map), "the map of the KV cache");
}

// ---- the pass -------------------------------------------------------------------------------------------------------

static enum status importance_check(const struct ragged_batch *batch)
{
    if (batch->smoothing_window <= IMPORTANCE_WINDOW_MAX) return STATUS_OK;
    return status_fail(STATUS_INTERNAL, "ragged batch: smoothing window %d, at most %d on a GPU",
                       batch->smoothing_window, IMPORTANCE_WINDOW_MAX);
}

// Copies the batch and the work lists of attention to the device, in one copy, and computes the angles of its rows.
static cudaError_t batch_upload(struct cuda *cuda, const struct ragged_batch *batch)
{
    struct schedule_options options = {.group = cuda->shape.n_heads / cuda->shape.n_kv_heads,
                                       .padding_block = cuda->shape.n_kv_blocks};
    if (geometry_wgmma(cuda->properties.major, &cuda->kv)) {
        options.max_spans = memory_tile_spans(&cuda->shape);
        options.n_kv_heads = cuda->shape.n_kv_heads;
        options.multiprocessors = cuda->properties.multiProcessorCount;
    }
    cuda->capturable = graphs_begin(cuda->graphs, batch, &options);
    if (!cuda->capturable) options.first_rows = overlap_first_rows(cuda, batch);
    cuda->batch = *batch;
    size_t bytes = schedule_make(batch, &options, cuda->staging_host, cuda->staging_device, &cuda->unpadded);
    cuda->padded = cuda->capturable ? schedule_padded(&cuda->unpadded, &options.captured) : cuda->unpadded;
    cuda->on_device = cuda->unpadded;
    cuda->micro_batch = ALL_ROWS;
    cudaError_t error =
        cudaMemcpyAsync(cuda->staging_device, cuda->staging_host, bytes, cudaMemcpyHostToDevice, cuda->stream);
    if (error == cudaSuccess) error = cudaEventRecord(cuda->staged, cuda->stream);
    if (error != cudaSuccess) return error;
    return launch_rope_angles(cuda->stream, cuda->angles, &cuda->shape.rope, &cuda->padded, cuda->shape.head_size);
}

static enum status begin(struct backend *b, const struct ragged_batch *batch)
{
    struct cuda *cuda = cuda_of(b);
    enum status status = ragged_batch_check(batch, &cuda->shape);
    if (status == STATUS_OK) status = importance_check(batch);
    // Create the KV cache with the size in the shape.
    if (status == STATUS_OK && !cuda->kv.data) status = kv_create(b, cuda->shape.n_kv_blocks);
    if (status != STATUS_OK) return status;
    upload_close(cuda);                              // all weights have been created
    cudaError_t error = cudaSetDevice(cuda->device); // for this thread, which may not have run the last pass
    // The staging memory must be free: ranks that read nothing back may be a pass ahead of the device.
    comm_wait_begin(cuda);
    if (error == cudaSuccess) error = cudaEventSynchronize(cuda->staged);
    status = comm_wait_end(cuda, error, "CUDA: a step failed");
    if (status != STATUS_OK) return status;
    error = batch_upload(cuda, batch);
    const size_t importance_bytes = (size_t)ragged_importance_size(batch) * sizeof *cuda->importance;
    if (error == cudaSuccess && batch->n_importance_rows)
        error = cudaMemsetAsync(cuda->importance, 0, importance_bytes, cuda->stream);
    return cuda_status(error, "CUDA: the start of a pass");
}

static enum status run_pass(struct backend *b, const struct pass *pass)
{
    struct cuda *cuda = cuda_of(b);
    enum status status = begin(b, pass->batch);
    if (status != STATUS_OK) return status;
    if (cuda->capturable) return graphs_run(cuda, pass);
    if (cuda->unpadded.first_rows) return overlap_run(cuda, pass);
    return pass_issue(pass, pass->batch->n_rows, pass->batch->n_logit_rows);
}

// ---- steps ----------------------------------------------------------------------------------------------------------

static enum status embed(struct backend *b, struct tensor *out, const struct weight *table)
{
    struct cuda *cuda = cuda_of(b);
    const struct device_batch *batch = &cuda->on_device;
    assert(table->kind == WEIGHT_EMBEDDING && out->kind == TENSOR_F32 && out->columns == table->columns);
    const float scale = cuda->shape.embedding_scale != 0 ? cuda->shape.embedding_scale : 1;
    return cuda_status(launch_embed(cuda->stream, cuda_rows(cuda, out, 0), table->data, table->stride, table->rows,
                                    table->first_row, batch->token + batch->first_row, batch->n_rows, out->columns,
                                    scale),
                       "embed");
}

static enum status rmsnorm(struct backend *b, struct tensor *out, const struct tensor *x, const struct weight *gain,
                           float epsilon, const int32_t *row_index, int rows)
{
    struct cuda *cuda = cuda_of(b);
    cuda_norm_check(cuda, out, x, gain, row_index, rows);
    const int32_t *index;
    TRY(cuda_row_index(cuda, row_index, rows, &index));
    return cuda_status(launch_rmsnorm(cuda->stream, cuda_rows(cuda, out, 0), out->stride, cuda_rows(cuda, x, 0),
                                      gain->data, epsilon, index, rows, x->columns),
                       "rmsnorm");
}

static const float *vector(const struct weight *w)
{
    return w ? w->data : NULL;
}

static struct rope rope_of(const struct cuda *cuda, int layer, const struct tensor *qkv, const struct weight *q_gain,
                           const struct weight *k_gain, float epsilon)
{
    assert(qkv->columns == (cuda->shape.n_heads + 2 * cuda->shape.n_kv_heads) * cuda->shape.head_size);
    const int d = cuda->shape.head_size;
    const bool rotates = rope_layer_rotates(&cuda->shape.rope, layer);
    return (struct rope){.q_gain = vector(q_gain),
                         .k_gain = vector(k_gain),
                         .angles = cuda->angles + (rotates ? 0 : (size_t)cuda->shape.max_rows * (size_t)d),
                         .epsilon = epsilon,
                         .angle_stride = rotates ? d : 0};
}

static enum status rope_append(struct backend *b, int layer, struct tensor *qkv, const struct weight *q_gain,
                               const struct weight *k_gain, float epsilon)
{
    struct cuda *cuda = cuda_of(b);
    const struct rope rope = rope_of(cuda, layer, qkv, q_gain, k_gain, epsilon);
    return cuda_status(
        launch_rope_append(cuda->stream, &cuda->kv, &cuda->on_device, layer, qkv->data, cuda->shape.n_heads, &rope),
        "rope_append");
}

// Runs one round of attention. Raises the importance maxima to this layer's weights of the round's importance rows.
static enum status attention_round(struct cuda *cuda, const struct device_batch *round, int layer, struct tensor *out,
                                   const float *qkv)
{
    const int n_heads = cuda->shape.n_heads;
    enum status status = cuda_status(
        launch_attention(cuda->stream, &cuda->kv, round, layer, out->data, out->stride, qkv, n_heads, &cuda->attention),
        "attention");
    if (status != STATUS_OK || !round->n_importance_rows) return status;
    return cuda_status(
        launch_importance(cuda->stream, &cuda->kv, round, layer, cuda->importance, qkv, n_heads, cuda->attention.kept),
        "importance");
}

static enum status attention(struct backend *b, int layer, struct tensor *out, const struct tensor *qkv)
{
    struct cuda *cuda = cuda_of(b);
    const struct device_batch *all = &cuda->on_device;
    assert(out->kind == TENSOR_ACTIVATION && out->columns == cuda->shape.n_heads * cuda->shape.head_size);
    enum status status = STATUS_OK;
    int done = 0; // number of importance rows done
    do {
        const struct device_batch round = schedule_round(all, &cuda->batch, memory_kept_blocks(&cuda->shape), done);
        status = attention_round(cuda, &round, layer, out, qkv->data);
        done += round.n_importance_rows;
    } while (status == STATUS_OK && done < all->n_importance_rows);
    return status;
}

// Runs rope and attention as one kernel if the pass has only single rows, like decode passes. Passes with importance
// rows need separate steps, because importance reads the rotated q.
static enum status rope_attention(struct backend *b, int layer, struct tensor *out, struct tensor *qkv,
                                  const struct weight *q_gain, const struct weight *k_gain, float epsilon)
{
    struct cuda *cuda = cuda_of(b);
    const struct device_batch *batch = &cuda->on_device;
    if (batch->n_tiles || batch->n_importance_rows) {
        TRY(rope_append(b, layer, qkv, q_gain, k_gain, epsilon));
        return attention(b, layer, out, qkv);
    }
    assert(out->kind == TENSOR_ACTIVATION && out->columns == cuda->shape.n_heads * cuda->shape.head_size);
    const struct rope rope = rope_of(cuda, layer, qkv, q_gain, k_gain, epsilon);
    return cuda_status(launch_attention_single(cuda->stream, &cuda->kv, batch, layer, out->data, out->stride, qkv->data,
                                               cuda->shape.n_heads, &cuda->attention, &rope),
                       "attention");
}

static float *importance_data(struct backend *b)
{
    return cuda_of(b)->on_device.n_importance_rows ? cuda_of(b)->importance : NULL;
}

static enum status importance_read(struct backend *b, float *host)
{
    return read_floats(cuda_of(b), cuda_of(b)->importance, (size_t)ragged_importance_size(&cuda_of(b)->batch), host);
}

// ---- opening --------------------------------------------------------------------------------------------------------

// Copies the arrays of RoPE to the device. The last row of angles is for layers without RoPE.
static enum status rope_upload(struct cuda *cuda)
{
    struct rope_shape *rope = &cuda->shape.rope;
    const size_t d = (size_t)cuda->shape.head_size, half = d / 2, rows = (size_t)cuda->shape.max_rows;
    float *host = mem_alloc_array(3 * half + d, sizeof *host), *still = host + 3 * half;
    for (size_t i = 0; i < half; i++) {
        host[i] = rope->inv_freq[i];
        host[half + i] = rope->long_inv_freq ? rope->long_inv_freq[i] : 0;
        host[2 * half + i] = rope->scale ? rope->scale[i] : 1;
        still[2 * i] = 1; // the cosine; the sine is 0
    }
    cudaError_t error =
        cudaMemcpyAsync(cuda->rope, host, 3 * half * sizeof *host, cudaMemcpyHostToDevice, cuda->stream);
    if (error == cudaSuccess)
        error =
            cudaMemcpyAsync(cuda->angles + rows * d, still, d * sizeof *still, cudaMemcpyHostToDevice, cuda->stream);
    const enum status status = error == cudaSuccess ? cuda_wait(cuda) : cuda_status(error, "the frequencies of RoPE");
    free(host);
    rope->inv_freq = cuda->rope;
    rope->long_inv_freq = rope->long_inv_freq ? cuda->rope + half : NULL;
    rope->scale = cuda->rope + 2 * half;
    if (rope->still_layers)
        rope->still_layers = cuda->still_layers = mem_copy(rope->still_layers, (size_t)cuda->shape.n_layers);
    return status;
}

static enum status scratch_create(struct cuda *cuda)
{
    const struct memory_fixed fixed = memory_fixed(&cuda->shape);
    const struct {
        enum memory_use use;
        void **memory_p;
        size_t bytes;
        const char *what;
    } parts[] = {
        {MEMORY_BATCH, &cuda->staging_device, fixed.staging, "batches"},
        {MEMORY_BATCH, (void **)&cuda->rope, fixed.rope, "the frequencies of RoPE"},
        {MEMORY_BATCH, (void **)&cuda->angles, fixed.angles, "the angles of RoPE"},
        {MEMORY_BATCH, (void **)&cuda->row_index, fixed.row_index, "row indices"},
        {MEMORY_ATTENTION, (void **)&cuda->importance, fixed.importance, "importance maxima"},
        {MEMORY_ATTENTION, (void **)&cuda->attention.partials, fixed.partials, "partial results of attention"},
        {MEMORY_ATTENTION, (void **)&cuda->attention.arrivals, fixed.arrivals, "counters of attention"},
        {MEMORY_ATTENTION, (void **)&cuda->attention.kept, fixed.kept_scores, "scores of importance rows"},
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        enum status status = cuda_allocate(cuda, parts[i].use, parts[i].bytes, parts[i].what, parts[i].memory_p);
        if (status != STATUS_OK) return status;
    }
    cudaError_t error = cudaHostAlloc(&cuda->staging_host, fixed.staging, cudaHostAllocDefault);
    if (error == cudaSuccess) error = cudaEventCreateWithFlags(&cuda->staged, cudaEventDisableTiming);
    if (error != cudaSuccess) return cuda_status(error, "pinned memory for batches");
    return rope_upload(cuda);
}

static void cuda_close(struct backend *b)
{
    struct cuda *cuda = cuda_of(b);
    cudaSetDevice(cuda->device);
    if (cuda->stream) cuda_wait(cuda);
    overlap_close(cuda);
    graphs_close(cuda->graphs);
    if (cuda->comm) cuda->comm->ops->close(cuda->comm); // after the graphs: NCCL waits until they are destroyed
    gemm_close(cuda->gemm);
    upload_close(cuda);
    for (struct tensor *t = cuda->tensors, *next; t; t = next) {
        next = t->next;
        if (t->sums)
            comm_memory_free(t->data);
        else
            cudaFree(t->data);
        free(t);
    }
    for (struct weight *w = cuda->weights, *next; w; w = next) {
        next = w->next;
        if (!w->borrowed) cudaFree(w->data);
        cudaFree(w->scale);
        free(w);
    }
    for (struct pinned *p = cuda->pinned, *next; p; p = next) {
        next = p->next;
        cudaHostUnregister(p->memory);
        free(p);
    }
    if (cuda->staged) cudaEventDestroy(cuda->staged);
    cudaFreeHost(cuda->staging_host);
    cudaFree(cuda->staging_device);
    cudaFree(cuda->kv.data);
    cudaFree(cuda->kv.scale);
    free(cuda->still_layers);
    cudaFree(cuda->rope);
    cudaFree(cuda->angles);
    cudaFree(cuda->row_index);
    cudaFree(cuda->importance);
    cudaFree(cuda->attention.partials);
    cudaFree(cuda->attention.arrivals);
    cudaFree(cuda->attention.kept);
    if (cuda->stream) cudaStreamDestroy(cuda->stream);
    free(cuda);
}

static const struct backend_ops cuda_ops = {
    .name = "cuda",
    .capabilities = {.device_collectives = true},
    .close = cuda_close,
    .tensor_create = tensor_create,
    .tensor_data = tensor_data,
    .read = tensor_read,
    .weight_create = cuda_weight_create,
    .weight_gate_up = cuda_weight_gate_up,
    .weight_embedding = cuda_weight_embedding,
    .weight_vector = cuda_weight_vector,
    .run_pass = run_pass,
    .begin = begin,
    .embed = embed,
    .rmsnorm = rmsnorm,
    .linear = cuda_linear,
    .rope_append = rope_append,
    .activate = cuda_activate,
    .add_norm = cuda_add_norm,
    .sum_squares = cuda_sum_squares,
    .norm_whole = cuda_norm_whole,
    .scale_queries = cuda_scale_queries,
    .attention = attention,
    .importance_data = importance_data,
    .importance_read = importance_read,
    .norm_linear = cuda_norm_linear,
    .rope_attention = rope_attention,
    .mlp = cuda_mlp,
    .tune = cuda_tune,
    .host_pin = host_pin,
    .wait = steps_wait,
    .gpu_address = gpu_address,
    .memory = memory_read,
    .allocated = memory_allocated,
    .kv_create = kv_create,
    .sample = cuda_sample,
    .comm_open = cuda_comm_open,
    .sum_ranks = cuda_sum_ranks,
    .measure = cuda_measure,
};

static enum status shape_check(const struct backend_shape *shape, enum dtype dtype)
{
    enum status status = backend_shape_check(shape, dtype);
    if (status != STATUS_OK) return status;
    if (dtype != DTYPE_BF16 && dtype != DTYPE_FP8 && dtype != DTYPE_INT4_G128)
        return status_fail(STATUS_UNSUPPORTED, "dtype %s: the CUDA backend computes in bf16, fp8 or int4-g128",
                           dtype_name(dtype));
    if (shape->head_size > HEAD_SIZE_MAX || shape->head_size % 8)
        return status_fail(STATUS_UNSUPPORTED,
                           "head size %d: the CUDA backend's attention supports multiples of 8 up to %d",
                           shape->head_size, HEAD_SIZE_MAX);
    if (shape->kv_dtype == DTYPE_INT8)
        return status_fail(STATUS_UNSUPPORTED, "K and V in int8: the CUDA backend stores them in bf16 or fp8");
    return STATUS_OK;
}

enum status backend_open_cuda(const struct backend_shape *shape, enum dtype dtype, struct backend **backend_p)
{
    enum status status = shape_check(shape, dtype);
    if (status != STATUS_OK) return status;
    struct cuda *cuda = mem_alloc(sizeof *cuda);
    *cuda = (struct cuda){.base = {&cuda_ops}, .shape = *shape, .dtype = dtype};
    status = device_open(cuda);
    if (status == STATUS_OK) status = overlap_open(cuda);
    if (status == STATUS_OK) status = gemm_open(cuda, &cuda->gemm);
    if (status == STATUS_OK) status = scratch_create(cuda);
    if (status == STATUS_OK) cuda->block_scales = gemm_has_block_scales(cuda);
    cuda->graphs = graphs_open(shape);
    if (status != STATUS_OK) {
        cuda_close(&cuda->base);
        return status;
    }
    const struct cudaDeviceProp *p = &cuda->properties;
    char capability[32];
    snprintf(capability, sizeof capability, "%d.%d", p->major, p->minor);
    cudaDeviceGetPCIBusId(cuda->address, sizeof cuda->address, cuda->device);
    log_event(LOG_INFO, "gpu_opened", LOG_FIELD("device", cuda->device),
              LOG_FIELD("bus_id", (const char *)cuda->address), LOG_FIELD("name", p->name),
              LOG_FIELD("compute_capability", capability), LOG_FIELD("multiprocessors", p->multiProcessorCount),
              LOG_FIELD("memory_bytes", p->totalGlobalMem));
    *backend_p = &cuda->base;
    return STATUS_OK;
}
