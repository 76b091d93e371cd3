// SPDX-License-Identifier: Apache-2.0
// The interface of gemm.c for linear.c: one gemm in the library, and the scratch memory of gemms.
#pragma once

#include "kernels/cuda/algorithms.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/timer.h"

// One gemm to run.
struct gemm_call {
    const struct weight *w;
    const void *part; // instead of w: outputs of an FP8 weight in bf16, `part_rows` of them
    int part_rows;
    const void *x;                 // NULL: only asks for an algorithm
    int first_row;                 // first row of x and out in their tensors
    const float *row_scale, *bias; // either may be NULL
    bool fast;                     // FP8: fast accumulation
    void *out;
    int out_stride;
    bool out_bf16, add;
    int max_rows; // rows of x and out if they begin at row 0
};

enum known { UNKNOWN, NONE, GUESSED, TIMED }; // how a bucket's algorithm was selected; NONE: there is none

// The gemms of one shape and epilogue, with any weight and any number of rows.
struct problem {
    struct gemm_key key;     // rows is 0
    int max_rows;            // largest number of rows of any call
    struct gemm_call sample; // call to time: its x and out begin at row 0 and have the most rows
    struct {
        enum known known;
        cublasLtMatmulAlgo_t algo;
    } * bucket;
};

struct gemm {
    cublasLtHandle_t library;
    struct algorithms *saved;
    void *workspace;
    struct timer timer;
    struct problem *problems;
    int n_problems, capacity;
    bool tuned;

    struct memory_gemm_need need;
    struct memory_gemm memory; // sizes of the memory below
    float *results;            // f32 results of a chunk of rows
    void *quantised;           // FP8: the rows of the current gemm, and their scales
    float *row_scales;
    void *dequantised; // FP8: part of a weight in bf16
    float *maxima;     // FP8: largest magnitudes of rows of the current MLP, see struct gemv
};

// Returns the problem of a call. Allocates only for new problems, which means at start-up: the first pass calls every
// gemm of a model.
struct problem *gemm_problem_of(struct gemm *g, const struct gemm_call *call);
struct gemm_key gemm_call_key(const struct gemm_call *call);
// Returns the status of a gemm with the library's sentence.
enum status gemm_status(cublasStatus_t status, const struct gemm_key *key, int rows);
// Returns true if the library has an algorithm for a call with the largest number of rows in the bucket of `rows`,
// which is at most call->max_rows.
bool gemm_has_algorithm(struct cuda *cuda, const struct gemm_call *call, int rows);
// Runs a gemm. CUBLAS_STATUS_NOT_SUPPORTED: the library has no algorithm for it, and the call did nothing.
cublasStatus_t gemm_try(struct cuda *cuda, const struct gemm_call *call, int rows);
