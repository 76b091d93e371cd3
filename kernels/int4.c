// SPDX-License-Identifier: Apache-2.0
#include "kernels/int4.h"

#include <math.h>
#include <string.h>

// ---- stored codes ---------------------------------------------------------------------------------------------------

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

// Reads n codes from `column` on, all of one group of the tensor.
static void read_stored(const struct matrix_view *view, int64_t row, int64_t column, int n, struct int4_group *group)
{
    const int64_t r = view->scale_row + row, c = view->scale_column + column;
    read_codes(view, r, c, n, group->code);
    group->zero = read_zero(&view->int4, r, c / INT4_GROUP);
    group->scale = read_scale(view, r, c / INT4_GROUP);
}

void int4_view_read(const struct matrix_view *view, int64_t row, int64_t column, int64_t count, float *out)
{
    for (int64_t i = 0, n; i < count; i += n) {
        struct int4_group group;
        n = INT4_GROUP - (view->scale_column + column + i) % INT4_GROUP;
        if (n > count - i) n = count - i;
        read_stored(view, row, column + i, (int)n, &group);
        for (int j = 0; j < n; j++)
            out[i + j] = (float)(group.code[j] - group.zero) * group.scale;
    }
}

// ---- quantising -----------------------------------------------------------------------------------------------------

// Rounds to the nearest integer, ties to even. Valid below 2^22. Has no call, so that compilers vectorise loops over
// it.
static int round_to_int(float x)
{
    return (int)(f32_bits(x + 12582912.f) - 0x4b400000u);
}

void int4_quantise(const float *x, int n, struct int4_group *group)
{
    float low = 0, high = 0, poison = 0;
    for (int i = 0; i < n; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
        poison += x[i] * 0;
    }
    const float range = high - low;
    const bool finite = poison == 0 && range <= 0x1p127f, nothing = !finite || range < QUANTISE_MIN;
    const float inverse = nothing ? 0 : INT4_LARGEST / range;
    const int zero = round_to_int(-low * inverse);
    group->scale = finite ? (nothing ? 0 : range / INT4_LARGEST) : NAN;
    group->zero = nothing ? INT4_MIDDLE : zero;
    for (int i = 0; i < n; i++) {
        const int code = (nothing ? 0 : round_to_int(x[i] * inverse)) + group->zero;
        group->code[i] = (uint8_t)(code < 0 ? 0 : code > INT4_LARGEST ? INT4_LARGEST : code);
    }
}

void int4_group_read(const struct matrix_view *view, int64_t row, int64_t first, int n, struct int4_group *group)
{
    if (view->data && view->dtype == DTYPE_INT4_G128) {
        read_stored(view, row, first, n, group);
        return;
    }
    float x[INT4_GROUP];
    matrix_view_read(view, row, first, n, x);
    int4_quantise(x, n, group);
}
