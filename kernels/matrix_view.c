// SPDX-License-Identifier: Apache-2.0
// Reads matrix views in any dtype (convert.h, int4.h).
#include <string.h>

#include "kernels/int4.h"

// ---- codes of 4 bits ------------------------------------------------------------------------------------------------

static uint32_t word_at(const void *words, int64_t index)
{
    uint32_t word;
    memcpy(&word, (const char *)words + 4 * index, sizeof word); // files need not be aligned
    return word;
}

// Returns the bit of a word from which the code of output `place` (0 .. 7) of the word starts.
static int shift_of_output(const struct int4_layout *layout, int place)
{
    return 4 * (layout->interleaved ? place / 2 + place % 2 * 4 : place);
}

static void read_codes(const struct matrix_view *view, int64_t row, int64_t column, int n, uint8_t *code)
{
    const struct int4_layout *layout = &view->int4;
    if (layout->words_of_outputs) {
        const int64_t at = row / INT4_WORD * layout->output_stride + column * layout->input_stride;
        const int shift = shift_of_output(layout, (int)(row % INT4_WORD));
        for (int i = 0; i < n; i++)
            code[i] = word_at(view->data, at + i * layout->input_stride) >> shift & 15;
        return;
    }
    const int64_t at = row * layout->output_stride;
    for (int i = 0; i < n; i++) {
        const int64_t c = column + i;
        code[i] = word_at(view->data, at + c / INT4_WORD * layout->input_stride) >> c % INT4_WORD * 4 & 15;
    }
}

static int read_zero(const struct int4_layout *layout, int64_t row, int64_t group)
{
    if (!layout->zero) return INT4_MIDDLE;
    const int64_t at = row / INT4_WORD * layout->zero_output_stride + group * layout->zero_group_stride;
    const uint32_t word = word_at(layout->zero, at);
    return (int)((word >> shift_of_output(layout, (int)(row % INT4_WORD))) + layout->zero_added) & 15;
}

static float read_scale(const struct matrix_view *view, int64_t row, int64_t group)
{
    const struct matrix_view all = {.data = view->scale, .dtype = view->scale_dtype};
    float scale;
    matrix_view_read(&all, 0, row * view->int4.scale_output_stride + group * view->int4.scale_group_stride, 1, &scale);
    return scale;
}

void int4_stored_read(const struct matrix_view *view, int64_t row, int64_t column, int n, struct int4_group *group)
{
    const int64_t r = view->scale_row + row, c = view->scale_column + column;
    read_codes(view, r, c, n, group->code);
    group->zero = read_zero(&view->int4, r, c / INT4_GROUP);
    group->scale = read_scale(view, r, c / INT4_GROUP);
}

static void read_int4(const struct matrix_view *view, int64_t row, int64_t column, int64_t count, float *out)
{
    for (int64_t i = 0, n; i < count; i += n) {
        struct int4_group group;
        n = INT4_GROUP - (view->scale_column + column + i) % INT4_GROUP;
        if (n > count - i) n = count - i;
        int4_stored_read(view, row, column + i, (int)n, &group);
        for (int j = 0; j < n; j++)
            out[i + j] = (float)(group.code[j] - group.zero) * group.scale;
    }
}

// ---- all dtypes -----------------------------------------------------------------------------------------------------

float matrix_view_scale(const struct matrix_view *view, int64_t row, int64_t column)
{
    float scale = 1;
    struct matrix_view all = {.data = view->scale, .dtype = view->scale_dtype};
    if (view->scale_block) {
        row = (view->scale_row + row) / view->scale_block;
        column = (view->scale_column + column) / view->scale_block;
    } else {
        column = 0;
    }
    if (view->scale) matrix_view_read(&all, 0, row * view->scale_stride + column, 1, &scale);
    return scale;
}

// Reads elements from `column` on. A scale applies to all elements up to the end of its block.
static void read_bytes(const struct matrix_view *view, const uint8_t *from, int64_t row, int64_t column, int64_t count,
                       float *out)
{
    const bool fp8 = view->dtype == DTYPE_FP8;
    for (int64_t i = 0, n; i < count; i += n) {
        const int block = view->scale_block;
        n = block ? block - (view->scale_column + column + i) % block : count;
        if (n > count - i) n = count - i;
        const float scale = matrix_view_scale(view, row, column + i);
        for (int64_t j = i; j < i + n; j++)
            out[j] = (fp8 ? e4m3_to_f32(from[j]) : (float)(int8_t)from[j]) * scale;
    }
}

void matrix_view_read(const struct matrix_view *view, int64_t row, int64_t column, int64_t count, float *out)
{
    if (!view->data) {
        memset(out, 0, (size_t)count * sizeof *out);
        return;
    }
    if (view->dtype == DTYPE_INT4_G128) {
        read_int4(view, row, column, count, out);
        return;
    }
    const char *from = (const char *)view->data + row * view->row_stride_bytes;
    from += column * (int64_t)dtype_size_bytes(view->dtype);
    if (view->dtype == DTYPE_F32) {
        memcpy(out, from, (size_t)count * sizeof *out);
        return;
    }
    if (view->dtype == DTYPE_FP8 || view->dtype == DTYPE_INT8) {
        read_bytes(view, (const uint8_t *)from, row, column, count, out);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, from + 2 * i, sizeof half); // the view may be at an odd address
        out[i] = view->dtype == DTYPE_F16 ? f16_to_f32(half) : bf16_to_f32(half);
    }
}
