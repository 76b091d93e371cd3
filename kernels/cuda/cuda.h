// SPDX-License-Identifier: Apache-2.0
// Inside of the CUDA backend: its structs, shared by the files that implement backend_ops. Host code is C; kernels and
// their launchers are CUDA C (*.cu), declared in launch.h. Everything a pass does is put into one stream.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "kernels/backend.h"
#include "kernels/cuda/launch.h"

// "what: sentence of the runtime" as STATUS_UNAVAILABLE, out of memory as STATUS_EXHAUSTED. cudaSuccess is STATUS_OK.
enum status cuda_status(cudaError_t error, const char *what);

struct tensor {
    struct tensor *next; // all of a backend, for close
    enum tensor_kind kind;
    int max_rows, columns;
    int stride; // elements from row to row: columns for F32, for ACTIVATION (bf16) rounded up to 16
    void *data; // device
};

enum weight_kind { WEIGHT_MATRIX, WEIGHT_EMBEDDING, WEIGHT_VECTOR };

struct weight {
    struct weight *next;
    enum weight_kind kind;
    int64_t rows, columns; // N, K. A gate_up weight has all rows of gate, then all of up
    int stride;            // elements from row to row, K rounded up to 16 with zeros
    enum dtype dtype;      // of `data`: DTYPE_BF16, DTYPE_FP8; DTYPE_F32 for a VECTOR
    void *data;            // device
    float *scale;          // FP8: [N] device, one per output
    int32_t first_row;     // EMBEDDING: vocabulary id of row 0
    bool borrowed;         // data belongs to the weight it is tied to
};

struct products; // products.c: cuBLASLt, its workspace and the algorithms chosen
struct graphs;   // graphs.c: decode passes as they were captured

struct cuda {
    struct backend base;
    struct backend_shape shape; // inv_freq is NULL: the copy is on the device
    enum dtype dtype;           // DTYPE_BF16 or DTYPE_FP8
    int device;
    struct cudaDeviceProp properties;
    cudaStream_t stream;

    // Of the pass under way, set by begin: one copy from pinned memory brings all of it.
    struct ragged_batch batch;     // the caller's
    struct device_batch on_device; // see launch.h
    void *staging_host, *staging_device;
    size_t staging_bytes;

    float *inv_freq; // device [D/2]
    struct kv_cache kv;
    float *probe;     // device, maxima of the pass
    float *partials;  // device, of split rows: see launch_attention
    void *quantised;  // device, rows of the product under way in FP8
    float *row_scale; // device [max_rows]
    float *product;   // device f32 [max_rows][widest N] of products whose epilogue is a kernel of ours

    struct products *products;
    struct graphs *graphs;
    struct tensor *tensors;
    struct weight *weights;
};
