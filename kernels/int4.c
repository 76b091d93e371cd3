// SPDX-License-Identifier: Apache-2.0
#include "kernels/int4.h"

#include <math.h>

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
        int4_stored_read(view, row, first, n, group);
        return;
    }
    float x[INT4_GROUP];
    matrix_view_read(view, row, first, n, x);
    int4_quantise(x, n, group);
}
