// SPDX-License-Identifier: Apache-2.0
// The reference backend, the oracle of all other backends: a Llama forward pass in plain C, written to be obviously
// right. It has one thread, simple loops, and every sum in double. Values are stored as f32. A bf16 backend rounds
// weights, activations, K and V to bf16 whenever they are stored, and nothing else. An 8-bit backend rounds matrices,
// and the rows that they multiply, to the values of their bytes, and is otherwise a bf16 backend. An int4 backend
// rounds only matrices. An 8-bit KV cache holds the values of the bytes, with a scale for each head of an entry.
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"
#include "kernels/check.h"
#include "kernels/convert.h"
#include "kernels/int4.h"
#include "lib/base/invariant.h"
#include "lib/base/mem.h"
#include "lib/base/no_alloc.h"

struct tensor {
    struct tensor *next; // list of the backend's tensors, for close
    enum tensor_kind kind;
    int max_rows, columns;
    float *data; // [max_rows][columns]
};

struct weight {
    struct weight *next; // list of the backend's weights, for close
    int64_t rows, columns;
    enum dtype dtype;  // of a matrix: type to which the matrix and the rows that it multiplies are rounded
    int32_t first_row; // of an embedding table: vocabulary id of row 0
    float *data;       // [rows][columns]; a gate_up weight has all gate rows, then all up rows
    bool borrowed;     // data belongs to the tied weight
};

struct candidate {
    double logit, weight;
    int32_t id;
};

struct reference {
    struct backend base;
    struct backend_shape shape; // the arrays of RoPE are copies owned here
    enum dtype dtype;
    struct ragged_batch batch; // batch of the current pass; the caller owns its arrays
    int64_t importance_size;   // floats in `importance`
    float *cos, *sin;          // [max_rows][D/2] for each row's position
    float *k_cache, *v_cache;  // [layer][block][entry in block][Hkv][D]
    float *k_scale, *v_scale;  // [layer][block][entry in block][Hkv]; 1 unless the KV cache has 8 bits
    float *importance;         // maxima for the keys of the importance rows, one row after another
    double *score, *smooth;    // [max_context] for one query
    float *row;                // [widest weight's columns]: a row of x as the gemm reads it
    double *sums;              // [widest weight's columns]: one normalised row
    int64_t row_columns;
    struct candidate *candidates; // [n_candidates] tokens to sample from
    int n_candidates;
    struct tensor *tensors;
    struct weight *weights;
};

static struct reference *reference_of(struct backend *b)
{
    return (struct reference *)b;
}

// Returns the value that is stored: rounded to bf16 in a bf16 backend.
static float round_stored(const struct reference *ref, float value)
{
    return dtype_of_activations(ref->dtype) == DTYPE_BF16 ? bf16_to_f32(bf16_from_f32(value)) : value;
}

static void tensor_store(const struct reference *ref, struct tensor *t, int64_t row, int64_t column, double value)
{
    float v = (float)value;
    t->data[row * t->columns + column] = t->kind == TENSOR_ACTIVATION ? round_stored(ref, v) : v;
}

// Replaces n values by the integers (or e4m3 numbers) of their bytes. Returns the scale, NaN if a value is not finite.
static float quantise_bytes(enum dtype dtype, float *x, int64_t n)
{
    bool fp8 = dtype == DTYPE_FP8, finite = true;
    float largest = 0, largest_byte = fp8 ? E4M3_MAX : QUANTISE_MAX;
    for (int64_t i = 0; i < n; i++) {
        largest = fmaxf(largest, fabsf(x[i]));
        finite &= isfinite(x[i]) != 0;
    }
    for (int64_t i = 0; i < n; i++) {
        float q = !finite || largest < QUANTISE_MIN ? 0 : x[i] * (largest_byte / largest);
        x[i] = fp8 ? e4m3_to_f32(e4m3_from_f32(q)) : rintf(q);
    }
    return finite ? largest / largest_byte : NAN;
}

// Rounds n values to byte * scale, with one scale for every QUANTISE_GROUP in DTYPE_INT8_G128. If a value is not
// finite, all become NaN.
static void quantise(enum dtype dtype, float *x, int64_t n)
{
    int64_t size = dtype == DTYPE_INT8_G128 ? QUANTISE_GROUP : n;
    for (int64_t first = 0; first < n; first += size) {
        int64_t end = first + size < n ? first + size : n;
        float scale = quantise_bytes(dtype, x + first, end - first);
        for (int64_t i = first; i < end; i++)
            x[i] *= scale;
    }
}

static bool dtype_is_8bit(enum dtype dtype)
{
    return dtype_size_bytes(dtype) == 1;
}

static double dot_double(const float *a, const float *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

// ---- memory ---------------------------------------------------------------------------------------------------------

static void ref_close(struct backend *b)
{
    struct reference *ref = reference_of(b);
    for (struct tensor *t = ref->tensors, *next; t; t = next) {
        next = t->next;
        free(t->data);
        free(t);
    }
    for (struct weight *w = ref->weights, *next; w; w = next) {
        next = w->next;
        if (!w->borrowed) free(w->data);
        free(w);
    }
    rope_shape_free(&ref->shape.rope);
    free(ref->cos);
    free(ref->sin);
    free(ref->k_cache);
    free(ref->v_cache);
    free(ref->k_scale);
    free(ref->v_scale);
    free(ref->importance);
    free(ref->score);
    free(ref->smooth);
    free(ref->row);
    free(ref->sums);
    free(ref->candidates);
    free(ref);
}

static enum status ref_tensor_create(struct backend *b, enum tensor_kind kind, int max_rows, int columns,
                                     struct tensor **tensor_p)
{
    struct reference *ref = reference_of(b);
    struct tensor *t = mem_alloc(sizeof *t);
    *t = (struct tensor){.next = ref->tensors, .kind = kind, .max_rows = max_rows, .columns = columns};
    t->data = mem_alloc_array((size_t)max_rows * (size_t)columns, sizeof *t->data);
    *tensor_p = ref->tensors = t;
    return STATUS_OK;
}

static float *ref_tensor_data(struct backend *b, struct tensor *t)
{
    INVARIANT(t->kind == TENSOR_F32, "tensor kind %d is not F32", (int)t->kind);
    return t->data;
}

static enum status ref_tensor_read(struct backend *b, const struct tensor *t, int rows, float *host)
{
    INVARIANT(t->kind == TENSOR_F32 && rows <= t->max_rows, "reading %d rows of a tensor of kind %d with %d", rows,
              (int)t->kind, t->max_rows);
    memcpy(host, t->data, (size_t)rows * (size_t)t->columns * sizeof *host);
    return STATUS_OK;
}

static struct weight *weight_new(struct reference *ref, int64_t rows, int64_t columns, bool borrowed)
{
    struct weight *w = mem_alloc(sizeof *w);
    *w = (struct weight){.next = ref->weights, .rows = rows, .columns = columns, .borrowed = borrowed};
    if (!borrowed) w->data = mem_alloc_array((size_t)rows * (size_t)columns, sizeof *w->data);
    if (columns > ref->row_columns) {
        ref->row = mem_resize(ref->row, (size_t)columns, sizeof *ref->row);
        ref->sums = mem_resize(ref->sums, (size_t)columns, sizeof *ref->sums);
        ref->row_columns = columns;
    }
    return ref->weights = w;
}

static struct weight *matrix_create(struct reference *ref, const struct matrix_view *parts, int n_parts)
{
    int64_t rows = 0, columns = parts[0].columns;
    for (int p = 0; p < n_parts; p++)
        rows += parts[p].rows;
    struct weight *w = weight_new(ref, rows, columns, false);
    float *out = w->data;
    for (int p = 0; p < n_parts; p++) {
        INVARIANT(parts[p].columns == columns, "weight parts of K %lld and %lld", (long long)columns,
                  (long long)parts[p].columns);
        for (int64_t r = 0; r < parts[p].rows; r++, out += columns)
            matrix_view_read(&parts[p], r, 0, columns, out);
    }
    return w;
}

static void round_all(const struct reference *ref, struct weight *w)
{
    for (int64_t i = 0; i < w->rows * w->columns; i++)
        w->data[i] = round_stored(ref, w->data[i]);
}

static enum dtype matrix_dtype(const struct reference *ref, const struct matrix_view *parts, int n_parts)
{
    const bool may_differ = dtype_size_bytes(ref->dtype) <= 1 && ref->shape.as_stored;
    for (int p = 0; p < n_parts && may_differ; p++)
        if (parts[p].dtype == ref->dtype) return ref->dtype;
    return may_differ ? DTYPE_BF16 : ref->dtype;
}

static void quantise_weights(enum dtype dtype, float *x, int64_t n)
{
    if (dtype != DTYPE_INT4_G128) {
        quantise(dtype, x, n);
        return;
    }
    for (int64_t first = 0; first < n; first += INT4_GROUP) {
        struct int4_group group;
        const int count = (int)(n - first < INT4_GROUP ? n - first : INT4_GROUP);
        int4_quantise(x + first, count, &group);
        for (int i = 0; i < count; i++)
            x[first + i] = (float)(group.code[i] - group.zero) * group.scale;
    }
}

// Quantises the rows of all parts. Parts stored in the dtype of the weight are exact already.
static void quantise_parts(struct weight *w, const struct matrix_view *parts, int n_parts)
{
    float *row = w->data;
    for (int p = 0; p < n_parts; p++)
        for (int64_t r = 0; r < parts[p].rows; r++, row += w->columns)
            if (parts[p].dtype != w->dtype) quantise_weights(w->dtype, row, w->columns);
}

static enum status ref_weight_create(struct backend *b, const struct matrix_view *parts, int n_parts,
                                     struct weight **weight_p)
{
    struct reference *ref = reference_of(b);
    struct weight *w = matrix_create(ref, parts, n_parts);
    w->dtype = matrix_dtype(ref, parts, n_parts);
    if (dtype_size_bytes(w->dtype) <= 1)
        quantise_parts(w, parts, n_parts);
    else
        round_all(ref, w);
    *weight_p = w;
    return STATUS_OK;
}

static enum status ref_weight_gate_up(struct backend *b, const struct matrix_view *gate, const struct matrix_view *up,
                                      struct weight **weight_p)
{
    INVARIANT(gate->rows == up->rows, "gate has %lld rows, up %lld", (long long)gate->rows, (long long)up->rows);
    return ref_weight_create(b, (struct matrix_view[]){*gate, *up}, 2, weight_p);
}

static enum status ref_weight_embedding(struct backend *b, const struct matrix_view *table, int32_t first_row,
                                        struct weight *shared_head, struct weight **weight_p)
{
    struct reference *ref = reference_of(b);
    struct weight *w;
    if (shared_head && dtype_size_bytes(shared_head->dtype) > 1) {
        INVARIANT(shared_head->rows == table->rows && shared_head->columns == table->columns,
                  "tied head of %lld x %lld, table of %lld x %lld", (long long)shared_head->rows,
                  (long long)shared_head->columns, (long long)table->rows, (long long)table->columns);
        w = weight_new(ref, table->rows, table->columns, true);
        w->data = shared_head->data;
    } else {
        w = matrix_create(ref, table, 1);
        round_all(ref, w);
    }
    w->first_row = first_row;
    *weight_p = w;
    return STATUS_OK;
}

static enum status ref_weight_vector(struct backend *b, const struct matrix_view *parts, int n_parts,
                                     struct weight **weight_p)
{
    int64_t columns = 0;
    for (int p = 0; p < n_parts; p++) {
        INVARIANT(parts[p].rows == 1, "vector part of %lld rows", (long long)parts[p].rows);
        columns += parts[p].columns;
    }
    struct weight *w = weight_new(reference_of(b), 1, columns, false);
    float *out = w->data;
    for (int p = 0; p < n_parts; out += parts[p++].columns)
        matrix_view_read(&parts[p], 0, 0, parts[p].columns, out);
    *weight_p = w;
    return STATUS_OK;
}

// ---- steps ----------------------------------------------------------------------------------------------------------

static void row_angles(struct reference *ref, const struct ragged_batch *batch, int s, int t)
{
    const struct rope_shape *rope = &ref->shape.rope;
    const int half = ref->shape.head_size / 2, length = ragged_rope_length(batch, s, t);
    for (int i = 0; i < half; i++) {
        const float theta = rope_is_scaled(rope, length) ? rope_theta(rope, length) : 0;
        const double angle = (double)rope_angle(rope, i, batch->position[t], length, theta);
        ref->cos[t * half + i] = rope->scale[i] * (float)cos(angle);
        ref->sin[t * half + i] = rope->scale[i] * (float)sin(angle);
    }
}

static enum status ref_begin(struct backend *b, const struct ragged_batch *batch)
{
    struct reference *ref = reference_of(b);
    enum status status = ragged_batch_check(batch, &ref->shape);
    if (status) return status;
    for (int s = 0; s < batch->n_seqs; s++)
        for (int t = batch->row_start[s]; t < batch->row_start[s + 1]; t++)
            row_angles(ref, batch, s, t);
    ref->importance_size = ragged_importance_size(batch);
    memset(ref->importance, 0, (size_t)ref->importance_size * sizeof *ref->importance);
    ref->batch = *batch;
    return STATUS_OK;
}

static enum status ref_embed(struct backend *b, struct tensor *out, const struct weight *table)
{
    struct reference *ref = reference_of(b);
    const double scale = ref->shape.embedding_scale != 0 ? (double)ref->shape.embedding_scale : 1;
    for (int t = 0; t < ref->batch.n_rows; t++) {
        int64_t row = (int64_t)ref->batch.token[t] - table->first_row;
        for (int64_t c = 0; c < table->columns; c++)
            tensor_store(ref, out, t, c,
                         row >= 0 && row < table->rows ? scale * (double)table->data[row * table->columns + c] : 0);
    }
    return STATUS_OK;
}

// Computes y = x / rms(x) * gain (arXiv 1910.07467).
static void rms_normalise(const float *x, const float *gain, int n, float epsilon, double *y)
{
    double scale = 1 / sqrt(dot_double(x, x, n) / n + (double)epsilon);
    for (int i = 0; i < n; i++)
        y[i] = (double)x[i] * scale * (double)gain[i];
}

static enum status ref_rmsnorm(struct backend *b, struct tensor *out, const struct tensor *x, const struct weight *gain,
                               float epsilon, const int32_t *row_index, int rows)
{
    INVARIANT(rows <= out->max_rows && out->columns == x->columns && gain->columns == x->columns,
              "rmsnorm: %d rows of %d columns, gain of %lld, into a tensor of %d x %d", rows, x->columns,
              (long long)gain->columns, out->max_rows, out->columns);
    int n = x->columns;
    double *y = reference_of(b)->sums;
    for (int r = 0; r < rows; r++) {
        rms_normalise(x->data + (int64_t)(row_index ? row_index[r] : r) * n, gain->data, n, epsilon, y);
        for (int i = 0; i < n; i++)
            tensor_store(reference_of(b), out, r, i, y[i]);
    }
    return STATUS_OK;
}

static enum status ref_linear(struct backend *b, struct tensor *out, const struct tensor *x, const struct weight *w,
                              const struct weight *bias, enum linear_mode mode, int rows)
{
    struct reference *ref = reference_of(b);
    int64_t k = w->columns, n = mode == LINEAR_SWIGLU ? w->rows / 2 : w->rows;
    INVARIANT(x->columns == k && out->columns == n && rows <= out->max_rows && rows <= x->max_rows,
              "linear: N %lld, K %lld, %d rows, x is %d x %d, out %d x %d", (long long)n, (long long)k, rows,
              x->max_rows, x->columns, out->max_rows, out->columns);
    INVARIANT((!bias || (bias->columns == w->rows && mode != LINEAR_SWIGLU)) &&
                  (mode != LINEAR_ADD || out->kind == TENSOR_F32),
              "linear: mode %d, bias of %lld for N %lld, out of kind %d", (int)mode,
              (long long)(bias ? bias->columns : 0), (long long)w->rows, (int)out->kind);
    float *row = ref->row;
    for (int64_t r = 0; r < rows; r++) {
        memcpy(row, x->data + r * k, (size_t)k * sizeof *row);
        if (dtype_is_8bit(w->dtype)) quantise(w->dtype, row, k);
        for (int64_t i = 0; i < n; i++) {
            double y = dot_double(row, w->data + i * k, k);
            if (bias) y += (double)bias->data[i];
            if (mode == LINEAR_SWIGLU) y = y / (1 + exp(-y)) * dot_double(row, w->data + (n + i) * k, k);
            if (mode == LINEAR_ADD) y += (double)out->data[r * n + i];
            tensor_store(ref, out, r, i, y);
        }
    }
    return STATUS_OK;
}

// Rotates each pair of dims i and i + D/2 by the row's position (arXiv 2104.09864).
static void rope_rotate(const struct reference *ref, int layer, int row, float *head)
{
    const int half = ref->shape.head_size / 2;
    const bool rotates = rope_layer_rotates(&ref->shape.rope, layer);
    for (int i = 0; i < half; i++) {
        const double c = rotates ? (double)ref->cos[row * half + i] : 1;
        const double s = rotates ? (double)ref->sin[row * half + i] : 0;
        double x = head[i], y = head[i + half];
        head[i] = (float)(x * c - y * s);
        head[i + half] = (float)(y * c + x * s);
    }
}

static void head_rms_normalise(const struct reference *ref, float *head, const struct weight *gain, float epsilon)
{
    if (!gain) return;
    int d = ref->shape.head_size;
    double scale = 1 / sqrt(dot_double(head, head, d) / d + (double)epsilon);
    for (int i = 0; i < d; i++)
        head[i] = (float)((double)head[i] * scale * (double)gain->data[i]);
}

// Rotates blocks of a head by the Hadamard matrix (backend.h), in f32. The order of its sums is part of the definition,
// so that all backends quantise the same numbers.
static void hadamard_rotate(const struct reference *ref, float *head)
{
    int d = ref->shape.head_size, block = d & -d;
    for (int half = block / 2; half; half /= 2)
        for (int i = 0; i < d; i++)
            if (!(i & half)) {
                float x = head[i], y = head[i + half];
                head[i] = x + y;
                head[i + half] = x - y;
            }
    for (int i = 0; i < d; i++)
        head[i] *= 1 / sqrtf((float)block);
}

// Returns the index of an entry's head in k_scale and v_scale. Times D it is the index in k_cache and v_cache.
static size_t kv_index(const struct reference *ref, int layer, int s, int entry, int h)
{
    const struct backend_shape *shape = &ref->shape;
    size_t block = (size_t)ref->batch.block_table[s * ref->batch.max_blocks + entry / KV_BLOCK_TOKENS];
    size_t slot = ((size_t)layer * (size_t)shape->n_kv_blocks + block) * KV_BLOCK_TOKENS;
    slot += (size_t)(entry % KV_BLOCK_TOKENS);
    return slot * (size_t)shape->n_kv_heads + (size_t)h;
}

// Stores one head of an entry: as bytes and a scale, or in the dtype of activations.
static void kv_store(const struct reference *ref, float *cache, float *scale, size_t at, const float *head)
{
    int d = ref->shape.head_size;
    float *x = cache + at * (size_t)d;
    memcpy(x, head, (size_t)d * sizeof *x);
    bool bytes = backend_kv_bytes(&ref->shape);
    for (int i = 0; !bytes && i < d; i++)
        x[i] = round_stored(ref, x[i]);
    scale[at] = bytes ? quantise_bytes(ref->shape.kv_dtype, x, d) : 1;
}

static enum status ref_rope_append(struct backend *b, int layer, struct tensor *qkv, const struct weight *q_gain,
                                   const struct weight *k_gain, float epsilon)
{
    struct reference *ref = reference_of(b);
    const struct ragged_batch *batch = &ref->batch;
    int d = ref->shape.head_size, n_heads = ref->shape.n_heads, n_kv_heads = ref->shape.n_kv_heads;
    INVARIANT(qkv->columns == (n_heads + 2 * n_kv_heads) * d,
              "rope_append: qkv has %d columns, %d + 2 * %d heads of %d", qkv->columns, n_heads, n_kv_heads, d);
    for (int s = 0; s < batch->n_seqs; s++)
        for (int t = batch->row_start[s]; t < batch->row_start[s + 1]; t++) {
            float *head = qkv->data + (int64_t)t * qkv->columns;
            int entry = batch->kv_len[s] + t - batch->row_start[s];
            for (int h = 0; h < n_heads; h++, head += d) {
                head_rms_normalise(ref, head, q_gain, epsilon);
                rope_rotate(ref, layer, t, head);
                if (ref->shape.kv_dtype == DTYPE_INT8) hadamard_rotate(ref, head);
            }
            for (int h = 0; h < n_kv_heads; h++, head += d) {
                head_rms_normalise(ref, head, k_gain, epsilon);
                rope_rotate(ref, layer, t, head);
                if (ref->shape.kv_dtype == DTYPE_INT8) hadamard_rotate(ref, head);
                kv_store(ref, ref->k_cache, ref->k_scale, kv_index(ref, layer, s, entry, h), head);
            }
            for (int h = 0; h < n_kv_heads; h++, head += d)
                kv_store(ref, ref->v_cache, ref->v_scale, kv_index(ref, layer, s, entry, h), head);
        }
    return STATUS_OK;
}

// Computes score[e] = 2^(log2(e) q . k_e / sqrt(D) - M) for the first n entries of sequence s. Returns the sum, so that
// softmax is score / sum. M is the maximum rounded to an integer. With an integer, rounding a weight does not depend on
// the order in which a kernel meets larger scores (backend.h).
static double attention_scores(struct reference *ref, int layer, int s, const float *q, int kv_head, int n)
{
    int d = ref->shape.head_size;
    double max = -INFINITY, sum = 0;
    for (int e = 0; e < n; e++) {
        size_t at = kv_index(ref, layer, s, e, kv_head);
        const float *k = ref->k_cache + at * (size_t)d;
        double product = 0;
        for (int i = 0; i < d; i++)
            product += (double)round_stored(ref, q[i]) * (double)k[i];
        ref->score[e] = product * (double)ref->k_scale[at] / sqrt(d) * M_LOG2E;
        if (!(ref->score[e] <= max)) max = ref->score[e]; // NaN becomes the maximum and so reaches the result
    }
    for (int e = 0; e < n; e++)
        sum += ref->score[e] = exp2(ref->score[e] - rint(max));
    return sum;
}

// Computes maximum [n] = max(maximum, centred average of score / total). Scores outside the prompt count as zeros; the
// divisor is always the window.
static void importance_raise(struct reference *ref, int n, double total, float *maximum)
{
    int reach = ref->batch.smoothing_window / 2;
    for (int j = 0; j < n; j++) {
        double sum = 0;
        for (int i = j - reach; i <= j + reach; i++)
            if (i >= 0 && i < n) sum += ref->score[i];
        ref->smooth[j] = sum / total / ref->batch.smoothing_window;
        if (!isfinite(ref->smooth[j])) ref->smooth[j] = INFINITY; // the comparison below would drop NaN
    }
    for (int j = 0; j < n; j++)
        if ((float)ref->smooth[j] > maximum[j]) maximum[j] = (float)ref->smooth[j];
}

static enum status ref_attention(struct backend *b, int layer, struct tensor *out, const struct tensor *qkv)
{
    struct reference *ref = reference_of(b);
    const struct ragged_batch *batch = &ref->batch;
    int d = ref->shape.head_size, n_heads = ref->shape.n_heads, group = n_heads / ref->shape.n_kv_heads;
    INVARIANT(out->columns == n_heads * d, "attention: out has %d columns, %d heads of %d", out->columns, n_heads, d);
    float *maximum = ref->importance;
    for (int s = 0, p = 0; s < batch->n_seqs; s++)
        for (int t = batch->row_start[s]; t < batch->row_start[s + 1]; t++) {
            const float *q = qkv->data + (int64_t)t * qkv->columns;
            int n = batch->kv_len[s] + t - batch->row_start[s] + 1; // entries that the row sees, its own included
            for (int h = 0; h < n_heads; h++) {
                double total = attention_scores(ref, layer, s, q + h * d, h / group, n);
                for (int i = 0; i < d; i++) {
                    double sum = 0;
                    for (int e = 0; e < n; e++) {
                        size_t at = kv_index(ref, layer, s, e, h / group);
                        double weight = (double)round_stored(ref, (float)(ref->score[e] * (double)ref->v_scale[at]));
                        sum += weight * (double)ref->v_cache[at * (size_t)d + (size_t)i];
                    }
                    tensor_store(ref, out, t, h * d + i, sum / total);
                }
            }
            for (; p < batch->n_importance_rows && batch->importance_row[p] == t;
                 maximum += batch->importance_keys[p++])
                for (int h = 0; h < n_heads; h++) {
                    double total = attention_scores(ref, layer, s, q + h * d, h / group, batch->importance_keys[p]);
                    importance_raise(ref, batch->importance_keys[p], total, maximum);
                }
        }
    return STATUS_OK;
}

static float *ref_importance_data(struct backend *b)
{
    return reference_of(b)->importance_size ? reference_of(b)->importance : NULL;
}

static enum status ref_importance_read(struct backend *b, float *host)
{
    memcpy(host, reference_of(b)->importance, (size_t)reference_of(b)->importance_size * sizeof *host);
    return STATUS_OK;
}

// ---- steps of some families -----------------------------------------------------------------------------------------

static double activation_value(const struct activation *a, double x, double up)
{
    switch (a->kind) {
    case ACTIVATION_SWIGLU: return x / (1 + exp(-x)) * up;
    case ACTIVATION_RELU2: return x < 0 ? 0 : x * x;
    case ACTIVATION_XIELU: break;
    }
    const double below = x > (double)a->epsilon ? (double)a->epsilon : x;
    const double curved = x > 0 ? (double)a->a * x * x : (expm1(below) - x) * (double)a->b;
    return curved + (double)a->beta * x;
}

static enum status ref_activate(struct backend *b, struct tensor *out, const struct tensor *x,
                                const struct activation *activation, int rows)
{
    const int n = out->columns;
    INVARIANT(x->columns == (activation->kind == ACTIVATION_SWIGLU ? 2 : 1) * n, "activation of %d columns into %d",
              x->columns, n);
    for (int64_t r = 0; r < rows; r++)
        for (int i = 0; i < n; i++) {
            const float *at = x->data + r * x->columns + i;
            const double up = activation->kind == ACTIVATION_SWIGLU ? (double)at[n] : 0;
            tensor_store(reference_of(b), out, r, i, activation_value(activation, (double)*at, up));
        }
    return STATUS_OK;
}

static enum status ref_add_norm(struct backend *b, struct tensor *out, struct tensor *x, const struct tensor *addend,
                                const struct weight *gain, float epsilon, int rows)
{
    const int n = x->columns;
    double *y = reference_of(b)->sums;
    for (int64_t r = 0; r < rows; r++) {
        if (addend) rms_normalise(addend->data + r * n, gain->data, n, epsilon, y);
        for (int i = 0; i < n; i++) {
            const double sum = (double)x->data[r * n + i] + (addend ? y[i] : 0);
            tensor_store(reference_of(b), x, r, i, sum);
            tensor_store(reference_of(b), out, r, i, sum);
        }
    }
    return STATUS_OK;
}

static enum status ref_sum_squares(struct backend *b, struct tensor *squares, const struct tensor *qkv, int rows)
{
    const struct backend_shape *shape = &reference_of(b)->shape;
    const int q = shape->n_heads * shape->head_size, k = shape->n_kv_heads * shape->head_size;
    for (int64_t r = 0; r < rows; r++) {
        const float *row = qkv->data + r * qkv->columns;
        squares->data[2 * r] = (float)dot_double(row, row, q);
        squares->data[2 * r + 1] = (float)dot_double(row + q, row + q, k);
    }
    return STATUS_OK;
}

static enum status ref_norm_whole(struct backend *b, struct tensor *qkv, const struct whole_norm *norm, int rows)
{
    const int64_t q = norm->q_gain->columns, k = norm->k_gain->columns;
    (void)b;
    for (int64_t r = 0; r < rows; r++) {
        float *row = qkv->data + r * qkv->columns;
        const float *squares = norm->squares->data + 2 * r;
        for (int64_t i = 0; i < q + k; i++) {
            const bool is_k = i >= q;
            const double mean = (double)squares[is_k] / (is_k ? norm->k_dims : norm->q_dims);
            const double gain = (double)(is_k ? norm->k_gain->data[i - q] : norm->q_gain->data[i]);
            row[i] = (float)((double)row[i] / sqrt(mean + (double)norm->epsilon) * gain);
        }
    }
    return STATUS_OK;
}

static enum status ref_scale_queries(struct backend *b, struct tensor *qkv, float beta, int context, int rows)
{
    const struct reference *ref = reference_of(b);
    for (int64_t r = 0; r < rows; r++)
        for (int i = 0; i < ref->shape.n_heads * ref->shape.head_size; i++)
            qkv->data[r * qkv->columns + i] *= rope_query_scale(ref->batch.position[r], beta, context);
    return STATUS_OK;
}

// ---- sampling -------------------------------------------------------------------------------------------------------

static int candidate_by_logit(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->id - y->id;
}

static int candidate_by_id(const void *a, const void *b)
{
    return ((const struct candidate *)a)->id - ((const struct candidate *)b)->id;
}

// Returns how many of the n candidates (best first) remain after min_p, top_k and then top_p of their weight.
static int candidates_filter(const struct candidate *c, int n, const struct row_sampling *params)
{
    int kept = 0;
    double total = 0, mass = 0;
    while (kept < n && c[kept].weight > 0 && c[kept].weight >= (double)params->min_p &&
           (!params->top_k || kept < params->top_k))
        total += c[kept++].weight;
    if (params->top_p >= 1) return kept;
    int reached = 0;
    while (reached < kept && mass < params->top_p * total)
        mass += c[reached++].weight;
    return reached;
}

static int32_t candidate_sample(struct candidate *c, int n, const struct row_sampling *params)
{
    for (int i = 0; i < n; i++)
        c[i].weight = exp((c[i].logit - c[0].logit) * (double)params->inverse_temperature);
    n = candidates_filter(c, n, params);
    qsort(c, (size_t)n, sizeof *c, candidate_by_id);
    double total = 0, reached = 0;
    for (int i = 0; i < n; i++)
        total += c[i].weight;
    for (int i = 0; i < n; i++)
        if ((reached += c[i].weight) > params->uniform * total) return c[i].id;
    return c[n - 1].id;
}

static enum status ref_sample(struct backend *b, struct tensor *picks, const struct tensor *logits, int parts, int rows,
                              int32_t first_id, int32_t n_ids, bool use_sampling)
{
    struct reference *ref = reference_of(b);
    INVARIANT(picks->columns == 2 && rows <= picks->max_rows && parts * rows <= logits->max_rows &&
                  n_ids <= parts * logits->columns,
              "sample: %d ids of %d rows in %d parts from %d x %d into %d x %d", n_ids, rows, parts, logits->max_rows,
              logits->columns, picks->max_rows, picks->columns);
    INVARIANT(!use_sampling || ref->batch.sampling, "sample: the batch of %d rows has no sampling params",
              ref->batch.n_rows);
    int suspended = no_alloc_suspend(); // qsort allocates
    if (n_ids > ref->n_candidates)
        ref->candidates = mem_resize(ref->candidates, (size_t)(ref->n_candidates = n_ids), sizeof *ref->candidates);
    for (int row = 0; row < rows; row++) {
        for (int32_t i = 0; i < n_ids; i++) {
            int64_t at = (int64_t)(i / logits->columns * rows + row) * logits->columns + i % logits->columns;
            float x = logits->data[at];
            ref->candidates[i] = (struct candidate){isnan(x) ? -INFINITY : fmin((double)x, FLT_MAX), 0, first_id + i};
        }
        qsort(ref->candidates, (size_t)n_ids, sizeof *ref->candidates, candidate_by_logit);
        struct candidate best = ref->candidates[0];
        struct sampled_id pick = {(float)best.logit, best.logit > -INFINITY ? best.id : -1};
        const struct row_sampling *how = use_sampling ? &ref->batch.sampling[row] : NULL;
        if (how && how->inverse_temperature > 0 && pick.id >= 0)
            pick.id = candidate_sample(ref->candidates, n_ids, how);
        memcpy(picks->data + 2 * row, &pick, sizeof pick);
    }
    no_alloc_resume(suspended);
    return STATUS_OK;
}

static const struct backend_ops reference_ops = {
    .name = "reference",
    .capabilities = {.host_memory = true, .exact_rows = true},
    .close = ref_close,
    .tensor_create = ref_tensor_create,
    .tensor_data = ref_tensor_data,
    .read = ref_tensor_read,
    .weight_create = ref_weight_create,
    .weight_gate_up = ref_weight_gate_up,
    .weight_embedding = ref_weight_embedding,
    .weight_vector = ref_weight_vector,
    .run_pass = backend_run_pass,
    .begin = ref_begin,
    .embed = ref_embed,
    .rmsnorm = ref_rmsnorm,
    .linear = ref_linear,
    .rope_append = ref_rope_append,
    .activate = ref_activate,
    .add_norm = ref_add_norm,
    .sum_squares = ref_sum_squares,
    .norm_whole = ref_norm_whole,
    .scale_queries = ref_scale_queries,
    .attention = ref_attention,
    .importance_data = ref_importance_data,
    .importance_read = ref_importance_read,
    .sample = ref_sample,
};

enum status backend_open_reference(const struct backend_shape *shape, enum dtype dtype, struct backend **backend_p)
{
    enum status status = backend_shape_check(shape, dtype);
    if (status) return status;
    struct reference *ref = mem_alloc(sizeof *ref);
    // bf12 stores the same values.
    *ref = (struct reference){
        .base = {&reference_ops}, .shape = *shape, .dtype = dtype == DTYPE_BF12 ? DTYPE_BF16 : dtype};
    size_t half = (size_t)shape->head_size / 2, context = (size_t)shape->max_context;
    rope_shape_copy(&shape->rope, shape->head_size, shape->n_layers, &ref->shape.rope);
    ref->cos = mem_alloc_array((size_t)shape->max_rows * half, sizeof *ref->cos);
    ref->sin = mem_alloc_array((size_t)shape->max_rows * half, sizeof *ref->sin);
    size_t entries = (size_t)shape->n_layers * (size_t)shape->n_kv_blocks * KV_BLOCK_TOKENS;
    entries *= (size_t)shape->n_kv_heads;
    ref->k_cache = mem_alloc_array(entries, (size_t)shape->head_size * sizeof *ref->k_cache);
    ref->v_cache = mem_alloc_array(entries, (size_t)shape->head_size * sizeof *ref->v_cache);
    ref->k_scale = mem_alloc_array(entries, sizeof *ref->k_scale);
    ref->v_scale = mem_alloc_array(entries, sizeof *ref->v_scale);
    ref->importance = mem_alloc_array((size_t)shape->max_seqs * context, sizeof *ref->importance);
    ref->score = mem_alloc_array(context, sizeof *ref->score);
    ref->smooth = mem_alloc_array(context, sizeof *ref->smooth);
    *backend_p = &ref->base;
    return STATUS_OK;
}
