// SPDX-License-Identifier: Apache-2.0
// What was found to be the fastest algorithm of cuBLASLt for a product, kept in a file between starts: it takes seconds
// to time them all, and a start with the same choices computes the same bits. One file for each kind of GPU and version
// of the library, in $XDG_CACHE_HOME/forepack or ~/.cache/forepack; without either, choices live as long as the
// process. A file that is broken or was made for another GPU or library is left out of account, with a line in the log,
// and replaced at the next save.
#pragma once

#include <cublasLt.h>
#include <stdbool.h>
#include <stdint.h>

// out[rows, n] = x[rows, k] W[n, k]^T, as far as the choice depends on it.
struct product_key {
    int32_t n, k, out_stride;
    int32_t fp8, out_bf16; // what is multiplied, else bf16; what is stored, else f32
    int32_t add, bias;     // onto what is there; with a bias
    int32_t scaled;        // by the scales of rows and of outputs
    int32_t rows;          // of the bucket, see gemm.c
};

struct algorithms;

struct algorithms *algorithms_open(const char *gpu, size_t library_version);
void algorithms_close(struct algorithms *a); // may be NULL
bool algorithms_find(const struct algorithms *a, const struct product_key *key, cublasLtMatmulAlgo_t *algo_p);
void algorithms_put(struct algorithms *a, const struct product_key *key, const cublasLtMatmulAlgo_t *algo);
// Writes the file if anything was put since it was read. What fails is logged.
void algorithms_save(struct algorithms *a);
