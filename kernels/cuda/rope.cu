// SPDX-License-Identifier: Apache-2.0
// RoPE at given positions (arXiv 2104.09864), fused with the norms of the heads before it and the write to the paged
// cache after it, so that q, k and v are read once. A warp processes one head of one row; a lane has dims i, i+1 and
// their partners i + D/2, i+1 + D/2, so that whole lines are read and written.
#include "kernels/cuda/dependent.h"
#include "kernels/cuda/geometry.h"
#include "kernels/cuda/ptx.h"

enum {
    WARPS = 4,
    HEAD_MAX = 256,
    ROUNDS = HEAD_MAX / 4 / WARP, // of four dims per lane
};

// A lane's dims of a head: dim_of(j), dim_of(j) + 1 and their partners half a head further.
struct lane_dims {
    float low[ROUNDS][2], high[ROUNDS][2];
};

static __device__ __forceinline__ int dim_of(int j)
{
    return 2 * ((int)threadIdx.x % WARP + j * WARP);
}

static __device__ __forceinline__ void load_dims(lane_dims *x, const float *head, int half)
{
#pragma unroll
    for (int j = 0; j < ROUNDS; j++) {
        int i = dim_of(j);
        float2 low = make_float2(0, 0), high = make_float2(0, 0);
        if (i < half) {
            low = *reinterpret_cast<const float2 *>(head + i);
            high = *reinterpret_cast<const float2 *>(head + half + i);
        }
        x->low[j][0] = low.x, x->low[j][1] = low.y;
        x->high[j][0] = high.x, x->high[j][1] = high.y;
    }
}

static __device__ __forceinline__ void normalise(lane_dims *x, const float *gain, int half, float epsilon)
{
    float sum = 0;
#pragma unroll
    for (int j = 0; j < ROUNDS; j++)
#pragma unroll
        for (int k = 0; k < 2; k++)
            sum += x->low[j][k] * x->low[j][k] + x->high[j][k] * x->high[j][k];
    float scale = rsqrtf(warp_sum(sum) / (float)(2 * half) + epsilon);
#pragma unroll
    for (int j = 0; j < ROUNDS; j++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            int i = dim_of(j) + k;
            if (i >= half) continue;
            x->low[j][k] *= scale * gain[i];
            x->high[j][k] *= scale * gain[half + i];
        }
}

// Sine and cosine of the angles of dim_of(j) + k.
struct lane_angles {
    float sine[ROUNDS][2], cosine[ROUNDS][2];
};

// The angle is position times frequency, up to 131071 radians or more, where f32 has steps of 0.008. The product is
// computed in double, whole turns are subtracted, and the small rest is converted to f32.
static __device__ __forceinline__ void angles_at(lane_angles *angles, int position, const float *inv_freq, int half)
{
    const double turns_per_radian = 0.15915494309189533577;
#pragma unroll
    for (int j = 0; j < ROUNDS; j++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            int i = dim_of(j) + k;
            if (i >= half) continue;
            double turns = (double)position * (double)inv_freq[i] * turns_per_radian;
            sincos_of_turn((float)(turns - rint(turns)), &angles->sine[j][k], &angles->cosine[j][k]);
        }
}

static __device__ __forceinline__ void rotate(lane_dims *x, const lane_angles *angles, int half)
{
#pragma unroll
    for (int j = 0; j < ROUNDS; j++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            if (dim_of(j) + k >= half) continue;
            const float s = angles->sine[j][k], c = angles->cosine[j][k], a = x->low[j][k], b = x->high[j][k];
            x->low[j][k] = a * c - b * s;
            x->high[j][k] = b * c + a * s;
        }
}

static __device__ __forceinline__ void store_f32(const lane_dims *x, float *head, int half)
{
#pragma unroll
    for (int j = 0; j < ROUNDS; j++) {
        int i = dim_of(j);
        if (i >= half) continue;
        *reinterpret_cast<float2 *>(head + i) = make_float2(x->low[j][0], x->low[j][1]);
        *reinterpret_cast<float2 *>(head + half + i) = make_float2(x->high[j][0], x->high[j][1]);
    }
}

static __device__ __forceinline__ void store_bf16(const lane_dims *x, uint16_t *entry, int half)
{
#pragma unroll
    for (int j = 0; j < ROUNDS; j++) {
        int i = dim_of(j);
        if (i >= half) continue;
        *reinterpret_cast<uint32_t *>(entry + i) = pack_bf16(x->low[j][0], x->low[j][1]);
        *reinterpret_cast<uint32_t *>(entry + half + i) = pack_bf16(x->high[j][0], x->high[j][1]);
    }
}

static __device__ __forceinline__ uint16_t pack_e4m3(float low, float high)
{
    return (uint16_t)(e4m3_from_float(low) | e4m3_from_float(high) << 8);
}

// Quantises to e4m3 as kernels/convert.h defines; zeros with the scale NaN if a value is not finite.
static __device__ __forceinline__ void store_e4m3(const lane_dims *x, uint8_t *entry, float *scale, int half)
{
    const float e4m3_max = 448, smallest = 0x1p-100f;
    float largest = 0, not_finite = 0;
#pragma unroll
    for (int j = 0; j < ROUNDS; j++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            largest = fmaxf(largest, fmaxf(fabsf(x->low[j][k]), fabsf(x->high[j][k])));
            float sum = x->low[j][k] - x->low[j][k] + (x->high[j][k] - x->high[j][k]); // NaN if a value is not finite
            if (sum != 0) not_finite = 1;
        }
    largest = warp_max(largest);
    not_finite = warp_max(not_finite);
    float factor = not_finite != 0 || largest < smallest ? 0 : e4m3_max / largest;
#pragma unroll
    for (int j = 0; j < ROUNDS; j++) {
        int i = dim_of(j);
        if (i >= half) continue;
        uint16_t low = 0, high = 0;
        if (factor != 0) {
            low = pack_e4m3(x->low[j][0] * factor, x->low[j][1] * factor);
            high = pack_e4m3(x->high[j][0] * factor, x->high[j][1] * factor);
        }
        *reinterpret_cast<uint16_t *>(entry + i) = low;
        *reinterpret_cast<uint16_t *>(entry + half + i) = high;
    }
    if (threadIdx.x % WARP == 0) *scale = not_finite != 0 ? __int_as_float(0x7fc00000) : largest / e4m3_max;
}

// Grid: rows x groups of WARPS heads of q, k and v; one warp per head. No shared memory. D is a multiple of 8, at most
// 256.
static __global__ void __launch_bounds__(WARPS *WARP)
    rope_append_kernel(kv_cache kv, device_batch batch, int layer, float *qkv, int n_heads, const float *q_gain,
                       const float *k_gain, float epsilon, const float *inv_freq)
{
    dependents_start();
    int row = batch.first_row + (int)blockIdx.x, head = (int)blockIdx.y * WARPS + (int)threadIdx.x / WARP;
    int n_kv = kv.n_kv_heads, d = kv.head_size, half = d / 2;
    // Before the wait: the batch is complete, since the first kernel of a pass does not start early.
    lane_angles angles;
    angles_at(&angles, batch.position[row], inv_freq, half);
    dependency_wait();
    if (head >= n_heads + 2 * n_kv) return; // a whole warp
    float *data = qkv + ((int64_t)row * (n_heads + 2 * n_kv) + head) * d;
    bool is_v = head >= n_heads + n_kv;
    lane_dims x;
    load_dims(&x, data, half);
    if (!is_v) {
        const float *gain = head < n_heads ? q_gain : k_gain;
        if (gain) normalise(&x, gain, half, epsilon);
        rotate(&x, &angles, half);
    }
    if (head < n_heads) {
        store_f32(&x, data, half);
        return;
    }
    int s = batch.row_seq[row], entry = batch.kv_len[s] + row - batch.row_start[s];
    int block = batch.block_table[(int64_t)s * batch.max_blocks + entry / KV_BLOCK_TOKENS];
    int kv_head = head - n_heads - (is_v ? n_kv : 0);
    int64_t at = geometry_kv_at(&kv, layer, block, is_v, kv_head) + entry % KV_BLOCK_TOKENS;
    if (kv.fp8)
        store_e4m3(&x, static_cast<uint8_t *>(kv.data) + at * d, kv.scale + at, half);
    else
        store_bf16(&x, static_cast<uint16_t *>(kv.data) + at * d, half);
}

cudaError_t launch_rope_append(cudaStream_t stream, const struct kv_cache *kv, const struct device_batch *batch,
                               int layer, float *qkv, int n_heads, const float *q_gain, const float *k_gain,
                               float epsilon, const float *inv_freq)
{
    int heads = n_heads + 2 * kv->n_kv_heads;
    dim3 grid((unsigned)batch->n_rows, (unsigned)(heads + WARPS - 1) / WARPS);
    return CUDA_LAUNCH_EARLY(rope_append_kernel, grid, WARPS * WARP, 0, stream, *kv, *batch, layer, qkv, n_heads,
                             q_gain, k_gain, epsilon, inv_freq);
}
