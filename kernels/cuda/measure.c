// SPDX-License-Identifier: Apache-2.0
// Implements backend_ops.measure: the speed that the device reaches, to which the backend's speed is compared. It runs
// a gemm of large matrices of random values (the power that tensor cores draw, and so their clock, depends on the
// values). It also copies buffers larger than any cache, whose bytes count twice, as read and as written.
#include <stdlib.h>

#include "kernels/convert.h"
#include "kernels/cuda/cuda.h"
#include "lib/base/mem.h"

enum { SIDE = 8192, WORKSPACE_BYTES = 64 << 20 };
static const size_t COPY_BYTES = (size_t)512 << 20;

struct device_bench {
    cudaStream_t stream;
    cudaEvent_t from, to;
    void *a, *b, *c, *workspace, *copy_from, *copy_to;
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t layout;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t algorithm;
};

#define CUDA(call)                                                                                                     \
    do {                                                                                                               \
        enum status cuda_call = cuda_status((call), "measuring the GPU");                                              \
        if (cuda_call != STATUS_OK) return cuda_call;                                                                  \
    } while (0)

#define BLAS(call)                                                                                                     \
    do {                                                                                                               \
        cublasStatus_t blas_call = (call);                                                                             \
        if (blas_call != CUBLAS_STATUS_SUCCESS)                                                                        \
            return status_fail(STATUS_UNAVAILABLE, "measuring the GPU: cuBLASLt: %s",                                  \
                               cublasLtGetStatusString(blas_call));                                                    \
    } while (0)

static enum status bench_fill(const struct device_bench *m)
{
    const size_t n = (size_t)SIDE * SIDE;
    uint16_t *values = mem_alloc_array(n, sizeof *values);
    uint32_t state = 1;
    for (size_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        values[i] = bf16_from_f32((float)(int32_t)state * 0x1p-31f);
    }
    const size_t bytes = n * sizeof *values;
    cudaError_t error = cudaMemcpyAsync(m->a, values, bytes, cudaMemcpyHostToDevice, m->stream);
    if (error == cudaSuccess) error = cudaMemcpyAsync(m->b, values, bytes, cudaMemcpyHostToDevice, m->stream);
    if (error == cudaSuccess) error = cudaStreamSynchronize(m->stream);
    free(values);
    return cuda_status(error, "measuring the GPU");
}

static enum status bench_open(struct device_bench *m)
{
    const size_t bytes = (size_t)SIDE * SIDE * sizeof(uint16_t);
    CUDA(cudaEventCreate(&m->from));
    CUDA(cudaEventCreate(&m->to));
    CUDA(cudaMalloc(&m->a, bytes));
    CUDA(cudaMalloc(&m->b, bytes));
    CUDA(cudaMalloc(&m->c, bytes));
    CUDA(cudaMalloc(&m->workspace, WORKSPACE_BYTES));
    CUDA(cudaMalloc(&m->copy_from, COPY_BYTES));
    CUDA(cudaMalloc(&m->copy_to, COPY_BYTES));
    CUDA(cudaMemset(m->copy_from, 1, COPY_BYTES));
    enum status status = bench_fill(m);
    if (status != STATUS_OK) return status;

    const cublasOperation_t transposed = CUBLAS_OP_T; // the layout of gemms with weights
    const size_t workspace = WORKSPACE_BYTES;
    int found = 0;
    BLAS(cublasLtCreate(&m->handle));
    BLAS(cublasLtMatmulDescCreate(&m->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    BLAS(cublasLtMatmulDescSetAttribute(m->operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed));
    BLAS(cublasLtMatrixLayoutCreate(&m->layout, CUDA_R_16BF, SIDE, SIDE, SIDE));
    BLAS(cublasLtMatmulPreferenceCreate(&m->preference));
    BLAS(cublasLtMatmulPreferenceSetAttribute(m->preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                              sizeof workspace));
    BLAS(cublasLtMatmulAlgoGetHeuristic(m->handle, m->operation, m->layout, m->layout, m->layout, m->layout,
                                        m->preference, 1, &m->algorithm, &found));
    return found ? STATUS_OK : status_fail(STATUS_UNSUPPORTED, "measuring the GPU: cuBLASLt has no algorithm");
}

static enum status bench_gemm(const struct device_bench *m)
{
    const float one = 1, zero = 0;
    BLAS(cublasLtMatmul(m->handle, m->operation, &one, m->a, m->layout, m->b, m->layout, &zero, m->c, m->layout, m->c,
                        m->layout, &m->algorithm.algo, m->workspace, WORKSPACE_BYTES, m->stream));
    return STATUS_OK;
}

static enum status bench_copy(const struct device_bench *m)
{
    CUDA(cudaMemcpyAsync(m->copy_to, m->copy_from, COPY_BYTES, cudaMemcpyDeviceToDevice, m->stream));
    return STATUS_OK;
}

// Measures the mean seconds of one run, over runs of about `ms` in total. The first run is not counted.
static enum status bench_time(const struct device_bench *m, enum status (*run)(const struct device_bench *), int ms,
                              double *seconds_p)
{
    enum { BATCH = 8 }; // number of runs between two events
    float elapsed_ms = 0, batch_ms;
    int runs = 0;
    enum status status = run(m);
    while (status == STATUS_OK && elapsed_ms < (float)ms) {
        CUDA(cudaEventRecord(m->from, m->stream));
        for (int i = 0; i < BATCH && status == STATUS_OK; i++)
            status = run(m);
        CUDA(cudaEventRecord(m->to, m->stream));
        CUDA(cudaEventSynchronize(m->to));
        CUDA(cudaEventElapsedTime(&batch_ms, m->from, m->to));
        elapsed_ms += batch_ms;
        runs += BATCH;
    }
    *seconds_p = runs ? (double)elapsed_ms / 1000 / runs : 0;
    return status;
}

static void bench_close(struct device_bench *m)
{
    if (m->preference) cublasLtMatmulPreferenceDestroy(m->preference);
    if (m->layout) cublasLtMatrixLayoutDestroy(m->layout);
    if (m->operation) cublasLtMatmulDescDestroy(m->operation);
    if (m->handle) cublasLtDestroy(m->handle);
    void *memory[] = {m->a, m->b, m->c, m->workspace, m->copy_from, m->copy_to};
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++)
        cudaFree(memory[i]);
    if (m->from) cudaEventDestroy(m->from);
    if (m->to) cudaEventDestroy(m->to);
}

enum status cuda_measure(struct backend *b, int ms, double *gflops_p, double *gbytes_per_s_p)
{
    struct device_bench m = {.stream = ((struct cuda *)b)->stream};
    double gemm_s = 0, copy_s = 0;
    enum status status = bench_open(&m);
    if (status == STATUS_OK) status = bench_time(&m, bench_gemm, ms, &gemm_s);
    if (status == STATUS_OK) status = bench_time(&m, bench_copy, ms, &copy_s);
    bench_close(&m);
    if (status != STATUS_OK) return status;
    *gflops_p = gemm_s > 0 ? 2.0 * SIDE * SIDE * SIDE / gemm_s / 1e9 : 0;
    *gbytes_per_s_p = copy_s > 0 ? 2.0 * (double)COPY_BYTES / copy_s / 1e9 : 0;
    return STATUS_OK;
}
