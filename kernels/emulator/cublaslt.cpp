// SPDX-License-Identifier: Apache-2.0
// Implements the gemm of cuBLASLt in plain loops: bf16, e4m3 and f32 matrices in column-major order, sums in f32, with
// bias and scales as the CUDA backend uses them. It refuses the same calls as the library. These are e4m3 unless A is
// transposed and B is not, dimensions or addresses that are not multiples of 16 bytes, and scales per row or block on
// devices that do not support them. Fast accumulation of e4m3 follows kernels/emulator/fp8_accumulator.h.
#include <cublasLt.h>
#include <string.h>

#include <vector>

#include "kernels/emulator/device.h"
#include "kernels/emulator/emulator.h"
#include "kernels/emulator/fp8_accumulator.h"
#include "kernels/emulator/runtime.h"

namespace
{

struct layout {
    cudaDataType type;
    int order;
    uint64_t rows, columns;
    int64_t stride;
};

struct matmul {
    cublasComputeType_t compute;
    cudaDataType scale_type, bias_type;
    int32_t transposed[2];
    uint32_t epilogue;
    int32_t scale_mode[2];
    int32_t pointer_mode, multiprocessors;
    int8_t fast;
    const void *bias;
    const float *scale[2];
};

// Algorithm that sums over K in `parts` parts. Algorithms differ in the last bits, like real ones.
struct algorithm {
    int id, parts;
    size_t workspace;
};
const struct algorithm algorithms[] = {{11, 1, 0}, {23, 2, 4096}, {31, 4, 1 << 20}};
enum { N_ALGORITHMS = sizeof algorithms / sizeof algorithms[0] };

struct preference {
    uint64_t workspace;
};

int refused_from = 1, refused_to; // range of columns of D without an e4m3 algorithm
bool fast_refused;

static_assert(sizeof(struct layout) <= sizeof(cublasLtMatrixLayoutOpaque_t), "must fit into the caller's memory");
static_assert(sizeof(struct matmul) <= sizeof(cublasLtMatmulDescOpaque_t), "must fit into the caller's memory");
static_assert(sizeof(struct preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t),
              "must fit into the caller's memory");

template <typename T> T *inside(const void *opaque)
{
    return static_cast<T *>(const_cast<void *>(opaque));
}

size_t size_of(cudaDataType type)
{
    return type == CUDA_R_32F ? 4 : type == CUDA_R_16BF ? 2 : 1;
}

float load(const void *data, cudaDataType type, int64_t i)
{
    if (type == CUDA_R_32F) return static_cast<const float *>(data)[i];
    if (type == CUDA_R_16BF) return __bfloat162float(static_cast<const __nv_bfloat16 *>(data)[i]);
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(static_cast<const uint8_t *>(data)[i], __NV_E4M3)));
}

void store(void *data, cudaDataType type, int64_t i, float x)
{
    if (type == CUDA_R_32F)
        static_cast<float *>(data)[i] = x;
    else
        static_cast<__nv_bfloat16 *>(data)[i] = __float2bfloat16_rn(x);
}

template <typename T> cublasStatus_t attribute_read(T *out, const void *from, size_t bytes)
{
    if (!from || bytes != sizeof *out) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(out, from, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

bool aligned(const void *at)
{
    return (uintptr_t)at % 16 == 0;
}

bool fits(const struct layout *l)
{
    return l->rows && l->columns && l->stride >= (int64_t)l->rows && l->order == CUBLASLT_ORDER_COL;
}

const int64_t BLOCK = 128; // rows and columns that share a scale

bool is_block_mode(int32_t mode)
{
    return mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F || mode == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
}

cublasStatus_t check_scales(const struct matmul *p, uint64_t m, uint64_t n)
{
    const int32_t a = p->scale_mode[0], b = p->scale_mode[1], one = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
    if (a == one && b == one) return CUBLAS_STATUS_SUCCESS;
    if (emulated_capability() != 90) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (a == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F && a == b) return CUBLAS_STATUS_SUCCESS;
    if (!is_block_mode(a) || !is_block_mode(b) || (a == b && a == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F) ||
        m % 4 || n % 4 || p->fast || (uintptr_t)p->scale[0] % 16 || (uintptr_t)p->scale[1] % 16)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
}

// Checks that the shapes agree and that the device supports the operation.
cublasStatus_t check(const struct matmul *p, const struct layout *a, const struct layout *b, const struct layout *c,
                     const struct layout *d)
{
    if (!fits(a) || !fits(b) || !fits(c) || !fits(d)) return CUBLAS_STATUS_INVALID_VALUE;
    uint64_t m = p->transposed[0] ? a->columns : a->rows, k = p->transposed[0] ? a->rows : a->columns;
    uint64_t n = p->transposed[1] ? b->rows : b->columns;
    if (k != (p->transposed[1] ? b->columns : b->rows) || d->rows != m || d->columns != n || c->rows != m ||
        c->columns != n || c->type != d->type)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (p->compute != CUBLAS_COMPUTE_32F || p->scale_type != CUDA_R_32F ||
        p->pointer_mode != CUBLASLT_POINTER_MODE_HOST)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (d->type != CUDA_R_32F && d->type != CUDA_R_16BF) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (p->epilogue != CUBLASLT_EPILOGUE_DEFAULT && p->epilogue != CUBLASLT_EPILOGUE_BIAS)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (a->type != b->type) return CUBLAS_STATUS_NOT_SUPPORTED;
    bool fp8 = a->type == CUDA_R_8F_E4M3;
    if (!fp8 && a->type != CUDA_R_16BF && a->type != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!fp8) return p->scale[0] || p->scale[1] ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
    if (emulated_capability() < 89) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!p->transposed[0] || p->transposed[1] || m % 16 || k % 16 || a->stride % 16 || b->stride % 16)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (n >= (uint64_t)refused_from && n <= (uint64_t)refused_to) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (p->fast && fast_refused) return CUBLAS_STATUS_NOT_SUPPORTED;
    return check_scales(p, m, n);
}

// Returns an operand as floats, [outer][K].
std::vector<float> operand(const void *data, const struct layout *l, bool k_is_row, int64_t outer, int64_t k)
{
    std::vector<float> values((size_t)(outer * k));
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < k; i++)
            values[(size_t)(o * k + i)] = load(data, l->type, k_is_row ? o * l->stride + i : i * l->stride + o);
    return values;
}

struct call {
    struct matmul p;
    struct layout a, b, c, d;
    const void *a_data, *b_data, *c_data;
    void *d_data;
    float alpha, beta;
    int parts;
};

typedef float lanes __attribute__((vector_size(32), aligned(4))); // partial sums; tests spend most of their time here

// Returns the dot product of u and v, from partial sums. Both are vectors of the caller.
__attribute__((no_sanitize("address"))) float dot(const float *u, const float *v, int64_t n)
{
    lanes sums[2] = {};
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int half = 0; half < 2; half++)
            sums[half] +=
                *reinterpret_cast<const lanes *>(u + i + 8 * half) * *reinterpret_cast<const lanes *>(v + i + 8 * half);
    float sum = 0;
    for (; i < n; i++)
        sum += u[i] * v[i];
    sums[0] += sums[1];
    for (int lane = 0; lane < 8; lane++)
        sum += sums[0][lane];
    return sum;
}

// Returns the scale of block b of K for index `outer` in the other dimension of this operand, which has `size`
// elements.
float block_scale(const struct matmul &p, int side, int64_t outer, int64_t size, int64_t b, int64_t blocks)
{
    int64_t at = b * size + outer; // VEC128: the other dimension first
    if (p.scale_mode[side] == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F)
        at = outer / BLOCK * ((blocks + 3) / 4 * 4) + b;
    return p.scale[side][at];
}

// Returns element (i, j) of the product, before it is multiplied by alpha.
float element(const struct call &x, const float *u, const float *v, int64_t k, int64_t i, int64_t j)
{
    float sum = 0;
    if (is_block_mode(x.p.scale_mode[0])) {
        const int64_t m = (int64_t)x.d.rows, n = (int64_t)x.d.columns, blocks = (k + BLOCK - 1) / BLOCK;
        for (int64_t b = 0; b < blocks; b++) {
            const int64_t first = b * BLOCK, count = k - first < BLOCK ? k - first : BLOCK;
            sum += dot(u + first, v + first, count) * block_scale(x.p, 0, i, m, b, blocks) *
                   block_scale(x.p, 1, j, n, b, blocks);
        }
        return sum;
    }
    if (x.p.fast && x.a.type == CUDA_R_8F_E4M3) {
        sum = (float)fp8_accumulate(0, u, v, k);
    } else {
        for (int part = 0; part < x.parts; part++) {
            int64_t first = k * part / x.parts, last = k * (part + 1) / x.parts;
            sum += dot(u + first, v + first, last - first);
        }
    }
    for (int side = 0; side < 2; side++)
        if (x.p.scale[side]) sum *= x.p.scale[side][!x.p.scale_mode[side] ? 0 : side ? j : i];
    return sum;
}

void multiply(const struct call &x)
{
    int64_t m = (int64_t)x.d.rows, n = (int64_t)x.d.columns;
    int64_t k = (int64_t)(x.p.transposed[0] ? x.a.rows : x.a.columns);
    std::vector<float> a = operand(x.a_data, &x.a, x.p.transposed[0], m, k);
    std::vector<float> b = operand(x.b_data, &x.b, !x.p.transposed[1], n, k);
    for (int64_t j = 0; j < n; j++)
        for (int64_t i = 0; i < m; i++) {
            float sum = x.alpha * element(x, &a[(size_t)(i * k)], &b[(size_t)(j * k)], k, i, j);
            if (x.beta != 0) sum += x.beta * load(x.c_data, x.c.type, j * x.c.stride + i);
            if (x.p.epilogue == CUBLASLT_EPILOGUE_BIAS) sum += load(x.p.bias, x.p.bias_type, i);
            store(x.d_data, x.d.type, j * x.d.stride + i, sum);
        }
}

const struct algorithm *known(const cublasLtMatmulAlgo_t *algo)
{
    if (!algo) return &algorithms[0];
    for (const struct algorithm &a : algorithms)
        if (algo->data[0] == (uint64_t)a.id) return &a;
    return NULL;
}

void describe(const struct algorithm *a, cublasLtMatmulHeuristicResult_t *result)
{
    memset(result, 0, sizeof *result);
    result->algo.data[0] = (uint64_t)a->id;
    result->workspaceSize = a->workspace;
    result->state = CUBLAS_STATUS_SUCCESS;
    result->wavesCount = 1;
}

} // namespace

static int64_t (*gemm_time)(int algorithm);

void emulator_set_gemm_time(int64_t (*us)(int algorithm))
{
    emulated_call call;
    gemm_time = us;
}

void emulator_refuse_fp8(int from_rows, int to_rows)
{
    refused_from = from_rows;
    refused_to = to_rows;
}

void emulator_refuse_fast_accum(void)
{
    fast_refused = true;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle_p)
{
    static char handle;
    *handle_p = reinterpret_cast<cublasLtHandle_t>(&handle);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t)
{
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void)
{
    return CUBLAS_VERSION;
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_SUCCESS         ? "success"
           : status == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported"
           : status == CUBLAS_STATUS_INVALID_VALUE ? "invalid value"
                                                   : "an error of the emulated cuBLASLt";
}

const char *cublasLtGetStatusName(cublasStatus_t status)
{
    return cublasLtGetStatusString(status);
}

// ---- descriptors ----------------------------------------------------------------------------------------------------

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t l, size_t, cudaDataType type, uint64_t rows,
                                                 uint64_t columns, int64_t stride)
{
    memset(l, 0, sizeof *l);
    *inside<struct layout>(l) = {type, CUBLASLT_ORDER_COL, rows, columns, stride};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l_p, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t stride)
{
    *l_p = new cublasLtMatrixLayoutOpaque_t();
    return cublasLtMatrixLayoutInit_internal(*l_p, sizeof **l_p, type, rows, columns, stride);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    delete l;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t opaque, cublasLtMatrixLayoutAttribute_t which,
                                                const void *from, size_t bytes)
{
    struct layout *l = inside<struct layout>(opaque);
    switch (which) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE: return attribute_read(&l->type, from, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ORDER: return attribute_read(&l->order, from, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ROWS: return attribute_read(&l->rows, from, bytes);
    case CUBLASLT_MATRIX_LAYOUT_COLS: return attribute_read(&l->columns, from, bytes);
    case CUBLASLT_MATRIX_LAYOUT_LD: return attribute_read(&l->stride, from, bytes);
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
    }
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t p, size_t, cublasComputeType_t compute,
                                               cudaDataType_t scale_type)
{
    memset(p, 0, sizeof *p);
    struct matmul *inner = inside<struct matmul>(p);
    inner->compute = compute;
    inner->scale_type = scale_type;
    inner->bias_type = CUDA_R_32F;
    inner->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *p_p, cublasComputeType_t compute,
                                        cudaDataType_t scale_type)
{
    *p_p = new cublasLtMatmulDescOpaque_t();
    return cublasLtMatmulDescInit_internal(*p_p, sizeof **p_p, compute, scale_type);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t p)
{
    delete p;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t opaque, cublasLtMatmulDescAttributes_t which,
                                              const void *from, size_t bytes)
{
    struct matmul *p = inside<struct matmul>(opaque);
    switch (which) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return attribute_read(&p->transposed[0], from, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB: return attribute_read(&p->transposed[1], from, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return attribute_read(&p->epilogue, from, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return attribute_read(&p->bias, from, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return attribute_read(&p->bias_type, from, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER: return attribute_read(&p->scale[0], from, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER: return attribute_read(&p->scale[1], from, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE: return attribute_read(&p->scale_mode[0], from, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE: return attribute_read(&p->scale_mode[1], from, bytes);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE: return attribute_read(&p->pointer_mode, from, bytes);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM: return attribute_read(&p->fast, from, bytes);
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET: return attribute_read(&p->multiprocessors, from, bytes);
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
    }
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference, size_t)
{
    memset(preference, 0, sizeof *preference);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference_p)
{
    *preference_p = new cublasLtMatmulPreferenceOpaque_t();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    delete preference;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t opaque,
                                                    cublasLtMatmulPreferenceAttributes_t which, const void *from,
                                                    size_t bytes)
{
    switch (which) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return attribute_read(&inside<struct preference>(opaque)->workspace, from, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
    case CUBLASLT_MATMUL_PREF_IMPL_MASK:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return CUBLAS_STATUS_SUCCESS;
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
    }
}

// ---- algorithms and the gemm ----------------------------------------------------------------------------------------

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t p, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int max,
                                              cublasLtMatmulHeuristicResult_t results[], int *count_p)
{
    *count_p = 0;
    if (max < 1) return CUBLAS_STATUS_INVALID_VALUE;
    cublasStatus_t status = check(inside<struct matmul>(p), inside<struct layout>(a), inside<struct layout>(b),
                                  inside<struct layout>(c), inside<struct layout>(d));
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    for (const struct algorithm &algorithm : algorithms)
        if (*count_p < max && algorithm.workspace <= inside<struct preference>(preference)->workspace)
            describe(&algorithm, &results[(*count_p)++]);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t p, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algo, cublasLtMatmulHeuristicResult_t *result)
{
    const struct algorithm *algorithm = known(algo);
    if (!algorithm) return CUBLAS_STATUS_INVALID_VALUE;
    cublasStatus_t status = check(inside<struct matmul>(p), inside<struct layout>(a), inside<struct layout>(b),
                                  inside<struct layout>(c), inside<struct layout>(d));
    if (status == CUBLAS_STATUS_SUCCESS) describe(algorithm, result);
    return status;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t which, void *to, size_t bytes,
                                                    size_t *written)
{
    const struct algorithm *algorithm = known(algo);
    if (!algorithm || bytes != sizeof(int32_t)) return CUBLAS_STATUS_INVALID_VALUE;
    int32_t value = which == CUBLASLT_ALGO_CONFIG_ID           ? algorithm->id
                    : which == CUBLASLT_ALGO_CONFIG_SPLITK_NUM ? algorithm->parts
                                                               : 0;
    memcpy(to, &value, sizeof value);
    if (written) *written = sizeof value;
    return CUBLAS_STATUS_SUCCESS;
}

static int last_multiprocessors;

int emulator_gemm_multiprocessors(void)
{
    emulated_call call;
    return last_multiprocessors;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t p, const void *alpha, const void *a_data,
                              cublasLtMatrixLayout_t a, const void *b_data, cublasLtMatrixLayout_t b, const void *beta,
                              const void *c_data, cublasLtMatrixLayout_t c, void *d_data, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspace_bytes,
                              cudaStream_t stream)
{
    emulated_call one;
    const struct algorithm *algorithm = known(algo);
    if (!algorithm) return CUBLAS_STATUS_INVALID_VALUE;
    struct call x = {*inside<struct matmul>(p),
                     *inside<struct layout>(a),
                     *inside<struct layout>(b),
                     *inside<struct layout>(c),
                     *inside<struct layout>(d),
                     a_data,
                     b_data,
                     c_data,
                     d_data,
                     *static_cast<const float *>(alpha),
                     *static_cast<const float *>(beta),
                     algorithm->parts};
    cublasStatus_t status = check(&x.p, &x.a, &x.b, &x.c, &x.d);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    last_multiprocessors = x.p.multiprocessors;
    if (algorithm->workspace > workspace_bytes) return CUBLAS_STATUS_INVALID_VALUE;
    if (x.a.type == CUDA_R_8F_E4M3 && (!aligned(a_data) || !aligned(b_data))) return CUBLAS_STATUS_NOT_SUPPORTED;
    const struct layout *layouts[] = {&x.a, &x.b, &x.d};
    const void *data[] = {a_data, b_data, d_data};
    for (int i = 0; i < 3; i++) {
        size_t elements = (size_t)layouts[i]->stride * (layouts[i]->columns - 1) + layouts[i]->rows;
        if (!emulated_is_device_memory(data[i], elements * size_of(layouts[i]->type)))
            return CUBLAS_STATUS_EXECUTION_FAILED; // the real library would fault
    }
    cudaError_t error = emulated_put_waiting(stream, [=] {
        emulated_duration_us += gemm_time ? gemm_time((int)(algorithm - algorithms)) : (int64_t)EMULATED_GEMM_US;
        if (emulated_is_counting()) return true;
        emulated_launches++;
        if (algorithm->workspace) memset(workspace, 0xff, algorithm->workspace); // the library writes to it
        multiply(x);
        return true;
    });
    return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
