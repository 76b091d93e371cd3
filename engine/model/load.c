// SPDX-License-Identifier: Apache-2.0
// Loads the tensors of a checkpoint. Defines which tensors the checkpoint must have, their shapes, and this rank's
// slice of each tensor (arXiv 1909.08053), for the layers of this rank's pipeline stage. q, k, v, gate, up, embedding
// and head are sliced by rows (outputs), o and down by columns (inputs), and norms are whole.
#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/dummy.h"
#include "engine/model/file_fault.h"
#include "engine/model/int4_tensors.h"
#include "engine/model/llama.h"
#include "engine/model/safetensors.h"
#include "engine/model/weight_reader.h"
#include "kernels/convert.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"

// When progress was last logged, and its percentage.
struct load_log {
    int64_t begun_us, logged_us;
    int percent;
};

struct loader {
    struct model *m;
    const struct safetensors *st; // the checkpoint, or NULL with dummy weights
    const struct dummy *dummy;    // the dummy weights, or NULL with a checkpoint
    bool *used;                   // [tensors] true if the config needs the tensor
    struct weight_list *list;     // not NULL: the weights are listed instead of created
    struct weight_reader *reader; // reads ahead; NULL: pages are read when they are packed
    struct load_log log;
    char prefix[64]; // "model.layers.3."
    // Numbers of further dummy matrices of each kind that are in 16 bits, see struct model_config. Negative: none.
    int kept_attention, kept_mlp;
};

// ---- views ----

// Reads the dtype of a tensor. Only matrices may be in 8 bits.
static enum status dtype_parse(const struct safetensors_tensor *t, bool matrix, enum dtype *dtype_p)
{
    static const struct {
        const char *name;
        enum dtype dtype;
    } types[] = {
        {"F32", DTYPE_F32}, {"F16", DTYPE_F16}, {"BF16", DTYPE_BF16}, {"F8_E4M3", DTYPE_FP8}, {"I8", DTYPE_INT8}};
    for (int i = 0; i < (matrix ? 5 : 3); i++)
        if (strcmp(t->dtype, types[i].name) == 0) {
            *dtype_p = types[i].dtype;
            return STATUS_OK;
        }
    return status_fail(STATUS_UNSUPPORTED, "%s: tensor %s is %.20s: must be F32, F16%s", t->file, t->name, t->dtype,
                       matrix ? ", BF16, F8_E4M3 or I8" : " or BF16");
}

static void mark_used(struct loader *in, const struct safetensors_tensor *t)
{
    in->used[t - safetensors_at(in->st, 0)] = true;
}

// Finds the scales of an FP8 or INT8 matrix: NAME_scale, or NAME_scale_inv in most checkpoints of quant_method fp8.
static const struct safetensors_tensor *scale_tensor(const struct loader *in, const char *matrix)
{
    char name[144];
    snprintf(name, sizeof name, "%.127s_scale", matrix);
    const struct safetensors_tensor *scale = safetensors_find(in->st, name);
    if (scale) return scale;
    snprintf(name, sizeof name, "%.127s_scale_inv", matrix);
    return safetensors_find(in->st, name);
}

static int64_t blocks_of(const struct loader *in, int64_t n)
{
    const int block = in->m->config.fp8_block;
    return (n + block - 1) / block;
}

// Checks the shape of scales: [] or [1] for the whole matrix, [rows] or [rows, 1] for each output, or one scale for
// each block of rows and columns.
static enum status set_scales(const struct loader *in, const struct safetensors_tensor *scale, struct matrix_view *view)
{
    char shape[SAFETENSORS_SHAPE_TEXT];
    const int64_t n = scale->n_dims ? scale->shape[0] : 1, columns = scale->n_dims == 2 ? scale->shape[1] : 1;
    view->scale = scale->data;
    view->scale_block = in->m->config.fp8_block;
    if (view->scale_block) {
        const int64_t down = blocks_of(in, view->rows), across = blocks_of(in, view->columns);
        view->scale_stride = (int)across;
        if (scale->n_dims == 2 && n == down && columns == across) return STATUS_OK;
        return status_fail(STATUS_DATA, "%s: tensor %s has shape %s: must be [%lld, %lld], one scale for each block",
                           scale->file, scale->name, safetensors_shape_text(scale, shape), (long long)down,
                           (long long)across);
    }
    view->scale_stride = n > 1;
    if (scale->n_dims <= 2 && columns == 1 && (n == 1 || n == view->rows)) return STATUS_OK;
    return status_fail(STATUS_DATA,
                       "%s: tensor %s has shape %s: must be [1], one scale for the matrix, or [%lld, 1], one for "
                       "each output",
                       scale->file, scale->name, safetensors_shape_text(scale, shape), (long long)view->rows);
}

static enum status check_scales(const struct safetensors_tensor *scale, enum dtype dtype)
{
    const struct matrix_view all = {.data = scale->data, .dtype = dtype};
    const int64_t n = (int64_t)(scale->size_bytes / dtype_size_bytes(dtype));
    safetensors_prefetch(scale->data, 1, scale->size_bytes, 0);
    for (int64_t i = 0; i < n; i++) {
        float value;
        matrix_view_read(&all, 0, i, 1, &value);
        if (!(value > 0 && value <= FLT_MAX))
            return status_fail(STATUS_DATA, "%s: tensor %s: scale %lld is %g: must be a positive number", scale->file,
                               scale->name, (long long)i, (double)value);
    }
    return STATUS_OK;
}

static enum status find_scales(struct loader *in, const struct safetensors_tensor *t, struct matrix_view *view)
{
    const enum stored_weights stored = view->dtype == DTYPE_FP8 ? STORED_FP8 : STORED_INT8;
    if (in->m->config.stored != stored)
        return status_fail(STATUS_DATA, "%s: tensor %s is %s, but config.json has no quantization_config%s", t->file,
                           t->name, t->dtype, in->m->config.stored == STORED_PLAIN ? "" : " for it");
    const struct safetensors_tensor *scale = scale_tensor(in, t->name);
    if (!scale)
        return status_fail(STATUS_DATA, "%s: tensor %s is %s, but there is no tensor %s_scale%s", t->file, t->name,
                           t->dtype, t->name, in->m->config.fp8_block ? "_inv" : "");
    TRY(dtype_parse(scale, false, &view->scale_dtype));
    TRY(set_scales(in, scale, view));
    if (!in->list && !in->m->backend->ops->capabilities.reads_no_weights) TRY(check_scales(scale, view->scale_dtype));
    mark_used(in, scale);
    return STATUS_OK;
}

// Finds the tensors of a matrix in 4 bits.
static enum status find_int4(struct loader *in, const struct int4_tensors *t, int64_t rows, int64_t columns,
                             struct matrix_view *view)
{
    // Zeros that the config does not announce stay unused, and are refused as such.
    const struct safetensors_tensor *zeros = in->m->config.has_zeros ? t->zeros : NULL;
    const struct safetensors_tensor *const all[] = {t->codes, t->scales, zeros, t->groups, t->shape};
    const bool values = !in->list && !in->m->backend->ops->capabilities.reads_no_weights;
    TRY(int4_tensors_view(t, &in->m->config, rows, columns, values, view));
    for (int i = 0; i < 5; i++)
        if (all[i]) mark_used(in, all[i]);
    return STATUS_OK;
}

// Returns true if a dummy tensor is quantised. The config counts the matrices of each kind that are in 16 bits.
static bool dummy_is_quantised(struct loader *in, const char *name)
{
    if (in->m->config.stored == STORED_PLAIN || !strstr(name, "_proj.weight")) return false;
    int *kept = strstr(name, "self_attn") ? &in->kept_attention : &in->kept_mlp;
    return (*kept)-- <= 0;
}

// Finds the whole tensor `prefix + name` of shape [rows, columns], or [columns] if rows is 0.
static enum status find_tensor(struct loader *in, const char *name, int64_t rows, int64_t columns,
                               struct matrix_view *view)
{
    char full[128], actual[SAFETENSORS_SHAPE_TEXT], expected[SAFETENSORS_SHAPE_TEXT];
    snprintf(full, sizeof full, "%s%s", in->prefix, name);
    if (in->dummy) {
        *view = dummy_view(in->dummy, full, rows, columns, dummy_is_quantised(in, full));
        return STATUS_OK;
    }
    struct int4_tensors packed;
    if (rows && int4_tensors_find(in->st, &in->m->config, full, &packed))
        return find_int4(in, &packed, rows, columns, view);
    const struct safetensors_tensor *t = safetensors_find(in->st, full);
    if (!t) return status_fail(STATUS_DATA, "tensor %s is missing: config.json calls for it", full);
    struct safetensors_tensor wanted = {.n_dims = rows ? 2 : 1, .shape = {rows ? rows : columns, columns}};
    if (t->n_dims != wanted.n_dims || t->shape[0] != wanted.shape[0] || (rows && t->shape[1] != columns))
        return status_fail(STATUS_DATA, "%s: tensor %s has shape %s, but config.json calls for %s", t->file, full,
                           safetensors_shape_text(t, actual), safetensors_shape_text(&wanted, expected));
    enum dtype dtype = DTYPE_F32;
    TRY(dtype_parse(t, rows > 0, &dtype));
    mark_used(in, t);
    *view = (struct matrix_view){.data = t->data,
                                 .dtype = dtype,
                                 .rows = rows ? rows : 1,
                                 .columns = columns,
                                 .row_stride_bytes = columns * (int64_t)dtype_size_bytes(dtype)};
    return dtype == DTYPE_FP8 || dtype == DTYPE_INT8 ? find_scales(in, t, view) : STATUS_OK;
}

static void count_bytes(struct loader *in, const struct matrix_view *view)
{
    if (view->dtype == DTYPE_INT4_G128) {
        in->m->weight_bytes += int4_view_bytes(view);
        return;
    }
    size_t scales = !view->scale ? 0 : view->scale_stride ? (size_t)view->rows : 1;
    if (view->scale_block)
        scales =
            (size_t)(blocks_of(in, view->scale_row + view->rows) * blocks_of(in, view->scale_column + view->columns));
    size_t row_bytes = (size_t)view->columns * dtype_size_bytes(view->dtype);
    in->m->weight_bytes += (size_t)view->rows * row_bytes + scales * dtype_size_bytes(view->scale_dtype);
}

// Returns rows [first, first + n) of a view.
static struct matrix_view view_rows(struct matrix_view view, int64_t first, int64_t n)
{
    if (view.dtype == DTYPE_INT4_G128) {
        view.scale_row += (int)first;
        view.rows = n;
        return view;
    }
    const int block = view.scale_block;
    const int64_t scale_row = view.scale_row + first;
    if (view.data) view.data = (const char *)view.data + first * view.row_stride_bytes;
    if (view.scale)
        view.scale = (const char *)view.scale + (block ? scale_row / block : first) * view.scale_stride *
                                                    (int64_t)dtype_size_bytes(view.scale_dtype);
    if (block) view.scale_row = (int)(scale_row % block);
    view.rows = n;
    return view;
}

// Finds rows [first, first + n) of the tensor [rows, columns].
static enum status slice_rows(struct loader *in, const char *name, int64_t rows, int64_t columns, int64_t first,
                              int64_t n, struct matrix_view *view)
{
    TRY(find_tensor(in, name, rows, columns, view));
    *view = view_rows(*view, first, n);
    count_bytes(in, view);
    return STATUS_OK;
}

static enum status slice_int4_columns(struct loader *in, const char *name, int64_t first, int64_t n,
                                      struct matrix_view *view)
{
    if (first % QUANTISE_GROUP != 0 || n % QUANTISE_GROUP != 0)
        return status_fail(STATUS_UNSUPPORTED,
                           "tensor %s%s: %lld columns in groups of 128 cannot be split over %d ranks: use fewer ranks",
                           in->prefix, name, (long long)view->columns, in->m->comm->size);
    view->scale_column += (int)first;
    view->columns = n;
    count_bytes(in, view);
    return STATUS_OK;
}

// Finds columns [first, first + n) of the tensor [rows, columns], or elements of a vector if rows is 0.
static enum status slice_columns(struct loader *in, const char *name, int64_t rows, int64_t columns, int64_t first,
                                 int64_t n, struct matrix_view *view)
{
    TRY(find_tensor(in, name, rows, columns, view));
    if (view->dtype == DTYPE_INT4_G128) return slice_int4_columns(in, name, first, n, view);
    if (view->data) view->data = (const char *)view->data + first * (int64_t)dtype_size_bytes(view->dtype);
    const int block = view->scale_block;
    if (block && view->scale)
        view->scale = (const char *)view->scale + first / block * (int64_t)dtype_size_bytes(view->scale_dtype);
    if (block) view->scale_column = (int)(first % block);
    view->columns = n;
    count_bytes(in, view);
    return STATUS_OK;
}

// Drops the pages of the views' rows, and the pages between these rows, from resident memory. Called when the backend
// has copied the views.
static void release_views(const struct loader *in, const struct matrix_view *views, int n)
{
    for (int i = 0; i < n && in->st && !in->list && !in->m->backend->ops->capabilities.reads_no_weights; i++) {
        const struct matrix_view *v = &views[i];
        if (v->dtype == DTYPE_INT4_G128) {
            const struct int4_extent e = int4_view_extent(v);
            safetensors_release(e.start, (uint64_t)((e.n - 1) * e.stride) + e.bytes);
            continue;
        }
        safetensors_release(v->data, (uint64_t)((v->rows - 1) * v->row_stride_bytes) +
                                         (uint64_t)v->columns * dtype_size_bytes(v->dtype));
    }
}

// ---- creating weights, or listing them ----

// Logs progress at steps of ten percent, at most once per second, and at least every ten seconds.
static void log_progress(struct loader *in)
{
    enum { STEP_US = 1000000, MOST_US = 10000000, STEP_PERCENT = 10 };
    const struct model *m = in->m;
    const int64_t now_us = clock_now_us(), passed_us = now_us - in->log.logged_us;
    const int percent = load_progress_percent(m->progress);
    if (passed_us < STEP_US || (passed_us < MOST_US && percent < in->log.percent + STEP_PERCENT)) return;
    in->log.logged_us = now_us;
    in->log.percent = percent;
    log_event(LOG_INFO, "model_loading", LOG_FIELD("percent", percent), LOG_FIELD("rank", m->comm->rank),
              LOG_FIELD("ranks", m->comm->size), LOG_FIELD("bytes", m->weight_bytes),
              LOG_MS("ms", now_us - in->log.begun_us));
}

// Adds the weight to the list and returns true if weights are only listed. Else tells the reader that the loader begins
// the weight.
static bool weight_is_listed(struct loader *in, const struct matrix_view *parts, int n, bool pairs)
{
    if (in->list)
        weight_list_add(in->list, parts, n, pairs);
    else
        weight_reader_next(in->reader);
    return in->list;
}

// Reports the weights created so far. Returns `status`.
static enum status weight_created(struct loader *in, enum status status)
{
    if (!in->m->progress) return status;
    atomic_store_explicit(&in->m->progress->done_bytes, in->m->weight_bytes, memory_order_relaxed);
    log_progress(in);
    return status;
}

static enum status put_matrix(struct loader *in, const struct matrix_view *parts, int n, struct weight **weight_p)
{
    struct backend *b = in->m->backend;
    if (weight_is_listed(in, parts, n, false)) return STATUS_OK;
    return weight_created(in, b->ops->weight_create(b, parts, n, weight_p));
}

static enum status put_vector(struct loader *in, const struct matrix_view *parts, int n, struct weight **weight_p)
{
    struct backend *b = in->m->backend;
    if (weight_is_listed(in, parts, n, false)) return STATUS_OK;
    return weight_created(in, b->ops->weight_vector(b, parts, n, weight_p));
}

static enum status put_gate_up(struct loader *in, const struct matrix_view gate_up[2], struct weight **weight_p)
{
    struct backend *b = in->m->backend;
    if (weight_is_listed(in, gate_up, 2, true)) return STATUS_OK;
    return weight_created(in, b->ops->weight_gate_up(b, &gate_up[0], &gate_up[1], weight_p));
}

static enum status put_embedding(struct loader *in, const struct matrix_view *table, struct weight *shared_head)
{
    struct model *m = in->m;
    if (weight_is_listed(in, table, 1, false)) return STATUS_OK;
    return weight_created(
        in, m->backend->ops->weight_embedding(m->backend, table, m->first_id, shared_head, &m->embedding));
}

static enum status load_matrix(struct loader *in, const struct matrix_view *parts, int n, struct weight **weight_p)
{
    enum status status = put_matrix(in, parts, n, weight_p);
    release_views(in, parts, n);
    return status;
}

static enum status load_vector(struct loader *in, const char *name, int columns, struct weight **weight_p)
{
    struct matrix_view view;
    TRY(slice_columns(in, name, 0, columns, 0, columns, &view));
    return put_vector(in, &view, 1, weight_p);
}

// ---- parts of the model ----

// A matrix of the checkpoint: rows [first, first + rows) of the tensor `name`, which has `all_rows` rows.
struct projection {
    const char *name;
    int64_t all_rows, first;
};

// Adds the heads of q or k, as rows of a matrix or as columns of a vector, in the order of dims that the backend needs.
static int heads_append(const struct model_config *c, const struct matrix_view *view, struct matrix_view *parts, int n)
{
    struct head_part dims[4];
    const bool is_vector = view->rows == 1;
    const int n_dims = model_rope_parts(c, dims);
    const int64_t all = is_vector ? view->columns : view->rows;
    if (n_dims == 1) {
        parts[n] = *view;
        return n + 1;
    }
    for (int64_t head = 0; head < all; head += c->head_size)
        for (int i = 0; i < n_dims; i++) {
            if (!dims[i].n) continue;
            if (is_vector) {
                parts[n] = *view;
                parts[n].columns = dims[i].n;
                if (view->data)
                    parts[n].data =
                        (const char *)view->data + (head + dims[i].first) * (int64_t)dtype_size_bytes(view->dtype);
            } else {
                parts[n] = view_rows(*view, head + dims[i].first, dims[i].n);
            }
            n++;
        }
    return n;
}

// Joins q, k and v into one matrix or vector.
static enum status join_qkv(struct loader *in, const struct matrix_view qkv[3], struct weight **weight_p)
{
    const struct model *m = in->m;
    struct matrix_view *parts = mem_alloc_array((size_t)(m->n_heads + m->n_kv_heads) * 4 + 1, sizeof *parts);
    int n = heads_append(&m->config, &qkv[0], parts, 0);
    n = heads_append(&m->config, &qkv[1], parts, n);
    parts[n++] = qkv[2];
    const enum status status =
        qkv[0].rows == 1 ? put_vector(in, parts, n, weight_p) : put_matrix(in, parts, n, weight_p);
    if (qkv[0].rows > 1) release_views(in, qkv, 3);
    free(parts);
    return status;
}

// Loads the gains of the norm of q or k: of one head or, with HEAD_NORM_WHOLE, `n` heads of `all` from `first` on.
static enum status load_head_norm(struct loader *in, const char *name, int all, int first, int n,
                                  struct weight **weight_p)
{
    const struct model_config *c = &in->m->config;
    const int d = c->head_size;
    struct matrix_view view;
    if (c->layer.head_norm == HEAD_NORM_EACH) all = n = 1, first = 0;
    TRY(slice_columns(in, name, 0, (int64_t)all * d, (int64_t)first * d, (int64_t)n * d, &view));
    struct matrix_view *parts = mem_alloc_array((size_t)n * 4, sizeof *parts);
    n = heads_append(c, &view, parts, 0);
    const enum status status = put_vector(in, parts, n, weight_p);
    free(parts);
    return status;
}

// Loads the bias of a row-parallel matrix, whose products are summed over the ranks. Only rank 0 adds the bias.
static enum status load_sum_bias(struct loader *in, const char *name, struct weight **weight_p)
{
    struct weight *bias = NULL;
    TRY(load_vector(in, name, in->m->config.hidden, &bias));
    *weight_p = in->m->comm->rank == 0 ? bias : NULL;
    return STATUS_OK;
}

static enum status load_attention(struct loader *in, struct layer *layer)
{
    struct model *m = in->m;
    const struct model_config *c = &m->config;
    int64_t rank = m->comm->rank, d = c->head_size, hidden = c->hidden;
    int64_t q_all = c->n_heads * d, kv_all = c->n_kv_heads * d, q = m->n_heads * d, kv = m->n_kv_heads * d;
    int64_t first_kv = m->first_kv_head * d;

    const char *fused = "self_attn.qkv_proj.weight"; // [q; k; v] in one tensor
    const int64_t all = q_all + 2 * kv_all;
    struct projection from[3] = {{"self_attn.q_proj.weight", q_all, 0},
                                 {"self_attn.k_proj.weight", kv_all, 0},
                                 {"self_attn.v_proj.weight", kv_all, 0}};
    for (int i = 0; i < 3 && c->layer.fused_projections; i++)
        from[i] = (struct projection){fused, all, i == 0 ? 0 : q_all + (i - 1) * kv_all};
    struct matrix_view qkv[3], o;
    TRY(slice_rows(in, from[0].name, from[0].all_rows, hidden, from[0].first + rank * q, q, &qkv[0]));
    TRY(slice_rows(in, from[1].name, from[1].all_rows, hidden, from[1].first + first_kv, kv, &qkv[1]));
    TRY(slice_rows(in, from[2].name, from[2].all_rows, hidden, from[2].first + first_kv, kv, &qkv[2]));
    TRY(join_qkv(in, qkv, &layer->qkv));
    TRY(slice_columns(in, "self_attn.o_proj.weight", hidden, q_all, rank * q, q, &o));
    TRY(load_matrix(in, &o, 1, &layer->o));
    if (c->layer.qkv_bias) {
        TRY(slice_columns(in, "self_attn.q_proj.bias", 0, q_all, rank * q, q, &qkv[0]));
        TRY(slice_columns(in, "self_attn.k_proj.bias", 0, kv_all, first_kv, kv, &qkv[1]));
        TRY(slice_columns(in, "self_attn.v_proj.bias", 0, kv_all, first_kv, kv, &qkv[2]));
        TRY(join_qkv(in, qkv, &layer->qkv_bias));
    }
    if (c->layer.o_bias) TRY(load_sum_bias(in, "self_attn.o_proj.bias", &layer->o_bias));
    if (c->layer.head_norm != HEAD_NORM_NONE) {
        TRY(load_head_norm(in, "self_attn.q_norm.weight", c->n_heads, (int)rank * m->n_heads, m->n_heads,
                           &layer->q_norm));
        TRY(load_head_norm(in, "self_attn.k_norm.weight", c->n_kv_heads, m->first_kv_head, m->n_kv_heads,
                           &layer->k_norm));
    }
    return STATUS_OK;
}

// Reads a number that is stored as a tensor of shape [] or [1]. An absent one keeps the value that *value_p has.
static enum status load_number(struct loader *in, const char *name, bool required, float *value_p)
{
    char full[128], shape[SAFETENSORS_SHAPE_TEXT];
    snprintf(full, sizeof full, "%s%s", in->prefix, name);
    const struct safetensors_tensor *t = in->st ? safetensors_find(in->st, full) : NULL;
    if (!t)
        return required && in->st ? status_fail(STATUS_DATA, "tensor %s is missing: config.json calls for it", full)
                                  : STATUS_OK;
    if (t->n_dims > 1 || (t->n_dims == 1 && t->shape[0] != 1))
        return status_fail(STATUS_DATA, "%s: tensor %s has shape %s, but config.json calls for [1]", t->file, full,
                           safetensors_shape_text(t, shape));
    struct matrix_view view = {.data = t->data, .rows = 1, .columns = 1};
    TRY(dtype_parse(t, false, &view.dtype));
    mark_used(in, t);
    if (in->list || in->m->backend->ops->capabilities.reads_no_weights) return STATUS_OK;
    matrix_view_read(&view, 0, 0, 1, value_p);
    if (isfinite(*value_p)) return STATUS_OK;
    return status_fail(STATUS_DATA, "%s: tensor %s is %g: must be a finite number", t->file, full, (double)*value_p);
}

static float softplus(float x)
{
    return x > 20 ? x : log1pf(expf(x));
}

// Sets the parameters of the function between the matrices of the MLP.
static enum status load_activation(struct loader *in, struct activation *a)
{
    static const enum activation_kind kinds[] = {
        [MLP_SWIGLU] = ACTIVATION_SWIGLU, [MLP_RELU2] = ACTIVATION_RELU2, [MLP_XIELU] = ACTIVATION_XIELU};
    const enum mlp_kind mlp = in->m->config.layer.mlp;
    float a_p = 0, a_n = 0;
    *a = (struct activation){.kind = kinds[mlp], .beta = 0.5f, .epsilon = -1e-6f}; // the values of transformers
    if (mlp != MLP_XIELU) return STATUS_OK;
    TRY(load_number(in, "mlp.act_fn.alpha_p", true, &a_p));
    TRY(load_number(in, "mlp.act_fn.alpha_n", true, &a_n));
    TRY(load_number(in, "mlp.act_fn.beta", false, &a->beta));
    TRY(load_number(in, "mlp.act_fn.eps", false, &a->epsilon));
    a->a = softplus(a_p);
    a->b = a->beta + softplus(a_n);
    if (a->epsilon <= 0) return STATUS_OK;
    return status_fail(STATUS_DATA, "tensor %smlp.act_fn.eps is %g: must be at most 0", in->prefix, (double)a->epsilon);
}

static enum status load_mlp_biases(struct loader *in, struct layer *layer)
{
    const struct model *m = in->m;
    const int64_t all = m->config.intermediate, n = m->intermediate, first = m->comm->rank * n;
    const int gates = layer_mlp_matrices(&m->config.layer) - 2;
    struct matrix_view bias[2];
    if (gates) TRY(slice_columns(in, "mlp.gate_proj.bias", 0, all, first, n, &bias[0]));
    TRY(slice_columns(in, "mlp.up_proj.bias", 0, all, first, n, &bias[gates]));
    TRY(put_vector(in, bias, gates + 1, &layer->gate_up_bias));
    return load_sum_bias(in, "mlp.down_proj.bias", &layer->down_bias);
}

static enum status load_mlp(struct loader *in, struct layer *layer)
{
    struct model *m = in->m;
    const struct layer_shape *shape = &m->config.layer;
    int64_t all = m->config.intermediate, n = m->intermediate, first = m->comm->rank * n, hidden = m->config.hidden;
    struct matrix_view gate_up[2], down;
    struct projection from[2] = {{"mlp.gate_proj.weight", all, 0}, {"mlp.up_proj.weight", all, 0}};
    const int no_gate = shape->mlp == MLP_SWIGLU ? 0 : 1;
    for (int i = no_gate; i < 2; i++) {
        if (shape->fused_projections) from[i] = (struct projection){"mlp.gate_up_proj.weight", 2 * all, i * all};
        TRY(slice_rows(in, from[i].name, from[i].all_rows, hidden, from[i].first + first, n, &gate_up[i]));
    }
    if (layer_mlp_is_fused(shape))
        TRY(put_gate_up(in, gate_up, &layer->gate_up));
    else
        TRY(put_matrix(in, gate_up + no_gate, 2 - no_gate, &layer->gate_up));
    release_views(in, gate_up + no_gate, 2 - no_gate);
    TRY(slice_columns(in, "mlp.down_proj.weight", hidden, all, first, n, &down));
    TRY(load_matrix(in, &down, 1, &layer->down));
    TRY(load_activation(in, &layer->activation));
    return shape->mlp_bias ? load_mlp_biases(in, layer) : STATUS_OK;
}

// Names of the tensors that are not in a layer. A checkpoint that holds more than the text model has a longer prefix.
struct names {
    const char *root, *embedding, *head;
};

static struct names names_of(const struct model_config *c, const struct safetensors *st)
{
    static const struct names all[] = {
        {"model.", "model.embed_tokens.weight", "lm_head.weight"},
        {"language_model.model.", "language_model.model.embed_tokens.weight", "language_model.lm_head.weight"},
        {"model.language_model.", "model.language_model.embed_tokens.weight", "lm_head.weight"},
    };
    for (int i = 1; i < 3 && c->holds_more && st; i++)
        if (safetensors_find(st, all[i].embedding)) return all[i];
    struct names names = all[0];
    // A tied table may have either name.
    if (st && c->tied_embeddings && !safetensors_find(st, names.embedding)) names.embedding = names.head;
    return names;
}

void model_resolve_head(struct model_config *c, const struct safetensors *st)
{
    if (c->tied_if_absent && st && safetensors_find(st, names_of(c, st).head)) c->tied_embeddings = false;
}

// Compares mapped bytes. Prefetches a chunk while it compares the one before.
static bool mapped_equal(const char *a, const char *b, size_t size)
{
    enum { CHUNK_BYTES = 1 << 20 };
    safetensors_prefetch(a, 1, size < CHUNK_BYTES ? size : CHUNK_BYTES, 0);
    safetensors_prefetch(b, 1, size < CHUNK_BYTES ? size : CHUNK_BYTES, 0);
    for (size_t at = 0; at < size; at += CHUNK_BYTES) {
        const size_t n = size - at < CHUNK_BYTES ? size - at : CHUNK_BYTES, rest = size - at - n;
        safetensors_prefetch(a + at + n, 1, rest < CHUNK_BYTES ? rest : CHUNK_BYTES, 0);
        safetensors_prefetch(b + at + n, 1, rest < CHUNK_BYTES ? rest : CHUNK_BYTES, 0);
        if (memcmp(a + at, b + at, n) != 0) return false;
    }
    return true;
}

// Refuses a tied table if the head is stored too and has other values: transformers 4 ignores that head, transformers 5
// uses it. Compares the rows of this rank. With packed weights, the check is skipped: it was done when the weights were
// packed.
static enum status check_tied_head(const struct loader *in)
{
    const struct model *m = in->m;
    if (!in->st || !m->config.tied_embeddings || m->saved || in->list || m->backend->ops->capabilities.reads_no_weights)
        return STATUS_OK;
    const struct names names = names_of(&m->config, in->st);
    const struct safetensors_tensor *table = safetensors_find(in->st, names.embedding);
    const struct safetensors_tensor *head = safetensors_find(in->st, names.head);
    if (!table || !head || table == head) return STATUS_OK;
    const size_t row_bytes = (size_t)table->size_bytes / (size_t)m->config.vocab_size;
    const size_t from = (size_t)m->first_id * row_bytes, size = (size_t)m->n_ids * row_bytes;
    if (strcmp(head->dtype, table->dtype) == 0 && head->size_bytes == table->size_bytes &&
        mapped_equal((const char *)head->data + from, (const char *)table->data + from, size))
        return STATUS_OK;
    return status_fail(STATUS_DATA,
                       "%s: tensor lm_head.weight differs from model.embed_tokens.weight, but tie_word_embeddings of "
                       "config.json is true: set it to false to use both, or remove lm_head.weight",
                       head->file);
}

// Loads the embedding table in the first stage, and the head in the last one.
static enum status load_vocabulary(struct loader *in)
{
    struct model *m = in->m;
    const struct model_config *c = &m->config;
    struct matrix_view table = {0}, head[2] = {0};
    const struct names names = names_of(c, in->st);
    const bool both = m->stage.first && m->stage.last;
    if (m->stage.first || c->tied_embeddings)
        TRY(slice_rows(in, names.embedding, c->vocab_size, c->hidden, m->first_id, m->n_ids, &table));
    TRY(check_tied_head(in));
    if (m->stage.last) {
        if (c->tied_embeddings)
            head[0] = table;
        else
            TRY(slice_rows(in, names.head, c->vocab_size, c->hidden, m->first_id, m->n_ids, &head[0]));
        head[1] =
            (struct matrix_view){.dtype = DTYPE_BF16, .rows = m->vocab_share - m->n_ids, .columns = c->hidden}; // zeros
        TRY(put_matrix(in, head, head[1].rows ? 2 : 1, &m->head));
    }
    const bool shared = both && c->tied_embeddings && !head[1].rows;
    if (m->stage.first) TRY(put_embedding(in, &table, shared ? m->head : NULL));
    if (m->stage.last) release_views(in, head, 1);
    if (m->stage.first) release_views(in, &table, 1);
    return STATUS_OK;
}

// Returns true for calibrated scales of activations, K and V. They are not needed, see read_quantisation() in config.c,
// and rope_append().
static bool is_calibration(const struct model_config *c, const char *name)
{
    static const char *const endings[] = {".input_scale", ".activation_scale", ".output_scale", ".q_scale",
                                          ".k_scale",     ".v_scale",          ".kv_scale",     ".input_zero_point"};
    const char *ending = strrchr(name, '.');
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++)
        if (c->stored != STORED_PLAIN && ending && strcmp(ending, endings[i]) == 0) return true;
    return false;
}

// Returns true for tensors of the parts of a checkpoint that read images.
static bool is_vision(const struct model_config *c, const char *name)
{
    static const char *const parts[] = {"vision_tower.", "multi_modal_projector."};
    if (strncmp(name, "model.", 6) == 0) name += 6;
    for (int i = 0; i < 2; i++)
        if (c->holds_more && strncmp(name, parts[i], strlen(parts[i])) == 0) return true;
    return false;
}

// Returns true for tensors that only the ranks of other stages load and check.
static bool is_of_other_stage(const struct loader *in, const char *name)
{
    const struct model *m = in->m;
    const struct pipeline_stage *s = &m->stage;
    const struct names names = names_of(&m->config, in->st);
    const size_t root = strlen(names.root);
    int layer;
    if (s->count == 1) return false;
    if (!s->first && strncmp(name, names.embedding, strlen(names.embedding)) == 0) return true;
    if (!s->last && strncmp(name, names.head, strlen(names.head)) == 0) return true;
    if (strncmp(name, names.root, root) != 0) return false;
    if (!s->last && strcmp(name + root, "norm.weight") == 0) return true;
    if (sscanf(name + root, "layers.%d.", &layer) != 1 || layer < 0 || layer >= m->config.n_layers) return false;
    return layer < s->first_layer || layer >= s->first_layer + s->n_layers;
}

// Refuses tensors that the config does not mention (a bias, a norm, a layer), because the computation would leave them
// out.
static enum status check_all_used(const struct loader *in)
{
    const struct model_config *c = &in->m->config;
    for (int i = 0; i < safetensors_count(in->st); i++) {
        const struct safetensors_tensor *t = safetensors_at(in->st, i);
        // Older files store inv_freq, but rope_theta implies it.
        const char *inv_freq = strstr(t->name, ".rotary_emb.inv_freq");
        if (in->used[i] || inv_freq || is_calibration(c, t->name) || is_vision(c, t->name)) continue;
        if (is_of_other_stage(in, t->name)) continue;
        if (c->tied_embeddings && strncmp(t->name, "lm_head.weight", 14) == 0) continue; // also the scale of the head
        return status_fail(STATUS_DATA,
                           "%s: tensor %s does not belong to a %s of %d layers as config.json describes it", t->file,
                           t->name, c->architecture, c->n_layers);
    }
    return STATUS_OK;
}

// Loads a norm of the residual stream: `name` + ".weight".
static enum status load_norm(struct loader *in, const char *name, struct weight **weight_p)
{
    char full[64];
    snprintf(full, sizeof full, "%s.weight", name);
    return load_vector(in, full, in->m->config.hidden, weight_p);
}

// Loads the gains of the last norm, divided by the divisor of the logits.
static enum status load_final_norm(struct loader *in)
{
    struct model *m = in->m;
    const int n = m->config.hidden;
    struct matrix_view view;
    snprintf(in->prefix, sizeof in->prefix, "%s", names_of(&m->config, in->st).root);
    TRY(slice_columns(in, "norm.weight", 0, n, 0, n, &view));
    if (in->list) return put_vector(in, &view, 1, &m->final_norm);
    float *gains = mem_alloc_array((size_t)n, sizeof *gains);
    if (!m->backend->ops->capabilities.reads_no_weights) matrix_view_read(&view, 0, 0, n, gains);
    for (int i = 0; i < n; i++)
        gains[i] = (float)((double)gains[i] / m->config.scales.logits);
    const struct matrix_view divided = {.data = gains, .dtype = DTYPE_F32, .rows = 1, .columns = n};
    const enum status status = put_vector(in, &divided, 1, &m->final_norm);
    free(gains);
    return status;
}

static enum status load_model(struct loader *in)
{
    struct model *m = in->m;
    const struct layer_shape *shape = &m->config.layer;
    // Load the largest tensors first: peak memory is the weights packed so far plus one tensor of the file.
    if (m->stage.first || m->stage.last) TRY(load_vocabulary(in));
    if (m->stage.last) TRY(load_final_norm(in));
    for (int l = 0; l < m->stage.n_layers; l++) {
        struct layer *layer = &m->layers[l];
        snprintf(in->prefix, sizeof in->prefix, "%slayers.%d.", names_of(&m->config, in->st).root,
                 m->stage.first_layer + l);
        TRY(load_norm(in, shape->attention_norm, &layer->attention_norm));
        TRY(load_attention(in, layer));
        TRY(load_norm(in, shape->mlp_norm, &layer->mlp_norm));
        TRY(load_mlp(in, layer));
    }
    return in->st ? check_all_used(in) : STATUS_OK;
}

// ---- public ----

enum status model_stored_dtype(const struct model_config *config, const struct safetensors *st, enum dtype *dtype_p)
{
    static const enum dtype dtypes[] = {
        [STORED_PLAIN] = DTYPE_BF16,    [STORED_FP8] = DTYPE_FP8,        [STORED_INT8] = DTYPE_INT8,
        [STORED_AWQ] = DTYPE_INT4_G128, [STORED_GPTQ] = DTYPE_INT4_G128, [STORED_PACKED] = DTYPE_INT4_G128};
    if (config->stored != STORED_PLAIN || !st) {
        *dtype_p = dtypes[config->stored];
        return STATUS_OK;
    }
    const char *name = names_of(config, st).embedding;
    const struct safetensors_tensor *t = safetensors_find(st, name);
    if (!t) return status_fail(STATUS_DATA, "tensor %s is missing", name);
    return dtype_parse(t, true, dtype_p);
}

// Creates the weights, or adds them to `list` if it is not NULL.
static enum status load_weights(struct model *m, const struct safetensors *st, struct weight_list *list,
                                struct weight_reader *reader)
{
    struct dummy *dummy = st ? NULL : dummy_create(&m->config, m->zeros || list);
    const int64_t now_us = clock_now_us();
    const int mlp_matrices = layer_mlp_matrices(&m->config.layer);
    struct loader in = {.m = m,
                        .st = st,
                        .dummy = dummy,
                        .list = list,
                        .reader = reader,
                        .log = {now_us, now_us, 0},
                        .kept_attention = m->config.excluded_attention - 4 * m->stage.first_layer,
                        .kept_mlp = m->config.excluded_mlp - mlp_matrices * m->stage.first_layer};
    if (st) in.used = mem_alloc_array((size_t)safetensors_count(st), sizeof *in.used);
    m->layers = mem_alloc_array((size_t)m->stage.n_layers, sizeof *m->layers);
    enum status status = load_model(&in);
    free(in.used);
    dummy_free(dummy);
    return status;
}

// Lists the weights that load_weights() will create, without reading them, and sets the total of the progress.
static enum status list_weights(const struct model *m, const struct safetensors *st, struct weight_list *list)
{
    struct model listed = *m;
    listed.layers = NULL;
    listed.weight_bytes = 0;
    enum status status = load_weights(&listed, st, list, NULL);
    free(listed.layers);
    if (m->progress) atomic_store_explicit(&m->progress->total_bytes, listed.weight_bytes, memory_order_relaxed);
    return status;
}

int load_progress_percent(const struct load_progress *progress)
{
    const uint64_t total = atomic_load_explicit(&progress->total_bytes, memory_order_relaxed);
    const uint64_t done = atomic_load_explicit(&progress->done_bytes, memory_order_relaxed);
    return !total ? 0 : done < total ? (int)(100 * (double)done / (double)total) : 100;
}

enum status model_load_weights(struct model *m, const struct safetensors *st)
{
    struct weight_list list = {0};
    const bool reads = !m->backend->ops->capabilities.reads_no_weights;
    enum status status = reads ? list_weights(m, st, &list) : STATUS_OK;
    if (status == STATUS_OK) {
        const struct backend_ops *ops = m->backend->ops;
        const int threads = ops->host_threads ? ops->host_threads(m->backend) : 1;
        struct weight_reader *reader = reads && st && !m->saved ? weight_reader_start(&list, threads) : NULL;
        if (reader) safetensors_read_exactly(st);
        if (reads && st) file_fault_watch(st);
        status = load_weights(m, st, NULL, reader);
        if (reads && st) file_fault_unwatch(st);
        weight_reader_stop(reader);
    }
    weight_list_fini(&list);
    return status;
}
