// SPDX-License-Identifier: Apache-2.0
// Internals of the CUDA backend: its structs, shared by the files that implement backend_ops. Host code is C. Kernels
// and their launchers are CUDA C (*.cu), declared in launch.h. The steps of a pass go into one stream. Only the sums
// over ranks of micro-batches run in a second stream (overlap.c).
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "kernels/backend.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/memory.h"

struct tensor {
    struct tensor *next;   // list of all tensors of a backend, freed by close
    enum tensor_kind kind; // TENSOR_ACTIVATION also for a PARTIAL tensor, which differs only in `sums`
    int max_rows, columns;
    int stride; // elements per row: columns for F32, cuda_stride(columns) for bf16, padded with zeros
    void *data; // device
    bool sums;  // the tensor is PARTIAL: comm_memory_allocate allocated its memory
};

enum weight_kind { WEIGHT_MATRIX, WEIGHT_EMBEDDING, WEIGHT_VECTOR };

struct weight {
    struct weight *next;
    enum weight_kind kind;
    int64_t rows, columns; // N and K. In a gate_up weight, all rows of gate come first, then all rows of up
    int stride;            // elements per row: cuda_stride(K), padded with zeros
    // dtype of `data`: DTYPE_F32 for a VECTOR, else DTYPE_BF16, DTYPE_FP8 or DTYPE_INT4_G128 (see launch_int4_gemm)
    enum dtype dtype;
    void *data;        // device. In FP8 it is padded with rows of zeros to cuda_stride(N) rows
    bool block_scaled; // FP8: one scale for each block of FP8_BLOCK x FP8_BLOCK elements, else one for each output
    // device. FP8: [N]; if block_scaled, one row of cuda_block_stride(K) scales per row of blocks
    float *scale;
    int32_t first_row; // EMBEDDING: vocabulary id of row 0
    bool borrowed;     // `data` belongs to the weight that this weight is tied to
};

struct gemm;   // gemm.c: cuBLASLt, its workspace and the selected algorithms
struct graphs; // graphs.c: captured passes of few rows
struct upload; // weights.c: pinned memory through which weights are copied

// Memory of the caller that is pinned until close.
struct pinned {
    struct pinned *next;
    void *memory;
};

enum { ALL_ROWS = -1 };

struct cuda {
    struct backend base;
    struct backend_shape shape; // the arrays of RoPE are on the device, except still_layers
    enum dtype dtype;           // DTYPE_BF16, DTYPE_FP8 or DTYPE_INT4_G128
    int device;
    struct cudaDeviceProp properties;
    char address[32]; // address of the device on the PCI bus
    cudaStream_t stream;
    struct comm *comm; // the group's communicator over NCCL; NULL without a group

    // The current pass, set by begin. One copy from pinned memory brings all of it to the device.
    struct ragged_batch batch; // the caller's batch
    // Rows that the current steps compute: `unpadded`, `padded` or a micro-batch of `unpadded`.
    struct device_batch on_device;
    struct device_batch unpadded; // the batch as given
    struct device_batch padded;   // with the counts of a captured pass if `capturable`, else equal to `unpadded`
    bool capturable;              // see graphs_begin
    bool capturing;               // the steps being issued are captured, see graphs.c
    void *staging_host, *staging_device;
    cudaEvent_t staged; // the last copy from staging_host is done

    // Micro-batches, see overlap.c.
    cudaStream_t reduce_stream; // all-reduces the sums of a micro-batch
    cudaEvent_t reduce_ready;   // the steps that compute the addends are done
    cudaEvent_t reduced[2];     // the latest all-reduce of each micro-batch is done
    int micro_batch;            // micro-batch for which steps are issued: 0, 1 or ALL_ROWS

    uint8_t *still_layers; // copy for shape.rope, or NULL
    float *rope;           // device [3][D/2]: the arrays of shape.rope
    float *
        angles; // device [max_rows + 1, D/2, 2]: angles of the pass, and of layers without RoPE, see launch_rope_angles
    struct kv_cache kv;
    int32_t *row_index; // device [max_rows]: row indices of rmsnorm that are not the batch's logit rows
    float *importance;  // device: importance maxima of the pass
    struct attention_scratch attention;

    bool block_scales;           // cuBLASLt multiplies block-scaled FP8 matrices on this device
    struct device_memory memory; // bytes of device memory allocated, by use

    struct gemm *gemm;
    struct graphs *graphs;
    struct upload *upload; // exists while weights are created
    struct tensor *tensors;
    struct weight *weights;
    struct pinned *pinned;
};

static inline struct cuda *cuda_of(struct backend *b)
{
    return (struct cuda *)b;
}

// Returns the address of row `first` of the current step in a tensor. In a micro-batch, row 0 of the step may be a
// later row of the tensor.
static inline void *cuda_rows(const struct cuda *cuda, const struct tensor *t, int first)
{
    const size_t row = (size_t)(cuda->on_device.first_row + first), size = t->kind == TENSOR_F32 ? sizeof(float) : 2;
    return (char *)t->data + row * (size_t)t->stride * size;
}

// ---- runtime.c ----

// Converts cudaSuccess to STATUS_OK, out of memory to STATUS_EXHAUSTED, and any other error to STATUS_UNAVAILABLE. The
// message is `what` and the error text of the runtime.
enum status cuda_status(cudaError_t error, const char *what);
// Allocate zeroed device memory and count it. A failure reports the device's total and free memory. cuda_allocate uses
// cudaMalloc, and cuda_allocate_by uses `allocate`. Memory from `allocate` may need another function than cudaFree.
enum status cuda_allocate_by(struct cuda *cuda, enum memory_use use, size_t bytes, const char *what, void **memory_p,
                             cudaError_t (*allocate)(void **memory_p, size_t bytes));
enum status cuda_allocate(struct cuda *cuda, enum memory_use use, size_t bytes, const char *what, void **memory_p);
// Frees memory before the backend is closed, and no longer counts it. `memory` may be NULL.
void cuda_release(struct cuda *cuda, enum memory_use use, size_t bytes, void *memory);

// ---- norm_rows.c ----

// Asserts that the tensors of a norm match.
void cuda_norm_check(const struct cuda *cuda, const struct tensor *out, const struct tensor *x,
                     const struct weight *gain, const int32_t *row_index, int rows);
// Sets *device_p to the row indices on the device, or to NULL if row_index is NULL.
enum status cuda_row_index(struct cuda *cuda, const int32_t *row_index, int rows, const int32_t **device_p);

// ---- weights.c ----

enum status cuda_weight_create(struct backend *b, const struct matrix_view *parts, int n_parts,
                               struct weight **weight_p);
enum status cuda_weight_gate_up(struct backend *b, const struct matrix_view *gate, const struct matrix_view *up,
                                struct weight **weight_p);
enum status cuda_weight_embedding(struct backend *b, const struct matrix_view *table, int32_t first_row,
                                  struct weight *shared_head, struct weight **weight_p);
enum status cuda_weight_vector(struct backend *b, const struct matrix_view *parts, int n_parts,
                               struct weight **weight_p);
// Frees the upload buffers. May be called at any time: the next weight allocates them again.
void upload_close(struct cuda *cuda);

// ---- gemm.c ----

enum status gemm_open(struct cuda *cuda, struct gemm **gemm_p);
void gemm_close(struct gemm *g); // may be NULL
// Returns true if cuBLASLt multiplies block-scaled FP8 matrices on this device.
bool gemm_has_block_scales(struct cuda *cuda);
// Reserve scratch memory, so that gemms allocate nothing: for activations of up to `rows` rows, and for weights like
// `w`. The memory suffices for every mode.
enum status gemm_reserve_rows(struct cuda *cuda, int rows);
enum status gemm_reserve_weight(struct cuda *cuda, const struct memory_matrix *w);
enum status cuda_tune(struct backend *b);

// ---- linear.c ----

enum status cuda_linear(struct backend *b, struct tensor *out, const struct tensor *x, const struct weight *w,
                        const struct weight *bias, enum linear_mode mode, int rows);
enum status cuda_norm_linear(struct backend *b, struct tensor *out, const struct norm_step *norm,
                             const struct weight *w, const struct weight *bias, enum linear_mode mode, int rows);
enum status cuda_mlp(struct backend *b, struct tensor *out, struct tensor *inner, const struct norm_step *norm,
                     const struct weight *gate_up, const struct weight *down, enum linear_mode mode, int rows);

// ---- family_steps.c ----

enum status cuda_activate(struct backend *b, struct tensor *out, const struct tensor *x,
                          const struct activation *activation, int rows);
enum status cuda_add_norm(struct backend *b, struct tensor *out, struct tensor *x, const struct tensor *addend,
                          const struct weight *gain, float epsilon, int rows);
enum status cuda_sum_squares(struct backend *b, struct tensor *squares, const struct tensor *qkv, int rows);
enum status cuda_norm_whole(struct backend *b, struct tensor *qkv, const struct whole_norm *norm, int rows);
enum status cuda_scale_queries(struct backend *b, struct tensor *qkv, float beta, int context, int rows);

// ---- overlap.c ----

// Returns true if passes of this shape may run as micro-batches.
static inline bool overlap_is_possible(const struct backend_shape *shape)
{
    return shape->overlap_rows && 2 * (int64_t)shape->overlap_rows <= shape->max_rows;
}

// Returns the largest number of thread blocks that a sum over ranks uses if passes run as micro-batches. Each takes a
// multiprocessor: 16 of 132 on an H100.
static inline int overlap_sum_blocks(const struct cuda *cuda)
{
    const int eighth = cuda->properties.multiProcessorCount / 8;
    return eighth > 1 ? eighth : 1;
}

enum status overlap_open(struct cuda *cuda);
void overlap_close(struct cuda *cuda);
// Returns the number of rows of the first micro-batch, or 0 if the batch is not divided. The result is the same on all
// ranks.
int overlap_first_rows(const struct cuda *cuda, const struct ragged_batch *batch);
// Runs a pass whose batch is divided into micro-batches.
enum status overlap_run(struct cuda *cuda, const struct pass *pass);
// Call them around every sum over ranks. Issue the sum in *stream_p.
enum status overlap_sum_begin(struct cuda *cuda, cudaStream_t *stream_p);
enum status overlap_sum_end(struct cuda *cuda);

// ---- graphs.c ----

struct schedule_options;

extern int graphs_kept_most; // graphs that a backend keeps; tests lower it
struct graphs *graphs_open(const struct backend_shape *shape);
void graphs_close(struct graphs *g); // may be NULL
// Destroys all captured graphs for good: passes run eagerly from now on. NULL has no effect.
void graphs_destroy(struct graphs *g);
// Returns true if passes of this kind can be captured, and sets options->captured then. The other options must be set
// already.
bool graphs_begin(struct graphs *g, const struct ragged_batch *batch, struct schedule_options *options);
// Runs a pass for which graphs_begin returned true: eagerly, captured, or as a replay.
enum status graphs_run(struct cuda *cuda, const struct pass *pass);

// ---- comm_nccl.c ----

enum status cuda_comm_open(struct backend *b, struct comm *host, struct comm **comm_p);
// Call them around every wait for the device. In a group, they end the wait when a rank fails or the wait exceeds the
// time limit of the host comm. comm_wait_end then reports this failure instead of `error`.
void comm_wait_begin(struct cuda *cuda);
enum status comm_wait_end(struct cuda *cuda, cudaError_t error, const char *what);
// Waits for all steps in the stream.
enum status cuda_wait(struct cuda *cuda);
extern int nccl_connect_limit_ms;
// Implements backend_ops.sum_ranks.
enum status cuda_sum_ranks(struct backend *b, struct tensor *partial, int rows);

// ---- comm_memory.c ----

// Allocates memory for sums over ranks: symmetric memory if NCCL has it, else ordinary device memory.
cudaError_t comm_memory_allocate(void **memory_p, size_t bytes);
void comm_memory_free(void *memory); // may be NULL

// ---- sample.c, measure.c ----

enum status cuda_sample(struct backend *b, struct tensor *sampled, const struct tensor *logits, int parts, int rows,
                        int32_t first_id, int32_t n_ids, bool use_sampling);
enum status cuda_measure(struct backend *b, int ms, double *gflops_p, double *gbytes_per_s_p);
