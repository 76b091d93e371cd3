// SPDX-License-Identifier: Apache-2.0
// The interface of gemm.c for linear.c: runs one gemm in cuBLASLt ("the library"), and owns the scratch memory of
// gemms.
#pragma once

#include "kernels/cuda/algorithms.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/timer.h"

// One gemm to run.
struct gemm_call {
    const struct weight *w;
    // part_rows outputs of the FP8 weight `w`, converted to bf16; used instead of the data of `w` unless NULL
    const void *part;
    int part_rows;
    const void *x;                 // may be NULL if the call only asks for an algorithm
    int first_row;                 // first row of x and out in their tensors
    const float *row_scale, *bias; // either may be NULL
    bool fast;                     // FP8 only: fast accumulation
    void *out;
    int out_stride;
    bool out_bf16, add;
    int max_rows; // rows of x and out if they begin at row 0
};

// How the algorithm of a bucket (a range of numbers of rows, see gemm.c) was selected. NONE: the library has no
// algorithm.
enum known { UNKNOWN, NONE, GUESSED, TIMED };

// The gemms of one shape and epilogue, with any weight and any number of rows.
struct problem {
    struct gemm_key key;     // rows is 0
    int max_rows;            // largest number of rows of any call
    struct gemm_call sample; // call that tuning times. Its x and out begin at row 0 and have the most rows
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
    bool streams; // gemm_stream.cu is switched on

    struct memory_gemm_need need;
    struct memory_gemm memory; // sizes of the memory below
    float *results;            // f32 results of a chunk of rows
    void *quantised;           // FP8: rows of the current gemm; their scales are in row_scales
    float *row_scales;
    void *dequantised; // FP8: a part of a weight, converted to bf16
    float *maxima;     // FP8: largest magnitudes of rows of the current MLP, see struct gemv
};

// Returns the problem that a call belongs to. Allocates memory only for a new problem. That happens only at start-up,
// because the first pass calls every gemm of a model.
struct problem *gemm_problem_of(struct gemm *g, const struct gemm_call *call);
struct gemm_key gemm_call_key(const struct gemm_call *call);
// Converts the library's status of a gemm. The message has the library's error text.
enum status gemm_status(cublasStatus_t status, const struct gemm_key *key, int rows);
// Returns true if the library has an algorithm for a call with the largest number of rows in the bucket of `rows`,
// which is at most call->max_rows.
bool gemm_has_algorithm(struct cuda *cuda, const struct gemm_call *call, int rows);
// Runs a gemm. Returns CUBLAS_STATUS_NOT_SUPPORTED, without an effect, if the library has no algorithm for it.
cublasStatus_t gemm_try(struct cuda *cuda, const struct gemm_call *call, int rows);
