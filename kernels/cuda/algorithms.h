// SPDX-License-Identifier: Apache-2.0
// The fastest cuBLASLt algorithm of each gemm, saved in a file between starts. The file saves the seconds of timing,
// and starts with the same choices compute the same bits. There is one file per kind of GPU and library version, in
// $XDG_CACHE_HOME/forepack or ~/.cache/forepack. If neither folder exists, choices last as long as the process. A file
// that is damaged or was made for another GPU or library is ignored with a warning and replaced at the next save.
#pragma once

#include <cublasLt.h>
#include <stdbool.h>
#include <stdint.h>

// Properties of the gemm out[rows, n] = x[rows, k] W[n, k]^T for which an algorithm is selected.
struct gemm_key {
    int32_t n, k, out_stride;
    int32_t fp8, out_bf16; // operands are fp8, else bf16; the result is bf16, else f32
    int32_t add, bias;     // the result is added to out; a bias is added
    int32_t scales;        // enum gemm_scales: the scales that the library applies
    int32_t fast;          // FP8: fast accumulation
    int32_t rows;          // largest number of rows of the bucket, see gemm.c
};

// Kinds of scales: none, one for each row and each output, or one for each block of FP8_BLOCK.
enum gemm_scales { SCALES_NONE, SCALES_ROWS, SCALES_BLOCKS };

struct algorithms;

struct algorithms *algorithms_open(const char *gpu, size_t library_version);
void algorithms_close(struct algorithms *a); // may be NULL
bool algorithms_find(const struct algorithms *a, const struct gemm_key *key, cublasLtMatmulAlgo_t *algo_p);
void algorithms_put(struct algorithms *a, const struct gemm_key *key, const cublasLtMatmulAlgo_t *algo);
// Writes the file if a choice has changed since it was read. A failure is logged.
void algorithms_save(struct algorithms *a);
