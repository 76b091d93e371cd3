// SPDX-License-Identifier: Apache-2.0
#include "engine/model/int4_tensors.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/int4.h"

static const struct {
    const char *codes, *scales, *zeros, *groups;
    bool words_of_outputs, interleaved, by_group; // by_group: scales and zeros are [G, N]
} formats[] = {
    [STORED_AWQ] = {"qweight", "scales", "qzeros", "g_idx", true, true, true},
    [STORED_GPTQ] = {"qweight", "scales", "qzeros", "g_idx", false, false, true},
    [STORED_PACKED] = {"weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx", false, false, false},
};

bool int4_tensors_find(const struct safetensors *st, const struct model_config *c, const char *weight,
                       struct int4_tensors *tensors)
{
    const size_t length = strlen(weight), ending = strlen("weight");
    if (c->stored < STORED_AWQ || length < ending || strcmp(weight + length - ending, "weight") != 0) return false;
    const char *const endings[] = {formats[c->stored].codes, formats[c->stored].scales, formats[c->stored].zeros,
                                   formats[c->stored].groups, "weight_shape"};
    const struct safetensors_tensor *found[5];
    for (int i = 0; i < 5; i++) {
        char name[160];
        snprintf(name, sizeof name, "%.*s%s", (int)(length - ending), weight, endings[i]);
        found[i] = safetensors_find(st, name);
    }
    *tensors = (struct int4_tensors){found[0], found[1], found[2], found[3], found[4]};
    return tensors->codes;
}

// Checks that a tensor is there and has this shape of I32 words.
static enum status check_words(const struct safetensors_tensor *t, int64_t rows, int64_t columns, const char *codes,
                               const char *ending)
{
    char shape[SAFETENSORS_SHAPE_TEXT];
    if (!t) return status_fail(STATUS_DATA, "tensor %s has no tensor %s next to it", codes, ending);
    if (strcmp(t->dtype, "I32") != 0)
        return status_fail(STATUS_UNSUPPORTED, "%s: tensor %s is %.20s: must be I32, words of eight codes", t->file,
                           t->name, t->dtype);
    if (t->n_dims == 2 && t->shape[0] == rows && t->shape[1] == columns &&
        t->size_bytes == (uint64_t)rows * (uint64_t)columns * 4)
        return STATUS_OK;
    return status_fail(STATUS_DATA, "%s: tensor %s has shape %s, but config.json calls for [%lld, %lld]", t->file,
                       t->name, safetensors_shape_text(t, shape), (long long)rows, (long long)columns);
}

static enum status check_scale_tensor(const struct safetensors_tensor *t, int64_t rows, int64_t columns,
                                      const char *codes, const char *ending, enum dtype *dtype_p)
{
    static const enum dtype dtypes[] = {DTYPE_F16, DTYPE_BF16, DTYPE_F32};
    static const char *const names[] = {"F16", "BF16", "F32"};
    char shape[SAFETENSORS_SHAPE_TEXT];
    int d = 0;
    if (!t) return status_fail(STATUS_DATA, "tensor %s has no tensor %s next to it", codes, ending);
    while (d < 3 && strcmp(t->dtype, names[d]) != 0)
        d++;
    if (d == 3)
        return status_fail(STATUS_UNSUPPORTED, "%s: tensor %s is %.20s: must be F16, BF16 or F32", t->file, t->name,
                           t->dtype);
    *dtype_p = dtypes[d];
    if (t->n_dims == 2 && t->shape[0] == rows && t->shape[1] == columns) return STATUS_OK;
    return status_fail(STATUS_DATA, "%s: tensor %s has shape %s, but config.json calls for [%lld, %lld]", t->file,
                       t->name, safetensors_shape_text(t, shape), (long long)rows, (long long)columns);
}

static void prefetch(const struct safetensors_tensor *t)
{
    safetensors_prefetch(t->data, 1, t->size_bytes, 0);
}

static enum status check_scale_values(const struct safetensors_tensor *t, enum dtype dtype)
{
    const struct matrix_view all = {.data = t->data, .dtype = dtype};
    const int64_t n = t->shape[0] * t->shape[1];
    prefetch(t);
    for (int64_t i = 0; i < n; i++) {
        float value;
        matrix_view_read(&all, 0, i, 1, &value);
        if (!isfinite(value))
            return status_fail(STATUS_DATA, "%s: tensor %s: scale %lld is %g: must be a finite number", t->file,
                               t->name, (long long)i, (double)value);
    }
    return STATUS_OK;
}

// Checks that the groups are 128 neighbouring inputs each. They are not if inputs were quantised in the order of their
// activations (desc_act) without static groups.
static enum status check_groups(const struct safetensors_tensor *t, int64_t columns)
{
    if (strcmp(t->dtype, "I32") != 0 || t->n_dims != 1 || t->shape[0] != columns)
        return status_fail(STATUS_DATA, "%s: tensor %s must be I32 of shape [%lld], the group of each input", t->file,
                           t->name, (long long)columns);
    for (int64_t i = 0; i < columns; i++) {
        int32_t group;
        memcpy(&group, (const char *)t->data + 4 * i, sizeof group);
        if (group != i / INT4_GROUP)
            return status_fail(
                STATUS_UNSUPPORTED,
                "%s: tensor %s puts input %lld into group %d: groups must be 128 neighbouring inputs, so "
                "quantise with desc_act false, or with static_groups",
                t->file, t->name, (long long)i, (int)group);
    }
    return STATUS_OK;
}

static bool stores_zeros(const struct int4_tensors *t, const struct model_config *c)
{
    return c->has_zeros && (t->zeros || !c->some_zeros);
}

static enum status check_tensors(const struct int4_tensors *t, const struct model_config *c, int64_t n, int64_t k,
                                 bool values, enum dtype *scale_dtype_p)
{
    const char *name = t->codes->name, *scales = formats[c->stored].scales, *zeros = formats[c->stored].zeros;
    const int64_t groups = k / INT4_GROUP;
    const bool by_group = formats[c->stored].by_group;
    if (k % INT4_GROUP != 0 || n % INT4_WORD != 0)
        return status_fail(
            STATUS_UNSUPPORTED,
            "%s: tensor %s: a matrix of %lld x %lld: 4-bit codes need outputs in multiples of 8 and inputs "
            "in multiples of 128",
            t->codes->file, name, (long long)n, (long long)k);
    if (formats[c->stored].words_of_outputs)
        TRY(check_words(t->codes, k, n / INT4_WORD, name, ""));
    else if (by_group)
        TRY(check_words(t->codes, k / INT4_WORD, n, name, ""));
    else
        TRY(check_words(t->codes, n, k / INT4_WORD, name, ""));
    TRY(check_scale_tensor(t->scales, by_group ? groups : n, by_group ? n : groups, name, scales, scale_dtype_p));
    if (stores_zeros(t, c)) {
        const int64_t words = n / INT4_WORD;
        TRY(check_words(t->zeros, by_group ? groups : words, by_group ? words : groups, name, zeros));
    }
    if (c->reordered && !t->groups)
        return status_fail(STATUS_UNSUPPORTED,
                           "%s: tensor %s: desc_act is true, but there is no g_idx next to it, the group of each input",
                           t->codes->file, name);
    if (!values) return STATUS_OK;
    if (stores_zeros(t, c)) prefetch(t->zeros);
    if (t->groups) prefetch(t->groups);
    if (t->groups) TRY(check_groups(t->groups, k));
    return check_scale_values(t->scales, *scale_dtype_p);
}

enum status int4_tensors_view(const struct int4_tensors *t, const struct model_config *c, int64_t rows, int64_t columns,
                              bool values, struct matrix_view *view)
{
    enum dtype scale_dtype = DTYPE_F32;
    TRY(check_tensors(t, c, rows, columns, values, &scale_dtype));
    const bool of_outputs = formats[c->stored].words_of_outputs, by_group = formats[c->stored].by_group;
    const int64_t groups = columns / INT4_GROUP, words = rows / INT4_WORD;
    *view = (struct matrix_view){
        .data = t->codes->data,
        .dtype = DTYPE_INT4_G128,
        .rows = rows,
        .columns = columns,
        .scale = t->scales->data,
        .scale_dtype = scale_dtype,
        .int4 = {.words_of_outputs = of_outputs,
                 .interleaved = formats[c->stored].interleaved,
                 .output_stride = by_group ? 1 : columns / INT4_WORD,
                 .input_stride = of_outputs ? words
                                 : by_group ? rows
                                            : 1,
                 .zero = stores_zeros(t, c) ? t->zeros->data : NULL,
                 .zero_output_stride = by_group ? 1 : groups,
                 .zero_group_stride = by_group ? words : 1,
                 .zero_added = c->zero_added,
                 .scale_output_stride = by_group ? 1 : groups,
                 .scale_group_stride = by_group ? rows : 1},
    };
    return STATUS_OK;
}

struct int4_extent int4_view_extent(const struct matrix_view *view)
{
    const struct int4_layout *layout = &view->int4;
    const int of_output = layout->words_of_outputs ? INT4_WORD : 1, of_input = layout->words_of_outputs ? 1 : INT4_WORD;
    const int64_t row = view->scale_row / of_output, column = view->scale_column / of_input;
    const int64_t down = (view->scale_row + view->rows + of_output - 1) / of_output - row;
    const int64_t across = (view->columns + of_input - 1) / of_input;
    const char *start = (const char *)view->data + 4 * (row * layout->output_stride + column * layout->input_stride);
    const bool rows_apart = layout->input_stride == 1;
    return (struct int4_extent){.start = start,
                                .n = rows_apart ? down : across,
                                .stride = 4 * (rows_apart ? layout->output_stride : layout->input_stride),
                                .bytes = 4 * (size_t)(rows_apart ? across : down)};
}

size_t int4_view_bytes(const struct matrix_view *view)
{
    const size_t groups = (size_t)view->rows * (size_t)((view->columns + INT4_GROUP - 1) / INT4_GROUP);
    return dtype_matrix_bytes(DTYPE_INT4_G128, view->rows, view->columns) +
           groups * dtype_size_bytes(view->scale_dtype) + (view->int4.zero ? groups / 2 : 0);
}
