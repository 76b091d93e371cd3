// SPDX-License-Identifier: Apache-2.0
// Kernels over one row or one head (included by kernels.c): RMS norm, activations, RoPE, Hadamard rotation, appending
// to the KV cache.
#pragma once

// Returns the sum of squares. Four accumulators hide the latency of the sum. Their number and order are fixed for
// exactness.
static float sum_squares(const float *x, int n)
{
    vec sum[4] = {{0}, {0}, {0}, {0}};
    int i = 0;
    for (; i + 4 * VEC <= n; i += 4 * VEC)
        for (int j = 0; j < 4; j++) {
            vec v = vec_load(x + i + j * VEC);
            sum[j] = vec_fma(v, v, sum[j]);
        }
    float total = vec_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
    for (; i < n; i++)
        total += x[i] * x[i];
    return total;
}

// Returns 1 / rms(x).
INLINE float rms_scale(const float *x, int n, float epsilon)
{
    return 1 / __builtin_sqrtf(sum_squares(x, n) / (float)n + epsilon);
}

static void rmsnorm_row(struct rows_out out, int row, const float *x, const float *gain, int n, float epsilon)
{
    float scale = rms_scale(x, n, epsilon);
    int i = 0;
    for (; i + VEC <= n; i += VEC) {
        vec y = vec_load(x + i) * scale * vec_load(gain + i);
        if (out.bf16)
            vec_store_bf16(rows_out_at(out, row, i), y);
        else
            vec_store(rows_out_at(out, row, i), y);
    }
    for (; i < n; i++) {
        float y = x[i] * scale * gain[i];
        if (out.bf16)
            *(uint16_t *)rows_out_at(out, row, i) = bf16_from_f32(y);
        else
            *(float *)rows_out_at(out, row, i) = y;
    }
}

static void scale_row(float *x, float scale, const float *gain, int n)
{
    int i = 0;
    for (; i + VEC <= n; i += VEC)
        vec_store(x + i, vec_load(x + i) * scale * vec_load(gain + i));
    for (; i < n; i++)
        x[i] = x[i] * scale * gain[i];
}

static void add_norm_row(struct rows_out out, int row, float *x, const float *addend, const float *gain, int n,
                         float epsilon)
{
    const float scale = addend ? rms_scale(addend, n, epsilon) : 0;
    for (int i = 0; i < n && addend; i++)
        x[i] += addend[i] * scale * gain[i];
    store_columns(out, row, 0, x, n);
}

// Returns e^x - 1 for x <= 0: a series near 0, where the difference would lose digits.
INLINE vec vec_expm1(vec x)
{
    vec series = vec_set(1);
    for (int k = 9; k > 1; k--)
        series = vec_fma(series, x * (1.f / (float)k), vec_set(1));
    series = series * x;
    return vec_select(x < -0.5f, vec_exp(x) - 1.f, series);
}

INLINE vec activation_value(const struct activation *a, vec x, vec up)
{
    if (a->kind == ACTIVATION_SWIGLU) return vec_silu(x) * up;
    if (a->kind == ACTIVATION_RELU2) {
        const vec positive = vec_select(x < 0.f, vec_set(0), x); // NaN stays NaN
        return positive * positive;
    }
    const vec epsilon = vec_set(a->epsilon), below = vec_select(x > epsilon, epsilon, x);
    const vec high = x * x * a->a, low = (vec_expm1(below) - x) * a->b;
    return vec_select(x > 0.f, high, low) + x * a->beta;
}

// The last columns are padded, so that each is computed like the others.
static void activate_row(struct rows_out out, int row, const float *x, const struct activation *a, int n)
{
    const float *up = a->kind == ACTIVATION_SWIGLU ? x + n : x;
    for (int i = 0; i < n; i += VEC) {
        const int count = n - i < VEC ? n - i : VEC;
        float from[VEC] = {0}, also[VEC] = {0}, to[VEC];
        memcpy(from, x + i, (size_t)count * sizeof *from);
        memcpy(also, up + i, (size_t)count * sizeof *also);
        vec_store(to, activation_value(a, vec_load(from), vec_load(also)));
        store_columns(out, row, i, to, count);
    }
}

static void rope_head(float *head, const float *gain, int head_size, float epsilon, const float *cos_sin)
{
    if (gain) rmsnorm_row((struct rows_out){.data = head}, 0, head, gain, head_size, epsilon);
    int half = head_size / 2, i = 0;
    const float *cosine = cos_sin, *sine = cos_sin + half;
    float *low = head, *high = head + half;
    for (; i + VEC <= half; i += VEC) {
        vec c = vec_load(cosine + i), s = vec_load(sine + i), x = vec_load(low + i), y = vec_load(high + i);
        vec_store(low + i, vec_fma(x, c, -(y * s)));
        vec_store(high + i, vec_fma(y, c, x * s));
    }
    for (; i < half; i++) {
        float x = low[i], y = high[i];
        low[i] = x * cosine[i] - y * sine[i];
        high[i] = y * cosine[i] + x * sine[i];
    }
}

// Computes the Walsh-Hadamard transform of blocks of B dims, where B is the largest power of two that divides D: sums
// and differences of dims i and i + half for half = B/2, B/4, .. 1.
static void hadamard_head(float *head, int head_size)
{
    int block = head_size & -head_size, half = block / 2;
    float scale = 1 / __builtin_sqrtf((float)block);
    for (; half >= VEC || (half && block < VEC); half /= 2)
        for (int i = 0; i < head_size; i += 2 * half) {
            float *low = head + i, *high = low + half;
            int j = 0;
            for (; j + VEC <= half; j += VEC) {
                vec x = vec_load(low + j), y = vec_load(high + j);
                vec_store(low + j, x + y);
                vec_store(high + j, x - y);
            }
            for (; j < half; j++) {
                float x = low[j], y = high[j];
                low[j] = x + y;
                high[j] = x - y;
            }
        }
    vec_mask lane = vec_lanes();
    for (int i = 0; i + VEC <= head_size; i += VEC) {
        vec x = vec_load(head + i);
#pragma GCC unroll 4
        for (int width = VEC / 2; half && width; width /= 2)
            x = vec_swap(x, width) + vec_select((lane & width) != 0, -x, x);
        vec_store(head + i, x * scale);
    }
    for (int i = head_size / VEC * VEC; i < head_size; i++)
        head[i] *= scale;
}

INLINE void kv_append_int8(const struct kv_view *kv, char *block, int slot, const float *k, const float *v)
{
    int d = kv->head_size;
    uint8_t *keys = (uint8_t *)block + slot, row[128];
    uint8_t *values = (uint8_t *)block + kv->v_offset_bytes + slot * kv->v_stride;
    float *scale = (float *)(void *)(block + kv->scale_offset_bytes) + slot, inverse;
    scale[0] = quantise_scale(k, false, d, &inverse);
    for (int first = 0; first < d; first += 128) {
        int n = d - first < 128 ? d - first : 128;
        quantise_bytes(row, k + first, false, n, inverse, 0);
        for (int i = 0; i < n; i++)
            keys[(first + i) * KV_BLOCK_TOKENS] = row[i];
    }
    scale[KV_BLOCK_TOKENS] = quantise_scale(v, false, d, &inverse);
    quantise_bytes(values, v, false, d, inverse, 0);
}

// Stores the bf16 words of n entries in one block. n is a compile-time constant if the call fills the whole block.
INLINE void kv_append_bf16(const struct kv_view *kv, char *block, int slot, int n, const float *k, const float *v,
                           size_t stride)
{
    enum { DIMS = 128 }; // dims at a time
    uint16_t rows[KV_BLOCK_TOKENS][DIMS];
    for (int first = 0, d = kv->head_size; first < d; first += DIMS) {
        int dims = d - first < DIMS ? d - first : DIMS;
        uint32_t *keys = (uint32_t *)(void *)block + first / 2 * KV_BLOCK_TOKENS + slot;
        for (int i = 0; i < n; i++)
            store_row(rows[i], true, k + (size_t)i * stride + first, dims);
        for (int word = 0; word < dims / 2; word++)
            for (int i = 0; i < n; i++)
                memcpy(keys + word * KV_BLOCK_TOKENS + i, &rows[i][2 * word], sizeof *keys);

        uint32_t *values = (uint32_t *)(void *)(block + kv->v_offset_bytes) + first;
        for (int i = 0; i < n; i++)
            store_row(rows[i], true, v + (size_t)i * stride + first, dims);
        for (int i = 0; i < n; i++) {
            uint32_t *words = values + (slot + i) / 2 * kv->v_stride;
            bool odd = (slot + i) % 2, both = !odd && i + 1 < n;
            for (int c = 0; both && c < dims; c++)
                words[c] = rows[i][c] | (uint32_t)rows[i + 1][c] << 16;
            for (int c = 0; !both && c < dims; c++) // the other half belongs to the neighbouring entry
                memcpy((uint16_t *)(words + c) + odd, &rows[i][c], sizeof rows[i][c]);
            i += both;
        }
    }
}

static void kv_append(const struct kv_view *kv, int entry, int n, const float *k, const float *v, size_t stride)
{
    char *block = kv->base + (size_t)kv->blocks[entry / KV_BLOCK_TOKENS] * kv->block_bytes;
    int slot = entry % KV_BLOCK_TOKENS, d = kv->head_size;
    if (kv->bf16 && !kv->int8) {
        if (n == KV_BLOCK_TOKENS)
            kv_append_bf16(kv, block, 0, KV_BLOCK_TOKENS, k, v, stride);
        else
            kv_append_bf16(kv, block, slot, n, k, v, stride);
        return;
    }
    for (int i = 0; i < n; i++, slot++, k += stride, v += stride) {
        if (kv->int8) {
            kv_append_int8(kv, block, slot, k, v);
            continue;
        }
        float *keys = (float *)(void *)block + slot, *values = (float *)(void *)(block + kv->v_offset_bytes);
        for (int c = 0; c < d; c++)
            keys[c * KV_BLOCK_TOKENS] = k[c];
        store_row(values + slot * kv->v_stride, false, v, d);
    }
}
