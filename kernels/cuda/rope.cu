// SPDX-License-Identifier: Apache-2.0
// RoPE for the rows of a pass: computes their angles once per pass. In each layer, rotates q and k and writes k and v
// to the KV cache. A warp processes one head of one row. Decode passes rotate within attention instead (decode.cu).
#include "kernels/cuda/rope.h"

#include "kernels/cuda/dependent.h"

enum { WARPS = 4 };

// Computes the angles. An angle can be 131071 radians or more. So whole turns are subtracted in double, and only the
// small rest is converted to f32.
static __global__ void __launch_bounds__(WARPS *WARP)
    rope_angles_kernel(float2 *angles, struct rope_shape rope, const int32_t *position, const int32_t *row_seq,
                       const int32_t *rope_length, int half)
{
    const double turns_per_radian = 0.15915494309189533577;
    const int row = (int)blockIdx.x, least = rope_length[row_seq[row]], own = position[row] + 1;
    const int length = own > least ? own : least;
    const float theta = rope_is_scaled(&rope, length) ? rope_theta(&rope, length) : 0;
    for (int i = (int)threadIdx.x; i < half; i += WARPS * WARP) {
        const double turns = (double)rope_angle(&rope, i, position[row], length, theta) * turns_per_radian;
        float2 both;
        sincos_of_turn((float)(turns - rint(turns)), &both.y, &both.x);
        both.x *= rope.scale[i], both.y *= rope.scale[i];
        angles[(int64_t)row * half + i] = both;
    }
}

cudaError_t launch_rope_angles(cudaStream_t stream, float *angles, const struct rope_shape *rope,
                               const struct device_batch *batch, int head_size)
{
    struct rope_shape on_device = *rope;
    on_device.still_layers = NULL; // on the host
    return CUDA_LAUNCH(rope_angles_kernel, dim3((unsigned)batch->n_rows), dim3(WARPS * WARP), 0, stream,
                       reinterpret_cast<float2 *>(angles), on_device, batch->position, batch->row_seq,
                       batch->rope_length, head_size / 2);
}

// Grid: rows x groups of WARPS heads of q, k and v; one warp per head. No shared memory.
static __global__ void __launch_bounds__(WARPS *WARP)
    rope_append_kernel(kv_cache kv, device_batch batch, int layer, float *qkv, int n_heads, struct rope rope)
{
    dependents_start();
    const int row = batch.first_row + (int)blockIdx.x, head = (int)blockIdx.y * WARPS + (int)threadIdx.x / WARP;
    const int n_kv = kv.n_kv_heads, d = kv.head_size;
    dependency_wait();
    if (head >= n_heads + 2 * n_kv) return; // ends a whole warp
    float *data = qkv + ((int64_t)row * (n_heads + 2 * n_kv) + head) * d;
    lane_dims x;
    load_head(&x, &rope, rope.angles + (int64_t)row * rope.angle_stride, data, head, n_heads, n_kv, d);
    const bool is_v = head >= n_heads + n_kv;
    if (head < n_heads)
        store_f32(&x, data, d / 2);
    else
        store_entry(&x, &kv, &batch, layer, row, is_v, head - n_heads - (is_v ? n_kv : 0));
}

cudaError_t launch_rope_append(cudaStream_t stream, const struct kv_cache *kv, const struct device_batch *batch,
                               int layer, float *qkv, int n_heads, const struct rope *rope)
{
    int heads = n_heads + 2 * kv->n_kv_heads;
    dim3 grid((unsigned)batch->n_rows, (unsigned)(heads + WARPS - 1) / WARPS);
    return CUDA_LAUNCH_EARLY(rope_append_kernel, grid, WARPS * WARP, 0, stream, *kv, *batch, layer, qkv, n_heads,
                             *rope);
}
