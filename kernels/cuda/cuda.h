// SPDX-License-Identifier: Apache-2.0
// Inside of the CUDA backend: its structs, shared by the files that implement backend_ops. Host code is C; kernels and
// their launchers are CUDA C (*.cu), declared in launch.h. Everything a pass does is put into one stream, but for sums
// over ranks that run beside it (halves.c).
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "kernels/backend.h"
#include "kernels/cuda/launch.h"

struct tensor {
    struct tensor *next; // all of a backend, for close
    enum tensor_kind kind;
    int max_rows, columns;
    int stride; // elements from row to row: columns for F32, cuda_stride for ACTIVATION (bf16), with zeros behind
    void *data; // device
};

enum weight_kind { WEIGHT_MATRIX, WEIGHT_EMBEDDING, WEIGHT_VECTOR };

struct weight {
    struct weight *next;
    enum weight_kind kind;
    int64_t rows, columns; // N, K. A gate_up weight has all rows of gate, then all of up
    int stride;            // elements from row to row: cuda_stride(K), with zeros behind
    enum dtype dtype;      // of `data`: DTYPE_BF16, DTYPE_FP8; DTYPE_F32 for a VECTOR
    void *data;            // device. FP8: rows of zeros follow, up to cuda_stride(N)
    float *scale;          // FP8: [N] device, one per output
    int32_t first_row;     // EMBEDDING: vocabulary id of row 0
    bool borrowed;         // data belongs to the weight it is tied to
};

struct products; // gemm.c: cuBLASLt, its workspace and the algorithms chosen
struct graphs;   // graphs.c: decode passes as they were captured
struct upload;   // weights.c: pinned memory that weights pass through

struct cuda {
    struct backend base;
    struct backend_shape shape; // inv_freq is NULL: the copy is on the device
    enum dtype dtype;           // DTYPE_BF16 or DTYPE_FP8
    int device;
    struct cudaDeviceProp properties;
    cudaStream_t stream;
    struct comm *comm;                      // of its group while one is open, which then sets
    enum status (*wait)(struct cuda *cuda); // how to wait for the stream so that a rank that failed is noticed

    // Of the pass under way, set by begin: one copy from pinned memory brings all of it.
    struct ragged_batch batch;     // the caller's
    struct device_batch on_device; // what the steps work on, see launch.h: one of these two, or half of the first
    struct device_batch as_given;  // the batch
    struct device_batch filled_up; // with rows added to decode passes, so that they can be kept
    void *staging_host, *staging_device;
    cudaEvent_t staged; // the last copy is done

    // Of passes in halves, see halves.c.
    cudaStream_t beside;   // where a half's residual is summed up
    cudaEvent_t ready;     // for the sum: the half's steps before it are done
    cudaEvent_t summed[2]; // each half's last sum is done
    int half;              // under way: 0, 1; -1: all rows

    float *inv_freq; // device [D/2]
    struct kv_cache kv;
    int32_t *row_index; // device [max_rows], for callers of rmsnorm with rows of their own
    float *probe;       // device, maxima of the pass
    float *probe_sums;  // device [max_rows][H][2]
    float *partials;    // device, of split rows: see launch_attention

    struct products *products;
    struct graphs *graphs;
    struct upload *upload; // while weights are made
    struct tensor *tensors;
    struct weight *weights;
};

static inline struct cuda *cuda_of(struct backend *b)
{
    return (struct cuda *)b;
}

// Rows of matrices that products read begin at multiples of 16 elements: what the fast algorithms ask for.
static inline int cuda_stride(int64_t columns)
{
    return (int)((columns + 15) / 16 * 16);
}

// Where the step's rows are in a tensor, from its row `first` on: of half a pass the step has rows of its own.
static inline void *cuda_rows(const struct cuda *cuda, const struct tensor *t, int first)
{
    const size_t row = (size_t)(cuda->on_device.first_row + first), size = t->kind == TENSOR_F32 ? sizeof(float) : 2;
    return (char *)t->data + row * (size_t)t->stride * size;
}

// ---- backend.c ----

// "what: sentence of the runtime" as STATUS_UNAVAILABLE, out of memory as STATUS_EXHAUSTED. cudaSuccess is STATUS_OK.
enum status cuda_status(cudaError_t error, const char *what);
// Device memory, zeroed, or a sentence with the device's numbers.
enum status cuda_allocate(struct cuda *cuda, size_t bytes, const char *what, void **memory_p);
// For all that was put into the stream: the only place that waits within a pass.
enum status cuda_wait(struct cuda *cuda);

// ---- weights.c ----

enum status cuda_weight_create(struct backend *b, const struct matrix_view *parts, int n_parts,
                               struct weight **weight_p);
enum status cuda_weight_gate_up(struct backend *b, const struct matrix_view *gate, const struct matrix_view *up,
                                struct weight **weight_p);
enum status cuda_weight_embedding(struct backend *b, const struct matrix_view *table, int32_t first_row,
                                  struct weight *shared_head, struct weight **weight_p);
enum status cuda_weight_vector(struct backend *b, const struct matrix_view *parts, int n_parts,
                               struct weight **weight_p);
// Gives back what making weights needs. May be called at any time: the next weight takes it anew.
void upload_close(struct cuda *cuda);

// ---- gemm.c ----

enum status products_open(struct cuda *cuda, struct products **products_p);
void products_close(struct products *p); // may be NULL
// Makes room for products of up to `rows` rows, and with `w` (or NULL), whatever their mode: they allocate nothing.
enum status products_reserve(struct cuda *cuda, int rows, const struct weight *w);
enum status cuda_linear(struct backend *b, struct tensor *out, const struct tensor *x, const struct weight *w,
                        const struct weight *bias, enum linear_mode mode, int rows);
enum status cuda_warm(struct backend *b);

// ---- halves.c ----

enum status halves_open(struct cuda *cuda);
void halves_close(struct cuda *cuda);
// Rows of the first half if the batch is to go in halves, else 0. For all ranks the same.
int halves_cut(const struct cuda *cuda, const struct ragged_batch *batch);
int cuda_halve(struct backend *b);
enum status cuda_half(struct backend *b, int first, int rows);
// Around a sum over ranks, which is to be put into this stream.
enum status halves_sum_begin(struct cuda *cuda, cudaStream_t *stream_p);
enum status halves_sum_end(struct cuda *cuda);

// ---- graphs.c ----

struct schedule_options;

struct graphs *graphs_open(const struct backend_shape *shape);
void graphs_close(struct graphs *g); // may be NULL
// Whether the batch is of a kind that is kept; then says how it is to be filled up.
bool graphs_begin(struct graphs *g, const struct ragged_batch *batch, struct schedule_options *options);
// At least as many stretches as any row that sees up to so many entries has, and the same for many such numbers.
int graphs_splits(int entries);
bool cuda_replay(struct backend *b, int *rows_p);
enum status cuda_pass_end(struct backend *b, enum status steps, bool *again_p);

// ---- sample.c, comm_nccl.c, measure.c ----

enum status cuda_sample(struct backend *b, struct tensor *picks, const struct tensor *logits, int parts, int rows,
                        int32_t first_id, int32_t n_ids, bool draw);
enum status cuda_comm_open(struct backend *b, struct comm *host, struct comm **comm_p);
enum status cuda_measure(struct backend *b, int ms, double *gflops_p, double *gbytes_per_s_p);
